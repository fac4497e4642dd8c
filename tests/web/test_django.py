"""Limits in Django: the middleware and the decorator, where Django blocks and where it awaits."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path, re_path
from django.utils.decorators import method_decorator, sync_and_async_middleware
from django.views import View

from tests.web.limits import Bytes
from tests.web.servers import Streams, client_of, serving, until
from zae_limiter import Lease, Limit, RateLimiter, SyncLease, SyncRateLimiter, ValidationError
from zae_limiter.testing import ManualClock
from zae_limiter.web import Answers, Rule, api_key, claim
from zae_limiter.web.django import DjangoRateLimitMiddleware, limited

RPM, TPM = Limit.per_minute("rpm", 100), Limit.per_day("tpm", 1_000)
SEAT = Limit.concurrent("parallel", 1, hold="1h")
LIMITS = [RPM, TPM]
TEN: Any = {"resource": "api", "cost": {"rpm": 10}, "entity": api_key(), "limits": LIMITS}
KEY = {"x-api-key": "key-1"}
MIDDLEWARE = "zae_limiter.web.django.DjangoRateLimitMiddleware"
KNOWS = "tests.web.test_django.knows"
SYNC_ONLY = "tests.web.test_django.OnlyBlocks"


METERED: Any = {**TEN, "limits": [*LIMITS, SEAT], "cost": {"rpm": 10, "parallel": 1}, "usage": Bytes}
gate, ended = asyncio.Event(), list[str]()


class OnlyBlocks:
    """A middleware of an older kind: whatever is before it blocks."""

    sync_capable, async_capable = True, False

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        return self.get_response(request)


@sync_and_async_middleware
def knows(get_response: Any) -> Any:
    """An authentication in front of the limits, in the colour of what is behind it."""

    def known(request: Any) -> Any:
        request.claims = {"sub": request.headers.get("x-api-key", "")}
        return get_response(request)

    async def aknown(request: Any) -> Any:
        request.claims = {"sub": request.headers.get("x-api-key", "")}
        return await get_response(request)

    return aknown if iscoroutinefunction(get_response) else known


def current(request: Any) -> Any:
    kind = Lease if isinstance(request.lease, Lease) else SyncLease
    assert kind.current() is request.lease
    assert any(lease is request.lease for lease in request.leases.values())
    return request.lease


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"plain {current(request).consumed['rpm']}")


async def awaited(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"awaited {current(request).consumed['rpm']}")


def failing(request: Any, how: str) -> HttpResponse:
    if how == "raises":
        raise ValueError("x")
    if how == "missing":
        raise Http404
    if how == "more":
        lease = current(request)
        (async_to_sync(lease.consume) if isinstance(lease, Lease) else lease.consume)(tpm=5_000)
    return HttpResponse(status=500)


async def afailing(request: Any, how: str) -> HttpResponse:
    if how == "more" and isinstance(request.lease, Lease):
        await request.lease.consume(tpm=5_000)
    return failing(request, how)


def chunks() -> Iterator[bytes]:
    for _ in range(3):
        yield b"12345"


async def achunks() -> AsyncIterator[bytes]:
    try:
        for _ in range(3):
            yield b"12345"
            await gate.wait()
    finally:
        ended.append("stream")


def broken() -> Iterator[bytes]:
    yield from ()
    raise ValueError("broken")


async def abroken() -> AsyncIterator[bytes]:
    for _ in ():
        yield b""
    raise ValueError("broken")


STREAMS = {"plain": chunks, "awaited": achunks, "broken": broken, "abroken": abroken}


def stream(_: HttpRequest, kind: str) -> StreamingHttpResponse:
    return StreamingHttpResponse(STREAMS[kind]())


async def astream(request: HttpRequest, kind: str) -> StreamingHttpResponse:
    return stream(request, kind)


class Blocking(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return plain(request)


class Awaiting(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return await awaited(request)


@limited(**TEN)
class Decorated(Blocking): ...


@limited(**TEN)
class DecoratedAwaiting(Awaiting): ...


@method_decorator(limited(**TEN), name="dispatch")
class Method(Blocking): ...


@method_decorator(limited(**TEN), name="dispatch")
class MethodAwaiting(Awaiting): ...


class OneMethod(View):
    @method_decorator(limited(**TEN))
    async def get(self, request: HttpRequest) -> HttpResponse:
        return await awaited(request)


def template(_: HttpRequest) -> TemplateResponse:
    return TemplateResponse(_, engines["django"].from_string("12345"))


decorated = limited(**TEN)
VIEWS = {
    "plain": decorated(plain),
    "awaited": decorated(awaited),
    "class": Decorated.as_view(),
    "class-awaited": DecoratedAwaiting.as_view(),
    "method": Method.as_view(),
    "method-awaited": MethodAwaiting.as_view(),
    "one-method": OneMethod.as_view(),
}
urlpatterns = [
    *(path(name, view) for name, view in VIEWS.items()),
    path("ruled/plain", plain),
    path("ruled/awaited", awaited),
    path("free", lambda _: HttpResponse("free")),
    path("failing/<how>", decorated(failing)),
    path("afailing/<how>", decorated(afailing)),
    path(
        "named/<int:number>",
        limited("number-{number}", limits=LIMITS)(lambda _, number: HttpResponse(number)),
    ),
    path("stream/<kind>", limited(**METERED)(stream)),
    path("astream/<kind>", limited(**METERED)(astream)),
    path("template", limited(**METERED)(template)),
    path("body", lambda request: JsonResponse(json.loads(request.body))),
    re_path("positional/(.*)", limited("number-{number}", limits=LIMITS)(plain)),
]


@pytest.fixture(scope="module", autouse=True)
def _site() -> None:
    if not settings.configured:
        settings.configure(
            ROOT_URLCONF="tests.web.test_django",
            ALLOWED_HOSTS=["*"],
            SECRET_KEY="x",
            TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
            LOGGING_CONFIG=None,
        )
        django.setup()


class Site:
    """Django as a client sees it: blocking, awaiting, or awaiting with a middleware inside that blocks."""

    def __init__(self, how: str, limiter: RateLimiter, sync_limiter: SyncRateLimiter, runner: Any) -> None:
        self.how, self._runner = how, runner
        self.is_async = how == "awaits"
        self.limiter: Any = limiter if self.is_async else sync_limiter
        self._client: Any = (Client if how == "blocks" else AsyncClient)(raise_request_exception=False)

    def settings(self, **said: Any) -> Any:
        middleware = [KNOWS, MIDDLEWARE, *([SYNC_ONLY] if self.how == "awaits what blocks" else [])]
        return override_settings(MIDDLEWARE=middleware, ZAE_LIMITER={"limiter": self.limiter, **said})

    def ask(self, url: str, headers: dict[str, str] | None = None, method: str = "get", **more: Any) -> Any:
        ask = getattr(self._client, method)
        made = ask(url, headers=KEY if headers is None else headers, **more)
        return made if self.how == "blocks" else self._runner.run(made)

    def used(self, entity_id: str = "key-1", resource: str = "api") -> dict[str, int]:
        found = self.limiter.available(entity_id, resource, LIMITS)
        left = self._runner.run(found) if self.is_async else found
        return {one.name: one.capacity - left[one.name] for one in LIMITS}


@pytest.fixture(params=["blocks", "awaits", "awaits what blocks"])
def site(request: Any, limiter: RateLimiter, sync_limiter: SyncRateLimiter, runner: Any) -> Site:
    return Site(request.param, limiter, sync_limiter, runner)


def test_rules(site: Site, clock: ManualClock) -> None:
    """Admitted with headers, refused with the middleware's answer, for views of both kinds."""
    with site.settings(rules=[Rule("/ruled/*", **{**TEN, "cost": {"rpm": 30}})]):
        kinds = [site.ask(f"/ruled/{kind}") for kind in ("plain", "awaited", "plain", "awaited")]
        assert [(one.status_code, one.content) for one in kinds[:3]] == [
            (200, b"plain 30"),
            (200, b"awaited 30"),
            (200, b"plain 30"),
        ]
        assert kinds[0].headers["ratelimit"] == '"rpm";r=70;t=42, "tpm";r=1000;t=86400'
        assert (kinds[3].status_code, kinds[3].headers["content-type"]) == (429, "application/problem+json")
        assert json.loads(kinds[3].content)["violated-policies"] == ["rpm"]
        assert site.ask("/ruled/plain", method="head").content == b""
        assert site.ask("/ruled/plain", {}).status_code == 401
        assert site.ask("/ruled/nowhere", {"x-api-key": "other"}).status_code == 404
        assert "ratelimit" not in site.ask("/free").headers
        clock.now_ms += int(kinds[3].headers["retry-after-ms"]) - 1
        assert site.ask("/ruled/plain").status_code == 429
        clock.now_ms += 1
        assert site.ask("/ruled/plain").status_code == 200


@pytest.mark.parametrize("name", VIEWS)
def test_decorated_views(site: Site, name: str) -> None:
    """Functions and classes, plain and async, beside a rule; a refusal gives all of it back."""
    rules = [Rule("/*", "all", {"rpm": 8}, entity="everybody", limits=[RPM])]
    with site.settings(rules=rules):
        replies = [site.ask(f"/{name}") for _ in range(11)]
    assert [one.status_code for one in replies] == [200] * 10 + [429]
    assert replies[0].content in (b"plain 10", b"awaited 10")
    assert [one.headers["ratelimit"].split(";")[1] for one in replies[:2]] == ["r=90", "r=80"]
    assert (site.used()["rpm"], site.used("everybody", "all")["rpm"]) == (100, 80)


@pytest.mark.parametrize("prefix", ["", "a"])
def test_how_a_view_fails(site: Site, prefix: str) -> None:
    """What failed is given back, what was answered is paid."""
    with site.settings():
        statuses = [site.ask(f"/{prefix}failing/{how}").status_code for how in ("raises", "error", "more")]
        assert (statuses, site.used()) == ([500, 500, 429], {"rpm": 0, "tpm": 0})
        assert (site.ask(f"/{prefix}failing/missing").status_code, site.used()["rpm"]) == (404, 10)


def test_names_of_the_route(site: Site) -> None:
    """They name the resource; what the route does not have is told."""
    with site.settings(entity=api_key()):
        assert site.ask("/named/7").content == b"7"
        assert site.used(resource="number-7") == {"rpm": 1, "tpm": 1}
        assert site.ask("/positional/7").status_code == 500


def test_streams(site: Site) -> None:
    """The lease is held to the last chunk, and the meter reads them all; a broken one costs nothing."""
    gate.set()

    def read(reply: Any) -> bytes:
        if not reply.is_async:
            return b"".join(reply.streaming_content)

        async def joined() -> bytes:
            return b"".join([chunk async for chunk in reply.streaming_content])

        found: bytes = site._runner.run(joined())
        return found

    own = "awaited" if site.is_async else "plain"
    with site.settings():
        reply = site.ask(f"/astream/{own}")
        assert (reply.status_code, site.ask(f"/stream/{own}").status_code) == (200, 429)
        assert (read(reply), site.used()) == (b"12345" * 3, {"rpm": 10, "tpm": 15})
        reply = site.ask(f"/stream/{'abroken' if site.is_async else 'broken'}")
        with pytest.raises(ValueError, match="broken"):
            read(reply)
        assert site.used() == {"rpm": 10, "tpm": 15}
        assert site.ask("/template").content == b"12345"
        assert site.used() == {"rpm": 20, "tpm": 20}


def test_what_a_cost_may_ask(site: Site) -> None:
    """The body, which the view reads again; what an earlier middleware knows; and the request itself."""

    def cost(request: Any) -> Any:
        assert (request.scheme, request.original.path, request.client_host) == ("http", "/body", "127.0.0.1")
        return acost(request) if site.is_async else {"rpm": request.json(limit_bytes=20)["n"]}

    async def acost(request: Any) -> dict[str, int]:
        return {"rpm": (await request.json(limit_bytes=20))["n"]}

    rules = [Rule("/body", "api", cost, entity=claim("sub"), limits=LIMITS)]
    given: Any = {"method": "post", "content_type": "application/json"}
    with site.settings(rules=rules):
        assert json.loads(site.ask("/body", data='{"n": 7}', **given).content) == {"n": 7}
        assert site.ask("/body", data="x" * 30, **given).status_code == 413
        assert site.ask("/body", data="x", **given).status_code == 400
        with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=3):
            assert site.ask("/body", data='{"n": 7}', **given).status_code == 413
    assert site.used()["rpm"] == 7


def test_an_answer_that_cannot_be_given(site: Site) -> None:
    """The site answers 500, and nothing is held for it any more."""

    class Broken(Answers):
        def of_lease(self, *_: Any) -> Any:
            raise ValueError("broken")

    rules = [Rule("/ruled/*", **{**METERED, "usage": None})]
    kept = []
    with site.settings(rules=rules, answers=Broken()):
        for _ in range(2):
            kept.append(site.ask("/ruled/plain"))
            assert kept[-1].status_code == 500
    assert site.used()["rpm"] == 0


def test_nobody_learns_an_id(site: Site) -> None:
    """Neither of who asked nor of a parent."""
    for name, parent in (("the-parent", None), ("the-child", "the-parent")):
        made = site.limiter.create_entity(name, parent_id=parent, cascade=parent is not None)
        site._runner.run(made) if site.is_async else None
    with site.settings(rules=[Rule("/ruled/*", **{**TEN, "cost": {"rpm": 60}})]):
        replies = [site.ask("/ruled/plain", {"x-api-key": "the-child"}) for _ in range(2)]
    assert [one.status_code for one in replies] == [200, 429]
    told = "".join(repr(one.headers) + one.content.decode() for one in replies)
    assert not [word for word in ("the-parent", "the-child") if word in told]


def test_settings(tmp_path: Any, limiter: RateLimiter, sync_limiter: SyncRateLimiter) -> None:
    """A URL opens what is needed; files have rules; what is wrong is told when the site starts."""
    rules = tmp_path / "rules.json"
    limits = {"rpm": {"capacity": 1}}
    rules.write_text(
        json.dumps({"rules": {"/ruled/*": {"resource": "api", "cost": {"rpm": 1}, "limits": limits}}})
    )
    said = {"limiter": f"sqlite:///{tmp_path}/limits.db", "rules": str(rules), "entity": "everybody"}
    with override_settings(MIDDLEWARE=[MIDDLEWARE], ZAE_LIMITER=said):
        assert [Client().get("/ruled/plain").status_code for _ in range(2)] == [200, 429]

        async def asked() -> int:
            return int((await AsyncClient().get("/ruled/plain")).status_code)

        assert asyncio.run(asked()) == 429
    for wrong, match in [
        ({}, "write {'limiter'"),
        ({"limiter": limiter}, "pass a SyncRateLimiter"),
        ({"limiter": sync_limiter, "rule": []}, "it has limiter, rules, answers, entity"),
    ]:
        with override_settings(ZAE_LIMITER=wrong), pytest.raises(ValidationError, match=match):
            DjangoRateLimitMiddleware(lambda _: None)
    where = {"limiter": "tests.web.test_django.opened"}
    with override_settings(MIDDLEWARE=[MIDDLEWARE], ZAE_LIMITER=where):
        assert Client().get("/plain", headers=KEY).status_code == 200
    with pytest.raises(RuntimeError, match="to MIDDLEWARE"):
        VIEWS["plain"](RequestFactory().get("/plain"))


def opened() -> SyncRateLimiter:
    return SyncRateLimiter.open("memory://")


async def test_streams_on_a_server(limiter: RateLimiter) -> None:
    """Who hangs up pays what was sent and gives the seat back; a stream that breaks, and a slow view."""
    gate.clear()
    ended.clear()
    available = limiter.available
    kind = "uvicorn h11"
    with override_settings(MIDDLEWARE=[MIDDLEWARE], ZAE_LIMITER={"limiter": limiter}):

        class WithLife:
            app = get_asgi_application()

            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                if scope["type"] == "http":
                    await self.app(scope, receive, send)
                    return
                for word in ("startup", "shutdown"):
                    await receive()
                    await send({"type": f"lifespan.{word}.complete"})

        async with serving(kind, WithLife()) as url, client_of(kind) as client, Streams(kind, url) as streams:
            async with aclosing(streams.read("/astream/awaited", KEY)) as read:
                assert await anext(read) == b"12345"
                assert (await client.get(f"{url}/astream/awaited", headers=KEY)).status_code == 429
            await until(lambda: ended == ["stream"])

            async def free() -> None:
                while (await available("key-1", "api", [*LIMITS, SEAT]))["parallel"] != 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)

            await asyncio.wait_for(free(), 600)
            gate.set()
            for name in ("astream/awaited", "stream/awaited"):
                assert (await client.get(f"{url}/{name}", headers=KEY)).content == b"12345" * 3
                await asyncio.wait_for(free(), 600)
    left = await available("key-1", "api", [*LIMITS, SEAT])
    assert left == {"rpm": 70, "tpm": 1_000 - 5 - 30, "parallel": 1}


def test_without_django() -> None:
    """What to install is said."""
    program = "import sys; sys.modules['django'] = None; import zae_limiter.web.django"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, "install this package with its extra: django" in ran.stderr) == (1, True)
