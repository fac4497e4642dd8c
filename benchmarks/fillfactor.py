"""``python -m benchmarks.fillfactor``: how much room a page should have free on PostgreSQL, and who vacuums.

Buckets are made, and then written by tasks of one event loop, as often as ``--updates`` says, on a table of
its own for each setting. PostgreSQL counts what became of the updates: one is HOT if its page had room for
the new row, and then it touched no index. What is printed are counts and bytes, which hardly depend on how
fast the machine is; only how often autovacuum came does.

The first table is made with nobody vacuuming: by default a server looks once a minute who needs it, and
until then pages have what they have. The second one compares who vacuums, at two fill factors. The server
looks once a second there, or no run would be long enough to see anybody.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from .cases import LIMIT, PLENTY, POSTGRES, RESOURCE, SECOND_LIMIT
from .server import server
from .tabular import table

BUCKETS, TASKS, UPDATES = 1_000, 50, 8_000
APART, TOGETHER = 7, 1
"""How far the next bucket is from this one, in the order in which they were made: what is made together is
in one page, and who writes all rows of a page in one statement needs as much room again."""
FILL_FACTORS = (100, 90, 80, 70, 50)
OURS_PERCENT = 50
VACUUMED_UPDATES = 3 * UPDATES
NEVER = "autovacuum_enabled = off"
SERVERS_OWN = (
    "autovacuum_vacuum_scale_factor",
    "autovacuum_vacuum_threshold",
    "autovacuum_vacuum_cost_delay",
)
VACUUMS = {
    "as set on our table": "",
    "by the server's defaults": f", RESET ({', '.join(SERVERS_OWN)})",
    "never": f", SET ({NEVER})",
}
COUNTED = """
SELECT n_tup_upd, n_tup_hot_upd, n_dead_tup, autovacuum_count,
    pg_table_size(relid) AS heap, pg_indexes_size(relid) AS indexes
FROM pg_stat_user_tables WHERE schemaname = %s AND relname = 'items'
"""


class Seen(NamedTuple):
    """What PostgreSQL counted of a table, and how large it is."""

    updates: int
    hot: int
    dead: int
    vacuums: int
    heap_bytes: int
    index_bytes: int

    @property
    def hot_percent(self) -> float:
        return 100 * self.hot / self.updates


STILL_THERE = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"


def counted(connection: Any, schema: str) -> Seen:
    """The counters of a schema's items, as soon as all who wrote have gone: then they have told theirs."""
    while connection.execute(STILL_THERE, [schema]).fetchone()[0]:
        connection.execute("SELECT pg_sleep(0.05)")
    connection.execute("SELECT pg_stat_clear_snapshot()")
    return Seen(*connection.execute(COUNTED, [schema]).fetchone())


async def used(url: str, buckets: int, tasks: int, updates: int, stride: int) -> None:
    """Every bucket is made, and then all are written in turn."""
    from zae_limiter import Limit, RateLimiter

    async with RateLimiter.open(f"{url}&timeout_ms=60000&listen=off") as limiter:
        await limiter.set_system_defaults([Limit.per_hour(name, PLENTY) for name in (LIMIT, SECOND_LIMIT)])
        numbers = itertools.chain(range(buckets), (n * stride % buckets for n in range(updates)))

        async def work() -> None:
            for number in numbers:
                async with limiter.acquire(f"key-{number:04}", RESOURCE, {LIMIT: 1, SECOND_LIMIT: 5}):
                    pass

        await asyncio.gather(*(work() for _ in range(tasks)))


def measured(setting: str, buckets: int, tasks: int, updates: int, stride: int) -> Seen:
    """One run on a fresh table, of which some settings were changed."""
    from tests.engines import postgres
    from tests.postgres.schemas import make_schema, owner

    schema = make_schema()
    owner().execute(f"ALTER TABLE {schema}.items {setting}".encode())
    asyncio.run(used(postgres.url(schema, application_name=schema), buckets, tasks, updates, stride))
    seen = counted(owner(), schema)
    owner().execute(f"DROP SCHEMA {schema} CASCADE".encode())
    return seen


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def fill_factors(buckets: int, tasks: int, updates: int) -> dict[int, tuple[Seen, Seen]]:
    """Two runs for each fill factor, in which nobody vacuums: buckets that are apart, and neighbours."""
    settings = {factor: f"SET (fillfactor = {factor}, {NEVER})" for factor in FILL_FACTORS}
    return {
        factor: (
            measured(setting, buckets, tasks, updates, APART),
            measured(setting, buckets, tasks, updates, TOGETHER),
        )
        for factor, setting in settings.items()
    }


def vacuums(buckets: int, tasks: int, updates: int) -> dict[tuple[int, str], Seen]:
    """One run of neighbours for each way to vacuum, at the fill factor of ours and at PostgreSQL's own."""
    return {
        (factor, name): measured(f"SET (fillfactor = {factor}){it}", buckets, tasks, updates, TOGETHER)
        for factor in (OURS_PERCENT, 100)
        for name, it in VACUUMS.items()
    }


def fill_table(found: dict[int, tuple[Seen, Seen]], updates: int) -> str:
    rows = [
        [
            f"{factor}",
            *(f"{seen.hot_percent:.0f} %" for seen in both),
            *(f"{megabytes(seen.heap_bytes)} + {megabytes(seen.index_bytes)}" for seen in both),
        ]
        for factor, both in found.items()
    ]
    size = f"table + indexes after {updates:,} updates"
    return table(["fillfactor", "HOT, apart", "HOT, neighbours", f"{size}, apart", "neighbours"], rows)


def vacuum_table(found: dict[tuple[int, str], Seen], updates: int) -> str:
    rows = [
        [
            f"{factor}",
            name,
            f"{seen.vacuums}",
            f"{seen.hot_percent:.0f} %",
            f"{seen.dead:,}",
            f"{megabytes(seen.heap_bytes)} + {megabytes(seen.index_bytes)}",
        ]
        for (factor, name), seen in found.items()
    ]
    size = f"table + indexes after {updates:,} updates"
    return table(["fillfactor", "vacuumed", "times", "HOT updates", "dead rows left", size], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fillfactor", description=__doc__)
    parser.add_argument("--buckets", type=int, default=BUCKETS)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--updates", type=int, default=UPDATES, help="for each fill factor")
    parser.add_argument(
        "--vacuumed", type=int, default=VACUUMED_UPDATES, help="updates for each way to vacuum"
    )
    asked = parser.parse_args(arguments)
    with server(POSTGRES):
        from tests.postgres.schemas import owner

        owner().execute("ALTER SYSTEM SET autovacuum_naptime = '1s'")
        owner().execute("SELECT pg_reload_conf()")
        print(f"{asked.buckets:,} buckets of two limits, {asked.tasks} tasks of one event loop\n")
        print(fill_table(fill_factors(asked.buckets, asked.tasks, asked.updates), asked.updates))
        print(vacuum_table(vacuums(asked.buckets, asked.tasks, asked.vacuumed), asked.vacuumed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
