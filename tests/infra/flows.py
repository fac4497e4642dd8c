"""What the library asks of DynamoDB in each of its uses, recorded on a real table.

Requests are recorded as IAM sees them: the action, the table or index, the partition keys. A transaction
has no action of its own; each of its writes has.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.dynamodb.tables import open_table
from tests.infra.permissions import Request
from tests.infra.rendering import STREAM_ARN, TABLE_ARN
from zae_limiter import (
    Limit,
    LimiterConfig,
    RateLimitExceeded,
    SyncRateLimiter,
    SyncRepository,
)
from zae_limiter.backends.dynamodb import DynamoDBBackend
from zae_limiter.backends.dynamodb.expressions import Payload, fields_of
from zae_limiter.engine import bucket_writes, posting, split
from zae_limiter.engine.law import Rate
from zae_limiter.llm import SyncLearnedEstimates
from zae_limiter.records.leases import lease_key
from zae_limiter.records.reports import ProcessReport, write_report
from zae_limiter.repository_protocol import Put, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import bucket_key
from zae_limiter.testing import ManualClock

RESOURCE = "gpt-4"
TENANT = "tenant"
LIMITS = [Limit.per_minute("rpm", 100)]
PARTS = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
}


class Recording:
    """A transport that notes which permissions a request needs."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.colour, self.fanout = inner, inner.colour, inner.fanout
        self.requests: list[Request] = []

    async def call(self, operation: str, payload: Payload | str, timeout_ms: float) -> Payload:
        self.requests += requests_of(operation, fields_of(payload))
        reply: Payload = await self._inner.call(operation, payload, timeout_ms)
        return reply

    async def close(self) -> None:
        await self._inner.close()


def recorded(backend: Any) -> list[Request]:
    """From now on everything that a backend asks for."""
    assert isinstance(backend, DynamoDBBackend)
    recording = Recording(backend.calls.transport)
    backend.calls.transport = recording
    return recording.requests


def requests_of(operation: str, payload: Payload) -> Iterator[Request]:
    """The permissions that a request to DynamoDB needs."""
    action = f"dynamodb:{operation}"
    match operation:
        case "DescribeTable":
            yield Request(action, TABLE_ARN)
        case "BatchGetItem":
            ((_, asked),) = payload["RequestItems"].items()
            yield Request(action, TABLE_ARN, tuple(key["PK"]["S"] for key in asked["Keys"]))
        case "Query":
            index = payload.get("IndexName")
            found = re.match(r"(\S+) = (\S+)", payload["KeyConditionExpression"])
            assert found, payload["KeyConditionExpression"]
            names, values = payload["ExpressionAttributeNames"], payload["ExpressionAttributeValues"]
            assert names.get(found[1], found[1]) == f"{index or ''}PK"
            where = f"{TABLE_ARN}/index/{index}" if index else TABLE_ARN
            yield Request(action, where, (values[found[2]]["S"],))
        case "TransactWriteItems":
            for part in payload["TransactItems"]:
                ((verb, write),) = part.items()
                yield from requests_of(PARTS[verb], write)
        case "PutItem":
            yield Request(action, TABLE_ARN, (payload["Item"]["PK"]["S"],))
        case "UpdateItem" | "DeleteItem" | "ConditionCheckItem":
            yield Request(action, TABLE_ARN, (payload["Key"]["PK"]["S"],))
        case _:
            raise AssertionError(f"nobody knows which permission {operation} needs")


class StreamClient:
    """A client of DynamoDB Streams whose requests are noted."""

    def __init__(self, inner: Any, requests: list[Request]) -> None:
        self._inner, self._requests = inner, requests

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        action = "".join(part.title() for part in verb.split("_"))
        self._requests.append(Request(f"dynamodb:{action}", STREAM_ARN))
        method: Callable[..., Any] = getattr(self._inner, verb)
        return method

    def close(self) -> None:
        self._inner.close()


class Called(SyncRepository):
    """A repository, and the names of the methods that were called on it."""

    def __init__(self, repository: SyncRepository, names: set[str]) -> None:
        super().__init__(repository._async)
        self._names = names

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            self._names.add(name)
        return super().__getattribute__(name)


@contextmanager
def opened(
    table: str, clock: ManualClock, namespace: str = TENANT
) -> Iterator[tuple[SyncRepository, list[Request]]]:
    """A process that opens a namespace, and all that it asks for."""
    backend = open_table(True, table, clock.world)
    requests = recorded(backend)
    repository = SyncRepository.over(backend, namespace, world=clock.world)
    try:
        yield repository, requests
    finally:
        repository.close()


def application(repository: SyncRepository, clock: ManualClock) -> None:
    """Everything that somebody who only takes from limits does."""
    for speculative in (True, False):
        limiter = SyncRateLimiter(repository, speculative_writes=speculative)
        assert limiter.is_available()
        for entity_id in ("user", "child", "owner"):
            with limiter.acquire(entity_id, RESOURCE, {"rpm": 2}) as lease:
                lease.consume(rpm=1)
                lease.adjust(rpm=3)
                lease.release(rpm=1)
            with pytest.raises(ZeroDivisionError), limiter.acquire(entity_id, RESOURCE, {"rpm": 1}):
                raise ZeroDivisionError
        with limiter.acquire("own-limits", RESOURCE, {"rpm": 1}, [Limit.per_second("rpm", 5)]):
            pass
        with pytest.raises(RateLimitExceeded), limiter.acquire("user", RESOURCE, {"rpm": 100}):
            pass
        with limiter.acquire(f"debtor-{speculative}", RESOURCE, {"rpm": 1}) as lease:
            lease.adjust(rpm=100_000)  # its debt outgrows its ttl
        limiter.available("user", RESOURCE)
        limiter.time_until_available("user", RESOURCE, {"rpm": 100})
        limiter.check_availability("nobody", RESOURCE, {"rpm": 1})
        repository.invalidate_config_cache()
        clock.advance(30)
    repository.speculative_consume("user", RESOURCE, {"rpm": 1})
    with SyncLearnedEstimates(repository) as estimates:
        estimates.observe(RESOURCE, 4_096, 300)
    told = ProcessReport("host-1", "1", 0, 0, 1, 0, 0, 0)
    assert run_sync(write_report(repository._async._scope, 0, told, is_new=True))
    _run_hot(SyncRateLimiter(repository), clock)


def _run_hot(limiter: SyncRateLimiter, clock: ManualClock) -> None:
    """A bucket that is split, used in its parts, and gathered from them."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (bucket_writes, posting, split):
            patch.setattr(module, "WRITES", Rate(3_000, 3_000, 1_000))
        for _ in range(16):
            with limiter.acquire("hot", RESOURCE, {"rpm": 1}):
                pass
        clock.advance(600)
        with limiter.acquire("hot", RESOURCE, {"rpm": 90}):
            pass
    assert limiter.repository.get_bucket("hot", RESOURCE)


def administration(repository: SyncRepository) -> None:
    """Everything that somebody who administers one namespace does."""
    for entity_id, parent_id in (("owner", None), ("child", "owner"), ("brief", "owner"), ("alone", None)):
        repository.create_entity(entity_id, parent_id=parent_id, cascade=parent_id is not None)
    repository.update_entity("brief", name="Brief", parent_id="alone")
    repository.set_system_defaults(LIMITS)
    repository.set_resource_defaults(RESOURCE, LIMITS)
    repository.set_limits("child", LIMITS, RESOURCE)
    repository.set_limits("brief", LIMITS)
    repository.set_config("resource", LimiterConfig(limits=tuple(LIMITS)), resource="other")
    repository.delete_resource_defaults("other")
    with SyncRateLimiter(repository).acquire("brief", RESOURCE, {"rpm": 1}):
        pass
    bucket = bucket_key(repository.namespace_id, "brief", RESOURCE)
    repository.write_each([Update(bucket, set={"note": 1})])
    repository.transact_write([Update(bucket, set={"note": 2})])
    # As the server does it: a lease is a row beside what it takes, and goes with it.
    lease = lease_key(repository.namespace_id, "lease-1")
    repository.transact_write([Update(bucket, set={"note": 3}), Put(lease, {"rev": 0})])
    repository.top_up("brief", RESOURCE, {"rpm": 1}, key="once")
    repository.reset("brief", RESOURCE)
    repository.forgive("brief", RESOURCE)
    repository.set_parent("brief", "owner")
    repository.set_entity_cascade("brief", False, RESOURCE)
    repository.set_resource_cascade(RESOURCE, True)
    repository.disable(entity_id="brief", resource=RESOURCE, reason="leaked")
    repository.enable(entity_id="brief", resource=RESOURCE)
    repository.bypass(resource=RESOURCE)
    repository.enable(resource=RESOURCE)
    repository.update_entity("brief", cascade=False)
    repository.delete_limits("brief")
    repository.delete_entity("brief")
    repository.delete_entity("alone")
    repository.delete_system_defaults()


def reading(repository: SyncRepository) -> None:
    """Everything that somebody who only looks at one namespace does."""
    repository.ping()
    repository.get_version_record()
    repository.get_namespace(TENANT)
    repository.get_entity("child")
    repository.get_children("owner")
    repository.list_entities()
    repository.get_system_defaults()
    repository.get_resource_defaults(RESOURCE)
    repository.get_limits("child", RESOURCE)
    repository.get_config("entity", "child", RESOURCE)
    repository.batch_get_configs([(f"{repository.namespace_id}/SYSTEM#", "#CONFIG")])
    repository.resolve_limits("child", RESOURCE)
    repository.explain("child", RESOURCE)
    repository.list_resources_with_defaults()
    repository.list_resources_with_entity_configs()
    repository.list_entities_with_custom_limits(RESOURCE)
    repository.list_switches()
    repository.get_bucket("child", RESOURCE)
    repository.get_buckets("child")
    repository.get_resource_buckets(RESOURCE)
    repository.batch_get_buckets([("child", RESOURCE), ("owner", RESOURCE)])
    repository.get_resource_capacity(RESOURCE, "rpm")
    repository.get_audit_events("child")
    repository.get_usage_snapshots("child")
    repository.get_usage_snapshots(resource=RESOURCE)
    repository.get_usage_summary("child")
    repository.get_reports()


def registry(repository: SyncRepository) -> None:
    """Everything that somebody who administers the table does to its namespaces and its version."""
    repository.register_namespace("short-lived")
    repository.register_namespaces(["short-lived", "other"])
    repository.namespace("short-lived").set_system_defaults(LIMITS)
    repository.list_namespaces()
    gone = repository.delete_namespace("short-lived")
    repository.list_orphan_namespaces()
    repository.recover_namespace(gone.namespace_id)
    repository.delete_namespace("short-lived")
    assert repository.purge_namespace(gone.namespace_id)
    repository.set_version_record()
