"""Operators' verbs on every store: what they give, to whom, how often, and what they leave behind."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tests.flow.clients import RESOURCE, Client, Store, rpm, tpm
from tests.flow.waiting_room import Room
from tests.odd_stores import Slow, Yielding
from zae_limiter import (
    AuditAction,
    BucketChange,
    EntityNotFoundError,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    SyncRateLimiter,
    ValidationError,
)
from zae_limiter.records import once
from zae_limiter.repository_protocol import Outcome, Update, Write
from zae_limiter.schema import sk_state
from zae_limiter.testing import Fault

SLOW = rpm(10, 1, 3600)
"""Ten, and another one an hour: nothing to speak of comes back by itself."""


async def customer(store: Store, *, used: int = 10, over: int = 0) -> Client:
    """A process whose customer has used some of its limit, and more than it had."""
    client = await store.client()
    await client.repository.set_resource_defaults(RESOURCE, [SLOW, tpm(1_000)])
    async with client.limiter.acquire("key", RESOURCE, {"rpm": used, "tpm": 500}) as lease:
        await lease.adjust(rpm=over)
    return client


async def actions(client: Client, entity_id: str = "key") -> list[Any]:
    events = await client.repository.get_audit_events(entity_id)
    return [event.action for event in events][::-1]


# What they give.


async def test_a_topped_up_customer_is_served_at_once(store: Store) -> None:
    """By the process that did it, though it refused a moment ago; what was consumed stays consumed."""
    client = await customer(store)
    await client.refused("key", {"rpm": 1})
    done = await client.limiter.top_up("key", RESOURCE, {"rpm": 3}, principal="ann")
    assert done == BucketChange("key", RESOURCE, done.key, True, {"rpm": 0}, {"rpm": 3}, {"rpm": 3})
    await client.take("key", {"rpm": 2})
    assert (await store.left("key"), await store.used("key")) == (1, 12)
    (event, *_) = await client.repository.get_audit_events("key")
    assert (event.action, event.principal, event.resource) == ("bucket_topped_up", "ann", RESOURCE)
    told = {"key": done.key, "amounts": {"rpm": 3}, "before": {"rpm": 0}, "after": {"rpm": 3}, "shards": 1}
    assert event.details == told


async def test_a_bucket_never_holds_more_than_its_capacity(store: Store) -> None:
    """What flows over is told, and is gone."""
    client = await customer(store, used=4)
    done = await client.limiter.top_up("key", RESOURCE, {"rpm": 500, "tpm": 1})
    assert (done.before, done.after) == ({"rpm": 6, "tpm": 500}, {"rpm": 10, "tpm": 501})
    assert (done.given, done.over) == ({"rpm": 4, "tpm": 1}, {"rpm": 496})
    assert await client.limiter.available("key", RESOURCE) == {"rpm": 10, "tpm": 501}


@pytest.mark.parametrize("limits", [None, ["rpm"], ["tpm"], ["tpm", "rpm"]])
async def test_reset_fills_what_is_named(store: Store, limits: list[str] | None) -> None:
    client = await customer(store, over=5)
    done = await client.limiter.reset("key", RESOURCE, limits)
    named = {"rpm": 15, "tpm": 500}
    assert done.given == {name: n for name, n in named.items() if limits is None or name in limits}
    left = await client.limiter.available("key", RESOURCE)
    assert left == {
        "rpm": 10 if limits is None or "rpm" in limits else -5,
        "tpm": 1_000 if limits is None or "tpm" in limits else 500,
    }
    assert await actions(client) == [AuditAction.BUCKET_RESET]
    assert await store.used("key") == 15


async def test_forgive_is_for_debt_only(store: Store) -> None:
    """What is below zero becomes zero, and what is not stays; with nothing to forgive there is no event."""
    client = await customer(store, over=7)
    done = await client.limiter.forgive("key", RESOURCE)
    assert (done.before, done.given) == ({"rpm": -7, "tpm": 500}, {"rpm": 7, "tpm": 0})
    assert await client.limiter.available("key", RESOURCE) == {"rpm": 0, "tpm": 500}
    assert (await client.limiter.forgive("key", RESOURCE)).given == {"rpm": 0, "tpm": 0}
    assert await actions(client) == [AuditAction.BUCKET_FORGIVEN]


async def test_a_bucket_that_was_never_used_is_full(store: Store) -> None:
    """So is one whose entity was deleted: the answer says so, and nothing is made."""
    client = await customer(store)
    await client.repository.delete_entity("key")
    for entity_id in ("nobody", "key"):
        done = await client.limiter.top_up(entity_id, RESOURCE, {"rpm": 3})
        assert (done.used, done.given, done.over, done.after) == (False, {"rpm": 0}, {"rpm": 3}, {"rpm": 10})
        assert not (await client.limiter.reset(entity_id, RESOURCE)).used
        assert not (await client.limiter.forgive(entity_id, RESOURCE, ["tpm"])).used
        assert await store.bucket(entity_id) is None
    unknown = await client.limiter.top_up("nobody", "elsewhere", {"any": 3})
    assert (unknown.used, unknown.given, unknown.over) == (False, {}, {"any": 3})
    assert await actions(client, "nobody") == []


async def test_limits_that_callers_bring_along(store: Store) -> None:
    """A bucket is topped up by the numbers that it has, whatever else is stored for others."""
    client = await store.client()
    for _ in range(2):
        await client.take("guest", {"rpm": 40}, rpm(100, 1, 3600))
        done = await client.limiter.top_up("guest", RESOURCE, {"rpm": 30})
        assert done.given == {"rpm": 30}
        await client.repository.set_resource_defaults(RESOURCE, [rpm(7)])
    assert await store.left("guest") == 80


async def test_what_is_given_after_a_cut_is_kept(store: Store) -> None:
    """Limits that were changed bind before anything is given, or the change would take it again."""
    client = await customer(store, used=4)
    await client.repository.set_limits("key", [rpm(3, 1, 3600), Limit.custom("new", 9, 1, 60)], RESOURCE)
    done = await client.limiter.top_up("key", RESOURCE, {"rpm": 2, "new": 1})
    assert (done.before, done.given, done.over) == ({"rpm": 0, "new": 9}, {"rpm": 2, "new": 0}, {"new": 1})
    assert await client.limiter.available("key", RESOURCE) == {"rpm": 2, "new": 9}


async def test_a_quota_is_topped_up_until_its_period_ends(store: Store) -> None:
    """What is given is on top of this period only: the next one begins full."""
    client = await store.client()
    await client.repository.set_resource_defaults(RESOURCE, [Limit.per_month("rpm", 100, tz="Europe/Berlin")])
    await client.take("key", {"rpm": 100})
    assert (await client.limiter.top_up("key", RESOURCE, {"rpm": 30})).after == {"rpm": 30}
    await client.take("key", {"rpm": 30})
    await client.refused("key", {"rpm": 1})
    store.clock.advance(32 * 86_400)
    assert await client.limiter.available("key", RESOURCE) == {"rpm": 100}


async def test_seats_come_back_by_themselves(store: Store) -> None:
    """Nobody gives seats of those who are at work; beside them, other limits are filled."""
    client = await store.client()
    seats = Limit.concurrent("parallel", 2)
    await client.repository.set_resource_defaults(RESOURCE, [SLOW, seats])
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 10, "parallel": 1}):
        for ask in (
            client.limiter.top_up("key", RESOURCE, {"rpm": 1, "parallel": 1}),
            client.limiter.reset("key", RESOURCE, ["parallel"]),
            client.limiter.forgive("nobody", RESOURCE, ["parallel"]),
        ):
            with pytest.raises(ValidationError, match="invalid limit 'parallel': it counts who is at work"):
                await ask
        done = await client.limiter.reset("key", RESOURCE)
        assert (done.given, done.after) == ({"rpm": 10}, {"rpm": 10})
        assert await client.limiter.available("key", RESOURCE) == {"rpm": 10, "parallel": 1}
    await client.repository.set_resource_defaults("other", [seats])
    async with client.limiter.acquire("key", "other", {"parallel": 1}):
        with pytest.raises(ValidationError, match="seat comes back when its lease ends"):
            await client.limiter.reset("key", "other")


async def test_the_parent_pays_for_itself(store: Store) -> None:
    """A verb is about one bucket; who cascades needs room in its parent's too."""
    client = await store.client()
    await client.repository.set_resource_defaults(RESOURCE, [SLOW])
    await client.repository.create_entity("team")
    await client.repository.create_entity("key", parent_id="team", cascade=True)
    await client.take("key", {"rpm": 10})
    await client.limiter.reset("key", RESOURCE)
    await client.refused("key", {"rpm": 1})
    await client.limiter.top_up("team", RESOURCE, {"rpm": 1})
    await client.take("key", {"rpm": 1})
    assert (await store.left("key"), await store.left("team")) == (9, 0)


# How often.


Verb = Callable[[RateLimiter, str, str], Awaitable[Any]]
VERBS: dict[str, Verb] = {
    "top_up": lambda limiter, who, key: limiter.top_up(who, RESOURCE, {"rpm": 3}, key),
    "reset": lambda limiter, who, key: limiter.reset(who, RESOURCE, ["rpm"], key),
    "forgive": lambda limiter, who, key: limiter.forgive(who, RESOURCE, key=key),
    "set_parent": lambda limiter, who, key: limiter.set_parent(who, "team", True, key),
}
LEFT = {"top_up": -1, "reset": 10, "forgive": 0, "set_parent": -4}
ACTIONS = {
    "top_up": AuditAction.BUCKET_TOPPED_UP,
    "reset": AuditAction.BUCKET_RESET,
    "forgive": AuditAction.BUCKET_FORGIVEN,
    "set_parent": AuditAction.ENTITY_PARENT_CHANGED,
}
every_verb = pytest.mark.parametrize("verb", VERBS)


async def family(store: Store, *others: str) -> Client:
    """Entities in debt, and somebody who may become their parent."""
    client = await customer(store, over=4)
    await client.repository.create_entity("team")
    for entity_id in ("key", *others):
        await client.repository.create_entity(entity_id)
    for entity_id in others:
        async with client.limiter.acquire(entity_id, RESOURCE, {"rpm": 10}) as lease:
            await lease.adjust(rpm=4)
    return client


async def check_once(store: Store, client: Client, verb: str, entity_id: str = "key") -> None:
    """It happened, once, and one event says so."""
    assert await store.left(entity_id) == LEFT[verb]
    happened = Counter(await actions(client, entity_id))  # at one instant, so in any order
    assert happened == {AuditAction.ENTITY_CREATED: 1, ACTIONS[verb]: 1}
    stored = await client.repository.get_entity(entity_id)
    assert stored is not None
    assert stored.version == (2 if verb == "set_parent" else 1)


@every_verb
async def test_one_key_counts_once(store: Store, verb: str) -> None:
    """Sent again, from here or elsewhere, it is answered as before."""
    one, other = await family(store), await store.client()
    answer = await VERBS[verb](one.limiter, "key", "k-1")
    assert await VERBS[verb](one.limiter, "key", "k-1") == answer
    assert await VERBS[verb](other.limiter, "key", "k-1") == answer
    await check_once(store, one, verb)


@every_verb
async def test_one_key_counts_once_at_the_same_time(store: Store, verb: str) -> None:
    one, other = await family(store), await store.client(wrap=Yielding)
    asked = [VERBS[verb](client.limiter, "key", "k-1") for client in (one, other) * 4]
    first, *others = await asyncio.gather(*asked)
    assert others == [first] * 7
    await check_once(store, one, verb)


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
@every_verb
async def test_a_lost_reply_at_any_call_counts_once(store: Store, verb: str, fault: Fault) -> None:
    """What was sent is answered for; whoever could not even look is told that nothing happened."""
    everybody = [f"key-{at}" for at in range(8)]
    client = await family(store, *everybody)
    answered = 0
    for at, entity_id in enumerate(everybody):
        client.faulty.faults = [None] * at + [fault]
        told: list[RateLimiterUnavailable] = []
        try:
            answer = await VERBS[verb](client.limiter, entity_id, entity_id)
        except RateLimiterUnavailable as error:
            told.append(error)
        client.faulty.faults = []
        again = await VERBS[verb](client.limiter, entity_id, entity_id)
        assert [error.ambiguous for error in told] == [False] if told else again == answer
        answered += not told
        await check_once(store, client, verb, entity_id)
    assert answered >= 4


async def test_without_a_key_a_lost_reply_counts_once_too(store: Store) -> None:
    client = await customer(store)
    client.faulty.faults = [None, Fault.LOST_REPLY]  # it looks, then writes
    done = await client.limiter.top_up("key", RESOURCE, {"rpm": 3})
    assert done.given == {"rpm": 3}
    assert await store.left("key") == 3
    assert client.faulty.faults == []


async def test_who_never_hears_is_told_the_key(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some time it gives up, and says how to learn what became of it."""
    monkeypatch.setattr(once, "ATTEMPTS_MAX", 3)
    client = await customer(store)
    client.faulty.faults = [None, Fault.LOST_REPLY]
    client.faulty.always = Fault.UNREACHABLE
    with pytest.raises(RateLimiterUnavailable, match="send it again with key='") as caught:
        await client.limiter.top_up("key", RESOURCE, {"rpm": 3})
    assert caught.value.ambiguous
    key = str(caught.value).rpartition("key=")[2].strip("'")
    client.faulty.always = None
    done = await client.limiter.top_up("key", RESOURCE, {"rpm": 3}, key)
    assert (done.key, done.given) == (key, {"rpm": 3})
    assert await store.left("key") == 3


async def test_a_key_belongs_to_what_it_was_used_for(store: Store) -> None:
    """With other arguments it is an error that says what it was, and nothing happens."""
    client = await family(store)
    await client.limiter.top_up("key", RESOURCE, {"rpm": 3}, "k-1")
    again = 'it was used for top_up {"amounts": {"rpm": 3}, "entity_id": "key", "resource": "api"}'
    for other in (
        client.limiter.top_up("key", RESOURCE, {"rpm": 4}, "k-1"),
        client.limiter.top_up("team", RESOURCE, {"rpm": 3}, "k-1"),
        client.limiter.reset("key", RESOURCE, key="k-1"),
        client.limiter.set_parent("key", "team", key="k-1"),
    ):
        with pytest.raises(ValidationError) as caught:
            await other
        assert again in str(caught.value)
    assert await store.left("key") == -1


async def test_a_key_is_remembered_for_a_day(store: Store) -> None:
    """After that it is new again, whether or not the store has swept the record by then."""
    client = await customer(store)
    await client.limiter.top_up("key", RESOURCE, {"rpm": 3}, "k-1")
    store.clock.advance(once.KEPT_SECONDS - 10)
    assert (await client.limiter.top_up("key", RESOURCE, {"rpm": 3}, "k-1")).before == {"rpm": 0}
    store.clock.advance(20)
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 10}):
        pass
    assert (await client.limiter.top_up("key", RESOURCE, {"rpm": 3}, "k-1")).given == {"rpm": 3}
    assert await store.left("key") == 3


# Beside others.


async def test_spends_of_others_stay_spent(store: Store) -> None:
    """Whoever takes while something is given has taken it: the books agree to the token."""
    client, other = await customer(store, used=1), await store.client(wrap=lambda inner: Slow(inner, 2))
    await client.repository.set_limits("key", [rpm(1_000, 1, 3600)], RESOURCE)
    await client.limiter.reset("key", RESOURCE)
    taken = [other.take("key", {"rpm": 1}) for _ in range(20)]
    given = [client.limiter.top_up("key", RESOURCE, {"rpm": 2}) for _ in range(10)]
    await asyncio.gather(*taken, *given)
    left = await store.left("key")
    changes = await client.repository.get_audit_events("key")
    topped = sum(e.details["amounts"]["rpm"] for e in changes if e.action == "bucket_topped_up")
    assert left == 1_000 - 20 + topped


class Busy(Yielding):
    """A store on which somebody else changes a bucket just before some transactions."""

    times = 0

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        if self.times:
            self.times -= 1
            moved = {"rf": 1_000 + self.times}
            await self.inner.write_each(
                [Update(w.key, set=moved) for w in writes if w.key.sort == sk_state()]
            )
        return await super().transact_write(writes)


async def test_whoever_is_overtaken_looks_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that has changed is looked at anew; not for ever, and then nothing has happened."""
    monkeypatch.setattr(once, "ATTEMPTS_MAX", 3)
    await customer(store, used=5)
    client, busy = await store.client(), Busy(store.open_backend())
    client.faulty.inner = busy
    busy.times = 2
    done = await client.limiter.top_up("key", RESOURCE, {"tpm": 3})
    assert (done.before, done.over) == ({"tpm": 1_000}, {"tpm": 3}), "since 1970 it has filled"
    busy.times = 99
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 5}):
        pass
    with pytest.raises(RateLimiterUnavailable, match="attempts were overtaken: reset of 'key'") as caught:
        await client.limiter.reset("key", RESOURCE)
    assert not caught.value.ambiguous
    await busy.close()


async def test_nobody_who_waits_is_overtaken(store: Store) -> None:
    """Who waits begins when it was told; what an operator gives meanwhile is for those who come later."""
    room, limits = Room(store), [rpm(100, 1, 1)]
    client = await room.client()
    await client.take("key", {"rpm": 100}, *limits)
    first = await room.join(client, 50, limits=limits)
    done = await client.limiter.top_up("key", RESOURCE, {"rpm": 9})
    assert (done.before, done.given, done.after) == ({"rpm": -50}, {"rpm": 9}, {"rpm": -41})
    second = await room.join(client, 9, limits=limits)
    await client.refused("key", {"rpm": 1}, *limits)
    for seconds in (49.999, 50, 50.001):
        await room.until(seconds)
    assert (first.began_seconds, second.began_seconds) == (50, 50.001)


async def test_sync_twins(sync_limiter: SyncRateLimiter) -> None:
    sync_limiter.set_resource_defaults(RESOURCE, [SLOW])
    with sync_limiter.acquire("key", RESOURCE, {"rpm": 10}) as lease:
        lease.adjust(rpm=5)
    assert sync_limiter.forgive("key", RESOURCE).given == {"rpm": 5}
    assert sync_limiter.repository.top_up("key", RESOURCE, {"rpm": 2}, "k-1").after == {"rpm": 2}
    assert sync_limiter.reset("key", RESOURCE).after == {"rpm": 10}


# What is refused.


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda it: it.top_up("key", RESOURCE, {}), "invalid amounts {}: say how many tokens of which limit"),
        (lambda it: it.top_up("key", RESOURCE, {"rpm": 0}), "invalid amount of 'rpm' 0"),
        (lambda it: it.top_up("key", RESOURCE, {"rpm": -1}), "invalid amount of 'rpm' -1"),
        (lambda it: it.top_up("key", RESOURCE, {"rpm": 1.5}), "invalid amount of 'rpm' 1.5"),
        (
            lambda it: it.top_up("key", RESOURCE, {"rpx": 1}),
            "invalid limit 'rpx': 'key' has rpm, tpm on 'api'",
        ),
        (lambda it: it.top_up("nobody", RESOURCE, {"rpx": 1}), "invalid limit 'rpx': 'nobody' has rpm, tpm"),
        (lambda it: it.reset("key", RESOURCE, "rpm"), "name limits, such as ['tpm']"),
        (lambda it: it.forgive("key", RESOURCE, []), "name limits, such as ['tpm']"),
        (lambda it: it.reset("key", RESOURCE, key="a#b"), "invalid key 'a#b': '#' is reserved"),
        (lambda it: it.reset("key", RESOURCE, principal=""), "invalid principal ''"),
        (lambda it: it.reset("k#y", RESOURCE), "invalid entity_id 'k#y'"),
        (lambda it: it.set_parent("key", "team", "yes"), "invalid cascade 'yes'"),
    ],
)
async def test_bad_input_changes_nothing(store: Store, ask: Any, told: str) -> None:
    client = await customer(store)
    with pytest.raises(ValidationError) as caught:
        await ask(client.limiter)
    assert told in str(caught.value)
    assert await store.left("key") == 0
    assert await actions(client) == []


# Families.


async def test_set_parent_moves_an_entity(store: Store) -> None:
    """The next acquire charges the new family, and the event names it."""
    client = await family(store)
    moved = await client.limiter.set_parent("key", "team", True, principal="ann")
    assert (moved.parent_id, moved.cascade, moved.version) == ("team", True, 2)
    await client.limiter.reset("key", RESOURCE)
    await client.take("key", {"rpm": 1})
    assert await store.left("team") == 9
    event = next(e for e in await client.repository.get_audit_events("key") if e.principal == "ann")
    assert event.action is AuditAction.ENTITY_PARENT_CHANGED
    assert (event.details["parent_id"], event.details["cascade"]) == ("team", True)
    assert (await client.limiter.set_parent("key", None)).cascade, "which is left as it was"
    await client.take("key", {"rpm": 1})
    assert await store.left("team") == 9


async def test_nobody_becomes_its_own_ancestor(store: Store) -> None:
    client = await family(store)
    await client.repository.create_entity("org")
    await client.limiter.set_parent("key", "team")
    await client.limiter.set_parent("team", "org")
    for child, parent in (("org", "key"), ("team", "key"), ("key", "key")):
        with pytest.raises(ValidationError, match="would become its own ancestor"):
            await client.limiter.set_parent(child, parent)
    with pytest.raises(EntityNotFoundError):
        await client.limiter.set_parent("nobody", "org")
    with pytest.raises(EntityNotFoundError):
        await client.limiter.set_parent("key", "nobody")


async def test_a_late_repetition_does_not_move_anybody_back(store: Store) -> None:
    """The answer is that of then, and the buckets say what is so by now."""
    client = await family(store)
    await client.repository.create_entity("club")
    moved = await client.limiter.set_parent("key", "team", True, "k-1")
    await client.limiter.set_parent("key", "club", key="k-2")
    assert await client.limiter.set_parent("key", "team", True, "k-1") == moved
    await client.limiter.reset("key", RESOURCE)
    await client.take("key", {"rpm": 1})
    assert await store.left("club") == 9
    assert await store.bucket("team") is None
