"""Switches: off is refused with the reason and takes nothing, past the limits is admitted, on every store."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.flow.clients import EMBEDDED, RESOURCE, Client, Store, rpm, tpm
from tests.flow.waiting_room import Room
from tests.patience import PATIENCE_SECONDS
from zae_limiter import (
    AuditAction,
    Bypass,
    DamagedRecordError,
    Demand,
    Limit,
    LimiterConfig,
    OnUnavailable,
    PermissionDenied,
    RateLimitExceeded,
    ResourceDisabled,
    Switch,
    SwitchedOff,
    SyncRateLimiter,
    ValidationError,
)
from zae_limiter.engine.seen_buckets import REFUSAL_MS_MAX
from zae_limiter.records.connection import Options
from zae_limiter.repository_protocol import Put
from zae_limiter.schema import resource_config_key

PLACES: dict[str, dict[str, str]] = {
    "system": {},
    "resource": {"resource": RESOURCE},
    "entity_default": {"entity_id": "key"},
    "entity": {"entity_id": "key", "resource": RESOURCE},
}
OWN = ("entity", "entity_default")


async def stage(store: Store, *limits: Limit, options: Options | None = None) -> tuple[Client, Client]:
    """Somebody who throws switches, and somebody else who is warm."""
    admin, user = await store.client(options), await store.client(options)
    await admin.repository.set_system_defaults(list(limits) or [rpm(10)])
    for _ in range(3):
        await user.take("key", {"rpm": 1})
    return admin, user


async def off(client: Client, entity_id: str = "key", **amounts: int) -> SwitchedOff:
    """The refusal of an acquire by a switch."""
    with pytest.raises(SwitchedOff) as caught:
        await client.take(entity_id, amounts or {"rpm": 1})
    return caught.value


def expire(store: Store) -> None:
    """Let caches expire where nobody tells of changes."""
    if store.name not in EMBEDDED:
        store.clock.advance(Options().config_cache_ttl_seconds + 1)


@pytest.mark.parametrize("level", PLACES)
async def test_what_is_off_is_refused_with_the_reason_and_takes_nothing(store: Store, level: str) -> None:
    """The next acquire of somebody else is, or where nobody tells of changes the first that may know."""
    admin, user = await stage(store)
    await admin.repository.disable(**PLACES[level], reason="maintenance")
    if store.name not in EMBEDDED and level not in OWN:
        await user.take("key", {"rpm": 1})
        expire(store)
    used = await store.used("key")
    refusal = await off(user)
    assert type(refusal) is (PermissionDenied if level in OWN else ResourceDisabled)
    told = refusal.entity_id, refusal.resource, refusal.reason, refusal.level
    assert told == ("key", RESOURCE, "maintenance", level)
    assert not isinstance(refusal, RateLimitExceeded)
    assert await store.used("key") == used


@pytest.mark.parametrize("level", PLACES)
async def test_what_is_switched_on_again_is_admitted(store: Store, level: str) -> None:
    """At the next acquire; where nobody tells of changes after a second, for refusals are read again."""
    admin, user = await stage(store)
    await admin.repository.disable(**PLACES[level], reason="maintenance")
    expire(store)
    await off(user)
    assert await admin.repository.enable(**PLACES[level]) is True
    if store.name not in EMBEDDED:
        store.clock.advance(REFUSAL_MS_MAX / 1000 + 0.001)
    await user.take("key", {"rpm": 1})
    assert await admin.repository.enable(**PLACES[level]) is False


async def test_a_refusal_asks_the_store_at_most_once_a_second(store: Store) -> None:
    """Somebody who is off and goes on asking costs next to nothing."""
    admin, user = await stage(store)
    await admin.repository.disable(entity_id="never-seen", reason="abuse")
    await off(user, "never-seen")
    user.forget()
    for _ in range(5):
        await off(user, "never-seen")
    assert user.calls == []


@pytest.mark.parametrize("specific", [1, 2, 3])
async def test_the_most_specific_switch_decides(store: Store, specific: int) -> None:
    """Whatever broader ones say: on, off or past the limits."""
    admin, user = await stage(store)
    levels = list(PLACES.values())
    narrow, broad = levels[specific], levels[:specific]
    for place in broad:
        await admin.repository.disable(**place, reason="broad")
    await admin.repository.enable(**narrow, overrule=True)
    expire(store)
    await user.take("key", {"rpm": 1})
    await admin.repository.bypass(**narrow)
    expire(store)
    await user.take("key", {"rpm": 9})
    await admin.repository.enable(**narrow)
    expire(store)
    assert (await off(user)).reason == "broad"


@pytest.mark.parametrize("on_unavailable", ["allow", "block"])
async def test_a_switch_is_no_outage(store: Store, on_unavailable: str) -> None:
    """It goes up whatever the policy says, also while the store is down that it was read from."""
    options = Options(on_unavailable=OnUnavailable.of(on_unavailable))
    admin, user = await stage(store, options=options)
    await admin.repository.disable(resource=RESOURCE, reason="maintenance")
    expire(store)
    await off(user)
    store.clock.advance(3600)
    with user.down():
        await off(user)
        await off(user, "somebody-new") if store.name in EMBEDDED else None


async def test_a_switch_needs_no_limits_beside_it(store: Store) -> None:
    """A level that only has a switch lets others say what the limits are, and is told as it is."""
    admin, user = await stage(store)
    await admin.repository.disable(resource=RESOURCE, reason="maintenance")
    assert await admin.repository.get_config("resource", RESOURCE) == LimiterConfig(
        config_version=1, disabled="maintenance"
    )
    expire(store)
    await off(user)
    await admin.repository.enable(resource=RESOURCE)
    assert await admin.repository.get_config("resource", RESOURCE) is None


async def test_limits_and_switches_of_a_level_do_not_touch_each_other(store: Store) -> None:
    """Who sets or deletes limits switches nothing on; who switches something keeps its limits."""
    repository = (await store.client()).repository
    await repository.set_resource_defaults(RESOURCE, [rpm(5)], on_unavailable="allow")
    await repository.disable(resource=RESOURCE, reason="off for now")
    await repository.set_resource_defaults(RESOURCE, [rpm(7)])
    found = await repository.get_config("resource", RESOURCE)
    assert found is not None
    assert (found.limits, found.on_unavailable, found.disabled) == ((rpm(7),), "allow", "off for now")
    assert await repository.delete_resource_defaults(RESOURCE) is True
    assert await repository.delete_resource_defaults(RESOURCE) is False
    found = await repository.get_config("resource", RESOURCE)
    assert found is not None
    assert (found.limits, found.disabled) == ((), "off for now")
    await repository.set_resource_defaults(RESOURCE, [rpm(7)])
    await repository.enable(resource=RESOURCE)
    assert await repository.get_resource_defaults(RESOURCE) == [rpm(7)]


async def test_a_config_is_replaced_with_its_switch(store: Store) -> None:
    """As a whole, like everything it says."""
    repository = (await store.client()).repository
    await repository.set_config("system", LimiterConfig((rpm(5),), bypass=Bypass.UNCOUNTED))
    found = await repository.get_config("system")
    assert found is not None
    assert found.bypass is Bypass.UNCOUNTED
    await repository.set_config("system", LimiterConfig((rpm(5),), disabled="no"))
    await repository.set_config("system", LimiterConfig((rpm(5),)))
    assert await repository.get_config("system") == LimiterConfig((rpm(5),), config_version=3)


async def test_every_throw_is_an_audit_event(store: Store) -> None:
    """With who did it and why."""
    repository = (await store.client()).repository
    await repository.disable(entity_id="key", reason="abuse", principal="ops")
    await repository.bypass(entity_id="key", principal="ops")
    await repository.enable(entity_id="key", principal="ops")
    await repository.enable(entity_id="key", principal="ops")
    events = await repository.get_audit_events("key")
    assert [(e.action, e.principal) for e in events] == [
        (AuditAction.ENABLED, "ops"),
        (AuditAction.BYPASSED, "ops"),
        (AuditAction.DISABLED, "ops"),
    ]
    assert [dict(e.details) for e in events[1:]] == [
        {"limits": [], "bypass": "counted"},
        {"limits": [], "disabled": "abuse"},
    ]


async def cascading(store: Store) -> tuple[Client, Client]:
    """A child that is charged together with its parent."""
    admin, user = await store.client(), await store.client()
    await admin.repository.set_system_defaults([rpm(10)])
    await admin.repository.create_entity("team")
    await admin.repository.create_entity("key", parent_id="team", cascade=True)
    await user.take("key", {"rpm": 1})
    return admin, user


async def test_a_parent_that_is_off_refuses_its_children(store: Store) -> None:
    """At their next acquire, and whoever is told does not learn who their parent is, or why."""
    admin, user = await cascading(store)
    await admin.repository.disable(entity_id="team", reason="invoice 4711 is unpaid")
    refusal = await off(user)
    assert isinstance(refusal, PermissionDenied)
    assert (refusal.entity_id, refusal.denied_id, refusal.level) == ("key", "team", "entity_default")
    assert refusal.public_dict() == {
        "error": "permission_denied",
        "message": f"{RESOURCE} may not be used",
        "resource": RESOURCE,
    }
    assert refusal.as_dict()["denied_id"] == "team"
    assert [await store.used(who) for who in ("key", "team")] == [1, 1]
    await admin.repository.enable(entity_id="key", overrule=True)
    await off(user)


async def test_a_child_may_be_on_where_the_resource_is_off(store: Store) -> None:
    """Its parent has a say by switches of its own only."""
    admin, user = await cascading(store)
    await admin.repository.disable(resource=RESOURCE, reason="maintenance")
    await admin.repository.enable(entity_id="key", overrule=True)
    expire(store)
    await user.take("key", {"rpm": 1})
    with pytest.raises(ResourceDisabled):
        await user.take("team", {"rpm": 1})
    assert [await store.used(who) for who in ("key", "team")] == [2, 2]


async def test_what_fails_past_the_limits_gives_back_what_it_took(store: Store) -> None:
    """However large it was: nobody has more afterwards than before, nor a parent that it is charged to."""
    admin, user = await stage(store)
    await admin.repository.create_entity("team")
    await admin.repository.create_entity("child", parent_id="team", cascade=True)
    await user.take("team", {"rpm": 10})
    await user.take("child", {"rpm": 0})
    await admin.repository.bypass(entity_id="child")
    with pytest.raises(ZeroDivisionError):
        async with user.limiter.acquire("child", RESOURCE, {"rpm": 1_000}):
            raise ZeroDivisionError
    async with user.limiter.acquire("child", RESOURCE, {"rpm": 1_000}) as lease:
        await lease.settle(rpm=3)
    assert [await store.left(who) for who in ("team", "child")] == [-3, 7]


async def test_past_the_limits_is_charged_into_debt(store: Store) -> None:
    """All of it is counted as used, and owed."""
    admin, user = await stage(store)
    await admin.repository.bypass(entity_id="key")
    for used in (18, 33, 48):
        async with user.limiter.acquire("key", RESOURCE, {"rpm": 15}) as lease:
            assert lease.bypassed
            assert lease.consumed == {"rpm": 15}
        assert await store.used("key") == used
    assert await store.left("key") == -38
    await admin.repository.enable(entity_id="key")
    refusal = await user.refused("key", {"rpm": 1})
    assert 233.9 < refusal.retry_after_seconds <= 234
    store.clock.advance(refusal.retry_after_seconds)
    await user.take("key", {"rpm": 1})


async def test_past_the_limits_without_a_trace(store: Store) -> None:
    """Nothing is written, not by what the lease is told either; and it costs no request."""
    admin, user = await stage(store)
    await admin.repository.bypass(entity_id="key", counted=False)
    await user.take("key", {"rpm": 1})
    used = await store.used("key")
    user.forget()
    async with user.limiter.acquire("key", RESOURCE, {"rpm": 50}) as lease:
        assert (lease.bypassed, lease.consumed, lease.remaining) == (True, {"rpm": 50}, {})
        await lease.consume(rpm=5)
        await lease.settle(rpm=70)
        assert lease.consumed == {"rpm": 70}
    with pytest.raises(KeyError):
        async with user.limiter.acquire("key", RESOURCE, {"rpm": 50}):
            raise KeyError
    assert user.calls == []
    assert await store.used("key") == used


async def test_whoever_is_bypassed_is_refused_by_nobody(store: Store) -> None:
    """A child is past its parent's limits as well; a parent that is past its own leaves children theirs."""
    admin, user = await cascading(store)
    await admin.repository.bypass(entity_id="key")
    async with user.limiter.acquire("key", RESOURCE, {"rpm": 15}):
        pass
    assert [await store.left(who) for who in ("key", "team")] == [-6, -6]
    await admin.repository.enable(entity_id="key")
    store.clock.advance(3600)
    await admin.repository.bypass(entity_id="team", counted=False)
    async with user.limiter.acquire("key", RESOURCE, {"rpm": 10}) as lease:
        assert not lease.bypassed
    await user.refused("key", {"rpm": 1})
    assert await store.left("key") == 0
    assert await store.used("team") == 16


async def test_limits_that_only_a_bypassed_parent_has_are_charged_to_nobody(store: Store) -> None:
    """They are known all the same; what nobody has is still a mistake."""
    admin, user = await cascading(store)
    await admin.repository.set_limits("team", [rpm(10), tpm(5)])
    await admin.repository.bypass(entity_id="team", counted=False)
    async with user.limiter.acquire("key", RESOURCE, {"rpm": 1, "tpm": 50}) as lease:
        assert lease.consumed == {"rpm": 1, "tpm": 50}
        await lease.settle(tpm=60)
    async with user.limiter.acquire("key", RESOURCE, {"tpm": 50}):
        pass
    with pytest.raises(ValidationError):
        await user.take("key", {"other": 1})


async def test_consume_goes_by_the_switch_that_binds_then(store: Store) -> None:
    """It is another acquire; what the lease holds stays its own."""
    admin, user = await stage(store)
    async with user.limiter.acquire("key", RESOURCE, {"rpm": 2}) as lease:
        await admin.repository.disable(entity_id="key", reason="enough")
        with pytest.raises(PermissionDenied):
            await lease.consume(rpm=1)
        assert lease.consumed == {"rpm": 2}
        await admin.repository.bypass(entity_id="key", counted=False)
        store.clock.advance(1.001)
        await lease.consume(rpm=50)
    assert await store.used("key") == 5


async def test_whoever_waits_does_not_begin_when_it_is_off(store: Store) -> None:
    """It gives its place back at its turn, and tells why, if this process may know by then."""
    admin, room = await store.client(), Room(store)
    user = await room.client()
    await admin.repository.set_system_defaults([rpm(3)])
    await user.take("key", {"rpm": 3})
    waiter = await room.join(user, limits=None)
    assert await store.used("key") == 4
    await admin.repository.disable(entity_id="key", reason="over")
    await room.until(30 if store.name in EMBEDDED else 61)
    with pytest.raises(PermissionDenied):
        await asyncio.wait_for(waiter.task, PATIENCE_SECONDS)
    assert await store.used("key") == 3


async def test_several_demands_are_refused_if_one_is_off(store: Store) -> None:
    """All or none, as ever; and one that is bypassed does not let the others pass."""
    admin, user = await stage(store)
    demands = [Demand("key", RESOURCE, {"rpm": 1}), Demand("key", "other", {"rpm": 20})]
    await admin.repository.bypass(entity_id="key", resource="other")
    async with user.limiter.acquire(demands) as lease:
        assert [part.bypassed for part in lease.parts] == [False, True]
        assert not lease.bypassed
    await admin.repository.bypass(entity_id="key", resource="other", counted=False)
    async with user.limiter.acquire(demands) as lease:
        assert lease.consumed == {"rpm": 21}
    used = await store.used("key")
    await admin.repository.disable(entity_id="key", resource="other", reason="not today")
    store.clock.advance(60)  # without a trace nobody was told
    with pytest.raises(PermissionDenied) as caught:
        async with user.limiter.acquire(demands):
            pass
    assert (caught.value.resource, caught.value.level) == ("other", "entity")
    assert await store.used("key") == used


async def test_what_is_off_has_nothing_to_look_at(store: Store) -> None:
    """Looking raises what an acquire would; past the limits nothing has to be waited for."""
    admin, user = await stage(store)
    await admin.repository.bypass(entity_id="key")
    found = await user.limiter.check_availability("key", RESOURCE, {"rpm": 500})
    assert (found.allowed, found.retry_after_seconds, dict(found.available)) == (True, 0, {"rpm": 7})
    await admin.repository.disable(entity_id="key", reason="no")
    looks: list[Callable[[], Any]] = [
        lambda: user.limiter.available("key", RESOURCE),
        lambda: user.limiter.time_until_available("key", RESOURCE, {"rpm": 1}),
        lambda: user.limiter.check_availability("key", RESOURCE, {"rpm": 1}),
    ]
    for look in looks:
        with pytest.raises(PermissionDenied):
            await look()


async def test_limits_that_are_brought_along_are_switched_off_too(store: Store) -> None:
    """An entity's own switch binds at the next acquire of those who bring their limits, as of all others."""
    admin, user = await store.client(), await store.client()
    await user.take("key", {"rpm": 1}, rpm(10))
    await user.take("key", {"rpm": 1}, rpm(10))
    await admin.repository.disable(entity_id="key", reason="no")
    with pytest.raises(PermissionDenied):
        await user.take("key", {"rpm": 1}, rpm(10))
    assert await store.used("key") == 2
    await admin.repository.bypass(entity_id="key")
    store.clock.advance(1.001)
    await user.take("key", {"rpm": 15}, rpm(10))


async def test_an_explanation_tells_which_level_switched_it(store: Store) -> None:
    """And why, with what every level says."""
    admin, _ = await cascading(store)
    await admin.repository.disable(resource=RESOURCE, reason="maintenance")
    await admin.repository.enable(entity_id="key", resource=RESOURCE, overrule=True)
    found = await admin.repository.explain("key", RESOURCE)
    assert found.off is None
    assert [one.switch for one in found.buckets] == [Switch("entity", disabled=False), None]
    assert [(one.source, one.disabled) for one in found.buckets[0].levels] == [
        ("entity", False),
        ("entity_default", None),
        ("resource", "maintenance"),
        ("system", None),
    ]
    await admin.repository.disable(entity_id="team", reason="unpaid")
    found = await admin.repository.explain("key", RESOURCE)
    assert found.off is found.buckets[1]
    await admin.repository.enable(entity_id="team")
    await admin.repository.enable(entity_id="key", resource=RESOURCE)
    found = await admin.repository.explain("key", RESOURCE)
    assert found.off is found.buckets[0]
    assert found.buckets[0].switch == Switch("resource", "maintenance")


def test_sync_code_is_refused_alike(sync_limiter: SyncRateLimiter) -> None:
    """And throws switches alike."""
    sync_limiter.set_system_defaults([rpm(10)])
    sync_limiter.disable(entity_id="key", reason="no")
    with pytest.raises(PermissionDenied), sync_limiter.acquire("key", RESOURCE, {"rpm": 1}):
        pass
    assert sync_limiter.enable(entity_id="key")
    sync_limiter.bypass(entity_id="other", counted=False)
    with sync_limiter.acquire("other", RESOURCE, {"rpm": 50}) as lease:
        assert lease.bypassed


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines", "x" * 501, None, 5])
async def test_a_reason_is_a_line_of_text(store: Store, reason: Any) -> None:
    """Anything else is refused and changes nothing."""
    repository = (await store.client()).repository
    with pytest.raises(ValidationError):
        await repository.disable(reason=reason)
    assert await repository.get_config("system") is None


def test_a_level_has_one_switch() -> None:
    """Off and past the limits at once is nothing that anybody could mean."""
    with pytest.raises(ValidationError, match="one switch"):
        LimiterConfig(disabled="no", bypass=Bypass.COUNTED)
    with pytest.raises(ValidationError, match="'counted' or 'uncounted'"):
        LimiterConfig(bypass="often")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="give the reason"):
        LimiterConfig(disabled=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", [{"off": 1}, {"off": ""}, {"off": True}, {"bypass": "x"}])
async def test_a_switch_that_cannot_be_read_does_not_count_as_on(
    store: Store, damage: dict[str, Any]
) -> None:
    """It is told; and whoever throws it again puts it right."""
    admin, user = await stage(store)
    repository = admin.repository
    await repository.disable(resource=RESOURCE, reason="no")
    key = resource_config_key(repository.namespace_id, RESOURCE)
    item = await repository._scope.get(key)
    assert item is not None
    kept = {name: value for name, value in item.items() if name not in ("off", "bypass")}
    await repository._scope.must_write([Put(key, kept | damage)])
    expire(store)
    with pytest.raises(DamagedRecordError):
        await user.take("key", {"rpm": 1})
    await repository.disable(resource=RESOURCE, reason="no")
    expire(store)
    store.clock.advance(2)
    await off(user)
