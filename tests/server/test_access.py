"""Who may ask for what: tokens, cookies, and what a page of somebody else cannot send."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from tests.server.asking import OTHER, READER, SECRET, config
from zae_limiter.server.access import ANYBODY, PAGE_HEADER, SESSION_SECONDS, AccessControl
from zae_limiter.server.tokens import TokenScope
from zae_limiter.testing import ManualClock
from zae_limiter.web.answers import RequestRefused

KEY = b"k" * 32
CLOCK = ManualClock()


def control(**more: object) -> AccessControl:
    return AccessControl(config().tokens, KEY, world=CLOCK.world, **more)  # type: ignore[arg-type]


def request(method: str = "GET", **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request({"type": "http", "method": method, "headers": raw, "path": "/", "query_string": b""})


def cookie(access: AccessControl, secret: str) -> str:
    caller = access.bearer(secret)
    assert caller is not None
    return access.session(caller)


def test_tokens() -> None:
    """The name and the scopes of whoever has it; the scheme in any case, the token exactly."""
    access = control()
    found = access.require(request(authorization=f"bEaReR {OTHER}"), TokenScope.DECIDE)
    assert (found.name, found.scopes) == ("other", {TokenScope.DECIDE})
    for wrong in (OTHER.upper(), OTHER[:-1], "", "é" * 20, OTHER + "\x00", "x" * 10_000):
        assert access.bearer(wrong) is None


@pytest.mark.parametrize("headers", [{}, {"authorization": "Basic eDp5"}, {"authorization": "Bearer nobody"}])
def test_who_is_not_known(headers: dict[str, str]) -> None:
    with pytest.raises(RequestRefused) as refused:
        control().require(request(**headers), TokenScope.DECIDE)
    assert (refused.value.status, refused.value.headers[0][0]) == (401, "WWW-Authenticate")


def test_scopes() -> None:
    """A token is good for what it says, as far as the server grants that to anybody."""
    access = control(allowed={TokenScope.READ, TokenScope.DECIDE})
    for secret, scope in ((READER, TokenScope.DECIDE), (SECRET, TokenScope.CHANGE)):
        with pytest.raises(RequestRefused) as refused:
            access.require(request(authorization=f"Bearer {secret}"), scope)
        assert refused.value.status == 403
    opened = control(open_to_all=True, allowed={TokenScope.DECIDE}).require(request(), TokenScope.DECIDE)
    assert (opened.name, opened.scopes) == (ANYBODY.name, {TokenScope.DECIDE})


def test_a_cookie_stands_for_a_token_for_a_while() -> None:
    """It reads by itself, changes only with a header that no foreign page can send, and ends."""
    access = control()
    value = f"{access.cookie}={cookie(access, SECRET)}"
    assert access.require(request(cookie=value), TokenScope.READ).by_cookie
    with pytest.raises(RequestRefused, match="needs the header"):
        access.require(request("POST", cookie=value), TokenScope.CHANGE)
    sent = {"cookie": value, PAGE_HEADER.replace("-", "_"): "1"}
    assert access.require(request("POST", **sent), TokenScope.CHANGE)
    CLOCK.advance(SESSION_SECONDS)
    assert access.caller(request(cookie=value)) is None


def test_cookies_that_nobody_signed() -> None:
    """Changed by a letter, signed by another start, for a token that is gone, or not a cookie at all."""
    access = control()
    value = cookie(access, SECRET)
    said, _, signature = value.rpartition(":")
    other = AccessControl(config().tokens, b"o" * 32, world=CLOCK.world)
    gone = AccessControl(config().tokens[1:], KEY, world=CLOCK.world)
    wrong = [
        f"{said.replace('all', 'other')}:{signature}",
        f"{said}:{signature[:-1]}",
        cookie(other, SECRET),
        "",
        ":",
        "a:b:c",
        "é:1:é",
        "x" * 5000,
    ]
    for one in wrong:
        assert access.caller(request(cookie=f"{access.cookie}={one}")) is None, one
    assert gone.caller(request(cookie=f"{gone.cookie}={value}")) is None
    bad = request(cookie=f"{access.cookie}={value}", authorization="Bearer wrong")
    assert access.caller(bad) is None, "a wrong token is not made good by a cookie"
