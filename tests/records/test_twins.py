"""Sync twins and pass-throughs are complete: every public name, the same signature, the same words."""

import inspect
from typing import Any

import pytest

from zae_limiter import (
    Lease,
    Limit,
    RateLimiter,
    Repository,
    StackManager,
    SyncLease,
    SyncRateLimiter,
    SyncRepository,
    SyncStackManager,
)
from zae_limiter.sync import SyncAcquisition

TWINS: list[tuple[type, type]] = [
    (Repository, SyncRepository),
    (RateLimiter, SyncRateLimiter),
    (Lease, SyncLease),
    (StackManager, SyncStackManager),
]

ASYNC_ONLY: dict[str, str] = {
    # What the async side needs for itself, each with its reason.
    "colour": "says how coroutines wait",
    "writer": "the core's own",
    "plan": "the core's own",
    "renewed": "the core's own",
    "notice_changes": "the core's own",
    "is_moved": "the core's own",
    "is_moved_by_now": "the core's own",
    "moved": "the core's own",
    "notice_families": "the core's own",
    "policy_when_down": "the core's own",
}

PASSED_ON = {
    "create_entity get_entity update_entity delete_entity get_children list_entities",
    "set_system_defaults get_system_defaults delete_system_defaults",
    "set_resource_defaults get_resource_defaults delete_resource_defaults list_resources_with_defaults",
    "set_limits get_limits delete_limits list_entities_with_custom_limits list_resources_with_entity_configs",
    "get_config set_config resolve_limits invalidate_config_cache get_cache_stats",
    "get_audit_events get_usage_snapshots get_usage_summary get_resource_capacity",
}


def public(cls: type) -> dict[str, Any]:
    return {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize(("plain", "sync"), TWINS)
def test_every_public_name_has_its_twin(plain: type, sync: type) -> None:
    """Nothing async is left without one, and nothing is twin of nothing."""
    expected = set(public(plain)) - set(ASYNC_ONLY)
    assert set(public(sync)) == expected


def test_the_table_of_exceptions_is_current() -> None:
    """What is listed as async only is there, and has no twin."""
    assert [
        name for name in ASYNC_ONLY if not hasattr(Repository, name) or hasattr(SyncRepository, name)
    ] == []


@pytest.mark.parametrize(
    ("plain", "sync", "name"),
    [(plain, sync, name) for plain, sync in TWINS for name in public(plain) if name not in ASYNC_ONLY],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_twins_have_the_same_signature(plain: type, sync: type, name: str) -> None:
    """Parameters, defaults and documentation; and none of them is a coroutine."""
    one, other = getattr(plain, name), getattr(sync, name)
    assert not inspect.iscoroutinefunction(other)
    if isinstance(one, property) or inspect.ismethod(one):
        assert type(other) is type(one)
        if inspect.ismethod(one):
            assert inspect.signature(other).parameters == inspect.signature(one).parameters
        return
    if (plain, name) == (Repository, "namespace"):
        return
    mine, theirs = inspect.signature(other), inspect.signature(one)
    assert mine.parameters == theirs.parameters
    if name == "acquire":
        assert (theirs.return_annotation, mine.return_annotation) == ("Acquisition", SyncAcquisition)
    else:
        assert mine.return_annotation == theirs.return_annotation
    assert other.__doc__ == (one.__doc__ or "").replace("async with ", "with ").replace("await ", "")


def test_the_limiter_passes_on_what_it_should() -> None:
    """The repository's entity, limit, default, audit and usage methods, as they are."""
    for name in " ".join(PASSED_ON).split():
        passed, own = getattr(RateLimiter, name), getattr(Repository, name)
        assert inspect.signature(passed) == inspect.signature(own)
        assert passed.__wrapped__ is own


def test_what_is_passed_on_arrives() -> None:
    """Positional and named arguments, results and errors."""
    with SyncRateLimiter.open("memory://") as limiter:
        limiter.create_entity("key-1", name="One")
        assert limiter.get_entity("key-1") == limiter.repository.get_entity("key-1")
        limiter.set_limits("key-1", [Limit.per_minute("rpm", 3)], resource="gpt-4")
        assert limiter.resolve_limits("key-1", "gpt-4")[0] == [Limit.per_minute("rpm", 3)]
        limiter.invalidate_config_cache("key-1")
        assert limiter.get_cache_stats().size > 0
