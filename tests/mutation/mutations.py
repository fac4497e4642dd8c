"""What is mutated, which tests are to notice, and which survivors are explained.

The tests of a file stand in the order of their price: those that know it best, then those that see it
at work. They run on the embedded stores; only what is compiled for DynamoDB needs that engine.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .operators import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[2]
SEEDS_SHORT = tuple(
    f"tests/simulation/test_simulation.py::test_no_seed_breaks_the_theorem[{first}]" for first in (0, 25)
)
FLOW = tuple(
    f"tests/flow/test_{name}.py"
    for name in (
        *("lease", "plan", "round_trips", "config_changes", "cascade", "cancellation", "unavailable"),
        "sync",
    )
)
OPEN = tuple(f"tests/flow/test_{name}.py" for name in ("open_lease", "on_error", "forgotten_lease"))
JOINT = ("tests/flow/test_joint.py", "tests/flow/test_joint_lease.py")
HOT = ("tests/flow/test_refusals.py", "tests/flow/test_groups.py", "tests/flow/test_shards.py")
EXHAUSTIVE = tuple(
    f"tests/simulation/test_exhaustive.py::test_no_order_breaks_a_promise[{story}]"
    for story in (
        "settle and fail: remote, two processes",
        "settle and fail: remote, one process",
        "settle and fail: local, two processes",
        "settle and fail: local, one process",
        "at the brim: remote, two processes",
        "first use: remote, two processes",
        "cut the limits: remote",
        "three in line",
    )
)
CORE = (*SEEDS_SHORT, *FLOW, *HOT, *EXHAUSTIVE)
STORES = (
    *(f"tests/conformance/test_{name}.py" for name in ("waist", "state_machine")),
    "tests/backends/test_swap.py",
)
SQLITE = ("tests/backends/test_sqlite.py", "tests/backends/test_sqlite_files.py")
FOLLOWERS = ("tests/aggregator/test_runner.py", *SEEDS_SHORT)
"""Who follows the log of an embedded store; a stream needs an engine."""


class Target(NamedTuple):
    """A file, and the tests that are to notice a change of it."""

    path: str
    first: Sequence[str]
    then: Sequence[str]
    on_dynamodb: bool = False


def _engine(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/engine/test_{name}.py" for name in names)


def _backends(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/backends/test_{name}.py" for name in names)


def _aggregator(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/aggregator/test_{name}.py" for name in names)


TARGETS = (
    Target(
        "zae_limiter/engine/bucket_writes.py",
        (*_engine("bucket_writes", "bucket_writes_beside", "bucket_writes_law", "spent"), HOT[2]),
        CORE,
    ),
    Target("zae_limiter/engine/spent.py", (*_engine("spent"), *FLOW), CORE),
    Target(
        "zae_limiter/engine/posting.py",
        (*_engine("bucket_writes", "bucket_writes_beside", "bucket_writes_law"), HOT[2]),
        CORE,
    ),
    Target(
        "zae_limiter/engine/rebase.py",
        (*_engine("bucket_writes", "bucket_writes_beside", "bucket_writes_law"), HOT[2]),
        CORE,
    ),
    Target(
        "zae_limiter/engine/lifetime.py", _engine("bucket_writes_beside", "bucket_writes_law", "settle"), CORE
    ),
    Target("zae_limiter/engine/plan.py", (*_engine("plan", "acquire"), *FLOW, HOT[0]), CORE),
    Target("zae_limiter/engine/refusal.py", (*_engine("take", "acquire", "holds"), *FLOW, HOT[0]), CORE),
    Target("zae_limiter/engine/take.py", (*_engine("take", "holds"), *FLOW, *EXHAUSTIVE), CORE),
    Target(
        "zae_limiter/engine/account.py", (*_engine("bucket_view", "bucket_writes", "split"), HOT[2]), CORE
    ),
    Target("zae_limiter/engine/demand.py", (*_engine("take", "lease"), *FLOW), CORE),
    Target("zae_limiter/engine/holding.py", (*_engine("acquire", "lease"), *OPEN, *FLOW), CORE),
    Target("zae_limiter/engine/remaining.py", (*_engine("remaining"), "tests/flow/test_remaining.py"), CORE),
    Target("zae_limiter/bucket.py", ("tests/test_bucket.py", "tests/fuzz/test_facts.py"), CORE),
    Target(
        "zae_limiter/engine/law.py",
        ("tests/test_bucket.py", *_engine("law", "windows"), "tests/fuzz/test_facts.py"),
        CORE,
    ),
    Target("zae_limiter/engine/level.py", _engine("bucket_view", "bucket_writes_law", "windows"), CORE),
    Target("zae_limiter/engine/fitting.py", _engine("bucket_writes_beside", "booking", "groups"), CORE),
    Target("zae_limiter/engine/windows.py", _engine("windows"), CORE),
    Target("zae_limiter/models/calendars.py", _engine("law"), CORE),
    Target("zae_limiter/models/cron.py", _engine("law"), CORE),
    Target("zae_limiter/models/schedules.py", ("tests/models/test_schedules.py",), CORE),
    Target("zae_limiter/engine/announced.py", ("tests/flow/test_concurrency_order.py",), CORE),
    Target("zae_limiter/engine/announcing.py", ("tests/flow/test_concurrency_order.py",), CORE),
    Target("zae_limiter/engine/phases.py", _engine("phases"), CORE),
    Target("zae_limiter/engine/phased.py", ("tests/flow/test_schedules.py",), CORE),
    Target("zae_limiter/engine/phase_writes.py", ("tests/flow/test_schedules.py",), CORE),
    Target("zae_limiter/models/accruals.py", _engine("law", "windows"), CORE),
    Target("zae_limiter/models/header_data.py", ("tests/flow/test_header_data.py",), FLOW),
    Target(
        "zae_limiter/models/refusing.py",
        ("tests/records/test_explaining.py",),
        ("tests/cli/test_explain.py",),
    ),
    Target("zae_limiter/engine/acquire.py", (*_engine("acquire"), *FLOW, *EXHAUSTIVE), CORE),
    Target("zae_limiter/engine/parts.py", (*_engine("parts", "acquire"), *JOINT, *FLOW), CORE),
    Target("zae_limiter/joint.py", (*JOINT, *FLOW), CORE),
    Target("zae_limiter/engine/settle.py", (*_engine("settle", "lease"), *FLOW, *EXHAUSTIVE), CORE),
    Target(
        "zae_limiter/lease.py",
        (*_engine("lease", "acquire"), *OPEN, "tests/flow/test_remaining.py", *FLOW),
        CORE,
    ),
    Target("zae_limiter/acquisition.py", (*_engine("lease", "acquire"), *OPEN, *FLOW), CORE),
    Target(
        "zae_limiter/engine/group_commit.py",
        (*_engine("group_commit", "line", "groups", "faults", "take"), *HOT[:2], *FLOW, *EXHAUSTIVE),
        CORE,
    ),
    Target(
        "zae_limiter/engine/door.py",
        ("tests/test_one_door.py", *_engine("group_commit", "acquire", "faults"), *FLOW),
        CORE,
    ),
    Target("zae_limiter/engine/line.py", (*_engine("line", "groups", "faults"), *HOT[:2], *FLOW), CORE),
    Target(
        "zae_limiter/engine/bucket_view.py", (*_engine("bucket_view", "bucket_writes", "split"), HOT[2]), CORE
    ),
    Target(
        "zae_limiter/repository_protocol.py", ("tests/test_repository_protocol.py", *STORES), (*SQLITE, *CORE)
    ),
    Target(
        "zae_limiter/backends/memory.py",
        (*_backends("memory", "open", "expiry", "swap"), *STORES),
        ("tests/backends", "tests/conformance", *CORE),
    ),
    Target(
        "zae_limiter/backends/sqlite/statements.py",
        (*_backends("statements", "expiry", "swap"), *STORES, *SQLITE),
        ("tests/backends", "tests/conformance", *CORE),
    ),
    Target("zae_limiter/engine/seen_changes.py", _engine("seen_changes"), CORE),
    Target("zae_limiter/engine/shares.py", (*_engine("shares", "split"), HOT[2]), CORE),
    Target("zae_limiter/engine/split.py", (*_engine("split"), HOT[2]), CORE),
    Target("zae_limiter/config_cache.py", ("tests/records/test_config_cache.py", *FLOW), CORE),
    Target(
        "zae_limiter/backends/dynamodb/expressions.py",
        ("tests/dynamodb/test_expressions.py",),
        STORES,
        on_dynamodb=True,
    ),
    Target("zae_limiter_aggregator/usage.py", _aggregator("usage"), FOLLOWERS),
    Target(
        "zae_limiter_aggregator/processor.py",
        _aggregator("processor", "usage", "buckets", "archiver"),
        FOLLOWERS,
    ),
    Target("zae_limiter_aggregator/buckets.py", _aggregator("buckets"), FOLLOWERS),
)


class Planted(NamedTuple):
    """A change by hand: one that a person might make, larger than what the operators do."""

    path: str
    place: str
    old: str
    new: str


PLANTED = (
    Planted(
        "zae_limiter/engine/settle.py",
        "give_back",
        "Posting(credit=demand.amounts)",
        "Posting(debit=demand.amounts)",
    ),
    Planted(
        "zae_limiter/engine/settle.py",
        "_may_try_again",
        "not outcome.failure.ambiguous and attempt",
        "attempt",
    ),
    Planted("zae_limiter/engine/take.py", "take", "except BaseException:", "except Exception:"),
    Planted(
        "zae_limiter/engine/settle.py",
        "_posted",
        "writer.post(orders, binding=True)\n",
        "writer.post(orders)\n",
    ),
    Planted("zae_limiter/engine/holding.py", "Holding._abandon", "self._taken()", "self._later"),
    Planted("zae_limiter/engine/settle.py", "settlement", "in reversed(taken)", "in taken"),
    Planted("zae_limiter/engine/settle.py", "_last_of", "in reversed(take.demands)", "in take.demands"),
    Planted(
        "zae_limiter/engine/holding.py", "Holding._take_in", "self._later += takes", "self._later = takes"
    ),
    Planted("zae_limiter/engine/sending.py", "unknown", "ambiguous=True", "ambiguous=False"),
    Planted(
        "zae_limiter/engine/group_commit.py",
        "BucketWriter._fitting",
        "account.terms, image, sent_ms)",
        "account.terms, image, self.world.now_ms())",
    ),
    Planted(
        "zae_limiter/engine/line.py", "Lines._call_next", "line.lead(waiting[0])", "line.lead(waiting[-1])"
    ),
    Planted("zae_limiter/engine/spent.py", "spent", "found - gained - need", "found - need"),
    Planted("zae_limiter/engine/spent.py", "spent", "numbers[counter] + need", "need"),
    Planted(
        "zae_limiter/engine/bucket_writes.py",
        "_spend",
        "terms.rates[name]",
        "stored_rate(image, name) or terms.rates[name]",
    ),
    Planted(
        "zae_limiter/engine/bucket_writes.py",
        "_spend",
        "min(brim, brim - taken + returned)",
        "brim - taken + returned",
    ),
    Planted(
        "zae_limiter/engine/bucket_writes.py",
        "_give_back",
        "add[names.tk], add[names.tc] = amount - ended.get(name, 0), -amount",
        "add[names.tk], add[names.tc] = amount - ended.get(name, 0), 0",
    ),
    Planted(
        "zae_limiter/engine/law.py",
        "balance",
        "min(rate.capacity_milli, tokens_milli + gain(rate, origin_ms, now_ms))",
        "tokens_milli + gain(rate, origin_ms, now_ms)",
    ),
    Planted("zae_limiter/backends/memory.py", "MemoryBackend.swap", "is not image", "!= image"),
    Planted("zae_limiter/engine/split.py", "split", "names.tk: moved", "names.tk: new_capacity"),
)


def all_mutants(sources: Path) -> list[Mutant]:
    """Every mutant of every target, the planted ones of a file first."""
    found: list[Mutant] = []
    for target in TARGETS:
        source = (sources / target.path).read_text()
        plants = [_by_hand(planted, source) for planted in PLANTED if planted.path == target.path]
        found += [mutant for mutant in plants if mutant is not None]
        found += mutants_of(target.path, source)
    return found


def outdated(sources: Path) -> list[Planted]:
    """Changes by hand of what is not there any more."""
    return [planted for planted in PLANTED if _by_hand(planted, (sources / planted.path).read_text()) is None]


def _by_hand(planted: Planted, source: str) -> Mutant | None:
    name = planted.place.rpartition(".")[2]
    begin = re.search(rf"^ *(?:async )?def {name}\(", source, re.MULTILINE)
    start = source.find(planted.old, begin.start()) if begin else -1
    if start < 0:
        return None
    end = start + len(planted.old)
    return Mutant(planted.path, planted.place, planted.old, planted.new, 1, start, end, planted.new)


def target_of(mutant: Mutant) -> Target:
    return next(target for target in TARGETS if target.path == mutant.path)


def sample(mutants: Sequence[Mutant], size: int) -> list[Mutant]:
    """Some mutants, the same ones every time, whatever else is added or taken away."""

    def lot(mutant: Mutant) -> str:
        return hashlib.sha256(mutant.name.encode()).hexdigest()

    chosen = {mutant.name for mutant in sorted(mutants, key=lot)[:size]}
    return [mutant for mutant in mutants if mutant.name in chosen]


def explained(page: str) -> dict[str, str]:
    """The survivors that a page explains: rows of a table, the name as code and the reason."""
    rows = re.findall(r"^\| `(?P<name>[^`]+)` \| (?P<why>.+) \|$", page, re.MULTILINE)
    return {name.replace("\\|", "|"): why for name, why in rows}


def unexplained(survivors: Iterable[str], page: str) -> list[str]:
    known: Mapping[str, str] = explained(page)
    return [name for name in survivors if name not in known]
