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
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, TypeGuard

from ...engine.door import write_each, write_together
from ...exceptions import IncompatibleSchemaError, RateLimiterUnavailable, ValidationError
from ...records.connection import Connection, Options
from ...repository import Repository
from ...repository_protocol import Backend, Delete, Equal, Item, Key, Query, Row, Write
from ...runtime.world import World
from ...schema import REGISTRY, number
from ...settings import DEFAULT_NAMESPACE
from .buckets import SHARDS_TOGETHER_MAX, holds_tokens
from .moving import Context, Group, Move, Translation, packed, writes_of
from .namespaced import Switches, recognise_namespaced
from .scanning import Scan, scan_of
from .shapes import COUNTED, MOVED_TO, Finding, Found, Kind, OldRecord, fields, recognise, target_of
from .state import MigrationStage, State, begin, finish, let_in
from .translation import translate

GROUPS_MAX = 200
"""How many groups are translated together."""

WAYS_MAX = 8
"""How many transactions are under way at once, on a store that takes them from many."""

ATTEMPTS_MAX = 8
FIRST = frozenset({Kind.LIMITS, Kind.ENTITY, Kind.MANIFEST})
HISTORY = frozenset({Kind.USAGE, Kind.AUDIT})


class Findings(dict[Key, str]):
    """Records that stay where they are, and why."""

    def add(self, finding: Finding) -> None:
        self.setdefault(finding.key, finding.reason)

    @property
    def told(self) -> list[Finding]:
        """Of very many the first."""
        return [Finding(*found) for found in islice(self.items(), 1_000)]


class PassProgress(NamedTuple):
    """How many rows of the table a pass has read, of how many that are known of."""

    what: str
    done: int
    total: int
    is_over: bool = False


@dataclass
class Survey:
    """What a table holds."""

    rows: int = 0
    unmoved: Counter[Kind] = field(default_factory=Counter)
    moved: Counter[Kind] = field(default_factory=Counter)
    shards: int = 0
    """Of the buckets to move: how many are shards beside the first, which come back to it."""
    findings: Findings = field(default_factory=Findings)
    obstacles: Findings = field(default_factory=Findings)
    """Records that this version cannot serve: nothing is changed as long as they are there."""

    def check(self) -> None:
        """Raise if there are records in the way."""
        if self.obstacles:
            told = [f"{f.key.partition} {f.key.sort}: {f.reason}" for f in self.obstacles.told[:5]]
            if more := len(self.obstacles) - len(told):
                told.append(f"and {more:,} more")
            count = f"{len(self.obstacles):,} records"
            raise IncompatibleSchemaError(
                f"{count} are in the way, and nothing was changed: {' · '.join(told)}"
            )


@dataclass
class MigrationReport:
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
        tell: Callable[[PassProgress], None] = lambda _: None,
        scan: Scan | None = None,
    ) -> None:
        self._backend, self._world = backend, world or World()
        self._keep_old, self._tell = keep_old, tell
        self._scan = scan or scan_of(backend)
        self._rows = 0
        self._namespace_id: str | None = None
        self._state = State(None, None, None)
        self._survey: Survey | None = None
        self.report: Final = MigrationReport()

    async def state(self) -> State:
        """What the store says about its shape."""
        self._state = State(*await self._backend.batch_get(State.keys()))
        return self._state

    def _recognise(self, row: Row) -> Found:
        if self._state.is_namespaced and "/" in row.key.partition.partition("#")[0]:
            return recognise_namespaced(row)
        return recognise(row)

    async def survey(self) -> Survey:
        """Count what there is. Nothing is written."""
        await self.state()
        found, switches = Survey(), Switches()
        async for row in self._all("looking"):
            found.rows += 1
            record = self._recognise(row)
            if isinstance(record, Finding):
                (found.obstacles if record.blocks else found.findings).add(record)
            elif record is not None and record.kind is not Kind.VERSION:
                is_left = record.is_moved or record.kind is Kind.LIST
                (found.moved if is_left else found.unmoved)[record.kind] += 1
                found.shards += record.shard_id > 0
                switches.note(record)
        if self._state.stage is MigrationStage.NONE:  # later some levels have been moved
            for finding in switches.changed(await self._images(switches.children())):
                found.obstacles.add(finding)
        self._survey = found
        return found

    async def run(self) -> MigrationReport:
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
        await self._pass("buckets", frozenset({Kind.BUCKET}), ways=self._ways)
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
            record = self._recognise(row)
            if isinstance(record, Finding):
                self.report.findings.add(record)
                self.report.late += record.blocks  # nobody had it when this began
            elif record is not None and (record.is_moved or record.kind is Kind.LIST):
                rows.append(row)
            elif record is not None and record.kind is not Kind.VERSION:
                self.report.late += record.key not in self.report.findings
            if len(rows) == GROUPS_MAX:
                await self._clean(rows)
                rows.clear()
        await self._clean(rows)
        if not self.report.late:
            await self._must(finish(self._world.now_ms(), kept_old=self._keep_old))

    async def _begin(self) -> None:
        for _ in range(ATTEMPTS_MAX):
            state = await self.state()
            if state.is_namespaced and state.stage is MigrationStage.NONE:
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

    async def _groups(self, what: str, kinds: frozenset[Kind]) -> AsyncIterator[list[list[OldRecord]]]:
        """The groups that a pass has to move, some at a time; no group is cut but buckets of many shards."""
        groups: list[list[OldRecord]] = []
        spread: dict[tuple[str, ...], list[OldRecord]] = {}  # shards lie apart from each other
        async for row in self._all(what):
            record = self._recognise(row)
            if not _is_due(record, kinds):
                continue
            is_spread = record.shard_id or number(record.item, "shard_count", 1) > 1
            if record.kind is Kind.BUCKET and is_spread:
                spread.setdefault(record.group, []).append(record)
            elif groups and groups[-1][0].group == record.group:
                groups[-1].append(record)
            else:
                if len(groups) == GROUPS_MAX:
                    yield groups
                    groups = []
                groups.append([record])
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
        self._tell(PassProgress(what, 0, self._rows))
        async for row in self._scan():
            yield row
            done += 1
            if done % GROUPS_MAX == 0:
                self._tell(PassProgress(what, done, max(self._rows, done)))
        self._rows = done
        self._tell(PassProgress(what, done, done, is_over=True))

    async def _planned(self, groups: Sequence[Group]) -> list[Move]:
        """How groups are moved, by the records that their translations have to see."""
        context = await self._context(groups)
        begun: list[tuple[Group, Translation]] = []
        wanted: dict[Key | Query, None] = {}
        for group in groups:
            translation = translate(group, context)
            try:
                wanted |= dict.fromkeys(next(translation))
                begun.append((group, translation))
            except ValidationError as error:
                self._find(group, error)
        images = await self._images(wanted)
        moves: list[Move] = []
        for group, translation in begun:
            try:
                translation.send(images)
            except StopIteration as end:
                moves += end.value
            except ValidationError as error:
                self._find(group, error)
        return moves

    async def _context(self, groups: Sequence[Group]) -> Context:
        in_place = bool(groups) and all(group[0].namespace_id for group in groups)
        if self._namespace_id is None and not in_place:
            connection = Connection(self._backend, self._world, Options())
            registry = Repository(connection, REGISTRY, REGISTRY)
            self._namespace_id = (await registry.register_namespace(DEFAULT_NAMESPACE)).namespace_id
        is_metered = self._backend.capabilities.hot_partitions
        return Context(self._namespace_id or "", self._world.now_ms(), is_metered, self._state.has_shares)

    async def _images(self, wanted: Iterable[Key | Query]) -> dict[Key | Query, Item | None]:
        wishes = dict.fromkeys(wanted)
        keys = [wish for wish in wishes if isinstance(wish, Key)]
        images = dict[Key | Query, Item | None]()
        if keys:
            images.update(zip(keys, await self._backend.batch_get(keys), strict=True))
        for query in [wish for wish in wishes if isinstance(wish, Query)]:
            rows = (await self._backend.query(query)).rows
            images[query] = rows[0].item if rows else None
        return images

    def _find(self, group: Group, error: ValidationError) -> None:
        for record in group:
            self.report.findings.add(Finding(record.key, str(error)))

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
            if not move.is_aside:
                tally = self.report.superseded if move.target is None else self.report.moved
                tally[move.records[0].kind] += len(move.records)
        return []

    async def _looked_at_again(self, moves: Sequence[Move], kinds: frozenset[Kind]) -> list[Move]:
        """Moves as they have to be now: some are done by somebody else, some go to another place."""
        items = await self._images(record.key for move in moves for record in move.records)
        groups = []
        for move in moves:
            left = [Row(r.key, item) for r in move.records if (item := items[r.key]) is not None]
            if due := [record for row in left if _is_due(record := self._recognise(row), kinds)]:
                groups.append(due)
        return await self._planned(groups)

    async def _clean(self, rows: Sequence[Row]) -> None:
        """Delete old records whose new ones are there, or would be gone by now anyway."""
        images = await self._images(target for row in rows if (target := target_of(row.item)) is not None)
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


def _is_due(record: Found, kinds: frozenset[Kind]) -> TypeGuard[OldRecord]:
    """Whether a row is an old record that a pass has something to do about.

    Children are counted when all entities have been moved, for only then are all parents there.
    """
    if not isinstance(record, OldRecord):
        return False
    if not record.is_moved:
        return record.kind in kinds
    if kinds != HISTORY or record.kind is not Kind.ENTITY or COUNTED in record.item:
        return False
    return target_of(record.item) is not None and isinstance(fields(record.item).get("parent_id"), str)
