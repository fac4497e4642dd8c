"""Every setting does something: each is opened with two values, and something differs that a user can see."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.dynamodb.tables import make_table, session
from tests.engines import dynamodb_local
from zae_limiter import Limit, Settings, SyncRateLimiter, SyncRepository
from zae_limiter.schema import bucket_key, pk_audit
from zae_limiter.testing import ManualClock

RPM = Limit.per_minute("rpm", 60)


def stored(repository: SyncRepository) -> dict[Any, Any]:
    """All that a store in memory holds."""
    backend: Any = repository._async._connection.backend
    return dict(backend._shelf.items)


def cache_lives(config_cache_ttl: int) -> Iterator[Any]:
    with SyncRepository.open(store="memory://", config_cache_ttl=config_cache_ttl) as repository:
        yield repository.get_cache_stats().ttl_seconds


def bucket_lives(bucket_ttl_multiplier: int) -> Iterator[Any]:
    clock = ManualClock()
    settings: Settings = {"bucket_ttl_multiplier": bucket_ttl_multiplier, "world": clock.world}
    with SyncRateLimiter.open("memory://", **settings) as limiter:
        with limiter.acquire("key-1", "gpt-4", {"rpm": 60}, [RPM]):
            pass
        yield stored(limiter.repository)[bucket_key(limiter.repository.namespace_id, "key-1", "gpt-4")].get(
            "ttl"
        )


def policy(on_unavailable: str) -> Iterator[Any]:
    with SyncRepository.open(store="memory://", on_unavailable=on_unavailable) as repository:
        yield repository._async.policy_when_down("key-1", "gpt-4")


def audit_lives(audit_retention_days: int) -> Iterator[Any]:
    clock = ManualClock()
    settings: Settings = {"audit_retention_days": audit_retention_days, "world": clock.world}
    with SyncRepository.open(store="memory://", **settings) as repository:
        repository.create_entity("key-1")
        place = pk_audit(repository.namespace_id, "key-1")
        yield [item.get("ttl") for key, item in stored(repository).items() if key.partition == place]


def remembered(remembered_max: int) -> Iterator[Any]:
    with SyncRateLimiter.open("memory://", remembered_max=remembered_max) as limiter:
        for number in range(1_100):
            with limiter.acquire(f"key-{number}", "gpt-4", {"rpm": 1}, [RPM]):
                pass
        yield len(limiter.repository._async.plans)


def patience(timeout_ms: int) -> Iterator[Any]:
    """A store in memory has nothing to wait for; a file has."""
    with SyncRepository.open(store="sqlite:///limits.db", timeout_ms=timeout_ms) as repository:
        yield repository.capabilities.timeout_ms


def clocks(start_ms: int) -> Iterator[Any]:
    with SyncRepository.open(store="memory://", world=ManualClock(start_ms).world) as repository:
        yield repository.create_entity("key-1").created_at


def stores(store: str) -> Iterator[Any]:
    with SyncRepository.open(store=store) as repository:
        yield repository.capabilities.name


def tables(region: str) -> Iterator[Any]:
    """Table, region and endpoint are where the repository was opened."""
    table = make_table()
    settings: Settings = {"stack": table, "region": region, "endpoint_url": dynamodb_local.endpoint()}
    with SyncRepository.open(**settings, session=session(True)) as repository:
        assert repository.ping()
        assert (repository.stack_name, repository.endpoint_url) == (table, dynamodb_local.endpoint())
        yield repository.region


def clients(name: str) -> Iterator[Any]:
    """A session and a config reach the client that the store is opened with, and that a stack would be."""
    table, given = make_table(), {name: session(True)} if name == "session" else {}
    if name == "config":
        from botocore.config import Config

        given = {"config": Config(user_agent_extra="mine")}
    settings: Any = {
        "stack": table,
        "region": "eu-west-1",
        "endpoint_url": dynamodb_local.endpoint(),
        **given,
    }
    with SyncRepository.open(**settings) as repository:
        assert repository.ping()
        yield sorted(repository._async._connection.client)


EFFECTS: dict[str, tuple[Callable[..., Iterator[Any]], Any, Any]] = {
    "store": (stores, "memory://", "sqlite:///limits.db"),
    "stack": (tables, "eu-west-1", "us-east-1"),
    "region": (tables, "eu-west-1", "us-east-1"),
    "endpoint_url": (tables, "eu-west-1", "us-east-1"),
    "config_cache_ttl": (cache_lives, 5, 60),
    "bucket_ttl_multiplier": (bucket_lives, 0, 7),
    "on_unavailable": (policy, "allow", "block"),
    "audit_retention_days": (audit_lives, 0, 7),
    "remembered_max": (remembered, 1_000, 10_000),
    "timeout_ms": (patience, 500, 5_000),
    "session": (clients, "session", "config"),
    "config": (clients, "config", "session"),
    "world": (clocks, 1_700_000_000_000, 1_800_000_000_000),
}


def test_every_setting_is_tried() -> None:
    """A setting that is added without an effect, or taken away, is seen here."""
    assert set(EFFECTS) == set(Settings.__annotations__)


@pytest.mark.parametrize("setting", EFFECTS)
def test_every_setting_does_something(setting: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two values, two outcomes."""
    monkeypatch.chdir(tmp_path)
    effect, one, other = EFFECTS[setting]
    (first,), (second,) = effect(one), effect(other)
    assert first != second
