"""What a provider has said that we send requests to, for all who send: which limits were declared for it,
and until when nobody is to send.

Each change is one write on condition that nobody said as much before. So of many who are told the same at the
same time one has it, and acts for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..repository_protocol import Condition, Item, Key, Update, Value
from ..schema import number, pinned, pk_system, text, within_namespace
from .scope import Scope

KEPT_DAYS = 400
"""How long the record of a provider stays that nobody sends to any more."""

LONGER_MS = 100
"""By how much a pause must be longer than the one that is under way to be worth telling."""


class ProviderRecord(NamedTuple):
    """What is known of a provider."""

    declared: str | None = None
    """The limits that a program gave for it, as a text."""
    paused_ms: int = 0
    """Since when nobody is to send."""
    until_ms: int = 0
    eased_ms: int = 0
    """When its limits were last raised or lowered without the provider's word."""
    raised_ms: int = 0
    """When its limits were last raised at the provider's word."""


def provider_key(namespace_id: str, entity_id: str, resource: str) -> Key:
    """Where it is noted what a provider said that we send requests to."""
    return Key(pk_system(namespace_id), f"#PROVIDER#{entity_id}#{resource}")


async def get_provider(scope: Scope, entity_id: str, resource: str) -> ProviderRecord:
    """What is known of a provider by now."""
    return _record_of(await scope.get(provider_key(scope.namespace_id, entity_id, resource)))


async def declare(scope: Scope, entity_id: str, resource: str, declared: str) -> None:
    """Note which limits a program gave for a provider."""
    place = provider_key(scope.namespace_id, entity_id, resource)
    await scope.must_write([_update(scope, place, {"declared": declared})])


async def pause(
    scope: Scope, entity_id: str, resource: str, now_ms: int, until_ms: int
) -> ProviderRecord | None:
    """Let nobody send until an instant; what was known before, or ``None`` if that was said before."""
    place = provider_key(scope.namespace_id, entity_id, resource)
    known = await scope.get(place)
    before = _record_of(known)
    if before.until_ms > until_ms - LONGER_MS:
        return None
    said = {"paused_ms": max(now_ms, before.until_ms), "until_ms": until_ms}
    return before if await _is_first(scope, place, known, "until_ms", said) else None


async def ease(
    scope: Scope, entity_id: str, resource: str, now_ms: int, every_ms: int
) -> ProviderRecord | None:
    """Take leave to change the limits; what was known before, or ``None`` if somebody did lately."""
    return await _at_times(scope, entity_id, resource, "eased_ms", now_ms, every_ms)


async def may_raise(scope: Scope, entity_id: str, resource: str, now_ms: int, every_ms: int) -> bool:
    """Take leave to raise the limits at the provider's word, unless somebody did lately."""
    return await _at_times(scope, entity_id, resource, "raised_ms", now_ms, every_ms) is not None


async def _at_times(
    scope: Scope, entity_id: str, resource: str, what: str, now_ms: int, every_ms: int
) -> ProviderRecord | None:
    place = provider_key(scope.namespace_id, entity_id, resource)
    known = await scope.get(place)
    if number(known or {}, what) > now_ms - every_ms:
        return None
    return _record_of(known) if await _is_first(scope, place, known, what, {what: now_ms}) else None


async def _is_first(
    scope: Scope, place: Key, known: Item | None, pin: str, said: Mapping[str, Value]
) -> bool:
    """Write what was said, unless somebody was faster."""
    (outcome,) = await scope.must_write([_update(scope, place, said, pinned(known or {}, pin))])
    return outcome.applied


def provider_item(namespace_id: str, place: Key, said: Mapping[str, Value], ttl: int) -> dict[str, Value]:
    """What a record of a provider says, and where it is found."""
    return {**said, "ttl": ttl, **within_namespace(namespace_id, place)}


def _update(scope: Scope, place: Key, said: Mapping[str, Value], when: tuple[Condition, ...] = ()) -> Update:
    item = provider_item(scope.namespace_id, place, said, scope.seconds_in(KEPT_DAYS))
    return Update(place, set=item, when=when)


def _record_of(item: Item | None) -> ProviderRecord:
    if item is None:
        return ProviderRecord()
    times = (number(item, what) for what in ("paused_ms", "until_ms", "eased_ms", "raised_ms"))
    return ProviderRecord(text(item, "declared"), *times)
