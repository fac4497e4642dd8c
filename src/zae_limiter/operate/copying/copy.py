"""The passes of a copy: all items of a namespace, page by page, and again until both stores hold the same.

The first pass writes what is not there; where it was interrupted the next run goes on. Every other pass
compares all items, carries what differs and removes what the source has not. A pass that finds nothing to do
has verified the copy, and only then is the namespace opened in the target. So a source that is not used is
copied exactly, and one that is in use is never taken for copied.

Only keys come from an index; items are read as they are, so an index that lags brings nothing wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeVar

from ...engine.door import write_each, write_together
from ...exceptions import NamespaceNotFoundError, NamespaceStateError, RateLimiterUnavailable
from ...models import Namespace
from ...records.connection import Connection, Options
from ...records.items import namespace_of, version_item
from ...records.namespaces import get_namespace, list_namespaces
from ...records.scope import Scope
from ...records.versions import check_versions, get_version_record
from ...repository_protocol import Absent, Backend, Cursor, Delete, Item, Key, Outcome, Put, Query, Write
from ...runtime.world import World
from ...schema import GSI4, REGISTRY, nsid_key, system_config_key, version_key
from ..migrations import PassProgress
from .arrival import Arrival, mark_key, progress
from .carrying import Route, carried, found, is_over, kind_of, landed, live_bucket, other_shards

T = TypeVar("T")

PAGE_ROWS = 250
"""How many items are under way at once."""

PASSES_MAX = 3
"""How often all items are compared until none differs; a source in which they still do is in use."""

ATTEMPTS_MAX = 6
PAUSE_SECONDS = 0.25
DIFFERENCES_MAX = 1_000
"""How many differences are told one by one; the others are counted."""

MISSING, EXTRA, DIFFERENT = "is missing", "is not in the source", "differs"


class Store(NamedTuple):
    """One of the two stores, opened."""

    backend: Backend
    world: World
    label: str
    """How it is named in notes and messages: a URL without secrets."""

    @property
    def scope(self) -> Scope:
        """The view that sees namespaces and is in none."""
        return Scope(Connection(self.backend, self.world, Options(), self.label), REGISTRY, REGISTRY)


@dataclass
class CopyReport:
    """What was done for one namespace."""

    items: int = 0
    """What the source holds, when it was last looked at."""
    written: int = 0
    removed: int = 0
    changed: int = 0
    """Items that were carried before and were different when they were compared."""
    differences: dict[Key, str] = field(default_factory=dict)
    different: int = 0
    """Of the last pass: how many items were not the same in both stores."""
    is_open: bool = False
    """Whether the target has the namespace now, and may use it."""
    looks: int = 0
    """How often all items were compared."""

    def differ(self, key: Key, how: str) -> None:
        self.different += 1
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences[key] = how

    def begin_pass(self) -> None:
        self.looks += 1
        self.items = self.different = 0
        self.differences.clear()


class Copy:
    """Carries namespaces from one store to another; the next one goes on where this one stopped."""

    def __init__(
        self, source: Store, target: Store, *, tell: Callable[[PassProgress], None] = lambda _: None
    ) -> None:
        self._source, self._target, self._tell = source, target, tell
        hot = (store.backend.capabilities.hot_partitions for store in (source, target))
        self._route = Route(*hot)
        self._total = 0

    # What there is.

    async def check(self, *, write: bool) -> None:
        """Raise unless this version may use both stores; a target without a version gets the source's."""
        source, target = self._source.scope, self._target.scope
        await check_versions(source, register=False)
        record = await get_version_record(source)
        if write and record is not None:
            mine = version_item(replace(record, lambda_version=None))  # which is the stack's
            await target.must_write([Put(version_key(), mine, when=(Absent(),))])
        await check_versions(target, register=write)

    async def namespaces(self, names: Sequence[str] = ()) -> list[Namespace]:
        """The namespaces of the source, or those of some names."""
        scope = self._source.scope
        if not names:
            return await list_namespaces(scope)
        chosen = []
        for name in dict.fromkeys(names):
            if (one := await get_namespace(scope, name)) is None:
                raise NamespaceNotFoundError(
                    f"namespace {name!r} does not exist in {self._source.label}", namespace_name=name
                )
            chosen.append(one)
        return chosen

    async def look(self, space: Namespace, name: str | None = None) -> Arrival:
        """What the target has in the place of a namespace. Nothing is written."""
        scope, name = self._target.scope, space.namespace_name if name is None else name
        here, mark = await scope.backend.batch_get(
            [nsid_key(space.namespace_id), mark_key(space.namespace_id)]
        )
        named = await get_namespace(scope, name)
        is_empty = named is not None and await self._is_empty(named.namespace_id)
        return Arrival(space, name, None if here is None else namespace_of(here), named, is_empty, mark)

    async def is_switched_off(self, space: Namespace) -> bool:
        """Whether the source admits nobody to a namespace."""
        system = await self._source.scope.get(system_config_key(space.namespace_id))
        return system is not None and "off" in system

    async def survey(self, space: Namespace) -> Counter[str]:
        """How many items a namespace holds of each kind."""
        counts = Counter[str]()
        async for keys, _ in self._pages(self._source, space.namespace_id):
            counts.update(map(kind_of, keys))
        self._total = counts.total()
        return counts

    async def _is_empty(self, namespace_id: str) -> bool:
        async for keys, _ in self._pages(self._target, namespace_id):
            if keys:
                return False
        return True

    # The passes.

    async def verify(self, arrival: Arrival) -> CopyReport:
        """Compare all items, and change nothing."""
        report = CopyReport()
        await self._compare(arrival, report, None)
        report.is_open = arrival.is_there
        return report

    async def carry(
        self, arrival: Arrival, *, overwrite: bool = False, in_advance: bool = False
    ) -> CopyReport:
        """Copy a namespace, verify that, and open it in the target.

        ``in_advance`` leaves that to a later copy. A namespace that the target has already stays as it is,
        unless it is to be overwritten.
        """
        arrival.check(overwrite=overwrite)
        if arrival.is_there and not overwrite:
            return await self.verify(arrival)
        report, run = CopyReport(), self._target.world.new_token()
        is_fresh, after = arrival.is_fresh(self._source.label), arrival.resumes(self._source.label)
        begun = arrival.begin(self._source.label, run, self._target.world.now_ms())
        await self._must_hold(begun, arrival)
        if is_fresh:
            await self._first(arrival, report, run, after)
        else:
            await self._compare(arrival, report, run)
        if in_advance:
            return report
        for _ in range(PASSES_MAX):
            if not (is_fresh or report.different):
                await self._finish(arrival, run)
                report.is_open = True
                return report
            is_fresh = False
            await self._compare(arrival, report, run)
        return report

    async def _finish(self, arrival: Arrival, run: str) -> None:
        other = arrival.other
        if other is not None and arrival.named_is_empty and not await self._is_empty(other.namespace_id):
            arrival = replace(arrival, named_is_empty=False)
            arrival.check(overwrite=False)
        await self._must_hold(arrival.finish(run, self._target.world.now_ms()), arrival)

    async def _first(self, arrival: Arrival, report: CopyReport, run: str, after: Cursor | None) -> None:
        """Write everything that is not there, from where an earlier run came to."""
        namespace_id, what, done = arrival.space.namespace_id, f"copying {arrival.name}", 0
        self._tell(PassProgress(what, 0, self._total))
        async for keys, after_page in self._pages(self._source, namespace_id, after):
            await self._persist(partial(self._put_new, keys, report))
            await self._note(progress(namespace_id, run, after_page), arrival)
            done += len(keys)
            self._tell(PassProgress(what, done, max(done, self._total)))
        self._tell(PassProgress(what, done, done, is_over=True))

    async def _compare(self, arrival: Arrival, report: CopyReport, run: str | None) -> None:
        """Find what differs; whoever has begun a run carries it as well."""
        namespace_id, done, held = arrival.space.namespace_id, 0, 0
        report.begin_pass()
        what = f"comparing {arrival.name}{'' if report.looks == 1 else f' ({report.looks})'}"
        self._tell(PassProgress(what, 0, self._total))
        async for keys, _ in self._pages(self._source, namespace_id):
            held += await self._persist(partial(self._put_different, keys, report, run))
            if run is not None:  # whoever took over goes on alone
                await self._note(progress(namespace_id, run, None), arrival)
            done += len(keys)
            self._tell(PassProgress(what, done, max(done, self._total)))
        report.items = held
        # Where nothing was missing, and there is not more than that, there is nothing else.
        if report.different or held != await self._count(self._target, namespace_id):
            await self._find_extra(namespace_id, report, run)
        self._total = done
        self._tell(PassProgress(what, done, done, is_over=True))

    async def _find_extra(self, namespace_id: str, report: CopyReport, run: str | None) -> None:
        """Find what the target has and the source has not."""
        async for keys, _ in self._pages(self._target, namespace_id):
            wanted, there = await self._wanted(keys), await self._there(keys)
            extra = [key for key in keys if key not in wanted and key in there]
            for key in extra:
                report.differ(key, EXTRA)
            if run is not None:
                await self._write([Delete(key) for key in extra])
                report.removed += len(extra)

    async def _put_new(self, keys: Sequence[Key], report: CopyReport) -> None:
        """Write items that are not there; one that an interrupted run has written is compared."""
        wanted = await self._wanted(keys)
        now_ms = self._target.world.now_ms()
        writes: list[Write] = [
            Put(key, landed(key, item, self._route, now_ms), when=(Absent(),)) for key, item in wanted.items()
        ]
        outcomes = await self._write(writes)
        refused = [
            write.key
            for write, outcome in zip(writes, outcomes, strict=True)
            if not outcome.applied
            and (outcome.item is None or found(write.key, outcome.item, self._route) != wanted[write.key])
        ]
        report.written += sum(outcome.applied for outcome in outcomes)
        await self._replace({key: wanted[key] for key in refused})
        report.changed += len(refused)

    async def _put_different(self, keys: Sequence[Key], report: CopyReport, run: str | None) -> int:
        """Compare some items, and carry those that differ; how many there are to be."""
        wanted, there = await self._wanted(keys), await self._there(keys)
        missing = [key for key in wanted if key not in there]
        differ = [
            key for key in wanted if key in there and found(key, there[key], self._route) != wanted[key]
        ]
        for key in missing:
            report.differ(key, MISSING)
        for key in differ:
            report.differ(key, DIFFERENT)
        if run is not None:
            await self._replace({key: wanted[key] for key in (*missing, *differ)})
            report.written += len(missing)
            report.changed += len(differ)
        return len(wanted)

    async def _replace(self, items: dict[Key, Item]) -> None:
        """Put items in the place of whatever is there.

        A bucket goes first, and comes as a new one: else what was used in the source would be taken for use
        of the target.
        """
        await self._write([Delete(key) for key, item in items.items() if live_bucket(key, item) is not None])
        now_ms = self._target.world.now_ms()
        await self._write([Put(key, landed(key, item, self._route, now_ms)) for key, item in items.items()])

    # The stores.

    async def _wanted(self, keys: Sequence[Key]) -> dict[Key, Item]:
        """What the target is to hold of some keys; of what is over or gone there is nothing."""
        items = await self._read(self._source, keys)
        shards = {key: other_shards(key, item, self._route) for key, item in items.items()}
        parts = await self._read(self._source, [part for others in shards.values() for part in others])
        wanted = {}
        for key, item in items.items():
            others = [parts[part] for part in shards[key] if part in parts]
            if (become := carried(key, item, self._route, others)) is not None:
                wanted[key] = become
        return wanted

    async def _there(self, keys: Sequence[Key]) -> dict[Key, Item]:
        return await self._read(self._target, keys)

    async def _read(self, store: Store, keys: Sequence[Key]) -> dict[Key, Item]:
        """Items that are there, by their keys; whether one is over says one clock for both stores."""
        items = await store.backend.batch_get(keys) if keys else []
        now_ms = self._source.world.now_ms()
        found = {key: item for key, item in zip(keys, items, strict=True) if item is not None}
        return {key: item for key, item in found.items() if not is_over(item, now_ms)}

    async def _count(self, store: Store, namespace_id: str) -> int:
        return sum([len(keys) async for keys, _ in self._pages(store, namespace_id)])

    async def _pages(
        self, store: Store, namespace_id: str, after: Cursor | None = None
    ) -> AsyncIterator[tuple[list[Key], Cursor | None]]:
        """The keys of a namespace, some at a time, and where the next ones begin."""
        query = Query(namespace_id, index=GSI4, rows_max=PAGE_ROWS)
        while True:
            if after is not None:
                # The bound says the same once more: by the place alone some stores look from the beginning.
                query = query._replace(after=after, first=after.sort)
            page = await self._persist(partial(store.backend.query, query))
            yield [r.key for r in page.rows if r.key.partition.startswith(f"{namespace_id}/")], page.after
            if (after := page.after) is None:
                return

    async def _write(self, writes: Sequence[Write]) -> list[Outcome]:
        outcomes = await write_each(self._target.backend, None, writes) if writes else []
        for outcome in outcomes:
            if outcome.failure is not None:
                raise outcome.failure
        return outcomes

    async def _note(self, write: Write, arrival: Arrival) -> None:
        await self._persist(partial(self._must_hold, [write], arrival))

    async def _must_hold(self, writes: Sequence[Write], arrival: Arrival) -> None:
        outcomes = await write_together(self._target.backend, None, writes)
        if not outcomes[0].applied:
            name = arrival.name
            raise NamespaceStateError(
                f"namespace {name!r} was changed in the target meanwhile, by another copy or by an operator; "
                "look at it and run this again",
                namespace_name=name,
            )

    async def _persist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do what may be done again, until a store answers; one that does not for long is told."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                return await work()
            except RateLimiterUnavailable as error:
                if error.misconfigured or error.impossible or attempt == ATTEMPTS_MAX - 1:
                    raise
                await self._target.backend.colour.sleep(PAUSE_SECONDS * 2**attempt)
        raise AssertionError("the last attempt returns or raises")
