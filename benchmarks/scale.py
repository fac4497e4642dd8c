"""``python -m benchmarks.scale``: what much traffic needs and costs on each store, from measured constants.

A small model in plain arithmetic. What it rests on stands in ``Constants``: counted by ``scale_runs``, which
``--check`` compares with what is predicted for runs of three sizes, or read off a clock, and then it says so.
``Prices`` are a list with a date. ``Traffic`` is what is asked. Nothing here talks to a store.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, replace

from .tabular import table

MONTH_S, HOUR_S = 730 * 3600, 3600
GB = 1e9


@dataclass(frozen=True)
class Constants:
    """What one acquire and one bucket of two limits are to each store, with names of 3 to 13 letters."""

    bucket_bytes: float = 472
    """Of a bucket item on DynamoDB; a further limit adds up to 95."""
    index_bytes: float = 619
    """Of its entries in three indexes, with the 100 bytes that AWS adds to each."""
    cold_requests: float = 2
    cold_wcu: float = 4
    """A bucket that is made: the item and three entries."""
    wcu_bytes: float = 1024
    usage_rows: float = 2
    """For each bucket of a batch that is counted, its hour and its day: a read and a write each."""
    usage_row_made_wcu: float = 3
    """Of a row that was not there: itself and two entries in indexes."""
    usage_batch_max: float = 500
    """Records that the stack hands to its function at once."""
    usage_rows_at_once: float = 25
    """Which are read in one round trip and written in another, before the next ones."""
    aggregator_cpu_us: float = 500
    """Of one record, by a clock on a busy machine."""
    partition_wcu: float = 1_000
    partition_bytes: float = 10 * GB
    split_wcu: float = 800
    shards_max: int = 32
    redis_bytes: float = 1_780
    """Of a bucket with its places in indexes, once its usage is counted."""
    redis_mark_bytes: float = 1_510
    """Of a mark with the image of a bucket, which waits until its usage is counted."""
    redis_marks_max: float = 20_000
    redis_cpu_us: float = 25
    """Of the script for one acquire, by Redis's own clock on a busy machine."""
    redis_wire_bytes: float = 723
    postgres_bytes: float = 2_570
    """Of a bucket with its places in indexes, at a fill factor of 50."""
    postgres_fixed_bytes: float = 16_384
    postgres_log_bytes: float = 1_020
    """Written ahead for one acquire, without images of whole pages."""
    postgres_cpu_us: float = 100
    """Of the server for one acquire, ten to a transaction, by a clock on a busy machine."""
    postgres_freeze: float = 200e6
    """Transactions after which a table is vacuumed whole, unless that is set otherwise."""
    busy: float = 0.7
    """How busy a processor may be before those who wait for it notice."""


@dataclass(frozen=True)
class Prices:
    """In US dollars: a list price that anybody can look up, and no contract."""

    where: str = "us-east-1"
    since: str = "November 2024"
    wru_million: float = 0.625
    rru_million: float = 0.125
    wcu_hour: float = 0.00065
    rcu_hour: float = 0.00013
    stored_gb_month: float = 0.25
    lambda_gb_s: float = 0.0000166667
    lambda_million: float = 0.20
    lambda_gb: float = 1.769
    """The memory that comes with one whole processor."""


@dataclass(frozen=True)
class Traffic:
    """What is asked of a store, evenly from all entities."""

    acquires_per_s: float = 1e6
    entities: float = 10e6
    processes: float = 1_000
    write_ms: float = 5
    """How long a write takes, as a client sees it."""
    parents: float = 0
    """Among how many parents the entities are, if they cascade; a parent is used by all processes."""
    settled: float = 0
    """The part of the acquires that cost something else than was thought: another write each."""
    made_per_day: float = 1
    """How often in a day a bucket is made anew, because it had expired."""
    in_a_batch: float = 10
    """On Redis and PostgreSQL: how many acquires of a process travel in one request."""
    is_counted: bool = True
    """Whether an aggregator counts usage."""


def acquires_per_write(per_s: float, write_s: float) -> float:
    """How many acquires of a process travel in one write to a bucket.

    Whatever arrives while a write is in flight goes out as the next one. Arrivals are independent, so a
    write takes ``write_s``, and after it comes a pause until the next arrival if none came meanwhile.
    """
    meanwhile = per_s * write_s
    return meanwhile + math.exp(-meanwhile)


def distinct(draws: float, among: float) -> float:
    """How many different buckets there are among so many records of as many buckets."""
    return among * -math.expm1(draws * math.log1p(-1 / among)) if among > 1 else min(draws, 1.0)


def made_rows(per_s: float) -> float:
    """How many rows of hours and days a second are new, of one bucket that is written so often."""
    return sum(-math.expm1(-per_s * window_s) / window_s for window_s in (HOUR_S, 24 * HOUR_S))


def usage_trips(buckets: float, known: Constants) -> float:
    """How often counting a batch of so many different buckets waits for an answer."""
    return 2 * math.ceil(buckets * known.usage_rows / known.usage_rows_at_once)


@dataclass(frozen=True)
class Usage:
    """What it takes to count usage, and to keep up with it."""

    wcu: float
    rcu: float
    batch_s: float
    busy: float
    lambda_month: float


UNCOUNTED = Usage(0, 0, 0, 0, 0)
SETTLING_ROUNDS = 8
"""Usage is written to the table that it is about: it needs partitions, and these make batches different."""


def partitions_for(wcu: float, stored: float, known: Constants) -> int:
    return math.ceil(max(wcu / known.partition_wcu, stored / known.partition_bytes))


def usage(traffic: Traffic, known: Constants, prices: Prices, writes_per_s: float, partitions: int) -> Usage:
    """Of writes to buckets in so many partitions, each with a shard of the stream and a function for it."""
    batches_per_s = writes_per_s / known.usage_batch_max
    buckets = distinct(known.usage_batch_max, traffic.entities / partitions)
    work_s = known.usage_batch_max * known.aggregator_cpu_us / 1e6
    work_s += usage_trips(buckets, known) * traffic.write_ms / 1000
    rows_per_s = batches_per_s * buckets * known.usage_rows
    new_per_s = made_rows(writes_per_s / (traffic.entities + traffic.parents)) * traffic.entities
    work = batches_per_s * work_s * prices.lambda_gb * prices.lambda_gb_s
    return Usage(
        wcu=rows_per_s + new_per_s * (known.usage_row_made_wcu - 1),
        rcu=rows_per_s,
        batch_s=partitions / batches_per_s,
        busy=work_s * batches_per_s / partitions,
        lambda_month=(work + batches_per_s / 1e6 * prices.lambda_million) * MONTH_S,
    )


@dataclass(frozen=True)
class DynamoDB:
    """What DynamoDB is asked for by some traffic."""

    writes_per_s: float
    parent_writes_per_s: float
    """To one parent; 0 without any."""
    shards: float
    """That one parent needs; more than there can be says that it is too hot."""
    wcu: float
    rcu: float
    usage_wcu: float
    usage_rcu: float
    bytes: float
    partitions: float
    batch_s: float
    """How long a stream's shard takes to fill a batch: usage is never younger."""
    aggregator_busy: float
    """How busy one aggregator for each shard of the stream is: above 1 it never catches up."""
    on_demand_month: float
    provisioned_month: float
    aggregator_month: float


def dynamodb(traffic: Traffic, known: Constants, prices: Prices) -> DynamoDB:
    """Units, partitions, shards, money and the aggregator's lag."""
    acquires = traffic.acquires_per_s
    write_s, wcu_of_write = traffic.write_ms / 1000, math.ceil(known.bucket_bytes / known.wcu_bytes)
    each = acquires / traffic.entities / traffic.processes
    writes = acquires / acquires_per_write(each, write_s)
    parent_writes = shards = 0.0
    if traffic.parents:
        to_parent = acquires / traffic.parents
        by_process = to_parent / traffic.processes
        parent_writes = to_parent / acquires_per_write(by_process, write_s)
        shards = max(1.0, parent_writes * wcu_of_write / known.split_wcu)
        shards = 2.0 ** math.ceil(math.log2(shards))
    made = (traffic.entities + traffic.parents) * traffic.made_per_day / 86_400
    bucket_writes = (writes + traffic.parents * parent_writes) * (1 + traffic.settled)
    wcu = bucket_writes * wcu_of_write + made * (known.cold_wcu - wcu_of_write)
    rcu = made * known.cold_requests
    stored = (traffic.entities + traffic.parents * max(1.0, shards)) * (
        known.bucket_bytes + known.index_bytes
    )
    counted, partitions = UNCOUNTED, partitions_for(wcu, stored, known)
    for _ in range(SETTLING_ROUNDS if traffic.is_counted else 0):
        counted = usage(traffic, known, prices, bucket_writes, partitions)
        partitions = partitions_for(wcu + counted.wcu, stored, known)
    all_wcu, all_rcu = wcu + counted.wcu, rcu + counted.rcu
    storage = stored / GB * prices.stored_gb_month
    return DynamoDB(
        writes_per_s=bucket_writes,
        parent_writes_per_s=parent_writes,
        shards=shards,
        wcu=wcu,
        rcu=rcu,
        usage_wcu=counted.wcu,
        usage_rcu=counted.rcu,
        bytes=stored,
        partitions=partitions,
        batch_s=counted.batch_s,
        aggregator_busy=counted.busy,
        on_demand_month=(all_wcu * prices.wru_million + all_rcu * prices.rru_million) / 1e6 * MONTH_S
        + storage,
        provisioned_month=(all_wcu * prices.wcu_hour + all_rcu * prices.rcu_hour) * 730 / known.busy
        + storage,
        aggregator_month=counted.lambda_month,
    )


@dataclass(frozen=True)
class Redis:
    requests_per_s: float
    cpu_cores: float
    nodes: float
    """Primaries, each with a processor for its commands; a namespace is on one of them."""
    bytes: float
    wire_bytes_per_s: float


def redis(traffic: Traffic, known: Constants) -> Redis:
    """Processors, nodes, memory and the network; a cascade is one script for both buckets."""
    writes = traffic.acquires_per_s * (1 + traffic.settled)
    buckets = traffic.entities + traffic.parents
    cores = writes * known.redis_cpu_us / 1e6 * (2 if traffic.parents else 1)
    nodes = math.ceil(cores / known.busy)
    marks = min(buckets, known.redis_marks_max * nodes)
    return Redis(
        requests_per_s=writes / traffic.in_a_batch,
        cpu_cores=cores,
        nodes=nodes,
        bytes=buckets * known.redis_bytes + marks * known.redis_mark_bytes,
        wire_bytes_per_s=writes * known.redis_wire_bytes,
    )


@dataclass(frozen=True)
class Postgres:
    transactions_per_s: float
    cpu_cores: float
    log_bytes_per_s: float
    bytes: float
    freeze_hours: float
    """After how long the table is vacuumed as a whole, again and again."""


def postgres(traffic: Traffic, known: Constants) -> Postgres:
    """Transactions, processors, the log, the table and how soon it is frozen."""
    writes = traffic.acquires_per_s * (1 + traffic.settled)
    per_bucket = 2 if traffic.parents else 1
    transactions = writes / traffic.in_a_batch
    buckets = traffic.entities + traffic.parents
    return Postgres(
        transactions_per_s=transactions,
        cpu_cores=writes * known.postgres_cpu_us / 1e6 * per_bucket / known.busy,
        log_bytes_per_s=writes * known.postgres_log_bytes * per_bucket,
        bytes=buckets * known.postgres_bytes + known.postgres_fixed_bytes,
        freeze_hours=known.postgres_freeze / transactions / HOUR_S,
    )


def short(value: float) -> str:
    """Two or three digits with a letter: ``1.25 M``."""
    for unit, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def scenarios(asked: Traffic) -> dict[str, Traffic]:
    """The traffic that was asked for, and what changes it most."""
    return {
        "as asked": asked,
        "usage not counted": replace(asked, is_counted=False),
        "half is settled": replace(asked, settled=0.5),
        "cascade, 10,000 parents": replace(asked, parents=10_000),
        "cascade, 100 parents": replace(asked, parents=100),
        "cascade, 1 parent": replace(asked, parents=1),
    }


def shards_shown(found: DynamoDB, known: Constants) -> str:
    if not found.parent_writes_per_s:
        return "–"
    note = "" if found.shards <= known.shards_max else f" (there are {known.shards_max})"
    return f"{short(found.parent_writes_per_s)}, {found.shards:.0f}{note}"


def dynamodb_table(asked: Traffic, known: Constants, prices: Prices) -> str:
    rows = []
    for name, traffic in scenarios(asked).items():
        it = dynamodb(traffic, known, prices)
        money = [
            f"{short(value)}" for value in (it.on_demand_month, it.provisioned_month, it.aggregator_month)
        ]
        units = [short(it.wcu), short(it.usage_wcu), short(it.partitions)]
        rows.append([name, *units, shards_shown(it, known), f"{short(it.bytes)}B", *money])
    dollars = ["on demand, $/month", "bought, $/month", "Lambda, $/month"]
    units = ["WCU/s", "for usage", "partitions"]
    return table([*["DynamoDB", *units, "writes/s to a parent, its shards", "stored"], *dollars], rows)


def servers_table(asked: Traffic, known: Constants) -> str:
    """Redis and PostgreSQL, for as much and for a part of it."""
    rows = []
    for part in (1.0, 0.1, 0.01):
        traffic = replace(asked, acquires_per_s=asked.acquires_per_s * part, entities=asked.entities * part)
        r, p = redis(traffic, known), postgres(traffic, known)
        rows.append(
            [
                f"{short(traffic.acquires_per_s)}/s, {short(traffic.entities)}",
                f"{r.nodes}",
                f"{short(r.bytes)}B",
                f"{short(r.wire_bytes_per_s)}B/s",
                f"{short(p.transactions_per_s)}",
                f"{p.cpu_cores:.3g}",
                f"{short(p.log_bytes_per_s)}B/s",
                f"{short(p.bytes)}B",
                f"{p.freeze_hours:.3g} h",
            ]
        )
    header = ["acquires, entities", "Redis: nodes", "memory", "network"]
    return table([*header, "PostgreSQL: transactions/s", "cores", "log", "stored", "frozen every"], rows)


def lag_line(asked: Traffic, known: Constants, prices: Prices) -> str:
    it = dynamodb(asked, known, prices)
    batch = f"A batch of {short(known.usage_batch_max)} records fills in {it.batch_s:.2g} s"
    return f"{batch}, and keeps one aggregator busy for {it.aggregator_busy:.0%} of that time.\n"


def shown(asked: Traffic, known: Constants, prices: Prices) -> str:
    """What the program prints, and the page repeats."""
    parts = [
        dynamodb_table(asked, known, prices),
        lag_line(asked, known, prices),
        servers_table(asked, known),
    ]
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    fields = Traffic.__dataclass_fields__
    for name, kind in (("acquires_per_s", float), ("entities", float), ("processes", float)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=fields[name].default)
    for name in ("write_ms", "parents", "settled", "made_per_day", "in_a_batch"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=fields[name].default)
    parser.add_argument("--check", action="store_true", help="compare with runs of three sizes")
    asked = vars(parser.parse_args())
    if asked.pop("check"):
        from .scale_runs import checked

        print(checked())
        return 0
    print(shown(Traffic(**asked), Constants(), Prices()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
