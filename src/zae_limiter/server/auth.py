"""One decision for a proxy that asks before it lets a request pass: nginx's ``auth_request``.

nginx knows three answers: 2xx lets the request pass, 401 and 403 refuse it, and anything else is an error of
its own. So who is refused gets 403, and what should be told instead is in ``X-Zae-Status``; nginx turns that
into 429 with the headers that come along. Whose request it is says a header that nginx sets: the id of an
entity, or a key, which is hashed so that no store has it.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..exceptions import ValidationError
from ..models import OnUnavailable
from ..models.demand import Demand
from ..web.answers import RequestRefused
from ..web.charge import REFUSALS
from ..web.identity import hashed_id
from .asked import needs_of, one_of
from .leases import AskedLease
from .problems import answer_to
from .state import ServerState
from .tokens import TokenScope

_HEADERS = {"entity": "x-zae-entity", "key": "x-zae-key"}
STATUS_HEADER = "X-Zae-Status"
"""What the proxy should answer instead of 403."""

KEY_LETTERS_MAX = 4096

AUTH_FIELDS = ("resource", "need", "by", "on_unavailable")


def entity_of(request: Request) -> str:
    """Whose request the proxy says that it is, in the one header that the query names.

    The other is not looked at: a proxy passes on whatever headers a client has sent that it does not set.
    """
    by = request.query_params.get("by", "entity")
    if by not in _HEADERS:
        raise ValidationError("by", by, f"use {' or '.join(_HEADERS)}")
    said = [value for value in request.headers.getlist(_HEADERS[by]) if value]
    if len(said) != 1 or len(said[0]) > KEY_LETTERS_MAX:
        raise RequestRefused(401, "nothing says whose request it is")
    return hashed_id(said[0]) if by == "key" else said[0]


def routes(server: ServerState) -> list[BaseRoute]:
    async def auth(request: Request) -> Response:
        caller = server.access.require(request, TokenScope.DECIDE)
        for name in request.query_params:
            if name not in AUTH_FIELDS:
                raise ValidationError(name, request.query_params[name], f"use {', '.join(AUTH_FIELDS)}")
        policy = request.query_params.get("on_unavailable")
        needs, entity_id = needs_of(request), entity_of(request)
        if not needs:
            raise ValidationError("need", "", "say what a request takes, such as need=rpm:1")
        resource = one_of(request, "resource")
        try:
            demand = Demand(entity_id, resource, needs)
        except ValidationError as error:
            if error.field.startswith("entity"):
                raise RequestRefused(401, "who asks cannot be the id of anybody") from error
            raise
        asked = AskedLease(
            demands=(demand,),
            owner=caller.name,
            is_lease=False,
            on_unavailable=None if policy is None else OnUnavailable.of(policy),
        )
        try:
            granted = await server.leases.acquire(asked)
        except REFUSALS as refusal:
            told = answer_to(refusal)
            told.headers[STATUS_HEADER] = str(told.status_code)
            told.status_code = 403
            return told
        assert granted.lease is not None
        return Response(status_code=204, headers=dict(server.answers.of_lease(granted.lease)))

    return [Route("/v1/auth", auth, methods=["GET"])]
