"""A change that is made once, however often it is asked for.

The record of its key is written in the transaction of the change, on condition that there is none. So a
request that is sent again, by whomever and even at the same time, finds the record or is refused on account
of it, and is answered as the first one was. That also answers whoever lost the reply: it asks again.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..exceptions import DamagedRecordError, RateLimiterUnavailable, ValidationError
from ..naming import validate_key
from ..repository_protocol import Absent, Condition, Item, Outcome, Put, Value, Write
from ..schema import number, once_key, pinned, text, within_namespace
from .scope import DAY_SECONDS, Scope

KEPT_SECONDS = DAY_SECONDS
"""How long a key is remembered."""

ATTEMPTS_MAX = 16
CALLS_MAX = 4
"""A change is tried again for so many times the deadline of a call."""

PAUSE_SECONDS_MAX = 0.2


class OnceRequest(NamedTuple):
    """What somebody wants to be done once."""

    verb: str
    arguments: Mapping[str, Any]
    key: str
    is_known: bool = True
    """The caller knows the key, so it may have been used before."""

    @property
    def said(self) -> str:
        return f"{self.verb} {json.dumps(self.arguments, sort_keys=True)}"


class Proposal(NamedTuple):
    """The writes of an attempt, and what is answered if they are applied."""

    writes: Sequence[Write]
    answer: Mapping[str, Value]


class Answered(NamedTuple):
    said: Mapping[str, Any]
    is_new: bool
    """It was this call that made the change."""


async def once(
    scope: Scope,
    request: OnceRequest,
    propose: Callable[[], Awaitable[Proposal | None]],
    refused: Callable[[Sequence[Write], Sequence[Outcome]], Awaitable[None]] | None = None,
) -> Answered | None:
    """Make a change, or tell what was answered when it was made; ``None`` if every attempt was overtaken.

    ``propose`` looks at what is there, and is asked again if it has nothing to say about that yet, or if it
    has changed before it was written.
    """
    world, place = scope.world, once_key(scope.namespace_id, request.key)
    until_ms = world.ticks_ms() + CALLS_MAX * scope.backend.capabilities.timeout_ms
    lost: RateLimiterUnavailable | None = None
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            await scope.backend.colour.sleep(
                world.random.random() * min(PAUSE_SECONDS_MAX, 0.002 * 2**attempt)
            )
        if attempt and world.ticks_ms() >= until_ms:
            break
        sent = False
        try:
            record = await scope.get(place) if attempt or request.is_known else None
            if record is not None and not _is_over(scope, record):
                return Answered(_answered(request, record), lost is not None)
            proposal = await propose()
            if proposal is None:
                continue
            writes = [*proposal.writes, _noted(scope, request, proposal.answer, record)]
            sent = True
            outcomes = await scope.write_together(writes)
            if outcomes[0].applied:
                return Answered(proposal.answer, True)
            sent = False
            if refused is not None:
                await refused(writes, outcomes)
        except RateLimiterUnavailable as error:
            if sent and error.ambiguous:
                lost = error
            elif lost is None:  # and nobody is in doubt
                raise RateLimiterUnavailable(str(error), misconfigured=error.misconfigured) from error
    if lost is not None:
        told = f"{lost}; to learn whether it happened, send it again with key={request.key!r}"
        raise RateLimiterUnavailable(told, ambiguous=True, misconfigured=lost.misconfigured) from lost
    return None


async def was_made(scope: Scope, key: str) -> bool:
    """Whether a change was made under a key that is still remembered."""
    record = await scope.get(once_key(scope.namespace_id, validate_key(key)))
    return record is not None and not _is_over(scope, record)


def request_of(scope: Scope, verb: str, arguments: Mapping[str, Any], key: str | None) -> OnceRequest:
    """A request under the key that a caller gives, or under one of its own."""
    own = scope.connection.next_event_id() if key is None else validate_key(key)
    return OnceRequest(verb, arguments, own, key is not None)


def once_item(
    namespace_id: str, request: OnceRequest, answer: Mapping[str, Value], ttl: int
) -> dict[str, Value]:
    place = once_key(namespace_id, request.key)
    return {"said": request.said, "answer": dict(answer), "ttl": ttl, **within_namespace(namespace_id, place)}


def _noted(scope: Scope, request: OnceRequest, answer: Mapping[str, Value], record: Item | None) -> Put:
    """The write that notes an answer where there is none yet, or in the place of one whose time is over."""
    item = once_item(scope.namespace_id, request, answer, scope.world.now_ms() // 1000 + KEPT_SECONDS)
    when: tuple[Condition, ...] = (Absent(),) if record is None else pinned(record, "ttl")
    return Put(once_key(scope.namespace_id, request.key), item, when)


def _is_over(scope: Scope, record: Item) -> bool:
    return number(record, "ttl") * 1000 < scope.world.now_ms()


def _answered(request: OnceRequest, record: Item) -> Mapping[str, Any]:
    """What was answered to the same request before."""
    said, answer = text(record, "said"), record.get("answer")
    if said is None or not isinstance(answer, dict):
        raise DamagedRecordError(f"record of the key {request.key!r}", "use another key")
    if said != request.said:
        raise ValidationError(
            "key", request.key, f"it was used for {said}; send that again, or use another key"
        )
    return answer
