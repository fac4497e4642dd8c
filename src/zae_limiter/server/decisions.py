"""Decisions over HTTP: acquire, leases that expire, and what is available.

Every answer to somebody who was admitted has the headers that ``zae_limiter.web`` would send, and every
refusal is a problem document. Who sends a request again with its ``Idempotency-Key`` gets the first answer,
marked as such; what was refused had taken nothing, and is decided anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from ..exceptions import RateLimiterUnavailable, ValidationError, ZAELimiterError
from ..models.limits import LimitKind
from ..naming import validate_entity_id, validate_resource
from ..records.leases import REPLIES_MAX, LeaseRow, LeaseState, OnExpiry, ReplyRow
from ..web.answers import RequestRefused
from ..web.request import ClientLeft, parsed_json
from ..web.request import Request as Client
from . import auth, openapi
from .access import Caller
from .asked import amounts_of, asked_lease, fields_of, key_of, limits_of, needs_of, one_of, seconds
from .leases import Granted, Remember, StoredLeases, digest
from .problems import problem
from .state import ServerState
from .tokens import TokenScope

REPLAYED = "Idempotency-Replayed"
"""On an answer that was given before."""

ATTEMPTS_MAX = 16
"""How often a lease is looked at anew that somebody else changes at the same time."""

TOTAL_FIELDS = ("totals", "entity", "resource")

Verb: TypeAlias = Callable[[LeaseRow, dict[str, Any], str, Remember], Awaitable[LeaseRow | None]]


class Decisions:
    """What the routes below do."""

    def __init__(self, server: ServerState) -> None:
        self._server = server

    @property
    def leases(self) -> StoredLeases:
        return self._server.leases

    async def acquire(self, request: Request) -> Response:
        """Take tokens, for a lease that expires or for good."""
        caller, key, body = await self._asked(request)
        asked = asked_lease(body, caller.name, key, self._server.config)
        work = self.leases.acquire(asked)
        try:
            granted = await (_unless_left(request, work) if asked.wait else work)
        except ClientLeft:
            return problem(408, "nobody waits for the answer any more")
        if granted.lease is None:
            return await self._told_again(granted)
        lease = granted.lease
        told = {
            **(_told(granted.row) if granted.row else {"lease": None, "state": "decided"}),
            "consumed": lease.consumed,
            "remaining": lease.remaining,
            "exceeded": list(lease.exceeded),
            "waited_ms": lease.waited_ms,
            "bypassed": lease.bypassed,
            "degraded": lease.degraded,
        }
        return JSONResponse(told, headers=dict(self._server.answers.of_lease(lease)))

    async def _told_again(self, granted: Granted) -> Response:
        """The same decision; what is left is as of now."""
        row = granted.row
        assert row is not None
        remaining: dict[str, int] = {}
        for part in row.parts:
            try:
                found = await self._server.limiter.available(part.entity_id, part.resource)
            except ZAELimiterError:
                continue
            for name, left in found.items():
                remaining[name] = min(left, remaining.get(name, left))
        told = {**_told(row), "consumed": _consumed(row), "remaining": remaining, "exceeded": []}
        told |= {"waited_ms": 0, "bypassed": False, "degraded": False}
        return JSONResponse(told, headers={REPLAYED: "true"})

    async def settle(self, request: Request) -> Response:
        """Note what the work has cost so far; it counts when the lease ends."""
        return await self._change(request, "settle", self._settled, TOTAL_FIELDS)

    async def commit(self, request: Request) -> Response:
        """End a lease: what was noted counts, and all that was taken where nothing was."""
        return await self._change(request, "commit", self._committed, TOTAL_FIELDS)

    async def cancel(self, request: Request) -> Response:
        """End a lease: all of it is given back."""
        return await self._change(request, "cancel", self._cancelled, ())

    async def renew(self, request: Request) -> Response:
        """Let a lease expire later."""
        return await self._change(request, "renew", self._renewed, ("lease_seconds",))

    async def _settled(
        self, row: LeaseRow, said: dict[str, Any], ending: str, remember: Remember
    ) -> LeaseRow | None:
        del ending
        if "totals" not in said:
            raise ValidationError("totals", None, "it is missing")
        return await self.leases.ends.note(row, remember(row.changed(noted=_noted(row, said))))

    async def _committed(
        self, row: LeaseRow, said: dict[str, Any], ending: str, remember: Remember
    ) -> LeaseRow | None:
        if "totals" in said:
            row = replace(row, noted=_noted(row, said))
        return await self.leases.finish(row, LeaseState.COMMITTED, OnExpiry.SETTLE, ending, remember)

    async def _cancelled(
        self, row: LeaseRow, said: dict[str, Any], ending: str, remember: Remember
    ) -> LeaseRow | None:
        del said
        return await self.leases.finish(row, LeaseState.CANCELLED, OnExpiry.REFUND, ending, remember)

    async def _renewed(
        self, row: LeaseRow, said: dict[str, Any], ending: str, remember: Remember
    ) -> LeaseRow | None:
        del ending
        config = self._server.config
        held = said.get("lease_seconds", config.lease_seconds)
        longer_ms = round(seconds("lease_seconds", held, config.lease_seconds_max) * 1000)
        changed = row.changed(expires_ms=max(row.expires_ms, self.leases.now_ms() + longer_ms))
        return await self.leases.ends.note(row, remember(changed))

    async def _change(self, request: Request, verb: str, change: Verb, known: tuple[str, ...]) -> Response:
        """Change a lease of whoever asks, once for each key, whoever else does so at the same time."""
        caller, key, body = await self._asked(request)
        said = fields_of({} if body is None else body, known)
        asked, name = digest(verb, said), None if key is None else digest(key)

        def remember(row: LeaseRow) -> LeaseRow:
            if name is None:
                return row
            reply = ReplyRow(name, asked, _answer(row))
            return replace(row, replies=(*row.replies[-REPLIES_MAX + 1 :], reply))

        for _ in range(ATTEMPTS_MAX):
            row = await self.leases.held(request.path_params["lease_id"], caller.name)
            for reply in row.replies:
                if reply.key == name:
                    if reply.said != asked:
                        raise RequestRefused(422, "this Idempotency-Key was used for something else")
                    return JSONResponse(dict(reply.answer), headers={REPLAYED: "true"})
            if row.state is not LeaseState.HELD:
                return _over(row, verb, asked)
            if (changed := await change(row, said, asked, remember)) is not None:
                return JSONResponse(_answer(changed))
        raise RateLimiterUnavailable("the lease changed under every attempt; send the request again")

    async def available(self, request: Request) -> Response:
        """What is there, and how long some amounts would have to wait; nothing is taken."""
        self._server.access.require(request, TokenScope.DECIDE)
        query = request.query_params
        for name in query:
            if name not in ("entity", "resource", "need", "limits"):
                raise ValidationError(name, query[name], "use entity, resource, need=limit:amount and limits")
        entity_id, resource = one_of(request, "entity"), one_of(request, "resource")
        limits = limits_of(parsed_json(query["limits"].encode())) if "limits" in query else None
        found = await self._server.limiter.check_availability(
            validate_entity_id(entity_id), validate_resource(resource), needs_of(request) or None, limits
        )
        wait = found.retry_after_seconds
        slowest = max(found.statuses, key=lambda one: one.retry_after_seconds, default=None)
        told = {
            "available": dict(found.available),
            "retry_after_ms": None if wait == float("inf") else round(wait * 1000),
            "retry_after_is_latest": slowest is not None
            and wait > 0
            and slowest.kind is LimitKind.CONCURRENT,
        }
        return JSONResponse(told)

    async def _asked(self, request: Request) -> tuple[Caller, str | None, Any]:
        caller = self._server.access.require(request, TokenScope.DECIDE)
        key = key_of(request.headers.getlist("idempotency-key"))
        body = await request.body()
        if body and request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise RequestRefused(415, "send JSON, with Content-Type: application/json")
        return caller, key, parsed_json(body) if body else None


async def _unless_left(request: Request, work: Coroutine[Any, Any, Granted]) -> Granted:
    """What was waited for, or ``ClientLeft``; what was granted just then is there for who asks again."""

    async def left_there(granted: Granted) -> None:
        del granted  # it expires, as if the answer had been lost

    client = Client(request.scope, request.receive)
    try:
        return await client.unless_left(work, left_there)
    finally:
        client.close()


def _over(row: LeaseRow, verb: str, asked: str) -> Response:
    """What is told of a lease that has ended: the same again to whoever ended it so, else that it has."""
    if row.ending == asked:
        return JSONResponse(_answer(row), headers={REPLAYED: "true"})
    if row.state is LeaseState.EXPIRED:
        detail = f"the lease has expired before this {verb}; what it has cost is in 'consumed'"
        return problem(410, detail, more=_answer(row))
    return problem(409, f"the lease was {row.state.value} before this {verb}", more=_answer(row))


def _answer(row: LeaseRow) -> dict[str, Any]:
    """What is told of a lease after a change."""
    return {**_told(row), "consumed": _consumed(row)}


def _told(row: LeaseRow) -> dict[str, Any]:
    """What a lease is, to whoever has it."""
    is_lease = row.state is not LeaseState.DECIDED
    return {
        "lease": row.lease_id if is_lease else None,
        "state": row.state.value,
        "expires_ms": row.expires_ms if is_lease else None,
        "on_expiry": row.on_expiry.value if is_lease else None,
    }


def _consumed(row: LeaseRow) -> dict[str, int]:
    """What a lease has cost, limits of one name together."""
    total: dict[str, int] = {}
    for at in range(len(row.parts)):
        for name, amount in row.totals(at).items():
            total[name] = total.get(name, 0) + amount
    return total


def _noted(row: LeaseRow, said: Mapping[str, Any]) -> tuple[Mapping[str, int], ...]:
    """What is noted of each part once totals were added."""
    totals = amounts_of("totals", said.get("totals"))
    noted = [dict(row.noted[at]) if at < len(row.noted) else {} for at in range(len(row.parts))]
    for name, total in totals.items():
        noted[_part_for(row, name, said)][name] = total
    return tuple(noted)


def _part_for(row: LeaseRow, name: str, said: Mapping[str, Any]) -> int:
    """The part that a limit is meant of: of those that are named, the one that asked for it, or has it."""
    entity, resource = said.get("entity"), said.get("resource")
    parts = [
        (at, part)
        for at, part in enumerate(row.parts)
        if entity in (None, part.entity_id) and resource in (None, part.resource)
    ]
    asked = [at for at, part in parts if name in part.amounts and name in part.limits]
    found = asked or [at for at, part in parts if name in part.limits]
    if len(found) != 1:
        told = "several parts of the lease have it; say entity and resource" if found else "it has none such"
        raise ValidationError(f"totals.{name}", said["totals"][name], told)
    return found[0]


def routes(server: ServerState) -> list[BaseRoute]:
    decisions = Decisions(server)
    return [
        Route("/v1/acquire", decisions.acquire, methods=["POST"]),
        Route("/v1/available", decisions.available, methods=["GET"]),
        *(
            Route(f"/v1/leases/{{lease_id}}/{verb}", getattr(decisions, verb), methods=["POST"])
            for verb in ("settle", "commit", "cancel", "renew")
        ),
        *auth.routes(server),
        *openapi.routes(server),
    ]
