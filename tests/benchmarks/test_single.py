"""Single processes that are measured beside the cases: a lone acquire, a start, entities that come once."""

import asyncio
import json
import subprocess
import sys

import pytest

from benchmarks import lone
from benchmarks.cases import BARE, COLD, LIMIT, OURS, PLENTY, REFERENCE, RESOURCE, TLS
from benchmarks.engine import AWS_ENVIRONMENT, ROOT, environment
from benchmarks.process import environment_of
from benchmarks.run import cold_bill
from benchmarks.tables import make_table, open_sync, table_name
from tests.engines import dynamodb_local
from zae_limiter import Limit


def test_a_lone_acquire_takes_turns_with_a_bare_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both colours, with TLS and without."""
    for name, value in {**AWS_ENVIRONMENT, "AWS_CA_BUNDLE": ""}.items():
        monkeypatch.setenv(name, value)
    plain = dynamodb_local.endpoint()
    with lone.in_tls(plain) as secured:
        asyncio.run(lone.make_table(plain))
        spent = asyncio.run(lone.measure({"": plain, TLS: secured}, plain, windows=2))
    names = [step + kind for kind in ("", TLS) for step in (BARE, "sync", "async")]
    assert [len(spent[name]) for name in names] == [2] * len(spent)


def test_a_round_is_the_least_of_its_windows() -> None:
    """Also the last one, which may have fewer."""
    assert lone.rounds_of([*range(10, 20), *range(9, -1, -1), 7.04]) == [10, 0, 7.0]


def test_a_fresh_process_is_billed_for_all_that_it_asks() -> None:
    """The namespace with the versions, then the records of an acquire, and its write."""
    endpoint, table = dynamodb_local.endpoint(), table_name(OURS, COLD.name)
    asyncio.run(make_table(OURS, endpoint, table))
    limiter, repository = open_sync(OURS, endpoint, table)
    repository.set_resource_defaults(RESOURCE, [Limit.per_hour(LIMIT, PLENTY)])
    limiter.close()
    assert cold_bill(OURS, endpoint) == {
        "requests": {"BatchGetItem": 2, "PutItem": 1},
        "calls": 3,
        "rcu": 8.0,
        "wcu": 4.0,
    }
    assert cold_bill(OURS, endpoint)["wcu"] == 1.0


@pytest.mark.parametrize("where", ["memory", "dynamodb"])
def test_entities_that_come_once_are_counted(where: str) -> None:
    """On a memory store, and on an engine."""
    words = ["40"] if where == "memory" else ["40", dynamodb_local.endpoint()]
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.idle", *words],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        check=True,
    )
    samples = json.loads(ran.stdout)
    assert [it["entities"] for it in samples] == list(range(0, 41, 2))
    assert all(it["rss_bytes"] > 0 for it in samples)


def test_a_path_to_our_package_does_not_hide_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have one name; what is set for our own processes is not for those of others."""
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert environment_of(OURS)["PYTHONPATH"] == "/somewhere"
    assert "PYTHONPATH" not in environment_of(REFERENCE)
