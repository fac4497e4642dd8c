"""Opening: which store and namespace, from arguments and the environment; builders; what they refuse."""

import asyncio
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from zae_limiter import (
    InfrastructureError,
    Limit,
    NamespaceNotFoundError,
    OnUnavailable,
    RateLimiter,
    Repository,
    RepositoryBuilder,
    StackOptions,
    SyncRateLimiter,
    SyncRepository,
    SyncRepositoryBuilder,
    UsageWindow,
    ValidationError,
)
from zae_limiter.builder import RepositoryOptions
from zae_limiter.settings import store_url
from zae_limiter.testing import ManualClock


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("ZAEL_NAMESPACE", "ZAEL_STACK", "ZAE_LIMITER_STORE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "variables", "url"),
    [
        ({"store": "memory://"}, {"ZAE_LIMITER_STORE": "memory://env"}, "memory://"),
        ({"stack": "limits"}, {"ZAE_LIMITER_STORE": "memory://env"}, "dynamodb://limits"),
        ({}, {"ZAE_LIMITER_STORE": "memory://env", "ZAEL_STACK": "limits"}, "memory://env"),
        ({}, {"ZAEL_STACK": "limits"}, "dynamodb://limits"),
        ({"region": "eu-west-1"}, {"ZAEL_STACK": "limits"}, "dynamodb://limits?region=eu-west-1"),
        (
            {"stack": "limits", "region": "eu-west-1", "endpoint_url": "http://localhost:8000"},
            {},
            "dynamodb://limits?region=eu-west-1&endpoint_url=http%3A%2F%2Flocalhost%3A8000",
        ),
    ],
)
def test_which_store(
    settings: Any, variables: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL, a stack, the environment's URL, the environment's stack, in this order."""
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert store_url(settings) == url


def test_nothing_configured_is_the_embedded_file(tmp_path: Path) -> None:
    """It is made where the state of the user belongs."""
    with SyncRepository.open() as repository:
        assert repository.store == f"sqlite://{tmp_path}/zae-limiter/limits.db".replace(
            "sqlite://", "sqlite:///", 1
        )
        assert repository.namespace_name == "default"
    assert (tmp_path / "zae-limiter" / "limits.db").exists()


def test_which_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument, then the environment, then ``default``."""
    monkeypatch.setenv("ZAEL_NAMESPACE", "from-env")
    assert SyncRepository.open(store="memory://").namespace_name == "from-env"
    assert SyncRepository.open("mine", store="memory://").namespace_name == "mine"


def test_connecting_needs_a_namespace() -> None:
    """It is not registered on the way, and the error says how to make it."""
    with pytest.raises(NamespaceNotFoundError, match="'new' does not exist; register_namespace makes it"):
        SyncRepository.connect("new", store="memory://connecting")
    opened = SyncRepository.open("other", store="memory://connecting")
    assert [one.namespace_name for one in opened.list_namespaces()] == ["other"]
    opened.register_namespace("new")
    assert SyncRepository.connect("new", store="memory://connecting").namespace_name == "new"


@pytest.mark.parametrize(
    "settings",
    [
        {"store": "memory://", "stack": "limits"},
        {"stack": "no_underscores"},
        {"store": "memory://", "config_cache_ttl": -1},
        {"store": "memory://", "config_cache_ttl": 86_401},
        {"store": "memory://", "config_cache_ttl": "60"},
        {"store": "memory://", "config_cache_ttl": True},
        {"store": "memory://", "bucket_ttl_multiplier": -1},
        {"store": "memory://", "audit_retention_days": 1.5},
        {"store": "memory://", "on_unavailable": "maybe"},
        {"store": "memory://", "colour": "blue"},
    ],
    ids=str,
)
def test_bad_settings_are_refused(settings: Any) -> None:
    """Each with the value and what is allowed, by all ways of opening."""
    with pytest.raises(ValidationError):
        SyncRepository.open(**settings)
    with pytest.raises(ValidationError):
        asyncio.run(Repository.open(**settings))
    with pytest.raises(ValidationError):
        SyncRateLimiter.open(**settings)


def test_views_share_the_store() -> None:
    """A view of another namespace has its own records over the same connection."""
    repository = SyncRepository.open(store="memory://")
    repository.register_namespace("other")
    other = repository.namespace("other")
    assert (other.namespace_name, other.store) == ("other", "memory://")
    assert other.namespace_id != repository.namespace_id
    with pytest.raises(NamespaceNotFoundError):
        repository.namespace("missing")


def test_properties_of_a_table_come_from_its_url() -> None:
    """A store that is no table has none of them."""
    repository = SyncRepository.open(store="memory://")
    assert (repository.table_name, repository.stack_name, repository.region, repository.endpoint_url) == (
        None,
        None,
        None,
        None,
    )
    assert repository.capabilities.name == "memory"
    inner = repository._async
    inner._connection.url = "dynamodb://limits?region=eu-west-1&endpoint_url=http%3A%2F%2Flocalhost%3A8000"
    assert (repository.table_name, repository.stack_name) == ("limits", "limits")
    assert (repository.region, repository.endpoint_url) == ("eu-west-1", "http://localhost:8000")


def test_stores_without_tables() -> None:
    """Making one is nothing to do; deleting one is refused with the way out."""
    repository = SyncRepository.open(store="memory://")
    repository.create_table()
    with pytest.raises(InfrastructureError, match="memory store has no table to delete"):
        repository.delete_table()


def test_tables_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that can make and delete its table is asked to."""
    repository = SyncRepository.open(store="memory://")
    done: list[str] = []

    async def create() -> None:
        done.append("created")

    async def delete() -> None:
        done.append("deleted")

    backend = repository._async._backend
    monkeypatch.setattr(backend, "create_table", create, raising=False)
    monkeypatch.setattr(backend, "delete_table", delete, raising=False)
    repository.create_table()
    repository.delete_table()
    assert done == ["created", "deleted"]


def test_a_builder_opens_what_it_was_told() -> None:
    """Every option that is not a stack's reaches the repository."""
    clock = ManualClock()
    builder = (
        SyncRepository.builder()
        .store("memory://")
        .namespace("default")
        .config_cache_ttl(5)
        .bucket_ttl_multiplier(3)
        .on_unavailable("allow")
        .audit_retention_days(20)
        .auto_update(False)
        .timeout_ms(500)
        .world(clock.world)
    )
    assert isinstance(builder, SyncRepositoryBuilder)
    with builder.build() as repository:
        options = repository._async._connection.options
        assert repository.namespace_name == "default"
        assert repository.get_cache_stats().ttl_seconds == 5
        assert (options.bucket_ttl_multiplier, options.on_unavailable) == (3, OnUnavailable.ALLOW)
        assert options.audit_retention_days == 20
        assert repository._async._connection.world is clock.world


def test_the_async_builder_builds_the_same() -> None:
    """One set of options, two colours."""

    async def work() -> str:
        builder = Repository.builder().store("memory://").namespace("default")
        assert isinstance(builder, RepositoryBuilder)
        async with await builder.build() as repository:
            await RateLimiter(repository).is_available()
            return repository.namespace_name

    assert asyncio.run(work()) == "default"


STACK_ONLY = {
    "stack_options": StackOptions(),
    "snapshot_windows": ["hourly", UsageWindow.DAILY],
    "tags": {"team": "a"},
    **{
        field.name: {"bool": False, "int": 1, "str": "x", "tuple[str,": ["x"]}[str(field.type).split(" ")[0]]
        for field in fields(StackOptions)
        if field.name not in {"snapshot_windows", "tags", "audit_retention_days"}
    },
    "lambda_memory": 128,
    "role_name_format": "x-{}",
    "policy_name_format": "x-{}",
}


@pytest.mark.parametrize("option", STACK_ONLY)
def test_an_embedded_store_has_no_stack(option: str, tmp_path: Path) -> None:
    """Any option of a stack asks for one; that is refused before anything is opened or made."""
    builder = SyncRepository.builder().store(f"sqlite:///{tmp_path}/never.db")
    getattr(builder, option)(STACK_ONLY[option])
    with pytest.raises(ValidationError, match="options of a stack need one"):
        builder.build()
    assert not (tmp_path / "never.db").exists()


def test_the_options_of_a_stack_are_kept() -> None:
    """Single options win over a whole set, and nothing else is asked for."""
    builder = SyncRepository.builder().store("memory://").audit_retention_days(7)
    assert builder.deployment is None
    builder.stack_options(StackOptions(lambda_memory=256, enable_alarms=True)).lambda_memory(512)
    builder.snapshot_windows(["hourly"])
    assert builder.deployment == StackOptions(
        lambda_memory=512,
        enable_alarms=True,
        snapshot_windows=(UsageWindow.HOURLY,),
        audit_retention_days=7,
    )
    with pytest.raises(ValidationError, match="window_type"):
        _ = SyncRepository.builder().snapshot_windows(["weekly"]).deployment


def test_the_documented_options_are_there() -> None:
    """Those of a stack's model are all options of the builder."""
    said = {name for name in dir(RepositoryOptions) if not name.startswith("_")}
    assert {field.name for field in fields(StackOptions)} <= said


def test_limiters_open_in_one() -> None:
    """A URL, a namespace and the settings of the repository."""
    with SyncRateLimiter.open("memory://", namespace="team-a", on_unavailable="allow") as limiter:
        assert limiter.repository.namespace_name == "team-a"
        limiter.set_system_defaults([Limit.per_minute("rpm", 5)])
        with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
            assert limiter.available("key-1", "gpt-4") == {"rpm": 4}
