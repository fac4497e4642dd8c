"""What the page changes: each route is a public verb of the limiter, with its audit event.

==========================  ==================================================  =====================
``POST /v1/change/…``       body                                                answer
==========================  ==================================================  =====================
``limits``                  ``level``, ``entity``, ``resource``, ``limits``     ``ConfigShape``
``top-up``                  ``entity``, ``resource``, ``amounts``, ``key``      ``BucketChangeShape``
``reset``, ``forgive``      ``entity``, ``resource``, ``limits``, ``key``       ``BucketChangeShape``
``switch``                  ``level``, ``entity``, ``resource``, ``state``,     ``SwitchChangeShape``
                            ``reason``, ``counted``, ``overrule``
``parent``                  ``entity``, ``parent``, ``cascade``, ``key``        ``ParentChangeShape``
==========================  ==================================================  =====================

Each needs the scope to change, of a server that grants it; the name of the token is the principal. What is
given or moved needs a ``key``: whoever sends the same again within a day gets the same answer, and nothing
happens twice. All answers tell what is stored by then. A request that is wrong changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from ..exceptions import EntityNotFoundError, ValidationError
from ..models import LIMITS_MAX, Limit, LimiterConfig, check_limits
from ..models.changes import BucketChange
from ..models.checks import check_flag
from ..models.grammar import parse_amount, parse_limit
from ..models.switches import check_reason
from ..naming import DEFAULT_RESOURCE, validate_entity_id, validate_key, validate_parent_id, validate_resource
from ..records.buckets_now import look_at
from ..records.config_lists import LevelEntry
from ..records.levels import level_at
from ..records.once import was_made
from ..records.switch_list import thrown_switch_of
from ..records.switching import switches_of
from .questions import ChangeBody
from .state import ServerState
from .tokens import TokenScope
from .view_shapes import (
    BucketChangeShape,
    ConfigShape,
    ParentChangeShape,
    SwitchChangeShape,
    bucket_shape,
    config_shape,
    entity_row,
    switch_shape,
)

LEVELS = ("system", "resource", "entity")
STATES = ("off", "bypass", "on")

Changing = Callable[[ServerState, ChangeBody, str], Awaitable[Any]]
"""Carries out a change for a principal, and answers what is stored by then."""


def routes(server: ServerState) -> list[BaseRoute]:
    return [_route(server, path, *one) for path, one in CHANGES.items()]


def _route(server: ServerState, path: str, change: Changing, known: Collection[str]) -> Route:
    async def answering(request: Request) -> Response:
        caller = server.access.require(request, TokenScope.CHANGE)
        body = await ChangeBody.of(request, known)
        return JSONResponse(await change(server, body, caller.name))

    return Route(f"/v1/change/{path}", answering, methods=["POST"])


async def limits(server: ServerState, body: ChangeBody, principal: str) -> ConfigShape:
    """Replace the limits of a level; none deletes all that it says but its switch."""
    level = body.checked("level", _one_of("level", LEVELS))
    entity_id, resource = body.maybe("entity", validate_entity_id), body.maybe("resource", validate_resource)
    _check_place(level, entity_id, resource)
    chosen = body.checked("limits", _limits)
    repository, who, place = server.repository, {"principal": principal}, resource or DEFAULT_RESOURCE
    if level == "system":
        put, delete = partial(repository.set_system_defaults), repository.delete_system_defaults
    elif entity_id is None:
        put = partial(repository.set_resource_defaults, place)
        delete = partial(repository.delete_resource_defaults, place)
    else:
        put = partial(repository.set_limits, entity_id, resource=place)
        delete = partial(repository.delete_limits, entity_id, place)
    await (put(chosen, **who) if chosen else delete(**who))
    stored = await repository.get_config(level, *_identified(level, entity_id, resource))
    named = (resource or DEFAULT_RESOURCE) if entity_id is not None else resource
    return config_shape(LevelEntry(entity_id, named, stored or LimiterConfig()))


async def top_up(server: ServerState, body: ChangeBody, principal: str) -> BucketChangeShape:
    amounts = body.checked("amounts", _amounts)
    return await _given(server, body, principal, server.repository.top_up, amounts)


async def reset(server: ServerState, body: ChangeBody, principal: str) -> BucketChangeShape:
    return await _given(server, body, principal, server.repository.reset, body.get("limits"))


async def forgive(server: ServerState, body: ChangeBody, principal: str) -> BucketChangeShape:
    return await _given(server, body, principal, server.repository.forgive, body.get("limits"))


async def _given(
    server: ServerState,
    body: ChangeBody,
    principal: str,
    verb: Callable[..., Awaitable[BucketChange]],
    what: object,
) -> BucketChangeShape:
    place = body.checked("entity", validate_entity_id), body.checked("resource", validate_resource)
    key = body.checked("key", validate_key)
    again = await was_made(server.scope, key)
    change = await verb(*place, what, key=key, principal=principal)
    (seen,) = await look_at(server.scope, [place])
    return {"bucket": bucket_shape(seen), "again": again, "given": dict(change.given)}


async def switch(server: ServerState, body: ChangeBody, principal: str) -> SwitchChangeShape:
    """Throw the switch of a level, or take it away."""
    entity_id, resource = body.maybe("entity", validate_entity_id), body.maybe("resource", validate_resource)
    level = body.maybe("level", _one_of("level", LEVELS))
    if level is not None:
        _check_place(level, entity_id, resource)
    elif entity_id is None and resource is None:
        raise ValidationError("level", None, "name an entity or a resource; what is for all is level=system")
    state = body.checked("state", _one_of("state", STATES))
    for name, of in (("reason", "off"), ("counted", "bypass"), ("overrule", "on")):
        if name in body and state != of:
            raise ValidationError(name, body.get(name), f"it goes with state={of}")
    repository = server.repository
    where: dict[str, Any] = {"entity_id": entity_id, "resource": resource, "principal": principal}
    if state == "off":
        await repository.disable(reason=body.checked("reason", check_reason), **where)
    elif state == "bypass":
        await repository.bypass(counted=body.maybe("counted", _flag("counted")) is not False, **where)
    else:
        await repository.enable(overrule=body.maybe("overrule", _flag("overrule")) is True, **where)
    of_level = "entity" if entity_id is not None else "system" if resource is None else "resource"
    key = level_at(server.scope, of_level, *_identified(of_level, entity_id, resource)).key
    thrown = thrown_switch_of(key, await server.scope.get(key) or {})
    return {"switch": None if thrown is None else switch_shape(thrown)}


async def parent(server: ServerState, body: ChangeBody, principal: str) -> ParentChangeShape:
    """Give an entity another parent, or none."""
    entity_id, key = body.checked("entity", validate_entity_id), body.checked("key", validate_key)
    if "parent" not in body:
        raise ValidationError("parent", None, "name one, or say null for none")
    above = body.maybe("parent", validate_parent_id)
    cascade = body.maybe("cascade", _flag("cascade"))
    await server.repository.set_parent(entity_id, above, cascade, key, principal)
    found = await server.repository.get_entity(entity_id)  # it may have moved on since an earlier request
    if found is None:
        raise EntityNotFoundError(entity_id)
    return {"entity": entity_row(found, await switches_of(server.scope, [entity_id]))}


def _check_place(level: str, entity_id: str | None, resource: str | None) -> None:
    """Each level wants to know whose it is, in its own way."""
    if level == "entity" and entity_id is None:
        raise ValidationError("entity", None, "name it, or choose another level")
    if level != "entity" and entity_id is not None:
        raise ValidationError("entity", entity_id, "it goes with level=entity")
    if level == "resource" and resource is None:
        raise ValidationError("resource", None, "name it, or choose another level")
    if level == "system" and resource is not None:
        raise ValidationError("resource", resource, "it does not go with level=system")


def _identified(level: str, entity_id: str | None, resource: str | None) -> tuple[str | None, str | None]:
    """Whose a level is, as the repository is told."""
    return (entity_id, resource) if level == "entity" else (None, resource)


def _one_of(name: str, choices: Collection[str]) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValidationError(name, value, f"use {', '.join(choices)}")
        return value

    return check


def _flag(name: str) -> Callable[[Any], bool]:
    return lambda value: check_flag(name, value)


def _limits(said: Any) -> tuple[Limit, ...]:
    """Limits as words, such as ``rpm:60/min``, or as objects; none is none."""
    if not isinstance(said, list):
        raise ValidationError("limits", said, 'send a list, such as ["rpm:60/min"]')
    if len(said) > LIMITS_MAX:
        raise ValidationError("limits", len(said), f"one level has at most {LIMITS_MAX} limits")
    read = [_limit(one) for one in said]
    return check_limits(read) if read else ()


def _limit(said: Any) -> Limit:
    if isinstance(said, str):
        return parse_limit(said)
    if isinstance(said, dict):
        return Limit.from_dict(said)
    raise ValidationError("limits", said, 'write each as a text, such as "rpm:60/min"')


def _amounts(said: Any) -> dict[str, int]:
    """How many tokens of which limit; as texts they are as on the command line."""
    if not isinstance(said, dict) or len(said) > LIMITS_MAX:
        raise ValidationError("amounts", said, 'send an object, such as {"rpm": 60}')
    return {
        name: parse_amount(f"{name}:{amount}")[1] if isinstance(amount, str) else amount
        for name, amount in said.items()
    }


CHANGES: dict[str, tuple[Changing, Collection[str]]] = {
    "limits": (limits, ("level", "entity", "resource", "limits")),
    "top-up": (top_up, ("entity", "resource", "amounts", "key")),
    "reset": (reset, ("entity", "resource", "limits", "key")),
    "forgive": (forgive, ("entity", "resource", "limits", "key")),
    "switch": (switch, ("level", "entity", "resource", "state", "reason", "counted", "overrule")),
    "parent": (parent, ("entity", "parent", "cascade", "key")),
}
