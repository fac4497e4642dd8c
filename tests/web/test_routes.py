"""Several charges of one request, whatever the framework: they go together, and end together."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.web.calls import RPM, TPM, http_scope
from tests.web.limits import read_back
from zae_limiter import InvalidNameError, RateLimiter, RateLimitExceeded, ValidationError
from zae_limiter.web import Answers, Request, Rule
from zae_limiter.web.charge import Ending
from zae_limiter.web.routes import Charges, route_rule
from zae_limiter.web.rules import Match

ON_ERROR = [None, "refund", "keep", "settle"]


async def nothing() -> Any:
    raise AssertionError("nobody reads")


def rule(resource: str, cost: int = 10, **more: Any) -> Rule:
    return Rule("/{name}/*", resource, lambda _: {"rpm": cost}, entity="key-1", limits=[RPM, TPM], **more)


class Visit:
    """One request that is charged by several rules."""

    def __init__(self, limiter: RateLimiter) -> None:
        self.limiter, self.charges, self.request = limiter, Charges(), Request(http_scope("/"), nothing)

    async def charge(self, by: Rule, names: Mapping[str, str] | None = None) -> Any:
        return await self.charges.add(self.limiter, Match(by, names or {}), self.request, None)

    async def used(self, resource: str) -> int:
        return RPM.capacity - (await self.limiter.available("key-1", resource, [RPM, TPM]))["rpm"]


@pytest.mark.parametrize("on_error", ON_ERROR)
async def test_if_one_is_refused_all_are_given_back(limiter: RateLimiter, on_error: str | None) -> None:
    """Whatever their rules say of work that fails: this was never begun."""
    visit = Visit(limiter)
    await visit.charge(rule("first", on_error=on_error))
    with pytest.raises(RateLimitExceeded):
        await visit.charge(rule("second", 101))
    visit.charges.respond(429, {})
    assert Answers().of_lease(visit.charges.lease) == []
    assert visit.charges.entity_ids == {"key-1"}
    await visit.charges.end(Ending.DONE)
    assert (await visit.used("first"), await visit.used("second")) == (0, 0)


@pytest.mark.parametrize("on_error", ON_ERROR)
async def test_a_refusal_that_the_application_catches(limiter: RateLimiter, on_error: str | None) -> None:
    """It answers all the same, so what was charged is paid and told."""
    visit = Visit(limiter)
    await visit.charge(rule("first", on_error=on_error))
    with pytest.raises(RateLimitExceeded):
        await visit.charge(rule("second", 101))
    visit.charges.respond(200, {})
    assert list(read_back(Answers().of_lease(visit.charges.lease), "ratelimit")) == ["rpm", "tpm"]
    await visit.charges.end(Ending.DONE)
    assert (await visit.used("first"), await visit.used("second")) == (10, 0)


@pytest.mark.parametrize("on_error", ON_ERROR)
async def test_what_the_application_asked_for_is_refused(limiter: RateLimiter, on_error: str | None) -> None:
    """Its work had begun, so it has failed, and costs what such work costs."""
    visit = Visit(limiter)
    await visit.charge(rule("first", on_error=on_error))
    visit.charges.refuse()
    visit.charges.respond(429, {})
    assert Answers().of_lease(visit.charges.lease) == []
    await visit.charges.end(Ending.DONE)
    assert await visit.used("first") == (0 if on_error in (None, "refund") else 10)


async def test_each_charge_has_its_own_names(limiter: RateLimiter) -> None:
    """Its meter sees what its own path calls the segments, when it is made, fed and asked."""
    seen: list[str] = []

    class Noting:
        def __init__(self, request: Request, *_: object) -> None:
            self.request = request
            self.note()

        def note(self) -> None:
            seen.append(self.request.path_params["name"])

        def feed(self, _: bytes) -> None:
            self.note()

        def amounts(self) -> None:
            self.note()

    visit = Visit(limiter)
    for name in ("one", "two"):
        await visit.charge(rule(name, usage=Noting), {"name": name})
    visit.charges.respond(200, {})
    visit.charges.feed(b"x")
    await visit.charges.end(Ending.DONE)
    assert seen[:4] == ["one", "two"] * 2
    assert sorted(seen[4:]) == ["one", "two"]


def test_a_wrong_limit_of_a_route_is_told_by_its_resource() -> None:
    """Whoever wrote it has given no path."""
    with pytest.raises(ValidationError, match=r"invalid cost of 'search-{kind}' None: pass amounts by limit"):
        route_rule("search-{kind}", None, {})
    with pytest.raises(InvalidNameError, match="'#' is reserved"):
        route_rule("a#b", {"rpm": 1}, {})
