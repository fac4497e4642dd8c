"""A session of the page: a token is shown once, and a cookie that no script can read stands for it."""

from __future__ import annotations

from tests.server.asking import READER, SECRET, asking


async def test_a_session_from_its_beginning_to_its_end() -> None:
    async with asking(ui=True) as server:
        begun = await server.http.post("/ui/session", json={"token": READER})
        assert begun.json() == {"name": "reader", "scopes": ["read"]}
        cookie = begun.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert READER not in cookie
        said = {"entity": "a", "resource": "gpt-4", "consume": {"rpm": 1}}
        assert (await server.http.post("/v1/acquire", json=said)).status_code == 403
        ended = await server.http.delete("/ui/session")
        assert ended.status_code == 204
        assert (await server.http.post("/v1/acquire", json=said)).status_code == 401


async def test_tokens_that_are_none() -> None:
    async with asking(ui=True) as server:
        for said in ({"token": "wrong"}, {"token": 7}, [SECRET], {}, {"token": SECRET + " "}):
            answer = await server.http.post("/ui/session", json=said)
            assert answer.status_code == 401, said
            assert "set-cookie" not in answer.headers
        assert (await server.http.post("/ui/session", content=b"{")).status_code == 400
