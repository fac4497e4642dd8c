"""The description of the decisions for programs: OpenAPI 3.1, as a table of what the routes take and give.

A test compares it with the routes and sends every example that it has.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from ..models.demand import DEMANDS_MAX
from ..records.leases import LeaseState, OnExpiry
from ..version import CLIENT_VERSION
from .asked import KEY_LETTERS_MAX
from .state import ServerState

AMOUNTS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}
LEVELS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "integer"}}
ONE: dict[str, Any] = {
    "entity": {"type": "string", "description": "Who asks, such as an API key."},
    "resource": {"type": "string", "description": "What is asked for, such as a model."},
    "consume": {**AMOUNTS, "description": "How many tokens of each limit."},
    "limits": {
        "type": "object",
        "description": "Limits to go by instead of those that are stored, as in a file of limits.",
        "additionalProperties": {"type": "object", "required": ["capacity"]},
    },
}
SECONDS: dict[str, Any] = {"type": "number", "exclusiveMinimum": 0}
ON_EXPIRY: dict[str, Any] = {"enum": [one.value for one in OnExpiry], "default": OnExpiry.SETTLE.value}
EXAMPLE: dict[str, Any] = {"entity": "key-1", "resource": "gpt-4", "consume": {"rpm": 1, "tpm": 500}}


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    """An object with these members, of which those are there in any case that are named."""
    told: dict[str, Any] = {"type": "object", "properties": properties}
    return {**told, "required": required.split()} if required else told


CLOSED: dict[str, Any] = {"additionalProperties": False}
SCHEMAS: dict[str, Any] = {
    "Demand": _object("entity resource consume", **ONE) | CLOSED,
    "Acquire": _object(
        **ONE,
        demands={
            "type": "array",
            "items": {"$ref": "#/components/schemas/Demand"},
            "minItems": 1,
            "maxItems": DEMANDS_MAX,
            "description": "Several at once, all or none, instead of the four above.",
        },
        lease={"type": "boolean", "default": True, "description": "False counts it at once."},
        lease_seconds={**SECONDS, "description": "When it expires if nobody ends it."},
        on_expiry=ON_EXPIRY,
        on_unavailable={"enum": ["allow", "block"], "description": "While the store is down."},
        wait={"type": "number", "minimum": 0, "description": "Seconds to wait at most for its turn."},
    )
    | CLOSED,
    "Lease": _object(
        "lease state consumed",
        lease={"type": ["string", "null"], "description": "Its id; none of a plain decision."},
        state={"enum": [state.value for state in LeaseState]},
        expires_ms={"type": ["integer", "null"], "description": "Milliseconds since the epoch."},
        on_expiry={"enum": [*(one.value for one in OnExpiry), None]},
        consumed=AMOUNTS,
    ),
    "Granted": {
        "allOf": [
            {"$ref": "#/components/schemas/Lease"},
            _object(
                "remaining exceeded waited_ms bypassed degraded",
                remaining=LEVELS,
                exceeded={"type": "array", "items": {"type": "string"}},
                waited_ms={"type": "integer"},
                bypassed={"type": "boolean"},
                degraded={"type": "boolean", "description": "The store was down; nothing is stored."},
            ),
        ]
    },
    "Settle": _object(totals=AMOUNTS, entity=ONE["entity"], resource=ONE["resource"]) | CLOSED,
    "Renew": _object(lease_seconds=SECONDS) | CLOSED,
    "Nothing": {"type": "object", **CLOSED},
    "Available": _object(
        "available retry_after_ms retry_after_is_latest",
        available=LEVELS,
        retry_after_ms={"type": ["integer", "null"]},
        retry_after_is_latest={"type": "boolean", "description": "A seat may be free sooner."},
    ),
    "Problem": _object(
        "type title status detail",
        type={"type": "string"},
        title={"type": "string"},
        status={"type": "integer"},
        detail={"type": "string"},
        field={"type": "string", "description": "Where the mistake is."},
        **{"violated-policies": {"type": "array", "items": {"type": "string"}}},
    )
    | {"description": "A problem document of RFC 9457."},
}

ENDS: dict[str, Any] = {
    "settle": ("Note what the work has cost so far", "Settle", {"totals": {"tpm": 730}}),
    "commit": ("End a lease: what was noted counts", "Settle", {"totals": {"tpm": 730}}),
    "cancel": ("End a lease: all of it is given back", "Nothing", {}),
    "renew": ("Let a lease expire later", "Renew", {"lease_seconds": 30}),
}
_WRONG = {
    "400": "Something in the request is wrong; field says where.",
    "401": "There is no token that the server knows.",
    "403": "The token is not good for this.",
    "429": "Not enough is left; Retry-After says when to ask again.",
    "503": "The store does not answer, or the server has too much to do.",
}
_OVER = {
    "404": "There is no such lease, or it is somebody else's.",
    "409": "It has ended in another way.",
    "410": "It has expired; consumed says what it has cost.",
}
_USED = {"422": "The key was used for something else."}


def _query(name: str, told: str, *, required: bool = False, many: bool = False, example: Any = None) -> Any:
    schema: Any = {"type": "array", "items": {"type": "string"}} if many else {"type": "string"}
    return {
        "name": name,
        "in": "query",
        "required": required,
        "description": told,
        "schema": schema,
        **({} if example is None else {"example": example}),
    }


def _header(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "header", "schema": {"type": "string", **schema}}


_KEY = {
    **_header("Idempotency-Key", maxLength=KEY_LETTERS_MAX),
    "description": "Sent again with the same key within a day it is answered again and counts once.",
}
_LEASE_ID = {"name": "lease_id", "in": "path", "required": True, "schema": {"type": "string"}}
_ENTITY = _query("entity", "Who asks.", required=True, example="key-1")
_RESOURCE = _query("resource", "What is asked for.", required=True, example="gpt-4")
_NEED = _query("need", "An amount, such as rpm:1; several are one each.", many=True, example=["rpm:1"])


def _json(name: str, example: Any = None) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{name}"}}
    return {"application/json": content if example is None else {**content, "example": example}}


def _answers(good: str | None, *problems: dict[str, str], status: str = "200") -> dict[str, Any]:
    told = {**_WRONG, **{code: text for one in problems for code, text in one.items()}}
    found: dict[str, Any] = {status: {"description": "Yes."}}
    if good is not None:
        found[status]["content"] = _json(good)
    schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
    for code, text in sorted(told.items()):
        found[code] = {"description": text, "content": {"application/problem+json": schema}}
    return found


def _paths() -> dict[str, Any]:
    """What can be asked for."""
    paths: dict[str, Any] = {
        "/v1/acquire": {
            "post": {
                "operationId": "acquire",
                "summary": "Take tokens, for a lease that expires or for good",
                "parameters": [_KEY],
                "requestBody": {"required": True, "content": _json("Acquire", EXAMPLE)},
                "responses": _answers("Granted", _USED),
            }
        },
        "/v1/available": {
            "get": {
                "operationId": "available",
                "summary": "Tell what is there; nothing is taken",
                "parameters": [*(_ENTITY, _RESOURCE, _NEED), _query("limits", "Limits to go by, as JSON.")],
                "responses": _answers("Available"),
            }
        },
        "/v1/auth": {
            "get": {
                "operationId": "auth",
                "summary": "Decide for a proxy; a refusal is 403 with X-Zae-Status",
                "parameters": [
                    *(_RESOURCE, _NEED),
                    _query("by", "entity or key: the header X-Zae-Entity or X-Zae-Key."),
                    _query("on_unavailable", "allow or block."),
                    {**_header("X-Zae-Entity"), "example": "key-1"},
                    _header("X-Zae-Key"),
                ],
                "responses": _answers(None, status="204"),
            }
        },
    }
    for verb, (summary, schema, example) in ENDS.items():
        paths[f"/v1/leases/{{lease_id}}/{verb}"] = {
            "post": {
                "operationId": verb,
                "summary": summary,
                "parameters": [_LEASE_ID, _KEY],
                "requestBody": {"required": False, "content": _json(schema, example)},
                "responses": _answers("Lease", _OVER, _USED),
            }
        }
    return paths


def document() -> dict[str, Any]:
    """The whole description."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "zae-limiter", "version": CLIENT_VERSION},
        "security": [{"token": []}],
        "paths": _paths(),
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def routes(server: ServerState) -> list[BaseRoute]:
    del server
    told = document()

    async def openapi(_: Request) -> Response:
        return JSONResponse(told)

    return [Route("/openapi.json", openapi, methods=["GET"])]
