"""The store on Redis or Valkey: the waist's verbs as questions to one script.

Each call is one request, and calls of one event loop share requests. A transaction is one group of writes,
each write of ``write_each`` a group of its own. What expired is dropped by whoever writes, some of it at a
time, with all that leads to it: Redis itself would leave the places in indexes, and take uncounted usage
along.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...exceptions import RateLimiterUnavailable
from ...models import BackendCapabilities
from ...records.items import is_widely_remembered
from ...repository_protocol import (
    PAGE_ROWS_MAX,
    TRANSACT_WRITES_MAX,
    Item,
    Key,
    Outcome,
    Page,
    Put,
    Query,
    Update,
    Write,
)
from ...runtime.colour import Colour
from ...schema import INDEXES
from ..change_log import HOUR_MS
from . import requests
from .carrier import Carrier
from .change_log import RedisLog
from .encoding import item_key, item_of, namespace_of, tag_of
from .requests import Known
from .resp import Refused, bulk
from .server_checks import check_server
from .trouble import RedisTrouble, trouble_of, unreadable

ASKED_MAX = 250  # how much of one call goes into one request, during which the server does nothing else
KNOWN_MAX = 100_000
SWEEP_ITEMS_MAX = 200
SWEEP_EVERY_WRITES = 1000
SWEEP_AGAIN_WRITES = 100  # if something was left: twice as fast as writes could make new items
SETUP_NAMESPACES = 20

_log = logging.getLogger("zae_limiter")


class ItemPlace(NamedTuple):
    """Where an item is: its namespace and the tag of that, and its key, alone and as it is sent."""

    namespace: str
    tag: bytes
    key: bytes
    sent: bytes


class RedisBackend:
    """One prefix of a server, of what sentinels name, or of a cluster."""

    swap = changes = None
    """Every answer has to be waited for. Replies tell of changes, but only replies do: see ``news``."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.capabilities: BackendCapabilities = BackendCapabilities(
            "redis", timeout_ms=carrier.options.timeout_ms, atomic_batches=True
        )
        self._root = carrier.options.root
        self._known: dict[bytes, Known] = {}
        self._places: dict[Key, ItemPlace] = {}
        self._enlisted: dict[
            str, float
        ] = {}  # namespaces that stand in the list of all, and since which hour
        self._writes = 0

    @property
    def colour(self) -> Colour:
        return self.carrier.network.colour

    @property
    def registry(self) -> bytes:
        """The set of all namespaces."""
        return tag_of(self._root, "") + b"n"

    def news(self) -> int:
        return self.carrier.news

    async def setup(self) -> None:
        """Look whether the server can keep what it is given, and drop some of what has expired."""
        await check_server(self)
        for namespace in await self.namespaces(SETUP_NAMESPACES):
            await self.sweep(namespace)

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        places, answers = [self._place(key) for key in keys], dict[int, list[bytes]]()

        async def read(part: Sequence[int]) -> None:
            asked, tag = [requests.get(places[at].sent) for at in part], places[part[0]].tag
            answers.update(zip(part, await self.carrier.ask(asked, tag, is_write=False), strict=True))

        await self.colour.together([read(part) for parts in self._parts(places) for part in parts])
        items: list[Item | None] = []
        try:
            for at, place in enumerate(places):
                items.append(item := item_of(answers[at]))
                self._learn(place.key, requests.known_of(answers[at], item))
        except Exception as error:
            raise self._unreadable(error, is_write=False) from error
        return items

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        if len(writes) == 1:
            try:
                return await self._write((writes,))
            except RateLimiterUnavailable as failure:
                return [Outcome(False, None, failure=failure)]
        outcomes: dict[int, Outcome] = {}

        async def write(part: Sequence[int]) -> None:
            try:
                found = await self._write([[writes[at]] for at in part])
                outcomes.update(zip(part, found, strict=True))
            except RateLimiterUnavailable as failure:
                if failure.impossible and len(part) > 1:  # which of them is, the others need not share
                    for at in part:
                        await write([at])
                else:
                    outcomes.update((at, Outcome(False, None, failure=failure)) for at in part)

        async def write_in_order(parts: Sequence[Sequence[int]]) -> None:
            for part in parts:
                await write(part)

        queues = self._parts([self._place(write.key) for write in writes])
        await self.colour.together([write_in_order(parts) for parts in queues])
        return [outcomes[at] for at in range(len(writes))]

    def _parts(self, places: Sequence[ItemPlace]) -> list[list[list[int]]]:
        """Which can go into one request each: on a cluster those of one slot, and nowhere too many.

        Those of one slot are together, in their order.
        """
        is_cluster, by_tag = self.carrier.servers.is_cluster, dict[bytes, list[int]]()
        for at, place in enumerate(places):
            by_tag.setdefault(place.tag if is_cluster else b"", []).append(at)
        return [
            [found[first : first + ASKED_MAX] for first in range(0, len(found), ASKED_MAX)]
            for found in by_tag.values()
        ]

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        assert len({write.key for write in writes}) == len(writes), "a transaction names no key twice"
        assert len(writes) <= TRANSACT_WRITES_MAX, f"{len(writes)} writes in one transaction"
        return await self._write([writes]) if writes else []

    async def query(self, query: Query) -> Page:
        assert 0 < query.rows_max <= PAGE_ROWS_MAX, f"{query.rows_max} rows in one page"
        assert query.index is None or query.index in INDEXES, f"there is no index {query.index!r}"
        assert not (query.index and query.when), "an index yields keys: there is nothing to filter"
        tag = self.tag(namespace_of(query.partition))
        (told,) = await self.carrier.ask([requests.page(tag, query)], tag, is_write=False)
        try:
            return requests.page_of(query, told)
        except Exception as error:
            raise self._unreadable(error, is_write=False) from error

    async def close(self) -> None:
        """Close the connections; the store makes new ones if it is used again."""
        await self.carrier.close()

    def change_log(self) -> RedisLog:
        """What became of the buckets, read over connections of its own, which may block."""
        from . import reopened

        return RedisLog(reopened(self))

    # For the change log and whoever looks after the store.

    def tag(self, namespace: str) -> bytes:
        return tag_of(self._root, namespace)

    async def namespaces(self, count_max: int | None = None) -> list[str]:
        """The namespaces that were ever written to, or some of them by chance."""
        words = ("SMEMBERS",) if count_max is None else ("SRANDMEMBER",)
        count = () if count_max is None else (str(count_max),)
        found: Any = await self.say(*words, self.registry, *count)
        try:
            return sorted(name.decode("utf-8", "surrogatepass") for name in found)
        except Exception as error:
            raise self._unreadable(error, is_write=False) from error

    async def sweep(self, namespace: str) -> bool:
        """Drop some of what has expired in a namespace; whether there may be more."""
        dropped = await self.ask_one(namespace, b"S", SWEEP_ITEMS_MAX)
        return dropped == SWEEP_ITEMS_MAX

    async def ask_one(self, namespace: str, verb: bytes, number: int | None = None) -> object:
        tag = self.tag(namespace)
        asked = requests.simple(tag, verb, number)
        (answer,) = await self.carrier.ask([asked], tag, is_write=True)
        return answer

    async def say(self, *words: bytes | str) -> object:
        """The reply to a plain command about the whole store."""
        where = str(self.carrier.servers)
        try:
            reply = await self.carrier.say(self.tag(""), *words)
        except RedisTrouble as trouble:
            raise trouble.as_failure(where, is_write=False) from trouble
        if isinstance(reply, Refused):
            raise trouble_of(reply).as_failure(where, is_write=False) from reply
        return reply

    # Writes.

    async def _write(self, groups: Sequence[Sequence[Write]]) -> list[Outcome]:
        """The outcomes of all writes of some groups, which travel together."""
        tag, asked, all_known, new = b"", [], [], set[str]()
        hour = self.carrier.world.ticks_ms() // HOUR_MS
        for group in groups:
            places = [self._place(write.key) for write in group]
            tag = places[0].tag
            if self.carrier.servers.is_cluster:
                self._check_tags(group, tag)
            known = [self._known.get(place.key) for place in places]
            sent = [place.sent for place in places]
            asked.append(requests.group(group, sent, known, is_widely_remembered))
            all_known.append((places, known))
            for place in places:
                if self._enlisted.get(place.namespace) != hour:
                    new.add(place.namespace)
        if new:
            await self._enlist(new, hour)
        answers = await self.carrier.ask(asked, tag, is_write=True)
        outcomes: list[Outcome] = []
        try:
            for group, (places, known), told in zip(groups, all_known, answers, strict=True):
                for place, (outcome, now) in zip(
                    places, requests.outcomes_of(group, known, told), strict=True
                ):
                    outcomes.append(outcome)
                    self._learn(place.key, now)
        except Exception as error:
            raise self._unreadable(error, is_write=True) from error
        self._writes += len(outcomes)
        if self._writes >= SWEEP_EVERY_WRITES:
            await self._tidy(all_known[-1][0][-1].namespace)
        return outcomes

    def _check_tags(self, group: Sequence[Write], tag: bytes) -> None:
        """All that a group changes must be in one slot of a cluster: items, and their places in indexes."""
        for write in group:
            given = write.item if isinstance(write, Put) else write.set if isinstance(write, Update) else {}
            partitions = [given.get(f"{index}PK") for index in INDEXES]
            for partition in (write.key.partition, *partitions):
                if isinstance(partition, str) and self.tag(namespace_of(partition)) != tag:
                    raise requests.impossible(
                        f"a cluster cannot change two namespaces at once, {namespace_of(partition)!r} and "
                        f"{namespace_of(group[0].key.partition)!r}; use one, or a single server"
                    )

    async def _enlist(self, namespaces: set[str], hour: float) -> None:
        """Note namespaces in the list of all before the first write, and hourly, lest it be lost."""
        names = [name.encode("utf-8", "surrogatepass") for name in namespaces]
        await self.say("SADD", self.registry, *names)
        if len(self._enlisted) > KNOWN_MAX:
            self._enlisted.clear()
        self._enlisted.update(dict.fromkeys(namespaces, hour))

    async def _tidy(self, namespace: str) -> None:
        """Drop some of what has expired, here and in a namespace that perhaps nobody uses any more."""
        self._writes = 0
        more = True
        with contextlib.suppress(RateLimiterUnavailable):  # a favour to later calls, whose failures tell
            more = await self.sweep(namespace)
            for other in await self.namespaces(1):
                if other != namespace:
                    more |= await self.sweep(other)
        if more:
            self._writes = SWEEP_EVERY_WRITES - SWEEP_AGAIN_WRITES

    def _unreadable(self, error: Exception, *, is_write: bool) -> RateLimiterUnavailable:
        """Whatever a server has in store for who reads its answers ends here."""
        return unreadable(error).as_failure(str(self.carrier.servers), is_write=is_write)

    # What is remembered.

    def _place(self, key: Key) -> ItemPlace:
        place = self._places.get(key)
        if place is None:
            namespace = namespace_of(key.partition)
            tag = self.tag(namespace)
            name = item_key(tag, key)
            if len(self._places) >= KNOWN_MAX:
                self._places.clear()
            place = self._places[key] = ItemPlace(namespace, tag, name, bulk(name))
        return place

    def _learn(self, key: bytes, known: Known | None) -> None:
        """Remember the image that a reply showed, so that the next one need not."""
        if known is None:
            self._known.pop(key, None)
            return
        if key not in self._known and len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[key] = known
