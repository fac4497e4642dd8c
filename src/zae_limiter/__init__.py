"""A token-bucket rate limiter whose shared state lives in one table.

>>> from zae_limiter import Limit, SyncRateLimiter
>>> with SyncRateLimiter.open("memory://") as limiter:
...     with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, [Limit.per_minute("rpm", 60)]) as lease:
...         lease.consumed
{'rpm': 1}

A name is loaded with its module when somebody first asks for it, so that importing the package costs next to
nothing and a program pays for what it uses. Type checkers read the imports below; ``HOMES`` says the same
to Python, and a test compares them.
"""

# ruff: noqa: F403, F405 - the two modules list what they export
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .builder import RepositoryBuilder
    from .decorator import AcquireOptions, limited
    from .exceptions import *
    from .infra.stack_manager import StackManager, SyncStackManager
    from .joint import JointLease, LeasePart
    from .lease import Lease
    from .limiter import RateLimiter
    from .models import *
    from .models.changes import BucketChange
    from .models.demand import Demand
    from .models.explanation import ExplainedBucket, ExplainedLevel, ExplainedPhase, Explanation
    from .models.leases import LeaseStatus, OnError
    from .models.refusing import Refusing
    from .models.switches import Bypass, Switch, ThrownSwitch
    from .repository import Repository
    from .runtime.world import World
    from .settings import Settings
    from .sync import SyncRateLimiter, SyncRepository, SyncRepositoryBuilder
    from .sync_lease import SyncJointLease, SyncLease
    from .version import CLIENT_VERSION as __version__

__all__ = [
    "AcquireOptions", "AuditAction", "AuditEvent", "Availability", "BackendCapabilities", "BucketChange",
    "BucketState", "Bypass", "CacheStats", "ClosedError", "ConfigSource", "DamagedRecordError", "Demand",
    "Entity", "EntityCapacity", "EntityConflictError", "EntityError", "EntityExistsError",
    "EntityNotFoundError", "ExplainedBucket", "ExplainedLevel", "ExplainedPhase", "Explanation",
    "IncompatibleSchemaError", "InfrastructureError", "InfrastructureNotFoundError",
    "InvalidIdentifierError", "InvalidNameError",
    "JointLease", "Lease", "LeaseExpiredError", "LeasePart", "LeaseStatus", "Limit", "LimitKind",
    "LimitName", "LimitStatus", "LimiterConfig", "LimiterInfo", "Namespace", "NamespaceNotFoundError",
    "NamespaceStateError", "NamespaceStatus", "NoLimitsError", "OnError", "OnUnavailable",
    "PermissionDenied", "RateLimitError", "RateLimitExceeded", "RateLimiter", "RateLimiterUnavailable",
    "Refusing", "Repository", "RepositoryBuilder", "ResourceCapacity", "ResourceDisabled", "Settings",
    "StackAlreadyExistsError", "StackManager", "StackOperationError", "StackOptions", "Status", "Switch",
    "SwitchedOff", "SyncJointLease", "SyncLease", "SyncRateLimiter", "SyncRepository",
    "SyncRepositoryBuilder", "SyncStackManager", "ThrownSwitch", "UsageSnapshot", "UsageSummary",
    "UsageWindow", "ValidationError", "VersionError", "VersionMismatchError", "VersionRecord", "World",
    "ZAELimiterError", "__version__", "limited",
]  # fmt: skip

HOMES = {
    "builder": "RepositoryBuilder",
    "decorator": "AcquireOptions limited",
    "exceptions": (
        "ClosedError DamagedRecordError EntityConflictError EntityError EntityExistsError "
        "EntityNotFoundError IncompatibleSchemaError InfrastructureError InfrastructureNotFoundError "
        "InvalidIdentifierError InvalidNameError LeaseExpiredError NamespaceNotFoundError "
        "NamespaceStateError NoLimitsError PermissionDenied RateLimitError RateLimitExceeded "
        "RateLimiterUnavailable ResourceDisabled StackAlreadyExistsError StackOperationError SwitchedOff "
        "ValidationError VersionError VersionMismatchError ZAELimiterError"
    ),
    "infra.stack_manager": "StackManager SyncStackManager",
    "joint": "JointLease LeasePart",
    "lease": "Lease",
    "limiter": "RateLimiter",
    "models": (
        "AuditAction AuditEvent Availability BackendCapabilities BucketState CacheStats ConfigSource "
        "Entity EntityCapacity Limit LimitKind LimitName LimitStatus LimiterConfig LimiterInfo Namespace "
        "NamespaceStatus OnUnavailable ResourceCapacity StackOptions Status UsageSnapshot UsageSummary "
        "UsageWindow VersionRecord"
    ),
    "models.changes": "BucketChange",
    "models.demand": "Demand",
    "models.explanation": "ExplainedBucket ExplainedLevel ExplainedPhase Explanation",
    "models.leases": "LeaseStatus OnError",
    "models.refusing": "Refusing",
    "models.switches": "Bypass Switch ThrownSwitch",
    "repository": "Repository",
    "runtime.world": "World",
    "settings": "Settings",
    "sync": "SyncRateLimiter SyncRepository SyncRepositoryBuilder",
    "sync_lease": "SyncJointLease SyncLease",
}
"""Where the public names are."""
_HOME = {name: home for home, names in HOMES.items() for name in names.split()}
_ROOMS = {home.partition(".")[0] for home in HOMES}


if not TYPE_CHECKING:  # which are to see a name that is wrong

    def __getattr__(name: str) -> Any:
        """A public name, or one of these modules; kept, so that it is looked for once."""
        from importlib import import_module

        if name in _HOME:
            found = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        elif name == "__version__":
            from .version import CLIENT_VERSION as found
        elif name in _ROOMS:
            return import_module(f"{__name__}.{name}")
        else:
            from .established import former_names

            return former_names(__name__)(name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
