"""What the page changes: by the public verbs, under the name of the token, once for each key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.looker import ALL, SECRETS, asking, mismatches
from tests.stores import STORES, url_of
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, ResourceDisabled
from zae_limiter.server import view_shapes as shapes
from zae_limiter.server.access import PAGE_HEADER
from zae_limiter.server.changes import CHANGES

RPM = Limit.per_minute("rpm", 10)
BUCKET = {"entity": "key-1", "resource": "gpt-4"}


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


@pytest.fixture
def memory(tmp_path: Path) -> str:
    return url_of("memory", tmp_path)


async def used(limiter: RateLimiter, **amounts: int) -> None:
    async with limiter.acquire("key-1", "gpt-4", amounts):
        pass


async def test_limits_of_every_level_are_replaced_and_deleted(store: str) -> None:
    """What is stored by then is the answer, and what an acquire goes by; the token is the principal."""
    places: list[dict[str, str]] = [
        {"level": "system"},
        {"level": "resource", "resource": "gpt-4"},
        {"level": "entity", "entity": "key-1"},
        {"level": "entity", "entity": "key-1", "resource": "gpt-4"},
    ]
    async with asking(store) as found:
        for number, place in enumerate(places, 1):
            answer = await found.change(
                "limits", **place, limits=[f"rpm:{number}0/min", "usd:99.50USD/month"]
            )
            assert mismatches(answer.json(), shapes.ConfigShape) == []
            told = answer.json()
            assert [one["text"] for one in told["limits"]] == [f"rpm:{number}0/min", "usd:99.50USD/month@UTC"]
            assert {name: told[name] for name in place} == place
            assert await found.limiter.available("key-1", "gpt-4") == {"rpm": number * 10, "usd": 99_500_000}
        for place in reversed(places):
            assert (await found.change("limits", **place, limits=[])).json()["limits"] == []
        events = await found.limiter.get_audit_events("key-1")
        assert {event.principal for event in events} == {"who-changes"}
        assert (await found.limiter.explain("key-1", "gpt-4")).buckets[0].winner is None


async def test_a_changed_limit_binds_a_running_client_at_once(tmp_path: Path) -> None:
    """One that has its own connection to the file, and has remembered the limit until then."""
    url = url_of("sqlite", tmp_path)
    async with asking(url) as found, RateLimiter.open(url) as elsewhere:
        await found.change("limits", level="system", limits=["rpm:10/day@UTC"])
        await used(elsewhere, rpm=4)
        await found.change("limits", level="entity", entity="key-1", limits=["rpm:5/day@UTC"])
        await used(elsewhere, rpm=1)
        await found.change("top-up", **BUCKET, amounts={"rpm": 3}, key="k-1")
        await used(elsewhere, rpm=3)
        with pytest.raises(RateLimitExceeded):
            await used(elsewhere, rpm=1)
        await found.change("switch", resource="gpt-4", state="off", reason="maintenance")
        with pytest.raises(ResourceDisabled, match="maintenance"):
            await used(elsewhere, rpm=1)


async def test_what_is_given_is_given_once_for_each_key(store: str) -> None:
    """Whoever sends it again is told so, and what the bucket holds by then."""
    async with asking(store) as found:
        await found.limiter.set_system_defaults([Limit.per_day("rpm", 10, calendar=True)])
        await used(found.limiter, rpm=9)
        answers = [
            (await found.change("top-up", **BUCKET, amounts={"rpm": 2}, key="k-1")).json() for _ in range(2)
        ]
        for answer in answers:
            assert mismatches(answer, shapes.BucketChangeShape) == []
        assert [(one["again"], one["given"]) for one in answers] == [(False, {"rpm": 2}), (True, {"rpm": 2})]
        assert [one["bucket"]["levels"][0]["available"] for one in answers] == [3, 3]
        again = await found.change("top-up", **BUCKET, amounts={"rpm": 5}, key="k-1")
        assert (again.status_code, again.json()["field"]) == (400, "key")
        full = (await found.change("reset", **BUCKET, limits=["rpm"], key="k-2")).json()
        assert (full["given"], full["bucket"]["levels"][0]["available"]) == ({"rpm": 7}, 10)
        forgiven = (await found.change("forgive", **BUCKET, key="k-3")).json()
        assert forgiven["given"] == {"rpm": 0}
        (event, *_) = await found.limiter.get_audit_events("key-1", 1)
        assert (event.action, event.principal) == ("bucket_reset", "who-changes")


async def test_amounts_may_be_written_as_on_the_command_line(memory: str) -> None:
    """Money, and thousands."""
    async with asking(memory) as found:
        await found.change("limits", level="system", limits=["usd:99.50USD/month", "tpm:10k/day@UTC"])
        await used(found.limiter, usd=90_000_000, tpm=9_000)
        given = await found.change("top-up", **BUCKET, amounts={"usd": "25.50USD", "tpm": "1.5k"}, key="k-1")
        assert given.json()["given"] == {"usd": 25_500_000, "tpm": 1_500}


async def test_switches_are_thrown_and_taken_away(store: str) -> None:
    """Off with a reason, past the limits, on in any case, and gone."""
    async with asking(store) as found:
        for said, told in (
            ({"state": "off", "reason": "has not paid"}, ("off", "has not paid", None)),
            ({"state": "bypass"}, ("bypass", None, True)),
            ({"state": "bypass", "counted": False}, ("bypass", None, False)),
            ({"state": "on", "overrule": True}, ("on", None, None)),
        ):
            answer = (await found.change("switch", entity="key-1", **said)).json()
            assert mismatches(answer, shapes.SwitchChangeShape) == []
            switch = answer["switch"]
            assert (switch["state"], switch["reason"], switch["counted"]) == told
            assert (switch["entity"], switch["resource"], switch["by"]) == ("key-1", None, "who-changes")
        assert (await found.change("switch", entity="key-1", state="on")).json() == {"switch": None}
        everything = await found.change("switch", level="system", state="off", reason="maintenance")
        assert everything.json()["switch"]["level"] == "system"


async def test_an_entity_is_moved(store: str) -> None:
    """To another parent, and to none; under the same key once."""
    async with asking(store) as found:
        for entity_id in ("team", "key-1"):
            await found.limiter.create_entity(entity_id)
        moved = await found.change("parent", entity="key-1", parent="team", cascade=True, key="k-1")
        assert mismatches(moved.json(), shapes.ParentChangeShape) == []
        assert (moved.json()["entity"]["parent"], moved.json()["entity"]["cascade"]) == ("team", True)
        alone = await found.change("parent", entity="key-1", parent=None, key="k-2")
        assert alone.json()["entity"]["parent"] is None
        circle = await found.change("parent", entity="team", parent="team", key="k-3")
        assert circle.status_code == 400
        nobody = await found.change("parent", entity="nobody", parent=None, key="k-4")
        assert (nobody.status_code, nobody.headers["content-type"]) == (404, "application/problem+json")


WRONG: list[tuple[str, Any, str]] = [
    ("limits", [], "body"),
    ("limits", {"level": "all", "limits": []}, "level"),
    ("limits", {"level": "system"}, "limits"),
    ("limits", {"level": "system", "limits": "rpm:60"}, "limits"),
    ("limits", {"level": "system", "limits": ["rpm"]}, "limit"),
    ("limits", {"level": "system", "limits": ["rpm:60", "rpm:70"]}, "limits"),
    ("limits", {"level": "system", "limits": [7]}, "limits"),
    ("limits", {"level": "system", "limits": ["rpm:60"] * 100}, "limits"),
    ("limits", {"level": "system", "entity": "a", "limits": ["rpm:60"]}, "entity"),
    ("limits", {"level": "entity", "limits": ["rpm:60"]}, "entity"),
    ("limits", {"level": "resource", "limits": ["rpm:60"]}, "resource"),
    ("limits", {"level": "system", "limits": ["rpm:60"], "principal": "me"}, "principal"),
    ("top-up", {**BUCKET, "amounts": {"rpm": 1}}, "key"),
    ("top-up", {**BUCKET, "amounts": {}, "key": "k"}, "amounts"),
    ("top-up", {**BUCKET, "amounts": {"rpm": -1}, "key": "k"}, "amount of 'rpm'"),
    ("top-up", {**BUCKET, "amounts": {"rpm": True}, "key": "k"}, "amount of 'rpm'"),
    ("top-up", {**BUCKET, "amounts": [1], "key": "k"}, "amounts"),
    ("top-up", {"entity": "a#b", "resource": "r", "amounts": {"rpm": 1}, "key": "k"}, "entity"),
    ("reset", {**BUCKET, "limits": "rpm", "key": "k"}, "limits"),
    ("reset", {**BUCKET, "limits": ["nope"], "key": "k"}, "limit"),
    ("forgive", {"entity": "key-1", "key": "k"}, "resource"),
    ("switch", {"state": "off", "reason": "all"}, "level"),
    ("switch", {"entity": "a", "state": "off"}, "reason"),
    ("switch", {"entity": "a", "state": "gone"}, "state"),
    ("switch", {"entity": "a", "state": "on", "reason": "x"}, "reason"),
    ("switch", {"entity": "a", "state": "bypass", "counted": 1}, "counted"),
    ("parent", {"entity": "a", "key": "k"}, "parent"),
    ("parent", {"entity": "a", "parent": None}, "key"),
]


@pytest.mark.parametrize(("name", "said", "field"), WRONG)
async def test_what_is_wrong_is_told_by_its_field_and_changes_nothing(
    memory: str, name: str, said: Any, field: str
) -> None:
    """As a problem document of 400."""
    async with asking(memory) as found:
        await found.limiter.set_system_defaults([RPM])
        await used(found.limiter, rpm=5)
        before = len(await found.limiter.get_audit_events("$SYSTEM"))
        headers = {"authorization": f"Bearer {SECRETS['change']}"}
        answer = await found.http.post(f"/v1/change/{name}", json=said, headers=headers)
        assert (answer.status_code, answer.json().get("field")) == (400, field)
        assert len(await found.limiter.get_audit_events("$SYSTEM")) == before
        assert await found.limiter.get_limits("key-1") == []


@pytest.mark.parametrize("name", list(CHANGES))
async def test_only_whoever_may_change_does(memory: str, name: str) -> None:
    """No token 401, one that reads or decides 403, and where nobody may change anything nobody does."""
    async with asking(memory) as found:
        nobody = await found.http.post(f"/v1/change/{name}", json={})
        others = [(await found.change(name, SECRETS[scope])).status_code for scope in ("decide", "read")]
        assert (nobody.status_code, others) == (401, [403, 403])
    async with asking(memory, changes=False) as found:
        refused = await found.change(name, ALL, level="system", limits=["rpm:1"])
        assert refused.status_code == 403
        assert "does not grant 'change'" in refused.json()["detail"]
        assert await found.limiter.get_system_defaults() == ([], None)


async def test_a_cookie_changes_something_only_with_the_header_of_the_page(memory: str) -> None:
    """No page of somebody else can send that."""
    said = {"level": "system", "limits": ["rpm:60/min"]}
    async with asking(memory) as found:
        session = await found.http.post("/ui/session", json={"token": ALL})
        assert session.status_code == 200
        refused = await found.http.post("/v1/change/limits", json=said)
        assert refused.status_code == 403
        changed = await found.http.post("/v1/change/limits", json=said, headers={PAGE_HEADER: "1"})
        assert (changed.status_code, changed.json()["limits"][0]["text"]) == (200, "rpm:60/min")
        (event,) = await found.limiter.get_audit_events("$SYSTEM")
        assert event.principal == "all"
