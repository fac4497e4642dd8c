"""Which rule a request falls under, and that no spelling of a path leads around it."""

import itertools
import re
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from flask import Flask
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse
from starlette.routing import Match as RouteMatch
from starlette.routing import Mount, Route
from werkzeug.exceptions import HTTPException

from tests.web.calls import call, get, http_scope
from zae_limiter import Limit, RateLimiter, ValidationError
from zae_limiter.llm import UsageMeter
from zae_limiter.web import RateLimitMiddleware, Request, RequestRefused, Rule, Rules, SyncRequest, bearer

COST = {"rpm": 1}
SIX = Limit.per_minute("rpm", 6)


def rule(path: str, **more: Any) -> Rule:
    return Rule(path, "api", COST, entity="key", **more)


def found(rules: list[Rule], path: str, method: str = "GET") -> str | None:
    match = Rules(rules).match(method, path)
    return None if match is None else match.rule.path


@pytest.mark.parametrize(
    ("path", "fits"),
    [
        ("/v1/chat", True), ("/v1/chat/", True), ("/v1/chat//", True), ("/v1/chat\n", True),
        ("//v1/chat", True), ("/v1//chat", True), ("/v1/./chat", True), ("/v1/x/../chat", True),
        ("/v1/chat/.", True), ("/v1/chat/x/..", True),
        ("/v1/chats", False), ("/v1/chat/x", False), ("/V1/chat", False), ("/v1", False), ("/", False),
    ],
)  # fmt: skip
def test_an_exact_path(path: str, fits: bool) -> None:
    """With slashes, dots and line ends that an application may overlook, but nothing else."""
    assert found([rule("/v1/chat")], path) == ("/v1/chat" if fits else None)
    assert found([rule("/v1/chat/")], path) == ("/v1/chat/" if fits else None)


def test_a_prefix() -> None:
    """All below it, and itself; a star alone is everything."""
    rules = [rule("/v1/*")]
    assert [found(rules, path) for path in ("/v1", "/v1/", "/v1/a/b", "/v10")] == [*["/v1/*"] * 3, None]
    assert {found([rule("/*")], path) for path in ("/", "/a", "//", "/a/b/")} == {"/*"}


def test_a_whole_url() -> None:
    """As the target of a request may be one, which some servers hand on as the path: it is never exempt."""
    rules = [Rule("/health", exempt=True), rule("/v1/*"), rule("/*")]
    for origin in ("http://host", "HTTPS://user@host:80", "http://"):
        paths = ("/v1/x", "/x", "", "/health", "/v1/x\n")
        assert [found(rules, origin + path) for path in paths] == ["/v1/*", "/*", "/*", "/*", "/v1/*"]
        assert found([rule("/v1/*")], f"{origin}/x") is None


def test_names_in_a_path() -> None:
    """Each stands for one segment, and may be used in the resource."""
    rules = Rules([Rule("/v1/{model}/chat", "model-{model}", COST, entity="key")])
    match = rules.match("GET", "/v1/gpt-4/chat/")
    assert match is not None
    assert match.names == {"model": "gpt-4"}
    assert match.rule.named_resource(match.names) == "model-gpt-4"
    assert rules.match("GET", "/v1/a/b/chat") is None
    below = Rules([rule("/{tenant}/files/*")])
    assert [below.match("GET", path) is not None for path in ("/t/files", "/t/files/a/b", "/t/file")] == [
        *(True, True, False)
    ]


def test_the_first_rule_wins() -> None:
    """In the order in which they are written."""
    rules = [rule("/v1/chat"), rule("/v1/*"), rule("/*")]
    assert [found(rules, path) for path in ("/v1/chat", "/v1/x", "/x")] == ["/v1/chat", "/v1/*", "/*"]
    assert found(rules[::-1], "/v1/chat") == "/*"


def test_methods() -> None:
    """Only those that are named; where GET is limited, HEAD is no way around it."""
    rules = [rule("/a", methods=["get"]), rule("/b", methods=["POST"])]
    assert [found(rules, "/a", method) for method in ("GET", "HEAD", "POST")] == ["/a", "/a", None]
    assert [found(rules, "/b", method) for method in ("GET", "POST")] == [None, "/b"]


def test_exempt_is_read_to_the_letter() -> None:
    """What is not exactly what was exempted is limited."""
    rules = [Rule("/health", exempt=True), Rule("/static/*", exempt=True), rule("/*")]
    assert [found(rules, path) for path in ("/health", "/static/a.css")] == [None, None]
    for path in ("/health/", "/health\n", "//health", "/static", "/static/../v1", "/x/../health", "/Health"):
        assert found(rules, path) == "/*", path


def test_dots_behind_slashes() -> None:
    """Flask overlooks the slashes at the beginning, and takes the dots for a name."""
    assert found([rule("/v1/{model}/chat")], "//v1/../chat") == "/v1/{model}/chat"


def test_two_readings_are_refused() -> None:
    """A path that falls under one rule as it is, and under another as it is meant."""
    rules = [rule("/cheap/*"), rule("/dear/*")]
    with pytest.raises(RequestRefused, match="two ways"):
        found(rules, "/cheap/../dear/x")
    assert found(rules, "/cheap/http://x") == "/cheap/*"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"path": "v1"}, "begin with a slash"),
    ({"path": "/v1//x"}, "empty and dotted"),
    ({"path": "/v1/../x"}, "empty and dotted"),
    ({"path": "/v1?x=1"}, "query"),
    ({"path": "/v1/*/x"}, "a star only the last one"),
    ({"path": "/v1/a{b}"}, "a whole segment"),
    ({"path": "/{a}/{a}"}, "given twice"),
    ({"path": "/x", "resource": "m-{model}"}, "has no name 'model'"),
    ({"path": "/x", "resource": 7}, "pass a name"),
    ({"path": "/x", "resource": "a#b"}, "'#' is reserved"),
    ({"path": "/x", "cost": None}, "pass amounts by limit"),
    ({"path": "/x", "entity": bearer}, "call it"),
    ({"path": "/x", "cost": {"rpm": -1}}, "at least 0"),
    ({"path": "/x", "cost": 1}, "pass amounts by limit"),
    ({"path": "/x", "cost": {"tpm": 1}, "limits": [SIX]}, "no limit is called 'tpm'; use 'rpm'"),
    ({"path": "/x", "messages": {"tpm": 1}, "limits": [SIX]}, "no limit is called 'tpm'"),
    ({"path": "/x", "cost": {"rpm": 7}, "limits": [SIX]}, "nobody would ever pass: 'rpm' holds 6"),
    ({"path": "/x", "messages": {"rpm": 1.5}}, "whole number"),
    ({"path": "/x", "cost": None, "limits": []}, "at least one"),
    ({"path": "/x", "cost": None, "limits": [Limit.per_month("usd", 5, unit="usd_micro")]}, "counts money"),
    ({"path": "/x", "entity": 5}, "pass an id or a callable"),
    ({"path": "/x", "entity": "$x"}, "reserved"),
    ({"path": "/x", "usage": 5}, "makes a meter"),
    ({"path": "/x", "usage": UsageMeter}, "such as UsageMeter.factory()"),
    ({"path": "/x", "usage": UsageMeter.factory}, "such as UsageMeter.factory()"),
    ({"path": "/x", "usage": lambda _: None}, "of a request, a status and headers"),
    ({"path": "/x", "methods": []}, "at least one"),
    ({"path": "/x", "methods": ["G T"]}, "pass a list such as"),
    ({"path": "/x", "wait": -1}, "0 or more"),
    ({"path": "/x", "on_error": "give"}, "use 'refund'"),
    ({"path": "/x", "on_unavailable": "maybe"}, "use 'allow'"),
    ({"path": "/x", "exempt": True}, "leave out resource, cost"),
    ({"path": "/x", "exempt": "yes"}, "use True or False"),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_a_wrong_rule_is_told(given: dict[str, Any], said: str) -> None:
    """When it is made, with the value and the way out."""
    with pytest.raises(ValidationError, match=re.escape(said)):
        Rule(**{"resource": "api", "cost": COST, **given})


def test_rules_need_somebody() -> None:
    """A rule that nobody can be charged by is found before the first request."""
    with pytest.raises(ValidationError, match="say whose requests they are"):
        Rules([Rule("/x", "api", COST)])
    assert len(Rules([Rule("/x", "api", COST)], entity="key")) == 1
    with pytest.raises(ValidationError, match="pass a list of Rule"):
        Rules(Rule("/x", "api", COST, entity="a"))  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="pass a list of Rule"):
        Rules(["/x"])  # type: ignore[list-item]
    with pytest.raises(ValidationError, match=r"'rules\.yaml': pass a list of Rule, or Rules\.from_"):
        Rules("rules.yaml")  # type: ignore[arg-type]


def test_what_does_not_say_what_it_takes_may_make_meters() -> None:
    """As what is compiled; whether it does is seen at the first response."""
    assert Rule("/x", "api", COST, usage=max).usage is max


def test_what_is_left_out() -> None:
    """One of each limit that is given, and the path as the resource; a connection is free by itself."""
    short = Rule("/v1/{a}/*", limits=[Limit.per_minute("rpm", 6), Limit.concurrent("parallel", 2)])
    assert (short.resource, short.cost) == ("/v1/<a>/*", {"rpm": 1, "parallel": 1})
    assert Rule("/ws", "chat", messages=COST).cost == {}


def test_what_may_be_more_than_a_limit_holds() -> None:
    """What a soft limit counts, and what a schedule holds at another time."""
    for limit in (SIX.softly(), SIX.during("* 9-16 * * *", 60), Limit.per_minute("rpm", 6, burst=7)):
        assert Rule("/x", cost={"rpm": 7}, limits=[limit]).cost == {"rpm": 7}


@pytest.mark.parametrize("is_first", [True, False])
async def test_preflights(limiter: RateLimiter, is_first: bool) -> None:
    """They have no key: the middleware for CORS answers them first, or a rule lets them through to it."""
    asks = {"origin": "https://x", "access-control-request-method": "GET"}
    scope = http_scope("/v1/x", "OPTIONS", asks, query_string=b"")
    rules = [rule("/v1/*", limits=[SIX])]
    whose = [replace(one, entity=lambda _: None) for one in rules]

    def app(rules: list[Rule]) -> Any:
        if is_first:
            inner = RateLimitMiddleware(FastAPI(), limiter=limiter, rules=rules)
            return CORSMiddleware(inner, allow_origins=["https://x"])
        return RateLimitMiddleware(
            CORSMiddleware(FastAPI(), allow_origins=["https://x"]), limiter=limiter, rules=rules
        )

    assert (await call(app(whose), scope)).status == (200 if is_first else 401)
    assert (await call(app([Rule("/*", methods=["OPTIONS"], exempt=True), *whose]), scope)).status == 200


# What frameworks route to an endpoint that is limited is limited, however the path is spelled.

PATHS = ("/v1/chat", "/v1/{model}/chat", "/files/{rest}", "/health")
segments = st.sampled_from(
    ["v1", "chat", "health", "files", "a", ".", "..", "", "%2e%2e", "%2f", "\n", "%0a", "A"]
)
requests = st.lists(segments, max_size=5).map(lambda found: "/" + "/".join(found)) | st.text(
    st.sampled_from("/.v1chatfiles\n%2e"), max_size=12
).map(lambda rest: f"/{rest}")
RULES = Rules(
    [
        Rule("/health", exempt=True),
        rule("/v1/chat"),
        rule("/v1/{model}/chat"),
        rule("/files/*"),
    ]
)


def check(method: str, path: str, rule_path: str) -> None:
    """It falls under the rule of its endpoint, or is refused because it can be read in two ways."""
    try:
        match = RULES.match(method, path)
    except RequestRefused:
        return
    assert match is not None, path
    assert match.rule.path == rule_path, path


def endpoint(request: StarletteRequest) -> PlainTextResponse:
    return PlainTextResponse(request.url.path)


STARLETTE = Starlette(
    routes=[
        Route("/health", endpoint, name="exempt"),
        Route("/v1/chat", endpoint, name="/v1/chat"),
        Route("/v1/{model}/chat", endpoint, name="/v1/{model}/chat"),
        Mount("/files", routes=[Route("/{rest:path}", endpoint)], name="/files/*"),
    ]
)


async def nothing() -> Any:
    raise AssertionError("nobody reads")


def check_starlette(path: str, root: str = "") -> None:
    scope = {"type": "http", "method": "GET", "path": root + unquote(path), "root_path": root, "headers": []}
    for route in STARLETTE.routes:
        matched, _ = route.matches(scope)
        if matched is not RouteMatch.NONE:
            assert isinstance(route, Route | Mount)
            if route.name != "exempt":
                request = Request(scope, nothing)
                check(request.method, request.path, route.name)
            break


@settings(max_examples=200)
@given(requests, st.sampled_from(["", "/api"]))
def test_what_starlette_routes_there_is_limited(path: str, root: str) -> None:
    """Whatever the path: decoded by the server, mounted or not."""
    check_starlette(path, root)


FLASK = Flask(__name__, static_folder=None)
FLASK.add_url_rule("/health", "exempt", strict_slashes=False)
FLASK.add_url_rule("/v1/chat", "/v1/chat", strict_slashes=False)
FLASK.add_url_rule("/v1/<model>/chat", "/v1/{model}/chat", strict_slashes=False)
FLASK.add_url_rule("/files/<path:rest>", "/files/*", strict_slashes=False)
MERGED = Flask("merged", static_folder=None)
MERGED.url_map.merge_slashes = False
for rule_of in FLASK.url_map.iter_rules():
    MERGED.add_url_rule(rule_of.rule, rule_of.endpoint, strict_slashes=False)


def check_flask(path: str, app: Flask, method: str = "GET") -> None:
    environ = {"REQUEST_METHOD": method, "SERVER_NAME": "x", "SERVER_PORT": "80", "wsgi.url_scheme": "http"}
    environ["PATH_INFO"] = unquote(path).encode().decode("latin-1")
    request = SyncRequest(dict(environ))
    with app.request_context({**environ}) as context:
        try:
            adapter = context.url_adapter
            assert adapter is not None
            endpoint_name, _ = adapter.match()
        except HTTPException:  # not there, or somewhere else
            return
    if endpoint_name != "exempt":
        check(request.method, request.path, endpoint_name)


@settings(max_examples=200)
@given(requests, st.sampled_from([FLASK, MERGED]), st.sampled_from(["GET", "get", "HEAD"]))
def test_what_flask_routes_there_is_limited(path: str, app: Flask, method: str) -> None:
    """With slashes merged and without, and slashes at the end that do not matter."""
    check_flask(path, app, method)


def test_every_short_path() -> None:
    """All paths of up to four segments that mean something, or nothing, to somebody."""
    words = ["v1", "chat", "health", "files", "..", ".", ""]
    for count in range(5):
        for one in itertools.product(words, repeat=count):
            for end in ("", "\n"):
                path = f"/{'/'.join(one)}{end}"
                check_starlette(path)
                check_flask(path, FLASK)
                check_flask(path, MERGED)


@pytest.mark.parametrize("wrapped", [False, True])
async def test_what_fastapi_strips_itself_is_limited(limiter: RateLimiter, wrapped: bool) -> None:
    """``FastAPI(root_path=…)`` overrides what the server says, after a middleware around it was asked."""
    reached: list[str] = []
    inner = FastAPI(openapi_url=None)
    inner.root_path = "/api"  # as the argument, which is deprecated, does
    inner.add_api_route("/v1/chat", lambda: reached.append("limited"))
    inner.add_api_route("/api/chat", lambda: reached.append("limited"))
    inner.add_api_route("/health", lambda: reached.append("exempt"))
    limiting = [rule("/v1/chat"), rule("/api/chat")]
    rules = [Rule("/health", exempt=True), *(replace(one, entity=lambda _: None) for one in limiting)]
    app = RateLimitMiddleware(
        CORSMiddleware(inner, allow_origins=["*"]) if wrapped else inner, limiter=limiter, rules=rules
    )
    for count in range(5):
        for one in itertools.product(["api", "v1", "chat", "health", ""], repeat=count):
            path = f"/{'/'.join(one)}"
            for root in ("", "/v1"):
                await get(app, root + path, root_path=root, query_string=b"")
                assert "limited" not in reached, path
    assert set(reached) == {"exempt"}
    assert (await get(app, "/api/health", query_string=b"")).status == 200
    assert (await get(app, "/api/v1/chat", query_string=b"")).status == 401
