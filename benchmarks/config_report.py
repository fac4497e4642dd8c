"""The cost of looking up limits, beside what was predicted for it. Pure."""

from __future__ import annotations

from .cases import OURS, REFERENCE
from .figures import compact
from .summary import Result, config_bill

REQUESTS_PER_LIFETIME = 6_000
"""A hundred requests per second of one entity, while an entry lives for a minute."""


def config_section(result: Result) -> str:
    if not result.get("config"):
        return ""
    lines = ["| what | predicted | ours | theirs |", "|---|---|---|---|"]
    for what, predicted, *cells in rows(result):
        lines.append(f"| {what} | {predicted} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def rows(result: Result) -> list[list[str]]:
    """One row for each prediction: what, predicted, ours, theirs."""

    def each(what: str, predicted: str, cell: object) -> list[str]:
        assert callable(cell)
        return [what, predicted, cell(result, OURS), cell(result, REFERENCE)]

    return [
        each("config read, cold cache: RCU", "1.5", units("read-cold")),
        each("config read, cold cache: latency p50", "one round trip", latency("read-cold")),
        each("config read, warm cache: RCU", "0", units("read-warm")),
        each("config read, warm cache: latency p50", "no round trip", latency("read-warm")),
        each("100 requests per second of one entity: RCU per request", "0.00025", amortised),
        each("acquire, config not cached: RCU", "1.5 more than cached", units("acquire-cold")),
        each("acquire, config not cached: latency p50", "one round trip more", latency("acquire-cold")),
        each("acquire, config cached: RCU", "0 for config", units("acquire-warm")),
        each("acquire, config cached: latency p50", "–", latency("acquire-warm")),
        each(f"{sparse_users(result):,} sparse users: requests without a read", "0–10 %", without_read),
        each(f"{sparse_users(result):,} sparse users: hit rate of the cache itself", "–", own_hit_rate),
        each(f"{sparse_users(result):,} sparse users: RCU per request", "1.35–1.5", units("sparse")),
        each("regular user, first request: RCU", "1.5", units("regular-first")),
        each("regular user, later in the window: RCU", "1", units("regular-later")),
        each("premium user, first request: RCU", "1.5", units("premium-first")),
        each("premium user, later in the window: RCU", "0.5", units("premium-later")),
        each("later in the window, 5 % premium, negative caching on: RCU", "1.05", later_average),
        each("the same, negative caching off: RCU", "1.5", units("regular-later-without")),
        each("the same, no cache at all: RCU", "1.5", units("no-cache")),
    ]


def units(kind: str) -> object:
    def cell(result: Result, contestant: str) -> str:
        value = config_bill(result, contestant, kind, "rcu")
        return "–" if value is None else compact(round(value, 3))

    return cell


def latency(kind: str) -> object:
    def cell(result: Result, contestant: str) -> str:
        found = result["config"].get(contestant, {}).get(kind)
        return "–" if found is None else f"{compact(found['p50_us'])} µs"

    return cell


def amortised(result: Result, contestant: str) -> str:
    value = config_bill(result, contestant, "read-cold", "rcu")
    return "–" if value is None else f"{value / REQUESTS_PER_LIFETIME:.5f}"


def without_read(result: Result, contestant: str) -> str:
    value = config_bill(result, contestant, "sparse", "calls")
    return "–" if value is None else f"{max(1 - value, 0) * 100:.1f} %"


def own_hit_rate(result: Result, contestant: str) -> str:
    found = result["config"].get(contestant, {}).get("sparse")
    if found is None:
        return "–"
    asked = found["cache_hits"] + found["cache_misses"]
    return f"{found['cache_hits'] / asked * 100:.1f} %" if asked else "–"


def later_average(result: Result, contestant: str) -> str:
    regular = config_bill(result, contestant, "regular-later", "rcu")
    premium = config_bill(result, contestant, "premium-later", "rcu")
    if regular is None or premium is None:
        return "–"
    return compact(round(0.95 * regular + 0.05 * premium, 3))


def sparse_users(result: Result) -> int:
    users: int = result["config"][OURS]["sparse"]["asked"]
    return users
