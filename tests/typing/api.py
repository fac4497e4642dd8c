"""Uses the public API as callers do. Never run: the type checker reads it, so the types stay a promise."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, assert_type

import zae_limiter
from zae_limiter import (
    AuditEvent,
    Availability,
    BackendCapabilities,
    BucketChange,
    BucketState,
    CacheStats,
    ConfigSource,
    Demand,
    Entity,
    Explanation,
    JointLease,
    Lease,
    LeasePart,
    LeaseStatus,
    Limit,
    LimiterConfig,
    LimiterInfo,
    LimitStatus,
    Namespace,
    OnError,
    OnUnavailable,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    StackManager,
    StackOptions,
    SyncJointLease,
    SyncLease,
    SyncRateLimiter,
    SyncRepository,
    SyncStackManager,
    ThrownSwitch,
    ValidationError,
    World,
    limited,
)
from zae_limiter.established import NamespaceWord
from zae_limiter.testing import ManualClock

exported: Sequence[str] = zae_limiter.__all__
limits = [Limit.per_minute("rpm", 60), Limit.custom("tpm", 100, 10, 1)]
assert_type(Limit.per_day("rpd", 1, burst=5), Limit)
assert_type(Limit.from_dict(limits[0].to_dict()), Limit)
assert_type(limits[0].refill_rate, float)
assert_type(limits[0].softly(), Limit)
assert_type(Limit("rpm", 60, 60, 60, soft=True).soft, bool)
assert_type(ManualClock().world, World)


class Tighter(Limit):
    """Constructors give the class they are called on."""


assert_type(Tighter.per_second("rps", 1), Tighter)


async def switch_async(repository: Repository) -> None:
    assert_type(await repository.disable(resource="r", reason="maintenance"), None)
    assert_type(await repository.enable(resource="r"), bool)
    assert_type(await repository.bypass(entity_id="e", counted=False), None)
    assert_type(await repository.list_switches(limit=10), tuple[list[ThrownSwitch], str | None])


def switch_sync(repository: SyncRepository) -> None:
    assert_type(repository.disable(resource="r", reason="maintenance"), None)
    assert_type(repository.enable(resource="r"), bool)
    assert_type(repository.bypass(entity_id="e", counted=False), None)
    assert_type(repository.list_switches(limit=10), tuple[list[ThrownSwitch], str | None])


async def use_async(repository: Repository) -> None:
    """The async API: what is awaited and what is not."""
    limiter = RateLimiter(repository, speculative_writes=False)
    assert_type(await RateLimiter.open("memory://", namespace="n", config_cache_ttl=0), RateLimiter)
    async with RateLimiter.open(store="sqlite:///limits.db", on_unavailable="allow") as opened:
        assert_type(opened, RateLimiter)
        assert_type(opened.repository, Repository)
    assert_type(await Repository.open("n", stack="s", region="r", endpoint_url=None), Repository)
    assert_type(await Repository.connect(), Repository)
    assert_type(await repository.namespace("other"), Repository)

    acquisition = limiter.acquire("e", "r", {"rpm": 1}, limits, on_unavailable=OnUnavailable.ALLOW)
    async with acquisition as lease:
        assert_type(lease, Lease)
        assert_type(lease.consumed, dict[str, int])
        assert_type(lease.degraded, bool)
        assert_type(await lease.consume({"tokens.in": 1}, rpm=1), None)
        assert_type(await lease.adjust(rpm=-1), None)
        assert_type(await lease.release({"a-b": 1}), None)
    demands = [Demand("e", "r", {"rpm": 1}), Demand("e", "s", {"rpm": 1}, limits)]
    async with limiter.acquire(demands, on_unavailable="allow") as joint:
        assert_type(joint, JointLease)
        assert_type(joint.part("r", "e"), LeasePart)
    assert_type(await limiter.acquire(demands), JointLease)
    assert_type(await limiter.available("e", "r"), dict[str, int])
    assert_type(await limiter.time_until_available("e", "r", {"rpm": 1}), float)
    assert_type(await limiter.check_availability("e", "r", {"rpm": 1}, limits), Availability)
    assert_type(await limiter.is_available(timeout=0.5), bool)
    assert_type(limiter.refunds_lost, int)
    assert_type(limiter.degraded, int)
    assert_type(await limiter.close(), None)

    assert_type(await repository.create_entity("e", "Name", "p", True, {"k": 1}, principal="me"), Entity)
    assert_type(await repository.get_entity("e"), Entity | None)
    assert_type(await repository.update_entity("e", name=None, expected_version=1), Entity)
    assert_type(await repository.delete_entity("e"), bool)
    assert_type(await repository.get_children("p"), list[Entity])
    assert_type(await repository.list_entities(limit=10, cursor=None), tuple[list[Entity], str | None])
    assert_type(await repository.set_limits("e", limits, "r", "me", on_unavailable="block"), None)
    assert_type(await repository.get_limits("e"), list[Limit])
    assert_type(await repository.delete_limits("e", "r"), bool)
    assert_type(await repository.set_resource_defaults("r", limits, on_unavailable="allow"), None)
    assert_type(await repository.get_resource_defaults("r"), list[Limit])
    assert_type(await repository.set_system_defaults(tuple(limits)), None)
    assert_type(await repository.get_system_defaults(), tuple[list[Limit], OnUnavailable | None])
    assert_type(await repository.list_resources_with_defaults(), list[str])
    assert_type(await repository.list_entities_with_custom_limits("r"), tuple[list[str], str | None])
    assert_type(await repository.get_config("entity", "e", "r"), LimiterConfig | None)
    assert_type(await repository.set_config("system", LimiterConfig(tuple(limits))), None)
    assert_type(await repository.explain("e", "r"), Explanation)
    assert_type(
        await repository.resolve_limits("e", "r"),
        tuple[list[Limit] | None, OnUnavailable | None, ConfigSource | None],
    )
    assert_type(repository.get_cache_stats(), CacheStats)
    assert_type(await repository.invalidate_config_cache(entity_id="e"), None)
    assert_type(await repository.register_namespaces(["a"]), dict[str, NamespaceWord])
    assert_type(await repository.get_namespace("a"), Namespace | None)
    assert_type(await repository.get_bucket("e", "r"), list[BucketState])
    assert_type(await repository.get_audit_events("e", limit=5), list[AuditEvent])
    assert_type(repository.capabilities, BackendCapabilities)


async def operate(repository: Repository) -> None:
    """Operators' verbs."""
    assert_type(await repository.top_up("e", "r", {"tpm": 500}, "k", "ann"), BucketChange)
    assert_type(await repository.reset("e", "r", ["tpm"], key="k"), BucketChange)
    assert_type(await repository.forgive("e", "r"), BucketChange)
    assert_type(await repository.set_parent("e", None, cascade=False), Entity)


def use_sync(repository: SyncRepository) -> None:
    """The sync twins: the same signatures, plain results."""
    limiter = SyncRateLimiter(repository, speculative_writes=False)
    with SyncRateLimiter.open("memory://", namespace="n", config_cache_ttl=0) as opened:
        assert_type(opened, SyncRateLimiter)
        assert_type(opened.repository, SyncRepository)
    assert_type(SyncRepository.open("n", stack="s", region="r", endpoint_url=None), SyncRepository)
    assert_type(SyncRepository.connect(), SyncRepository)
    assert_type(repository.namespace("other"), SyncRepository)

    with limiter.acquire([Demand("e", "r", {"rpm": 1})]) as joint:
        assert_type(joint, SyncJointLease)
        assert_type(joint.part("r"), SyncLease)
        assert_type(joint.parts, tuple[SyncLease, ...])
    with limiter.acquire("e", "r", {"rpm": 1}, limits, on_unavailable=OnUnavailable.ALLOW) as lease:
        assert_type(lease, SyncLease)
        assert_type(lease.consumed, dict[str, int])
        assert_type(lease.degraded, bool)
        assert_type(lease.consume({"tokens.in": 1}, rpm=1), None)
        assert_type(lease.adjust(rpm=-1), None)
        assert_type(lease.release({"a-b": 1}), None)
    assert_type(limiter.available("e", "r"), dict[str, int])
    assert_type(limiter.time_until_available("e", "r", {"rpm": 1}), float)
    assert_type(limiter.check_availability("e", "r", {"rpm": 1}, limits), Availability)
    assert_type(limiter.is_available(timeout=0.5), bool)
    assert_type(limiter.refunds_lost, int)
    assert_type(limiter.degraded, int)
    assert_type(limiter.close(), None)

    assert_type(repository.create_entity("e", "Name", "p", True, {"k": 1}, principal="me"), Entity)
    assert_type(repository.get_entity("e"), Entity | None)
    assert_type(repository.update_entity("e", name=None, expected_version=1), Entity)
    assert_type(repository.delete_entity("e"), bool)
    assert_type(repository.get_children("p"), list[Entity])
    assert_type(repository.list_entities(limit=10, cursor=None), tuple[list[Entity], str | None])
    assert_type(repository.set_limits("e", limits, "r", "me", on_unavailable="block"), None)
    assert_type(repository.get_limits("e"), list[Limit])
    assert_type(repository.delete_limits("e", "r"), bool)
    assert_type(repository.set_resource_defaults("r", limits, on_unavailable="allow"), None)
    assert_type(repository.get_resource_defaults("r"), list[Limit])
    assert_type(repository.set_system_defaults(tuple(limits)), None)
    assert_type(repository.get_system_defaults(), tuple[list[Limit], OnUnavailable | None])
    assert_type(repository.list_resources_with_defaults(), list[str])
    assert_type(repository.list_entities_with_custom_limits("r"), tuple[list[str], str | None])
    assert_type(repository.get_config("entity", "e", "r"), LimiterConfig | None)
    assert_type(repository.set_config("system", LimiterConfig(tuple(limits))), None)
    assert_type(repository.explain("e", "r"), Explanation)
    assert_type(repository.top_up("e", "r", {"tpm": 500}), BucketChange)
    assert_type(repository.set_parent("e", "p", key="k"), Entity)
    assert_type(
        repository.resolve_limits("e", "r"),
        tuple[list[Limit] | None, OnUnavailable | None, ConfigSource | None],
    )
    assert_type(repository.get_cache_stats(), CacheStats)
    repository.invalidate_config_cache(entity_id="e")
    assert_type(repository.register_namespaces(["a"]), dict[str, NamespaceWord])
    assert_type(repository.get_namespace("a"), Namespace | None)
    assert_type(repository.get_bucket("e", "r"), list[BucketState])
    assert_type(repository.get_bucket("e", "r", "rpm"), BucketState | None)
    assert_type(repository.get_audit_events("e", limit=5), list[AuditEvent])
    assert_type(repository.capabilities, BackendCapabilities)


def handle(error: RateLimitExceeded, refused: ValidationError) -> None:
    """What an error handler reads."""
    assert_type(error.statuses, tuple[LimitStatus, ...])
    assert_type(error.violations, list[LimitStatus])
    assert_type(error.primary_violation.limit, Limit)
    assert_type(error.retry_after_seconds, float)
    assert_type(error.retry_after_header, str)
    assert_type(error.as_dict(), dict[str, Any])
    assert_type(refused.value, object)
    shown: Exception = refused
    caught: ValueError = refused
    del shown, caught


async def use_open_leases(limiter: RateLimiter, sync_limiter: SyncRateLimiter) -> None:
    """Leases that no block holds, in both colours."""
    lease = await limiter.acquire("e", "r", {"rpm": 1}, on_error="keep")
    assert_type(lease, Lease)
    assert_type(await limiter.acquire("e", "r", {"rpm": 1}, on_error=OnError.SETTLE).open(), Lease)
    assert_type(lease.remaining, dict[str, int])
    assert_type(lease.exceeded, tuple[str, ...])
    assert_type(lease.statuses, tuple[LeaseStatus, ...])
    assert_type(await lease.settle({"a-b": 1}, rpm=2), None)
    assert_type(await lease.keep(), None)
    assert_type(await lease.commit(), None)
    assert_type(await lease.cancel(), None)
    held = sync_limiter.acquire("e", "r", {"rpm": 1}, on_error="keep").open()
    assert_type(held, SyncLease)
    assert_type(held.remaining, dict[str, int])
    assert_type(held.exceeded, tuple[str, ...])
    assert_type(held.statuses, tuple[LeaseStatus, ...])
    assert_type(held.settle({"a-b": 1}, rpm=2), None)
    assert_type(held.keep(), None)
    assert_type(held.commit(), None)
    assert_type(held.cancel(), None)


def mistakes(limiter: SyncRateLimiter, lease: SyncLease, amounts: Mapping[str, int]) -> None:
    """What the checker must refuse: an ignore that is not needed any more is an error itself."""
    limiter.acquire("e", "r", {"rpm": "1"})  # type: ignore[dict-item]
    limiter.acquire("e", "r", ["rpm"])  # type: ignore[call-overload]
    limiter.acquire("e", "r", amounts, on_error=1)  # type: ignore[call-overload]
    limiter.acquire("e", "r", amounts, limits="rpm")  # type: ignore[arg-type]
    limiter.acquire("e", resource=None, consume=amounts)  # type: ignore[call-overload]
    limiter.available("e")  # type: ignore[call-arg]
    lease.adjust(rpm=1.5)  # type: ignore[arg-type]
    lease.consumed = {}  # type: ignore[misc]
    limiter.repository.list_entities(limit="10")  # type: ignore[arg-type]
    SyncRateLimiter.open("memory://", cache=1)  # type: ignore[call-arg]
    Limit.per_minute("rpm", "60")  # type: ignore[arg-type]


async def use_decorators(limiter: RateLimiter, sync: SyncRateLimiter, opened: RateLimiter | None) -> None:
    """A decorated function has the parameters and the result that it had, by name and by place."""

    @limiter.limit("r", {"rpm": 1}, entity=lambda key: key, limits=limits, on_unavailable="allow")
    async def answer(key: str, *, tokens: int = 1) -> bytes:
        assert_type(Lease.current(), Lease)
        return key.encode() * tokens

    @limiter.limit("r", lambda tokens: {"tpm": tokens}, entity="e")
    async def stream(tokens: int) -> AsyncIterator[str]:
        yield str(tokens)

    @sync.limit("r", {"rpm": 1}, entity="e")
    def answer_now(key: str, tokens: int = 1) -> bytes:
        assert_type(SyncLease.current(), SyncLease)
        return key.encode() * tokens

    @sync.limit("r", {"rpm": 1}, entity="e")
    def stream_now(key: str) -> Iterator[str]:
        yield key

    @limited(lambda: opened, "r", {"rpm": 1}, entity="e")
    async def later(key: str) -> bytes:
        return key.encode()

    class Service:
        limiter: RateLimiter

        @limited(lambda self: self.limiter, "r", {"rpm": 1}, entity="e")
        async def work(self, count: int) -> float:
            return count / 2

    assert_type(await answer("e", tokens=2), bytes)
    assert_type(stream(1), AsyncIterator[str])
    assert_type(answer_now("e", tokens=2), bytes)
    assert_type(stream_now("e"), Iterator[str])
    assert_type(await later("e"), bytes)
    assert_type(await Service().work(1), float)
    await answer(1)  # type: ignore[arg-type]
    await answer("e", 2)  # type: ignore[call-arg]
    await answer("e", words=2)  # type: ignore[call-arg]
    answer_now()  # type: ignore[call-arg]
    stream("1")  # type: ignore[arg-type]
    await later(b"e")  # type: ignore[arg-type]
    await Service().work("1")  # type: ignore[arg-type]

    @limiter.limit("r", {"rpm": 1}, entity="e")  # type: ignore[type-var]
    def plain() -> int:
        return 1

    limiter.limit("r", {"rpm": 1})  # type: ignore[call-arg]
    limiter.limit("r", {"rpm": 1}, entity=1)  # type: ignore[arg-type]
    limiter.limit("r", {"rpm": 1}, entity="e", limit=limits)  # type: ignore[call-arg]
    limited(RateLimiter.open, "r", {"rpm": 1}, entity="e")  # type: ignore[arg-type]
    kept: Callable[[str], bytes] = answer_now
    del kept, plain


def use_stacks() -> None:
    """Stacks: the twin has the same types without awaiting."""
    with SyncStackManager("limits", "eu-west-1") as stack:
        assert_type(stack.update_lambda(force=True), bool)
        assert_type(stack.deploy(StackOptions(lambda_memory=512)).is_new, bool)
        assert_type(stack.region, str | None)
    assert_type(SyncRateLimiter.list_deployed("eu-west-1"), list[LimiterInfo])
    assert_type(SyncRepository.builder().stack("limits").lambda_memory(512).build(), SyncRepository)


async def use_stacks_async(repository: Repository) -> None:
    async with StackManager("limits", endpoint_url="http://localhost:4566") as stack:
        assert_type(await stack.auto_update(), bool)
    assert_type(await RateLimiter.list_deployed(region="eu-west-1"), list[LimiterInfo])
    await repository.create_stack(StackOptions())
    await repository.delete_stack()
