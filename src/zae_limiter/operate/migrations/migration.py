"""Bringing a table of an older shape up to date: the passes, and what happens when they are interrupted.

A pass reads the whole table and moves some kinds of records, several groups in one transaction. Groups
that were refused are looked at again on their own. Every transaction stands for itself, so a migration
that is killed at any instant, or run twice at once, ends in the same table; what was done is skipped.

    move     limits and entities, then buckets; then clients are let in
    follow   usage and audit events, and the parents' counts of their children
    clean    old records whose new ones are there are deleted

A record that cannot be used stays where it is, and is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...engine.door import write_each, write_together
from ...exceptions import IncompatibleSchemaError, RateLimiterUnavailable, ValidationError
from ...records.connection import Connection, Options
from ...repository import Repository
from ...repository_protocol import Backend, Delete, Equal, Item, Key, Row, Write
from ...runtime.world import World
from ...schema import REGISTRY, number
from ...settings import DEFAULT_NAMESPACE
from .inplace import SHARDS_TOGETHER_MAX, holds_tokens, moves_in_place, wanted_in_place
from .moving import Context, Move, packed, writes_of
from .namespaced import Found, recognise_namespaced
from .scanning import Scan, scan_of
from .shapes import COUNTED, MOVED_TO, Finding, Kind, Obstacle, Source, fields, recognise, target_of
from .state import Stage, State, begin, finish, let_in
from .translation import Images, child_count, parents, shadowing, translate, wanted

GROUPS_MAX = 200
"""How many groups are translated together."""

WAYS_MAX = 8
"""How many transactions are under way at once, on a store that takes them from many."""

ATTEMPTS_MAX = 8
FINDINGS_MAX = 1_000

OBSTACLES_TOLD = 5
"""How many of the records in the way an error names."""

FIRST = frozenset({Kind.LIMITS, Kind.ENTITY, Kind.MANIFEST})
SECOND = frozenset({Kind.BUCKET})
HISTORY = frozenset({Kind.USAGE, Kind.AUDIT})
MOVED = FIRST | SECOND | HISTORY


class Findings:
    """Records that stay where they are; of very many only the first say why."""

    def __init__(self) -> None:
        self._keys: set[Key] = set()
        self.told: list[Finding] = []

    def add(self, finding: Finding) -> None:
        if finding.key not in self._keys:
            self._keys.add(finding.key)
            if len(self.told) < FINDINGS_MAX:
                self.told.append(finding)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: Key) -> bool:
        return key in self._keys


class Progress(NamedTuple):
    """How many rows of the table a pass has read, of how many that are known of."""

    what: str
    done: int
    total: int
    is_over: bool = False


@dataclass
class Survey:
    """What a table holds."""

    rows: int = 0
    current: int = 0
    unmoved: Counter[Kind] = field(default_factory=Counter)
    moved: Counter[Kind] = field(default_factory=Counter)
    shards: int = 0
    """Of the buckets to move: how many are shards beside the first, which come back to it."""
    findings: Findings = field(default_factory=Findings)
    obstacles: Findings = field(default_factory=Findings)
    """Records that this version cannot serve: nothing is changed as long as they are there."""

    def check(self) -> None:
        """Raise if there are records in the way."""
        if not len(self.obstacles):
            return
        told = [f"{f.key.partition} {f.key.sort}: {f.reason}" for f in self.obstacles.told[:OBSTACLES_TOLD]]
        more = len(self.obstacles) - len(told)
        raise IncompatibleSchemaError(
            f"{len(self.obstacles):,} records are in the way, and nothing was changed: {' · '.join(told)}"
            f"{f' · and {more:,} more' if more else ''}"
        )


@dataclass
class Report:
    """What was done, in old records by kind."""

    moved: Counter[Kind] = field(default_factory=Counter)
    superseded: Counter[Kind] = field(default_factory=Counter)
    deleted: int = 0
    late: int = 0
    """Old records that were written while they were being moved; the next run takes care of them."""
    findings: Findings = field(default_factory=Findings)


class Migration:
    """One attempt to bring a store up to date; the next one goes on where this one stopped."""

    def __init__(
        self,
        backend: Backend,
        world: World | None = None,
        *,
        keep_old: bool = False,
        tell: Callable[[Progress], None] = lambda _: None,
        scan: Scan | None = None,
    ) -> None:
        self._backend, self._world = backend, world or World()
        self._keep_old, self._tell = keep_old, tell
        self._scan = scan or scan_of(backend)
        self._rows = 0
        self._namespace_id: str | None = None
        self._is_namespaced, self._has_shares = False, True
        self._survey: Survey | None = None
        self.report = Report()

    async def state(self) -> State:
        """What the store says about its shape."""
        state = State(*await self._backend.batch_get(State.keys()))
        self._is_namespaced, self._has_shares = state.is_namespaced, state.has_shares
        return state

    def _recognise(self, row: Row) -> Found:
        if self._is_namespaced and "/" in row.key.partition.partition("#")[0]:
            return recognise_namespaced(row, self._world.now_ms())
        return recognise(row)

    async def survey(self) -> Survey:
        """Count what there is. Nothing is written."""
        await self.state()
        found = Survey()
        async for row in self._all("looking"):
            found.rows += 1
            source = self._recognise(row)
            if isinstance(source, Finding):
                found.findings.add(source)
            elif isinstance(source, Obstacle):
                found.obstacles.add(Finding(*source))
            elif not isinstance(source, Source):
                found.current += 1
            elif source.kind in MOVED or source.kind is Kind.LIST:
                is_left = source.is_moved or source.kind is Kind.LIST
                (found.moved if is_left else found.unmoved)[source.kind] += 1
                found.shards += source.shard_id > 0
        self._survey = found
        return found

    async def run(self) -> Report:
        """All of it."""
        await self.move()
        await self.follow()
        await self.clean()
        return self.report

    async def move(self) -> None:
        """Move what acquires depend on, and let clients in."""
        await self._begin()
        # Counters of resources are written by many groups, so these go one after another.
        await self._pass("limits and entities", FIRST, ways=1)
        await self._pass("buckets", SECOND, ways=self._ways)
        await self._must(let_in(self._world.now_ms()))

    async def follow(self) -> None:
        """Move the rest, which clients that are at work do not mind."""
        await self.state()
        await self._pass("usage and audit", HISTORY, ways=self._ways)

    async def clean(self) -> None:
        """Delete the old records whose new ones are there, unless they are to be kept."""
        await self.state()
        rows: list[Row] = []
        async for row in self._all("cleaning up"):
            source = self._recognise(row)
            if isinstance(source, Finding | Obstacle):
                self.report.findings.add(Finding(*source))
                self.report.late += isinstance(source, Obstacle)  # nobody had it when this began
            if not isinstance(source, Source) or source.kind is Kind.VERSION:
                continue
            if not source.is_moved and source.kind is not Kind.LIST:
                self.report.late += source.key not in self.report.findings
                continue
            rows.append(row)
            if len(rows) == GROUPS_MAX:
                await self._clean(rows)
                rows.clear()
        await self._clean(rows)
        if not self.report.late:
            await self._must(finish(self._world.now_ms(), kept_old=self._keep_old))

    async def _begin(self) -> None:
        for _ in range(ATTEMPTS_MAX):
            state = await self.state()
            if state.is_namespaced and state.stage is Stage.NONE:
                (self._survey or await self.survey()).check()
            outcomes = await write_together(self._backend, None, begin(state, self._world.now_ms()))
            if outcomes[0].applied:
                return
        raise RateLimiterUnavailable(f"{ATTEMPTS_MAX} attempts to begin the migration were overtaken")

    @property
    def _ways(self) -> int:
        return WAYS_MAX if self._backend.capabilities.hot_partitions else 1

    async def _pass(self, what: str, kinds: frozenset[Kind], *, ways: int) -> None:
        async for groups in self._groups(what, kinds):
            await self._carry_out(await self._planned(groups), kinds, ways)

    async def _groups(self, what: str, kinds: frozenset[Kind]) -> AsyncIterator[list[list[Source]]]:
        """The groups that a pass has to move, some at a time; no group is cut but buckets of many shards."""
        groups: list[list[Source]] = []
        spread: dict[tuple[str, ...], list[Source]] = {}  # shards lie apart from each other
        async for row in self._all(what):
            source = self._recognise(row)
            if not isinstance(source, Source) or not _is_due(source, kinds):
                continue
            if source.kind is Kind.BUCKET and (source.shard_id or number(source.item, "shard_count", 1) > 1):
                spread.setdefault(source.group, []).append(source)
                continue
            if groups and groups[-1][0].group == source.group:
                groups[-1].append(source)
                continue
            if len(groups) == GROUPS_MAX:
                yield groups
                groups = []
            groups.append([source])
        if groups:
            yield groups
        for shards in spread.values():
            # Those that were used come first, so that what is left for later lacks nothing.
            shards.sort(key=lambda shard: (not holds_tokens(shard), shard.shard_id))
            for at in range(0, len(shards), SHARDS_TOGETHER_MAX):
                yield [shards[at : at + SHARDS_TOGETHER_MAX]]

    async def _all(self, what: str) -> AsyncIterator[Row]:
        """Every row; the pass before tells how many there are about."""
        done = 0
        self._tell(Progress(what, 0, self._rows))
        async for row in self._scan():
            yield row
            done += 1
            if done % GROUPS_MAX == 0:
                self._tell(Progress(what, done, max(self._rows, done)))
        self._rows = done
        self._tell(Progress(what, done, done, is_over=True))

    async def _planned(self, groups: Sequence[Sequence[Source]]) -> list[Move]:
        """How groups are moved, by the records in whose place they come."""
        context = await self._context(groups)
        keys: dict[Key, None] = {}
        usable = []
        for group in groups:
            try:
                keys |= dict.fromkeys(_looked_at(group, context))
                usable.append(group)
            except ValidationError as error:
                self._find(group, error)
        images = await self._images(list(keys))
        for group in usable:
            if (
                group[0].kind is Kind.LIMITS
                and not group[0].namespace_id
                and (query := shadowing(group)) is not None
            ):
                rows = (await self._backend.query(query)).rows
                images[Key(query.partition, query.first)] = rows[0].item if rows else None
        moves: list[Move] = []
        for group in usable:
            try:
                moves += _moves(group, images, context)
            except ValidationError as error:
                self._find(group, error)
        return moves

    async def _context(self, groups: Sequence[Sequence[Source]] = ()) -> Context:
        in_place = bool(groups) and all(group[0].namespace_id for group in groups)
        if self._namespace_id is None and not in_place:
            connection = Connection(self._backend, self._world, Options())
            registry = Repository(connection, REGISTRY, REGISTRY)
            self._namespace_id = (await registry.register_namespace(DEFAULT_NAMESPACE)).namespace_id
        is_metered = self._backend.capabilities.hot_partitions
        return Context(self._namespace_id or "", self._world.now_ms(), is_metered, self._has_shares)

    async def _images(self, keys: Sequence[Key]) -> dict[Key, Item | None]:
        found = await self._backend.batch_get(keys) if keys else []
        return dict(zip(keys, found, strict=True))

    def _find(self, group: Sequence[Source], error: ValidationError) -> None:
        for source in group:
            self.report.findings.add(Finding(source.key, str(error)))

    async def _carry_out(self, moves: Sequence[Move], kinds: frozenset[Kind], ways: int) -> None:
        for attempt in range(ATTEMPTS_MAX):
            # One that keeps being refused must not take others along.
            bundles = [[move] for move in moves] if attempt else packed(moves)
            again: list[Move] = []
            for at in range(0, len(bundles), ways):
                sent = [self._send(bundle) for bundle in bundles[at : at + ways]]
                for refused in await self._backend.colour.together(sent):
                    again += refused
            if not again:
                return
            moves = await self._looked_at_again(again, kinds)
        # Whoever writes these so often is an older client; the last pass tells of them.

    async def _send(self, bundle: Sequence[Move]) -> list[Move]:
        """Carry out a bundle; what is returned was not."""
        outcomes = await write_together(self._backend, None, writes_of(bundle))
        if not outcomes[0].applied:
            return list(bundle)
        for move in bundle:
            if not move.is_count:
                tally = self.report.superseded if move.target is None else self.report.moved
                tally[move.sources[0].kind] += len(move.sources)
        return []

    async def _looked_at_again(self, moves: Sequence[Move], kinds: frozenset[Kind]) -> list[Move]:
        """Moves as they have to be now: some are done by somebody else, some go to another place."""
        items = await self._images([source.key for move in moves for source in move.sources])
        groups = []
        for move in moves:
            left = [Row(s.key, item) for s in move.sources if (item := items[s.key]) is not None]
            found = [self._recognise(row) for row in left]
            if due := [s for s in found if isinstance(s, Source) and _is_due(s, kinds)]:
                groups.append(due)
        return await self._planned(groups)

    async def _clean(self, rows: Sequence[Row]) -> None:
        """Delete old records whose new ones are there, or would be gone by now anyway."""
        targets = [target for row in rows if (target := target_of(row.item)) is not None]
        images = await self._images(list(dict.fromkeys(targets)))
        deletes: list[Write] = []
        now_ms = self._world.now_ms()
        for row in rows:
            target, ttl = target_of(row.item), number(row.item, "ttl")
            if target is not None and images[target] is None and not 0 < ttl * 1000 < now_ms:
                where = f"{target.partition} {target.sort}"
                self.report.findings.add(Finding(row.key, f"it was moved to {where}, which is gone"))
            elif not self._keep_old:
                is_marked = MOVED_TO in row.item  # a list is made of other records, and has no mark
                pin = (Equal(MOVED_TO, str(row.item[MOVED_TO])),) if is_marked else ()
                deletes.append(Delete(row.key, pin))
        for _ in range(ATTEMPTS_MAX):
            outcomes = await write_each(self._backend, None, deletes) if deletes else []
            self.report.deleted += sum(outcome.applied for outcome in outcomes)
            # A deletion whose reply was lost may be sent again: it is the same a second time.
            failed = [o.failure for o in outcomes if o.failure is not None]
            if not failed:
                return
            deletes = [w for w, o in zip(deletes, outcomes, strict=True) if o.failure is not None]
        raise failed[0]

    async def _must(self, writes: Sequence[Write]) -> None:
        if not (await write_together(self._backend, None, writes))[0].applied:
            raise RateLimiterUnavailable("the record of the migration is gone; run the upgrade again")


def _looked_at(group: Sequence[Source], context: Context) -> list[Key]:
    if group[0].namespace_id:
        return wanted_in_place(group)
    return (parents if group[0].is_moved else wanted)(group, context)


def _moves(group: Sequence[Source], images: Images, context: Context) -> list[Move]:
    if group[0].namespace_id:
        return moves_in_place(group, images, context)
    return [(child_count if group[0].is_moved else translate)(group, images, context)]


def _is_due(source: Source, kinds: frozenset[Kind]) -> bool:
    """Whether a pass has something to do about an old record.

    Children are counted when all entities have been moved, for only then are all parents there.
    """
    if not source.is_moved:
        return source.kind in kinds
    if kinds != HISTORY or source.kind is not Kind.ENTITY or COUNTED in source.item:
        return False
    return target_of(source.item) is not None and isinstance(fields(source.item).get("parent_id"), str)
