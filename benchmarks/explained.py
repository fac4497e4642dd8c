"""Why a target is missed, by what was measured: the page shows it wherever a run misses one."""

from __future__ import annotations

EXPLAINED = {
    "1,000 keys, 50 tasks: throughput": (
        "the engine is the limit, not the client. A quick run on 2026-11-19 got 523 a second where a "
        "bare client got 715 from the same engine and theirs 241: 2.5 times as much as theirs is 84 % of"
        " all that the engine takes."
    ),
    "1,000 keys, 50 tasks: client CPU": (
        "an acquire of 1,000 keys takes as much as a lone one, in instructions 553,000 and 565,000 "
        "(callgrind, 2026-11-19), for every key has a write of its own. Less would be the same as less "
        "for a lone acquire ([why](adr/0160-a-reply-is-asked-for-whole.md))."
    ),
    "1,000 keys, 50 tasks: share of what the engine takes": (
        "client and engine share two cores, and ours takes more of them than a bare client. On "
        "2026-11-19 it was 73 %, on a machine that much else kept busy."
    ),
    "cascade: throughput": (
        "child and parent are two updates, and the engine takes no more of them: it took 771 calls a "
        "second for these acquires, and 712 for 1,000 keys in the same run."
    ),
    "refill on each acquire: throughput": (
        "it is one call against four, and as fast as a lone call: 674 a second, where the same run made "
        "653 warm acquires of one thread."
    ),
    "lone acquire: client CPU against a bare request": (
        "in instructions (callgrind, sync, 2026-11-19) a bare request is 90,000 and an acquire 515,000. "
        "Of these are 61,000 for reading JSON, 45,000 for signing, and about a sixth of all steps of "
        "Python makes the image out of it; the rest is some sixty calls of which none has more than 8 % "
        "([what was tried](adr/0160-a-reply-is-asked-for-whole.md))."
    ),
    "memory, sync: throughput against the fastest token bucket": (
        "a lease has to be entered, left and accounted for if it is forgotten. In instructions an "
        "acquire is 55,800 and theirs 44,700; the bucket itself is about half of ours "
        "([why](adr/0163-what-entities-have-in-common-is-kept-once.md))."
    ),
    "memory, async: throughput against the fastest token bucket": (
        "as for sync; in instructions it is 51,700 and theirs 52,900."
    ),
    "middleware: p50 against slowapi, pure ASGI": (
        "theirs counts a hit, ours takes a lease and settles it when the response has ended: 5.9 of the "
        "25 µs are the acquire alone, and twelve would be allowed."
    ),
    "middleware: p99 against slowapi, pure ASGI": ("as at the median."),
    "Redis, 1,000 keys: throughput against throttled-py": (
        "the client is the limit. A bare `PING` takes 45 µs of it over our connection and an acquire 85,"
        " theirs 142."
    ),
    "Redis, 1,000 keys: throughput against limits": (
        "the same: 85 µs of the client, theirs 118; a bare `PING` by the driver that they use takes 60."
    ),
    "Redis, hot key: throughput against throttled-py": (
        "one event loop was busy for 95 % of the time with 45 µs an acquire; ten times theirs would be 17."
    ),
    "Redis, hot key: throughput against limits": ("the same: ten times theirs would be 14 µs."),
    "PostgreSQL, 1,000 keys: throughput against pyrate-limiter": (
        "the server is the limit: our client was busy for 35 % of the time, with a quarter of their CPU "
        "for each acquire."
    ),
    "acquire, config not cached: RCU": (
        "five records, also those that are missing, at a unit each, because they are read strongly "
        "consistent in one request. Half a unit each would do for limits, whose version the write "
        "pins; who the parent is it does not pin ([why](adr/0160-a-reply-is-asked-for-whole.md)), and "
        "the first write to a bucket pins nothing."
    ),
    "import": (
        "met since 2026-11-18, when names began to be loaded as they are asked for: 21.6 ms by "
        "`python -m benchmarks.starting` ([how](adr/0150-names-are-loaded-when-they-are-asked-for.md))."
    ),
    "idle entities: remembered of one": (
        "2.6 KB since 2026-11-19 (251 MiB for 100,000): 1.1 of it is the image of the bucket and its "
        "key, 0.7 are three records that are known to be missing, 0.6 is the plan ([why "
        "so](adr/0163-what-entities-have-in-common-is-kept-once.md))."
    ),
}
"""By target. What stands here was measured once, and says when or in which run."""
