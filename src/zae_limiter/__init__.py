"""A token-bucket rate limiter whose shared state lives in one table.

>>> from zae_limiter import Limit, SyncRateLimiter
>>> with SyncRateLimiter.open("memory://") as limiter:
...     with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, [Limit.per_minute("rpm", 60)]) as lease:
...         lease.consumed
{'rpm': 1}
"""

# ruff: noqa: F403, F405 - the two modules list what they export
from typing import TYPE_CHECKING, Any

from .builder import RepositoryBuilder
from .decorator import AcquireOptions, limited
from .established import former_names
from .exceptions import *
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
from .version import client_version

if TYPE_CHECKING:
    from .infra.stack_manager import StackManager, SyncStackManager

__version__ = client_version()

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


def __getattr__(name: str) -> Any:
    """Stacks are loaded when they are first asked for: a program that only limits needs none of that."""
    if name in {"StackManager", "SyncStackManager"}:
        from .infra import stack_manager

        return getattr(stack_manager, name)
    return former_names(__name__)(name)
