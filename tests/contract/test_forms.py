"""What programs for the established package read and call: each form next to the one of this package."""

import json
import pickle
import warnings
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import pytest

import zae_limiter_aggregator
from tests.records.store import Store
from zae_limiter import (
    AuditAction,
    AuditEvent,
    Availability,
    BackendCapabilities,
    BucketState,
    CacheStats,
    ClosedError,
    Entity,
    Limit,
    LimiterConfig,
    LimiterInfo,
    LimitStatus,
    NamespaceNotFoundError,
    NamespaceStateError,
    NoLimitsError,
    OnUnavailable,
    RateLimiter,
    RateLimiterUnavailable,
    Repository,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
    VersionMismatchError,
    bucket,
)
from zae_limiter.established import FORMER, way_out

RPM, TPM = Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 1_000)


def test_an_entity_answers_to_its_other_names() -> None:
    """``id``, and whether it is a parent or a child."""
    org, key = Entity("org"), Entity("key", parent_id="org")
    assert (org.id, org.is_parent, org.is_child) == ("org", True, False)
    assert (key.id, key.is_parent, key.is_child) == ("key", False, True)


async def test_a_namespace_is_its_id_and_a_mapping(store: Store) -> None:
    """Registering returns the id as text, listing returns what reads as dicts."""
    repository = await store.repository()
    made = await repository.register_namespace("team-a")
    assert isinstance(made, str)
    assert made == made.namespace_id == str(made)
    assert pickle.loads(pickle.dumps(made)).namespace_name == "team-a"
    found = await repository.get_namespace("team-a")
    assert found is not None
    assert found == made
    assert made == found
    assert {made: 1}[found] == 1
    assert list(found) == ["name", "namespace_id", "status", "created_at"]
    assert (found["name"], found["namespace_id"], found["status"]) == ("team-a", made, "active")
    assert (found["namespace"], found.get("nothing"), "deleted_at" in dict(found)) == ("team-a", None, False)
    assert json.loads(json.dumps(dict(found)))["namespace_id"] == made
    assert found == dict(found)
    assert found != {**found, "name": "team-b"}
    assert await repository.register_namespaces(["team-a", "default"]) == {
        "team-a": made,
        "default": repository.namespace_id,
    }
    assert [one["name"] for one in await repository.list_namespaces()] == ["default", "team-a"]
    await repository.delete_namespace("team-a")
    (orphan,) = await repository.list_orphan_namespaces()
    assert (orphan["namespace"], orphan["namespace_id"]) == ("team-a", made)
    assert orphan["deleted_at"] is not None
    assert await repository.recover_namespace(made) == "team-a"


async def test_answers_of_a_repository(store: Store) -> None:
    """``ping`` is a bool, the version record a mapping, one limit of a bucket a state or ``None``."""
    repository = await store.repository()
    assert await repository.ping() is True
    record = await repository.get_version_record()
    assert record is not None
    assert record["schema_version"] == record.schema_version
    assert set(record) == {
        *("schema_version", "lambda_version", "client_min_version"),
        *("updated_at", "updated_by"),
    }
    await repository.set_version_record(record["schema_version"], client_min_version=None)
    await repository.set_system_defaults([RPM, TPM])
    async with RateLimiter(repository).acquire("key-1", "gpt-4", {"rpm": 1}):
        pass
    state = await repository.get_bucket("key-1", "gpt-4", "rpm")
    assert state is not None
    assert (state.tokens, state.capacity, state.limit) == (59, 60, RPM)
    assert await repository.get_bucket("key-1", "gpt-4", "nothing") is None
    assert await repository.get_bucket("nobody", "gpt-4", "rpm") is None
    assert await repository.get_bucket("key-1", "gpt-4", "rpm", 1) is None
    both = await repository.get_bucket("key-1", "gpt-4")
    assert [one.limit_name for one in both] == ["rpm", "tpm"]
    assert await repository.get_buckets("key-1", "gpt-4", 0) == both
    assert await repository.get_buckets("key-1", shard_id=1) == []
    by_limit = {("key-1", "gpt-4", one.limit_name): one for one in both}
    assert await repository.batch_get_buckets([("key-1", "gpt-4", 0), ("nobody", "gpt-4", 0)]) == by_limit
    assert await repository.batch_get_buckets([("key-1", "gpt-4", "rpm")]) == {
        ("key-1", "gpt-4", "rpm"): state
    }
    assert await repository.batch_get_buckets([("key-1", "gpt-4")]) == {("key-1", "gpt-4"): both}


async def test_several_levels_are_read_at_once(store: Store) -> None:
    """By the keys of their records; a level that says nothing is left out, another namespace refused."""
    repository = await store.repository()
    await repository.set_system_defaults([RPM], on_unavailable="allow")
    system, nothing = (
        (f"{repository.namespace_id}/SYSTEM#", "#CONFIG"),
        (
            f"{repository.namespace_id}/RESOURCE#gpt-4",
            "#CONFIG",
        ),
    )
    assert await repository.batch_get_configs([system, nothing, system]) == {
        system: ([RPM], OnUnavailable.ALLOW)
    }
    with pytest.raises(ValidationError, match="not in this namespace"):
        await repository.batch_get_configs([("_/SYSTEM#", "#CONFIG")])


async def test_a_cache_is_invalidated_with_or_without_await(store: Store) -> None:
    """It is done when the call returns, and what it returns may be awaited."""
    repository = await store.repository()
    await repository.resolve_limits("key-1", "gpt-4")
    for _ in range(2):
        missed = repository.get_cache_stats().misses
        repository.invalidate_config_cache()
        await repository.resolve_limits("key-1", "gpt-4")
        assert repository.get_cache_stats().misses > missed
    missed = repository.get_cache_stats().misses
    assert await repository.invalidate_config_cache() is None
    await repository.resolve_limits("key-1", "gpt-4")
    assert repository.get_cache_stats().misses > missed


async def test_times_without_a_zone_are_in_utc(store: Store) -> None:
    """As those of the snapshots are."""
    repository = await store.repository()
    naive, aware = datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)  # noqa: DTZ001
    for start_time in (naive, aware, "2024-01-01"):
        assert await repository.get_usage_snapshots("key-1", start_time=start_time) == ([], None)
        assert (await repository.get_usage_summary("key-1", end_time=start_time)).snapshot_count == 0


async def test_setting_no_limits_deletes_them_with_a_warning(store: Store) -> None:
    """At each level; what a level says beside its limits stays."""
    repository = await store.repository()
    await repository.set_limits("key-1", [RPM], "gpt-4")
    with pytest.warns(DeprecationWarning, match="setting no limits is deprecated: delete them instead"):
        await repository.set_limits("key-1", [], "gpt-4")
    assert await repository.get_config("entity", "key-1", "gpt-4") is None
    await repository.set_system_defaults([RPM], on_unavailable="allow")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        await repository.set_system_defaults([])
    assert await repository.get_system_defaults() == ([], OnUnavailable.ALLOW)
    await repository.set_resource_defaults("gpt-4", [], on_unavailable="block")
    config = await repository.get_config("resource", resource="gpt-4")
    assert config == LimiterConfig((), OnUnavailable.BLOCK, config_version=1)


async def test_a_warning_names_the_line_that_is_to_change(store: Store) -> None:
    """Not one of the package, in whichever colour: Python shows it only to those whose line it is."""
    repository = await store.repository()
    with warnings.catch_warnings(record=True) as told, SyncRateLimiter.open("memory://") as limiter:
        warnings.simplefilter("always")
        await repository.set_limits("key-1", [])
        await RateLimiter(repository).set_limits("key-1", [])
        limiter.set_limits("key-1", [])
        limiter.available("key-1", "gpt-4", [RPM], use_stored_limits=True)
    assert [one.filename for one in told if one.category is DeprecationWarning] == [__file__] * 4


async def test_use_stored_limits_is_accepted_with_a_warning(store: Store) -> None:
    """By ``acquire`` and by the questions; it changes nothing."""
    repository = await store.repository()
    await repository.set_system_defaults([RPM])
    limiter = RateLimiter(repository=repository)
    with pytest.warns(DeprecationWarning, match="use_stored_limits is deprecated"):
        assert await limiter.available("key-1", "gpt-4", use_stored_limits=True) == {"rpm": 60}
    with pytest.warns(DeprecationWarning, match="deprecated"):
        assert await limiter.time_until_available("key-1", "gpt-4", {"rpm": 1}, use_stored_limits=True) == 0
    with pytest.warns(DeprecationWarning, match="deprecated"):
        async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, use_stored_limits=True):
            pass


async def test_the_principal_comes_before_the_policy(store: Store) -> None:
    """In the order in which callers pass them without a name."""
    repository = await store.repository()
    await repository.set_limits("key-1", [RPM], "gpt-4", "ann")
    await repository.set_resource_defaults("gpt-4", [RPM], "ben")
    for audited, principal in (("key-1", "ann"), ("$RESOURCE:gpt-4", "ben")):
        (event,) = await repository.get_audit_events(audited)
        assert event.principal == principal


async def test_a_builder_registers_the_default_namespace_only(store: Store) -> None:
    """A mistyped name is told, and makes nothing; ``open`` still registers what it is asked for."""
    repository = await store.repository()
    opened = Repository._enter_connection(repository._connection, "typo", register=True, default_only=True)
    with pytest.raises(NamespaceNotFoundError, match="'typo' does not exist") as told:
        await opened
    assert told.value.namespace_name == "typo"


def test_a_builder_stores_its_policy_for_all(tmp_path: object) -> None:
    """``on_unavailable`` becomes the system's default beside what is stored there, and is written once."""
    url = f"sqlite:///{tmp_path}/limits.db"
    with SyncRepository.builder().store(url).build() as repository:
        repository.set_system_defaults([RPM])
    for _ in range(2):
        with SyncRepository.builder().store(url).on_unavailable(OnUnavailable.ALLOW).build() as repository:
            assert repository.get_system_defaults() == ([RPM], OnUnavailable.ALLOW)
            assert repository.resolve_limits("key-1", "gpt-4")[1] is OnUnavailable.ALLOW
            assert len(repository.get_audit_events("$SYSTEM")) == 2
    with pytest.raises(NamespaceNotFoundError, match="'typo' does not exist; register_namespace makes it"):
        SyncRepository.builder().store(url).namespace("typo").build()
    with SyncRepository.builder().store(url).namespace("default").build() as repository:
        assert [one["name"] for one in repository.list_namespaces()] == ["default"]


def test_a_builder_of_another_namespace_registers_the_default(tmp_path: object) -> None:
    """Even where it then finds that the other one is missing."""
    url = f"sqlite:///{tmp_path}/limits.db"
    with pytest.raises(NamespaceNotFoundError):
        SyncRepository.builder().store(url).namespace("team-a").build()
    with SyncRepository.connect(store=url) as repository:
        repository.register_namespace("team-a")
    with SyncRepository.builder().store(url).namespace("team-a").build() as repository:
        assert repository.namespace_name == "team-a"


def test_former_options_say_what_took_their_place() -> None:
    """The constructor that opened a table by itself, and every option that is gone."""
    with SyncRepository.open(store="memory://") as repository:
        for name in FORMER:
            with pytest.raises(TypeError) as told:
                SyncRateLimiter(repository, **{name: "x"})
            assert way_out(name, "", sync=True) in str(told.value)
        with pytest.raises(TypeError, match="unexpected argument 'nonsense': there is no such option"):
            SyncRateLimiter(repository, nonsense=1)
    with pytest.raises(TypeError, match=r"await Repository.open\(stack='limits'\)"):
        Repository("limits")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=r"pass what `await Repository.open\(\)` returns"):
        RateLimiter()
    for name in ("auto_update", "parallel_mode"):
        with pytest.raises(ValidationError) as refused:
            SyncRepository.open(store="memory://", **{name: True})
        assert way_out(name, "", sync=True) in str(refused.value)


def test_what_is_not_there_yet_is_an_error_of_python() -> None:
    """As the guide for such programs says; when one of these learns to hint, the guide has to."""
    guide = (Path(__file__).resolve().parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")
    with SyncRateLimiter.open("memory://") as limiter:
        absent = {
            "Repository(name=…)": lambda: SyncRepository(name="limits"),  # type: ignore[call-arg]
            "acquire(…, also=…)": lambda: limiter.acquire("key", "api", {"rpm": 1}, also=[]),  # type: ignore[call-arg]
        }
        for written, call in absent.items():
            assert f"`{written}`" in guide
            with pytest.raises(TypeError, match=r"got an unexpected keyword argument '[a-z]+'$"):
                call()
        assert "`top_up(…, idempotency_key=…)`" in guide
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'idempotency_key'$"):
            limiter.top_up("key", "api", {"rpm": 1}, idempotency_key="k-1")  # type: ignore[call-arg]


def test_a_limiter_tells_its_stack_with_a_warning() -> None:
    """``name``, ``stack_name`` and ``table_name`` are the repository's."""
    with SyncRateLimiter.open("memory://") as limiter:
        for name in ("name", "stack_name", "table_name"):
            with pytest.warns(DeprecationWarning, match=f"limiter.{name} is deprecated"):
                assert getattr(limiter, name) is limiter.repository.stack_name


def test_a_deprecated_form_may_be_used_in_code_of_no_module() -> None:
    """Such as a template engine's, which runs in globals without a name."""
    with SyncRateLimiter.open("memory://") as limiter, pytest.warns(DeprecationWarning, match="limiter.name"):
        exec("limiter.name", {"limiter": limiter})


def test_the_settings_of_the_aggregator_have_their_former_name() -> None:
    assert zae_limiter_aggregator.Settings is zae_limiter_aggregator.AggregatorSettings


def test_an_event_tells_details_of_any_mapping() -> None:
    event = AuditEvent("1", "t", AuditAction.ENTITY_CREATED, "e", details=MappingProxyType({"a": 1}))
    assert event.to_dict()["details"] == {"a": 1}


def test_forms_of_the_models() -> None:
    """What else they were asked for."""
    short, enough = (
        LimitStatus("key-1", "gpt-4", "tpm", TPM, 100, 500, True, 24.0),
        LimitStatus("key-1", "gpt-4", "rpm", RPM, 60, 1, False, 0.0),
    )
    assert (short.deficit, enough.deficit) == (400, 0)
    there = Availability({"tpm": 100, "rpm": 60}, 24.0, (short, enough), "key-1", "gpt-4", 5)
    assert (there.allowed, there.exceeded, there.deficit) == (False, ["tpm"], {"tpm": 400})
    assert (there.needed, there.limits) == ({"tpm": 500, "rpm": 1}, [TPM, RPM])
    assert (there.status("rpm"), there.status("nothing")) == (enough, None)
    full = BucketState.from_limit("key-1", "gpt-4", TPM, 5)
    assert (full.tokens, full.capacity, full.last_refill_ms) == (1_000, 1_000, 5)
    assert Limit.from_bucket_state(full) == full.limit == TPM
    assert CacheStats(1, 2, 3, 60).as_dict() == {"hits": 1, "misses": 2, "size": 3, "ttl": 60}
    sqlite = BackendCapabilities("sqlite", streams=True)
    assert (sqlite.supports_change_streams, sqlite.supports_infrastructure_management) == (True, False)
    assert sqlite.supports_audit_logging and sqlite.supports_usage_snapshots  # noqa: PT018 - one fact
    assert sqlite.supports_batch_operations


async def test_an_audit_event_is_told_and_read_back(store: Store) -> None:
    """As plain JSON."""
    repository = await store.repository()
    await repository.create_entity("org", principal="ann")
    (event,) = await repository.get_audit_events("org")
    told = json.loads(json.dumps(event.to_dict()))
    assert (told["action"], told["principal"], "resource" in told) == ("entity_created", "ann", False)
    assert AuditEvent.from_dict(told) == event


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        ("CREATE_COMPLETE", (True, False, False)),
        ("UPDATE_COMPLETE", (True, False, False)),
        ("ROLLBACK_COMPLETE", (False, True, False)),
        ("DELETE_FAILED", (False, True, False)),
        ("UPDATE_IN_PROGRESS", (False, False, True)),
        ("ROLLBACK_IN_PROGRESS", (False, True, True)),
        ("DELETE_COMPLETE", (False, False, False)),
    ],
)
def test_what_the_state_of_a_stack_means(status: str, meaning: tuple[bool, bool, bool]) -> None:
    """Healthy, failed, in progress."""
    info = LimiterInfo("limits", "eu-west-1", status)
    assert (info.is_healthy, info.is_failed, info.is_in_progress) == meaning
    assert info.user_name == info.stack_name == "limits"


async def test_an_outage_says_whose_acquire_it_was(store: Store) -> None:
    """``RateLimiterUnavailable`` knows its cause, the entity, the resource and the stack."""
    error = RateLimiterUnavailable("no answer", ValueError("why"))
    assert (str(error.cause), error.entity_id, error.resource, error.stack_name) == ("why", None, None, None)
    mine, theirs = error.about("key-1", "gpt-4", "limits"), error.about("key-2", "gpt-4", "limits")
    assert (mine.entity_id, theirs.entity_id, theirs.stack_name) == ("key-1", "key-2", "limits")
    assert str(theirs) == str(mine)
    again = pickle.loads(pickle.dumps(mine))
    assert (again.entity_id, again.resource, again.stack_name) == ("key-1", "gpt-4", "limits")
    repository = await store.repository()
    await repository.set_system_defaults([RPM])

    async def fail(*_: object, **__: object) -> None:
        raise RateLimiterUnavailable("no answer") from TimeoutError("late")

    repository.plan = fail  # type: ignore[assignment, method-assign]
    with pytest.raises(RateLimiterUnavailable) as told:
        async with RateLimiter(repository).acquire("key-1", "gpt-4", {"rpm": 1}):
            pass
    assert (told.value.entity_id, told.value.resource) == ("key-1", "gpt-4")
    assert isinstance(told.value.cause, TimeoutError)


async def test_errors_carry_what_they_are_about(store: Store) -> None:
    """Names of namespaces and states, versions of clients and schemas."""
    repository = await store.repository()
    made = await repository.register_namespace("team-a")
    with pytest.raises(NamespaceStateError) as in_use:
        await repository.purge_namespace(made)
    assert (in_use.value.namespace_name, in_use.value.state) == ("team-a", "active")
    with pytest.raises(NamespaceNotFoundError) as missing:
        await repository.namespace("nowhere")
    assert missing.value.namespace_name == "nowhere"
    await repository.set_version_record(client_min_version="99.0.0")
    with pytest.raises(VersionMismatchError) as mismatch:
        await store.repository()
    error = mismatch.value
    record = await repository.get_version_record()
    assert record is not None
    assert error.schema_version == record.schema_version
    assert error.client_version is not None
    assert (error.lambda_version, error.can_auto_update) == (None, False)


async def test_no_limits_is_an_error_of_its_own(store: Store) -> None:
    """It says what to call, and is still a ``ValidationError`` about limits."""
    repository = await store.repository()
    with pytest.raises(
        NoLimitsError, match="call set_system_defaults, set_resource_defaults or set_limits"
    ) as e:
        async with RateLimiter(repository).acquire("key-1", "gpt-4", {"rpm": 1}):
            pass
    assert (e.value.field, e.value.entity_id, e.value.resource) == ("limits", "key-1", "gpt-4")
    assert isinstance(e.value, ValidationError)
    assert str(pickle.loads(pickle.dumps(e.value))) == str(e.value)


def test_reprs_say_what_somebody_holds() -> None:
    """Limiter, lease, repository: whose, where and in which state, and never a secret."""
    with SyncRateLimiter.open("memory://") as limiter:
        assert repr(limiter).startswith("<SyncRateLimiter of namespace 'default'")
        assert repr(limiter.repository) == "<SyncRepository of namespace 'default' in 'memory://'>"
        with limiter.acquire("key-1", "gpt-4", {"rpm": 2}, [RPM]) as lease:
            assert repr(lease) == "<SyncLease of 'key-1' on 'gpt-4', consumed={'rpm': 2}>"
        assert repr(lease) == "<SyncLease of 'key-1' on 'gpt-4', consumed={'rpm': 2}, ended>"
    assert repr(limiter.repository).endswith(", closed>")
    with pytest.raises(ClosedError):
        limiter.available("key-1", "gpt-4", [RPM])


def test_the_arithmetic_takes_the_arguments_it_used_to() -> None:
    """Each function of ``bucket`` by the names of its arguments."""
    state = BucketState("key-1", "gpt-4", "tpm", 5_000, 0, 10_000, 10_000, 60_000)
    assert bucket.refill_bucket(
        tokens_milli=5_000,
        last_refill_ms=0,
        now_ms=7_000,
        capacity_milli=10_000,
        refill_amount_milli=10_000,
        refill_period_ms=60_000,
    ) == (6_166, 7_000)
    taken = bucket.try_consume(state=state, requested=6, now_ms=7_000)
    assert (taken.success, taken.new_tokens_milli, taken.available) == (True, 166, 6)
    assert bucket.force_consume(state=state, amount=9, now_ms=7_000)[0] == -2_834
    assert bucket.calculate_retry_after(1_000, refill_amount_milli=10_000, refill_period_ms=60_000) == 6.0
    assert bucket.calculate_available(state=state, now_ms=7_000) == 6
    limit = Limit("tpm", 10, 10, 60)
    status = bucket.build_limit_status("key-1", "gpt-4", limit, state, 9, now_ms=7_000)
    assert (status.available, status.exceeded) == (6, True)
    assert bucket.would_refill_satisfy([state], {"tpm": 9}, now_ms=7_000) == (False, [status])


@pytest.mark.parametrize("name", ["rejection_cache_ttl", "stamp_ttl", "enable_provisioner"])
def test_options_that_a_builder_has_no_more_say_what_took_their_place(name: str) -> None:
    for builder in (Repository.builder(), SyncRepository.builder()):
        with pytest.raises(AttributeError, match=name) as refused:
            getattr(builder, name)
        assert FORMER[name] in str(refused.value)
        assert not hasattr(builder, "never_heard_of")


@pytest.mark.parametrize("other", [{"store": "sqlite:///other.db"}, {"stack": "limits"}], ids=str)
def test_one_store_is_named_once(other: dict[str, str]) -> None:
    """A URL and another store contradict each other, and neither is silently preferred."""
    with pytest.raises(ValidationError, match="the URL 'memory://' names another store"):
        SyncRateLimiter.open("memory://", **other)
