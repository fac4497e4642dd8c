"""Fills a table with quotas, soft limits and switches, which only newer releases have, through their API.

Run by the Python of the release: ``python fill_kinds.py URL TABLE TASK``. It prints one JSON document. The
tests import it too: then ``older`` is this project, asked the same.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from typing import Any

if __name__ == "__main__":
    import fill
else:
    from tests.older import fill

older, slow, use = fill.older, fill.slow, fill.use
HOURS_5, SHORT = timedelta(hours=5), timedelta(seconds=1)
RULES = {
    "each-hour": ("0 * * * *", "UTC"),
    "each-day": ("0 0 * * *", "America/New_York"),
    "monday": ("0 0 * * 1", "Asia/Kathmandu"),
    "sunday": ("0 0 * * 0", "UTC"),
    "each-month": ("0 0 1 * *", "Europe/Berlin"),
    "each-year": ("0 0 1 1 *", "Australia/Lord_Howe"),
    "quarters": ("*/15 * * * *", "UTC"),
    "at-work": ("30 9-17/2 * * mon-fri", "Europe/Berlin"),
    "halves": ("0,30 1,13 1,15 jan,jul *", "Asia/Tokyo"),
    "either": ("0 0 13 * 5", "UTC"),
    "even-days": ("0 0 */2 * *", "UTC"),
    "even-fridays": ("0 0 */2 * 5", "UTC"),
}
"""Quotas by the calendar: when they are full again, and in which zone."""

USED = [
    ("lonely", "cal", {"day": 3, "week": 1, "rpd": 2}, {}),
    ("debtor", "cal", {"day": 3}, {"day": 18}),
    ("own", "cal", {"msgs": 4}, {}),
    ("own", "any", {"rpd": 4}, {}),
    ("lonely", "any", {"msgs": 5}, {}),
    ("debtor", "any", {"msgs": 48}, {"msgs": 7}),
    ("lonely", "blink", {"now": 7}, {"now": 5}),
    ("lonely", "soft", {"rpd": 8, "month": 3}, {}),
    ("kid", "soft", {"rpd": 3, "month": 30, "hours": 9}, {}),
    ("vip", "cal", {"day": 2}, {}),
    ("locked", "cal", {"day": 2}, {}),
    ("locked-here", "cal", {"day": 2}, {}),
    ("key", "off", {"rpd": 2}, {}),
    ("lonely", "off", {"rpd": 3}, {}),
    ("lonely", "past", {"rpd": 3}, {}),
]
ENTITIES = ["org", "kid", "lonely", "debtor", "own", "vip", "vip-here", "locked", "locked-here", "key", "hot"]
RESOURCES = ["cal", "any", "blink", "soft", "off", "past", *RULES]


def make(table: fill.Table) -> Any:
    """A table that says which function reads it, without which no session is stored."""
    table.make()
    repo = table.open()
    repo.set_version_record(repo.get_version_record()["schema_version"], lambda_version=older.__version__)
    return table.open()


def fill_all(table: fill.Table) -> None:
    repo, quota = make(table), older.Limit.quota
    berlin = {"tz": "Europe/Berlin"}
    repo.set_system_defaults([quota("msgs", 48, reset_after=HOURS_5)])
    cal = [quota("day", 16, cron="0 0 * * *", **berlin), quota("week", 40, cron="30 6 * * 1", **berlin)]
    repo.set_resource_defaults("cal", [*cal, slow("rpd", 80)])
    repo.set_resource_defaults("blink", [quota("now", 8, reset_after=SHORT)])
    soft = [
        quota("month", 20, cron="0 0 1 * *", soft=True),
        quota("hours", 7, reset_after=HOURS_5, soft=True),
    ]
    repo.set_resource_defaults("soft", [*soft, older.Limit("rpd", 5, 1, 86_400, soft=True)])
    for name in ("off", "past"):
        repo.set_resource_defaults(name, [slow("rpd", 10)])
    for name, (cron, tz) in RULES.items():
        repo.set_resource_defaults(name, [quota("runs", 8, cron=cron, tz=tz)])
    repo.create_entity("org")
    for name in ENTITIES[1:]:
        repo.create_entity(name, parent_id="org" if name == "kid" else None, cascade=name == "kid")
    repo.set_limits("own", [quota("msgs", 6, reset_after=HOURS_5)], resource="cal")
    repo.set_limits("own", [slow("rpd", 12), quota("day", 7, cron="0 12 * * *")])
    limiter = table.limiter()
    for entity, resource, amounts, then in USED:
        use(limiter, entity, resource, amounts, then)
    for name in RULES:
        use(limiter, "lonely", name, {"runs": 3}, {})
    spread(table, repo)
    throw(repo)
    time.sleep(SHORT.total_seconds())  # the window is over
    use(table.limiter(), "vip", "cal", {"day": 30}, {})
    table.aggregate()


def spread(table: fill.Table, repo: Any) -> None:
    """Quotas in several shards: some got their share late, some are in debt, of some all are whole."""
    for resource, name in (("cal", "day"), ("any", "msgs")):
        use(table.limiter(), "hot", resource, {name: 1}, {})
        for count in (1, 2):
            repo.bump_shard_count("hot", resource, count)
        limiter = table.limiter()
        for _ in range(5):
            use(limiter, "hot", resource, {name: 1}, {})
    use(limiter, "hot", "any", {"msgs": 1}, {"msgs": 15})
    repo.reset_bucket("debtor", "any")
    repo.top_up("debtor", "cal", {"day": 2})


def throw(repo: Any) -> None:
    """Every position of every switch."""
    repo.disable_entity("locked")
    repo.disable_entity("locked-here", resource="cal")
    repo.disable_resource("off")
    repo.enable_entity("key", resource="off")
    repo.bypass_entity("vip")
    repo.bypass_entity("vip-here", resource="cal")
    repo.bypass_resource("past")
    repo.disable_entity("debtor", resource="any")
    repo.clear_entity_disabled("debtor", resource="any")


def read(table: fill.Table) -> dict[str, Any]:
    """What there is left, and since or until when; and what was counted and noted."""
    limiter = table.limiter()
    return {
        "left": {f"{name} {one}": left(limiter, name, one) for name in ENTITIES for one in RESOURCES},
        "usage": {name: fill.usage(limiter.get_usage_snapshots(entity_id=name)[0]) for name in ENTITIES},
        "audit": {
            name: [
                [one.event_id, fill.plain(one.action), one.resource, fill.plain(one.details)]
                for one in limiter.get_audit_events(name)
            ]
            for name in [*ENTITIES, *(f"$RESOURCE:{one}" for one in RESOURCES)]
        },
        "children": sorted(map(fill.id_of, limiter.get_children("org"))),
    }


def left(limiter: Any, entity: str, resource: str) -> Any:
    """For each limit what is left, and the instant from which on there is one more than that."""
    if entity.startswith("locked") or resource in ("off", "past"):
        return None  # here whoever is off is told so, and not what it has
    found = limiter.available(entity, resource)
    if entity == "kid":  # here a child that cascades has no more than its parent
        return sorted(found)
    if entity.startswith("vip"):
        return found
    if entity == "hot":  # of other limits that release tells what the shards hold that are there
        found = {name: found[name] for name in found if name != "rpd"}
    told = limiter.check_availability(entity, resource, {name: max(1, found[name] + 1) for name in found})
    until = {
        one.limit_name: told.checked_at_ms + round(one.retry_after_seconds * 1000) - later_ms(one.limit)
        for one in told.statuses
        if one.limit_name != "rpd" and one.retry_after_seconds > 0 and one.available < one.limit.capacity
    }
    return {name: [found[name], until.get(name)] for name in found}


def later_ms(limit: Any) -> int:
    """How long after a period has begun somebody is told to come back."""
    return 1 if getattr(limit, "reset_schedule", None) else 0


DEMANDS = [
    *((name, "cal", {"day": 1}) for name in ("org", "lonely", "debtor", "locked", "locked-here", "key")),
    *((name, "cal", {"day": 30}) for name in ("vip", "vip-here", "lonely")),
    *((name, "any", {"msgs": 20}) for name in ("lonely", "debtor", "locked", "locked-here", "vip")),
    *((name, "off", {"rpd": 1}) for name in ("lonely", "key", "vip", "nobody", "kid")),
    *((name, "past", {"rpd": 99}) for name in ("lonely", "nobody", "locked")),
    ("lonely", "soft", {"rpd": 50, "month": 50, "hours": 50}),
    ("kid", "soft", {"rpd": 50}),
    ("own", "cal", {"msgs": 2}),
    ("own", "cal", {"msgs": 1}),
    ("own", "any", {"rpd": 8, "day": 7}),
    ("own", "any", {"day": 1}),
    ("lonely", "blink", {"now": 8}),
]


def act(table: fill.Table) -> list[str]:
    """Who is admitted, by what there is."""
    return [f"{who} {what} {amounts}: {asked(table, who, what, amounts)}" for who, what, amounts in DEMANDS]


def asked(table: fill.Table, entity: str, resource: str, amounts: dict[str, int]) -> str:
    try:
        use(table.limiter(), entity, resource, amounts, {})
    except older.RateLimitExceeded:
        return "refused"
    except older.ZAELimiterError as error:
        return "off" if type(error).__name__ in ("ResourceDisabled", "PermissionDenied") else repr(error)
    return "admitted"


def main(url: str, name: str, task: str) -> None:
    table = fill.Table(url, name)
    if task == "fill":
        fill_all(table)
    print(json.dumps(act(table) if task == "act" else read(table), default=str))
    table.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
