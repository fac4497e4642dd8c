"""The store on DynamoDB: the waist's verbs as DynamoDB's operations.

A write is one UpdateItem, PutItem or DeleteItem that carries its conditions and brings back the image,
so there is never a read before it. Independent writes go out at the same time. What may be sent twice
and what may not is decided in ``calls``.

DynamoDB does not return the images that a transaction leaves behind: of an applied transaction of
several writes, the ``item`` of an ``Update`` and of a ``Check`` is ``None``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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
from . import provision
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
from .failures import failure
from .request_templates import Shapes
from .retries import Calls
from .transport import CANCELLED, ServiceError

CONDITION_FAILED = "ConditionalCheckFailedException"
INVALID = "ValidationException"

PING = Key("_/PING", "#PING")
"""No record has this key; reading it shows that the table answers."""


class DynamoDBBackend:
    """One table, safe for tasks or threads, whichever it was opened for."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._lanes = calls.transport.lanes
        self.capabilities = BackendCapabilities(
            "dynamodb", hot_partitions=True, streams=True, timeout_ms=calls.timeout_ms
        )
        self.table_name = calls.table_name
        self._shapes = Shapes(calls.table_name)

    @property
    def colour(self) -> Colour:
        return self._calls.transport.colour

    @property
    def calls(self) -> Calls:
        """For the few who need an operation that is no verb of the waist."""
        return self._calls

    async def setup(self) -> None:
        """Look whether the table is there and of the right shape. It is never made here."""
        await provision.verify_table(self._calls)

    async def create_table(self) -> None:
        await provision.create_table(self._calls)

    async def delete_table(self) -> None:
        await provision.delete_table(self._calls)

    async def ping(self) -> None:
        """Return when the table has answered a read."""
        await self.batch_get([PING])

    async def close(self) -> None:
        await self._calls.transport.close()

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        return await self._batch_get(keys, self._calls.deadline())

    async def _batch_get(self, keys: Sequence[Key], until_ms: float) -> list[Item | None]:
        # DynamoDB refuses to be asked for a key twice.
        wanted = list(dict.fromkeys(keys))
        parts = [wanted[at : at + BATCH_KEYS_MAX] for at in range(0, len(wanted), BATCH_KEYS_MAX)]
        found: dict[Key, Item] = {}
        reads = [self._read(part, until_ms) for part in parts]
        for items in await self._lanes.together(reads) if parts else ():
            found |= items
        return [found.get(key) for key in keys]

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        """All at the same time, but writes to the same item one after another."""
        until_ms = self._calls.deadline()
        if len(writes) <= 1:
            return await self._write_in_turn(writes, until_ms)
        places: dict[Key, list[int]] = {}
        for place, write in enumerate(writes):
            places.setdefault(write.key, []).append(place)
        turns = [self._write_in_turn([writes[at] for at in group], until_ms) for group in places.values()]
        found: dict[int, Outcome] = {}
        for group, outcomes in zip(places.values(), await self._lanes.together(turns), strict=True):
            found |= zip(group, outcomes, strict=True)
        return [found[place] for place in range(len(writes))]

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        assert len({write.key for write in writes}) == len(writes), "a transaction names no key twice"
        assert len(writes) <= TRANSACT_WRITES_MAX, f"{len(writes)} writes in one transaction"
        until_ms = self._calls.deadline()
        if len(writes) > 1:
            return await self._transact(writes, until_ms)
        return [await self._write(write, until_ms) for write in writes]

    async def query(self, query: Query) -> Page:
        request = query_request(self.table_name, query)
        if request is None:
            return Page((), None)
        return await self._calls.ask("Query", request, lambda reply: page_of(reply, query))

    async def _read(self, keys: Sequence[Key], until_ms: float) -> dict[Key, Item]:
        """As many keys as one request holds; what DynamoDB leaves out is asked for again."""
        found: dict[Key, Item] = {}
        attempt = 0

        def read(reply: Payload) -> tuple[dict[Key, Item], list[Key]]:
            return batch_of(reply, self.table_name, keys)

        while True:
            request = batch_get_request(self.table_name, keys)
            items, keys = await self._calls.ask("BatchGetItem", request, read, until_ms)
            found |= items
            if not keys:
                return found
            attempt += 1
            if not await self._calls.pause(attempt, until_ms):
                raise RateLimiterUnavailable(
                    f"DynamoDB BatchGetItem on table {self.table_name!r} left keys out until its deadline"
                )

    async def _write_in_turn(self, writes: Sequence[Write], until_ms: float) -> list[Outcome]:
        return [await self._tried(write, until_ms) for write in writes]

    async def _tried(self, write: Write, until_ms: float) -> Outcome:
        try:
            return await self._write(write, until_ms)
        except RateLimiterUnavailable as error:
            return Outcome(False, None, failure=error)

    async def _write(self, write: Write, until_ms: float) -> Outcome:
        if isinstance(write, Check):
            # DynamoDB checks without writing only inside a transaction, which would cost more.
            return (await self._judge([write], until_ms))[0]
        request: Request
        read: Callable[[Payload], Outcome | ServiceError] = _updated
        if type(write) is Update:
            operation, request = "UpdateItem", self._shapes.update_request(write)
        else:
            verb, request = write_request(self.table_name, write)
            operation, read = f"{verb}Item", lambda _: Outcome(True, _new_image(write))
        outcome = await self._calls.ask(operation, request, read, until_ms, WRITE_REFUSALS)
        if isinstance(outcome, ServiceError):
            return (await self._judge_invalid([write], outcome, operation, until_ms))[0]
        return outcome

    async def _transact(self, writes: Sequence[Write], until_ms: float) -> list[Outcome]:
        def read(_: Payload) -> list[Outcome] | ServiceError:
            return [Outcome(True, _new_image(write)) for write in writes]

        def cancelled(error: ServiceError) -> list[Outcome] | ServiceError:
            return _cancelled(error, len(writes))

        operation = "TransactWriteItems"
        request = transaction_request(self.table_name, writes, self._calls.token())
        refusals = {CANCELLED: cancelled, INVALID: _unjudged}
        outcomes = await self._calls.ask(operation, request, read, until_ms, refusals)
        if isinstance(outcomes, ServiceError):
            return await self._judge_invalid(writes, outcomes, operation, until_ms)
        return outcomes

    async def _judge(self, writes: Sequence[Write], until_ms: float) -> list[Outcome]:
        """What the writes would do to the present images."""
        return apply_all(writes, await self._batch_get([write.key for write in writes], until_ms))

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


# Readers of answers.


def _updated(reply: Payload) -> Outcome:
    return Outcome(True, decode_item(reply["Attributes"]) or {})


def _unmet(error: ServiceError) -> Outcome:
    return Outcome(False, decode_item(error.body.get("Item")), held=False)


def _unjudged(error: ServiceError) -> ServiceError:
    return error


def _cancelled(error: ServiceError, count: int) -> list[Outcome] | ServiceError:
    """What became of each write, or the refusal itself if it was for more than their conditions."""
    codes = {reason.get("Code") for reason in error.reasons}
    if not codes <= {"None", "ConditionalCheckFailed"}:
        return error
    if len(error.reasons) != count or "ConditionalCheckFailed" not in codes:
        raise ValueError(f"{len(error.reasons)} reasons for {count} writes, none of them a condition")
    return [_refused(reason) for reason in error.reasons]


WRITE_REFUSALS: Mapping[str, Callable[[ServiceError], Outcome | ServiceError]] = {
    CONDITION_FAILED: _unmet,
    INVALID: _unjudged,
}


def _refused(reason: Payload) -> Outcome:
    if reason["Code"] == "None":
        return Outcome(False, None, held=True)
    return Outcome(False, decode_item(reason.get("Item")), held=False)
