"""Every write to a bucket goes through ``engine.door``: by the sources, and by what a store sees."""

import ast
import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from tests.house_rules import MAY_WRITE, PACKAGE, WRITE_VERBS
from tests.migrations.older import NOW_MS, SHAPES
from tests.test_tidy import Module, matches, module_at, modules
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine import bucket_writes, posting, split
from zae_limiter.engine.law import Rate
from zae_limiter.operate.migrations import Migration, scan_of
from zae_limiter.records.connection import Options
from zae_limiter.repository_protocol import Item, Key, Outcome, Put, Swap, Update, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.loops import Asyncio
from zae_limiter.schema import bucket_key, sk_state
from zae_limiter.testing import ManualClock
from zae_limiter.testing.stores import Wrapper
from zae_limiter_aggregator import AggregatorSettings, Change, process_changes
from zae_limiter_aggregator.buckets import COOL_MS, REFILL_AFTER_MS
from zae_limiter_aggregator.changes import span_of

DOOR = "zae_limiter.engine.door"
RESOURCE = "gpt-4"
LIMITS = [Limit.custom("rpm", 1_000, 10, 60)]
FEW_WRITES = Rate(20_000, 20_000, 1_000)
"""So that a bucket is hot after twenty."""


# By the sources.


def verb_of(node: ast.AST) -> str | None:
    """What is asked of some object: as `of.verb`, or by `getattr`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        named = [one.value for one in node.args[1:2] if isinstance(one, ast.Constant)]
        return str(named[0]) if named else None
    return None


def verbs_named(module: Module) -> list[str]:
    """Where a module names a verb by which a store writes."""
    return [
        f"{module.path}:{node.lineno}: {verb}"  # type: ignore[attr-defined]  # what has a verb has a line
        for node in ast.walk(ast.parse(module.source))
        if (verb := verb_of(node)) in WRITE_VERBS
    ]


def bypasses(module: Module) -> list[str]:
    """Where one does that may not."""
    return [] if any(matches(module.short_name, pattern) for pattern in MAY_WRITE) else verbs_named(module)


def test_only_the_door_asks_a_store_to_write() -> None:
    assert [complaint for module in modules() for complaint in bypasses(module)] == []


def test_no_permission_to_write_outlives_its_need() -> None:
    writing = [module.short_name for module in modules() if verbs_named(module)]
    assert [pattern for pattern in MAY_WRITE if not any(matches(name, pattern) for name in writing)] == []


@pytest.mark.parametrize(
    "source",
    [
        "async def f(writer):\n    await writer.backend.write_each([])",
        "verb = backend.transact_write",
        "swap = getattr(backend, 'swap', None)",
    ],
)
def test_a_write_past_the_door_is_seen(source: str) -> None:
    """The rule can fail, and does not hold for a store."""
    assert bypasses(module_at(f"src/{PACKAGE}/settlement.py", source))
    assert bypasses(module_at(f"src/{PACKAGE}/backends/memory.py", source)) == []


# By what a store sees.


class Watched(Wrapper):
    """A store that notes who writes to buckets, and whether they came through the door.

    It pretends to be one elsewhere: partitions run hot, and nobody is told of changes.
    """

    def __init__(self, clock: ManualClock, *, elsewhere: bool = True) -> None:
        super().__init__(MemoryBackend(clock.world))
        self.clock, self.elsewhere = clock, elsewhere
        self._colour = Asyncio()
        self.through, self.past = set[str](), set[str]()
        self.stream: list[Change] = []
        self.memory.watchers.append(self._watch)
        self.meanwhile: Callable[[Sequence[Write]], None] = lambda _: None

    @property
    def swap(self) -> Swap | None:
        return None if self.elsewhere else self._swap

    @property
    def memory(self) -> MemoryBackend:
        assert isinstance(self.inner, MemoryBackend)
        return self.inner

    @property
    def capabilities(self) -> Any:
        here = self.inner.capabilities
        return replace(here, hot_partitions=True, atomic_batches=False) if self.elsewhere else here

    @property
    def colour(self) -> Any:
        return self._colour

    @property
    def changes(self) -> Any:
        return None if self.elsewhere else super().changes

    def _watch(self, key: Key, old: Item | None, new: Item | None) -> None:
        if key.sort == sk_state():
            number = str(len(self.stream) + 1)
            self.stream.append(Change(key, old, new, self.clock.now_ms, span_of(old, new, number), number))

    def _see(self, keys: Sequence[Key], frame: FrameType) -> None:
        """Note who called: the door and whoever came through it, or somebody who went past."""
        if not any(key.sort == sk_state() for key in keys):
            return
        is_door, caller = frame.f_globals["__name__"] == DOOR, frame
        while caller.f_globals["__name__"] in (DOOR, "zae_limiter.records.scope"):
            assert caller.f_back is not None
            caller = caller.f_back
        name = f"{caller.f_globals['__name__']}.{caller.f_code.co_name}"
        (self.through if is_door else self.past).add(name.removeprefix("zae_limiter"))

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        self._see([write.key for write in writes], sys._getframe(1))
        self.meanwhile(writes)
        return await super().write_each(writes)

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        self._see([write.key for write in writes], sys._getframe(1))
        return await super().transact_write(writes)

    def _swap(self, *given: Any) -> Item | None:
        self._see([given[0]], sys._getframe(1))
        return self.memory.swap(*given)

    async def aggregate(self) -> Any:
        """Let an aggregator see what is new."""
        batch, self.stream = self.stream, []
        return await process_changes(batch, self, self.clock.world, AggregatorSettings())


class Story:
    """A limiter over a watched store, and all that can happen to its buckets."""

    def __init__(self, *, elsewhere: bool = True) -> None:
        self.clock = ManualClock()
        self.store = Watched(self.clock, elsewhere=elsewhere)

    async def open(self) -> "Story":
        repository = await Repository.over(self.store, world=self.clock.world, options=Options())
        self.repository, self.limiter = repository, RateLimiter(repository)
        await repository.set_resource_defaults(RESOURCE, LIMITS)
        return self

    def key(self, entity_id: str, shard_id: int = 0) -> Key:
        return bucket_key(self.repository.namespace_id, entity_id, RESOURCE, shard_id)

    async def take(self, entity_id: str, amount: int = 1, more: int = 0) -> bool:
        try:
            async with self.limiter.acquire(entity_id, RESOURCE, {"rpm": amount}) as lease:
                if more:
                    await lease.adjust(rpm=more)
                return True
        except RateLimitExceeded:
            return False

    async def families(self) -> None:
        """Cascades with refusals and refunds, children that move, and a move that a bucket has missed."""
        for parent in ("team", "club"):
            await self.repository.create_entity(parent)
        await self.repository.create_entity("child", parent_id="team", cascade=True)
        assert await self.take("child")
        assert await self.take("team", 998)
        assert not await self.take("child", 2)
        assert await asyncio.gather(*(self.take("child", 1, -1) for _ in range(5)))
        await self.repository.update_entity("child", parent_id="club")
        self.agree("child", "team", "club")
        assert await self.take("child")
        copied = Update(self.key("child"), set={"parent_id": "team"})
        await self.store.memory.write_each([copied])
        await self.repository.get_bucket("child", RESOURCE)
        assert await self.take("child")
        self.agree("child", "team", "club")

    async def debts(self) -> None:
        """A bucket that two leave in debt at once, each within the life that it saw."""
        theirs = Update(self.key("debtor"), add={"b_rpm_tk": -9_000_000})

        def owe(writes: Sequence[Write]) -> None:
            if any(isinstance(w, Update) and w.add.get("b_rpm_tk", 0) < -1_000_000 for w in writes):
                self.store.meanwhile = lambda _: None
                run_sync(self.store.memory.write_each([theirs]))

        self.store.meanwhile = owe
        assert await self.take("debtor", 1, 2_000)

    async def operators(self) -> None:
        """Operators give, and move somebody to another family."""
        assert await self.take("poor", 1_000, 5)
        for verb in (self.repository.forgive, self.repository.reset):
            assert (await verb("poor", RESOURCE)).used
        await self.repository.create_entity("poor")
        await self.repository.create_entity("rich")
        await self.repository.set_parent("poor", "rich", True)
        self.agree("poor")

    async def limits(self) -> None:
        """Limits of its own, set and deleted; others that a refusal brings along; versions that were lost."""
        assert await self.take("own", 3)
        await self.repository.set_limits("own", [Limit.custom("rpm", 5, 1, 60)], RESOURCE)
        assert not await self.take("own", 1_000)
        assert await self.take("own")
        await self.repository.delete_limits("own", RESOURCE)
        assert await self.take("own")
        ahead = Update(self.key("own"), set={"cv": 10**9})
        await self.store.memory.write_each([ahead])
        assert await self.take("own")
        self.agree("own")

    async def upkeep(self) -> None:
        """A bucket is split by its clients and by the aggregator, refilled, cools down and is merged."""
        while len(self.shards("hot")) < 2:
            await self.take("hot")
        while len(self.shards("hot")) < 4:
            await self.take("hot")
            await self.store.aggregate()
        self.clock.advance(REFILL_AFTER_MS / 1000)
        assert await self.take("tired", 990)
        self.clock.advance(REFILL_AFTER_MS / 1000)
        assert await self.take("tired", 9)
        assert (await self.store.aggregate()).refills_written
        while len(self.shards("hot")) > 1:
            self.clock.advance(COOL_MS / 1000 + 1)
            await self.take("hot")
            await self.store.aggregate()

    def agree(self, *entity_ids: str) -> None:
        """What this process remembers of some buckets is what is there: it wrote to them last."""
        there, images = self.store.memory.snapshot(), self.repository.writer.images
        keys = [key for key in map(self.key, entity_ids) if key in images]
        assert {key: images[key] for key in keys} == {key: there.get(key) for key in keys}
        assert keys

    def shards(self, entity_id: str) -> list[int]:
        there = self.store.memory.snapshot()
        return [shard_id for shard_id in range(32) if self.key(entity_id, shard_id) in there]

    async def ends(self) -> None:
        """An entity is deleted and made anew, somebody writes by hand, and all of it is purged."""
        await self.repository.create_entity("brief")
        assert await self.take("brief")
        await self.repository.delete_entity("brief")
        self.agree("brief")
        assert await self.take("brief")
        by_hand = Update(self.key("brief"), set={"note": "seen"})
        await self.repository.write_each([by_hand])
        self.agree("brief")
        await self.repository.transact_write([by_hand])
        self.agree("brief")
        await self.repository.delete_namespace(self.repository.namespace_name)
        await self.repository.purge_namespace(self.repository.namespace_id)


ELSEWHERE = {
    *(f".engine.group_commit.{name}" for name in ("write_alone", "serve", "bring_up_to_date")),
    ".engine.settle._keep_alive",
    ".engine.split._split",
    ".records.buckets._put_right",
    *(f".records.capacity.{name}" for name in ("transact_write", "write_each")),
    ".records.levels._stamp",
    ".records.once.once",
    ".records.belongings._mark_buckets",
    ".records.families.tell_buckets",
    ".records.namespaces._erase",
    *(f"_aggregator.buckets.{name}" for name in ("_written", "_written_together")),
}


def test_whatever_happens_to_a_bucket_comes_through_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acquires, cascades, splits, merges, changes, deletions, refills, prolonged lives: nobody goes past."""
    monkeypatch.setattr(bucket_writes, "WRITES", FEW_WRITES)
    monkeypatch.setattr(posting, "WRITES", FEW_WRITES)
    monkeypatch.setattr(split, "WRITES", FEW_WRITES)

    async def story() -> Watched:
        it = await Story().open()
        await it.families()
        await it.operators()
        await it.debts()
        await it.limits()
        await it.upkeep()
        await it.ends()
        return it.store

    store = asyncio.run(story())
    assert store.past == set()
    assert ELSEWHERE - store.through == set(), "the story leaves these out"


def test_what_is_taken_at_once_comes_through_the_door_too() -> None:
    """Where a store can answer at once, and where a family is charged all or none."""

    async def story() -> Watched:
        it = await Story(elsewhere=False).open()
        await it.families()
        await it.operators()
        await it.limits()
        await it.ends()
        return it.store

    store = asyncio.run(story())
    assert store.past == set()
    assert {".engine.acquire.acquire", ".engine.group_commit._transact"} - store.through == set(), (
        "the story leaves these out"
    )


def test_a_migration_comes_through_the_door() -> None:
    """Buckets of an older layout become ours."""
    store = Watched(ManualClock(NOW_MS))
    run_sync(store.memory.write_each([Put(key, item) for key, item in SHAPES["composite"](20).items.items()]))
    run_sync(Migration(store, store.clock.world, scan=scan_of(store.memory)).run())
    assert (store.past, store.through) == (set(), {".operate.migrations.migration._send"})
