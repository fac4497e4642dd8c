"""The store on DynamoDB: the waist's verbs as DynamoDB's operations.

A write is one UpdateItem, PutItem or DeleteItem that carries its conditions and brings back the image,
so there is never a read before it. Independent writes go out at the same time. What may be sent twice
and what may not is decided in ``retries``.

DynamoDB does not return the images that a transaction leaves behind: of an applied transaction of
several writes, the ``item`` of an ``Update`` and of a ``Check`` is ``None``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from ...exceptions import RateLimiterUnavailable
from ...models import BackendCapabilities
from ...repository_protocol import (
    BATCH_KEYS_MAX,
    TRANSACT_WRITES_MAX,
    Check,
    Item,
    Key,
    Outcome,
    Page,
    Put,
    Query,
    Update,
    Write,
    apply,
    apply_all,
)
from ...runtime.colour import Colour
from . import table
from .expressions import (
    Payload,
    Request,
    batch_get_request,
    batch_of,
    decode_item,
    page_of,
    query_request,
    transaction_request,
    write_request,
)
from .request_templates import UpdateTemplates
from .retries import Calls, as_it_is
from .transport import CANCELLED, ServiceError, failure

T = TypeVar("T")
Refusals: TypeAlias = Mapping[str, Callable[[ServiceError], T | ServiceError]]

CONDITION_FAILED = "ConditionalCheckFailedException"
INVALID = "ValidationException"

PING = Key("_/PING", "#PING")
"""No record has this key; reading it shows that the table answers."""


class DynamoDBBackend:
    """One table, safe for tasks or threads, whichever it was opened for."""

    swap = changes = news = None
    """Every answer has to be waited for, and a change is found out by reading."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        """For the few who need an operation that is no verb of the waist."""
        self.table_name: str = calls.table_name
        self.capabilities: BackendCapabilities = BackendCapabilities(
            "dynamodb", hot_partitions=True, streams=True, made_before=True, timeout_ms=calls.timeout_ms
        )
        self._templates = UpdateTemplates(calls.table_name)

    @property
    def colour(self) -> Colour:
        return self.calls.transport.colour

    async def setup(self) -> None:
        """Look whether the table is there and of the right shape. It is never made here."""
        await table.verify_table(self.calls)

    async def create_table(self) -> None:
        await table.create_table(self.calls)

    async def delete_table(self) -> None:
        await table.delete_table(self.calls)

    async def ping(self) -> None:
        """Return when the table has answered a read."""
        await self.batch_get([PING])

    async def close(self) -> None:
        await self.calls.transport.close()

    async def batch_get(self, keys: Sequence[Key], until_ms: float | None = None) -> list[Item | None]:
        # DynamoDB refuses to be asked for a key twice.
        wanted, until_ms = list(dict.fromkeys(keys)), until_ms or self.calls.deadline()
        parts = [wanted[at : at + BATCH_KEYS_MAX] for at in range(0, len(wanted), BATCH_KEYS_MAX)]
        found: dict[Key, Item] = {}
        reads = [self._read(part, until_ms) for part in parts]
        for items in await self.calls.transport.fanout.together(reads) if parts else ():
            found |= items
        return [found.get(key) for key in keys]

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        """All at the same time, but writes to the same item one after another."""
        now_ms = self.calls.ticks_ms()
        until_ms, outcomes = now_ms + self.calls.timeout_ms, dict[int, Outcome]()
        if len(writes) == 1:
            return [await self._write(writes[0], until_ms, now_ms)]

        async def in_turn(places: list[int]) -> None:
            for place in places:
                outcomes[place] = await self._write(writes[place], until_ms)

        groups: dict[Key, list[int]] = {}
        for place, write in enumerate(writes):
            groups.setdefault(write.key, []).append(place)
        if groups:
            await self.calls.transport.fanout.together([in_turn(places) for places in groups.values()])
        return [outcomes[place] for place in range(len(writes))]

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        assert len({write.key for write in writes}) == len(writes), "a transaction names no key twice"
        assert len(writes) <= TRANSACT_WRITES_MAX, f"{len(writes)} writes in one transaction"
        until_ms = self.calls.deadline()
        if len(writes) > 1:
            return await self._transact(writes, until_ms)
        outcomes = [await self._write(write, until_ms) for write in writes]
        for outcome in outcomes:
            if outcome.failure is not None:
                raise outcome.failure
        return outcomes

    async def query(self, query: Query) -> Page:
        request = query_request(self.table_name, query)
        if request is None:
            return Page((), None)
        return await self.calls.ask("Query", request, lambda reply: page_of(reply, query))

    async def _read(self, keys: Sequence[Key], until_ms: float) -> dict[Key, Item]:
        """As many keys as one request holds; what DynamoDB leaves out is asked for again."""
        found: dict[Key, Item] = {}
        attempt = 0

        def read(reply: Payload) -> tuple[dict[Key, Item], list[Key]]:
            return batch_of(reply, self.table_name, keys)

        while True:
            request = batch_get_request(self.table_name, keys)
            items, keys = await self.calls.ask("BatchGetItem", request, read, until_ms)
            found |= items
            if not keys:
                return found
            attempt += 1
            if not await self.calls.pause(attempt, until_ms):
                raise RateLimiterUnavailable(
                    f"DynamoDB BatchGetItem on table {self.table_name!r} left keys out until its deadline"
                )

    async def _write(self, write: Write, until_ms: float, now_ms: float | None = None) -> Outcome:
        """One write on its own; that DynamoDB does not answer is an outcome, too."""
        request: Request
        read: Callable[[Payload], Outcome | ServiceError] = _updated
        try:
            if type(write) is Update:
                operation, request = "UpdateItem", self._templates.request(write)
            elif isinstance(write, Check):
                # DynamoDB checks without writing only inside a transaction, which would cost more.
                return (await self._judge([write], until_ms))[0]
            else:
                verb, request = write_request(self.table_name, write)
                operation, read = f"{verb}Item", lambda _: Outcome(True, _new_image(write))
            outcome = await self.calls.ask(operation, request, read, until_ms, WRITE_REFUSALS, now_ms)
            if isinstance(outcome, ServiceError):
                return (await self._judge_invalid([write], outcome, operation, until_ms))[0]
            return outcome
        except RateLimiterUnavailable as error:
            return Outcome(False, None, failure=error)

    async def _transact(self, writes: Sequence[Write], until_ms: float) -> list[Outcome]:
        def read(_: Payload) -> list[Outcome] | ServiceError:
            return [Outcome(True, _new_image(write)) for write in writes]

        operation = "TransactWriteItems"
        request = transaction_request(self.table_name, writes, self.calls.token())
        refusals: Refusals[list[Outcome]]
        refusals = {CANCELLED: lambda error: _cancelled(error, len(writes)), INVALID: as_it_is}
        outcomes = await self.calls.ask(operation, request, read, until_ms, refusals)
        if isinstance(outcomes, ServiceError):
            return await self._judge_invalid(writes, outcomes, operation, until_ms)
        return outcomes

    async def _judge(self, writes: Sequence[Write], until_ms: float) -> list[Outcome]:
        """What the writes would do to the present images."""
        return apply_all(writes, await self.batch_get([write.key for write in writes], until_ms))

    async def _judge_invalid(
        self, writes: Sequence[Write], error: ServiceError, operation: str, until_ms: float
    ) -> list[Outcome]:
        """Tell an addition to something that is no integer, which is a refusal, from a real mistake.

        DynamoDB calls both invalid and shows no image.
        """
        outcomes = await self._judge(writes, until_ms)
        if all(outcome.applied for outcome in outcomes):
            raise failure(error, operation, self.table_name, ambiguous=False) from error
        return outcomes


def _new_image(write: Write) -> Item | None:
    """What an applied write left behind, as far as it is known without a reply."""
    return apply(Put(write.key, write.item), None).item if isinstance(write, Put) else None


def _updated(reply: Payload) -> Outcome:
    return Outcome(True, decode_item(reply["Attributes"]) or {})


def _unmet(found: Mapping[str, object]) -> Outcome:
    """A condition that does not hold, and the image for which it does not."""
    return Outcome(False, decode_item(found.get("Item")), held=False)


def _cancelled(error: ServiceError, count: int) -> list[Outcome] | ServiceError:
    """What became of each write, or the refusal itself if it was for more than their conditions."""
    codes = {reason.get("Code") for reason in error.reasons}
    if not codes <= {"None", "ConditionalCheckFailed"}:
        return error
    if len(error.reasons) != count or "ConditionalCheckFailed" not in codes:
        raise ValueError(f"{len(error.reasons)} reasons for {count} writes, none of them a condition")
    held = Outcome(False, None, held=True)
    return [held if reason["Code"] == "None" else _unmet(reason) for reason in error.reasons]


WRITE_REFUSALS: Refusals[Outcome] = {CONDITION_FAILED: lambda error: _unmet(error.body), INVALID: as_it_is}
