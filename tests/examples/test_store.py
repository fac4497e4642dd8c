"""The example of a store: a distribution of its own that passes what every store must, by its entry point."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.store import zae_limiter_journal
from examples.store.zae_limiter_journal import JournalBackend
from tests.conformance.adder import opened
from tests.documents import wheel
from tests.examples.servers import EXAMPLES, ROOT
from zae_limiter import RateLimiterUnavailable, ValidationError
from zae_limiter.repository_protocol import Backend, Key, Put, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

HOME = EXAMPLES / "store"
LINES_MAX = 249
NEEDED = frozenset({"pytest", "pytest-timeout", "hypothesis"})
"""What the suite needs of whoever runs it."""

KEY = Key("p", "s")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheels of the limiter and of the store, and nothing of this checkout."""
    place = tmp_path_factory.mktemp("store-installed")
    there = wheel.environment(place / "venv", wheel.build(place / "limiter"), frozenset(), NEEDED)
    wheel.install(there, wheel.build(place / "store", HOME))
    return there


def passed(programs: Path, url: str, folder: Path) -> int:
    """How many tests of the suite a store passed, and none was passed over."""
    command = [programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/conformance"]
    kept = {name: os.environ[name] for name in ("TMPDIR", "CI") if name in os.environ}
    ran = subprocess.run(
        [*command, f"--basetemp={folder}"],
        cwd=ROOT,
        env={**kept, "PATH": "/usr/bin:/bin", "STORE_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    said = re.search(r"^(\d+) passed in", ran.stdout, re.MULTILINE)
    assert ran.returncode == 0, ran.stdout
    assert said is not None, ran.stdout
    return int(said[1])


def test_it_is_short() -> None:
    """All of its Python together."""
    assert sum(len(path.read_text().splitlines()) for path in HOME.rglob("*.py")) <= LINES_MAX


def test_it_passes_what_every_store_must(programs: Path, tmp_path: Path) -> None:
    """As many tests as a SQLite file passes in the same environment, none of them left out."""
    journal = passed(programs, "journal://{folder}/limits.jsonl", tmp_path / "journal")
    assert journal == passed(programs, "sqlite:///{folder}/limits.db", tmp_path / "sqlite") > 200


def test_its_package_is_what_offers_it(programs: Path, tmp_path: Path) -> None:
    """Where it is not installed, such as here, nobody knows the scheme."""
    with pytest.raises(ValidationError, match="the scheme is unknown"):
        opened("journal:///limits.jsonl")
    program = (
        "from zae_limiter.backends import open_backend; from zae_limiter.runtime.world import World; "
        "print(open_backend('journal:///x', sync=True, world=World()).__module__)"
    )
    ran = subprocess.run(
        [programs / "python", "-c", program], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "zae_limiter_journal\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.jsonl"


def journal(path: Path, world: World | None = None, timeout_ms: int = 60_000) -> JournalBackend:
    backend = JournalBackend(str(path), sync=True, world=world or World(), timeout_ms=timeout_ms)
    run_sync(backend.setup())
    return backend


@pytest.fixture
def backend(path: Path) -> Iterator[JournalBackend]:
    it = journal(path)
    yield it
    run_sync(it.close())


def add(backend: Backend, amount: int = 1) -> Any:
    (outcome,) = run_sync(backend.write_each([Update(KEY, {"n": amount})]))
    return outcome


def test_a_line_that_was_cut_off_never_happened(backend: JournalBackend, path: Path) -> None:
    """It is taken away by the next who has the lock, and what follows stands on a line of its own."""
    add(backend)
    whole = path.read_bytes()
    path.write_bytes(whole + b'[["p","s",{"n":')
    assert add(journal(path)).item == {"n": 2}
    assert path.read_bytes() == whole + b'[["p","s",{"n":2}]]\n'
    assert add(backend).item == {"n": 3}


def test_a_file_that_is_gone_is_not_made_anew(backend: JournalBackend, path: Path) -> None:
    """It would have forgotten what was used. Whoever opens the store again wants a new one."""
    add(backend)
    path.unlink()
    failure = add(backend).failure
    assert (failure.misconfigured, failure.ambiguous) == ("file", False)
    with pytest.raises(RateLimiterUnavailable, match="No such file"):
        run_sync(backend.batch_get([KEY]))
    assert add(journal(path)).item == {"n": 1}
    assert add(backend).item == {"n": 2}


def test_a_line_that_is_no_line_is_told(backend: JournalBackend, path: Path) -> None:
    path.write_bytes(b"12\n")
    assert add(backend).failure.misconfigured == "file"


def test_a_folder_that_is_missing_is_told(tmp_path: Path) -> None:
    """By the only exception that a store raises."""
    with pytest.raises(RateLimiterUnavailable, match="No such file"):
        journal(tmp_path / "missing" / "limits.jsonl")


def test_the_file_is_for_its_owner_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it was written anew."""
    monkeypatch.setattr(zae_limiter_journal, "SPARE_LINES", 3)
    for _ in range(9):
        assert add(journal(path)).applied
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_long_journal_is_written_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is there and has not expired; who had it open goes on with the new file."""
    monkeypatch.setattr(zae_limiter_journal, "SPARE_LINES", 10)
    world = World(now_ms=lambda: 2_000_500)
    first, second = journal(path, world), journal(path, world)
    run_sync(first.write_each([Put(Key("old", "s"), {"ttl": 1_999}), Put(Key("new", "s"), {"ttl": 2_001})]))
    for total in range(1, 100):
        assert add((first, second)[total % 2]).item == {"n": total}
        assert len(path.read_bytes().splitlines()) <= 17
    assert run_sync(first.batch_get([Key("old", "s"), Key("new", "s")])) == [None, {"ttl": 2_001}]


def test_a_full_disk_refuses_and_leaves_the_file_whole(
    backend: JournalBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a line may be there already."""
    add(backend)
    whole, write = path.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:5]))
    assert add(backend).failure.misconfigured == "file"
    monkeypatch.undo()
    assert path.read_bytes() == whole
    assert add(backend).item == {"n": 2}


def test_who_holds_the_lock_for_long_is_not_waited_for(backend: JournalBackend, path: Path) -> None:
    """After the deadline it is an outage, of which it is certain that nothing happened."""
    add(backend)
    holder = subprocess.Popen(["flock", str(path), "sleep", "600"], start_new_session=True)
    impatient = JournalBackend(str(path), sync=True, world=World(), timeout_ms=3)
    while (failure := add(impatient).failure) is None:
        assert holder.poll() is None
    assert (failure.ambiguous, failure.misconfigured) == (False, "")
    os.killpg(holder.pid, signal.SIGKILL)
    holder.wait()
    assert add(backend).item["n"] > 1


FORKS = """
import os, sys
from examples.store.zae_limiter_journal import JournalBackend
from zae_limiter.repository_protocol import Key, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

backend = JournalBackend(sys.argv[1], sync=True, world=World(), timeout_ms=5_000)

def fork(journal):
    if child := os.fork():
        return child
    (outcome,) = run_sync(backend.write_each([Update(Key("p", "s"), {"n": 1})]))
    os._exit(not outcome.applied)

run_sync(backend.setup())
child = backend._journal.get().attempt(fork)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_who_is_forked_in_the_middle_of_a_write_has_no_lock_of_its_parent(path: Path) -> None:
    """Neither that of its threads, which nobody would ever give back there, nor that of the file."""
    ran = subprocess.run([sys.executable, "-c", FORKS, str(path)], cwd=ROOT, check=False)
    assert ran.returncode == 0
    assert add(journal(path)).item == {"n": 2}


@pytest.mark.parametrize("url", ["journal://", "journal:///", "journal://host/x", "journal:///x?y=1"])
def test_a_url_that_says_something_else_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="absolute"):
        zae_limiter_journal.open_backend(url, sync=True, world=World())
