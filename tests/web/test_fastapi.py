"""Limits by route in FastAPI: the dependency, the decorator, and what is told in answers and documents."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import pytest
from anyio import from_thread
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException, Request, WebSocket
from fastapi.responses import Response, StreamingResponse

from tests.web import calls
from tests.web.calls import Reply, call
from tests.web.limits import Bytes
from tests.web.servers import Streams, client_of, serving, until
from zae_limiter import Lease, Limit, RateLimiter, RateLimitExceeded, ValidationError
from zae_limiter.testing import Fault, FaultyBackend, ManualClock
from zae_limiter.web import Rule, Rules, api_key
from zae_limiter.web.fastapi import RouteLimits, limit, limited

RPM, TPM = Limit.per_minute("rpm", 100), Limit.per_day("tpm", 1_000)
LIMITS = [RPM, TPM]
TEN: Any = {"resource": "api", "cost": {"rpm": 10}, "entity": api_key(), "limits": LIMITS}
Held = Annotated[Lease, Depends(limit(**TEN))]


def http_scope(path: str, *given: Any, **more: Any) -> dict[str, Any]:
    return calls.http_scope(path, *given, **{"query_string": b"", **more})


async def get(app: Any, path: str, key: str | None = "key-1", **more: Any) -> Reply:
    return await calls.get(app, path, key, **{"query_string": b"", **more})


async def used(limiter: RateLimiter, entity_id: str = "key-1", resource: str = "api") -> dict[str, int]:
    left = await limiter.available(entity_id, resource, LIMITS)
    return {one.name: one.capacity - left[one.name] for one in LIMITS}


def app_of(limiter: Any, **more: Any) -> FastAPI:
    app = FastAPI()
    RouteLimits(app, limiter=limiter, **more)
    return app


async def test_an_admitted_request(limiter: RateLimiter) -> None:
    """The endpoint has its lease, three ways, and the response its headers."""
    app = app_of(limiter)

    @app.get("/v1/{name}")
    async def endpoint(name: str, lease: Held, request: Request) -> dict[str, Any]:
        await lease.adjust(tpm=7)
        return {"same": lease is Lease.current() is request.state.lease, "name": name}

    reply = await get(app, "/v1/x")
    assert (reply.status, reply.body) == (200, b'{"same":true,"name":"x"}')
    assert reply.headers["ratelimit-policy"] == '"rpm";q=100;w=60, "tpm";q=1000;w=86400;qu="tokens"'
    assert reply.left() == 90
    assert await used(limiter) == {"rpm": 10, "tpm": 7}
    with pytest.raises(LookupError):
        Lease.current()


async def test_a_refused_request(limiter: RateLimiter, clock: ManualClock) -> None:
    """The endpoint is not called, the answer is that of the middleware, and the told wait is exact."""
    app, called = app_of(limiter), list[str]()
    one_by_one = FastAPI()
    RouteLimits(one_by_one, limiter=limiter, rules=[Rule("/*", **TEN)])

    @app.get("/")
    async def endpoint(_: Held) -> None:
        called.append("endpoint")

    for _ in range(10):
        assert (await get(app, "/")).status == 200
    reply = await get(app, "/")
    assert (reply.status, reply.problem["violated-policies"], len(called)) == (429, ["rpm"], 10)
    assert reply.messages == (await get(one_by_one, "/")).messages
    head = FastAPI()
    RouteLimits(head, limiter=limiter)
    head.add_api_route("/", endpoint, methods=["HEAD"])
    assert ((await get(head, "/", method="HEAD")).status, (await get(head, "/", method="HEAD")).body) == (
        429,
        b"",
    )
    clock.now_ms += int(reply.headers["retry-after-ms"]) - 1
    assert (await get(app, "/")).status == 429
    clock.now_ms += 1
    assert (await get(app, "/")).status == 200


async def test_who_asks_has_to_be_told(limiter: RateLimiter) -> None:
    """As in the middleware: 401; a program that does not say whose requests they are is told so."""
    app = app_of(limiter)

    @app.get("/")
    async def endpoint(_: Held) -> None: ...

    @app.get("/nobody", dependencies=[Depends(limit("api", {"rpm": 1}))])
    async def nobody() -> None: ...

    reply = await get(app, "/", key=None)
    assert (reply.status, reply.problem["status"]) == (401, 401)
    with pytest.raises(ValidationError, match="say whose requests"):
        await get(app, "/nobody")
    with pytest.raises(ValidationError, match="say what the route uses"):
        limit(None)  # type: ignore[arg-type]


async def test_names_of_the_route(limiter: RateLimiter) -> None:
    """They name the resource, whatever type they have; what the route does not have is told."""
    app = app_of(limiter, entity=api_key())
    by_model = limit("model-{model}", limits=LIMITS)

    @app.get("/{model:path}/embed", dependencies=[Depends(by_model)])
    async def endpoint(model: str) -> str:
        return model

    @app.get("/other", dependencies=[Depends(by_model)])
    async def other() -> None: ...

    assert (await get(app, "/a/embed")).status == 200
    assert await used(limiter, resource="model-a") == {"rpm": 1, "tpm": 1}
    assert (await get(app, "/a%00/embed".replace("%00", "\x00"))).status == 404
    with pytest.raises(ValidationError, match="the route has no name 'model'"):
        await get(app, "/other")


async def test_each_lease_of_a_request_is_found_by_what_it_is_for(limiter: RateLimiter) -> None:
    """The innermost alone, and all of them by their resources."""
    app = app_of(limiter, rules=[Rule("/*", **{**TEN, "resource": "all"})])

    @app.get("/")
    async def endpoint(lease: Held, request: Request) -> list[str]:
        assert request.state.lease is lease is request.state.leases["api"]
        await request.state.leases["all"].adjust(tpm=3)
        return list(request.state.leases)

    assert (await get(app, "/")).body == b'["all","api"]'
    assert await used(limiter, resource="all") == {"rpm": 10, "tpm": 3}
    assert await used(limiter) == {"rpm": 10, "tpm": 0}


async def test_several_limits_of_a_request(limiter: RateLimiter) -> None:
    """A rule, a router and a route: headers tell each limit once, and a refusal gives all of it back."""
    app = app_of(limiter, rules=[Rule("/v1/*", "all", {"rpm": 30}, entity="everybody", limits=[RPM])])
    router = APIRouter(prefix="/v1", dependencies=[Depends(limit(**{**TEN, "resource": "router"}))])

    @router.get("/x")
    async def endpoint(_: Held, again: Held) -> int:
        return again.consumed["rpm"]

    app.include_router(router)
    reply = await get(app, "/v1/x")
    assert (reply.status, reply.body, reply.left()) == (200, b"10", 70)
    for _ in range(2):
        assert (await get(app, "/v1/x", key="key-2")).status == 200
    refused = await get(app, "/v1/x")
    assert (refused.status, refused.problem["violated-policies"]) == (429, ["rpm"])
    assert [name for name, _ in refused._start["headers"]].count(b"ratelimit") == 1
    for entity_id, resource in [("key-1", "router"), ("key-1", "api"), ("everybody", "all")]:
        spent = await used(limiter, entity_id, resource)
        assert spent["rpm"] == (90 if resource == "all" else 10)

    @router.get("/y", dependencies=[Depends(limit(**{**TEN, "cost": lambda _: {"rpm": 101}}))])
    async def impossible() -> None: ...

    app.include_router(router, prefix="/2")
    assert (await get(app, "/2/v1/y")).status == 429
    assert (await used(limiter, resource="router"))["rpm"] == 10


@pytest.mark.parametrize("how", ["raises", "answers 500", "answers 404", "is refused more"])
async def test_how_an_endpoint_fails(limiter: RateLimiter, how: str) -> None:
    """What failed is given back; what was answered is paid."""
    app = app_of(limiter)

    @app.get("/")
    async def endpoint(lease: Held) -> None:
        if how == "raises":
            raise ValueError("x")
        if how == "is refused more":
            await lease.consume(tpm=5_000)
        raise HTTPException(int(how[-3:]))

    if how == "raises":
        with pytest.raises(ValueError, match="x"):
            await get(app, "/")
    else:
        reply = await get(app, "/")
        assert reply.status == (429 if how == "is refused more" else int(how[-3:]))
    assert (await used(limiter))["rpm"] == (10 if how == "answers 404" else 0)


async def test_decorated_endpoints(limiter: RateLimiter) -> None:
    """Of every kind; their own parameters stay what they were, and so does the document."""
    app = app_of(limiter)
    decorated = limited(**{**TEN, "cost": {"rpm": 1}})

    @app.get("/async/{number}")
    @decorated
    async def awaited(number: int, more: int = 1) -> int:
        return number + more + Lease.current().consumed["rpm"]

    @app.get("/sync/{number}")
    @decorated
    @limited(**{**TEN, "resource": "more"})
    def called(number: int, lease: Held) -> int:
        from_thread.run(lease.adjust, {"tpm": 5})
        return number + Lease.current().consumed["rpm"]

    @app.get("/items")
    @decorated
    async def items() -> AsyncIterator[int]:
        yield 1
        yield Lease.current().consumed["rpm"]

    @app.get("/listed")
    @decorated
    def listed() -> Iterator[int]:
        yield 1

    assert (await get(app, "/async/3", query_string=b"more=4")).body == b"8"
    assert (await get(app, "/sync/3")).body == b"4"  # the last of its leases is current
    assert await used(limiter) == {"rpm": 12, "tpm": 5}
    assert (await get(app, "/sync/x")).status == 422
    assert (await get(app, "/items")).body == b"1\n1\n"
    assert (await get(app, "/listed")).body == b"1\n"
    parameters = app.openapi()["paths"]["/async/{number}"]["get"]["parameters"]
    assert [one["name"] for one in parameters] == ["number", "more"]


async def test_the_body_is_for_both(limiter: RateLimiter) -> None:
    """A cost is read from the body before FastAPI reads it, and after; a form is gone by then."""

    async def cost(request: Any) -> dict[str, int]:
        return {"rpm": (await request.json(limit_bytes=20))["n"]}

    app, costs = app_of(limiter), limit(**{**TEN, "cost": cost})

    @app.post("/before", dependencies=[Depends(costs)])
    async def before(request: Request) -> Any:
        return await request.json()

    @app.post("/after", dependencies=[Depends(costs)])
    async def after(body: dict[str, int]) -> Any:
        return body

    async def read(request: Request) -> None:  # as FastAPI does with a form
        assert [chunk async for chunk in request.stream()]

    @app.post("/form", dependencies=[Depends(read), Depends(costs)])
    async def form() -> None: ...

    json, sent = (
        {"x-api-key": "key-1", "content-type": "application/json"},
        {"type": "http.request", "body": b'{"n":7}'},
    )
    for path in ("/before", "/after"):
        reply = await call(app, http_scope(path, "POST", json), [sent])
        assert (reply.status, reply.body) == (200, b'{"n":7}')
        large = await call(app, http_scope(path, "POST", json), [{**sent, "body": b'{"n":7}' + b" " * 30}])
        assert large.status == 413
    assert (await used(limiter))["rpm"] == 14
    left = await call(app, http_scope("/before", "POST", json), [{"type": "http.disconnect"}])
    assert left.status == 400
    with pytest.raises(RuntimeError, match="the body of a form"):
        await call(app, http_scope("/form", "POST", json), [sent])
    assert (await used(limiter))["rpm"] == 14


async def test_the_entity_of_a_file(limiter: RateLimiter, tmp_path: Path) -> None:
    """Counts for endpoints that do not name one, as it does for rules."""
    file = tmp_path / "rules.json"
    file.write_text('{"entity": {"id": "from-the-file"}, "rules": {}}')
    app = FastAPI()
    RouteLimits(app, limiter=limiter, rules=Rules.from_file(file))
    app.get("/x", dependencies=[Depends(limit("extra", limits=[RPM]))])(lambda: "x")
    assert (await get(app, "/x")).status == 200
    assert await limiter.available("from-the-file", "extra", [RPM]) == {"rpm": 99}


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_handler_of_ones_own_wins(limiter: RateLimiter, is_first: bool) -> None:
    """Whether it was there before the limits or not."""

    async def mine(*_: Any) -> Response:
        return Response("mine", 418)

    app = FastAPI(exception_handlers={RateLimitExceeded: mine} if is_first else {})
    RouteLimits(app, limiter=limiter, entity="key-1")
    if not is_first:
        app.add_exception_handler(RateLimitExceeded, mine)
    app.get("/x", dependencies=[Depends(limit("tight", lambda _: {"rpm": 101}, limits=[RPM]))])(lambda: "x")
    assert (await get(app, "/x")).status == 418


async def test_applications_that_are_mounted(limiter: RateLimiter) -> None:
    """They need the same limits; without any, the first request tells so."""
    app, mounted, bare = FastAPI(), FastAPI(), FastAPI()
    limits = RouteLimits(app, limiter=limiter)
    limits.init_app(mounted)
    for one in (mounted, bare):
        one.add_api_route("/x", lambda: "x", dependencies=[Depends(limit(**{**TEN, "cost": {"rpm": 60}}))])
    app.mount("/mounted", mounted)
    app.mount("/bare", bare)
    assert [(await get(app, "/mounted/x")).status for _ in range(2)] == [200, 429]
    for other in (app, bare):
        with pytest.raises(RuntimeError, match=r"limits.init_app\(mounted\)"):
            await get(other, "/bare/x" if other is app else "/x")
    assert (await used(limiter))["rpm"] == 60


async def test_a_store_that_is_down(limiter: RateLimiter, faulty: FaultyBackend) -> None:
    """503, or admitted without headers, as the route says."""
    app = app_of(limiter)
    for how in ("block", "allow"):
        told: Any = {**TEN, "on_unavailable": how}
        app.add_api_route(f"/{how}", lambda: "x", dependencies=[Depends(limit(**told))])
    faulty.always = Fault.UNREACHABLE
    blocked, allowed = await get(app, "/block"), await get(app, "/allow")
    faulty.always = None
    assert (blocked.status, blocked.problem["type"].partition("#")[2]) == (503, "temporary-reduced-capacity")
    assert (allowed.status, "ratelimit" in allowed.headers) == (200, False)


async def test_the_document(limiter: RateLimiter) -> None:
    """Operations that can be refused say so, and no others; nothing else is in it."""
    rules = [Rule("/ruled/{name}", **TEN), Rule("/ruled/*", exempt=True)]
    app = app_of(limiter, rules=rules)
    plain = FastAPI()
    own: Any = {429: {"description": "mine"}}
    for one in (app, plain):
        given = [Depends(limit(**TEN))] if one is app else []
        one.add_api_route("/limited", lambda: "x", dependencies=given)
        one.add_api_route("/limited", lambda: "x", dependencies=given, methods=["POST"])
        one.add_api_route("/own", lambda: "x", dependencies=given, responses=own)
        one.add_api_route("/ruled/{x}", lambda: "x")
        one.add_api_route("/free", lambda: "x")
    found, without = app.openapi(), plain.openapi()
    assert app.openapi() == found
    seen = {path: set(methods["get"]["responses"]) for path, methods in found["paths"].items()}
    both = {"200", "429", "503"}
    assert seen == {"/limited": both, "/own": both, "/ruled/{x}": both, "/free": {"200"}}
    assert found["paths"]["/own"]["get"]["responses"]["429"] == {"description": "mine"}
    problem = found["paths"]["/limited"]["post"]["responses"]["429"]["content"]["application/problem+json"]
    assert set((await get(app, "/limited", key=None, method="GET")).problem) <= set(
        problem["schema"]["properties"]
    )
    for operations in found["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("503", None)
            if operation["responses"].get("429") != {"description": "mine"}:
                operation["responses"].pop("429", None)
    found.pop("components", None)
    assert found == without


async def test_websockets_are_limited_by_rules(limiter: RateLimiter) -> None:
    """A dependency says so."""
    app = app_of(limiter)

    @app.websocket("/")
    async def endpoint(_: WebSocket, __: Held) -> None: ...

    scope = {**http_scope("/"), "type": "websocket", "subprotocols": []}
    with pytest.raises(RuntimeError, match="limited by a rule"):
        await call(app, scope, [{"type": "websocket.connect"}])


async def test_nobody_learns_an_id(limiter: RateLimiter) -> None:
    """Neither who was admitted nor who was refused, nor anybody else."""
    await limiter.create_entity("the-parent")
    await limiter.create_entity("the-child", parent_id="the-parent", cascade=True)
    app = app_of(limiter)
    app.add_api_route("/", lambda: "x", dependencies=[Depends(limit(**{**TEN, "cost": {"rpm": 60}}))])
    replies = [await get(app, "/", key="the-child") for _ in range(2)]
    assert [reply.status for reply in replies] == [200, 429]
    for reply in replies:
        told = repr(reply.messages)
        assert not [
            word for word in ("the-parent", "the-child", limiter.repository.namespace_id) if word in told
        ]


def streaming(limiter: Any, gate: asyncio.Event, ended: list[str]) -> FastAPI:
    app = FastAPI()
    RouteLimits(app, limiter=limiter)
    seat = Limit.concurrent("parallel", 1, hold="1h")
    metered: Any = {**TEN, "limits": [*LIMITS, seat], "cost": {"rpm": 10, "parallel": 1}, "usage": Bytes}

    async def chunks() -> AsyncIterator[bytes]:
        try:
            for _ in range(3):
                yield b"12345"
                await gate.wait()
        finally:
            ended.append("stream")

    @app.get("/stream", dependencies=[Depends(limit(**metered))])
    async def stream() -> StreamingResponse:
        return StreamingResponse(chunks())

    @app.get("/after", dependencies=[Depends(limit(**{**metered, "usage": None}))])
    async def after(tasks: BackgroundTasks) -> str:
        async def task() -> None:
            await gate.wait()
            await Lease.current().adjust(tpm=100)
            ended.append("task")

        tasks.add_task(task)
        return "x"

    return app


async def test_streams_and_tasks_on_a_server(limiter: RateLimiter) -> None:
    """The lease is held to the end of the stream, and of the task; who hangs up pays what was sent."""
    gate, ended = asyncio.Event(), list[str]()
    kind = "uvicorn h11"
    key = {"x-api-key": "key-1"}

    app = streaming(limiter, gate, ended)
    async with serving(kind, app) as url, client_of(kind) as client, Streams(kind, url) as streams:
        async with aclosing(streams.read("/stream", key)) as chunks:
            assert await anext(chunks) == b"12345"
            assert (await client.get(f"{url}/stream", headers=key)).status_code == 429
        await until(lambda: ended == ["stream"])
        gate.set()
        assert (await client.get(f"{url}/stream", headers=key)).content == b"12345" * 3
        gate.clear()
        async with client.stream("GET", f"{url}/after", headers=key) as response:
            assert response.status_code == 200
            assert (await client.get(f"{url}/after", headers=key)).status_code == 429
            gate.set()
        await until(lambda: len(ended) == 3)
    spent = await used(limiter)
    assert spent == {"rpm": 30, "tpm": 5 + 15 + 100}


def test_without_fastapi() -> None:
    """What to install is said."""
    program = "import sys; sys.modules['fastapi'] = None; import zae_limiter.web.fastapi"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, "install this package with its extra: fastapi" in ran.stderr) == (1, True)


@pytest.mark.parametrize("included", [False, True])
async def test_a_limit_above_its_route(limiter: RateLimiter, included: bool) -> None:
    """It would limit nothing, so the application does not start; what is limited somewhere else may be."""
    app, router = app_of(limiter), APIRouter()

    async def endpoint() -> None: ...

    (router if included else app).get("/x")(endpoint)
    above = limited(**TEN)(endpoint)
    app.include_router(router)
    with pytest.raises(RuntimeError, match=r"'endpoint' is not limited: .* under the decorator of the route"):
        await get(app, "/x")
    app.get("/y")(above)
    assert [(await get(app, path)).headers.get("ratelimit") is None for path in ("/x", "/y")] == [True, False]


async def test_an_endpoint_finds_the_limiter() -> None:
    """Where the limits are, from the start of the application on."""
    app = FastAPI()
    limits = RouteLimits(app, limiter=RateLimiter.open("memory://"), entity="key-1")
    with pytest.raises(RuntimeError, match="when the application starts"):
        _ = limits.limiter

    @app.get("/left")
    async def left(_: Held) -> dict[str, int]:
        return await limits.limiter.available("key-1", "api", [RPM])

    assert (await get(app, "/left")).body == b'{"rpm":90}'
