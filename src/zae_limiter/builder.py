"""``RepositoryBuilder``: a repository said option by option, and the stack that the options ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Never, Self, TypeVar, cast
from urllib.parse import urlsplit

from .established import way_out
from .exceptions import ValidationError, shown, without_secrets
from .models import LimiterConfig, OnUnavailable, StackOptions, UsageWindow
from .naming import validate_namespace
from .records.config import set_policy
from .repository import Repository
from .runtime.world import World
from .settings import Settings, client_of, settings_of

T = TypeVar("T")
B = TypeVar("B", bound="RepositoryOptions")


class _Option(Generic[T]):
    """A method of a builder that notes one option and returns the builder."""

    def __set_name__(self, owner: type[RepositoryOptions], name: str) -> None:
        self._name = name

    def __get__(self, builder: B, owner: type[B]) -> Callable[[T], B]:
        return partial(builder._noted, self._name)


class RepositoryOptions:
    """What can be said to a builder, one method for each option; said twice, the last word counts."""

    def __init__(self) -> None:
        self._said: dict[str, Any] = {}

    if not TYPE_CHECKING:  # which is to see every option that is missing

        def __getattr__(self, name: str) -> Never:
            """Options that are gone say what took their place."""
            kind = type(self).__name__
            sync = kind.startswith("Sync")
            built = f"build it first, `{'' if sync else 'await '}builder.build()`"
            told = way_out(name, built if hasattr(Repository, name) else "", sync=sync)
            reason = f": {told}" if told and not name.startswith("_") else ""
            raise AttributeError(f"{kind!r} object has no attribute {name!r}{reason}", name=name, obj=self)

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={_shown(value)}" for name, value in self._said.items())
        return f"<{type(self).__name__} told {said or 'nothing'}>"

    # What is opened, and how it behaves.
    store: Final = _Option[str]()
    stack: Final = _Option[str]()
    region: Final = _Option[str]()
    endpoint_url: Final = _Option[str]()
    namespace: Final = _Option[str]()
    config_cache_ttl: Final = _Option[float]()
    remembered_max: Final = _Option[int]()
    bucket_ttl_multiplier: Final = _Option[int]()
    on_unavailable: Final = _Option[OnUnavailable | str]()
    audit_retention_days: Final = _Option[int]()
    auto_update: Final = _Option[bool]()
    timeout_ms: Final = _Option[int]()
    session: Final = _Option[Any]()
    config: Final = _Option[Any]()
    world: Final = _Option[World]()

    # What a stack is deployed with.
    stack_options: Final = _Option[StackOptions]()
    snapshot_windows: Final = _Option[Sequence[UsageWindow | str] | str]()
    usage_retention_days: Final = _Option[int]()
    enable_aggregator: Final = _Option[bool]()
    pitr_recovery_days: Final = _Option[int]()
    log_retention_days: Final = _Option[int]()
    lambda_timeout: Final = _Option[int]()
    lambda_memory: Final = _Option[int]()
    enable_alarms: Final = _Option[bool]()
    alarm_sns_topic: Final = _Option[str]()
    lambda_duration_threshold_pct: Final = _Option[int]()
    permission_boundary: Final = _Option[str]()
    role_name_format: Final = _Option[str]()
    policy_name_format: Final = _Option[str]()
    enable_audit_archival: Final = _Option[bool]()
    audit_archive_glacier_days: Final = _Option[int]()
    enable_tracing: Final = _Option[bool]()
    create_iam_roles: Final = _Option[bool]()
    create_iam: Final = _Option[bool]()
    aggregator_role_arn: Final = _Option[str]()
    enable_deletion_protection: Final = _Option[bool]()
    kms_key_arn: Final = _Option[str]()
    role_principals: Final = _Option[Sequence[str]]()
    tags: Final = _Option[Mapping[str, str]]()

    def _noted(self, name: str, value: Any) -> Self:
        self._said[name] = value
        return self

    @property
    def settings(self) -> Settings:
        """What ``Repository.open`` is told."""
        return cast(Settings, {n: v for n, v in self._said.items() if n in Settings.__annotations__})

    @property
    def deployment(self) -> StackOptions | None:
        """What a stack would be deployed with; ``None`` if no stack was asked for."""
        said = {n: v for n, v in self._said.items() if n in STACK_FIELDS}
        whole = self._said.get("stack_options")
        if whole is None and not said.keys() - Settings.__annotations__.keys():
            return None
        if not isinstance(whole, StackOptions | None):
            raise ValidationError("stack_options", whole, "pass StackOptions")
        stated = {n: getattr(whole, n) for n in STACK_FIELDS if whole is not None}
        return StackOptions(**{**stated, **said})

    async def _build(self, *, sync: bool) -> Repository:
        settings, options = self.settings, self.deployment
        namespace = self._said.get("namespace")
        if options is not None:
            await self._provision(options, settings, namespace, sync=sync)
        repository = await Repository._open(
            settings, namespace, sync=sync, default_only=True, prepare=self._update_lambda
        )
        policy = self._said.get("on_unavailable")
        if policy is not None:  # all who use the system are to agree about it, once whoever says so is let in
            try:
                await set_policy(repository._scope, OnUnavailable.of(policy))
            except BaseException:
                await repository.close()
                raise
        return repository

    async def _provision(
        self, options: StackOptions, settings: Settings, namespace: str | None, *, sync: bool
    ) -> None:
        """Deploy what is missing of the stack; everything said is checked before."""
        from .infra.stack_manager import manager_of

        url, _, world = settings_of(settings)
        if namespace is not None:
            validate_namespace(namespace)
        if urlsplit(url).scheme != "dynamodb":
            raise ValidationError("store", url, "options of a stack need one; name it with .stack(…)")
        async with manager_of(url, sync=sync, world=world, **client_of(settings)) as manager:
            await manager.ensure(options)

    async def _update_lambda(self, repository: Repository) -> None:
        """Bring an older aggregator up to date, if that is wanted: said here, or at the system level.

        Whoever deploys a stack here wants it current, unless somebody said otherwise.
        """
        if urlsplit(repository.store).scheme != "dynamodb":
            return
        wanted = self._said.get("auto_update")
        if wanted is None:
            wanted = (await repository.get_config("system") or LimiterConfig()).auto_update
        if wanted or (wanted is None and self.deployment is not None):
            async with repository._stack_manager() as manager:
                await manager.auto_update()


def _shown(value: Any) -> str:
    """A value as a ``repr`` may show it: no secrets, and nothing of what may hold some."""
    if isinstance(value, str) and not isinstance(value, OnUnavailable):
        return shown(without_secrets(value))
    return shown(value) if isinstance(value, bool | int | float | OnUnavailable) else "…"


STACK_FIELDS = frozenset(field.name for field in fields(StackOptions))


class RepositoryBuilder(RepositoryOptions):
    """Opens a repository, said option by option.

    >>> import asyncio
    >>> async def work():
    ...     repository = await Repository.builder().store("memory://").on_unavailable("allow").build()
    ...     async with repository:
    ...         return await repository.get_system_defaults()
    >>> asyncio.run(work())
    ([], <OnUnavailable.ALLOW: 'allow'>)
    """

    async def build(self) -> Repository:
        """Deploy the stack that the options ask for, open the store and check versions.

        Without any option of a stack nothing is deployed. The default namespace is registered if it is
        missing; any other must be there. ``on_unavailable`` is stored as the system's default, for all.
        """
        return await self._build(sync=False)
