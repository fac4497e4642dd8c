"""A lease: what it counts, what it takes and gives back, and when it is over."""

# Blocks that fail under a lease are what is tested here, and they hold more than one statement.
# ruff: noqa: PT012

import asyncio

import pytest

from tests.flow.clients import RESOURCE, Client, Store, rpm, tpm
from zae_limiter import LeaseExpiredError, Limit, OnUnavailable, RateLimitExceeded, ValidationError
from zae_limiter.testing import Fault

ODD_NAMES = [Limit.per_minute("in-tokens", 100), Limit.per_minute("out.tokens", 100), rpm(100)]


async def test_consumed_tells_what_was_taken(store: Store) -> None:
    """A lease begins with the amounts of its acquire, limit by limit."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 1, "tpm": 50}, [rpm(10), tpm(100)]) as lease:
        assert lease.consumed == {"rpm": 1, "tpm": 50}
        assert not lease.degraded
        assert await store.used("key", "tpm") == 50
    assert lease.consumed == {"rpm": 1, "tpm": 50}
    assert (await store.left("key"), await store.left("key", "tpm")) == (9, 50)


async def test_consumed_is_a_copy(store: Store) -> None:
    """Changing what ``consumed`` returned changes nothing."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 2}, [rpm(10)]) as lease:
        lease.consumed["rpm"] = 9
        assert lease.consumed == {"rpm": 2}


async def test_consume_takes_at_once(store: Store) -> None:
    """A consume is a debit of its own: others see it before the lease ends."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10), tpm(100)]) as lease:
        await lease.consume(rpm=2, tpm=30)
        assert lease.consumed == {"rpm": 3, "tpm": 30}
        assert (await store.left("key"), await store.left("key", "tpm")) == (7, 70)
    assert (await store.used("key"), await store.used("key", "tpm")) == (3, 30)


async def test_refused_consume_takes_nothing(store: Store) -> None:
    """A consume that one limit cannot cover takes from none, and the lease goes on."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(60), tpm(100)]) as lease:
        with pytest.raises(RateLimitExceeded) as caught:
            await lease.consume(rpm=60, tpm=30)
        assert [s.limit_name for s in caught.value.violations] == ["rpm"]
        assert caught.value.retry_after_seconds == 1
        assert lease.consumed == {"rpm": 1}
        assert (await store.left("key"), await store.left("key", "tpm")) == (59, 100)
        await lease.consume(rpm=59)
    assert (await store.left("key"), await store.used("key")) == (0, 60)


async def test_adjust_into_debt_recovers_with_time(store: Store) -> None:
    """An adjustment is never refused; the debt keeps others out until it has refilled, to the millisecond."""
    client = await store.client()
    limit = rpm(60)
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 10}, [limit]) as lease:
        await lease.adjust(rpm=80)
        assert lease.consumed == {"rpm": 90}
        assert await store.left("key") == 50, "an adjustment is stored when the lease ends"
    assert (await store.left("key"), await store.used("key")) == (-30, 90)
    assert (await client.refused("key", {"rpm": 1}, limit)).retry_after_seconds == 31
    store.clock.advance(30.999)
    assert (await client.refused("key", {"rpm": 1}, limit)).retry_after_seconds == 0.001
    store.clock.advance(0.001)
    await client.take("key", {"rpm": 1}, limit)
    assert await store.left("key") == 0


async def test_adjust_down_gives_back(store: Store) -> None:
    """Work that cost less than expected returns the rest."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 8}, [rpm(10)]) as lease:
        await lease.adjust(rpm=-5)
        assert lease.consumed == {"rpm": 3}
    assert (await store.left("key"), await store.used("key")) == (7, 3)


async def test_adjustments_of_several_limits_go_different_ways(store: Store) -> None:
    """One limit may be corrected upward while another is corrected downward, and one not acquired joins."""
    client = await store.client()
    limits = [rpm(10), tpm(100), Limit.per_minute("cost", 1000)]
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 4, "tpm": 50}, limits) as lease:
        await lease.adjust(rpm=-1, tpm=25, cost=7)
        await lease.adjust(rpm=-1, tpm=25)
        assert lease.consumed == {"rpm": 2, "tpm": 100, "cost": 7}
    assert [await store.used("key", limit.name) for limit in limits] == [2, 100, 7]


async def test_adjustment_is_not_lost_in_what_overflows(store: Store) -> None:
    """A debit after the bucket has filled up again counts from full, not from what overflowed."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)]) as lease:
        store.clock.advance(120)
        await lease.adjust(rpm=4)
    assert await store.left("key") == 6


async def test_release_gives_back(store: Store) -> None:
    """A release is an adjustment downward, named by what it returns."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 8, "tpm": 9}, [rpm(10), tpm(10)]) as lease:
        await lease.release({"rpm": 3}, tpm=9)
        assert lease.consumed == {"rpm": 5, "tpm": 0}
    assert (await store.used("key"), await store.used("key", "tpm")) == (5, 0)


@pytest.mark.parametrize("amount", [-1, 1.5, True, "1"])
async def test_release_wants_an_amount(store: Store, amount: object) -> None:
    """Giving back less than nothing is refused as bad input."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 2}, [rpm(10)]) as lease:
        with pytest.raises(ValidationError, match="rpm"):
            await lease.release({"rpm": amount})  # type: ignore[dict-item]
        assert lease.consumed == {"rpm": 2}


class Failed(Exception):
    """The work went wrong."""


ENDINGS = [Failed, KeyboardInterrupt, SystemExit, asyncio.CancelledError, ExceptionGroup, StopAsyncIteration]


@pytest.mark.parametrize("kind", ENDINGS, ids=lambda kind: kind.__name__)
async def test_any_exception_gives_everything_back(store: Store, kind: type[BaseException]) -> None:
    """Work that ends with an exception, whichever, has cost nothing, and the exception goes on."""
    client = await store.client()
    error = kind("works", [Failed()]) if kind is ExceptionGroup else kind()  # type: ignore[call-arg]
    seen: BaseException | None = None
    try:
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 3}, [rpm(10), tpm(10)]) as lease:
            await lease.consume(rpm=2, tpm=4)
            await lease.adjust(rpm=50)
            raise error
    except BaseException as caught:
        seen = caught
    assert seen is error
    assert (await store.left("key"), await store.used("key")) == (10, 0)
    assert (await store.left("key", "tpm"), await store.used("key", "tpm")) == (10, 0)
    assert client.limiter.refunds_lost == 0


async def test_refund_leaves_a_full_bucket_full(store: Store) -> None:
    """A refund to a bucket that filled up meanwhile does not make it more than full."""
    client = await store.client()
    with pytest.raises(Failed):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 8}, [rpm(10)]):
            store.clock.advance(120)
            raise Failed
    assert await store.left("key") == 10
    await client.take("key", {"rpm": 10}, rpm(10))
    await client.refused("key", {"rpm": 1}, rpm(10))


async def test_generator_that_is_thrown_away_keeps_what_it_took(store: Store) -> None:
    """Whoever stops reading a stream has used it: nothing is awaited, the debit stays, the lease is over."""
    client = await store.client()

    async def stream():  # type: ignore[no-untyped-def]
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 3}, [rpm(10)]) as lease:
            yield lease

    reader = stream()
    lease = await anext(reader)
    client.forget()
    await reader.aclose()
    assert client.calls == []
    assert (await store.left("key"), await store.used("key")) == (7, 3)
    with pytest.raises(LeaseExpiredError):
        await lease.adjust(rpm=1)


@pytest.mark.parametrize("method", ["consume", "adjust", "release"])
@pytest.mark.parametrize("ending", ["well", "badly"])
@pytest.mark.parametrize("degraded", [False, True], ids=["stored", "degraded"])
async def test_lease_is_over_after_its_block(store: Store, method: str, ending: str, degraded: bool) -> None:
    """A lease that was left cannot be used any more, however it ended, and says whose it was."""
    client = await store.client()
    if degraded:
        client.faulty.always = Fault.UNREACHABLE
    try:
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 3}, [rpm(10)], "allow") as lease:
            assert lease.degraded is degraded
            if ending == "badly":
                raise Failed
    except Failed:
        pass
    client.faulty.always = None
    client.forget()
    before = await store.used("key")
    with pytest.raises(LeaseExpiredError) as caught:
        await getattr(lease, method)(rpm=1)
    assert (caught.value.entity_id, caught.value.resource) == ("key", RESOURCE)
    assert client.calls == []
    assert await store.used("key") == before
    assert lease.consumed == {"rpm": 3}


@pytest.mark.parametrize("method", ["consume", "adjust", "release"])
async def test_names_that_are_no_identifiers(store: Store, method: str) -> None:
    """Limits with '-' and '.' are named in a mapping, others by keyword, both at once if need be."""
    client = await store.client()
    taken = {"in-tokens": 10, "out.tokens": 20, "rpm": 30}
    async with client.limiter.acquire("key", RESOURCE, taken, ODD_NAMES) as lease:
        await getattr(lease, method)({"in-tokens": 1, "out.tokens": 2}, rpm=3)
        sign = -1 if method == "release" else 1
        expected = {"in-tokens": 10 + sign, "out.tokens": 20 + 2 * sign, "rpm": 30 + 3 * sign}
        assert lease.consumed == expected
    assert {limit.name: await store.used("key", limit.name) for limit in ODD_NAMES} == expected


@pytest.mark.parametrize("method", ["consume", "adjust", "release"])
async def test_one_name_twice(store: Store, method: str) -> None:
    """A limit named both in the mapping and by keyword is bad input, not a sum."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 3}, [rpm(10)]) as lease:
        with pytest.raises(ValidationError, match="rpm given twice"):
            await getattr(lease, method)({"rpm": 1}, rpm=1)
        assert lease.consumed == {"rpm": 3}


@pytest.mark.parametrize("method", ["consume", "adjust", "release"])
async def test_unknown_limit(store: Store, method: str) -> None:
    """A limit that the entity does not have is bad input that names those it has; nothing is taken."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 3}, [rpm(10), tpm(10)]) as lease:
        with pytest.raises(ValidationError, match=r"'cost'.*rpm, tpm"):
            await getattr(lease, method)(cost=1, rpm=1)
        assert lease.consumed == {"rpm": 3}
        assert await store.used("key") == 3


@pytest.mark.parametrize("amount", [-1, 10**12 + 1, 1.5, True, "1", None])
async def test_consume_wants_an_amount(store: Store, amount: object) -> None:
    """What cannot be taken is bad input and never reaches the store."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 3}, [rpm(10)]) as lease:
        client.forget()
        with pytest.raises(ValidationError, match="rpm"):
            await lease.consume({"rpm": amount})  # type: ignore[dict-item]
        assert client.calls == []


async def test_consume_of_nothing(store: Store) -> None:
    """Nothing is no demand: it is not asked for, even of a limit that is in debt."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 3}, [rpm(10), tpm(10)]) as lease:
        await lease.adjust(tpm=50)
    client.forget()
    async with client.limiter.acquire("key", RESOURCE, {"tpm": 0}, [rpm(10), tpm(10)]) as lease:
        await lease.consume()
        await lease.consume(rpm=0)
        await lease.adjust()
        assert client.calls == []
        assert lease.consumed == {}
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 1, "tpm": 0}, [rpm(10), tpm(10)]) as lease:
        await lease.adjust(tpm=7)
    assert await store.used("key") == 4
    assert await store.used("key", "tpm") == 57
    async with client.limiter.acquire("key", RESOURCE, {}, [rpm(10), tpm(10)]) as lease:
        await lease.adjust(tpm=1)
    assert await store.used("key", "tpm") == 58


@pytest.mark.parametrize(
    ("method", "amounts"),
    [
        ("adjust", {"rpm": -4}),
        ("adjust", {"tpm": -1}),
        ("adjust", {"rpm": 1, "tpm": -1}),
        ("release", {"rpm": 4}),
        ("release", {"tpm": 1}),
    ],
)
async def test_cost_below_zero(
    store: Store, method: str, amounts: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever gives back more than a lease holds gives back what it holds, and is told so."""
    client = await store.client()
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 3}, [rpm(10), tpm(10)]) as lease:
        await getattr(lease, method)(amounts)
        assert all(amount >= 0 for amount in lease.consumed.values())
        assert "it holds no more" in caplog.text
        await lease.adjust(rpm=-lease.consumed["rpm"])
        await lease.release(rpm=1)
        assert lease.consumed["rpm"] == 0
    assert (await store.left("key"), await store.used("key")) == (10, 0)


async def test_degraded_lease_refuses_and_writes_nothing(store: Store) -> None:
    """With the store down and the policy to allow, work goes on, counted by the lease alone."""
    client = await store.client()
    await client.take("key", {"rpm": 1}, rpm(10))
    client.faulty.always = Fault.UNREACHABLE
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 4}, [rpm(10)], OnUnavailable.ALLOW) as lease:
        client.faulty.always = None
        client.forget()
        assert lease.degraded
        await lease.consume(rpm=1000)
        await lease.adjust({"out.tokens": 5})
        await lease.release(rpm=2)
        assert lease.consumed == {"rpm": 1002, "out.tokens": 5}
        with pytest.raises(ValidationError):
            await lease.consume(rpm=-1)
        with pytest.raises(ValidationError):
            await lease.adjust(rpm=1.5)  # type: ignore[arg-type]
    assert client.calls == []
    assert await store.used("key") == 1


async def test_degraded_lease_ends_with_the_exception_of_its_work(store: Store) -> None:
    """Nothing was taken, so nothing is given back."""
    client = await store.client()
    client.faulty.always = Fault.UNREACHABLE
    with pytest.raises(Failed):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 4}, [rpm(10)], "allow"):
            client.faulty.always = None
            client.forget()
            raise Failed
    assert client.calls == []


async def test_leases_on_one_bucket_do_not_mix(store: Store) -> None:
    """Each of many leases at once settles its own account: some adjust, some fail, some consume more."""
    client = await store.client()
    limit = rpm(1000)
    inside = asyncio.Barrier(30)

    async def work(number: int) -> None:
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 10}, [limit]) as lease:
            await inside.wait()
            if number % 3 == 0:
                await lease.adjust(rpm=number)
            elif number % 3 == 1:
                await lease.consume(rpm=5)
            else:
                raise Failed
            assert lease.consumed["rpm"] == 10 + (number if number % 3 == 0 else 5)

    results = await asyncio.gather(*(work(n) for n in range(30)), return_exceptions=True)
    assert sum(isinstance(result, Failed) for result in results) == 10
    assert sum(result is None for result in results) == 20
    spent = sum(10 + n for n in range(0, 30, 3)) + 10 * 15
    assert (await store.used("key"), await store.left("key")) == (spent, 1000 - spent)


async def test_many_tasks_admit_exactly_the_capacity(store: Store) -> None:
    """Forty tasks of two processes ask for one of twenty-five tokens: twenty-five get one."""
    clients = [await store.client(), await store.client()]

    async def attempt(client: Client) -> bool:
        try:
            await client.take("key", {"rpm": 1}, rpm(25))
        except RateLimitExceeded:
            return False
        return True

    admitted = await asyncio.gather(*(attempt(clients[n % 2]) for n in range(40)))
    assert sum(admitted) == 25
    assert (await store.left("key"), await store.used("key")) == (0, 25)


async def test_consume_that_outlives_a_failed_lease_is_given_back(store: Store) -> None:
    """A consume still under way when the work fails ends in an expired lease and costs nothing."""
    client = await store.client()
    late: asyncio.Task[None] | None = None
    with pytest.raises(Failed):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)]) as lease:
            gate = asyncio.Event()

            async def later() -> None:
                await gate.wait()
                await lease.consume(rpm=4)

            late = asyncio.create_task(later())
            raise Failed
    gate.set()
    with pytest.raises(LeaseExpiredError):
        await late
    assert await store.used("key") == 0
