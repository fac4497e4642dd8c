"""Web applications: the middleware of both kinds, FastAPI by route, Flask by view."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from flask import Flask

from zae_limiter import Lease, Limit, RateLimiter, SyncRateLimiter
from zae_limiter.web import (
    RateLimitMiddleware,
    Request,
    Rule,
    Rules,
    WSGIRateLimitMiddleware,
    api_key,
    client_address,
)
from zae_limiter.web.fastapi import RouteLimits, limit
from zae_limiter.web.flask import RateLimits, limited

LIMITS = [Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 1_000)]


class Characters:
    """Says what a response cost by what was sent."""

    def __init__(self, request: Request, status: int, headers: Mapping[str, str]) -> None:
        self.sent = 0

    def feed(self, chunk: bytes) -> None:
        self.sent += len(chunk)

    def amounts(self) -> dict[str, int] | None:
        return {"tpm": self.sent}


async def cost(request: Request) -> dict[str, int]:
    return {"rpm": 1, "tpm": len(await request.body())}


RULES: list[Rule] = [
    Rule("/health", exempt=True),
    Rule("/v1/*", "api", cost, limits=LIMITS, entity=api_key(), usage=Characters, wait=2),
    Rule("/*", "pages", limits=LIMITS, entity=client_address(trusted=["10.0.0.0/8"])),
]

plain = FastAPI()
plain.add_middleware(RateLimitMiddleware, limiter=RateLimiter.open("memory://"), rules=RULES)

by_route = FastAPI()
RouteLimits(by_route, limiter=RateLimiter.open("memory://"), entity="everybody")
Held = Annotated[Lease, Depends(limit("gpt-4", {"rpm": 1, "tpm": 500}, limits=LIMITS))]


@by_route.get("/answer")
async def answer(lease: Held) -> dict[str, int]:
    await lease.settle(tpm=20)
    return lease.consumed


site = Flask(__name__)
RateLimits(site, limiter=SyncRateLimiter.open("memory://"), entity="everybody")


@site.get("/page")
@limited("pages", {"rpm": 1}, limits=LIMITS)
def page() -> str:
    return "hello"


def bare(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(environ["PATH_INFO"]).encode()]


wsgi = WSGIRateLimitMiddleware(
    bare,
    limiter=SyncRateLimiter.open("memory://"),
    rules=Rules([Rule("/*", limits=LIMITS, entity="everybody")]),
)

if __name__ == "__main__":
    response = site.test_client().get("/page")
    assert (response.status_code, response.text) == (200, "hello")
    seen: list[str] = []

    def started(status: str, headers: list[tuple[str, str]]) -> Callable[[bytes], object]:
        seen.append(status)
        return len

    body = wsgi({"REQUEST_METHOD": "GET", "PATH_INFO": "/x"}, started)
    assert (b"".join(body), seen) == (b"/x", ["200 OK"])
