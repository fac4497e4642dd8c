"""The clock of buckets: the machine's, made steady, and pushed to where a store's replies say its time is."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zae_limiter.runtime.world import AHEAD_MS_MAX, DRIFT, LOOK_MS, StoreClock, World

EPOCH_MS = 1_700_000_000_000
DAY_MS = 86_400_000
STEPS_MS = st.sampled_from([-DAY_MS, -3_600_000, -2_000, -3, 3, 900, 2_000, DAY_MS])


class Machine:
    """A machine whose ticks go on and whose clock is wrong by ``wrong_ms``; the store's time is right."""

    def __init__(self, wrong_ms: int = 0) -> None:
        self.ticks_ms, self.wrong_ms = 12_345.5, wrong_ms
        self.clock = StoreClock(self._wall_ns, lambda: self.ticks_ms * 1e6)

    def _wall_ns(self) -> int:
        return (int(self.ticks_ms) + EPOCH_MS + self.wrong_ms) * 1_000_000

    @property
    def store_ms(self) -> float:
        return EPOCH_MS + self.ticks_ms

    def reply(self, there_ms: float = 0, back_ms: float = 0, coarse_ms: int = 1_000) -> None:
        """The store answers a request, and says its time as exactly as it can."""
        sent_ms = self.ticks_ms
        self.ticks_ms += there_ms
        shown_ms = self.store_ms // coarse_ms * coarse_ms
        self.ticks_ms += back_ms
        self.clock.observe(shown_ms, shown_ms + coarse_ms, sent_ms, self.ticks_ms)

    @property
    def error_ms(self) -> float:
        return self.clock.now_ms() - self.store_ms


def test_without_a_store_it_is_the_machines_time() -> None:
    machine = Machine()
    for _ in range(50):
        assert machine.clock.now_ms() == EPOCH_MS + int(machine.ticks_ms)
        machine.ticks_ms += 7.3


@pytest.mark.parametrize("idle_ms", [0, 3, LOOK_MS, 600_000])
@pytest.mark.parametrize("back_ms", [2_000, 3_600_000, DAY_MS])
def test_a_clock_that_is_set_back_goes_on(back_ms: int, idle_ms: int) -> None:
    """Time neither stands still nor runs back, and what passed before anybody looked has passed."""
    machine = Machine()
    before_ms = machine.clock.now_ms()
    machine.ticks_ms += idle_ms
    machine.wrong_ms = -back_ms
    found_ms = machine.clock.now_ms()
    assert idle_ms - idle_ms * DRIFT - 2 <= found_ms - before_ms <= idle_ms
    for passed_ms in range(1, 100):
        machine.ticks_ms += 1
        assert found_ms + passed_ms - 1 <= machine.clock.now_ms() <= found_ms + passed_ms


def test_a_clock_that_is_set_forward_is_followed() -> None:
    """A machine that slept has missed some time, and its ticks may have stood still."""
    machine = Machine()
    before_ms = machine.clock.now_ms()
    machine.wrong_ms = DAY_MS
    assert machine.clock.now_ms() == before_ms + DAY_MS


def test_a_slow_correction_is_followed() -> None:
    """A daemon that slows the clock down a little is no step, so processes stay together."""
    machine = Machine()
    for second in range(1, 10_000):
        machine.ticks_ms += 1_000
        machine.wrong_ms = -second * 400 // 1000  # 400 ppm
        machine.clock.now_ms()
    assert abs(machine.clock.now_ms() - (machine.store_ms + machine.wrong_ms)) <= 2


def test_two_worlds_of_a_process_have_one_clock() -> None:
    """Else who opened a store before the machine's clock was set would differ from who opened it after."""
    assert World().now_ms == World().now_ms


@pytest.mark.parametrize("wrong_ms", [-DAY_MS, -1_500, 0, 1_500, DAY_MS])
def test_one_reply_is_enough(wrong_ms: int) -> None:
    """However wrong the machine's clock is, time is the store's within a second and the round trip."""
    machine = Machine(wrong_ms)
    machine.clock.now_ms()
    machine.reply(30, 50)
    assert abs(machine.error_ms) <= 1_000 + 80 + 1
    if abs(wrong_ms) > 1_100:
        assert machine.clock.now_ms() != machine.store_ms + wrong_ms


@pytest.mark.parametrize("wrong_ms", [-DAY_MS, DAY_MS])
def test_many_replies_tell_more_than_one(wrong_ms: int) -> None:
    """The second at which a coarse time changes is seen by whoever asks often."""
    machine = Machine(wrong_ms)
    for _ in range(300):
        machine.reply(2, 3)
        machine.ticks_ms += 12
        machine.clock.now_ms()
    assert abs(machine.error_ms) <= 30


def test_a_store_that_tells_its_time_exactly_is_followed_within_the_round_trip() -> None:
    """The seam for stores that answer with their time in milliseconds or better."""
    machine = Machine(DAY_MS)
    machine.reply(4, 1, coarse_ms=1)
    assert -2 <= machine.error_ms <= 7


def test_the_machines_time_is_kept_where_the_store_does_not_contradict_it() -> None:
    machine = Machine(40)
    machine.reply(20, 20)
    assert machine.error_ms == pytest.approx(40, abs=1)


def test_what_a_store_said_long_ago_binds_less() -> None:
    """Oscillators stray: after an hour without a word the bounds are wider by some seconds, not more."""
    machine = Machine()
    machine.reply(coarse_ms=1)
    machine.wrong_ms = DAY_MS
    machine.ticks_ms += 3_600_000
    assert machine.error_ms == pytest.approx(3_600_000 * DRIFT, abs=3)


def test_a_store_that_changes_its_mind_is_followed() -> None:
    """The newest word wins, though it contradicts all that was said before: the table moved, say."""
    machine = Machine()
    machine.reply(coarse_ms=1)
    machine.clock.now_ms()
    machine.clock.observe(
        machine.store_ms - DAY_MS, machine.store_ms - DAY_MS + 1, machine.ticks_ms, machine.ticks_ms
    )
    assert machine.error_ms == pytest.approx(-DAY_MS, abs=2)


@pytest.mark.parametrize("ahead_ms", [1, 700, AHEAD_MS_MAX])
def test_time_that_was_a_little_ahead_stands_still(ahead_ms: int) -> None:
    """Nobody sees it run backwards; when the store has caught up it goes on."""
    machine = Machine(ahead_ms)
    machine.reply(there_ms=ahead_ms, coarse_ms=1)  # which says little, as it took so long
    told_ms = machine.clock.now_ms()
    assert told_ms == pytest.approx(machine.store_ms + ahead_ms, abs=1)
    machine.reply(coarse_ms=1)
    assert machine.clock.now_ms() == told_ms
    machine.ticks_ms += ahead_ms + 10
    assert told_ms < machine.clock.now_ms() <= machine.store_ms + 10


@pytest.mark.parametrize("ahead_ms", [700, DAY_MS])
def test_time_from_before_the_first_reply_does_not_count(ahead_ms: int) -> None:
    """A process that opened with a clock a day ahead must not stand still for a day."""
    machine = Machine(ahead_ms)
    machine.clock.now_ms()
    machine.reply(coarse_ms=1)
    assert abs(machine.error_ms) <= 2


@pytest.mark.parametrize("idle_ms", [LOOK_MS, 2_000, DAY_MS])
def test_a_clock_that_is_set_back_by_what_has_passed_is_found_out(idle_ms: int) -> None:
    """It shows what it showed before, as if no time had passed."""
    machine = Machine()
    before_ms = machine.clock.now_ms()
    machine.ticks_ms += idle_ms
    machine.wrong_ms = -idle_ms
    assert idle_ms - idle_ms * DRIFT - 2 <= machine.clock.now_ms() - before_ms <= idle_ms


def test_a_world_for_a_store_leaves_the_world_as_it_was() -> None:
    """Two stores opened with one world have clocks of their own."""
    world = World(lambda: EPOCH_MS, lambda: 5.0, random.Random(1))
    one, other = world.for_store(), world.for_store()
    one.observe(EPOCH_MS + DAY_MS, EPOCH_MS + DAY_MS + 1, 5.0, 5.0)
    assert (one.now_ms(), other.now_ms(), world.now_ms()) == (EPOCH_MS + DAY_MS, EPOCH_MS, EPOCH_MS)
    assert (one.ticks_ms, one.random) == (world.ticks_ms, world.random)
    world.observe(0, 0, 0, 0)
    assert world.now_ms() == EPOCH_MS


@given(
    wrong_ms=STEPS_MS,
    coarse_ms=st.sampled_from([1, 1_000]),
    events=st.lists(st.tuples(st.floats(0, 3_000), st.floats(0, 40), st.floats(0, 40), STEPS_MS | st.none())),
)
def test_a_disciplined_clock_is_right_within_what_it_promises(
    wrong_ms: int, coarse_ms: int, events: list[tuple[float, float, float, int | None]]
) -> None:
    """After its first reply it is never off by more than the store's own coarseness, a round trip, and how
    far a clock is taken at its word; and it does not run backwards."""
    machine = Machine(wrong_ms)
    machine.reply(20, 20, coarse_ms)
    told_ms = machine.clock.now_ms()
    for idle_ms, there_ms, back_ms, step_ms in events:
        machine.ticks_ms += idle_ms
        machine.wrong_ms += step_ms or 0
        assert abs(machine.error_ms) <= coarse_ms + 80 + LOOK_MS + idle_ms * len(events) * DRIFT + 3
        assert machine.clock.now_ms() >= told_ms
        told_ms = machine.clock.now_ms()
        machine.reply(there_ms, back_ms, coarse_ms)
