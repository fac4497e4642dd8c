"""A store that does not answer: who decides what happens, what is written, and how it ends.

A write whose reply was lost may have happened. It is never sent again, and nothing happens twice.
"""

# ruff: noqa: PT012 - blocks that fail under a lease are tested here, and hold more than one statement

import asyncio
import logging
import sqlite3
from collections.abc import Sequence

import pytest

from tests.flow.clients import RESOURCE, Client, Store, rpm
from tests.patience import PATIENCE_SECONDS
from zae_limiter import (
    LimiterConfig,
    OnUnavailable,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
)
from zae_limiter.records.connection import Options
from zae_limiter.repository_protocol import Backend, Item, Key
from zae_limiter.runtime.colour import Colour
from zae_limiter.runtime.loops import Asyncio
from zae_limiter.testing import Fault
from zae_limiter.testing.stores import Wrapper

AMBIGUOUS = [Fault.LOST_REQUEST, Fault.LOST_REPLY]


def fault_name(fault: Fault) -> str:
    return fault.value


async def is_admitted(client: Client, on_unavailable: str | None = None) -> bool:
    """Whether work goes ahead, degraded, while the store is down."""
    with client.down():
        try:
            async with client.limiter.acquire(
                "key", RESOURCE, {"rpm": 1}, on_unavailable=on_unavailable
            ) as lease:
                assert lease.degraded
        except RateLimiterUnavailable:
            return False
    return True


# Who decides.


@pytest.mark.parametrize("policy", list(OnUnavailable))
@pytest.mark.parametrize("level", ["system", "resource", "entity default", "entity"])
async def test_policy_of_a_level(store: Store, level: str, policy: OnUnavailable) -> None:
    """What any level of stored config says is known to a process that has used it, store up or down."""
    other = next(one for one in OnUnavailable if one is not policy)
    client = await store.client(Options(on_unavailable=other))
    repository = client.repository
    await repository.set_system_defaults([rpm(10)])
    where = {
        "system": ("system", None, None),
        "resource": ("resource", None, RESOURCE),
        "entity default": ("entity", "key", None),
        "entity": ("entity", "key", RESOURCE),
    }[level]
    config = LimiterConfig((rpm(10),) if level == "system" else (), policy)
    await repository.set_config(where[0], config, where[1], where[2])
    await client.take("key", {"rpm": 1})
    assert await is_admitted(client) is (policy is OnUnavailable.ALLOW)
    store.clock.advance(3600)
    assert await is_admitted(client) is (policy is OnUnavailable.ALLOW), "however long the store is down"


async def test_nearer_level_wins(store: Store) -> None:
    """The policy is taken from the first level that has one, apart from where the limits are found."""
    client = await store.client(Options(on_unavailable=OnUnavailable.ALLOW))
    repository = client.repository
    await repository.set_system_defaults([rpm(10)], "allow")
    await repository.set_config("resource", LimiterConfig(on_unavailable=OnUnavailable.BLOCK), RESOURCE)
    await repository.set_limits("key", [rpm(5)], RESOURCE)
    await client.take("key", {"rpm": 1})
    assert not await is_admitted(client)
    await repository.set_limits("key", [rpm(5)], RESOURCE, on_unavailable="allow")
    assert await is_admitted(client)


@pytest.mark.parametrize("policy", list(OnUnavailable))
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
async def test_policy_of_the_constructor(store: Store, policy: OnUnavailable, warm: bool) -> None:
    """Without a stored policy, what the repository was opened with counts; blocking is the default."""
    client = await store.client(Options(on_unavailable=policy))
    await client.repository.set_system_defaults([rpm(10)])
    if warm:
        await client.take("key", {"rpm": 1})
    assert await is_admitted(client) is (policy is OnUnavailable.ALLOW)
    plain = await store.client()
    assert not await is_admitted(plain)


@pytest.mark.parametrize("policy", list(OnUnavailable))
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
async def test_policy_of_the_call_wins(store: Store, policy: OnUnavailable, warm: bool) -> None:
    """What a call says overrides all levels and the constructor."""
    other = next(one for one in OnUnavailable if one is not policy)
    client = await store.client(Options(on_unavailable=other))
    await client.repository.set_system_defaults([rpm(10)], other)
    if warm:
        await client.take("key", {"rpm": 1})
    assert await is_admitted(client, policy.value) is (policy is OnUnavailable.ALLOW)


async def test_refusal_is_no_failure(store: Store) -> None:
    """The policy to allow does not admit what a store that answers refuses."""
    client = await store.client(Options(on_unavailable=OnUnavailable.ALLOW))
    with pytest.raises(RateLimitExceeded):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 11}, [rpm(10)], "allow"):
            pass


# How long it takes, and what is written.


@pytest.mark.parametrize("policy", list(OnUnavailable))
async def test_unreachable_store_is_asked_once(store: Store, policy: OnUnavailable) -> None:
    """A warm acquire that cannot reach the store does not keep the caller waiting with retries."""
    client = await store.client()
    await client.take("key", {"rpm": 1}, rpm(10))
    client.forget()
    with client.down():
        try:
            async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)], policy) as lease:
                await lease.adjust(rpm=5)
        except RateLimiterUnavailable:
            assert policy is OnUnavailable.BLOCK
    assert client.calls == [("write_each", 1)]
    assert await store.used("key") == 1


async def test_block_raises_within_the_deadline(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A SQLite file that another process has locked for good blocks an acquire only until its timeout."""
    path = tmp_path_factory.mktemp("locked") / "limits.db"
    async with RateLimiter.open(f"sqlite:///{path}?timeout_ms=200") as limiter:
        async with limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)]):
            pass
        holder = sqlite3.connect(path, isolation_level=None)
        try:
            holder.execute("BEGIN IMMEDIATE")
            with pytest.raises(RateLimiterUnavailable, match="busy for 200 ms") as caught:
                async with limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)]):
                    pass
            assert not caught.value.ambiguous
            async with limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)], "allow") as lease:
                assert lease.degraded
            holder.execute("ROLLBACK")
        finally:
            holder.close()
        async with limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)]) as lease:
            assert not lease.degraded
        assert await limiter.available("key", RESOURCE, [rpm(10)]) == {"rpm": 8}


async def test_degraded_admission_is_logged(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Work that goes ahead unchecked leaves a trace for whoever operates the service."""
    client = await store.client()
    with caplog.at_level(logging.WARNING, "zae_limiter"), client.down():
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)], "allow"):
            pass
    assert ["admitting key on api unchecked" in message for message in caplog.messages] == [True]


# Lost replies.


@pytest.mark.parametrize("fault", AMBIGUOUS, ids=fault_name)
@pytest.mark.parametrize("policy", list(OnUnavailable))
@pytest.mark.parametrize("warm", [False, True], ids=["first", "warm"])
async def test_lost_debit_counts_as_spent(
    store: Store, fault: Fault, policy: OnUnavailable, warm: bool
) -> None:
    """A debit that may have happened is sent once and neither repeated nor refunded, at its end as well."""
    client = await store.client()
    if warm:
        await client.take("key", {"rpm": 1}, rpm(10))
    before = await store.used("key")
    client.forget()
    client.faulty.faults = [*([] if warm else [None]), fault]
    acquisition = client.limiter.acquire("key", RESOURCE, {"rpm": 4}, [rpm(10)], policy)
    if policy is OnUnavailable.BLOCK:
        with pytest.raises(RateLimiterUnavailable) as caught:
            await acquisition.__aenter__()
        assert caught.value.ambiguous
    else:
        async with acquisition as lease:
            assert lease.degraded
    assert client.recording.writes == 1
    assert await store.used("key") - before == (4 if fault is Fault.LOST_REPLY else 0)
    assert client.limiter.refunds_lost == 1, "nobody knows, and that is counted"


@pytest.mark.parametrize("fault", AMBIGUOUS, ids=fault_name)
async def test_lost_consume_counts_as_spent(store: Store, fault: Fault) -> None:
    """A lost consume ends the work; what the lease surely holds is given back, the lost part is not."""
    client = await store.client()
    await client.take("key", {"rpm": 1}, rpm(10))
    client.forget()
    with pytest.raises(RateLimiterUnavailable):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 2}, [rpm(10)]) as lease:
            client.faulty.faults = [fault]
            await lease.consume(rpm=4)
    assert client.recording.writes == 3, "the acquire, the consume, the refund of the acquire"
    assert await store.used("key") == (5 if fault is Fault.LOST_REPLY else 1)
    assert client.limiter.refunds_lost == 1


@pytest.mark.parametrize("fault", list(Fault), ids=fault_name)
async def test_consume_goes_on_when_the_policy_is_to_allow(store: Store, fault: Fault) -> None:
    """What surely was not stored is settled later; what may have been is not stored twice."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 2}, [rpm(10)], "allow") as lease:
        client.faulty.faults = [fault]
        await lease.consume(rpm=4)
    assert await store.used("key") == (2 if fault is Fault.LOST_REQUEST else 6)


async def test_lost_consume_can_be_survived(store: Store) -> None:
    """Work that catches the failure goes on with what the lease holds."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 2}, [rpm(10)]) as lease:
        client.faulty.faults = [Fault.LOST_REPLY]
        with pytest.raises(RateLimiterUnavailable):
            await lease.consume(rpm=4)
        assert lease.consumed == {"rpm": 2}
    assert await store.used("key") == 6


@pytest.mark.parametrize("fault", AMBIGUOUS, ids=fault_name)
@pytest.mark.parametrize("change", [3, -1], ids=["debit", "credit"])
@pytest.mark.parametrize("policy", list(OnUnavailable))
async def test_lost_adjustment_is_not_repeated(
    store: Store, fault: Fault, change: int, policy: OnUnavailable, caplog: pytest.LogCaptureFixture
) -> None:
    """A settlement that may have happened is left alone, logged and counted; only blocking raises it."""
    client = await store.client()
    await client.take("key", {"rpm": 1}, rpm(10))
    client.forget()
    raised = False
    try:
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 2}, [rpm(10)], policy) as lease:
            await lease.adjust(rpm=change)
            client.faulty.faults = [fault]
    except RateLimiterUnavailable as error:
        raised = error.ambiguous
    assert raised is (policy is OnUnavailable.BLOCK)
    assert client.recording.writes == 2
    assert await store.used("key") == 3 + (change if fault is Fault.LOST_REPLY else 0)
    assert client.limiter.refunds_lost == 1
    assert sum("may not have got" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("fault", AMBIGUOUS, ids=fault_name)
async def test_lost_refund_is_not_repeated(
    store: Store, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """A refund that may have happened is left alone; the exception of the work is what the caller sees."""
    client = await store.client()
    await client.take("key", {"rpm": 1}, rpm(10))
    client.forget()
    with pytest.raises(KeyError):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 2}, [rpm(10)]):
            client.faulty.faults = [fault]
            raise KeyError
    assert client.recording.writes == 2
    assert await store.used("key") == (1 if fault is Fault.LOST_REPLY else 3)
    assert client.limiter.refunds_lost == 1
    assert "may not have got" in caplog.text


@pytest.mark.parametrize("fault", AMBIGUOUS, ids=fault_name)
async def test_lost_transaction_counts_as_spent(store: Store, fault: Fault) -> None:
    """A cascade that was sent as one transaction is never sent again either."""
    client = await store.client(speculative_writes=False)
    repository = client.repository
    await repository.set_system_defaults([rpm(10)])
    await repository.create_entity("parent")
    await repository.create_entity("key", parent_id="parent", cascade=True)
    await client.take("key", {"rpm": 1})
    client.forget()
    client.faulty.faults = [None, fault]
    with pytest.raises(RateLimiterUnavailable):
        await client.take("key", {"rpm": 4})
    assert client.calls == [("batch_get", 2), ("transact_write", 2)]
    expected = 5 if fault is Fault.LOST_REPLY else 1
    assert (await store.used("key"), await store.used("parent")) == (expected, expected)


async def test_client_goes_on_from_the_truth_after_a_lost_reply(store: Store) -> None:
    """What the process believes after a lost reply is corrected by its next write, at no token's cost."""
    client = await store.client()
    await client.take("key", {"rpm": 1}, rpm(10))
    client.faulty.faults = [Fault.LOST_REPLY]
    with pytest.raises(RateLimiterUnavailable):
        await client.take("key", {"rpm": 9}, rpm(10))
    await client.refused("key", {"rpm": 1}, rpm(10))
    store.clock.advance(6)
    await client.take("key", {"rpm": 1}, rpm(10))


# Refunds that could not be delivered.


@pytest.mark.parametrize("outage", [1, 3, 5])
async def test_unreachable_refund_is_tried_again(store: Store, outage: int) -> None:
    """A refund that surely did not arrive is sent again until it does."""
    client = await store.client()
    await client.take("key", {"rpm": 1}, rpm(10))
    with pytest.raises(KeyError):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 2}, [rpm(10)]):
            client.forget()
            client.faulty.faults = [Fault.UNREACHABLE] * outage
            raise KeyError
    assert client.recording.writes == outage + 1
    assert await store.used("key") == 1
    assert client.limiter.refunds_lost == 0


@pytest.mark.parametrize("change", [3, -1], ids=["debit", "credit"])
async def test_unreachable_adjustment_is_tried_again(store: Store, change: int) -> None:
    """So is a settlement."""
    client = await store.client()
    await client.take("key", {"rpm": 1}, rpm(10))
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 2}, [rpm(10)]) as lease:
        await lease.adjust(rpm=change)
        client.faulty.faults = [Fault.UNREACHABLE] * 3
    assert await store.used("key") == 3 + change
    assert client.limiter.refunds_lost == 0


async def test_refund_that_never_arrives_is_counted(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """After a bounded number of attempts a refund is given up, logged and counted; the error goes on."""
    client = await store.client()
    await client.take("key", {"rpm": 1}, rpm(10))
    for times in (1, 2):
        client.forget()
        with pytest.raises(KeyError):
            async with client.limiter.acquire("key", RESOURCE, {"rpm": 2}, [rpm(10)]):
                client.faulty.always = Fault.UNREACHABLE
                raise KeyError
        client.faulty.always = None
        assert client.limiter.refunds_lost == times
        assert 3 <= client.recording.writes <= 100
    assert sum("may not have got" in message for message in caplog.messages) == 2
    assert await store.used("key") == 5
    store.clock.advance(60)
    assert await store.left("key") == 10, "what was lost refills"


async def test_refund_of_a_cascade_reaches_whom_it_can(store: Store) -> None:
    """The two refunds of a cascade do not wait for each other's luck."""
    client = await store.client()
    await client.repository.set_system_defaults([rpm(10)])
    await client.repository.create_entity("parent")
    await client.repository.create_entity("key", parent_id="parent", cascade=True)
    with pytest.raises(KeyError):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 2}):
            client.faulty.always = Fault.UNREACHABLE
            raise KeyError
    assert client.limiter.refunds_lost == 2


# Living through an outage.


async def test_last_known_config_serves_while_reads_fail(store: Store) -> None:
    """An expired cache is better than nothing: limits and policy stay known while they cannot be read."""
    client = await store.client()
    await client.repository.set_resource_defaults(RESOURCE, [rpm(10)], on_unavailable="allow")
    await client.take("key", {"rpm": 1})
    store.clock.advance(400)
    with client.down():
        limits, policy, _ = await client.repository.resolve_limits("key", RESOURCE)
        assert (limits, policy) == ([rpm(10)], OnUnavailable.ALLOW)
    client.forget()
    client.faulty.faults = [Fault.UNREACHABLE]
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 10}) as lease:
        assert not lease.degraded, "only the read failed; the write is checked by the store"
    assert [verb for verb, _ in client.calls] == ["batch_get", "write_each"]
    await client.refused("key", {"rpm": 1})


async def test_unknown_config_is_no_guess(store: Store) -> None:
    """A process that has never read the config cannot work from it."""
    await (await store.client()).repository.set_resource_defaults(RESOURCE, [rpm(10)])
    cold = await store.client()
    with cold.down(), pytest.raises(RateLimiterUnavailable):
        await cold.repository.resolve_limits("key", RESOURCE)


async def test_recovery_needs_no_help(store: Store) -> None:
    """The first acquire after an outage is an ordinary one, and the outage has cost nothing."""
    client = await store.client()
    await client.take("key", {"rpm": 1}, rpm(10))
    with client.down():
        for _ in range(5):
            async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)], "allow") as lease:
                assert lease.degraded
    client.forget()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 9}, [rpm(10)]) as lease:
        assert not lease.degraded
    assert client.calls == [("write_each", 1)]
    await client.refused("key", {"rpm": 1}, rpm(10))


async def test_outage_between_acquire_and_end(store: Store) -> None:
    """A lease without adjustments has nothing to store, so its end needs no store."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)]):
        client.faulty.always = Fault.UNREACHABLE
    client.faulty.always = None
    assert await store.used("key") == 1


@pytest.mark.parametrize("question", ["available", "time_until_available", "check_availability"])
async def test_questions_say_that_they_cannot_be_answered(store: Store, question: str) -> None:
    """A question has no policy: it raises."""
    client = await store.client(Options(on_unavailable=OnUnavailable.ALLOW))
    given = [{"rpm": 1}] if question == "time_until_available" else []
    with client.down(), pytest.raises(RateLimiterUnavailable):
        await getattr(client.limiter, question)("key", RESOURCE, *given, limits=[rpm(10)])


# Is it there?


class Hanging(Wrapper):
    """A store that has stopped answering without saying so."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.hangs = False

    @property
    def colour(self) -> Colour:
        return Asyncio()

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        return await super().batch_get(keys)


class Broken(Wrapper):
    """A store with a bug."""

    broken = False

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        if self.broken:
            raise ZeroDivisionError
        return await super().batch_get(keys)


@pytest.mark.parametrize("fault", list(Fault), ids=fault_name)
async def test_is_available_never_raises(store: Store, fault: Fault) -> None:
    """It is true for a store that answers and false for one that does not, whatever the reason."""
    client = await store.client()
    assert await client.limiter.is_available() is True
    with client.down(fault):
        assert await client.limiter.is_available() is False
    assert await client.limiter.is_available() is True


async def test_is_available_with_a_broken_store(store: Store) -> None:
    """Even an error nobody planned for is an answer."""
    wrapped: list[Broken] = []

    def wrap(backend: Backend) -> Backend:
        wrapped.append(Broken(backend))
        return wrapped[0]

    client = await store.client(wrap=wrap)
    wrapped[0].broken = True
    assert await client.limiter.is_available() is False


async def test_is_available_honours_its_timeout(store: Store) -> None:
    """A store that hangs is not available, and that is known when the timeout has passed."""
    wrapped: list[Hanging] = []

    def wrap(backend: Backend) -> Backend:
        wrapped.append(Hanging(backend))
        return wrapped[0]

    client = await store.client(wrap=wrap)
    assert await client.limiter.is_available(timeout=PATIENCE_SECONDS) is True
    wrapped[0].hangs = True
    assert await client.limiter.is_available(timeout=0.05) is False
