"""The table of the contract is that of the code, and holds every name that was promised."""

import inspect
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

import zae_limiter
from tests.contract.contract import CLASSES, MODULES, PAGE, members_of, page, rows_of
from zae_limiter.established import FORMER_NAMES

ENTITIES = "create_entity get_entity update_entity delete_entity get_children list_entities"
LIMITS = (
    "set_system_defaults get_system_defaults delete_system_defaults set_resource_defaults"
    " get_resource_defaults delete_resource_defaults list_resources_with_defaults set_limits get_limits"
    " delete_limits list_entities_with_custom_limits list_resources_with_entity_configs get_config set_config"
    " resolve_limits invalidate_config_cache get_cache_stats"
)
NAMESPACES = (
    "register_namespace register_namespaces get_namespace list_namespaces delete_namespace recover_namespace"
    " list_orphan_namespaces purge_namespace namespace"
)
BUCKETS = (
    "get_bucket get_buckets get_resource_buckets batch_get_buckets batch_get_configs speculative_consume"
    " transact_write write_each"
)
READING = "get_audit_events get_usage_snapshots get_usage_summary"
PLACES = "stack_name table_name region endpoint_url namespace_name namespace_id capabilities"
LIFE = "open connect builder close ping create_table delete_table create_stack delete_stack"
PROMISED = {
    "RateLimiter": (
        "acquire available time_until_available check_availability get_resource_capacity is_available"
        f" list_deployed close name stack_name table_name {ENTITIES} {LIMITS} {READING}"
    ),
    "Repository": (
        f"{ENTITIES} {LIMITS} {NAMESPACES} {BUCKETS} {READING} {PLACES} {LIFE} get_version_record"
        " set_version_record get_resource_capacity"
    ),
    "Lease": "consumed consume adjust release degraded",
    "RepositoryBuilder": (
        "stack region endpoint_url namespace config_cache_ttl auto_update bucket_ttl_multiplier"
        " on_unavailable snapshot_windows usage_retention_days audit_retention_days enable_aggregator"
        " pitr_recovery_days log_retention_days lambda_timeout lambda_memory enable_alarms alarm_sns_topic"
        " lambda_duration_threshold_pct permission_boundary role_name_format policy_name_format"
        " enable_audit_archival audit_archive_glacier_days enable_tracing create_iam_roles create_iam"
        " aggregator_role_arn enable_deletion_protection tags stack_options session config build"
    ),
}
NAMES = (
    "RateLimiter SyncRateLimiter Repository SyncRepository RepositoryBuilder SyncRepositoryBuilder "
    "Lease SyncLease StackManager SyncStackManager Limit Entity LimitStatus BucketState Availability "
    "UsageSnapshot UsageSummary ResourceCapacity EntityCapacity LimiterInfo Status AuditEvent "
    "AuditAction BackendCapabilities StackOptions LimitName OnUnavailable CacheStats ConfigSource "
    "LimiterConfig ZAELimiterError RateLimitError RateLimitExceeded LeaseExpiredError "
    "InfrastructureError RateLimiterUnavailable StackOperationError StackAlreadyExistsError "
    "InfrastructureNotFoundError NamespaceNotFoundError NamespaceStateError EntityError "
    "EntityNotFoundError EntityExistsError VersionError VersionMismatchError IncompatibleSchemaError "
    "ValidationError InvalidIdentifierError InvalidNameError __version__ "
)
ATTRIBUTES = {
    "RateLimitExceeded": (
        "violations passed primary_violation retry_after_seconds retry_after_header as_dict public_dict"
    ),
    "RateLimiterUnavailable": "cause",
    "Limit": "per_second per_minute per_hour per_day custom refill_rate to_dict from_dict from_bucket_state",
    "Entity": "id is_parent is_child entity_id name parent_id cascade metadata created_at version",
    "LimiterInfo": (
        "stack_name region stack_status version lambda_version schema_version is_healthy is_failed"
        " is_in_progress user_name"
    ),
}
"""What was promised, by the class that has it; the sync twins have the same."""


def test_the_page_is_current() -> None:
    """It was made from this code; `python -m tests.contract.contract` makes it anew."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_name_is_exported() -> None:
    """From the package itself."""
    assert [name for name in NAMES.split() if not hasattr(zae_limiter, name)] == []


@pytest.mark.parametrize("name", PROMISED)
def test_every_promised_member_is_there(name: str) -> None:
    """Async and sync."""
    for owner in (name, f"Sync{name}"):
        assert set(PROMISED[name].split()) - {member for member, _ in rows_of(owner)} == set()


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_every_promised_attribute_is_there(name: str) -> None:
    """Of the models and errors."""
    assert [one for one in ATTRIBUTES[name].split() if not hasattr(getattr(zae_limiter, name), one)] == []


def test_every_function_of_a_module_is_there() -> None:
    """Under the module that was named."""
    missing = [
        f"{module}.{name}"
        for module, names in MODULES.items()
        for name in names.split()
        if not callable(getattr(import_module(module), name, None))
    ]
    assert missing == []


def test_former_names_lead_to_what_took_their_place() -> None:
    """In each module; a name that nobody ever had is missing as ever."""
    for (module, name), (place, now) in FORMER_NAMES.items():
        assert getattr(import_module(module), name) is getattr(import_module(place), now)
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            import_module(module).nonsense  # noqa: B018


def documented() -> list[tuple[str, str]]:
    """Every public member of what is exported, and of the modules that are promised."""
    owners = [n for n in zae_limiter.__all__ if inspect.isclass(getattr(zae_limiter, n)) and n != "World"]
    return [
        (owner, member)
        for owner in owners
        if not owner.endswith("Builder")
        for member, how in members_of(getattr(zae_limiter, owner))
        if how != "attribute" and not hasattr(Exception, member) and not hasattr(str, member)
    ]


def has_words(value: Any) -> bool:
    return bool((inspect.getdoc(value) or "").strip())


@pytest.mark.parametrize(("owner", "member"), documented())
def test_every_public_member_has_a_docstring(owner: str, member: str) -> None:
    """So that ``help`` and an editor have something to say."""
    assert has_words(inspect.getattr_static(getattr(zae_limiter, owner), member))


@pytest.mark.parametrize("name", [n for n in zae_limiter.__all__ if n != "__version__"])
def test_every_exported_name_has_a_docstring(name: str) -> None:
    """One of its own, not the one of a base class or of ``dataclass``."""
    value = getattr(zae_limiter, name)
    words = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    assert (words or "").strip()
    assert not words.startswith(f"{name}(")


def test_the_table_sees_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that vanishes changes the page."""
    monkeypatch.delattr(zae_limiter.Lease, "adjust")
    assert page() != PAGE.read_text(encoding="utf-8")
    assert len(CLASSES) == 12


def test_the_page_does_not_depend_on_the_process() -> None:
    """Another interpreter makes the same page."""
    program = "from tests.contract.contract import page; print(page(), end='')"
    root = PAGE.parents[1]
    made = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=True
    )
    assert made.stdout == page()
