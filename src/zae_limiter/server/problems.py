"""Every error as a problem document of RFC 9457; what went wrong within is told to the log only.

Refusals of the limiter are told as ``zae_limiter.web`` tells them. No document has an id, a path or a message
that whoever asked did not send.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..exceptions import (
    EntityError,
    EntityNotFoundError,
    InfrastructureError,
    NoLimitsError,
    ValidationError,
    ZAELimiterError,
    shown,
)
from ..runtime.logs import server_logger as logger
from ..web.answers import Answers, HttpAnswer, RequestRefused
from ..web.charge import REFUSALS
from ..web.drafts import Header

ANSWERS = Answers()

FIELDS = {"entity_id": "entity", "parent_id": "parent", "limit name": "consume"}
"""What requests call what the library calls otherwise."""


def response_of(answer: HttpAnswer) -> Response:
    """A whole answer as Starlette sends it."""
    response = Response(answer.body, answer.status)
    response.raw_headers = [(k.lower().encode(), v.encode("latin-1")) for k, v in answer.headers]
    return response


def problem(
    status: int, detail: str, headers: Iterable[Header] = (), more: Mapping[str, Any] | None = None
) -> Response:
    """A problem document of no type in particular."""
    return response_of(ANSWERS.problem(status, "about:blank", detail, headers, more))


def answer_to(error: Exception) -> Response:
    """What whoever asked is told about an error."""
    if isinstance(error, REFUSALS):
        return response_of(ANSWERS.refusal(error))
    if isinstance(error, NoLimitsError):
        who, what = shown(error.entity_id), shown(error.resource)
        told = f"no limits are stored for {who} on {what} at any level; store some, such as by"
        told += " `zae-limiter resource set-defaults`, or send limits"
        return problem(400, told, more={"field": "limits"})
    if isinstance(error, ValidationError):
        field = FIELDS.get(error.field, error.field)
        return problem(400, str(error), more={"field": field, "value": shown(error.value)})
    if isinstance(error, EntityError):
        return problem(404 if isinstance(error, EntityNotFoundError) else 409, str(error))
    if isinstance(error, HTTPException):
        detail = error.detail or HTTPStatus(error.status_code).phrase
        return problem(error.status_code, detail, (error.headers or {}).items())
    if isinstance(error, ClientDisconnect):  # no mistake of ours; nobody reads it
        return problem(400, "the body has not come")
    if isinstance(error, InfrastructureError):
        logger.warning("the store is the problem: %s", type(error).__name__)
        return problem(503, "the store cannot be asked just now", [("Retry-After", "1")])
    logger.error("a request failed", exc_info=error)
    return problem(500, "something went wrong within; the log of the server says what")


async def handle(_: Request, error: Exception) -> Response:
    """``answer_to`` as Starlette asks for it."""
    return answer_to(error)


HANDLED = (HTTPException, RequestRefused, ZAELimiterError)
"""What routes raise; all else is a mistake of ours."""
