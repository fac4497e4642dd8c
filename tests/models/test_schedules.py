"""Schedules: which numbers count when, against a look at every minute, over both changes of the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from zae_limiter import Limit, ValidationError
from zae_limiter.models.cron import Marks, day_of
from zae_limiter.models.schedules import Phase, Schedule, schedule_of, window_at, windows_of, with_rest

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Asia/Kathmandu",
]
WINDOWS = [
    "* 9-16 * * mon-fri",
    "* * * * sat,sun",
    "30-44 2 * * *",
    "* 1-2 * 3,10,11 sun",
    "*/7 * * * *",
    "* 0,23 1 * *",
    "* * 29 2 *",
    "15 12 24 12 *",
]
NUMBERS = st.integers(1, 1000)


def millis(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp() * 1000)


CHANGES = [
    millis(2024, 3, 31, 1),
    millis(2024, 10, 27, 1),
    millis(2024, 3, 10, 7),
    millis(2024, 11, 3, 6),
    millis(2024, 4, 6, 15),
    millis(2024, 10, 5, 15, 30),
    millis(2018, 11, 4, 3),
    millis(2018, 2, 18, 2),
    millis(2024, 2, 29),
]
INSTANTS = st.one_of(
    st.integers(millis(1981, 1, 1), millis(2150, 1, 1)),  # a phase may last for years, and begins after 1970
    st.builds(lambda at, by: at + by, st.sampled_from(CHANGES), st.integers(-90_000_000, 90_000_000)),
)


def by_the_minute(text: str, t_ms: int) -> tuple[int, int]:
    """The numbers of an instant, by what the wall clock shows then."""
    windows, tz = windows_of(text)
    zone = UTC if tz == "UTC" else ZoneInfo(tz)
    shown = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=t_ms)).astimezone(zone)
    for capacity, amount, expression in windows:
        if not expression:
            return capacity, amount
        marks = Marks(expression)
        if marks.on(day_of(shown.date())) and shown.hour * 60 + shown.minute in marks.minutes:
            return capacity, amount
    raise AssertionError("the last window is always")


@st.composite
def texts(draw: st.DrawFn) -> str:
    chosen = draw(st.lists(st.sampled_from(WINDOWS), min_size=1, max_size=3, unique=True))
    parts = [f"{draw(NUMBERS)}:{draw(NUMBERS)}({one})" for one in chosen]
    return with_rest(
        f"{';'.join(parts)}@{draw(st.sampled_from(ZONES))}", draw(NUMBERS) * 1000, draw(NUMBERS) * 1000
    )


@settings(max_examples=100, deadline=None)
@given(texts(), INSTANTS, st.randoms(use_true_random=False))
def test_a_phase_is_where_every_minute_has_its_numbers_and_the_next_has_not(text, t_ms, random):
    """A phase has the numbers that the wall clock says, everywhere in it, and ends with them."""
    assume(len({window[:2] for window in windows_of(text)[0]}) > 1)
    phase = schedule_of(text).phase(t_ms)
    assert phase.start_ms <= t_ms < phase.end_ms
    inside = [
        t_ms,
        phase.start_ms,
        phase.end_ms - 1,
        *(random.randrange(phase.start_ms, phase.end_ms) for _ in range(8)),
    ]
    assert {by_the_minute(text, at) for at in inside} == {(phase.capacity, phase.amount)}
    numbers = phase[2:]
    assert by_the_minute(text, phase.end_ms) != numbers
    assert schedule_of(text).phase(phase.end_ms).start_ms == phase.end_ms
    if phase.start_ms:  # the first one begins with the epoch
        assert by_the_minute(text, phase.start_ms - 1) != numbers
        assert schedule_of(text).phase(phase.start_ms - 1).end_ms == phase.start_ms


@settings(max_examples=30, deadline=None)
@given(texts(), st.sampled_from(CHANGES))
def test_phases_follow_one_another_over_every_change_of_the_clock(text, about_ms):
    """From a day before to a day after, each minute is in the phase that has its numbers."""
    schedule = schedule_of(text)
    for at_ms in range(about_ms - 86_400_000, about_ms + 86_400_000, 15 * 60_000):
        assert schedule.phase(at_ms)[2:] == by_the_minute(text, at_ms)


class Compared(int):
    """An instant that counts how often it is compared with others."""

    times = 0

    def __lt__(self, other: int) -> bool:
        Compared.times += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Compared.times += 1
        return int(self) > int(other)


def test_a_phase_is_found_without_going_through_all_that_are_known(monkeypatch):
    """Following a bucket through a thousand phases must not hold up everybody else of a process."""
    found = Schedule._found

    def counted(self: Schedule, t_ms: int) -> Phase:
        phase = found(self, t_ms)
        return phase._replace(start_ms=Compared(phase.start_ms))

    monkeypatch.setattr(Schedule, "_found", counted)
    monkeypatch.setattr(Compared, "times", 0)
    schedule = Schedule(*windows_of(with_rest("9(*/2 * * * *)@UTC", 30_000, 1_000)))
    minutes = [CHANGES[0] + 60_000 * (n * 377 % 1_000) for n in range(1_000)]
    starts = [schedule.phase(t_ms).start_ms for t_ms in minutes]
    assert Compared.times < 20 * 1_000
    assert starts == minutes
    assert [schedule.phase(t_ms).start_ms for t_ms in minutes] == starts


def test_numbers_before_and_after_all_that_is_known_are_the_limits_own():
    """Far away there are no windows, and no end of the search either."""
    text = with_rest("600(* 9-16 * * mon-fri)@Europe/Berlin", 60_000, 60_000)
    assert window_at("600(* 9-16 * * mon-fri)@Europe/Berlin", millis(2026, 3, 30, 8)) == "* 9-16 * * mon-fri"
    assert window_at("600(* 9-16 * * mon-fri)@Europe/Berlin", millis(2026, 3, 30, 18)) is None
    for t_ms in (-(10**15), millis(2300, 1, 1), 10**20):
        assert schedule_of(text).phase(t_ms)[2:] == (60_000, 60_000)


def test_a_limit_reads_like_a_sentence():
    """Windows are added one after another, and the text says them all."""
    limit = Limit.per_minute("rpm", 60).during("* 9-16 * * MON-FRI", 600, tz="Europe/Berlin")
    limit = limit.during("* * * * sat,sun", 30, burst=50)
    assert limit.schedule == "600(* 9-16 * * mon-fri);30:50(* * * * sat,sun)@Europe/Berlin"
    assert Limit.from_dict(limit.to_dict()) == limit
    assert "schedule=" in repr(limit)
    assert limit.at(datetime(2024, 1, 1, 8, 0, tzinfo=UTC)) == Limit.per_minute("rpm", 600)
    assert limit.at(datetime(2024, 1, 6, 8, 0, tzinfo=UTC)) == Limit.per_minute("rpm", 30, burst=50)
    assert limit.at(datetime(2024, 1, 1, 7, 59, 59, tzinfo=UTC)) == Limit.per_minute("rpm", 60)


def test_a_schedule_without_a_zone_is_in_utc() -> None:
    """Wherever it is written."""
    text = "600(* 9-16 * * mon-fri)"
    assert Limit("rpm", 60, 60, 60, schedule=text) == PLAIN.during("* 9-16 * * mon-fri", 600)
    assert PLAIN.during("* 9-16 * * mon-fri", 600).schedule == f"{text}@UTC"


PLAIN = Limit.per_minute("rpm", 60)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: PLAIN.during("nine to five", 600), "write minute, hour, day"),
        (lambda: PLAIN.during("* 25 * * *", 600), "is no hour"),
        (lambda: PLAIN.during(9, 600), "five fields of cron"),
        (lambda: PLAIN.during("* 9 * * *)@UTC", 600), "five fields of cron"),
        (lambda: PLAIN.during("* 9 * * *", 0), "amount of 'rpm'"),
        (lambda: PLAIN.during("* 9 * * *", 5, burst=0), "burst of 'rpm'"),
        (lambda: PLAIN.during("* 9 * * *", True), "amount of 'rpm'"),
        (lambda: PLAIN.during("* 9 * * *", 5, tz="Europe/Berln"), "did you mean 'Europe/Berlin'"),
        (lambda: PLAIN.during("* 9 * * *", 5, tz=5), "time zone"),
        (lambda: PLAIN.during("* 9 * * *", 5).during("* 8 * * *", 5, tz="Asia/Tokyo"), "of one zone"),
        (lambda: PLAIN.during("* 9 * * *", 5).during("*  9 * * *", 6), "there twice"),
        (lambda: PLAIN.during("* 9-16 * * *", 5).during("30 12 * * *", 6), "never holds"),
        (lambda: PLAIN.during("* * 30 2 *", 5), "never holds"),
        (lambda: PLAIN.during("* * * * *", 5), "always holds"),
        (lambda: Limit.per_month("usd", 5).during("* 9 * * *", 6), "only a plain rate"),
        (lambda: Limit.concurrent("jobs", 5).during("* 9 * * *", 6), "only a plain rate"),
        (lambda: Limit.session("msgs", 5, "5h").during("* 9 * * *", 6), "only a plain rate"),
        (lambda: Limit("rpm", 6, 6, 60, schedule="later"), "AMOUNT"),
        (lambda: Limit("rpm", 6, 6, 60, schedule="5[x]@UTC"), "is no window"),
        (lambda: Limit("rpm", 6, 6, 60, schedule=5), "it must be text"),
        (lambda: Limit("rpm", 6, 6, 60, schedule="5()@UTC"), "write minute, hour, day"),
    ],
)
def test_a_bad_schedule_is_refused_with_the_way_out(make, said):
    """Windows, zones and numbers that cannot be meant are told as such."""
    with pytest.raises(ValidationError) as refused:
        make()
    assert said in str(refused.value)


def test_a_limit_has_at_most_so_many_windows():
    """More would make every text longer than a bucket should carry."""
    limit = PLAIN
    for hour in range(16):
        limit = limit.during(f"* {hour} * * *", hour + 1)
    with pytest.raises(ValidationError, match="at most 16"):
        limit.during("* 20 * * *", 5)


def test_a_look_at_the_ends_of_time_spoils_no_other_phase() -> None:
    """A damaged bucket may name any instant; what is remembered of that one is true of no other."""
    schedule = schedule_of(with_rest("600(* 9-16 * * mon-fri)@Europe/Berlin", 60_017, 60_000))
    noon = millis(2026, 3, 30, 10)
    for far_ms in (-(2**60), -(10**24), 2**60, 10**24):
        far = schedule.phase(far_ms)
        assert far.start_ms <= far_ms < far.end_ms
    assert schedule.phase(noon)[2:] == (600_000, 600_000)
    assert schedule.phase(noon).end_ms - schedule.phase(noon).start_ms == 8 * 3_600_000
