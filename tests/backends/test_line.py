"""The line before a file: who is first in it, who is passed over, and when a process joins it."""

import os
import stat
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from zae_limiter.backends.sqlite import SqliteBackend, backend
from zae_limiter.backends.sqlite.line import _ENTRY, PLACES, SEEN_US_MAX, WaitingLine
from zae_limiter.repository_protocol import Key, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

K = Key("p", "s")
ADD = Update(K, add={"n": 1})


class TestLine:
    @pytest.fixture
    def now_ms(self) -> list[float]:
        return [1_000.0]

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        (tmp_path / "limits.db").touch()
        return tmp_path / "limits.db"

    def line(self, path: Path, now_ms: list[float], seed: int = 1) -> WaitingLine:
        return WaitingLine(path, World(ticks_ms=lambda: now_ms[0], random=Random(seed)))

    def test_in_the_order_in_which_they_came(self, path: Path, now_ms: list[float]) -> None:
        """Who has waited longest is first, whenever it was last seen; who leaves makes room."""
        lines = [self.line(path, now_ms, seed) for seed in range(3)]
        places = [lines[0].stand(990.0), lines[1].stand(980.0), lines[2].stand(999.0)]
        for place in places:
            place.ahead()
        assert [place.ahead() for place in places] == [1, 0, 2]
        places[1].leave()
        assert [place.ahead() for place in (places[0], places[2])] == [0, 1]
        for place in places:
            place.leave()
        assert not lines[0].is_anyone_waiting()

    def test_who_was_not_seen_is_passed_over(self, path: Path, now_ms: list[float]) -> None:
        """It may have been killed; its place is taken by the next."""
        dead, line = self.line(path, now_ms), self.line(path, now_ms)
        dead.stand(500.0).ahead()
        place = line.stand(now_ms[0])
        now_ms[0] += (SEEN_US_MAX - 1) / 1000
        assert place.ahead() == 1
        now_ms[0] += 1
        assert place.ahead() == 0
        assert line.is_anyone_waiting(), "at least who asks"
        place.leave()
        assert not line.is_anyone_waiting()

    def test_clocks_of_another_day(self, path: Path, now_ms: list[float]) -> None:
        """What was written before the machine was started again lies ahead, and is nobody."""
        line = self.line(path, now_ms)
        line.stand(999.0).ahead()
        now_ms[0] = 10.0
        assert not line.is_anyone_waiting()
        assert line.stand(5.0).ahead() == 0

    @pytest.mark.parametrize("text", [b"", b"x" * 7, b"\xff" * 1000, Random(1).randbytes(3000)], ids=len)
    def test_whatever_stands_in_it(self, path: Path, now_ms: list[float], text: bytes) -> None:
        """Nothing in the file is an error."""
        path.with_name("limits.db-line").write_bytes(text)
        line = self.line(path, now_ms)
        place = line.stand(now_ms[0])
        assert place.ahead() in range(PLACES + 1)
        place.leave()

    def test_more_than_there_are_places(self, path: Path, now_ms: list[float]) -> None:
        """Who finds no place waits for those who have one."""
        line = self.line(path, now_ms)
        for number in range(PLACES):
            line.stand(100.0 + number).ahead()
        assert line.stand(200.0).ahead() == PLACES

    def test_no_line_can_be_had(self, path: Path, now_ms: list[float]) -> None:
        """Where the file cannot be made everybody is first."""
        path.with_name("limits.db-line").mkdir()
        line = self.line(path, now_ms)
        place = line.stand(now_ms[0])
        assert place.ahead() == 0
        place.leave()
        assert not line.is_anyone_waiting()

    @pytest.mark.parametrize("mode", [0o600, 0o640])
    def test_mode(self, path: Path, now_ms: list[float], mode: int) -> None:
        """Who may not read the store does not see who waits for it."""
        path.chmod(mode)
        self.line(path, now_ms).stand(now_ms[0]).ahead()
        assert stat.S_IMODE(path.with_name("limits.db-line").stat().st_mode) == mode

    def test_no_descriptor_stays_open(self, path: Path, now_ms: list[float]) -> None:
        """Whoever stands in line has nothing open that a fork could inherit, or nobody would close."""
        before = len(os.listdir("/proc/self/fd"))
        line = self.line(path, now_ms)
        place = line.stand(now_ms[0])
        assert (place.ahead(), line.is_anyone_waiting()) == (0, True)
        assert len(os.listdir("/proc/self/fd")) == before

    def test_a_store_that_is_gone_has_no_line(self, path: Path, now_ms: list[float]) -> None:
        """Nothing is made beside a file that was deleted."""
        line = self.line(path, now_ms)
        place = line.stand(now_ms[0])
        path.unlink()
        assert (place.ahead(), line.is_anyone_waiting()) == (0, False)
        place.leave()
        assert list(path.parent.iterdir()) == []


class TestBackend:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "limits.db"

    def opened(self, path: Path) -> SqliteBackend:
        it = SqliteBackend(path, sync=True, timeout_ms=60_000, world=World(ticks_ms=lambda: 1_000.0))
        run_sync(it.setup())
        return it

    def test_who_is_alone_makes_no_line(self, path: Path) -> None:
        """The file comes with the first wait, and nobody looks at it before."""
        it = self.opened(path)
        for _ in range(100):
            run_sync(it.write_each([ADD]))
        assert not path.with_name("limits.db-line").exists()
        run_sync(it.close())

    def test_nobody_is_polite_for_ever(self, path: Path) -> None:
        """A line that never moves, by a clock that stands still, holds nobody up; readers do not join it."""
        it = self.opened(path)
        it._line.stand(1_000.0).ahead()
        forged = _ENTRY.pack(1, 1_000_000) * PLACES
        path.with_name("limits.db-line").write_bytes(forged)
        for number in range(1, 2 * backend.TURN_WRITES):
            (outcome,) = run_sync(it.write_each([ADD]))
            assert outcome.item == {"n": number}
            assert run_sync(it.batch_get([K])) == [{"n": number}]
        run_sync(it.close())

    def test_a_turn_is_over_when_somebody_waits(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """After some writes in a row the line is asked, and if there is one, joined at its end."""
        it, other = self.opened(path), self.opened(path)
        place = other._line.stand(900.0)
        it._line.stand(1_000.0)
        place.ahead()
        naps: list[float] = []

        def sleep(seconds: float) -> None:
            naps.append(seconds)
            place.leave()

        monkeypatch.setattr(backend, "time", SimpleNamespace(sleep=sleep))
        for number in range(backend.TURN_WRITES):
            assert run_sync(it.write_each([ADD]))[0].item == {"n": number + 1}
        assert naps == []
        (outcome,) = run_sync(it.write_each([ADD]))
        assert len(naps) == 1
        assert outcome.item is not None
        image = outcome.item
        for number in range(3 * backend.TURN_WRITES):
            image = it.swap(K, image, {"n": 100 + number}) or {}
            assert image["n"] == 100 + number
        place.ahead()
        for _ in range(backend.TURN_WRITES):
            image = it.swap(K, image, {"n": 1}) or image
        assert it.swap(K, image, {"n": 2}) is None, "a write stands in line"
        for each in (it, other):
            run_sync(each.close())
