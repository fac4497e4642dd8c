"""What clients are told when they are refused, and what they are never told."""

import json
import math
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.web.limits import read_back
from zae_limiter import (
    Limit,
    LimitStatus,
    PermissionDenied,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ResourceDisabled,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.models.leases import LeaseStatus
from zae_limiter.testing import ManualClock
from zae_limiter.web.answers import Answers, HttpAnswer, RequestRefused
from zae_limiter.web.drafts import LEGACY, Header

ANSWERS = Answers()
RPM = Limit.per_minute("rpm", 60)


def refused(*statuses: LimitStatus, entity_id: str = "key") -> RateLimitExceeded:
    return RateLimitExceeded(statuses, entity_id)


def status(
    limit: Limit, wait: float, *, left: int = 0, who: str = "key", exceeded: bool = True
) -> LimitStatus:
    return LimitStatus(who, "api", limit.name, limit, left, 1, exceeded, wait, wait, wait)


def told(answer: HttpAnswer) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(answer.body)
    headers = dict(answer.headers)
    assert headers["Content-Type"] == "application/problem+json"
    assert int(headers["Content-Length"]) == len(answer.body)
    assert headers["Cache-Control"] == "no-store"
    assert (body["status"], set(body) >= {"type", "title", "detail"}) == (answer.status, True)
    return body


def test_a_refusal() -> None:
    """429 with the registered problem type, the names of the limits, and the wait in both forms."""
    answer = ANSWERS.refusal(refused(status(RPM, 1.2345), status(Limit.per_day("rpd", 9), 0, exceeded=False)))
    assert told(answer) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "not enough is left of rpm; retry after 2 s",
        "violated-policies": ["rpm"],
        "error": {"message": "not enough is left of rpm; retry after 2 s", "type": "rate_limit_error"},
    }
    headers = dict(answer.headers)
    assert (headers["Retry-After"], headers["retry-after-ms"]) == ("2", "1235")
    assert "x-should-retry" not in headers
    assert read_back(answer.headers, "RateLimit") == {"rpm": {"r": 0, "t": 2}, "rpd": {"r": 0, "t": 1}}


@pytest.mark.parametrize(
    ("wait", "header", "exact", "retry"),
    [
        (0.001, "1", "1", None),
        (120.0, "120", "120000", None),
        (120.001, "121", "120001", "false"),
        (math.inf, "31536000", None, "false"),
    ],
)
def test_whether_to_retry(wait: float, header: str, exact: str | None, retry: str | None) -> None:
    """Beyond two minutes, or for ever, it is pointless; up to there the wait is told exactly."""
    headers = dict(ANSWERS.refusal(refused(status(RPM, wait))).headers)
    found = headers["Retry-After"], headers.get("retry-after-ms"), headers.get("x-should-retry")
    assert found == (header, exact, retry)


@pytest.mark.parametrize("status_code", [400, 401, 402, 403, 404, 413])
def test_what_clients_of_language_models_show(status_code: int) -> None:
    """The reason, in their own errors; that is all that the users of most programs ever see."""
    rate, down = ANSWERS.refusal(refused(status(RPM, 1.2))), ANSWERS.refusal(RateLimiterUnavailable("down"))
    other = ANSWERS.refusal(RequestRefused(status_code, "pay first"))
    for answer, said in ((rate, "retry after 2 s"), (down, "cannot be said just now"), (other, "pay first")):
        response = httpx2.Response(answer.status, headers=list(answer.headers), content=answer.body)
        transport = httpx2.MockTransport(lambda _, response=response: response)
        url, key, messages = "http://x", "key-1", [{"role": "user", "content": "hi"}]
        with httpx2.Client(transport=transport) as http:
            gpt = openai.OpenAI(base_url=url, api_key=key, max_retries=0, http_client=http)
            with pytest.raises(openai.APIStatusError, match=said):
                gpt.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
            claude = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, http_client=http)
            with pytest.raises(anthropic.APIStatusError, match=said):
                claude.messages.create(model="m", messages=messages, max_tokens=5)  # type: ignore[arg-type]


def test_a_seat_is_asked_for_soon() -> None:
    """When a seat comes back nobody knows, so the wait is a second and not the hold; a rate binds it."""
    seats = Limit.concurrent("parallel", 4, hold="5m")
    headers = dict(ANSWERS.refusal(refused(status(seats, 299.0))).headers)
    assert (headers["Retry-After"], headers["RateLimit"]) == ("1", '"parallel";r=0')
    assert headers["RateLimit-Policy"] == '"parallel";q=4;qu="concurrent-requests"'
    both = ANSWERS.refusal(refused(status(seats, 299.0), status(RPM, 7.0)))
    assert dict(both.headers)["Retry-After"] == "7"


def test_what_refused_somebody_else() -> None:
    """An account that the application uses, for one: a 503 that tells the wait and nothing else."""
    with SyncRateLimiter.open("memory://") as limiter:
        limits = [Limit.per_day("secret-limit", 7)]
        with limiter.acquire("vendor", "secret", {"secret-limit": 7}, limits):
            pass
        with pytest.raises(RateLimitExceeded) as refused:
            limiter.acquire("vendor", "secret", {"secret-limit": 1}, limits).open()
        limiter.disable(entity_id="vendor", resource="secret", reason="secret reason")
        with pytest.raises(PermissionDenied) as off:
            limiter.acquire("vendor", "secret", {"secret-limit": 1}, limits).open()
    for error, is_told in ((refused.value, True), (off.value, False)):
        answer = Answers(legacy=list(LEGACY)).refusal(error, {"customer"})
        assert (answer.status, "secret" in said(answer.headers, answer.body)) == (503, False)
        assert dict(answer.headers)["x-should-retry"] == "false"
        assert ("Retry-After" in dict(answer.headers)) == is_told
        for own in ((), {"vendor"}, {"customer", "vendor"}):
            assert "secret" in said((), Answers().refusal(error, own).body)


def test_what_is_switched_off() -> None:
    """503 for everybody, 403 for somebody; a reason that is a parent's is not told."""
    off = ANSWERS.refusal(ResourceDisabled("key", "gpt-4", "maintenance", "resource"))
    assert told(off)["detail"] == "gpt-4 is disabled: maintenance"
    assert (off.status, dict(off.headers)["x-should-retry"]) == (503, "false")
    denied = ANSWERS.refusal(PermissionDenied("key", "gpt-4", "unpaid", "entity", "parent-7"))
    assert (denied.status, told(denied)["detail"]) == (403, "gpt-4 may not be used")
    based = Answers(problem_base="https://errors.example/").refusal(
        ResourceDisabled("key", "gpt-4", "maintenance", "resource")
    )
    assert told(based)["type"] == "https://errors.example/resource-disabled"


def test_a_store_that_is_down() -> None:
    """503 with the registered type; nothing of the store is told, and asking again is worth it."""
    answer = ANSWERS.refusal(RateLimiterUnavailable("the table limits-prod did not answer"))
    assert (
        told(answer)["type"] == "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    )
    assert (answer.status, b"limits-prod" in answer.body) == (503, False)
    assert dict(answer.headers)["Retry-After"] == "1"
    assert "x-should-retry" not in dict(answer.headers)
    wrong = ANSWERS.refusal(RateLimiterUnavailable("no", misconfigured="permission"))
    assert dict(wrong.headers)["x-should-retry"] == "false"
    assert "Retry-After" not in dict(wrong.headers)  # which would say the contrary


def test_a_request_that_is_not_even_asked_for() -> None:
    """What a callable of a rule refuses is answered as it says."""
    answer = ANSWERS.refusal(RequestRefused(401, "who are you", [("WWW-Authenticate", "Bearer")]))
    assert (answer.status, told(answer)["detail"]) == (401, "who are you")
    assert ("WWW-Authenticate", "Bearer") in answer.headers


@pytest.mark.parametrize("status", [200, 500, 499, 0])
def test_only_clients_are_refused_so(status: int) -> None:
    """A status that says something else, or that nobody knows, is a mistake of the program."""
    with pytest.raises(ValidationError, match="4xx"):
        RequestRefused(status, "no")


def test_other_errors_are_no_answers() -> None:
    """A mistake of the program is not dressed up as a refusal."""
    with pytest.raises(ZeroDivisionError):
        ANSWERS.refusal(ZeroDivisionError())


def test_soft_limits_are_not_told() -> None:
    """They refuse nobody, so a client that slowed down for one would do so for nothing."""
    soft = LeaseStatus("key", "api", "rpm", RPM.softly(), 5, 0.0)
    assert ANSWERS.headers([soft]) == []


class Lease:
    """One that stood like this."""

    def __init__(self, own: list[LeaseStatus], parents: list[LeaseStatus]) -> None:
        self._own, self._all = own, [*own, *parents]

    def _standings(self, *, is_public: bool = False) -> list[LeaseStatus]:
        return self._own if is_public else self._all


def test_what_may_be_exposed() -> None:
    """One's own limits by default; the least of the family, or nothing at all, where that is configured."""
    lease = Lease(
        [LeaseStatus("key", "api", "rpm", RPM, 50, 0.0)],
        [LeaseStatus("team", "api", "rpm", Limit.per_minute("rpm", 777), 7, 0.0)],
    )
    assert read_back(ANSWERS.of_lease(lease), "RateLimit") == {"rpm": {"r": 50, "t": 50}}
    family = Answers(expose="family").of_lease(lease)
    assert read_back(family, "RateLimit") == {"rpm": {"r": 7, "t": 1}}
    assert Answers(expose="nothing").of_lease(lease) == []
    answer = Answers(expose="nothing").refusal(refused(status(RPM, 3.0)))
    assert told(answer)["detail"] == "not enough is left; retry after 3 s"
    assert b"rpm" not in answer.body
    assert dict(answer.headers).keys() == {
        *("Content-Type", "Content-Length", "Cache-Control", "Retry-After", "retry-after-ms")
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"draft": "draft-3"},
        {"legacy": "triple"},
        {"legacy": ["tripel"]},
        {"expose": "all"},
        {"units": {"pages": "\u00fc"}},
    ],
)
def test_wrong_choices_are_told(wrong: dict[str, Any]) -> None:
    """When it is made, with what can be chosen."""
    with pytest.raises(ValidationError, match="use"):
        Answers(**wrong)


# The marks make a name unlike anything else in an answer; what surrounds them is as hostile as names may be.
pieces = st.text(st.characters(codec="utf-8", exclude_characters="#"), max_size=12)
ALL = [
    ANSWERS,
    Answers("pr-166", list(LEGACY), problem_base="https://errors.example/"),
    Answers(expose="family"),
    Answers(expose="nothing"),
]


def named(mark: str, piece: str) -> str:
    name = f"{mark}{piece}{mark}"
    return name if name.isprintable() else f"{mark}{mark}"


def said(headers: list[Header] | tuple[Header, ...], body: bytes = b"") -> str:
    return json.dumps(list(headers)) + body.decode()


@settings(max_examples=60)
@given(pieces, pieces, st.sampled_from(["exceeded", "parent exceeded", "denied", "parent denied", "down"]))
def test_nobody_is_named(one: str, other: str, how: str) -> None:
    """No answer has an entity, a parent, a namespace or a store in it, whatever they are called."""
    entity_id, parent_id = named("xENTITYx", one), named("xPARENTx", other)
    clock = ManualClock()
    repository = SyncRepository.over(MemoryBackend(clock.world), "xNAMESPACEx", world=clock.world)
    limiter = SyncRateLimiter(repository)
    limiter.create_entity(parent_id)
    limiter.create_entity(entity_id, parent_id=parent_id, cascade=True)
    limiter.set_system_defaults([Limit.per_minute("rpm", 1 if how == "exceeded" else 50)])
    limiter.set_limits(parent_id, [Limit.per_minute("rpm", 31_337 if how == "exceeded" else 1)])
    errors: list[Exception] = []
    with limiter.acquire(entity_id, "api", {"rpm": 1}) as lease:
        for answers in ALL:
            text = said(answers.of_lease(lease))
            assert "xENTITYx" not in text
            assert "xPARENTx" not in text
        assert "31337" not in said(ANSWERS.of_lease(lease))
    if how.endswith("denied"):
        limiter.disable(reason="a reason", entity_id=parent_id if how.startswith("parent") else entity_id)
    if how == "down":
        errors.append(RateLimiterUnavailable(f"{entity_id} {parent_id} xNAMESPACEx"))
    else:
        try:
            with limiter.acquire(entity_id, "api", {"rpm": 1}):
                raise AssertionError("it is refused")
        except (RateLimitExceeded, PermissionDenied) as error:
            errors.append(error)
    for error in errors:
        for answers in ALL:
            answer = answers.refusal(error)
            text = said(answer.headers, answer.body)
            for mark in ("xENTITYx", "xPARENTx", "xNAMESPACEx", repository.namespace_id):
                assert mark not in text
        own = said(ANSWERS.refusal(error).headers, ANSWERS.refusal(error).body)
        assert "31337" not in own
        assert how != "parent denied" or "a reason" not in own
