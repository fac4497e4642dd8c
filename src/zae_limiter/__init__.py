"""A token-bucket rate limiter whose shared state lives in one table.

>>> from zae_limiter import Limit, SyncRateLimiter
>>> with SyncRateLimiter.open("memory://") as limiter:
...     with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, [Limit.per_minute("rpm", 60)]) as lease:
...         lease.consumed
{'rpm': 1}
"""

from .exceptions import (
    EntityError,
    EntityExistsError,
    EntityNotFoundError,
    IncompatibleSchemaError,
    InfrastructureError,
    InfrastructureNotFoundError,
    InvalidIdentifierError,
    InvalidNameError,
    LeaseExpiredError,
    NamespaceNotFoundError,
    NamespaceStateError,
    RateLimitError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    StackAlreadyExistsError,
    StackOperationError,
    ValidationError,
    VersionError,
    VersionMismatchError,
    ZAELimiterError,
)
from .lease import Lease
from .limiter import RateLimiter
from .models import (
    AuditAction,
    AuditEvent,
    Availability,
    BackendCapabilities,
    BucketState,
    CacheStats,
    ConfigSource,
    Entity,
    Limit,
    LimiterConfig,
    LimitStatus,
    Namespace,
    NamespaceStatus,
    OnUnavailable,
)
from .repository import Repository, Settings
from .sync import SyncLease, SyncRateLimiter, SyncRepository
from .version import client_version
from .world import World

__version__ = client_version()

__all__ = [
    "AuditAction",
    "AuditEvent",
    "Availability",
    "BackendCapabilities",
    "BucketState",
    "CacheStats",
    "ConfigSource",
    "Entity",
    "EntityError",
    "EntityExistsError",
    "EntityNotFoundError",
    "IncompatibleSchemaError",
    "InfrastructureError",
    "InfrastructureNotFoundError",
    "InvalidIdentifierError",
    "InvalidNameError",
    "Lease",
    "LeaseExpiredError",
    "Limit",
    "LimitStatus",
    "LimiterConfig",
    "Namespace",
    "NamespaceNotFoundError",
    "NamespaceStateError",
    "NamespaceStatus",
    "OnUnavailable",
    "RateLimitError",
    "RateLimitExceeded",
    "RateLimiter",
    "RateLimiterUnavailable",
    "Repository",
    "Settings",
    "StackAlreadyExistsError",
    "StackOperationError",
    "SyncLease",
    "SyncRateLimiter",
    "SyncRepository",
    "ValidationError",
    "VersionError",
    "VersionMismatchError",
    "World",
    "ZAELimiterError",
    "__version__",
]
