"""A SQLite file with every obstacle in its way that an operating system has to offer.

Every answer is a success or ``RateLimiterUnavailable``, no balance is ever wrong, and when the obstacle is
gone the same limiter works on.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.breaking.callers import CAPACITY, LIMITS, WAYS, Caller, caller, check_books, stranger
from zae_limiter import InfrastructureError, RateLimiterUnavailable, ValidationError
from zae_limiter.backends.sqlite import database

TIMEOUT_MS, SHORTLY_MS = 200, 50
EVERY_WAY = pytest.mark.parametrize("way", WAYS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


def ran(*command: object) -> bool:
    return subprocess.run([*map(str, command)], check=False, capture_output=True).returncode == 0


def mounted(folder: Path, kilobytes: int) -> bool:
    return shutil.which("mount") is not None and ran(
        "mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", folder
    )


def mountable() -> bool:
    """Whether this machine lets us have a disk of our own, to fill it."""
    with tempfile.TemporaryDirectory() as folder:
        return mounted(Path(folder), 64) and ran("umount", folder)


Obstacle = Callable[[Caller], AbstractContextManager[None]]


@contextmanager
def few_pages(it: Caller) -> Iterator[None]:
    """SQLite itself is told that there is no room for another page."""
    assert it.connection is not None
    (pages,) = it.connection.execute("PRAGMA page_count").fetchone()
    it.connection.execute(f"PRAGMA max_page_count = {pages}")
    yield
    if it.connection is not None:
        it.connection.execute("PRAGMA max_page_count = 1000000")


@contextmanager
def small_files(it: Caller) -> Iterator[None]:
    """No file may grow beyond the size that the log has now."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (it.path.with_name("limits.db-wal").stat().st_size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def full_disk(it: Caller) -> Iterator[None]:
    """Somebody else has filled the disk."""
    hog = it.path.with_name("hog")
    with hog.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    yield
    hog.unlink()


class TestFull:
    """What a full disk does differs: see SQLITE_FULL and SQLITE_IOERR_WRITE."""

    def fill(self, path: Path, way: str, obstacle: Obstacle) -> None:
        with caller(path, way) as it:
            assert it.take() is None
            with obstacle(it):
                failures = [failure for n in range(100) if (failure := it.take(f"new-{n}")) is not None]
                it.take()
                it.take(amount=5, adjust=2)
            assert failures, "it never got full"
            assert all(str(path) in str(failure) for failure in failures)
            assert any("full" in str(f) or "disk I/O error" in str(f) for f in failures)
            for entity_id in ("key", "new-0", "new-99"):
                assert it.take(entity_id, adjust=1) is None
                assert it.available(entity_id) <= CAPACITY - it.admitted[entity_id]
            check_books(path, it)

    @EVERY_WAY
    @pytest.mark.parametrize("obstacle", [few_pages, small_files])
    def test_no_room(self, path: Path, way: str, obstacle: Obstacle) -> None:
        """New buckets cannot be made; once there is room they can, and nothing was counted that failed."""
        self.fill(path, way, obstacle)

    # A disk of our own needs a privilege that not every machine gives; the other two need none.
    @pytest.mark.parametrize("way", WAYS if mountable() else ())
    def test_full_disk(self, tmp_path: Path, way: str) -> None:
        """The same on a real disk that is really full."""
        assert mounted(tmp_path, 512)
        try:
            self.fill(tmp_path / "limits.db", way, full_disk)
        finally:
            assert ran("umount", "--lazy", tmp_path)


class TestLocked:
    @EVERY_WAY
    @pytest.mark.parametrize("lock", ["IMMEDIATE", "EXCLUSIVE"])
    def test_by_a_stranger_for_too_long(self, path: Path, way: str, lock: str) -> None:
        """A demand is refused in time and is known not to have happened; reading goes on."""
        with caller(path, way) as it, stranger(path) as other:
            assert it.take(amount=10) is None
            other.execute(f"BEGIN {lock}")
            with it.in_a_hurry(TIMEOUT_MS):
                failure = it.take()
            assert failure is not None
            assert not failure.ambiguous
            assert it.available() == CAPACITY - 10
            other.execute("ROLLBACK")
            assert it.take() is None
            assert it.available() == CAPACITY - 11
            check_books(path, it)

    @pytest.mark.parametrize("adjust", [-4, 7])
    @EVERY_WAY
    def test_while_a_lease_is_held(self, path: Path, way: str, adjust: int) -> None:
        """What a lease would have stored at its end is told to be lost, and nothing else is."""
        with caller(path, way) as it, stranger(path) as other:

            async def work() -> None:
                async with it.limiter.acquire("key", "api", {"rpm": 10}, LIMITS) as lease:
                    other.execute("BEGIN IMMEDIATE")
                    await lease.adjust(rpm=adjust)

            assert it.take() is None
            with it.in_a_hurry(SHORTLY_MS), pytest.raises(RateLimiterUnavailable, match="busy"):
                it.run(work())
            assert it.limiter.refunds_lost == 1
            other.execute("ROLLBACK")
            it.admitted["key"] += 10
            check_books(path, it)
            assert it.take() is None

    @EVERY_WAY
    def test_while_work_fails(self, path: Path, way: str) -> None:
        """A refund that cannot be stored is counted; its tokens are missing, and none is there twice."""
        with caller(path, way) as it, stranger(path) as other:

            async def work() -> None:
                async with it.limiter.acquire("key", "api", {"rpm": 10}, LIMITS):
                    other.execute("BEGIN IMMEDIATE")
                    raise KeyError("work")

            assert it.take() is None
            with it.in_a_hurry(SHORTLY_MS), pytest.raises(KeyError):
                it.run(work())
            assert it.limiter.refunds_lost == 1
            other.execute("ROLLBACK")
            assert it.available() == CAPACITY - 11
            assert it.take() is None

    def test_by_a_stranger_who_wants_it_alone(self, path: Path) -> None:
        """A file that another program keeps to itself cannot be opened until it lets go."""
        with caller(path, "swap") as it:
            assert it.take() is None
            it.let_go()
            with stranger(path) as other:
                other.execute("PRAGMA locking_mode = EXCLUSIVE")
                other.execute("BEGIN EXCLUSIVE")
                other.execute("COMMIT")
                with it.in_a_hurry(TIMEOUT_MS):
                    failure = it.take()
                assert failure is not None
                assert not failure.ambiguous
                with pytest.raises(RateLimiterUnavailable, match="locked"), caller(path, "swap", TIMEOUT_MS):
                    pass
            assert it.take() is None
            check_books(path, it)


class TestReadOnly:
    @EVERY_WAY
    @pytest.mark.parametrize("what", ["limits.db", "."])
    def test_while_in_use(self, open_folder: Path, way: str, what: str) -> None:
        """An open file is not affected; one that has to be opened again says what to change."""
        path = open_folder / "limits.db"
        target, modes = open_folder / what, (0o444, 0o644) if what != "." else (0o555, 0o755)
        with caller(path, way) as it:
            assert it.take() is None
            target.chmod(modes[0])
            assert it.take() is None
            it.let_go()
            failure = it.take()
            assert failure is not None
            assert "read-only" in str(failure)
            assert failure.misconfigured == "file"
            with pytest.raises(InfrastructureError, match="read-only"), caller(path, way):
                pass
            target.chmod(modes[1])
            assert it.take() is None
            assert it.available() == CAPACITY - 3
            check_books(path, it)


class TestAnotherFile:
    @pytest.fixture(autouse=True)
    def _watchful(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Look at the path at every call instead of once a millisecond."""
        monkeypatch.setattr(database, "LOOK_EVERY_MS", 0)

    def move(self, path: Path, prefix: str, into: str) -> None:
        for file in path.parent.glob(f"{prefix}limits.db*"):
            file.rename(file.with_name(into + file.name.removeprefix(prefix)))

    @EVERY_WAY
    @pytest.mark.parametrize("again", [False, True], ids=["open", "opened again"])
    def test_deleted(self, path: Path, way: str, again: bool) -> None:
        """Tokens of a file that nobody else can see are not given out, nor is a new file made in silence."""
        with caller(path, way) as it:
            assert it.take() is None
            self.move(path, "", "old-")
            if again:
                it.let_go()
            for _ in range(2):
                failure = it.take()
                assert failure is not None
                assert "deleted or replaced" in str(failure)
                assert not failure.ambiguous
                assert failure.misconfigured == "file", "waiting does not bring it back"
            assert not path.exists()
            with caller(path, way) as newcomer:
                assert newcomer.take(amount=5) is None
                assert it.take() is not None
                check_books(path, newcomer)
            for file in path.parent.glob("limits.db*"):
                file.unlink()
            self.move(path, "old-", "")
            assert it.take() is None
            check_books(path, it)

    @EVERY_WAY
    def test_replaced_by_a_backup(self, path: Path, way: str) -> None:
        """Who had the file open is told to open it again; who does goes on from the backup."""
        with caller(path, way) as it:
            assert it.take() is None
            it.let_go()
            shutil.copy(path, path.with_name("backup"))
            before = it.admitted.copy()
            assert it.take(amount=100) is None
            it.let_go()
            path.with_name("backup").replace(path)
            failure = it.take()
            assert failure is not None
            assert "open the limiter again" in str(failure)
            with caller(path, way) as newcomer:
                newcomer.admitted = before
                assert newcomer.available() == CAPACITY - 1
                assert newcomer.take() is None
                check_books(path, newcomer)

    @EVERY_WAY
    def test_the_log_is_removed_while_in_use(self, path: Path, way: str) -> None:
        """Whoever has it open works on; newcomers wait until the log is back in the file."""
        with caller(path, way) as it:
            assert it.take() is None
            path.with_name("limits.db-wal").unlink()
            assert it.take() is None
            newcomer_waits(path, it)
            assert it.available() == CAPACITY - it.admitted["key"]
            it.let_go()
            check_books(path, it)
            assert it.take() is None
            check_books(path, it)

    @EVERY_WAY
    def test_the_log_of_a_killed_process_is_removed(self, path: Path, way: str) -> None:
        """It takes along what was only in it; the file is sound, and everybody goes on from there."""
        with caller(path, way) as it:
            assert it.take() is None
        program = (
            "import os, signal; from zae_limiter import Limit, SyncRateLimiter\n"
            f"limiter = SyncRateLimiter.open('sqlite:///{path}', bucket_ttl_multiplier=0)\n"
            f"with limiter.acquire('key', 'api', {{'rpm': 7}}, [Limit('rpm', {CAPACITY}, 1, 10**6)]): pass\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        killed = subprocess.run([sys.executable, "-c", program], check=False)
        assert killed.returncode == -signal.SIGKILL
        path.with_name("limits.db-wal").unlink()
        with caller(path, way) as newcomer:
            assert newcomer.available() == CAPACITY - 1
            newcomer.admitted = it.admitted
            assert newcomer.take() is None
            check_books(path, newcomer)


def newcomer_waits(path: Path, it: Caller) -> None:
    """Another process is admitted with the right numbers, or not at all."""
    program = (
        "from zae_limiter import Limit, RateLimiterUnavailable, SyncRateLimiter\n"
        "try:\n"
        f"    with SyncRateLimiter.open('sqlite:///{path}', timeout_ms=200) as limiter:\n"
        f"        print(limiter.available('key', 'api', [Limit('rpm', {CAPACITY}, 1, 10**6)])['rpm'])\n"
        "except RateLimiterUnavailable as failure:\n"
        "    print('unavailable')\n"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said.strip() in ("unavailable", str(CAPACITY - it.admitted["key"]))


class TestDamaged:
    @EVERY_WAY
    @pytest.mark.parametrize("in_use", [False, True], ids=["closed", "in use"])
    def test_header(self, path: Path, way: str, in_use: bool) -> None:
        """A file with a damaged header is refused as what it is; with its header back it works on."""
        with caller(path, way) as it:
            assert it.take() is None
            it.let_go()
            header = path.read_bytes()[:100]
            assert it.take() is None
            if not in_use:
                it.let_go()
            with path.open("r+b") as file:
                file.write(b"\xff" * 100)
            failure = it.take()
            assert in_use or (failure is not None and "not a SQLite database" in str(failure))
            with pytest.raises(ValidationError, match="not a SQLite database"), caller(path, way):
                pass
            with path.open("r+b") as file:
                file.write(header)
            assert it.take() is None
            it.let_go()
            check_books(path, it)

    @EVERY_WAY
    def test_truncated(self, path: Path, way: str) -> None:
        """A file that was emptied is nobody's store; no answer is a wrong one."""
        with caller(path, way) as it:
            assert it.take() is None
            it.let_go()
            whole = path.read_bytes()
            assert it.take() is None
            it.let_go()
            path.write_bytes(whole[: len(whole) // 2])
            failure = it.take()
            assert failure is not None
            assert "malformed" in str(failure) or "disk" in str(failure)
            for file in path.parent.glob("limits.db-*"):
                file.unlink()
            path.write_bytes(whole)
            it.admitted["key"] = 1
            assert it.take() is None
            check_books(path, it)


@EVERY_WAY
def test_no_descriptor_is_left(path: Path, way: str) -> None:
    """A process that has used up its descriptors cannot open the file; when it has some again it can."""
    with caller(path, way) as it:
        assert it.take() is None
        it.let_go()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, before[1]))
        held = []
        try:
            with suppress(OSError):
                while True:
                    held.append(os.dup(0))
            failure = it.take()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for descriptor in held:
                os.close(descriptor)
        assert failure is not None
        assert it.take() is None
        check_books(path, it)
