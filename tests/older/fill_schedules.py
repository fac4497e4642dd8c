"""Fills a table with limits that change by schedules, at a set time, and says who is admitted when.

Run by the Python of the release: ``python fill_schedules.py URL TABLE TASK``. It prints one JSON document.
The tests import it for its tables of limits and instants.
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import suppress
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

if __name__ == "__main__":
    import fill
else:
    from tests.older import fill

older, Limit = fill.older, fill.Limit
BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def instant(text: str, tz: str = BERLIN, fold: int = 0) -> int:
    when = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz), fold=fold)
    return round(when.timestamp() * 1000)


USED_MS = instant("2026-03-28T20:59:50")
"""A Saturday; the night that follows has an hour less."""

UPGRADE_MS = USED_MS + 20_000
"""When another window holds for some."""

SCHEDULES: dict[str, tuple[tuple[int, int, int], str, list[tuple[str, dict[str, Any]]]]] = {
    "office": ((600, 600, 60), BERLIN, [("* 9-16 * * MON-FRI", {"scale": 10})]),
    "evening": ((600, 60, 60), BERLIN, [("* 20 * * *", {"scale": 5})]),
    "late": ((600, 60, 60), BERLIN, [("* 21 * * *", {"scale": 5})]),
    "less-late": ((600, 60, 60), BERLIN, [("* 21 * * *", {"scale": 0.2})]),
    "night": ((6000, 6000, 60), NEW_YORK, [("* 0-5 * * *", {"capacity": 60, "refill_amount": 90})]),
    "order": (
        (400, 400, 1),
        BERLIN,
        [
            ("* 9 * * *", {"scale": 0.5}),
            ("* 8-10 * * *", {"scale": 2}),
            ("30-59 * * * *", {"capacity": 70}),
            ("* 9-12 * * 1", {"refill_amount": 7}),
        ],
    ),
    "period": (
        (600, 600, 60),
        "UTC",
        [("* 21 * * *", {"refill_period_seconds": 7}), ("5 * * * *", {"scale": 3})],
    ),
    "halves": ((100, 5, 1), BERLIN, [("*/2 * * * *", {"scale": 0.5})]),
    "skipped": ((50, 50, 60), BERLIN, [("* 2 * * *", {"scale": 4})]),
    "half-hour": ((50, 50, 60), LORD_HOWE, [("15-44 1,2 * * *", {"scale": 4})]),
    "either": ((50, 50, 60), "UTC", [("* * 29 * 1", {"scale": 4})]),
    "even": ((50, 50, 60), "Asia/Kathmandu", [("*/2 */3 */2 * 1", {"scale": 4})]),
    "sunday": ((50, 50, 60), BERLIN, [("* * * * 0,7", {"scale": 4}), ("* * * mar,oct 5-7", {"scale": 2})]),
    "always": ((50, 50, 60), BERLIN, [("* * * * *", {"scale": 0.5})]),
    "all-day": ((50, 50, 60), BERLIN, [("* 0-11 * * *", {"scale": 2}), ("* 12-23 * * *", {"scale": 4})]),
    "twice": ((50, 50, 60), BERLIN, [("* 9 * * *", {"scale": 2}), ("* 9 * * *", {"scale": 4})]),
    "leap": ((50, 50, 60), BERLIN, [("* * 29 2 *", {"scale": 2})]),
}
"""Capacity, refill and period, the zone, and the windows, each with what it says."""

INSTANTS_MS = sorted(
    {
        USED_MS,
        UPGRADE_MS,
        *(instant(f"2026-06-01T09:{time}", "Asia/Kathmandu") for time in ("02", "02:59.999", "03")),
        *(
            instant(f"2026-03-30T{hour:02}:{rest}")
            for hour in (8, 9, 10, 16, 17)
            for rest in ("00:00", "59:59.999")
        ),
        *(instant(f"2026-03-29T{time}") for time in ("01:59:59.999", "03:00", "03:59:59.999", "04:00")),
        *(instant(f"2026-10-25T{time}", fold=fold) for time in ("02:00", "02:59:59.999") for fold in (0, 1)),
        *(instant(f"2026-10-25T{time}") for time in ("01:59:59.999", "03:00", "09:31")),
        *(instant(f"2026-03-29T{time}", NEW_YORK) for time in ("23:59:59.999", "05:59:59.999", "06:00")),
        *(instant(f"2026-11-01T{time}", NEW_YORK, fold) for time in ("01:00", "01:30") for fold in (0, 1)),
        *(
            instant(f"2026-04-05T{time}", LORD_HOWE, fold)
            for time in ("01:44:59.999", "01:45")
            for fold in (0, 1)
        ),
        *(instant(f"2026-10-04T{time}", LORD_HOWE) for time in ("01:59:59.999", "02:30", "02:45")),
        *(instant(f"2028-{time}") for time in ("02-28T23:59:59.999", "02-29T00:00", "03-01T00:00")),
        *(instant(f"2026-06-01T21:{time}", "UTC") for time in ("00", "05", "06", "59:59.999")),
    }
)
LATER_MS = 9_000
"""How long after an instant is looked what has come back."""

OWN = {"own": "order", "own-here": "night"}
"""Entities that have one of the schedules for themselves: for all resources, and for one."""


def scheduled(name: str, **options: Any) -> Any:
    numbers, tz, windows = SCHEDULES[name]
    entries = tuple(older.ScheduleEntry(cron, tz, **said) for cron, said in windows)
    return Limit(name, *numbers, **options).with_schedule(entries)


class Clock:
    """The time of this process."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        time.time = lambda: self.now_ms / 1000


def fill_all(table: fill.Table) -> None:
    """Every schedule at the level of a resource, some at others; buckets used in another phase, and debts."""
    table.make()
    repo = table.open()
    repo.set_version_record(repo.get_version_record()["schema_version"], lambda_version=older.__version__)
    repo = table.open()
    repo.set_system_defaults([scheduled("office"), scheduled("evening")])
    for name in SCHEDULES:
        repo.set_resource_defaults(name, [scheduled(name), Limit.per_day("rpd", 90_000)])
    repo.set_resource_defaults("soft", [scheduled("evening", soft=True)])
    for name in ("org", "kid", "some", "debtor", "hot", *OWN):
        repo.create_entity(name, parent_id="org" if name == "kid" else None, cascade=name == "kid")
    repo.set_limits("own", [scheduled(OWN["own"])])
    repo.set_limits("own-here", [scheduled(OWN["own-here"])], resource="office")
    limiter = table.limiter()
    for name in SCHEDULES:
        fill.use(limiter, "some", name, {name: 20, "rpd": 7}, {})
        fill.use(limiter, "debtor", name, {name: 25}, {name: 400})
    fill.use(limiter, "kid", "late", {"late": 30}, {})
    fill.use(limiter, "some", "soft", {"evening": 4000}, {})
    fill.use(limiter, "some", "elsewhere", {"office": 30, "evening": 2500}, {})
    fill.use(limiter, "own", "office", {"order": 9}, {})
    fill.use(limiter, "own-here", "office", {"night": 90}, {})
    fill.use(limiter, "hot", "late", {"late": 40}, {})
    for count in (1, 2):
        repo.bump_shard_count("hot", "late", count)
    limiter = table.limiter()
    for _ in range(12):
        fill.use(limiter, "hot", "late", {"late": 3}, {})
    table.aggregate()


USED = [
    *((entity, name) for entity in ("some", "debtor") for name in SCHEDULES),
    *(("some", "soft"), ("some", "elsewhere"), ("own", "office"), ("own-here", "office"), ("org", "late")),
]


def left(table: fill.Table, clock: Clock) -> dict[str, Any]:
    """What the buckets have that were used, at the upgrade and some seconds later."""
    found = {}
    for after_ms in (0, 1, 9_000, 31_000):
        clock.now_ms = UPGRADE_MS + after_ms
        limiter = table.limiter()
        found |= {f"{after_ms} {who} {what}": limiter.available(who, what) for who, what in USED}
    return found


ACT_MS = [
    UPGRADE_MS,
    *(instant(text) for text in ("2026-03-29T01:59:59.999", "2026-03-29T03:00", "2026-03-30T08:59:59.999")),
    *(instant(text) for text in ("2026-03-30T09:00", "2026-03-30T16:59:59.999", "2026-03-30T17:00")),
    *(instant("2026-10-25T02:30", fold=fold) for fold in (0, 1)),
]
ACT = ("office", "night", "order", "period", "halves", "skipped")


def act(table: fill.Table, clock: Clock) -> dict[str, Any]:
    """Who is admitted at an instant: all that a bucket can hold and no more, and what is back later."""
    found = {}
    for now_ms in ACT_MS:
        clock.now_ms = now_ms
        limiter, who = table.limiter(), f"new-{now_ms}"
        for name in ACT:
            held = limiter.available(who, name)[name]
            found[f"{now_ms} {name}"] = [
                held,
                asked(limiter, who, name, held + 1),
                asked(limiter, who, name, held),
            ]
        found |= {f"{now_ms} {own}": limiter.available(own, "office") for own in OWN}
        clock.now_ms = now_ms + LATER_MS
        for name in (name for name in ACT if is_steady(name, now_ms)):
            found[f"{now_ms} {name}"].append(limiter.available(who, name)[name])
    return found


def numbers() -> dict[str, list[list[int]]]:
    """What each limit is at each instant: capacity, refill and period in thousandths."""
    from zae_limiter.schedule import effective_params

    return {
        name: [
            list(effective_params(*(1000 * one for one in of), scheduled(name).schedule, at))
            for at in INSTANTS_MS
        ]
        for name, (of, _, _) in SCHEDULES.items()
    }


FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
ZONES = (BERLIN, NEW_YORK, LORD_HOWE, "UTC", "Asia/Kathmandu", "Africa/Casablanca", "America/Santiago")


def drawn_field(dice: random.Random, least: int, most: int) -> str:
    first = dice.randint(least, most)
    last, step = dice.randint(first, most), dice.randint(1, 9)
    texts = (
        "*",
        "*",
        "*",
        f"*/{step}",
        f"{first}",
        f"{first}-{last}",
        f"{first}-{last}/{step}",
        f"{first}/{step}",
    )
    return ",".join(dice.choice(texts) for _ in range(dice.choice((1, 1, 2))))


def drawn(seed: str) -> list[Any]:
    """Schedules that the dice say, how they are stored, and what a limit is at some instants."""
    from zae_limiter.schedule import effective_params, encode

    dice, found = random.Random(seed), []
    while len(found) < 100:
        base, tz = (40 * dice.randint(1, 50), dice.randint(1, 50), dice.randint(1, 90)), dice.choice(ZONES)
        entries = []
        for _ in range(dice.randint(1, 4)):
            said = dice.choice(
                [
                    {"scale": dice.choice((0.05, 0.1, 0.5, 0.25, 1, 1.5, 2, 7.125, 10))},
                    {"capacity": dice.randint(1, 999), "refill_amount": dice.randint(1, 999)},
                    {"refill_period_seconds": dice.randint(1, 20)},
                ]
            )
            with suppress(ValueError):
                entries.append(
                    older.ScheduleEntry(" ".join(drawn_field(dice, *one) for one in FIELDS), tz, **said)
                )
        if entries:
            instants = [dice.randrange(instant("2026-01-01"), instant("2029-01-01")) for _ in range(40)]
            instants += [dice.choice(INSTANTS_MS) + dice.randint(-7_200_000, 7_200_000) for _ in range(40)]
            milli = [1000 * one for one in base]
            numbers = [effective_params(*milli, tuple(entries), at) for at in instants]
            found.append([base, *encode(tuple(entries)), instants, numbers])
    return found


def is_steady(name: str, now_ms: int) -> bool:
    """Whether no boundary comes within the time that is looked at."""
    from zae_limiter.schedule import next_boundary

    return next_boundary(scheduled(name).schedule, now_ms=now_ms) > now_ms + LATER_MS


def asked(limiter: Any, entity: str, resource: str, amount: int) -> str:
    try:
        fill.use(limiter, entity, resource, {resource: amount}, {})
    except older.RateLimitExceeded:
        return "refused"
    return "admitted"


def main(url: str, name: str, task: str, *seeds: str) -> None:
    clock, table = Clock(USED_MS), fill.Table(url, name)
    said: Any = None
    match task:
        case "fill":
            fill_all(table)
        case "left":
            said = left(table, clock)
        case "act":
            said = act(table, clock)
        case "numbers":
            said = numbers()
        case "drawn":
            said = drawn(*seeds)
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
