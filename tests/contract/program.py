"""A program as people wrote it for the established package: it uses nothing but what both packages have.

Run it with either package installed: ``python program.py STACK ENDPOINT_URL`` for a DynamoDB table, without
arguments for the store that the environment names. It prints its answers as JSON. Whatever depends on the
moment or on chance is left out of them, so that the answers of two runs can be compared.
"""

import asyncio
import json
import sys
import warnings
from datetime import datetime, timedelta
from typing import Any

from zae_limiter import (
    AuditAction,
    EntityExistsError,
    InvalidIdentifierError,
    InvalidNameError,
    LeaseExpiredError,
    Limit,
    LimitName,
    NamespaceNotFoundError,
    NamespaceStateError,
    OnUnavailable,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    StackOptions,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
    ZAELimiterError,
)
from zae_limiter.bucket import calculate_available, calculate_retry_after, try_consume
from zae_limiter.models import BucketState
from zae_limiter.schema import parse_bucket_pk, pk_bucket, pk_entity, pk_system, sk_config, sk_state

RPM = Limit.per_day(LimitName.RPM, 100)
TPM = Limit.per_day("tpm", 10_000, burst=20_000)
answers: dict[str, Any] = {}


def error(raised: BaseException) -> str:
    return type(raised).__name__


async def tried(awaited: Any) -> Any:
    """What a call comes to: its answer, or the name of its error."""
    try:
        return await awaited
    except ZAELimiterError as raised:
        return error(raised)


def limits_of(limits: Any) -> dict[str, list[int]]:
    return {one.name: [one.capacity, one.refill_amount, one.refill_period_seconds] for one in limits}


def pure() -> None:
    """What needs no store."""
    state = BucketState.from_limit("user-1", "gpt-4", RPM, 1_000)
    taken = try_consume(state, 30, 1_000)
    answers["limits"] = [RPM.to_dict()["capacity"], Limit.from_dict(TPM.to_dict()) == TPM, TPM.refill_amount]
    answers["limit_rate"] = Limit.per_minute("x", 60).refill_rate
    answers["custom"] = limits_of(
        [Limit.custom("x", 5, 1, 90), Limit.per_second("y", 3), Limit.per_hour("z", 4)]
    )
    answers["arithmetic"] = [taken.success, taken.new_tokens_milli, calculate_available(state, 1_000)]
    answers["keys"] = [
        pk_system("ns"),
        pk_entity("ns", "user-1"),
        pk_bucket("ns", "user-1", "gpt-4", 0),
        sk_state(),
        sk_config(),
        sk_config("gpt-4"),
        list(parse_bucket_pk("ns/BUCKET#user-1#gpt-4#3")),
    ]
    for bad in (
        {"lambda_timeout": 0},
        {"lambda_memory": 1},
        {"pitr_recovery_days": 99},
        {"role_name_format": "x"},
    ):
        try:
            StackOptions(**bad)  # type: ignore[arg-type]
        except ValueError:
            answers.setdefault("stack_options_refused", []).append(next(iter(bad)))


async def entities(repo: Repository) -> None:
    """Families, and what is not there."""
    org = await repo.create_entity("org", name="Org", metadata={"tier": "gold"})
    key = await repo.create_entity("key", name="Key", parent_id="org", cascade=True, principal="admin")
    answers["entity"] = [org.id, org.name, org.is_parent, org.is_child, dict(org.metadata)]
    answers["child"] = [key.id, key.parent_id, key.cascade, key.is_parent, key.is_child]
    answers["entity_again"] = await tried(repo.create_entity("org"))
    answers["entity_bad"] = await tried(repo.create_entity("a#b"))
    answers["entity_missing"] = await repo.get_entity("nobody")
    answers["children"] = [child.id for child in await repo.get_children("org")]
    found = await repo.get_entity("key")
    answers["entity_found"] = found is not None and found.created_at is not None


async def levels(repo: Repository) -> None:
    """Limits at four levels, and which one wins."""
    await repo.set_system_defaults([RPM], on_unavailable="allow")
    await repo.set_resource_defaults("gpt-4", [RPM, TPM], "admin")
    await repo.set_limits("key", [Limit.per_day("rpm", 50)])
    await repo.set_limits("key", [Limit.per_day("rpm", 20), TPM], "gpt-4", "admin")
    limits, policy = await repo.get_system_defaults()
    answers["system"] = [limits_of(limits), policy]
    answers["resource"] = limits_of(await repo.get_resource_defaults("gpt-4"))
    answers["own"] = [
        limits_of(await repo.get_limits("key")),
        limits_of(await repo.get_limits("key", "gpt-4")),
    ]
    await repo.invalidate_config_cache()
    resolved = []
    for who, what in (("key", "gpt-4"), ("key", "other"), ("user-1", "gpt-4"), ("user-1", "other")):
        limits, policy, source = await repo.resolve_limits(who, what)
        resolved.append([limits_of(limits or []), policy, source])
    answers["resolved"] = resolved
    answers["lists"] = [
        await repo.list_resources_with_defaults(),
        await repo.list_resources_with_entity_configs(),
        await repo.list_entities_with_custom_limits("gpt-4"),
    ]
    stats = repo.get_cache_stats()
    answers["cache"] = [
        stats.ttl_seconds,
        stats.misses > 0,
        sorted({"hits", "misses", "size"} - {*stats.as_dict()}),
    ]
    await repo.delete_limits("key")
    await repo.delete_limits("key")
    await repo.delete_limits("nobody", "gpt-4")
    await repo.delete_resource_defaults("nothing")
    await repo.delete_entity("nobody")
    answers["deleted"] = limits_of(await repo.get_limits("key"))
    answers["bad_resource"] = await tried(repo.set_resource_defaults("a#b", [RPM]))


async def asked(limiter: RateLimiter, *request: Any) -> str:
    async with limiter.acquire(*request):
        return "admitted"


async def leases(limiter: RateLimiter) -> None:
    """Debits, corrections, refunds and refusals."""
    async with limiter.acquire("user-1", "gpt-4", {"rpm": 1, "tpm": 500}) as lease:
        await lease.adjust(tpm=250)
        await lease.consume(tpm=50)
        await lease.release(tpm=100)
        answers["consumed"] = dict(lease.consumed)
    answers["expired"] = await tried(lease.adjust(tpm=1))
    answers["available"] = await limiter.available("user-1", "gpt-4")
    try:
        async with limiter.acquire("user-1", "gpt-4", consume={"rpm": 10}):
            raise KeyError("the work failed")
    except KeyError:
        answers["refunded"] = await limiter.available("user-1", "gpt-4")
    try:
        async with limiter.acquire("user-1", "gpt-4", {"rpm": 99, "tpm": 19_301}):
            pass
    except RateLimitExceeded as refused:
        body = refused.as_dict()
        first = next(one for one in body["limits"] if one["limit_name"] == "tpm")
        answers["refused"] = [
            body["error"],
            refused.primary_violation.limit_name,
            first["available"] < 19_301,
        ]
        answers["refused_limits"] = [
            first[name] for name in ("capacity", "refill_amount", "refill_period_seconds")
        ]
        answers["refused_message"] = str(refused).partition(" Retry")[0]
        answers["refused_wait"] = [refused.retry_after_seconds > 0, int(refused.retry_after_header) > 0]
        answers["refused_passed"] = [status.limit_name for status in refused.passed]
    async with limiter.acquire("key", "gpt-4", {"rpm": 2, "tpm": 100}):
        pass
    answers["cascade"] = [await limiter.available(who, "gpt-4") for who in ("key", "org")]
    async with limiter.acquire("user-2", "gpt-4", {"tpm": 20_000}) as lease:
        await lease.adjust(tpm=500)
    answers["debt"] = (await limiter.available("user-2", "gpt-4"))["tpm"]
    answers["wait"] = round(await limiter.time_until_available("user-2", "gpt-4", {"tpm": 1})) // 100
    there = await limiter.check_availability("user-2", "gpt-4", {"tpm": 1})
    answers["check"] = [there.allowed, there.exceeded, there.needed, there.deficit]
    own = [Limit.per_day("calls", 3)]
    async with limiter.acquire("user-3", "api", {"calls": 1}, limits=own):
        answers["brought"] = await limiter.available("user-3", "api", limits=own)
    answers["negative"] = await tried(asked(limiter, "user-1", "gpt-4", {"rpm": -1}))
    answers["is_available"] = await limiter.is_available()


async def reading(repo: Repository, limiter: RateLimiter) -> None:
    """Buckets, audit events, usage and capacity."""
    state = await repo.get_bucket("user-1", "gpt-4", "rpm")
    assert state is not None
    answers["bucket"] = [state.capacity, state.tokens, state.total_consumed_milli]
    answers["bucket_missing"] = await repo.get_bucket("user-1", "gpt-4", "nothing")
    answers["buckets"] = sorted(one.limit_name for one in await repo.get_buckets("user-1"))
    batch = await repo.batch_get_buckets([("user-1", "gpt-4", 0)])
    answers["batch"] = sorted(batch)
    events = await repo.get_audit_events("key")
    answers["audit"] = [[event.action, event.principal, event.resource] for event in events]
    answers["audit_page"] = [e.action for e in await repo.get_audit_events("key", 1, events[0].event_id)]
    answers["audit_system"] = [
        e.action == AuditAction.LIMITS_SET for e in await repo.get_audit_events("$SYSTEM")
    ]
    answers["audit_resource"] = [e.entity_id for e in await repo.get_audit_events("$RESOURCE:gpt-4")]
    naive = datetime(2024, 1, 1)  # noqa: DTZ001 - as people write it
    answers["usage"] = await limiter.get_usage_snapshots(
        "nobody", start_time=naive, end_time=naive + timedelta(days=1)
    )
    summary = await limiter.get_usage_summary("nobody", window_type="hourly")
    answers["usage_summary"] = [summary.snapshot_count, dict(summary.total), summary.min_window_start]
    capacity = await limiter.get_resource_capacity("gpt-4", "tpm")
    answers["capacity"] = [[one.entity_id, one.capacity] for one in capacity.entities]
    answers["capacity_total"] = capacity.total_capacity


async def differing(repo: Repository, limiter: RateLimiter) -> None:
    """Where the packages differ on purpose."""
    state = BucketState.from_limit("user-1", "gpt-4", Limit.per_minute("tpm", 10), 0)
    answers["wait_exact"] = calculate_retry_after(1_000, 10_000, 60_000)
    answers["origin"] = try_consume(state, 1, 7_001).new_last_refill_ms
    answers["unnamed"] = (await repo.create_entity("unnamed")).name
    stray = await tried(repo.create_entity("stray", parent_id="missing"))
    answers["stray"] = stray if isinstance(stray, str) else "made"
    answers["parent_deleted"] = await tried(repo.delete_entity("org"))
    answers["impossible"] = await limiter.time_until_available("user-1", "gpt-4", {"rpm": 1_000}) == float(
        "inf"
    )
    answers["unknown_recovered"] = await tried(repo.recover_namespace("nobody-here"))
    answers["unknown_purged"] = await tried(repo.purge_namespace("nobody-here"))
    answers["unknown_limit"] = await tried(asked(limiter, "user-1", "gpt-4", {"unheard": 1}))


async def namespaces(repo: Repository) -> None:
    """Tenants: registered, listed, deleted, recovered, purged."""
    made = await repo.register_namespace("team-a")
    both = await repo.register_namespaces(["team-a", "team-b"])
    found = await repo.get_namespace("team-a")
    assert found is not None
    answers["namespace"] = [
        isinstance(made, str),
        len(made),
        both["team-a"] == made,
        found["namespace_id"] == made,
    ]
    answers["namespace_dict"] = [found["name"], found["status"], found.get("nothing")]
    answers["namespaces"] = [one["name"] for one in await repo.list_namespaces()]
    answers["namespace_missing"] = [await repo.get_namespace("typo"), await tried(repo.namespace("typo"))]
    team = await repo.namespace("team-a")
    await team.create_entity("org")
    answers["isolated"] = [team.namespace_name, team.namespace_id == made, await team.get_limits("key")]
    await repo.delete_namespace("team-a")
    await repo.delete_namespace("team-a")
    answers["orphans"] = [one["namespace_id"] == made for one in await repo.list_orphan_namespaces()]
    answers["recovered"] = await repo.recover_namespace(made)
    answers["purge_in_use"] = await tried(repo.purge_namespace(made))
    await repo.delete_namespace("team-a")
    await repo.purge_namespace(made)
    answers["purged"] = [one["name"] for one in await repo.list_namespaces()]


def sync(open_sync: Any) -> None:
    """The same by the sync twins."""
    repo = open_sync()
    limiter = SyncRateLimiter(repository=repo)
    limiter.create_entity("sync-user", name="Sync")
    limiter.set_limits("sync-user", [RPM], "gpt-4")
    with limiter.acquire("sync-user", "gpt-4", {"rpm": 5}) as lease:
        lease.adjust(rpm=2)
    answers["sync"] = [limiter.available("sync-user", "gpt-4")["rpm"], lease.consumed, repo.ping()]
    try:
        lease.adjust(rpm=1)
    except LeaseExpiredError as raised:
        answers["sync_expired"] = error(raised)
    try:
        with limiter.acquire("sync-user", "gpt-4", {"rpm": 94}):
            pass
    except RateLimitExceeded as refused:
        answers["sync_refused"] = [status.limit_name for status in refused.violations]
    answers["sync_audit"] = [event.action for event in limiter.get_audit_events("sync-user")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        limiter.available("sync-user", "gpt-4", use_stored_limits=True)
    answers["sync_deprecated"] = [one.category.__name__ for one in caught][:1]
    repo.delete_entity("sync-user")
    answers["sync_deleted"] = repo.get_entity("sync-user")


def builder_of(start: Any) -> Any:
    """The table as the command line names it; without one, what the environment says."""
    if len(sys.argv) < 3:
        return start
    return start.stack(sys.argv[1]).region("us-east-1").endpoint_url(sys.argv[2])


async def main() -> None:
    pure()
    repo = await builder_of(Repository.builder()).on_unavailable(OnUnavailable.ALLOW.value).build()
    answers["built"] = [repo.namespace_name, len(repo.namespace_id), await repo.ping()]
    answers["built_policy"] = (await repo.get_system_defaults())[1]
    answers["built_typo"] = await tried(builder_of(Repository.builder()).namespace("typo").build())
    limiter = RateLimiter(repository=repo)
    await entities(repo)
    await levels(repo)
    await leases(limiter)
    await reading(repo, limiter)
    await namespaces(repo)
    await differing(repo, limiter)
    record = await repo.get_version_record()
    answers["version"] = sorted(record or {})
    await asyncio.to_thread(sync, lambda: builder_of(SyncRepository.builder()).build())
    await limiter.close()
    print(json.dumps(answers, indent=1, default=str, sort_keys=True))


assert issubclass(InvalidNameError, ValidationError)
assert issubclass(InvalidIdentifierError, ValidationError)
assert issubclass(EntityExistsError, ZAELimiterError)
assert issubclass(NamespaceStateError, ZAELimiterError)
assert issubclass(NamespaceNotFoundError, ZAELimiterError)

if __name__ == "__main__":
    asyncio.run(main())
