"""``RateLimiter``: the async front door.

It checks what it is given, asks the repository for a plan, and leaves the rest to the flow. Nothing
is decided here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Never, ParamSpec, Self, TypeVar, Unpack, overload

from .acquisition import Acquisition
from .decorator import AsyncDecorator, Limiting
from .engine.demand import BucketDemand, demands_on
from .engine.refusal import all_statuses
from .engine.split import catch_up, levels, survey
from .established import LimiterForms, deprecated, former_names, refuse_former
from .exceptions import ValidationError, without_secrets
from .joint import JointAcquisition, JointLease, joint_acquisition
from .lease import Lease
from .models import Availability, Limit, LimiterInfo, OnUnavailable, check_limits
from .models.checks import needs_milli, wait_ms
from .models.demand import Demand, check_demands
from .models.leases import OnError
from .naming import plain, validate_entity_id, validate_resource
from .repository import Repository
from .runtime.colour import Method
from .runtime.unentered import Unentered
from .settings import Settings

PLAIN: Final = Lease, Acquisition, (JointLease, JointAcquisition)
"""What a limiter makes that nobody looks at."""

STORED_LIMITS = "leave it out; stored limits are used unless limits= is given"

P = ParamSpec("P")
T = TypeVar("T")


def passed_on(method: Callable[Concatenate[Repository, P], T]) -> Method[P, T]:
    """The repository's method under the limiter: same signature, same docstring."""

    def call(self: RateLimiter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self._repository, *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


class RateLimiter(LimiterForms, Limiting[AsyncDecorator]):
    """Admits or refuses work against token buckets that are shared through a store.

    >>> import asyncio
    >>> async def work():
    ...     async with RateLimiter.open("memory://") as limiter:
    ...         async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, [Limit.per_minute("rpm", 60)]):
    ...             return await limiter.available("key-1", "gpt-4", [Limit.per_minute("rpm", 60)])
    >>> asyncio.run(work())
    {'rpm': 59}
    """

    def __init__(
        self, repository: Repository | None = None, speculative_writes: bool = True, **former: Never
    ) -> None:
        refuse_former("RateLimiter", former)
        if not isinstance(repository, Repository):
            raise ValidationError("repository", repository, "pass what `await Repository.open()` returns")
        self._repository = repository
        self._speculative = speculative_writes
        self._lease_type, self._acquisition_type, self._joint_types = PLAIN
        """What ``acquire`` makes; whoever counts has it make others."""
        self._lookers = 0

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        namespace: str | None = None,
        speculative_writes: bool = True,
        **settings: Unpack[Settings],
    ) -> Opening:
        """Open a repository and a limiter in one: ``async with RateLimiter.open(url) as limiter``.

        ``settings`` are those of ``Repository.open``.
        """
        return Opening(cls, speculative_writes, namespace, located(url, settings))

    @classmethod
    async def list_deployed(
        cls,
        region: str | None = None,
        endpoint_url: str | None = None,
        *,
        session: Any = None,
        config: Any = None,
    ) -> list[LimiterInfo]:
        """The stacks that are deployed in an AWS account and region, with their versions, by name."""
        return await deployed(region, endpoint_url, sync=False, session=session, config=config)

    @property
    def repository(self) -> Repository:
        """Where the state is kept, with all records of its namespace."""
        return self._repository

    @property
    def refunds_lost(self) -> int:
        """How many refunds and settlements could not be stored; each was logged."""
        return self._repository.writer.refunds_lost

    @property
    def degraded(self) -> int:
        """How often work went ahead unchecked, by ``on_unavailable``; each time was logged."""
        return self._repository.writer.degraded

    @property
    def soft_exceeded(self) -> int:
        """How many acquires were admitted although a soft limit had not enough for them."""
        return self._repository.writer.soft_exceeded

    @property
    def seats_lost(self) -> int:
        """How many seats of limits of concurrency could not be renewed in time; each was logged."""
        return self._repository.writer.renewals.lost

    def __repr__(self) -> str:
        where = f"{type(self).__name__} of namespace {self._repository.namespace_name!r}"
        return f"<{where}, degraded={self.degraded}, refunds_lost={self.refunds_lost}>"

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
    ) -> Acquisition: ...
    @overload
    def acquire(
        self,
        demands: Sequence[Demand],
        /,
        *,
        on_unavailable: OnUnavailable | str | None = None,
        on_error: OnError | str | None = None,
        wait: float | None = None,
    ) -> JointAcquisition: ...
    def acquire(
        self,
        entity_id: str | Sequence[Demand],
        resource: str | None = None,
        consume: Mapping[str, int] | None = None,
        limits: Sequence[Limit] | None = None,
        on_unavailable: OnUnavailable | str | None = None,
        use_stored_limits: bool | None = None,
        *,
        on_error: OnError | str | None = None,
        wait: float | None = None,
    ) -> Acquisition:
        """Take all amounts or none: ``async with limiter.acquire(…) as lease``.

        - ``entity_id``: who asks, such as an API key; it need not have been created. Or a list of ``Demand``,
          for several entities and resources at once, all or none; each says the next three for itself.
        - ``resource``: what is asked for, such as a model.
        - ``consume``: how many tokens of each limit, by its name: ``{"rpm": 1, "tpm": 500}``.
        - ``limits``: limits for this entity to go by instead of those that are stored.
        - ``on_unavailable``: ``"allow"`` or ``"block"`` while the store does not answer; what is stored
          or set for the repository otherwise.
        - ``use_stored_limits``: deprecated and without effect.
        - ``on_error``: what work costs that an exception or a cancellation ends, or whose reader leaves:
          ``"refund"`` gives all of it back, ``"keep"`` nothing, ``"settle"`` stores what was noted so far.
          Without it a reader who leaves settles, and all else is a refund.
        - ``wait``: how many seconds to wait at most for one's turn, ``math.inf`` for as long as it takes.
          Whoever asked first begins first, in all processes. A wait that would be longer is refused: at once
          where one bucket is asked, else as soon as that is known.

        >>> async with limiter.acquire("key-1", "gpt-4", {"rpm": 60, "tpm": 500}) as lease:
        ...     await lease.settle(tpm=420)  # what the work really took
        >>> async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, wait=30) as lease:
        ...     lease.waited_ms
        1000

        Nothing is taken before the block is entered. The lease corrects the cost while the work goes on; a
        block that raises gets everything back. For work that fits no block, ``lease = await
        limiter.acquire(…)`` is open until ``lease.commit()`` or ``lease.cancel()``.

        Raises ``RateLimitExceeded`` when a limit cannot cover its amount, ``RateLimiterUnavailable``
        when the store does not answer and the policy is to block, ``ValidationError`` for bad input.
        """
        if use_stored_limits is not None:
            deprecated("use_stored_limits", STORED_LIMITS)
        who: Any = entity_id if type(entity_id) is str else plain(entity_id)  # type: ignore[arg-type]
        what: Any = resource if type(resource) is str else plain(resource)  # type: ignore[arg-type]
        amounts: Any = consume
        try:
            is_known = (who, what) in self._repository.plans
        except TypeError:  # what cannot be hashed is no name, and will be told so
            is_known = False
        policy = None if on_unavailable is None else OnUnavailable.of(on_unavailable)
        if not is_known:
            is_list = isinstance(who, list | tuple) and (what is None or Demand in map(type, who))
            if is_list or isinstance(who, Demand):  # one without a list is told so
                demands = check_demands(who, resource, consume, limits)
                acquisition = joint_acquisition(
                    self._repository, demands, policy, self._speculative, self._joint_types
                )
                acquisition._lease._on_error = None if on_error is None else OnError.of(on_error)
                acquisition._lease._wait_ms = None if wait is None else wait_ms(wait)
                return acquisition
            validate_entity_id(who)
            validate_resource(what)
        given = None if limits is None else check_limits(limits)
        needs = needs_milli(amounts)
        lease = self._lease_type(self._repository, who, what, given, policy, self._speculative)
        if on_error is not None:
            lease._on_error = OnError.of(on_error)
        if wait is not None:
            lease._wait_ms = wait_ms(wait)
        return self._acquisition_type(lease, needs)

    async def available(
        self,
        entity_id: str,
        resource: str,
        limits: Sequence[Limit] | None = None,
        use_stored_limits: bool | None = None,
    ) -> dict[str, int]:
        """What an acquire could take now, by limit; negative while in debt, or others wait. Consumes nothing.

        For an entity that cascades this is what both it and its parent can give.

        >>> await limiter.available("key-1", "gpt-4")
        {'rpm': 60, 'tpm': 10000}
        """
        if use_stored_limits is not None:
            deprecated("use_stored_limits", STORED_LIMITS)
        return dict((await self.check_availability(entity_id, resource, limits=limits)).available)

    async def time_until_available(
        self,
        entity_id: str,
        resource: str,
        needed: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
        use_stored_limits: bool | None = None,
    ) -> float:
        """Seconds until an acquire of ``needed`` passes if nobody else takes anything; ``inf`` for never.

        >>> await limiter.time_until_available("key-1", "gpt-4", {"rpm": 60})
        0.0
        >>> await limiter.time_until_available("key-1", "gpt-4", {"rpm": 61})
        inf
        """
        if use_stored_limits is not None:
            deprecated("use_stored_limits", STORED_LIMITS)
        return (await self.check_availability(entity_id, resource, needed, limits)).retry_after_seconds

    async def check_availability(
        self,
        entity_id: str,
        resource: str,
        needed: Mapping[str, int] | None = None,
        limits: Sequence[Limit] | None = None,
    ) -> Availability:
        """What is there and how long ``needed`` would have to wait, from one look at the store.

        A wait is told under the limits that are stored now: a bucket that still fills by older ones gets
        them first, as from an acquire that is refused.
        """
        validate_entity_id(entity_id)
        validate_resource(resource)
        repository = self._repository
        given = None if limits is None else check_limits(limits)
        needs = {} if needed is None else needs_milli(needed)
        await repository.notice_changes()
        accounts = (await repository.plan(entity_id, resource, given, needs)).accounts
        images = await survey(repository.writer, accounts)
        newer = (await repository.plan(entity_id, resource, given, needs)).accounts
        if newer != accounts:  # which the images have told
            accounts, images = newer, await survey(repository.writer, newer)
        demands_on(accounts, needs)
        if await catch_up(repository.writer, accounts, needs):
            images = await survey(repository.writer, accounts)
        now_ms = repository.writer.world.now_ms()
        there: dict[str, int] = {}
        for account, shards in zip(accounts, images, strict=True):
            for name in account.terms.rates:
                tokens = levels(account, shards, name, now_ms).balance(now_ms) // 1000
                there[name] = min(tokens, there.get(name, tokens))
        asked = []
        for account, shards in zip(accounts, images, strict=True):
            mine = {name: n for name, n in needs.items() if name in account.terms.rates}
            asked.append((BucketDemand(account, mine), shards))
        statuses = all_statuses(asked, now_ms)
        wait_seconds = max((s.retry_after_seconds for s in statuses), default=0.0)
        return Availability(there, wait_seconds, tuple(statuses), entity_id, resource, now_ms)

    async def is_available(self, timeout: float = 1.0) -> bool:  # noqa: ASYNC109 - part of the contract
        """Whether the store answers within ``timeout`` seconds. Never raises."""
        try:
            return await self._repository.colour.within(timeout, self._repository.ping())
        except Exception:
            return False

    create_entity: Final = passed_on(Repository.create_entity)
    get_entity: Final = passed_on(Repository.get_entity)
    update_entity: Final = passed_on(Repository.update_entity)
    set_parent: Final = passed_on(Repository.set_parent)
    delete_entity: Final = passed_on(Repository.delete_entity)
    get_children: Final = passed_on(Repository.get_children)
    list_entities: Final = passed_on(Repository.list_entities)

    top_up: Final = passed_on(Repository.top_up)
    reset: Final = passed_on(Repository.reset)
    forgive: Final = passed_on(Repository.forgive)

    set_system_defaults: Final = passed_on(Repository.set_system_defaults)
    get_system_defaults: Final = passed_on(Repository.get_system_defaults)
    delete_system_defaults: Final = passed_on(Repository.delete_system_defaults)
    set_resource_defaults: Final = passed_on(Repository.set_resource_defaults)
    get_resource_defaults: Final = passed_on(Repository.get_resource_defaults)
    delete_resource_defaults: Final = passed_on(Repository.delete_resource_defaults)
    list_resources_with_defaults: Final = passed_on(Repository.list_resources_with_defaults)
    set_limits: Final = passed_on(Repository.set_limits)
    get_limits: Final = passed_on(Repository.get_limits)
    delete_limits: Final = passed_on(Repository.delete_limits)
    list_entities_with_custom_limits: Final = passed_on(Repository.list_entities_with_custom_limits)
    list_resources_with_entity_configs: Final = passed_on(Repository.list_resources_with_entity_configs)
    get_config: Final = passed_on(Repository.get_config)
    set_config: Final = passed_on(Repository.set_config)
    disable: Final = passed_on(Repository.disable)
    enable: Final = passed_on(Repository.enable)
    bypass: Final = passed_on(Repository.bypass)
    list_switches: Final = passed_on(Repository.list_switches)
    set_entity_cascade: Final = passed_on(Repository.set_entity_cascade)
    set_resource_cascade: Final = passed_on(Repository.set_resource_cascade)
    resolve_limits: Final = passed_on(Repository.resolve_limits)
    explain: Final = passed_on(Repository.explain)
    invalidate_config_cache: Final = passed_on(Repository.invalidate_config_cache)
    get_cache_stats: Final = passed_on(Repository.get_cache_stats)

    get_audit_events: Final = passed_on(Repository.get_audit_events)
    get_usage_snapshots: Final = passed_on(Repository.get_usage_snapshots)
    get_usage_summary: Final = passed_on(Repository.get_usage_summary)
    get_resource_capacity: Final = passed_on(Repository.get_resource_capacity)

    async def close(self) -> None:
        """Close the repository. Whatever is asked of it afterwards is ``ClosedError``."""
        await self._repository.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Opening(Unentered):
    """A limiter about to be opened: enter it, or await it."""

    _entered_by = "async with RateLimiter.open(…) as limiter"

    def __init__(
        self, limiter: type[RateLimiter], speculative_writes: bool, namespace: str | None, settings: Settings
    ) -> None:
        self._class, self._speculative = limiter, speculative_writes
        self._namespace, self._settings = namespace, settings
        self._opened: RateLimiter | None = None

    def __repr__(self) -> str:
        store = self._settings.get("store") or self._settings.get("stack")
        where = f" on {without_secrets(store)!r}" if isinstance(store, str) else ""
        return f"<{self._class.__name__} to be opened{where}: enter or await it>"

    if not TYPE_CHECKING:  # which is to see every attribute that is missing

        def __getattr__(self, name: str) -> Never:
            raise self._lacks(name)

    async def _open(self) -> RateLimiter:
        return self._class(await Repository.open(self._namespace, **self._settings), self._speculative)

    def __await__(self) -> Generator[Any, Any, RateLimiter]:
        return self._open().__await__()

    async def __aenter__(self) -> RateLimiter:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()


async def deployed(
    region: str | None, endpoint_url: str | None, *, sync: bool, **client: Any
) -> list[LimiterInfo]:
    """What is deployed, asked in one colour."""
    from .infra.discovery import discover

    return await discover(region, endpoint_url, sync=sync, **client)


def located(url: str | None, settings: Settings) -> Settings:
    """Settings with the store's URL among them."""
    if url is None:
        return settings
    other = settings.get("store") or settings.get("stack")
    if other is not None:
        raise ValidationError("store", other, f"the URL {without_secrets(url)!r} names another store")
    return {**settings, "store": url}


if not TYPE_CHECKING:  # which is to see every name that is missing
    __getattr__ = former_names(__name__)
