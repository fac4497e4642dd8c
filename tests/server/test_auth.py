"""A decision for a proxy: by itself, and through a real nginx that is configured as documented."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.server.asking import SECRET, Asking, asking
from tests.server.nginx import nginx
from tests.server.serving import serving
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.web.identity import hashed_id

URL = "/v1/auth?resource=gpt-4&need=rpm:1"


async def ask(server: Asking, url: str = URL, **headers: str) -> httpx.Response:
    sent = {"Authorization": f"Bearer {SECRET}"} | {n.replace("_", "-"): v for n, v in headers.items()}
    return await server.http.get(url, headers=sent)


async def test_who_may_pass_and_who_may_not() -> None:
    """2xx lets pass; a refusal is 403 with what should be told instead, for nginx knows no other."""
    async with asking() as server:
        for left in range(9, -1, -1):
            passed = await ask(server, X_Zae_Entity="key-1")
            assert (passed.status_code, passed.content) == (204, b"")
            assert passed.headers["ratelimit"].startswith(f'"rpm";r={left};')
        refused = await ask(server, X_Zae_Entity="key-1")
        assert (refused.status_code, refused.headers["x-zae-status"]) == (403, "429")
        assert refused.headers["retry-after"] == "6"
        assert refused.headers["ratelimit"].startswith('"rpm";r=0;')
        head = await server.http.head(
            URL, headers={"Authorization": f"Bearer {SECRET}", "X-Zae-Entity": "key-2"}
        )
        assert head.status_code == 204


async def test_whose_request_it_is() -> None:
    """Only the header that the query names is looked at: a client may have sent the other."""
    async with asking() as server:
        by_key = f"{URL}&by=key"
        assert (await ask(server, by_key, X_Zae_Key="sk-1", X_Zae_Entity="victim")).status_code == 204
        assert await server.left(entity="victim") == {"rpm": 10, "tpm": 1000}
        assert (await server.left(entity=hashed_id("sk-1")))["rpm"] == 9
        assert (await ask(server, by_key, X_Zae_Entity="victim")).status_code == 401
        assert (await ask(server)).status_code == 401
        assert (await ask(server, X_Zae_Entity="a#b")).status_code == 401
        assert (await ask(server, f"{URL}&by=other", X_Zae_Entity="a")).status_code == 400
        assert (await ask(server, "/v1/auth?resource=gpt-4", X_Zae_Entity="a")).status_code == 400
        assert (await server.http.get(URL, headers={"X-Zae-Entity": "a"})).status_code == 401


def test_nginx_in_front_of_a_page(tmp_path: Path) -> None:
    """End to end: 200 with headers, then 429 with the wait, then 401 for nobody."""
    store = f"sqlite:///{tmp_path}/limits.db"
    with SyncRateLimiter.open(store) as limiter:
        limiter.set_resource_defaults("api", [Limit("rpm", 2, 1, 3600)])
    with serving(store) as server, nginx(server.port, server.token) as port:
        url, key = f"http://127.0.0.1:{port}/", {"X-Api-Key": "sk-1"}
        answers = [httpx.get(url, headers=key) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[0].text == "<p>hello"
        assert answers[0].headers["ratelimit"].startswith('"rpm";r=1;')
        assert answers[0].headers["ratelimit-policy"].startswith('"rpm";q=1;w=3600')
        refused = answers[2]
        assert 3590 <= int(refused.headers["retry-after"]) <= 3600
        assert refused.headers["ratelimit"].startswith('"rpm";r=0;')
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["status"] == 429
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"X-Zae-Key": "sk-1"}).status_code == 401
        assert httpx.get(f"{url}nowhere", headers={"X-Api-Key": "sk-2"}).status_code == 404
        server.process.kill()
        server.process.wait()
        assert httpx.get(url, headers=key).status_code == 200, "nobody can say, so it passes, as configured"
