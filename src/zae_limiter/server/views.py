"""What the page shows, as data: routes that look, and change nothing.

Each needs the scope to read. Names travel as query parameters, lists come in pages with an opaque cursor, and
whatever is asked wrong is answered with 400 and the name of the parameter.

==========================  ========================================  =================================
``GET /v1/view/…``          parameters                                answer, as ``view_shapes`` has it
==========================  ========================================  =================================
``me``                                                                ``MeShape``
``overview``                                                          ``OverviewShape``
``refusals``                ``entity``, ``resource``, ``limit_rows``  ``RefusalsShape``
``entities``                ``q``, ``cursor``, ``size``               ``EntitiesShape``
``entity``                  ``entity``                                ``EntityShape``
``children``                ``entity``, ``cursor``, ``size``          ``ChildrenShape``
``buckets``                 ``entity``, ``resource``                  ``BucketsShape``
``explain``                 ``entity``, ``resource``                  ``ExplainShape``
``configs``                 ``level``, ``resource``, ``cursor``,      ``ConfigsShape``
                            ``size``
``usage``                   ``entity``, ``resource``, ``window``,     ``UsageShape``
                            ``start_ms``, ``end_ms``
``audit``                   ``entity`` or ``resource`` or             ``AuditShape``
                            ``system=1``, ``cursor``, ``size``
``health``                                                            ``HealthShape``
``live``                    ``entity``, ``resource``                  events, see ``live``
==========================  ========================================  =================================
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from ..exceptions import ValidationError, without_secrets
from ..models import GENERATIONS_MAX, Entity, LimiterConfig
from ..naming import DEFAULT_RESOURCE
from ..records.buckets_now import look_at, look_at_entity
from ..records.config_lists import LevelEntry, entity_levels, own_levels, resource_levels
from ..records.entities import children_page, entities_named
from ..records.switching import switches_of
from ..schema import RESOURCE_AUDIT, SYSTEM_AUDIT
from ..version import client_version
from . import live, overview, usage_view
from .questions import LETTERS_MAX, ViewQuery
from .state import ServerState
from .tokens import TokenScope
from .view_shapes import (
    AuditShape,
    BucketsShape,
    ChildrenShape,
    ConfigsShape,
    EntitiesShape,
    EntityShape,
    ExplainShape,
    MeShape,
    audit_row,
    bucket_shape,
    child_row,
    config_shape,
    entity_row,
    explain_shape,
    instant_ms,
    own_switch,
    switch_shape,
)
from .view_state import REFRESH_SECONDS, ViewState

LEVELS = ("system", "resource", "entity")

Answering = Callable[[ViewState, ViewQuery], Awaitable[Any]]


def routes(server: ServerState) -> list[BaseRoute]:
    view = ViewState(server)
    return [_me(view), live.route(view), *(_route(view, path, *one) for path, one in VIEWS.items())]


def _route(view: ViewState, path: str, answer: Answering, known: Collection[str]) -> Route:
    async def answering(request: Request) -> Response:
        view.server.access.require(request, TokenScope.READ)
        return JSONResponse(await answer(view, ViewQuery(request, known)))

    return Route(f"/v1/view/{path}", answering, methods=["GET"])


def _me(view: ViewState) -> Route:
    async def me(request: Request) -> Response:
        caller = view.server.access.require(request, TokenScope.READ)
        ViewQuery(request, ())
        repository = view.server.repository
        shape: MeShape = {
            "name": caller.name,
            "scopes": sorted(caller.scopes),
            "changes": TokenScope.CHANGE in caller.scopes,
            "namespace": repository.namespace_name,
            "store": without_secrets(repository.store),
            "store_kind": repository.capabilities.name,
            "version": client_version(),
            "now_ms": view.now_ms,
            "refresh_ms": round(REFRESH_SECONDS * 1000),
        }
        return JSONResponse(shape)

    return Route("/v1/view/me", me, methods=["GET"])


async def entities(view: ViewState, query: ViewQuery) -> EntitiesShape:
    prefix = query.text("q") or ""
    if "\n" in prefix or len(prefix) > 256:
        raise ValidationError("q", prefix[:64], "give the beginning of an id")
    scope = view.scope
    found, after = await entities_named(scope, prefix, query.size(), query.text("cursor"))
    switches = await switches_of(scope, [one.entity_id for one in found])
    return {"rows": [entity_row(one, switches) for one in found], "next": after}


async def entity(view: ViewState, query: ViewQuery) -> EntityShape:
    entity_id, scope = query.entity(), view.scope
    found = await view.server.repository.get_entity(entity_id)
    one = found or Entity(entity_id)
    switches = await switches_of(scope, [entity_id])
    return {
        "entity": entity_id,
        "name": one.name,
        "parent": one.parent_id,
        "cascade": one.cascade,
        "metadata": dict(one.metadata),
        "created_ms": instant_ms(one.created_at),
        "exists": found is not None,
        "chain": await _chain(view, one),
        "children": await _children(view, entity_id, query.size(), None),
        "buckets": [bucket_shape(seen) for seen in await look_at_entity(scope, entity_id)],
        "own": [config_shape(level) for level in await own_levels(scope, entity_id)],
        "switch": own_switch(entity_id, switches),
        "switches": [switch_shape(thrown) for thrown in switches],
        "now_ms": view.now_ms,
    }


async def _chain(view: ViewState, one: Entity) -> list[str]:
    """An entity and all above it; a circle is not followed twice."""
    chain, above = [one.entity_id], one.parent_id
    while above is not None and above not in chain and len(chain) <= GENERATIONS_MAX:
        chain.append(above)
        found = await view.server.repository.get_entity(above)
        above = None if found is None else found.parent_id
    return chain


async def children(view: ViewState, query: ViewQuery) -> ChildrenShape:
    return await _children(view, query.entity(), query.size(), query.text("cursor"))


async def _children(view: ViewState, entity_id: str, size: int, cursor: str | None) -> ChildrenShape:
    found, after = await children_page(view.scope, entity_id, size, cursor)
    return {"rows": [child_row(one) for one in found], "next": after}


async def buckets(view: ViewState, query: ViewQuery) -> BucketsShape:
    seen = await look_at_entity(view.scope, query.entity(), query.maybe_resource())
    return {"rows": [bucket_shape(one) for one in seen], "now_ms": view.now_ms}


async def explain(view: ViewState, query: ViewQuery) -> ExplainShape:
    entity_id, resource = query.entity(), query.resource()
    found = await view.server.limiter.explain(entity_id, resource)
    places = [(one.entity_id, resource) for one in found.buckets]
    seen = await look_at(view.scope, places)
    return explain_shape(found, {one.entity_id: one for one in seen})


async def configs(view: ViewState, query: ViewQuery) -> ConfigsShape:
    level, resource = query.choice("level", LEVELS), query.maybe_resource()
    scope, size, cursor = view.scope, query.size(), query.text("cursor")
    resources: list[str] = []
    found: list[LevelEntry]
    if level == "entity":
        found, after = await entity_levels(scope, resource or DEFAULT_RESOURCE, size, cursor)
        known = await view.server.repository.list_resources_with_entity_configs() if cursor is None else []
        resources = [one for one in known if one != DEFAULT_RESOURCE]
    elif resource is not None or (level == "system" and cursor is not None):
        raise ValidationError("resource", resource, "it goes with level=entity")
    elif level == "resource":
        found, after = await resource_levels(scope, size, cursor)
    else:
        config = await view.server.repository.get_config("system")
        found, after = [LevelEntry(None, None, config or LimiterConfig())], None
    return {"rows": [config_shape(one) for one in found], "next": after, "resources": resources}


async def audit(view: ViewState, query: ViewQuery) -> AuditShape:
    about = [name for name in ("entity", "resource", "system") if query.text(name) is not None]
    if len(about) != 1:
        raise ValidationError("entity", None, "name one of entity, resource and system=1")
    subject = SYSTEM_AUDIT
    if about == ["entity"]:
        subject = query.entity()
    elif about == ["resource"]:
        subject = f"{RESOURCE_AUDIT}{query.resource()}"
    elif query.text("system") != "1":
        raise ValidationError("system", query.text("system"), "write system=1")
    size, cursor = query.size(), query.text("cursor")
    if cursor is not None and len(cursor) > LETTERS_MAX:
        raise ValidationError("cursor", cursor[:64], "pass on what the previous page returned")
    found = await view.server.repository.get_audit_events(subject, size, cursor)
    after = found[-1].event_id if len(found) == size else None
    return {"rows": [audit_row(one) for one in found], "next": after}


PAGE = ("cursor", "size")

VIEWS: dict[str, tuple[Answering, Collection[str]]] = {
    "overview": (overview.overview, ()),
    "refusals": (overview.refusals, ("entity", "resource", "limit_rows")),
    "health": (overview.health, ()),
    "entities": (entities, ("q", *PAGE)),
    "entity": (entity, ("entity", "size")),
    "children": (children, ("entity", *PAGE)),
    "buckets": (buckets, ("entity", "resource")),
    "explain": (explain, ("entity", "resource")),
    "configs": (configs, ("level", "resource", *PAGE)),
    "usage": (usage_view.usage, ("entity", "resource", "window", "start_ms", "end_ms")),
    "audit": (audit, ("entity", "resource", "system", *PAGE)),
}
