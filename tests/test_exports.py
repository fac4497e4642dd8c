"""The public names: what `zae_limiter` exports is complete, sorted and real."""

import importlib
import inspect

import pytest

import zae_limiter

PUBLIC_MODULES = (
    "models",
    "models.checks",
    "models.deployments",
    "models.usage",
    "exceptions",
    "models.explanation",
    "models.leases",
    "models.switches",
    "limiter",
    "lease",
    "acquisition",
    "joint",
    "models.demand",
    "sync",
    "sync_lease",
    "repository",
    "builder",
    "decorator",
    "settings",
)

# Public by spelling but not exported, each with its reason.
NOT_EXPORTED: dict[str, str] = {
    "Choice": "input check, for the package's own modules",
    "named_amounts": "input check, for the package's own modules",
    "needs_milli": "input check, for the package's own modules",
    "wait_ms": "input check, for the package's own modules",
    "check_count": "input check, for the package's own modules",
    "check_flag": "used where callers pass flags",
    "check_mapping": "input check, for the package's own modules",
    "is_limits": "input check, for the package's own modules",
    "check_limits": "input check, for the package's own modules",
    "check_disabled": "input check, for the package's own modules",
    "check_reason": "input check, for the package's own modules",
    "Decorator": "what limited and SyncRateLimiter.limit return; users apply it and never name it",
    "AsyncDecorator": "what RateLimiter.limit returns; users apply it and never name it",
    "Limiter": "what both limiters are to a decorator",
    "Limiting": "declares the decorator of both limiters",
    "Acquisition": "what acquire returns; users enter it and never name it",
    "SyncAcquisition": "what acquire returns; users enter it and never name it",
    "JointAcquisition": "what acquire returns; users enter it and never name it",
    "SyncJointAcquisition": "what acquire returns; users enter it and never name it",
    "joint_acquisition": "what acquire does with a list of demands",
    "check_demands": "input check, for the package's own modules",
    "DegradedJointLease": "users ask a lease whether it is degraded",
    "DegradedPart": "users ask a lease whether it is degraded",
    "DegradedLease": "users ask a lease whether it is degraded",
    "Opening": "what RateLimiter.open returns; users enter or await it and never name it",
    "RepositoryOptions": "shared by the two colours of the builder",
    "passed_on": "declares what the limiter passes on to the repository",
    "located": "shared by the two colours of open",
    "client_of": "shared by the two colours of open",
    "deployed": "shared by the two colours of list_deployed",
    "options_of": "shared by the two colours of open",
    "scoped": "declares the methods of a repository",
    "settings_of": "shared by the two colours of open",
    "store_url": "shared by the two colours of open",
    "shown": "how values are shown, for the package's own modules",
    "is_user_cut": "how URLs are checked, for the package's own modules",
    "without_secrets": "how URLs are shown, for the package's own modules",
}


def public_definitions(module_name: str) -> list[str]:
    """The classes and functions that a module defines itself under a public name."""
    module = importlib.import_module(f"zae_limiter.{module_name}")
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


def test_every_exported_name_exists() -> None:
    """`from zae_limiter import *` cannot fail."""
    assert [name for name in zae_limiter.__all__ if not hasattr(zae_limiter, name)] == []


def test_exports_are_sorted_and_unique() -> None:
    """A name is found where the alphabet puts it, once."""
    assert list(zae_limiter.__all__) == sorted(set(zae_limiter.__all__))


@pytest.mark.parametrize("module_name", PUBLIC_MODULES)
def test_public_definitions_are_exported(module_name: str) -> None:
    """What looks public can be imported from the top, or the table says why not."""
    missing = set(public_definitions(module_name)) - set(zae_limiter.__all__) - set(NOT_EXPORTED)
    assert sorted(missing) == []


def test_the_table_of_unexported_names_is_current() -> None:
    """An entry whose name is gone, or is exported by now, is removed from the table."""
    defined = {name for module_name in PUBLIC_MODULES for name in public_definitions(module_name)}
    assert [n for n in NOT_EXPORTED if n not in defined or n in zae_limiter.__all__] == []
