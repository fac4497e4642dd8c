"""Rows of estimates: processes add to them, no call counts twice, and nobody's names fill a table."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.records.store import Store, everything
from zae_limiter import NamespaceNotFoundError, RateLimiterUnavailable, Repository
from zae_limiter.llm import LearnedEstimates
from zae_limiter.llm.sketch import ENDS, bin_of
from zae_limiter.records import estimates as records
from zae_limiter.records.estimates import GENERATIONS, PLACES, CallKind, add_calls, read_calls
from zae_limiter.repository_protocol import Backend, Item, Outcome, Update, Write
from zae_limiter.testing import Fault, FaultyBackend
from zae_limiter.testing.stores import Wrapper

MODEL, CAP = "gpt-4o", 4_096
KIND = CallKind(MODEL, CAP, 900)
OTHER = CallKind("other", CAP, 900)
BIN, COVERS = f"n{bin_of(300)}", ENDS[bin_of(300)]
"""Where a call that used 300 is counted, and what then is reserved."""


async def rows(repository: Repository) -> list[Item]:
    found = await everything(repository)
    return [item for key, item in found.items() if "/ESTIMATE#" in key.partition]


async def learned(repository: Repository, calls: int = 0, used: int = 300) -> tuple[LearnedEstimates, int]:
    """A process that has observed some calls, and what it reserves."""
    estimates = LearnedEstimates(repository)
    for _ in range(calls):
        estimates.observe(MODEL, CAP, used)
    await estimates.refresh()
    await estimates.reserve(MODEL, CAP)
    await estimates.refresh()
    return estimates, await estimates.reserve(MODEL, CAP)


async def test_processes_share_what_they_learn(store: Store) -> None:
    """Neither has seen enough; both together have, and a third that has seen nothing goes by it too."""
    one, two, three = [await store.repository() for _ in range(3)]
    first, alone = await learned(one, 50)
    assert alone == CAP
    assert (await learned(two, 50))[1] == COVERS
    await first.refresh()
    assert await first.reserve(MODEL, CAP) == COVERS
    assert (await learned(three))[1] == COVERS
    (row,) = await rows(one)
    assert {name: value for name, value in row.items() if name[0] == "n"} == {BIN: 100}
    assert (row["model"], row["cap"]) == (MODEL, CAP)


async def test_processes_add_at_the_same_time(store: Store) -> None:
    """One of them makes the row, all are counted."""
    processes = [await store.repository() for _ in range(5)]
    since = KIND.since(store.clock.now_ms)
    counted = await asyncio.gather(*(add_calls(one._scope, since, {KIND: {7: 1, 8: 2}}) for one in processes))
    assert max(one[KIND].total[7] for one in counted if one[KIND].total) == 5
    assert await read_calls(processes[0]._scope, [(KIND, since)]) == [{7: 5, 8: 10}]


class MadeMeanwhile(Wrapper):
    """A store where somebody else makes the row between two writes of ours."""

    def __init__(self, inner: Backend, theirs: Write) -> None:
        super().__init__(inner)
        self.theirs: list[Write] = [theirs]

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        outcomes = await super().write_each(writes)
        if self.theirs:
            await super().write_each([self.theirs.pop()])
        return outcomes


async def test_a_row_that_somebody_makes_meanwhile_is_added_to(store: Store) -> None:
    """Its number is theirs and ours."""
    theirs = await store.repository()
    since = KIND.since(store.clock.now_ms)
    row, besides = KIND.row(theirs.namespace_id, since)
    made = Update(row.key, {"n7": 4}, besides)
    ours = await store.repository(wrap=lambda backend: MadeMeanwhile(backend, made))
    assert (await add_calls(ours._scope, since, {KIND: {7: 1}}))[KIND].total == {7: 5}


@pytest.mark.parametrize(
    ("fault", "counted"), [(Fault.LOST_REPLY, 190), (Fault.LOST_REQUEST, 100), (Fault.UNREACHABLE, 190)]
)
async def test_no_call_counts_twice(fault: Fault, counted: int, store: Store) -> None:
    """Where nobody knows whether it was counted it is not sent again; where it surely was not, it is."""
    await learned(await store.repository(), 100)
    faulty: list[FaultyBackend] = []

    def wrap(backend: Backend) -> Backend:
        faulty.append(FaultyBackend(backend))
        return faulty[0]

    repository = await store.repository(wrap=wrap)
    estimates, _ = await learned(repository)
    for _ in range(90):
        estimates.observe(MODEL, CAP, 300)
    faulty[0].faults = [fault]
    with pytest.raises(RateLimiterUnavailable):
        await estimates.refresh()
    await estimates.refresh()
    await estimates.refresh()
    (row,) = await rows(repository)
    assert row[BIN] == counted


async def test_a_store_that_is_gone_from_the_start(store: Store) -> None:
    """Nothing is lost for it: what was observed is stored when it is back."""
    faulty: list[FaultyBackend] = []

    def wrap(backend: Backend) -> Backend:
        faulty.append(FaultyBackend(backend))
        return faulty[0]

    repository = await store.repository(wrap=wrap)
    estimates = LearnedEstimates(repository)
    for _ in range(100):
        estimates.observe(MODEL, CAP, 300)
    faulty[0].always = Fault.UNREACHABLE
    for _ in range(3):
        with pytest.raises(RateLimiterUnavailable):
            await estimates.refresh()
    await estimates.close()  # which tells only the log
    assert await estimates.reserve(MODEL, CAP) == CAP
    faulty[0].always = None
    await estimates.refresh()
    assert await estimates.reserve(MODEL, CAP) == COVERS


async def test_a_busy_process_writes_once_and_reads_nothing(store: Store) -> None:
    """What a write returns is what all have counted; generations that are over were read before."""
    repository, recording = await store.recorded()
    estimates, _ = await learned(repository, 100)
    store.clock.advance(130)
    await estimates.reserve(MODEL, CAP)
    await estimates.refresh()
    store.clock.advance(10)
    recording.forget()
    estimates.observe(MODEL, CAP, 300)
    await estimates.refresh()
    own = [call for call in recording.calls if "ESTIMATE" in repr(call)]
    if KIND.since(store.clock.now_ms) == KIND.since(store.clock.now_ms - 140_000):
        assert [(verb, len(given)) for verb, given in own] == [("write_each", 1)]
    recording.forget()
    await estimates.refresh()
    assert recording.calls == []


async def test_a_place_belongs_to_whom_it_was_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names whose hashes meet are not mixed: the later one is not learned until the next generation."""
    monkeypatch.setattr(records, "PLACES", 1)
    repository = await store.repository()
    since = KIND.since(store.clock.now_ms)
    assert (await add_calls(repository._scope, since, {KIND: {7: 1}}))[KIND].total == {7: 1}
    counted = await add_calls(repository._scope, since, {OTHER: {7: 1}, KIND: {8: 1}})
    assert (counted[OTHER], counted[KIND].total) == (records.Counted(None), {7: 1, 8: 1})
    assert await read_calls(repository._scope, [(OTHER, since), (KIND, since)]) == [{}, {7: 1, 8: 1}]
    assert (await add_calls(repository._scope, since + 900, {OTHER: {7: 1}}))[OTHER].total == {7: 1}


def test_names_are_hashed_to_few_places() -> None:
    """However many models somebody makes up, a namespace has so many rows at most."""
    keys = {CallKind(f"model-{number}", CAP, 900).row("ns", 0)[0].key for number in range(3_000)}
    places = [int(key.partition.removeprefix("ns/ESTIMATE#")) for key in keys]
    assert max(places) < PLACES
    assert len(keys) > 2_500, "and most of few names have one of their own"


def test_kinds_that_differ_have_digests_that_differ() -> None:
    """Of model, cap and generation, whatever a name looks like."""
    kinds = [
        CallKind(*of)
        for of in (("a", 16, 900), ("a", 32, 900), ("a", 16, 60), ("16#a", 16, 900), ("6#16#a", 1, 90))
    ]
    assert len({one.digest for one in kinds}) == len(kinds)


async def test_rows_go_by_themselves(store: Store) -> None:
    """Each has a ttl, one generation after it counts for the last time."""
    repository = await store.repository()
    await learned(repository, 1)
    (row,) = await rows(repository)
    since = KIND.since(store.clock.now_ms)
    assert row["ttl"] == since + (GENERATIONS + 1) * 900


async def test_what_somebody_else_wrote_into_a_row(store: Store) -> None:
    """Is passed over, or not added to, and raises nothing."""
    repository = await store.repository()
    await learned(repository, 100)
    row, _ = KIND.row(repository.namespace_id, KIND.since(store.clock.now_ms))
    odd = {"n1": "many", "n2": -5, "n3": 10**25, "n999": 7, "n01": 9, "n-1": 9, "nothing": 9}
    await repository.write_each([Update(row.key, set=odd)])
    assert (await learned(repository))[1] == COVERS
    assert (await add_calls(repository._scope, KIND.since(store.clock.now_ms), {KIND: {1: 1}}))[
        KIND
    ].total is None
    estimates, _ = await learned(repository)
    estimates.observe(MODEL, CAP, 1)
    await estimates.refresh()


async def test_a_namespace_that_was_deleted_is_not_written_to(store: Store) -> None:
    """A process that is still there does not bring its rows back."""
    repository = await store.repository("gone")
    estimates, _ = await learned(repository, 100)
    admin = await store.repository()
    await admin.delete_namespace("gone")
    await admin.purge_namespace(repository.namespace_id)
    store.clock.advance(61)  # until when what is remembered of a namespace counts on DynamoDB
    estimates.observe(MODEL, CAP, 300)
    with pytest.raises(NamespaceNotFoundError):
        await estimates.refresh()
    assert await rows(repository) == []


async def test_namespaces_learn_by_themselves(store: Store) -> None:
    """What one tenant's calls take is nothing to another."""
    mine, theirs = await store.repository("mine"), await store.repository("theirs")
    await learned(mine, 100)
    assert (await learned(theirs))[1] == CAP
