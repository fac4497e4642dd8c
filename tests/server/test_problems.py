"""What is told of errors: no more than whoever asked has said, and headers that cannot be broken up."""

from __future__ import annotations

import json

from starlette.exceptions import HTTPException

from zae_limiter.exceptions import InfrastructureError, RateLimiterUnavailable, ValidationError
from zae_limiter.server.problems import answer_to
from zae_limiter.web.answers import RequestRefused


def test_every_error_is_a_problem_document() -> None:
    """Each has its status; of a store nothing is told, of a mistake the field and a value that is cut off."""
    told = [
        (ValidationError("consume", "x" * 10_000, "no"), 400),
        (RequestRefused(410, "gone"), 410),
        (HTTPException(405), 405),
        (RateLimiterUnavailable("postgresql://u:secret@h"), 503),
        (InfrastructureError("secret"), 503),
        (RuntimeError("secret"), 500),
    ]
    for error, status in told:
        answer = answer_to(error)
        body = json.loads(bytes(answer.body))
        assert (answer.status_code, body["status"]) == (status, status)
        assert answer.headers["content-type"] == "application/problem+json"
        assert b"secret" not in bytes(answer.body)
        assert len(answer.body) < 3000


def test_no_value_breaks_a_document() -> None:
    """Line breaks, quotes and letters of any script stay within the strings that they are in."""
    body = json.loads(bytes(answer_to(ValidationError("a\r\nb", "\r\nSet-Cookie: x\u2028é", "no")).body))
    assert body["field"] == "a\r\nb"
