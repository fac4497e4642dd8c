"""The sync twins: declarations only.

Each method is the async one, driven to its end over a store that was opened for sync. Signatures and
docstrings are the async ones, and the type checker sees them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, Unpack, overload

from .builder import RepositoryOptions
from .decorator import Decorator, Limiting
from .established import LimiterForms, refuse_former
from .exceptions import ValidationError
from .limiter import RateLimiter, deployed, located
from .models import BackendCapabilities, Limit, LimiterInfo, OnUnavailable
from .models.demand import Demand
from .models.leases import OnError
from .records.connection import Options
from .repository import Repository
from .repository_protocol import Backend
from .runtime.colour import blocking, plain, run_sync, wrapping
from .runtime.world import World
from .settings import Settings
from .sync_lease import TWINS, SyncAcquisition, SyncJointAcquisition


class SyncRepository:
    """The sync twin of ``Repository``."""

    def __init__(self, repository: Repository) -> None:
        if not isinstance(repository, Repository):
            raise TypeError(f"open a repository with `{type(self).__name__}.open(stack={repository!r})`")
        self._async = repository

    @classmethod
    def open(cls, namespace: str | None = None, **settings: Unpack[Settings]) -> Self:
        """See ``Repository.open``."""
        return cls(run_sync(Repository._open(settings, namespace, sync=True)))

    @classmethod
    def connect(cls, namespace: str | None = None, **settings: Unpack[Settings]) -> Self:
        """See ``Repository.connect``."""
        return cls(run_sync(Repository._open(settings, namespace, sync=True, register=False)))

    @classmethod
    def builder(cls) -> SyncRepositoryBuilder:
        """See ``Repository.builder``."""
        return SyncRepositoryBuilder()

    @classmethod
    def over(
        cls,
        backend: Backend,
        namespace: str | None = None,
        options: Options | None = None,
        world: World | None = None,
        *,
        url: str = "",
        register: bool = True,
    ) -> Self:
        """See ``Repository.over``."""
        return cls(run_sync(Repository.over(backend, namespace, options, world, url=url, register=register)))

    def namespace(self, name: str) -> SyncRepository:
        """See ``Repository.namespace``."""
        return SyncRepository(run_sync(self._async.namespace(name)))

    @property
    def namespace_name(self) -> str:
        """See ``Repository.namespace_name``."""
        return self._async.namespace_name

    @property
    def namespace_id(self) -> str:
        """See ``Repository.namespace_id``."""
        return self._async.namespace_id

    @property
    def capabilities(self) -> BackendCapabilities:
        """See ``Repository.capabilities``."""
        return self._async.capabilities

    @property
    def store(self) -> str:
        """See ``Repository.store``."""
        return self._async.store

    @property
    def stack_name(self) -> str | None:
        """See ``Repository.stack_name``."""
        return self._async.stack_name

    @property
    def table_name(self) -> str | None:
        """See ``Repository.table_name``."""
        return self._async.table_name

    @property
    def region(self) -> str | None:
        """See ``Repository.region``."""
        return self._async.region

    @property
    def endpoint_url(self) -> str | None:
        """See ``Repository.endpoint_url``."""
        return self._async.endpoint_url

    def __repr__(self) -> str:
        return repr(self._async).replace("<", "<Sync", 1)

    create_entity = blocking(Repository.create_entity)
    get_entity = blocking(Repository.get_entity)
    update_entity = blocking(Repository.update_entity)
    set_parent = blocking(Repository.set_parent)
    delete_entity = blocking(Repository.delete_entity)
    get_children = blocking(Repository.get_children)
    list_entities = blocking(Repository.list_entities)

    top_up = blocking(Repository.top_up)
    reset = blocking(Repository.reset)
    forgive = blocking(Repository.forgive)

    set_system_defaults = blocking(Repository.set_system_defaults)
    get_system_defaults = blocking(Repository.get_system_defaults)
    delete_system_defaults = blocking(Repository.delete_system_defaults)
    set_resource_defaults = blocking(Repository.set_resource_defaults)
    get_resource_defaults = blocking(Repository.get_resource_defaults)
    delete_resource_defaults = blocking(Repository.delete_resource_defaults)
    list_resources_with_defaults = blocking(Repository.list_resources_with_defaults)
    set_limits = blocking(Repository.set_limits)
    get_limits = blocking(Repository.get_limits)
    delete_limits = blocking(Repository.delete_limits)
    list_entities_with_custom_limits = blocking(Repository.list_entities_with_custom_limits)
    list_resources_with_entity_configs = blocking(Repository.list_resources_with_entity_configs)
    get_config = blocking(Repository.get_config)
    set_config = blocking(Repository.set_config)
    disable = blocking(Repository.disable)
    enable = blocking(Repository.enable)
    bypass = blocking(Repository.bypass)
    list_switches = blocking(Repository.list_switches)
    set_entity_cascade = blocking(Repository.set_entity_cascade)
    set_resource_cascade = blocking(Repository.set_resource_cascade)
    batch_get_configs = blocking(Repository.batch_get_configs)
    resolve_limits = blocking(Repository.resolve_limits)
    explain = blocking(Repository.explain)
    invalidate_config_cache = plain(Repository.invalidate_config_cache)
    get_cache_stats = plain(Repository.get_cache_stats)

    register_namespace = blocking(Repository.register_namespace)
    register_namespaces = blocking(Repository.register_namespaces)
    get_namespace = blocking(Repository.get_namespace)
    list_namespaces = blocking(Repository.list_namespaces)
    list_orphan_namespaces = blocking(Repository.list_orphan_namespaces)
    delete_namespace = blocking(Repository.delete_namespace)
    recover_namespace = blocking(Repository.recover_namespace)
    purge_namespace = blocking(Repository.purge_namespace)

    get_bucket = blocking(Repository.get_bucket)
    get_buckets = blocking(Repository.get_buckets)
    get_resource_buckets = blocking(Repository.get_resource_buckets)
    batch_get_buckets = blocking(Repository.batch_get_buckets)
    get_resource_capacity = blocking(Repository.get_resource_capacity)
    speculative_consume = blocking(Repository.speculative_consume)
    transact_write = blocking(Repository.transact_write)
    write_each = blocking(Repository.write_each)

    get_audit_events = blocking(Repository.get_audit_events)
    get_reports = blocking(Repository.get_reports)
    get_usage_snapshots = blocking(Repository.get_usage_snapshots)
    get_usage_summary = blocking(Repository.get_usage_summary)
    get_version_record = blocking(Repository.get_version_record)
    set_version_record = blocking(Repository.set_version_record)

    create_table = blocking(Repository.create_table)
    delete_table = blocking(Repository.delete_table)
    create_stack = blocking(Repository.create_stack)
    delete_stack = blocking(Repository.delete_stack)
    ping = blocking(Repository.ping)
    close = blocking(Repository.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SyncRepositoryBuilder(RepositoryOptions):
    """The sync twin of ``RepositoryBuilder``."""

    def build(self) -> SyncRepository:
        """See ``RepositoryBuilder.build``."""
        return SyncRepository(run_sync(self._build(sync=True)))


class SyncRateLimiter(LimiterForms, Limiting[Decorator]):
    """The sync twin of ``RateLimiter``.

    >>> with SyncRateLimiter.open("memory://") as limiter:
    ...     with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, [Limit.per_minute("rpm", 60)]) as lease:
    ...         lease.consumed
    {'rpm': 1}
    """

    def __init__(
        self, repository: SyncRepository | None = None, speculative_writes: bool = True, **former: Never
    ) -> None:
        refuse_former("SyncRateLimiter", former)
        if not isinstance(repository, SyncRepository):
            raise ValidationError("repository", repository, "pass what `SyncRepository.open()` returns")
        self._async = RateLimiter(repository._async, speculative_writes)
        self._repository = repository

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        namespace: str | None = None,
        speculative_writes: bool = True,
        **settings: Unpack[Settings],
    ) -> Self:
        """See ``RateLimiter.open``."""
        return cls(SyncRepository.open(namespace, **located(url, settings)), speculative_writes)

    @classmethod
    def list_deployed(
        cls,
        region: str | None = None,
        endpoint_url: str | None = None,
        *,
        session: Any = None,
        config: Any = None,
    ) -> list[LimiterInfo]:
        """See ``RateLimiter.list_deployed``."""
        return run_sync(deployed(region, endpoint_url, sync=True, session=session, config=config))

    @property
    def repository(self) -> SyncRepository:
        """See ``RateLimiter.repository``."""
        return self._repository

    @property
    def refunds_lost(self) -> int:
        """See ``RateLimiter.refunds_lost``."""
        return self._async.refunds_lost

    @property
    def soft_exceeded(self) -> int:
        """See ``RateLimiter.soft_exceeded``."""
        return self._async.soft_exceeded

    @property
    def seats_lost(self) -> int:
        """See ``RateLimiter.seats_lost``."""
        return self._async.seats_lost

    @property
    def degraded(self) -> int:
        """See ``RateLimiter.degraded``."""
        return self._async.degraded

    def __repr__(self) -> str:
        return repr(self._async).replace("<", "<Sync", 1)

    if TYPE_CHECKING:

        @overload
        def acquire(
            self,
            entity_id: str,
            resource: str,
            consume: Mapping[str, int],
            limits: Sequence[Limit] | None = None,
            on_unavailable: OnUnavailable | str | None = None,
            use_stored_limits: bool | None = None,
            *,
            on_error: OnError | str | None = None,
        ) -> SyncAcquisition: ...
        @overload
        def acquire(
            self,
            demands: Sequence[Demand],
            /,
            *,
            on_unavailable: OnUnavailable | str | None = None,
            on_error: OnError | str | None = None,
        ) -> SyncJointAcquisition: ...
        def acquire(self, *asked: Any, **more: Any) -> SyncAcquisition: ...

    else:
        acquire = wrapping(TWINS, RateLimiter.acquire)
    available = blocking(RateLimiter.available)
    time_until_available = blocking(RateLimiter.time_until_available)
    check_availability = blocking(RateLimiter.check_availability)
    is_available = blocking(RateLimiter.is_available)

    create_entity = blocking(RateLimiter.create_entity)
    get_entity = blocking(RateLimiter.get_entity)
    update_entity = blocking(RateLimiter.update_entity)
    set_parent = blocking(RateLimiter.set_parent)
    delete_entity = blocking(RateLimiter.delete_entity)
    get_children = blocking(RateLimiter.get_children)
    list_entities = blocking(RateLimiter.list_entities)

    top_up = blocking(RateLimiter.top_up)
    reset = blocking(RateLimiter.reset)
    forgive = blocking(RateLimiter.forgive)

    set_system_defaults = blocking(RateLimiter.set_system_defaults)
    get_system_defaults = blocking(RateLimiter.get_system_defaults)
    delete_system_defaults = blocking(RateLimiter.delete_system_defaults)
    set_resource_defaults = blocking(RateLimiter.set_resource_defaults)
    get_resource_defaults = blocking(RateLimiter.get_resource_defaults)
    delete_resource_defaults = blocking(RateLimiter.delete_resource_defaults)
    list_resources_with_defaults = blocking(RateLimiter.list_resources_with_defaults)
    set_limits = blocking(RateLimiter.set_limits)
    get_limits = blocking(RateLimiter.get_limits)
    delete_limits = blocking(RateLimiter.delete_limits)
    list_entities_with_custom_limits = blocking(RateLimiter.list_entities_with_custom_limits)
    list_resources_with_entity_configs = blocking(RateLimiter.list_resources_with_entity_configs)
    get_config = blocking(RateLimiter.get_config)
    set_config = blocking(RateLimiter.set_config)
    disable = blocking(RateLimiter.disable)
    enable = blocking(RateLimiter.enable)
    bypass = blocking(RateLimiter.bypass)
    list_switches = blocking(RateLimiter.list_switches)
    set_entity_cascade = blocking(RateLimiter.set_entity_cascade)
    set_resource_cascade = blocking(RateLimiter.set_resource_cascade)
    resolve_limits = blocking(RateLimiter.resolve_limits)
    explain = blocking(RateLimiter.explain)
    invalidate_config_cache = plain(RateLimiter.invalidate_config_cache)
    get_cache_stats = plain(RateLimiter.get_cache_stats)

    get_audit_events = blocking(RateLimiter.get_audit_events)
    get_usage_snapshots = blocking(RateLimiter.get_usage_snapshots)
    get_usage_summary = blocking(RateLimiter.get_usage_summary)
    get_resource_capacity = blocking(RateLimiter.get_resource_capacity)

    close = blocking(RateLimiter.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
