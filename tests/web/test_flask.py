"""Limits in Flask: rules, the decorator, streams, and what other extensions see of a refusal."""

import functools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from flask import Flask, Response, abort, g, request
from werkzeug.serving import make_server

from tests.patience import PATIENCE_SECONDS, wait_until
from tests.web.limits import Bytes
from zae_limiter import Limit, RateLimitExceeded, SyncLease, SyncRateLimiter, ValidationError
from zae_limiter.testing import ManualClock
from zae_limiter.web import Rule, Rules, api_key, claim
from zae_limiter.web.flask import RateLimits, limited

RPM, TPM = Limit.per_minute("rpm", 100), Limit.per_day("tpm", 1_000)
LIMITS = [RPM, TPM]
TEN: Any = {"resource": "api", "cost": {"rpm": 10}, "entity": api_key(), "limits": LIMITS}
KEY = {"x-api-key": "key-1"}


def used(limiter: SyncRateLimiter, entity_id: str = "key-1", resource: str = "api") -> dict[str, int]:
    left = limiter.available(entity_id, resource, LIMITS)
    return {one.name: one.capacity - left[one.name] for one in LIMITS}


def app_of(limiter: Any, **more: Any) -> Flask:
    app = Flask(__name__)
    RateLimits(app, limiter=limiter, **more)
    return app


def test_several_limits_of_a_view(sync_limiter: SyncRateLimiter) -> None:
    """The innermost lease alone, and all of them by what they are for."""
    app, seen = app_of(sync_limiter, rules=[Rule("/*", **TEN)]), list[Any]()

    @app.get("/x")
    @limited(**{**TEN, "resource": "search"})
    @limited(**{**TEN, "resource": "export"})
    def view() -> str:
        seen.extend([g.lease, request.environ["zae_limiter.lease"], SyncLease.current()])
        assert g.leases == request.environ["zae_limiter.leases"]
        g.leases["search"].adjust(tpm=3)
        return " ".join(g.leases)

    reply = app.test_client().get("/x", headers=KEY)
    assert (reply.status_code, reply.text, len(set(map(id, seen)))) == (200, "api search export", 1)
    assert [used(sync_limiter, resource=one)["tpm"] for one in ("api", "search", "export")] == [0, 3, 0]


def test_rules(sync_limiter: SyncRateLimiter, clock: ManualClock) -> None:
    """Admitted with headers, refused with the middleware's answer; other extensions see both."""
    app, asked = app_of(sync_limiter, rules=[Rule("/v1/*", **{**TEN, "cost": {"rpm": 60}})]), list[str]()

    @app.after_request
    def cross_origin(response: Response) -> Response:
        response.headers["access-control-allow-origin"] = "*"
        return response

    @app.get("/v1/x")
    def view() -> str:
        asked.append("x")
        assert g.lease is SyncLease.current() is request.environ["zae_limiter.lease"]
        return "hi"

    app.add_url_rule("/free", view_func=lambda: "free")
    client = app.test_client()
    replies = [client.get("/v1/x", headers=KEY) for _ in range(2)]
    assert [(one.status_code, one.headers["access-control-allow-origin"]) for one in replies] == [
        (200, "*"),
        (429, "*"),
    ]
    assert (replies[0].headers["ratelimit"], asked) == ('"rpm";r=40;t=24, "tpm";r=1000;t=86400', ["x"])
    assert (replies[1].content_type, replies[1].headers["retry-after"]) == ("application/problem+json", "12")
    assert json.loads(replies[1].data)["violated-policies"] == ["rpm"]
    assert len(replies[1].headers.getlist("ratelimit")) == 1
    assert client.head("/v1/x", headers=KEY).data == b""
    assert client.get("/v1/nowhere").status_code == 401
    assert (client.get("/free").status_code, "ratelimit" in client.get("/free").headers) == (200, False)
    clock.now_ms += int(replies[1].headers["retry-after-ms"]) - 1
    assert client.get("/v1/x", headers=KEY).status_code == 429
    clock.now_ms += 1
    assert client.get("/v1/x", headers=KEY).status_code == 200
    with pytest.raises(LookupError):
        SyncLease.current()


def test_decorated_views(sync_limiter: SyncRateLimiter) -> None:
    """Plain and async ones, with names of their routes, beside a rule; a refusal gives all of it back."""
    rules = [Rule("/v1/*", "all", {"rpm": 30}, entity="everybody", limits=[RPM])]
    app = app_of(sync_limiter, rules=rules, entity=api_key())

    @app.get("/v1/<model>/<int:number>")
    @limited("model-{model}", {"rpm": 10}, limits=LIMITS)
    def view(model: str, number: int) -> str:
        g.lease.adjust(tpm=number)
        return model + str(SyncLease.current().consumed["rpm"])

    @app.get("/v1/async")
    @limited(**{**TEN, "cost": lambda _: {"rpm": 101}})
    async def never() -> str:
        raise AssertionError

    client = app.test_client()
    reply = client.get("/v1/a/7", headers=KEY)
    assert (reply.text, reply.headers["ratelimit"]) == ("a10", '"rpm";r=70;t=42, "tpm";r=1000;t=86400')
    assert used(sync_limiter, resource="model-a") == {"rpm": 10, "tpm": 7}
    assert client.get("/v1/async", headers=KEY).status_code == 429
    assert used(sync_limiter, "everybody", "all")["rpm"] == 30

    app.extensions["zae_limiter"].init_app(other := Flask("other"))
    other.testing = True
    other.add_url_rule("/", view_func=limited("model-{model}", {"rpm": 1})(lambda: "x"))
    with pytest.raises(ValidationError, match="the route has no name 'model'"):
        other.test_client().get("/", headers=KEY)


@pytest.mark.parametrize("how", ["raises", "answers 500", "answers 404", "is refused more"])
def test_how_a_view_fails(sync_limiter: SyncRateLimiter, how: str) -> None:
    """What failed is given back; what was answered is paid."""
    app = app_of(sync_limiter)

    @app.get("/")
    @limited(**TEN)
    def view() -> None:
        if how == "raises":
            raise ValueError("x")
        if how == "is refused more":
            g.lease.consume(tpm=5_000)
        abort(int(how[-3:]))

    status = {"raises": 500, "is refused more": 429}.get(how) or int(how[-3:])
    assert app.test_client().get("/", headers=KEY).status_code == status
    if how == "raises":
        app.testing = True
        with pytest.raises(ValueError, match="x"):
            app.test_client().get("/", headers=KEY)
    assert used(sync_limiter)["rpm"] == (10 if how == "answers 404" else 0)


def test_a_lease_may_ask_whose_claims_they_are(sync_limiter: SyncRateLimiter) -> None:
    """What was put on ``g`` before, and the body, which the view reads again."""
    app = Flask(__name__)

    @app.before_request
    def authenticate() -> None:
        g.claims = {"sub": "ann"}
        if "early" in request.args:
            request.get_data()
        elif "form" in request.args:
            assert request.form

    def cost(asked: Any) -> dict[str, int]:
        return {"rpm": asked.json(limit_bytes=20)["n"]}

    rules = [Rule("/", "api", cost, entity=claim("sub"), limits=LIMITS)]
    RateLimits(app, limiter=sync_limiter, rules=rules)
    app.add_url_rule("/", view_func=lambda: request.json, methods=["POST"])
    app.testing, client = True, app.test_client()
    assert client.post("/", json={"n": 7}).json == {"n": 7}
    assert client.post("/?early=1", json={"n": 8}).json == {"n": 8}
    assert used(sync_limiter, "ann")["rpm"] == 15
    assert client.post("/", data=b"x" * 30).status_code == 413
    assert client.post("/", data=b"x").status_code == 400
    with pytest.raises(RuntimeError, match="the body was read before"):
        client.post("/?form=1", data={"n": "7"})
    assert used(sync_limiter, "ann")["rpm"] == 15


def test_the_entity_of_a_file(sync_limiter: SyncRateLimiter, tmp_path: Path) -> None:
    """Counts for views that do not name one, as it does for rules."""
    file = tmp_path / "rules.json"
    file.write_text('{"entity": {"id": "from-the-file"}, "rules": {}}')
    app = Flask(__name__)
    RateLimits(app, limiter=sync_limiter, rules=Rules.from_file(file))
    app.add_url_rule("/x", "x", limited("extra", limits=[RPM])(lambda: "x"))
    assert app.test_client().get("/x").status_code == 200
    assert sync_limiter.available("from-the-file", "extra", [RPM]) == {"rpm": 99}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_handler_of_ones_own_wins(sync_limiter: SyncRateLimiter, is_first: bool) -> None:
    """Whether it was there before the limits or not."""
    app = Flask(__name__)

    def own() -> None:
        app.register_error_handler(RateLimitExceeded, lambda _: ("mine", 418))

    if is_first:
        own()
    RateLimits(app, limiter=sync_limiter, entity="key-1")
    if not is_first:
        own()
    app.add_url_rule("/x", "x", limited("tight", lambda _: {"rpm": 101}, limits=[RPM])(lambda: "x"))
    assert app.test_client().get("/x").status_code == 418


def test_an_application_without_limits() -> None:
    """A decorated view says what is missing."""
    app = Flask(__name__)
    app.testing = True
    app.add_url_rule("/", view_func=limited(**TEN)(lambda: "x"))
    with pytest.raises(RuntimeError, match=r"RateLimits\(app, limiter=…\)"):
        app.test_client().get("/")


def test_streams_and_threads_on_a_server(sync_limiter: SyncRateLimiter) -> None:
    """A lease is held to the end of the stream; who hangs up pays what was made, and gives the seat back."""
    gate, ended = threading.Event(), list[str]()
    seat = Limit.concurrent("parallel", 1, hold="1h")
    app = app_of(sync_limiter, rules=[Rule("/many/*", **{**TEN, "cost": {"rpm": 1}})])

    def chunks() -> Iterator[bytes]:
        made = 0
        try:
            for _ in range(3):
                made += 5
                yield b"12345"
                gate.wait(PATIENCE_SECONDS)
            while "endless" in ended and made < 10**9:
                made += 50_000
                yield b"1" * 50_000
        finally:
            ended.append(f"made {made}")

    many = Limit.per_day("tpm", 10**9)
    metered: Any = {**TEN, "limits": [RPM, many, seat], "cost": {"rpm": 10, "parallel": 1}, "usage": Bytes}

    def is_free() -> bool:
        return sync_limiter.available("key-1", "api", [RPM, many, seat])["parallel"] == 1

    app.add_url_rule("/stream", "stream", limited(**metered)(lambda: Response(chunks())))
    app.add_url_rule("/many/<name>", "many", lambda name: name)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        url = f"http://127.0.0.1:{server.port}"
        with httpx.Client(timeout=PATIENCE_SECONDS, trust_env=False) as client:
            with client.stream("GET", f"{url}/stream", headers=KEY) as response:
                found = response.iter_raw()
                assert next(found) == b"12345"
                assert client.get(f"{url}/stream", headers=KEY).status_code == 429
                gate.set()
                assert b"".join(found) == b"1234512345"
            wait_until(is_free)
            assert client.get(f"{url}/stream", headers=KEY).content == b"12345" * 3
            wait_until(is_free)
            ended.append("endless")
            with client.stream("GET", f"{url}/stream", headers=KEY) as response:
                next(response.iter_raw())
            wait_until(is_free)
            ended.remove("endless")
            urls = [f"{url}/many/{number}" for number in range(20)]
            with ThreadPoolExecutor(8) as threads:
                found_many = threads.map(functools.partial(client.get, headers={"x-api-key": "m"}), urls)
            assert ({one.status_code for one in found_many}, used(sync_limiter, "m")["rpm"]) == ({200}, 20)
            made = sum(int(one.split()[1]) for one in ended)
            left = {"rpm": 70, "tpm": 10**9 - made, "parallel": 1}
            assert sync_limiter.available("key-1", "api", [RPM, many, seat]) == left
            assert client.get(f"{url}/stream", headers=KEY).status_code == 200
    finally:
        gate.set()
        server.shutdown()
        serving.join()
        server.server_close()


def test_nobody_learns_an_id(sync_limiter: SyncRateLimiter) -> None:
    """Neither of who asked nor of a parent."""
    sync_limiter.create_entity("the-parent")
    sync_limiter.create_entity("the-child", parent_id="the-parent", cascade=True)
    app = app_of(sync_limiter, rules=[Rule("/", **{**TEN, "cost": {"rpm": 60}})])
    app.add_url_rule("/", view_func=lambda: "x")
    replies = [app.test_client().get("/", headers={"x-api-key": "the-child"}) for _ in range(2)]
    assert [one.status_code for one in replies] == [200, 429]
    for one in replies:
        told = repr(one.headers) + one.text
        assert not [word for word in ("the-parent", "the-child") if word in told]


def test_without_flask() -> None:
    """What to install is said."""
    program = "import sys; sys.modules['flask'] = None; import zae_limiter.web.flask"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, "install this package with its extra: flask" in ran.stderr) == (1, True)


def test_a_limit_above_its_route(sync_limiter: SyncRateLimiter) -> None:
    """It would limit nothing, so nobody is served; what is limited somewhere else may be."""
    app = app_of(sync_limiter)

    def view() -> str:
        return "x"

    app.get("/x")(view)
    above = limited(**TEN)(view)
    client = app.test_client()
    with pytest.raises(RuntimeError, match=r"'view' is not limited: .* under the decorator of the route"):
        client.get("/x")
    app.add_url_rule("/y", "y", above)
    assert [client.get(path, headers=KEY).headers.get("ratelimit") is None for path in ("/x", "/y")] == [
        *(True, False)
    ]


def test_a_view_finds_the_limiter() -> None:
    """Where the limits are, opened by whoever needs it first."""
    limits = RateLimits(limiter=lambda: SyncRateLimiter.open("memory://"))
    assert limits.limiter is limits.limiter
    assert limits.limiter.available("key-1", "api", [RPM]) == {"rpm": 100}
    limits.limiter.close()
