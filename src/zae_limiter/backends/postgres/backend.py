"""The store on PostgreSQL: the waist's verbs as calls of its functions.

A call is one statement and one round trip, whatever it asks for. What tasks of one event loop ask at the
same time travels together: each call is a group of writes, atomic for itself, in the same statement. What a
group is refused for by the server itself, such as a value that is too large, must not hit the others:
nothing of them was kept, so each is sent again alone.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from ...exceptions import (
    IncompatibleSchemaError,
    InfrastructureError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
)
from ...models import BackendCapabilities
from ...repository_protocol import PAGE_ROWS_MAX, TRANSACT_WRITES_MAX, Item, Key, Outcome, Page, Query, Write
from ...runtime.colour import Colour, ForkSafe, run_sync
from ...runtime.world import World
from ...schema import INDEXES, sk_state
from ..change_log import LogEntry
from . import encoding, owner
from .address import Address
from .calls import FunctionCalls
from .encoding import Said, batch_of, group_of, item_from, key_of, outcomes_of, question_of, text_from
from .layout import LAYOUT_VERSION, drop_sql
from .listening import Listening
from .trouble import Trouble, failure

WRITES_AT_ONCE = KEYS_AT_ONCE = 100
"""The most that one request holds, and so the most locks that it takes."""
WAYS = 2
TIDY_EVERY_WRITES = 1000
TIDY_AGAIN_WRITES = 100  # if something was left: twice as fast as writes could make new items
TIDY_ITEMS_MAX = 200


class PostgresBackend:
    """Items in one schema, safe for tasks or threads, whichever it was opened for, also after a fork."""

    swap = changes = None
    """Every answer has to be waited for; ``news`` tells of changes."""

    def __init__(self, address: Address, world: World, *, sync: bool) -> None:
        self.address = address
        self._world, self._sync = world, sync
        self.capabilities: BackendCapabilities = BackendCapabilities(
            "postgresql", timeout_ms=address.timeout_ms, atomic_batches=True
        )
        self._ticks_ms = world.ticks_ms
        if sync:
            from .blocking import ThreadLinks

            self.calls: FunctionCalls = FunctionCalls(
                address, ThreadLinks(address.conninfo, world.ticks_ms), world
            )
        else:
            from .loop import LoopLinks

            self.calls = FunctionCalls(address, LoopLinks(address.conninfo, world.ticks_ms), world)
            self._writing = ForkSafe(self._make_writing, self.colour.home)
            self._reading = ForkSafe(self._make_reading, self.colour.home)
        self.listening: Final = Listening(address.listen, address.schema, self.calls.hear)
        self._writes = 0

    @property
    def colour(self) -> Colour:
        return self.calls.colour

    async def setup(self) -> None:
        """Look whether the store is there and of this version, and drop some of what has expired."""
        try:
            said, _ = await self.calls.ask("look", lambda _: b"", self.calls.deadline())
        except RateLimiterUnavailable as error:
            if error.misconfigured == "table":
                raise InfrastructureNotFoundError(str(error), stack_name=self.address.schema) from error
            raise
        self._check(said)
        await self._tidy()

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        until_ms = self.calls.deadline()
        wanted = [json.dumps(key_of(key)) for key in keys]
        found: list[Item | None] = []
        for at in range(0, len(wanted), KEYS_AT_ONCE):
            found += await self._read(wanted[at : at + KEYS_AT_ONCE], until_ms)
        return found

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        """All in one transaction, which costs as much as one write; but each is applied or refused alone."""
        until_ms = self.calls.deadline()
        outcomes: list[Outcome] = []
        for at in range(0, len(writes), WRITES_AT_ONCE):
            some = writes[at : at + WRITES_AT_ONCE]
            groups = [group_of([write]) for write in some]
            for write, answer in zip(some, await self._written(groups, until_ms), strict=True):
                if isinstance(answer, RateLimiterUnavailable):
                    outcomes.append(Outcome(False, None, failure=answer))
                else:
                    outcomes += outcomes_of([write], *answer)
        await self._count(len(writes))
        return outcomes

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        assert len({write.key for write in writes}) == len(writes), "a transaction names no key twice"
        assert len(writes) <= TRANSACT_WRITES_MAX, f"{len(writes)} writes in one transaction"
        if not writes:
            return []
        (answer,) = await self._written([group_of(writes)], self.calls.deadline(), len(writes))
        if isinstance(answer, RateLimiterUnavailable):
            raise answer
        await self._count(len(writes))
        return outcomes_of(writes, *answer)

    async def query(self, query: Query) -> Page:
        assert 0 < query.rows_max <= PAGE_ROWS_MAX, f"{query.rows_max} rows in one page"
        assert query.index is None or query.index in INDEXES, f"there is no index {query.index!r}"
        assert not (query.index and query.when), "an index yields keys: there is nothing to filter"
        question = question_of(query).encode()
        page: Page = await self.calls.ask(
            "query", lambda _: question, self.calls.deadline(), partial(encoding.page_of, query)
        )
        return page

    def news(self) -> int:
        self.listening.begin()
        return self.calls.news

    async def create_table(self, *, unlogged: bool = False) -> None:
        """Make the schema with its tables and functions, as far as missing or of an older version."""
        await owner.run_as_owner(self.address, self.colour, owner.create(self.address, unlogged=unlogged))

    async def delete_table(self) -> None:
        """Drop the schema with all that is in it."""
        await owner.run_as_owner(self.address, self.colour, drop_sql(self.address.schema))

    async def ping(self) -> None:
        """Return when the store has answered."""
        await self.calls.ask("look", lambda _: b"", self.calls.deadline())

    async def close(self) -> None:
        """Close the connections; the store opens others if it is used again."""
        self.listening.end()
        await self.calls.close()

    def change_log(self) -> PostgresLog:
        """What became of the buckets, read over connections of its own."""
        return PostgresLog(PostgresBackend(self.address, self._world, sync=True))

    # Reading and writing, together or alone.

    async def _read(self, keys: list[str], until_ms: float) -> list[Item | None]:
        if self._sync:
            return await self._read_now(keys, until_ms)
        try:
            found: list[Item | None] = await self._reading.get().ask(keys, len(keys), until_ms)
        except Trouble as trouble:
            raise failure(trouble, "read", self.address.place, ambiguous=False) from trouble
        return found

    async def _read_now(self, keys: Sequence[str], until_ms: float) -> list[Item | None]:
        asked = f"[{','.join(keys)}]".encode()
        read = partial(encoding.items_of, len(keys))
        found: list[Item | None] = await self.calls.ask("read", lambda _: asked, until_ms, read)
        return found

    async def _written(
        self, groups: list[str], until_ms: float, weight: int | None = None
    ) -> list[Said | RateLimiterUnavailable]:
        if self._sync:
            return await self._write_now(groups, until_ms)
        answers: list[Said | RateLimiterUnavailable]
        try:
            answers = await self._writing.get().ask(groups, weight or len(groups), until_ms)
        except Trouble as trouble:
            late = failure(trouble, "write", self.address.place, ambiguous=trouble.ambiguous)
            answers = [late for _ in groups]
        return answers

    async def _write_now(self, groups: Sequence[str], until_ms: float) -> list[Said | RateLimiterUnavailable]:
        """What became of each group, which nobody else waits for."""

        def batch(left_ms: float) -> bytes:
            return batch_of(groups, self._world.now_ms(), left_ms)

        try:
            read = partial(encoding.answers_of, len(groups))
            answers: list[Said | RateLimiterUnavailable] = await self.calls.ask(
                "write", batch, until_ms, read, repeatable=False
            )
        except RateLimiterUnavailable as error:
            if len(groups) == 1 or not error.impossible:
                return [error for _ in groups]
            # Nothing was kept of any, and only some are to blame.
            alone = [await self._write_now([group], until_ms) for group in groups]
            return [answer for (answer,) in alone]
        return answers

    def _make_writing(self) -> Any:
        from .loop import Aboard, Convoys, Ride

        async def send(rides: Sequence[Ride[list[str], Any]]) -> list[Any]:
            """What became of each ride; of one that is over, nothing."""
            aboard, until_ms = Aboard(rides), max(ride.until_ms for ride in rides)

            def batch(left_ms: float) -> bytes:
                groups = [group for ride in aboard.rides for group in ride.asked]
                return batch_of(groups, self._world.now_ms(), left_ms)

            def read(said: Any, odd: bool) -> list[Said]:
                return encoding.answers_of(sum(len(ride.asked) for ride in aboard.rides), said, odd)

            try:
                answers = iter(
                    await self.calls.ask(
                        "write", batch, until_ms, read, repeatable=False, is_sent=aboard.set_out
                    )
                )
            except RateLimiterUnavailable as error:
                return await blamed(aboard.rides, rides, error)
            found = {ride: [next(answers) for _ in ride.asked] for ride in aboard.rides}
            return [found.get(ride, []) for ride in rides]

        async def blamed(
            aboard: Sequence[Ride[list[str], Any]],
            rides: Sequence[Ride[list[str], Any]],
            error: RateLimiterUnavailable,
        ) -> list[Any]:
            """Let each ride go alone if only some are to blame; else all hear of the error."""
            if len(aboard) == 1 and error.impossible and len(aboard[0].asked) > 1:
                # Nothing was kept of any group. From now on nobody knows how many of them have set out.
                (ride,) = aboard
                ride.sent = True
                alone = [await self._write_now([group], ride.until_ms) for group in ride.asked]
                return [[answer for (answer,) in alone] if one is ride else [] for one in rides]
            if len(aboard) == 1 or not error.impossible:
                return [[error for _ in ride.asked] for ride in rides]
            found = {ride: (await send([ride]))[0] for ride in aboard if not ride.is_over}
            return [found.get(ride, []) for ride in rides]

        return Convoys[list[str], Any](send, WAYS, WRITES_AT_ONCE, self._ticks_ms)

    def _make_reading(self) -> Any:
        from .loop import Convoys, Ride

        async def send(rides: Sequence[Ride[list[str], Any]]) -> list[Any]:
            keys = [key for ride in rides for key in ride.asked]
            found = iter(await self._read_now(keys, max(ride.until_ms for ride in rides)))
            return [[next(found) for _ in ride.asked] for ride in rides]

        return Convoys[list[str], Any](send, WAYS, KEYS_AT_ONCE, self._ticks_ms)

    # What is done besides.

    def _check(self, said: dict[str, Any]) -> None:
        version, place = said.get("version"), self.address.place
        if version != LAYOUT_VERSION:
            is_older = type(version) is int and version < LAYOUT_VERSION
            way_out = (
                "bring it up to date with: zae-limiter table upgrade" if is_older else "install a newer one"
            )
            raise IncompatibleSchemaError(
                f"the store in {place} has layout {version!r}, this version needs {LAYOUT_VERSION}; {way_out}"
            )
        if said.get("encoding") != "UTF8":
            raise InfrastructureError(
                f"the database of {place} has the encoding {said.get('encoding')!r}; use one with UTF8"
            )

    async def _count(self, writes: int) -> None:
        self._writes += writes
        if self._writes >= TIDY_EVERY_WRITES:
            self._writes = 0
            if self._sync:
                await self._tidy_for_others()
            else:
                self.colour.later(0.0, self._tidy_for_others)

    async def _tidy_for_others(self) -> None:
        """A favour to later calls: its failure is theirs to find."""
        more = True
        with contextlib.suppress(RateLimiterUnavailable):
            more = await self._tidy()
        if more:
            self._writes = TIDY_EVERY_WRITES - TIDY_AGAIN_WRITES

    async def _tidy(self) -> bool:
        asked = json.dumps({"t": self._world.now_ms(), "n": TIDY_ITEMS_MAX}).encode()
        said, _ = await self.calls.ask("tidy", lambda _: asked, self.calls.deadline())
        return bool(said)


class PostgresLog:
    """The change log of a store, through connections of its own."""

    def __init__(self, backend: PostgresBackend) -> None:
        self._backend, self._calls = backend, backend.calls

    def read(self, entries_max: int) -> list[LogEntry]:
        while True:
            (entries, more), odd = self._ask("log_read", n=entries_max, w=str(self._calls.timeout_ms))
            if entries or not more:
                return [
                    LogEntry(position, _bucket(pk), _image(old, odd), _image(new, odd) or {}, at_ms)
                    for position, pk, old, new, at_ms in entries
                ]

    def waits(self) -> bool:
        return bool(self._ask("log_waits").said)

    def trim(self, position: int) -> None:
        self._ask("log_trim", p=position)

    def close(self) -> None:
        run_sync(self._backend.close())

    def _ask(self, function: str, **asked: Any) -> Any:
        argument = json.dumps(asked).encode()
        return run_sync(self._calls.ask(function, lambda _: argument, self._calls.deadline()))


def _bucket(pk: str) -> Key:
    return Key(text_from(pk), sk_state())


def _image(body: Any, odd: bool) -> Item | None:
    return item_from(body) if odd and body is not None else body
