"""The bare client sends what ours sends, and what it sends is carried out, again and again."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.cases import CASES, CEILING, OURS, Case
from benchmarks.ceiling import CeilingBench, Lane, SyncCeilingBench, ThreadLane, repeatable
from benchmarks.report import ceiling_table, page
from benchmarks.tables import PARENT
from benchmarks.targets import verdicts
from tests.benchmarks.stored import result, sample
from tests.engines import dynamodb_local
from tests.patience import wait_until

FEW = 5
MEASURED = [case for case in CASES if CEILING in case.contestants]


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """One of its own: after this load, DynamoDB Local makes no index any more, for nobody who shares it."""
    port = dynamodb_local.free_port()
    process = dynamodb_local.launched(port, "-inMemory")
    dynamodb_local.wait_for_port(port)
    yield f"http://127.0.0.1:{port}"
    dynamodb_local.stop(process)


def smaller(case: Case) -> Case:
    return replace(case, entities=min(case.entities, FEW))


def one_round(bench: Any) -> dict[str, Any]:
    """A round in which something happened; a busy machine may need several."""
    while True:
        found: dict[str, Any] = bench.round(0.05)
        if found["operations"] or found["unwanted"]:
            return found


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: case.name)
def test_every_request_is_carried_out(engine: str, case: Case) -> None:
    """In two rounds, the second of which meets what the first one left."""
    made = SyncCeilingBench if case.sync else CeilingBench
    bench: Any = made(engine, smaller(case))
    bench.found()
    bench.prepare()
    for _ in range(2):
        found = one_round(bench)
        assert (found["unwanted"], found["messages"]) == (0, [])
    bench.close()


@pytest.mark.parametrize(
    ("name", "buckets"),
    [
        ("adjust-10", {"key-0000": 2}),
        ("hot-1", {"key-0000": 1}),
        ("keys-1000", {f"key-{number:04}": 1 for number in range(FEW)}),
        ("cascade", {f"key-{number:04}": 1 for number in range(FEW)}),
    ],
)
def test_it_sends_what_ours_sends(engine: str, name: str, buckets: dict[str, int]) -> None:
    """As many updates of each bucket, with tokens, consumption and all conditions; the image comes back."""
    case = replace(smaller(next(case for case in CASES if case.name == name)), name=f"sent-{name}")
    bench = CeilingBench(engine, case)
    bench.found()
    bench.prepare()
    sent: Counter[str] = Counter()
    for _, text in bench.updates:
        fields = json.loads(text)
        sent[fields["Key"]["PK"]["S"].partition("#")[2].partition("#")[0]] += 1
        assert {"tk", "tc"} <= {it.rpartition("_")[2] for it in fields["ExpressionAttributeNames"].values()}
        assert fields["ConditionExpression"].count(" AND ") >= 3
        assert fields["ReturnValues"] == "ALL_NEW"
    assert bool(sent.pop(PARENT, 0)) == case.cascade
    assert sent == buckets
    bench.close()


def test_bounds_are_moved_away_and_nothing_else() -> None:
    """What a request compares for order always holds; what it compares for identity stays."""
    request = {
        "ConditionExpression": "#a = :v0 AND #b >= :v1 AND #b <= :v12",
        "ExpressionAttributeValues": {":v0": {"N": "7"}, ":v1": {"N": "8"}, ":v12": {"N": "9"}},
    }
    values = json.loads(repeatable(json.dumps(request)))["ExpressionAttributeValues"]
    assert values == {":v0": {"N": "7"}, ":v1": {"N": str(-(10**15))}, ":v12": {"N": str(10**15)}}


def test_who_comes_meanwhile_shares_the_next_request() -> None:
    """Ten at once are two requests: the first one's, and one for the other nine."""

    async def ten() -> None:
        sent, gate = [], asyncio.Event()

        async def send() -> None:
            sent.append(1)
            await gate.wait()

        lane = Lane(send)
        riders = [asyncio.ensure_future(lane.ride()) for _ in range(10)]
        await asyncio.sleep(0)
        assert len(sent) == 1
        gate.set()
        await asyncio.gather(*riders)
        assert len(sent) == 2
        await lane.ride()
        assert len(sent) == 3

    asyncio.run(ten())


def test_a_failure_is_everybodys_who_shared_it() -> None:
    """Nobody counts a request that was refused."""

    async def three() -> list[BaseException | None]:
        gate = asyncio.Event()

        async def send() -> None:
            await gate.wait()
            raise PermissionError

        lane = Lane(send)
        riders = [asyncio.ensure_future(lane.ride()) for _ in range(3)]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*riders, return_exceptions=True)

    assert [type(error) for error in asyncio.run(three())] == [PermissionError] * 3


def test_threads_share_too() -> None:
    """One sends, and of the four that come meanwhile one sends for all."""
    sent, gate = [], threading.Event()

    def send() -> None:
        sent.append(1)
        gate.wait()

    lane = ThreadLane(send)
    threads = [threading.Thread(target=lane.ride) for _ in range(5)]
    threads[0].start()
    wait_until(lambda: len(sent) == 1, "nobody sends")
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: lane.waiting == 4, "they do not come")
    gate.set()
    for thread in threads:
        thread.join()
    assert len(sent) == 2


def test_the_share_is_shown_and_judged() -> None:
    """Nine tenths of what the engine takes is enough, eight are not; both are percent for people."""
    stored = result()
    for name, most in (("keys-1000", 1111), ("cascade", 1250)):
        stored["cases"][name]["rounds"] |= {OURS: [sample(1000)] * 3, CEILING: [sample(most)] * 3}
    words = {verdict.target.what: verdict.word for verdict in verdicts(stored)}
    assert words["1,000 keys, 50 tasks: share of what the engine takes"] == "met"
    assert words["cascade: share of what the engine takes"] == "missed"
    shown = ceiling_table(stored)
    assert "| 1,000 keys, 50 tasks | 1,000 (1,000–1,000) | 1,110 (1,110–1,110) | 90 % |" in shown
    assert shown in page(stored)
