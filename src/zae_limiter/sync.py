"""The sync twins: declarations only.

Each method is the async one, driven to its end over a store that was opened for sync. Signatures and
docstrings are the async ones, and the type checker sees them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Never, Self, Unpack, overload

from .builder import RepositoryOptions
from .decorator import Decorator, Limiting
from .established import LimiterForms, refuse_former
from .exceptions import ValidationError
from .limiter import RateLimiter, deployed, located
from .models import BackendCapabilities, BucketState, Limit, LimiterInfo, OnUnavailable
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

    create_entity: Final = blocking(Repository.create_entity)
    get_entity: Final = blocking(Repository.get_entity)
    update_entity: Final = blocking(Repository.update_entity)
    set_parent: Final = blocking(Repository.set_parent)
    delete_entity: Final = blocking(Repository.delete_entity)
    get_children: Final = blocking(Repository.get_children)
    list_entities: Final = blocking(Repository.list_entities)

    top_up: Final = blocking(Repository.top_up)
    reset: Final = blocking(Repository.reset)
    forgive: Final = blocking(Repository.forgive)

    set_system_defaults: Final = blocking(Repository.set_system_defaults)
    get_system_defaults: Final = blocking(Repository.get_system_defaults)
    delete_system_defaults: Final = blocking(Repository.delete_system_defaults)
    set_resource_defaults: Final = blocking(Repository.set_resource_defaults)
    get_resource_defaults: Final = blocking(Repository.get_resource_defaults)
    delete_resource_defaults: Final = blocking(Repository.delete_resource_defaults)
    list_resources_with_defaults: Final = blocking(Repository.list_resources_with_defaults)
    set_limits: Final = blocking(Repository.set_limits)
    get_limits: Final = blocking(Repository.get_limits)
    delete_limits: Final = blocking(Repository.delete_limits)
    list_entities_with_custom_limits: Final = blocking(Repository.list_entities_with_custom_limits)
    list_resources_with_entity_configs: Final = blocking(Repository.list_resources_with_entity_configs)
    get_config: Final = blocking(Repository.get_config)
    set_config: Final = blocking(Repository.set_config)
    disable: Final = blocking(Repository.disable)
    enable: Final = blocking(Repository.enable)
    bypass: Final = blocking(Repository.bypass)
    list_switches: Final = blocking(Repository.list_switches)
    set_entity_cascade: Final = blocking(Repository.set_entity_cascade)
    set_resource_cascade: Final = blocking(Repository.set_resource_cascade)
    batch_get_configs: Final = blocking(Repository.batch_get_configs)
    resolve_limits: Final = blocking(Repository.resolve_limits)
    explain: Final = blocking(Repository.explain)
    invalidate_config_cache: Final = plain(Repository.invalidate_config_cache)
    get_cache_stats: Final = plain(Repository.get_cache_stats)

    register_namespace: Final = blocking(Repository.register_namespace)
    register_namespaces: Final = blocking(Repository.register_namespaces)
    get_namespace: Final = blocking(Repository.get_namespace)
    list_namespaces: Final = blocking(Repository.list_namespaces)
    list_orphan_namespaces: Final = blocking(Repository.list_orphan_namespaces)
    delete_namespace: Final = blocking(Repository.delete_namespace)
    recover_namespace: Final = blocking(Repository.recover_namespace)
    purge_namespace: Final = blocking(Repository.purge_namespace)

    if TYPE_CHECKING:

        @overload
        def get_bucket(self, entity_id: str, resource: str) -> list[BucketState]: ...
        @overload
        def get_bucket(self, entity_id: str, resource: str, limit_name: str) -> BucketState | None: ...
        def get_bucket(self, *asked: Any, **more: Any) -> Any: ...

    else:
        get_bucket = blocking(Repository.get_bucket)
    get_buckets: Final = blocking(Repository.get_buckets)
    get_resource_buckets: Final = blocking(Repository.get_resource_buckets)
    batch_get_buckets: Final = blocking(Repository.batch_get_buckets)
    get_resource_capacity: Final = blocking(Repository.get_resource_capacity)
    speculative_consume: Final = blocking(Repository.speculative_consume)
    transact_write: Final = blocking(Repository.transact_write)
    write_each: Final = blocking(Repository.write_each)

    get_audit_events: Final = blocking(Repository.get_audit_events)
    get_reports: Final = blocking(Repository.get_reports)
    get_usage_snapshots: Final = blocking(Repository.get_usage_snapshots)
    get_usage_summary: Final = blocking(Repository.get_usage_summary)
    get_version_record: Final = blocking(Repository.get_version_record)
    set_version_record: Final = blocking(Repository.set_version_record)

    create_table: Final = blocking(Repository.create_table)
    delete_table: Final = blocking(Repository.delete_table)
    create_stack: Final = blocking(Repository.create_stack)
    delete_stack: Final = blocking(Repository.delete_stack)
    ping: Final = blocking(Repository.ping)
    close: Final = blocking(Repository.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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
            wait: float | None = None,
        ) -> SyncAcquisition: ...
        @overload
        def acquire(
            self,
            demands: Sequence[Demand],
            /,
            *,
            on_unavailable: OnUnavailable | str | None = None,
            on_error: OnError | str | None = None,
            wait: float | None = None,
        ) -> SyncJointAcquisition: ...
        def acquire(self, *asked: Any, **more: Any) -> SyncAcquisition: ...

    else:
        acquire = wrapping(TWINS, RateLimiter.acquire)
    available: Final = blocking(RateLimiter.available)
    time_until_available: Final = blocking(RateLimiter.time_until_available)
    check_availability: Final = blocking(RateLimiter.check_availability)
    is_available: Final = blocking(RateLimiter.is_available)

    create_entity: Final = blocking(RateLimiter.create_entity)
    get_entity: Final = blocking(RateLimiter.get_entity)
    update_entity: Final = blocking(RateLimiter.update_entity)
    set_parent: Final = blocking(RateLimiter.set_parent)
    delete_entity: Final = blocking(RateLimiter.delete_entity)
    get_children: Final = blocking(RateLimiter.get_children)
    list_entities: Final = blocking(RateLimiter.list_entities)

    top_up: Final = blocking(RateLimiter.top_up)
    reset: Final = blocking(RateLimiter.reset)
    forgive: Final = blocking(RateLimiter.forgive)

    set_system_defaults: Final = blocking(RateLimiter.set_system_defaults)
    get_system_defaults: Final = blocking(RateLimiter.get_system_defaults)
    delete_system_defaults: Final = blocking(RateLimiter.delete_system_defaults)
    set_resource_defaults: Final = blocking(RateLimiter.set_resource_defaults)
    get_resource_defaults: Final = blocking(RateLimiter.get_resource_defaults)
    delete_resource_defaults: Final = blocking(RateLimiter.delete_resource_defaults)
    list_resources_with_defaults: Final = blocking(RateLimiter.list_resources_with_defaults)
    set_limits: Final = blocking(RateLimiter.set_limits)
    get_limits: Final = blocking(RateLimiter.get_limits)
    delete_limits: Final = blocking(RateLimiter.delete_limits)
    list_entities_with_custom_limits: Final = blocking(RateLimiter.list_entities_with_custom_limits)
    list_resources_with_entity_configs: Final = blocking(RateLimiter.list_resources_with_entity_configs)
    get_config: Final = blocking(RateLimiter.get_config)
    set_config: Final = blocking(RateLimiter.set_config)
    disable: Final = blocking(RateLimiter.disable)
    enable: Final = blocking(RateLimiter.enable)
    bypass: Final = blocking(RateLimiter.bypass)
    list_switches: Final = blocking(RateLimiter.list_switches)
    set_entity_cascade: Final = blocking(RateLimiter.set_entity_cascade)
    set_resource_cascade: Final = blocking(RateLimiter.set_resource_cascade)
    resolve_limits: Final = blocking(RateLimiter.resolve_limits)
    explain: Final = blocking(RateLimiter.explain)
    invalidate_config_cache: Final = plain(RateLimiter.invalidate_config_cache)
    get_cache_stats: Final = plain(RateLimiter.get_cache_stats)

    get_audit_events: Final = blocking(RateLimiter.get_audit_events)
    get_usage_snapshots: Final = blocking(RateLimiter.get_usage_snapshots)
    get_usage_summary: Final = blocking(RateLimiter.get_usage_summary)
    get_resource_capacity: Final = blocking(RateLimiter.get_resource_capacity)

    close: Final = blocking(RateLimiter.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
