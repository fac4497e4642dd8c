"""Who uses the gateway of ``zae-limiter demo --ui``: some tenants of an LLM gateway, and their limits.

All of them are made up, and so is what they used on the days before: that is written by a limiter whose clock
is set back, through the same calls as everything else, and counted by the aggregator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from ..models import Limit
from ..sync import SyncRateLimiter
from ..testing import ManualClock

GPT, CLAUDE, EMBEDDINGS = "gpt-4", "claude-sonnet", "embeddings"
USD = "usd_micro"
DOLLAR = 1_000_000
PRICES = {GPT: 60, CLAUDE: 15}
"""Millionths of a dollar for a token."""


def _rates(rpm: int, tpm: int, *more: Limit) -> list[Limit]:
    return [Limit.per_minute("rpm", rpm), Limit.per_minute("tpm", tpm), *more]


DEFAULTS = {
    GPT: _rates(60, 40_000, Limit.concurrent("parallel", 20, hold="2m")),
    CLAUDE: _rates(30, 50_000, Limit.concurrent("parallel", 6, hold="2m")),
    EMBEDDINGS: [Limit.per_minute("rpm", 600), Limit.per_minute("tpm", 60_000, burst=20_000)],
}
OWN: dict[tuple[str, str], list[Limit]] = {
    ("acme", GPT): _rates(200, 150_000, Limit.per_month("usd", 20_000 * DOLLAR, unit=USD)),
    ("acme/search", GPT): _rates(120, 80_000),
    ("acme/support", GPT): _rates(90, 60_000),
    ("globex", GPT): _rates(120, 100_000, Limit.per_month("usd", 250 * DOLLAR, unit=USD)),
    ("initech", GPT): _rates(15, 10_000),
}
PARENTS: dict[str, str | None] = {
    "acme": None,
    "acme/search": "acme",
    "acme/search/web": "acme/search",
    "acme/search/ios": "acme/search",
    "acme/support": "acme",
    "acme/support/bot": "acme/support",
    "acme/support/agents": "acme/support",
    "globex": None,
    "globex/research": "globex",
    "globex/nightly-index": "globex",
    "initech": None,
}
NAMES = {
    "acme": "Acme Corporation",
    "acme/support/bot": "the bot that greets everybody at once",
    "globex": "Globex, nearly out of budget",
    "globex/nightly-index": "a batch job that waits its turn",
    "initech": "Initech, on the free plan",
}
OPERATOR = "ops@example.com"


class Habit(NamedTuple):
    """How somebody uses a resource."""

    entity_id: str
    resource: str
    per_minute: float
    """Requests, at the busiest hour."""
    tokens: tuple[int, int]
    """What a request costs, at least and at most."""
    seconds: tuple[float, float] = (0.2, 1.5)
    """How long an answer takes to stream."""
    phase: float = 0.0
    """When the day is busiest, as a part of it."""
    burst: tuple[int, float] = (0, 0)
    """So many requests at once, every so many seconds."""
    wait_seconds: float = 0
    """How long it waits for its turn; it does so with as many requests at once as ``workers`` says."""
    workers: int = 0


HABITS = (
    Habit("acme/search/web", GPT, 75, (200, 1_200), (0.5, 3.0)),
    Habit("acme/search/ios", GPT, 45, (200, 900), (0.5, 2.5), phase=0.3),
    Habit("acme/search/web", CLAUDE, 24, (400, 2_000), (1.0, 4.0), phase=0.5),
    Habit("acme/support/bot", GPT, 20, (100, 600), (0.2, 0.8), burst=(45, 11)),
    Habit("acme/support/agents", GPT, 30, (300, 1_500), (1.0, 4.0), phase=0.15),
    Habit("acme/support/agents", CLAUDE, 40, (300, 1_800), (1.0, 5.0), phase=0.1),
    Habit("globex/research", GPT, 60, (800, 2_000), (1.0, 4.0), phase=0.2),
    Habit("globex/nightly-index", EMBEDDINGS, 0, (1_000, 3_000), (0.1, 0.4), wait_seconds=60, workers=4),
    Habit("initech", GPT, 24, (200, 900), (0.3, 1.5), phase=0.6),
)

HISTORY_HOURS = 30
PAST_PER_MINUTE_MAX = 45
BUDGET_LEFT = 6 * DOLLAR
"""What is left of Globex's month when the demo begins."""


def busy(at: float, phase: float = 0.0) -> float:
    """How busy it is at a part of the day, from 0.15 to 1."""
    return 0.15 + 0.85 * math.sin(math.pi * (at - phase)) ** 2


def write_history(url: str, namespace: str, now_ms: int) -> ManualClock:
    """Make the tenants, and what they used in the hours until the last full one; returns the clock."""
    last_ms = now_ms // 3_600_000 * 3_600_000
    clock = ManualClock()
    clock.advance((last_ms - HISTORY_HOURS * 3_600_000 - clock.now_ms) / 1000)
    with SyncRateLimiter.open(url, namespace=namespace, world=clock.world) as limiter:
        _make_tenants(limiter)
        for hour in range(HISTORY_HOURS):
            clock.advance(1)
            _use_at_once(limiter, {habit: _hourly(habit, hour, clock.now_ms, last_ms) for habit in HABITS})
            clock.advance(3599)
    return clock


def _make_tenants(limiter: SyncRateLimiter) -> None:
    for resource, limits in DEFAULTS.items():
        limiter.set_resource_defaults(resource, limits, principal=OPERATOR)
    for entity_id, parent_id in PARENTS.items():
        limiter.create_entity(
            entity_id,
            name=NAMES.get(entity_id),
            parent_id=parent_id,
            cascade=parent_id is not None,
            principal=OPERATOR,
        )
    for (entity_id, resource), limits in OWN.items():
        limiter.set_limits(entity_id, limits, resource, principal=OPERATOR)


def amounts_of(habit: Habit, tokens: int, requests: int = 1) -> dict[str, int]:
    """What requests take of all limits but those of concurrency."""
    amounts = {"rpm": requests, "tpm": tokens}
    if habit.resource == GPT and habit.entity_id.partition("/")[0] in ("acme", "globex"):
        amounts["usd"] = tokens * PRICES[habit.resource]
    return amounts


def _hourly(habit: Habit, hour: int, at_ms: int, last_ms: int) -> dict[str, int]:
    """What somebody used in an hour of the past; by now, Globex has nearly used up its month."""
    part = datetime.fromtimestamp(at_ms / 1000, UTC).hour / 24
    share = 0.35 * busy(part, habit.phase) * (0.8 + 0.4 * (hour * 7 % 5) / 4)
    per_minute = min(habit.per_minute or PAST_PER_MINUTE_MAX, PAST_PER_MINUTE_MAX)
    requests = max(1, int(60 * per_minute * share))
    amounts = amounts_of(habit, requests * sum(habit.tokens) // 2, requests)
    if habit.entity_id == "globex/research":
        amounts["usd"] = _spent_by_hour(at_ms, last_ms)
    return amounts


def _spent_by_hour(at_ms: int, last_ms: int) -> int:
    """An equal part of Globex's budget for each hour of this month; of another month, as much again."""
    month = datetime.fromtimestamp(last_ms / 1000, UTC).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    month_ms = int(month.timestamp() * 1000)
    hours = min(HISTORY_HOURS, (last_ms - month_ms) // 3_600_000)
    budget = OWN["globex", GPT][-1].capacity - BUDGET_LEFT
    return budget // max(1, hours) if at_ms >= month_ms else budget // HISTORY_HOURS


def _use_at_once(limiter: SyncRateLimiter, used: Mapping[Habit, Mapping[str, int]]) -> None:
    """A lease for each, all of them settled for what was used in an hour: they are paid off by the next."""
    leases = {
        habit: limiter.acquire(habit.entity_id, habit.resource, dict.fromkeys(amounts, 1)).open()
        for habit, amounts in used.items()
    }
    for habit, lease in leases.items():
        lease.settle(used[habit])
        lease.commit()
