"""The ASGI middleware, message by message, without a server."""

import ast
import asyncio
import subprocess
import sys
from typing import Any

import pytest

from tests.web.calls import (
    OK,
    RPM,
    TPM,
    Message,
    Reply,
    answering,
    body,
    call,
    get,
    http_scope,
    limited,
    start,
)
from zae_limiter import Lease, Limit, RateLimiter, ValidationError
from zae_limiter.testing import Fault, FaultyBackend, ManualClock
from zae_limiter.web import Answers, RateLimitMiddleware, Request, Rule, client_address


async def used(limiter: RateLimiter, entity_id: str = "key-1") -> dict[str, int]:
    left = await limiter.available(entity_id, "api", [RPM, TPM])
    return {name: limit.capacity - left[name] for name, limit in (("rpm", RPM), ("tpm", TPM))}


async def test_an_admitted_request(limiter: RateLimiter) -> None:
    """It is charged, and the response has the headers of the draft beside its own."""
    app = limited(limiter, answering(start(etag="x"), body(b"hi")))
    reply = await get(app, "/v1/x")
    assert (reply.status, reply.body, reply.headers["etag"]) == (200, b"hi", "x")
    assert reply.headers["ratelimit-policy"] == '"rpm";q=100;w=60, "tpm";q=1000;w=86400;qu="tokens"'
    assert reply.headers["ratelimit"] == '"rpm";r=90;t=54, "tpm";r=1000;t=86400'
    assert await used(limiter) == {"rpm": 10, "tpm": 0}


async def test_a_refused_request(limiter: RateLimiter, clock: ManualClock) -> None:
    """It never reaches the application, and passes after the wait that it was told, not before."""
    app = limited(limiter, cost={"rpm": 100})
    assert (await get(app, "/v1/x")).status == 200
    reply = await get(app, "/v1/x")
    assert (reply.status, reply.problem["violated-policies"]) == (429, ["rpm"])
    assert reply.headers["retry-after"] == "60"
    clock.now_ms += int(reply.headers["retry-after-ms"]) - 1
    assert (await get(app, "/v1/x")).status == 429
    clock.now_ms += 1
    assert (await get(app, "/v1/x")).status == 200


async def test_other_paths_pass(limiter: RateLimiter) -> None:
    """What no rule is about, and what is exempt, is passed on as it came."""
    seen: list[Any] = []

    async def app(*given: Any) -> None:
        seen.append(given)

    rules = [Rule("/v1/health", exempt=True), Rule("/v1/*", "api", {"rpm": 1}, entity="key-1", limits=[RPM])]
    middleware = RateLimitMiddleware(app, limiter=limiter, rules=rules)
    for path in ("/other", "/v1/health"):
        given = http_scope(path), object(), object()
        await middleware(*given)
        assert seen.pop() == given
    assert await limiter.repository.get_bucket("key-1", "api") == []


async def test_who_is_nobody(limiter: RateLimiter) -> None:
    """401 with the challenge of the way in which one would be somebody."""
    reply = await get(limited(limiter), "/v1/x", None)
    assert (reply.status, reply.headers["www-authenticate"]) == (
        401,
        'ApiKey realm="api", header="x-api-key"',
    )
    assert (await get(limited(limiter, entity=lambda _: None), "/v1/x")).status == 401


async def test_callables_see_the_request(limiter: RateLimiter) -> None:
    """Plain ones and coroutines: who asks, for what, and how much."""

    async def cost(request: Request) -> dict[str, int]:
        return {"rpm": int(request.query["n"])}

    async def entity(request: Request) -> str:
        return request.headers["X-User"]

    app = limited(limiter, entity=entity, resource=lambda request: request.path[4:], cost=cost)
    scope = http_scope("/v1/api", headers={"x-user": "u-1"}, query_string=b"n=7")
    assert (await call(app, scope)).left() == 93
    assert (await used(limiter, "u-1"))["rpm"] == 7


async def test_a_middleware_knows_whose_requests_they_are(limiter: RateLimiter) -> None:
    """For all rules that do not say it themselves."""
    rules = [Rule("/v1/*", "api", {"rpm": 1}, limits=[RPM])]
    app = RateLimitMiddleware(OK, limiter=limiter, rules=rules, entity=client_address())
    assert (await get(app, "/v1/x")).left() == 99
    assert (await limiter.available("192.0.2.7", "api", [RPM])) == {"rpm": 99}


async def test_a_head_has_no_body(limiter: RateLimiter) -> None:
    """A refused HEAD tells how long the body would be."""
    app = limited(limiter, cost=lambda _: {"rpm": 101})
    reply = await get(app, "/v1/x", method="HEAD")
    assert (reply.status, reply.body, int(reply.headers["content-length"]) > 0) == (429, b"", True)
    assert reply.headers["x-should-retry"] == "false"


async def test_the_application_finds_its_lease(limiter: RateLimiter) -> None:
    """In the state, and as the current one; what it notes is stored when it is done."""

    async def app(scope: Message, receive: Any, send: Any) -> None:
        assert scope["state"]["lease"] is Lease.current()
        await Lease.current().adjust(tpm=30)
        await OK(scope, receive, send)

    await get(limited(limiter, app), "/v1/x", state={"mine": 1})
    assert await used(limiter) == {"rpm": 10, "tpm": 30}
    with pytest.raises(LookupError):
        Lease.current()


# How a response ends decides what it costs.

GONE = ConnectionResetError("the client is gone")
ENDINGS = {
    "done": ([start(), body(b"a", True), body(b"b")], None, 10),
    "done, then a background task fails": ([start(), body(b"a")], ValueError("later"), 10),
    "4xx": ([start(404), body(b"a")], None, 10),
    "5xx": ([start(500), body(b"a")], None, 0),
    "5xx that raises": ([start(503)], ValueError("x"), 0),
    "raises before it answers": ([], ValueError("x"), 0),
    "never answers": ([], None, 0),
    "raises in the middle": ([start(), body(b"a", True)], ValueError("x"), 10),
    "is cancelled before it answers": ([], asyncio.CancelledError(), 10),
    "is cancelled in the middle": ([start(), body(b"a", True)], asyncio.CancelledError(), 10),
    "stops in the middle": ([start(), body(b"a", True)], None, 10),
    "exits": ([], SystemExit(1), 10),
}
ON_ERROR = {
    "refund": {"done": 10, "4xx": 10, "done, then a background task fails": 10},
    "keep": dict.fromkeys(ENDINGS, 10),
    "settle": dict.fromkeys(ENDINGS, 10),
}


@pytest.mark.parametrize("on_error", [None, *ON_ERROR])
@pytest.mark.parametrize("how", ENDINGS)
async def test_how_a_response_ends(limiter: RateLimiter, how: str, on_error: str | None) -> None:
    """Failed work is given back; who has had something, or hung up, pays; a rule may say otherwise."""
    messages, error, cost = ENDINGS[how]
    if on_error is not None:
        cost = ON_ERROR[on_error].get(how, 0)
    app = limited(limiter, answering(*messages, then=error), on_error=on_error)
    if error is None:
        await get(app, "/v1/x")
    else:
        with pytest.raises(type(error)):
            await get(app, "/v1/x")
    assert (await used(limiter))["rpm"] == cost


@pytest.mark.parametrize("has_started", [False, True])
async def test_a_client_that_disconnects(limiter: RateLimiter, has_started: bool) -> None:
    """An application that listens and stops: the request was made, so it counts."""

    async def app(_scope: Message, receive: Any, send: Any) -> None:
        if has_started:
            await send(start())
            await send(body(b"a", True))
        assert (await receive())["type"] == "http.disconnect"

    scope = http_scope("/v1/x", headers={"x-api-key": "key-1"})
    await call(limited(limiter, app), scope, [{"type": "http.disconnect"}])
    assert (await used(limiter))["rpm"] == 10


async def test_a_client_that_cannot_be_sent_to(limiter: RateLimiter) -> None:
    """A server may tell by an error of ``send``."""
    middleware = limited(limiter)

    async def send(_message: Message) -> None:
        raise GONE

    with pytest.raises(ConnectionResetError):
        await middleware(http_scope("/v1/x", headers={"x-api-key": "key-1"}), None, send)  # type: ignore[arg-type]
    assert (await used(limiter))["rpm"] == 10


class Counting:
    """Each byte costs a token."""

    def __init__(self, limit: str = "tpm") -> None:
        self.seen, self.limit = 0, limit

    def feed(self, chunk: bytes) -> None:
        if chunk == b"!":
            raise ValueError("it cannot be read")
        self.seen += len(chunk)

    def amounts(self) -> dict[str, int] | None:
        return {self.limit: self.seen} if self.seen else None


METERED = {
    "done": ([start(), body(b"abc", True), body(b"de")], None, 5),
    "nothing is known": ([start(), body(b"")], None, 50),
    "stops in the middle": ([start(), body(b"abc", True)], None, 3),
    "is cancelled": ([start(), body(b"abc", True)], asyncio.CancelledError(), 3),
    "is cancelled early": ([], asyncio.CancelledError(), 50),
    "raises in the middle": ([start(), body(b"abc", True)], ValueError("x"), 3),
    "5xx": ([start(500), body(b"abc")], None, 0),
    "the meter fails": ([start(), body(b"abc", True), body(b"!", True), body(b"de")], None, 3),
    "an error page comes too late": ([start(), body(b"abc", True), start(500), body(b"de")], None, 5),
}


@pytest.mark.parametrize("how", METERED)
async def test_a_meter_reads_the_response(limiter: RateLimiter, how: str) -> None:
    """What was sent until then counts instead of what was taken; nothing known, nothing changed."""
    messages, error, cost = METERED[how]
    asked: list[tuple[str, int, str | None]] = []

    def usage(request: Request, status: int, headers: Any) -> Counting:
        asked.append((request.path, status, headers.get("Content-Type")))
        return Counting()

    app = limited(limiter, answering(*messages, then=error), cost={"rpm": 1, "tpm": 50}, usage=usage)
    try:
        await get(app, "/v1/x")
    except (asyncio.CancelledError, ValueError):
        assert error is not None
    assert (await used(limiter))["tpm"] == cost
    assert asked == [("/v1/x", one["status"], None) for one in messages[:1]]


async def test_keep_keeps_what_was_taken(limiter: RateLimiter) -> None:
    """What was noted beyond it counts too, what was noted below it does not."""
    messages = [start(), body(b"abc", True)]
    more = {"cost": {"tpm": 50}, "on_error": "keep", "usage": lambda *_: Counting()}
    await get(limited(limiter, answering(*messages), **more), "/v1/x")
    assert (await used(limiter))["tpm"] == 50
    await get(limited(limiter, answering(*messages), **{**more, "cost": {"tpm": 2}}), "/v1/x")
    assert (await used(limiter))["tpm"] == 53


async def test_a_meter_of_unknown_limits(limiter: RateLimiter, caplog: pytest.LogCaptureFixture) -> None:
    """It is told in the log; what can be settled is."""

    class Both(Counting):
        def amounts(self) -> dict[str, int]:
            return {"otpm": 5, "tpm": 7}

    await get(limited(limiter, cost={"tpm": 50}, usage=lambda *_: Both()), "/v1/x")
    assert (await used(limiter))["tpm"] == 7
    assert "otpm" in caplog.text


async def test_a_meter_that_cannot_be_made(limiter: RateLimiter) -> None:
    """The response goes out as it is, and what was taken counts."""
    reply = await get(limited(limiter, usage=lambda *_: 1 / 0), "/v1/x")
    assert (reply.status, (await used(limiter))["rpm"]) == (200, 10)
    assert (await get(limited(limiter, usage=lambda *_: None), "/v1/x")).status == 200


# Bodies that are read for their cost.


def chunked(*chunks: bytes) -> list[Message]:
    last = len(chunks) - 1
    return [{"type": "http.request", "body": c, "more_body": n < last} for n, c in enumerate(chunks)]


async def echo(_scope: Message, receive: Any, send: Any) -> None:
    chunks, more = [], True
    while more:
        message = await receive()
        chunks.append(message["body"])
        more = message["more_body"]
    await send(start())
    await send(body(b"".join(chunks)))


async def test_a_body_is_read_and_given_again(limiter: RateLimiter) -> None:
    """Its cost is known before the application runs, which reads the same body."""

    async def cost(request: Request) -> dict[str, int]:
        return {"rpm": (await request.json())["n"] + len(await request.body()) - len(await request.body())}

    scope = http_scope("/v1/x", "POST", {"x-api-key": "key-1"})
    reply = await call(limited(limiter, echo, cost=cost), scope, chunked(b'{"n"', b": 7", b"}"))
    assert (reply.body, reply.left()) == (b'{"n": 7}', 93)


@pytest.mark.parametrize(
    ("chunks", "headers", "status"),
    [
        ((b"12345", b"678"), {}, 413),
        ((b"",), {"content-length": "9"}, 413),
        ((b"",), {"content-length": "9" * 5000}, 413),
        ((b"no",), {}, 400),
        ((b"[" * 7,), {"content-length": "no"}, 400),
    ],
)
async def test_a_body_that_is_refused(
    limiter: RateLimiter, chunks: tuple[bytes, ...], headers: dict[str, str], status: int
) -> None:
    """Too large, or no JSON: nothing is charged."""

    async def cost(request: Request) -> dict[str, int]:
        return {"rpm": len(await request.json(limit_bytes=7))}

    scope = http_scope("/v1/x", "POST", {"x-api-key": "key-1", **headers})
    assert (await call(limited(limiter, cost=cost), scope, chunked(*chunks))).status == status
    assert await limiter.repository.get_bucket("key-1", "api") == []


async def test_a_client_that_leaves_before_its_body(limiter: RateLimiter) -> None:
    """Nobody waits for an answer, and nothing was asked for."""

    async def cost(request: Request) -> dict[str, int]:
        return {"rpm": len(await request.body())}

    scope = http_scope("/v1/x", "POST", {"x-api-key": "key-1"})
    coming = [*chunked(b"a", b"b")[:1], {"type": "http.disconnect"}]
    assert (await call(limited(limiter, cost=cost), scope, coming)).messages == []


# What clients can get wrong, and what applications can.


async def test_a_resource_of_the_path(limiter: RateLimiter) -> None:
    """One that has no limits, or cannot be a name, is not found; in a fixed rule that is a mistake."""
    await limiter.repository.set_resource_defaults("model-a", [RPM])
    rule = Rule("/v1/{model}", "model-{model}", {"rpm": 1}, entity="key-1")
    app = RateLimitMiddleware(OK, limiter=limiter, rules=[rule])
    paths = ("/v1/a", "/v1/b", "/v1/a#b", "/v1/" + "x" * 300)
    assert [(await get(app, path)).status for path in paths] == [200, 404, 404, 404]
    fixed = RateLimitMiddleware(OK, limiter=limiter, rules=[Rule("/v1/*", "b", {"rpm": 1}, entity="key-1")])
    with pytest.raises(ValidationError, match="no limits are stored") as caught:
        await get(fixed, "/v1/b")
    assert "limits of its own goes by those of 'b', and there are none" in caught.value.__notes__[0]


@pytest.mark.parametrize("amount", [-1, 1.5, "7", None, True, 10**30, float("inf")])
async def test_amounts_that_cannot_be(limiter: RateLimiter, amount: Any) -> None:
    """Of a callable they are the client's mistake: 400."""
    reply = await get(limited(limiter, cost=lambda _: {"rpm": amount}), "/v1/x")
    assert (reply.status, reply.problem["detail"]) == (400, "it asks for amounts that cannot be")
    assert await limiter.repository.get_bucket("key-1", "api") == []


@pytest.mark.parametrize(("who", "status"), [("", 401), (None, 401), ("\x00", 400), ("x" * 5_000, 400)])
async def test_who_cannot_be_anybody(limiter: RateLimiter, who: str | None, status: int) -> None:
    """As a callable may say that reads it from a header."""
    assert (await get(limited(limiter, entity=lambda _: who), "/v1/x")).status == status


async def test_an_application_that_is_refused(limiter: RateLimiter) -> None:
    """What its own ``consume`` raises is answered like a refusal, and nothing is charged."""

    async def app(_scope: Message, _receive: Any, _send: Any) -> None:
        await Lease.current().consume(tpm=5_000)

    reply = await get(limited(limiter, app), "/v1/x")
    assert (reply.status, reply.problem["violated-policies"]) == (429, ["tpm"])
    assert await used(limiter) == {"rpm": 0, "tpm": 0}


async def test_an_application_whose_provider_is_refused(limiter: RateLimiter) -> None:
    """The client is told nothing of somebody else's limits, and nothing is charged."""

    async def app(_scope: Message, _receive: Any, _send: Any) -> None:
        await limiter.acquire("vendor", "account", {"secret": 2}, [Limit.per_day("secret", 1)])

    reply = await get(limited(limiter, app), "/v1/x")
    assert (reply.status, "ratelimit" in reply.headers, b"secret" in reply.body) == (503, False, False)
    assert await used(limiter) == {"rpm": 0, "tpm": 0}


async def test_a_path_of_two_readings(limiter: RateLimiter) -> None:
    """400, for a WebSocket too, where the server can only close."""
    rules = [Rule(path, "api", {"rpm": 1}, entity="key-1", limits=[RPM]) for path in ("/a/*", "/b/*")]
    app = RateLimitMiddleware(OK, limiter=limiter, rules=rules)
    assert (await get(app, "/a/../b/x")).status == 400
    scope = {**http_scope("/a/../b/x"), "type": "websocket"}
    reply = await call(app, scope, [{"type": "websocket.connect"}])
    assert reply.messages == [{"type": "websocket.close", "code": 1008, "reason": "refused"}]


async def test_a_store_that_is_down(limiter: RateLimiter, faulty: FaultyBackend) -> None:
    """``block`` is a 503 and ``allow`` lets the request through, without headers."""
    faulty.always = Fault.UNREACHABLE
    reply = await get(limited(limiter, on_unavailable="block"), "/v1/x")
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert reply.problem["type"].endswith("#temporary-reduced-capacity")
    reply = await get(limited(limiter, on_unavailable="allow"), "/v1/x")
    assert (reply.status, "ratelimit" in reply.headers, limiter.degraded) == (200, False, 1)
    faulty.always = None


async def test_what_is_switched_off(limiter: RateLimiter) -> None:
    """503 for a resource, 403 for an entity."""
    await limiter.disable(resource="api", reason="maintenance")
    assert (await get(limited(limiter), "/v1/x")).status == 503
    await limiter.enable(resource="api")
    await limiter.disable(entity_id="key-1", reason="unpaid")
    reply = await get(limited(limiter), "/v1/x")
    assert (reply.status, reply.problem["detail"]) == (403, "api may not be used: unpaid")


async def test_answers_are_chosen(limiter: RateLimiter) -> None:
    """Older styles beside the draft."""
    rules = [Rule("/v1/*", "api", {"rpm": 1}, entity="key-1", limits=[RPM])]
    app = RateLimitMiddleware(OK, limiter=limiter, rules=rules, answers=Answers(None, ["openai"]))
    headers = (await get(app, "/v1/x")).headers
    assert headers == {
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-requests": "99",
        "x-ratelimit-reset-requests": "1s",
    }


async def test_a_request_that_is_thrown_away(limiter: RateLimiter) -> None:
    """It may not wait any more, so its lease settles itself: the cost counts, and a warning says so."""

    async def app(_scope: Message, _receive: Any, send: Any) -> None:
        await send(start())
        await asyncio.get_running_loop().create_future()

    async def send(_message: Message) -> None: ...

    scope = http_scope("/v1/x", headers={"x-api-key": "key-1"})
    request = limited(limiter, app)(scope, None, send)  # type: ignore[arg-type]
    request.send(None)  # type: ignore[attr-defined]
    del scope
    with pytest.warns(ResourceWarning, match="was forgotten"):
        request.close()  # type: ignore[attr-defined]
    assert (await used(limiter))["rpm"] == 10


async def test_a_loop_that_is_cancelled_again_and_again(limiter: RateLimiter) -> None:
    """The lease is settled although whoever runs the application cancels at every step."""
    import anyio

    async def app(_scope: Message, _receive: Any, send: Any) -> None:
        await send(start())
        await send(body(b"a", True))
        group.cancel_scope.cancel()
        await asyncio.sleep(3600)

    async with anyio.create_task_group() as group:
        group.start_soon(get, limited(limiter, app), "/v1/x")
    assert (await used(limiter))["rpm"] == 10


ROOMS = ("web", "llm", "outbound", "telemetry")
OF_OTHERS = (
    *("starlette", "fastapi", "flask", "django", "yaml", "httpx", "httpx2", "requests", "tiktoken"),
    *("grpc", "prometheus_client", "opentelemetry", "urllib3"),
)


def test_nothing_is_imported_before_it_is_used() -> None:
    """The package itself knows none of these rooms, and all that they offer needs nobody else's package."""
    found = "print(sorted(name for name in sys.modules if name in sys.argv[1:]))"
    offered = [f"from zae_limiter.{room} import *" for room in ROOMS]
    told = "\n".join(["import sys", "from zae_limiter import *", found, *offered, found])
    names = [*OF_OTHERS, *(f"zae_limiter.{room}" for room in ROOMS)]
    done = subprocess.run([sys.executable, "-c", told, *names], capture_output=True, text=True, check=True)
    before, after = map(ast.literal_eval, done.stdout.splitlines())
    assert (before, after) == ([], sorted(f"zae_limiter.{room}" for room in ROOMS))


def test_a_reply_is_read() -> None:
    """What these tests read replies with finds nothing where nothing is."""
    with pytest.raises(StopIteration):
        Reply().status  # noqa: B018


async def test_leases_of_several_middlewares(limiter: RateLimiter) -> None:
    """The innermost alone, and all of them by their resources."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([scope["state"]["lease"], scope["state"]["leases"]])
        await OK(scope, receive, send)

    await get(limited(limiter, limited(limiter, app, resource="inner")), "/v1/a")
    assert (list(seen[1]), seen[1]["inner"] is seen[0]) == (["api", "inner"], True)
