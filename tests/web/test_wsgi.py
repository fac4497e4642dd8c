"""The WSGI middleware, step by step, without a server; its responses are checked by wsgiref's validator."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from tests.web.limits import Bytes
from zae_limiter import (
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    SyncLease,
    SyncRateLimiter,
    ValidationError,
)
from zae_limiter.testing import ManualClock
from zae_limiter.web import Rule, SyncRequest, WSGIRateLimitMiddleware, api_key

RPM, TPM = Limit.per_minute("rpm", 100), Limit.per_day("tpm", 1_000)


class Stream:
    """A body that notes that it was closed."""

    def __init__(self, *steps: bytes | BaseException, status: str = "200 OK", late: Any = None) -> None:
        self.steps, self.status, self.late, self.closed = list(steps), status, late, 0

    def __iter__(self) -> Iterator[bytes]:
        if self.late is not None:
            self.late(self.status, [("Content-Type", "text/plain")])
        for step in self.steps:
            if isinstance(step, BaseException):
                raise step
            yield step

    def close(self) -> None:
        self.closed += 1


def app_of(stream: Stream) -> Callable[..., Any]:
    def app(_environ: dict[str, Any], start_response: Any) -> Stream:
        if stream.late is None:
            start_response(stream.status, [("Content-Type", "text/plain")])
        else:
            stream.late = start_response
        return stream

    return app


def limited(limiter: Any, app: Callable[..., Any], **rule: Any) -> WSGIRateLimitMiddleware:
    given = {"resource": "api", "cost": {"rpm": 10}, "entity": api_key(), "limits": [RPM, TPM], **rule}
    return WSGIRateLimitMiddleware(app, limiter=limiter, rules=[Rule("/v1/*", **given)])


class Got:
    """A response as a server gets it, read as far as it likes."""

    def __init__(self, app: Callable[..., Any], chunks: int | None = None, **environ: Any) -> None:
        given = {"PATH_INFO": "/v1/x", "HTTP_X_API_KEY": "key-1", "QUERY_STRING": "", "SCRIPT_NAME": ""}
        given |= environ
        setup_testing_defaults(given)
        self.status, self.headers, self.written = "", {}, list[bytes]()

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            assert exc_info is None or not self.written
            self.status, self.headers = status, {name.lower(): value for name, value in headers}
            return self.written.append

        body = app(given, start_response)
        self.body = list[bytes]()
        try:
            for chunk in body:
                self.body.append(chunk)
                if len(self.body) == chunks:
                    break
        finally:
            if hasattr(body, "close"):
                body.close()


def used(limiter: SyncRateLimiter) -> dict[str, int]:
    left = limiter.available("key-1", "api", [RPM, TPM])
    return {"rpm": 100 - left["rpm"], "tpm": 1_000 - left["tpm"]}


def test_an_admitted_request(sync_limiter: SyncRateLimiter) -> None:
    """A response that follows the rules of WSGI, with headers, whose body is closed once."""
    stream = Stream(b"a", b"b")
    got = Got(validator(limited(sync_limiter, validator(app_of(stream)))))
    assert (got.status, b"".join(got.body), stream.closed) == ("200 OK", b"ab", 1)
    assert got.headers["ratelimit"] == '"rpm";r=90;t=54, "tpm";r=1000;t=86400'
    assert used(sync_limiter) == {"rpm": 10, "tpm": 0}


def test_a_refused_request(sync_limiter: SyncRateLimiter, clock: ManualClock) -> None:
    """It passes after the wait that it was told."""
    app = limited(sync_limiter, app_of(Stream(b"a")), cost={"rpm": 100})
    assert Got(app).status == "200 OK"
    got = Got(validator(app))
    assert (got.status, got.headers["retry-after"]) == ("429 Too Many Requests", "60")
    assert json.loads(b"".join(got.body))["violated-policies"] == ["rpm"]
    assert Got(app, REQUEST_METHOD="HEAD").body == []
    clock.now_ms += int(got.headers["retry-after-ms"])
    assert Got(app).status == "200 OK"


def test_other_paths_pass(sync_limiter: SyncRateLimiter) -> None:
    """The application's own body is returned as it is."""
    stream = Stream(b"a")
    app = limited(sync_limiter, app_of(stream))
    assert app({"PATH_INFO": "/x", "REQUEST_METHOD": "GET"}, lambda *_: None) is stream  # type: ignore[comparison-overlap]
    assert Got(app, PATH_INFO="/v1/x/../y").status == "200 OK"


def test_who_is_nobody(sync_limiter: SyncRateLimiter) -> None:
    """401, and a path that can be read in two ways is 400."""
    app = limited(sync_limiter, app_of(Stream(b"a")))
    assert Got(app, HTTP_X_API_KEY="").status == "401 Unauthorized"
    rules = [Rule(path, "api", {"rpm": 1}, entity="key", limits=[RPM]) for path in ("/v1/*", "/b/*")]
    both = WSGIRateLimitMiddleware(app_of(Stream()), limiter=sync_limiter, rules=rules)
    assert Got(both, PATH_INFO="/v1/../b/x").status == "400 Bad Request"


GONE = 1
ENDINGS: dict[str, tuple[Stream, int | None, int]] = {
    "done": (Stream(b"a", b"b"), None, 10),
    "done, started late": (Stream(b"a", b"b", late=True), None, 10),
    "the client is gone": (Stream(b"a", b"b"), GONE, 10),
    "4xx": (Stream(b"a", status="404 Not Found"), None, 10),
    "5xx": (Stream(b"a", status="500 Internal Server Error"), None, 0),
    "raises at once": (Stream(ValueError("x")), None, 0),
    "raises before it has said anything": (Stream(b"", ValueError("x")), None, 0),
    "raises in the middle": (Stream(b"a", ValueError("x")), None, 10),
    "is stopped in the middle": (Stream(b"a", KeyboardInterrupt()), None, 10),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_how_a_response_ends(sync_limiter: SyncRateLimiter, how: str) -> None:
    """Failed work is given back; who has had something, or hung up, pays."""
    stream, chunks, cost = ENDINGS[how]
    error = next((type(one) for one in stream.steps if isinstance(one, BaseException)), None)
    stream.closed = 0
    app = limited(sync_limiter, app_of(stream))
    if error is None:
        Got(app, chunks)
    else:
        with pytest.raises(error):
            Got(app, chunks)
    assert (used(sync_limiter)["rpm"], stream.closed) == (cost, 1)


def test_an_application_that_raises_before_it_returns(sync_limiter: SyncRateLimiter) -> None:
    """Nothing is charged; what its lease was refused is answered."""

    def raising(_environ: Any, _start_response: Any) -> Any:
        raise ValueError("x")

    def consuming(_environ: Any, _start_response: Any) -> Any:
        SyncLease.current().consume(tpm=5_000)

    def generating(environ: Any, start_response: Any) -> Any:
        consuming(environ, start_response)
        start_response("200 OK", [])
        yield b"x"

    with pytest.raises(ValueError, match="x"):
        Got(limited(sync_limiter, raising))
    for app in (consuming, generating):
        for method, size in (("GET", 1), ("HEAD", 0)):
            got = Got(limited(sync_limiter, app), REQUEST_METHOD=method)
            assert (got.status, used(sync_limiter)) == ("429 Too Many Requests", {"rpm": 0, "tpm": 0})
            assert len(b"".join(got.body)[:1]) == size


def test_an_error_page_that_comes_too_late(sync_limiter: SyncRateLimiter) -> None:
    """In the middle of a stream it changes nothing: what was sent is paid."""

    def app(_environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        try:
            yield b"abc"
            raise ValueError("x")
        except ValueError:
            start_response("500 Oops", [("Content-Type", "text/plain")], sys.exc_info())
            raise

    with pytest.raises(ValueError, match="x"):
        Got(limited(sync_limiter, app, usage=Bytes, cost={"tpm": 50}))
    assert used(sync_limiter)["tpm"] == 3


def test_a_meter_reads_the_response(sync_limiter: SyncRateLimiter) -> None:
    """Chunks and what is written; as much as was sent when the client left."""

    def writing(_environ: Any, start_response: Any) -> list[bytes]:
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        write(b"1234")
        return [b"5"]

    got = Got(limited(sync_limiter, writing, usage=Bytes, cost={"tpm": 50}))
    assert (got.written, got.body, used(sync_limiter)["tpm"]) == ([b"1234"], [b"5"], 5)
    Got(limited(sync_limiter, app_of(Stream(b"123", b"45")), usage=Bytes, cost={"tpm": 50}), chunks=1)
    assert used(sync_limiter)["tpm"] == 8


def test_an_error_page_replaces_a_response(sync_limiter: SyncRateLimiter) -> None:
    """``start_response`` with an error, as long as nothing was sent: it is a 5xx, so it costs nothing."""

    def app(_environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        try:
            raise ValueError("x")
        except ValueError:
            start_response("500 Oops", [("Content-Type", "text/plain")], sys.exc_info())
        return [b"oops"]

    got = Got(validator(limited(sync_limiter, validator(app))))
    assert (got.status, used(sync_limiter)["rpm"]) == ("500 Oops", 0)


def test_leases_of_several_middlewares(sync_limiter: SyncRateLimiter) -> None:
    """The innermost alone, and all of them by their resources."""
    seen: list[Any] = []

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        seen.extend([environ["zae_limiter.lease"], environ["zae_limiter.leases"]])
        start_response("200 OK", [])
        return []

    Got(limited(sync_limiter, limited(sync_limiter, app, resource="inner")))
    assert (list(seen[1]), seen[1]["inner"] is seen[0]) == (["api", "inner"], True)


def test_the_application_finds_its_lease(sync_limiter: SyncRateLimiter) -> None:
    """While it is called and while its body is made; not in between."""
    seen: list[Any] = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            seen.append(SyncLease.current())
            yield b"a"
            seen.append(SyncLease.current())

        def close(self) -> None:
            SyncLease.current().adjust(tpm=3)

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        seen.append(SyncLease.current())
        assert environ["zae_limiter.lease"] is seen[0]
        start_response("200 OK", [])
        return Body()

    Got(limited(sync_limiter, app))
    assert (len(set(map(id, seen))), used(sync_limiter)) == (1, {"rpm": 10, "tpm": 3})
    with pytest.raises(LookupError):
        SyncLease.current()


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({"CONTENT_LENGTH": "7"}, "200 OK"),
        ({"CONTENT_LENGTH": "", "wsgi.input_terminated": True}, "200 OK"),
        ({"CONTENT_LENGTH": ""}, "400 Bad Request"),
        ({"CONTENT_LENGTH": "21"}, "413 "),
        (
            {"wsgi.input_terminated": True, "wsgi.input": io.BytesIO(b"x" * 30)},
            "413 ",
        ),
    ],
)
def test_a_body_is_read_and_given_again(
    sync_limiter: SyncRateLimiter, environ: dict[str, Any], status: str
) -> None:
    """As far as the server says where it ends, and no further than the bound."""

    def cost(request: SyncRequest) -> dict[str, int]:
        found = request.json(limit_bytes=20)
        assert request.body() == b'{"n":7}'
        return {"rpm": found["n"]}

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [environ["wsgi.input"].read()]

    got = Got(limited(sync_limiter, app, cost=cost), **{"wsgi.input": io.BytesIO(b'{"n":7}'), **environ})
    assert got.status.startswith(status)
    if status == "200 OK":
        assert (got.body, used(sync_limiter)["rpm"]) == ([b'{"n":7}'], 7)


def test_a_request() -> None:
    """What rules are asked about is the same as in ASGI."""
    environ: dict[str, Any] = {"PATH_INFO": "/caf\u00c3\u00a9", "QUERY_STRING": "a=1&b="}
    environ |= {"REQUEST_METHOD": "post", "REMOTE_ADDR": "192.0.2.7", "wsgi.url_scheme": "https"}
    environ |= {"CONTENT_TYPE": "text/plain", "HTTP_ACCEPT": "*/*", "CONTENT_LENGTH": ""}
    request = SyncRequest(environ)
    assert (request.method, request.path, request.query) == ("POST", "/café", {"a": "1", "b": ""})
    assert (request.client_host, request.scheme, request.state) == ("192.0.2.7", "https", environ)
    assert dict(request.headers) == {"content-type": "text/plain", "accept": "*/*"}
    assert "/café" in repr(request)


def test_a_limiter_is_opened_by_the_first_request(limiter: RateLimiter) -> None:
    """A callable gives it, once; one for an event loop is refused."""
    opened: list[SyncRateLimiter] = []

    def made() -> SyncRateLimiter:
        opened.append(SyncRateLimiter.open("memory://"))
        return opened[-1]

    app = limited(made, app_of(Stream(b"a")))
    assert [Got(app).status for _ in range(2)] == ["200 OK"] * 2
    assert len(opened) == 1
    opened[0].close()
    with pytest.raises(ValidationError, match="pass a SyncRateLimiter"):
        limited(limiter, app_of(Stream()))
    with pytest.raises(ValidationError, match="pass a SyncRateLimiter"):
        Got(limited(lambda: limiter, app_of(Stream())))


@pytest.mark.parametrize(("policy", "status"), [(None, "503"), ("block", "503"), ("allow", "200")])
def test_a_store_that_is_down_at_the_first_request(policy: str | None, status: str) -> None:
    """The rule decides, as it does later."""

    def unavailable() -> SyncRateLimiter:
        raise RateLimiterUnavailable("the store is down")

    app = limited(unavailable, app_of(Stream(b"a")), on_unavailable=policy)
    assert Got(app).status.split()[0] == status


def test_nothing_is_awaited(sync_limiter: SyncRateLimiter) -> None:
    """Which is told when the middleware is made, not by an error of the first request."""

    async def later(_: SyncRequest) -> Any: ...

    for name in ("cost", "entity", "resource"):
        with pytest.raises(ValidationError, match=f"{name} of '/v1/\\*' .* without async"):
            limited(sync_limiter, lambda *_: [], **{name: later})
