"""Stores opened by URL: what each form means, and what broken ones are answered with."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zae_limiter.backends import default_url, open_backend
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.exceptions import InfrastructureError, ValidationError
from zae_limiter.repository_protocol import Backend, Key, Put
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

K = Key("p", "s")


def opened(url: str, timeout_ms: int | None = None) -> Any:
    return open_backend(url, sync=True, world=World(), timeout_ms=timeout_ms)


def put(backend: Backend, n: int) -> None:
    run_sync(backend.write_each([Put(K, {"n": n})]))


def got(backend: Backend) -> Any:
    return run_sync(backend.batch_get([K]))[0]


class TestMemory:
    def test_unnamed_stores_are_separate(self) -> None:
        """Each opening of memory:// is a store of its own."""
        one, two = opened("memory://"), opened("memory://")
        assert isinstance(one, MemoryBackend)
        put(one, 1)
        assert (got(one), got(two)) == ({"n": 1}, None)

    def test_named_stores_are_shared(self) -> None:
        """The same name is the same store, in either colour; case matters."""
        one, two = opened("memory://test_Named"), opened("memory://test_Named")
        put(one, 1)
        run_sync(one.close())
        assert got(two) == {"n": 1}
        assert got(open_backend("memory://test_Named", sync=False, world=World())) == {"n": 1}
        assert got(opened("memory://test_named")) is None

    @pytest.mark.parametrize(
        "url", ["memory://?x=1", "memory://name/path", "memory://name#x", "memory:///name"]
    )
    def test_no_options(self, url: str) -> None:
        with pytest.raises(ValidationError, match="use memory:// or memory://name"):
            opened(url)


class TestSqlite:
    @pytest.mark.parametrize(
        ("url", "path"),
        [
            ("sqlite:///limits.db", "{cwd}/limits.db"),
            ("sqlite:///folder/limits.db", "{cwd}/folder/limits.db"),
            ("sqlite:////var/lib/limits.db", "/var/lib/limits.db"),
            ("SQLite:///limits.db", "{cwd}/limits.db"),
            ("sqlite:///a%20b%23c%3Fd%25.db", "{cwd}/a b#c?d%.db"),
            ("sqlite:///a b+c.db?timeout_ms=5", "{cwd}/a b+c.db"),
        ],
    )
    def test_paths(self, url: str, path: str) -> None:
        """Three slashes before a relative path, four before an absolute one; %-escapes are undone."""
        backend = opened(url)
        assert isinstance(backend, SqliteBackend)
        assert str(backend.path) == path.replace("{cwd}", str(Path.cwd()))

    def test_opening_touches_nothing(self, tmp_path: Path) -> None:
        """A file is made by ``setup``, not by looking at a URL."""
        backend = opened(f"sqlite:///{tmp_path}/limits.db")
        assert list(tmp_path.iterdir()) == []
        run_sync(backend.setup())
        run_sync(backend.close())
        assert [file.name for file in tmp_path.iterdir()] == ["limits.db"]

    @pytest.mark.parametrize(
        ("url", "timeout_ms", "expected"),
        [
            ("sqlite:///x.db", None, 2000),
            ("sqlite:///x.db?timeout_ms=70", None, 70),
            ("sqlite:///x.db?timeout_ms=70", 80, 80),
            ("sqlite:///x.db", 90, 90),
        ],
    )
    def test_timeout(self, url: str, timeout_ms: int | None, expected: int) -> None:
        """The argument wins over the URL, the URL over the default."""
        assert opened(url, timeout_ms)._timeout_ms == expected

    def test_colours(self) -> None:
        """A store is opened for one colour."""
        colours = [open_backend("sqlite:///x.db", sync=s, world=World()).colour for s in (True, False)]
        assert [type(colour).__name__ for colour in colours] == ["Blocking", "Asyncio"]


BROKEN = [
    ("", "it is not a URL"),
    ("limits.db", "a file is sqlite:///limits.db"),
    ("/var/lib/limits.db", "a file is sqlite:///limits.db"),
    ("sqlite", "it is not a URL"),
    ("sqlite:limits.db", "a file is sqlite:///limits.db"),
    ("://x", "it is not a URL"),
    ("sqlite://limits.db", "use three slashes"),
    ("sqlite://host/limits.db", "use three slashes"),
    ("sqlite://", "use three slashes"),
    ("sqlite:///", "the path of the file is missing"),
    ("sqlite:///:memory:", "use memory://"),
    ("sqlite:///x.db#y", "write a '#' in the path as %23"),
    ("sqlite:///x.db?timeout=5", "unknown option 'timeout'; there is timeout_ms"),
    ("sqlite:///x.db?timeout_ms=5&mode=ro", "unknown option 'mode'"),
    ("sqlite:///x.db?timeout_ms=", "whole number of milliseconds"),
    ("sqlite:///x.db?timeout_ms=-5", "whole number of milliseconds"),
    ("sqlite:///x.db?timeout_ms=1.5", "whole number of milliseconds"),
    ("sqlite:///x.db?timeout_ms=0", "at least 1"),
    ("sqlite:///x.db?timeout_ms=99999999", "at most"),
    ("sqlite:///x%00.db", "not the path of a file"),
    (" sqlite:///x.db", "spaces around it"),
    ("sqlite:///x.db\n", "unprintable"),
    ("sqlite:///x\ty.db", "unprintable"),
    ("sqlite://[x", "it is not a URL: "),
    (f"sqlite:///{'x' * 3000}", "longer than 2048"),
    ("mongodb://host", "the scheme is unknown; there are dynamodb://, memory://, postgres://"),
    (None, "pass a URL"),
    (Path("limits.db"), "pass a URL"),
]


@pytest.mark.parametrize(("url", "words"), BROKEN, ids=[str(url)[:40] for url, _ in BROKEN])
def test_broken_url(url: Any, words: str) -> None:
    """Each broken URL is refused with the reason and the way out."""
    with pytest.raises(ValidationError) as caught:
        opened(url)
    assert words in str(caught.value)


@pytest.mark.parametrize("url", ["mongodb://user:s3cret@host", "://user:s3cret@host", "x://u:s3cret@[h"])
def test_passwords_stay_out_of_messages(url: str) -> None:
    """An error message ends up in logs."""
    with pytest.raises(ValidationError) as caught:
        opened(url)
    assert "s3cret" not in str(caught.value)


class TestDrivers:
    def test_no_driver_is_imported_early(self) -> None:
        """Looking at the package or a memory store loads neither SQLite nor a cloud driver."""
        program = (
            "import sys; from zae_limiter.backends import open_backend; "
            "from zae_limiter.runtime.world import World; "
            "open_backend('memory://', sync=True, world=World()); "
            "print([m for m in ('sqlite3', 'botocore') if m in sys.modules])"
        )
        answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert answer.stdout.strip() == "[]"


THIRD_PARTY = """
from zae_limiter.backends.memory import MemoryBackend

class ShelfBackend(MemoryBackend):
    pass

class Bare:
    capabilities = colour = None
    setup = batch_get = write_each = transact_write = query = close = None


def open_old(url, *, sync):
    return Bare()


def open_nothing(url, **given):
    return [url]


def open_bare(url, *, sync, world, timeout_ms):
    return Bare()


def open_shelf(url, *, sync, world, timeout_ms):
    backend = ShelfBackend(world)
    backend.asked = (url, sync, timeout_ms)
    return backend
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with stores of its own, as an installer would leave it on the path."""
    info = tmp_path / "shelf_store-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf-store\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[zae_limiter.backends]\n"
        "bare = shelf_store:open_bare\n"
        "misspelled = shelf_store:open_shelve\n"
        "nothing = shelf_store:open_nothing\n"
        "old = shelf_store:open_old\n"
        "shelf = shelf_store:open_shelf\n"
        "torn = shelf_store_that_is_missing:open_shelf\n"
        "sqlite = shelf_store:open_shelf\n"
    )
    (tmp_path / "shelf_store.py").write_text(THIRD_PARTY)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("shelf_store", None)


@pytest.mark.usefixtures("installed")
class TestEntryPoints:
    def test_third_party_store(self) -> None:
        """The callable behind the entry point gets the URL and everything else."""
        backend = opened("shelf://somewhere?x=1", 70)
        assert type(backend).__name__ == "ShelfBackend"
        assert backend.asked == ("shelf://somewhere?x=1", True, 70)

    def test_a_store_that_offers_no_more_than_it_must(self) -> None:
        """It answers by writes, and its records are believed until they expire."""
        backend = opened("bare://x")
        assert (backend.swap, backend.changes, backend.news) == (None, None, None)

    def test_our_own_come_first(self) -> None:
        """Nobody takes over a scheme of ours."""
        assert isinstance(opened("sqlite:///x.db"), SqliteBackend)

    def test_known_schemes_include_it(self) -> None:
        """An unknown scheme is answered with all that are installed."""
        with pytest.raises(
            ValidationError, match=r"bare://, dynamodb://, memory://, .*, shelf://, sqlite://, torn"
        ):
            opened("shelv://x")

    def test_how_to_add_one_is_said(self) -> None:
        """A typing error and a package that is not installed look alike."""
        with pytest.raises(ValidationError, match=r"entry point in the group zae_limiter\.backends"):
            opened("shelv://x")

    @pytest.mark.parametrize(
        ("scheme", "words"),
        [
            ("torn", "cannot be opened: No module named 'shelf_store_that_is_missing'"),
            ("misspelled", "cannot be opened: module 'shelf_store' has no attribute 'open_shelve'"),
            ("old", "cannot be opened: open_old() got an unexpected keyword argument 'world'"),
            (
                "nothing",
                "offers a list for nothing://, which is no store: it lacks capabilities, colour, setup",
            ),
        ],
    )
    def test_broken_distribution(self, scheme: str, words: str) -> None:
        """What is wrong, and whose it is."""
        with pytest.raises(InfrastructureError) as caught:
            opened(f"{scheme}://x")
        assert words in str(caught.value)
        assert "'shelf-store'" in str(caught.value)


class TestDefault:
    def test_state_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The embedded file lives in the user's state directory, which opening it creates."""
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "my state#"))
        assert list(tmp_path.iterdir()) == []
        backend = opened(default_url())
        assert backend.path == tmp_path / "my state#" / "zae-limiter" / "limits.db"
        run_sync(backend.setup())
        run_sync(backend.close())
        assert backend.path.exists()
        assert backend.path.parent.stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("state", [None, "", "relative/path"])
    def test_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str | None) -> None:
        """Without a usable variable it is ~/.local/state; asking for the URL creates nothing."""
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        if state is not None:
            monkeypatch.setenv("XDG_STATE_HOME", state)
        assert default_url() == f"sqlite:///{tmp_path}/.local/state/zae-limiter/limits.db"
        assert list(tmp_path.iterdir()) == []

    def test_other_urls_do_not_create_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only opening the default makes its directory."""
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        opened(f"sqlite:///{tmp_path}/other.db")
        assert list(tmp_path.iterdir()) == []

    def test_state_that_is_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A state directory that cannot be made is an error with the way out."""
        (tmp_path / "state").write_text("")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        with pytest.raises(InfrastructureError, match="set XDG_STATE_HOME or name a store URL"):
            opened(default_url())

    def test_no_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process without a home can still open a store by URL."""

        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", no_home)
        with pytest.raises(InfrastructureError, match="no home directory"):
            default_url()
        assert isinstance(opened("memory://"), MemoryBackend)
        assert isinstance(opened("sqlite:///x.db"), SqliteBackend)
