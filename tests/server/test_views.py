"""What the page is shown: each route's answer has its declared shape, on several stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.looker import ALL, SECRETS, Asking, asking, mismatches
from tests.stores import STORES, url_of
from zae_limiter import Limit, RateLimiter, RateLimitExceeded
from zae_limiter.server import view_shapes as shapes
from zae_limiter.server.views import VIEWS
from zae_limiter.telemetry import Telemetry

RPM = Limit.per_minute("rpm", 10)
USD = Limit.per_month("usd", 99_500_000, unit="usd_micro")
STRANGE = '<img src=x onerror=alert(1)>/a|b?"&=%23 \u05d0\u4e2d\U0001f600'

EACH: dict[str, tuple[Any, dict[str, str]]] = {
    "me": (shapes.MeShape, {}),
    "overview": (shapes.OverviewShape, {}),
    "refusals": (shapes.RefusalsShape, {"entity": "key-1", "limit_rows": "5"}),
    "entities": (shapes.EntitiesShape, {"q": "key", "size": "5"}),
    "entity": (shapes.EntityShape, {"entity": "key-1"}),
    "children": (shapes.ChildrenShape, {"entity": "team"}),
    "buckets": (shapes.BucketsShape, {"entity": "key-1", "resource": "gpt-4"}),
    "explain": (shapes.ExplainShape, {"entity": "key-1", "resource": "gpt-4"}),
    "configs": (shapes.ConfigsShape, {"level": "entity", "resource": "gpt-4"}),
    "audit": (shapes.AuditShape, {"entity": "key-1"}),
    "health": (shapes.HealthShape, {}),
}


async def fill(found: Asking) -> None:
    """A small family with limits at every level, something used, and somebody off."""
    limiter = found.limiter
    await limiter.create_entity("team", "The team")
    await limiter.create_entity("key-1", "Key <b>1</b>", "team", cascade=True, metadata={"plan": "pro"})
    await limiter.create_entity(STRANGE, STRANGE, "team")
    await limiter.set_system_defaults([Limit.per_minute("rpm", 100)], on_unavailable="allow")
    await limiter.set_resource_defaults("gpt-4", [RPM, USD])
    await limiter.set_limits("key-1", [RPM, USD], "gpt-4", principal="ops")
    await limiter.disable(entity_id=STRANGE, reason="has not paid", principal="ops")
    async with limiter.acquire("key-1", "gpt-4", {"rpm": 9, "usd": 500_000}):
        pass


@asynccontextmanager
async def filled(store: str, **more: Any) -> AsyncIterator[Asking]:
    async with asking(store, **more) as found:
        await fill(found)
        yield found


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


@pytest.fixture
def memory(tmp_path: Path) -> str:
    return url_of("memory", tmp_path)


def test_every_view_has_a_declared_shape() -> None:
    """So that no route is left out of the tests below; the stream and usage have their own."""
    assert EACH.keys() >= VIEWS.keys() - {"usage"}


async def test_every_view_answers_in_its_shape(store: str) -> None:
    """All fields, no others, each of its type: what the page reads cannot drift."""
    async with filled(store) as found:
        for name, (shape, query) in EACH.items():
            assert mismatches(await found.view(name, **query), shape, name) == []
        for level in ("system", "resource"):
            assert mismatches(await found.view("configs", level=level), shapes.ConfigsShape) == []
        for about in ({"resource": "gpt-4"}, {"system": "1"}):
            assert mismatches(await found.view("audit", **about), shapes.AuditShape) == []


async def test_an_entity_is_shown_with_its_family_and_its_levels(store: str) -> None:
    """Itself first and those above it, its children, its limits, and what its buckets hold."""
    async with filled(store) as found:
        key, team = await found.view("entity", entity="key-1"), await found.view("entity", entity="team")
    assert (key["chain"], key["name"], key["metadata"]) == (
        ["key-1", "team"],
        "Key <b>1</b>",
        {"plan": "pro"},
    )
    levels = {one["limit"]["name"]: one for one in key["buckets"][0]["levels"]}
    assert levels["rpm"]["available"] in (1, 2)
    assert (levels["rpm"]["binds"], levels["usd"]["binds"]) == (True, False)
    assert (levels["usd"]["available_shown"], levels["usd"]["capacity_shown"]) == ("$99.00", "$99.50")
    assert levels["usd"]["per_second"] == 0
    assert [one["limits"][1]["text"] for one in key["own"]] == ["usd:99.50USD/month@UTC"]
    assert [one["entity"] for one in team["children"]["rows"]] == sorted([STRANGE, "key-1"])
    assert (team["parent"], team["exists"]) == (None, True)
    # It was charged together with its child.
    assert [one["resource"] for one in team["buckets"]] == ["gpt-4"]


async def test_whoever_is_near_a_limit_is_seen_first(store: str) -> None:
    """The nearest to empty first, by the limit that is."""
    async with filled(store) as found:
        for entity_id, used in (("key-2", 10), ("key-3", 5)):
            async with found.limiter.acquire(entity_id, "gpt-4", {"rpm": used, "usd": 0}):
                pass
        seen = await found.view("overview")
    assert [(one["entity"], one["worst"]) for one in seen["near"]] == [
        ("key-2", "rpm"),
        ("key-1", "rpm"),
        ("team", "rpm"),
        ("key-3", "rpm"),
    ]
    assert (seen["looked_at"], seen["buckets_known"], seen["is_all"]) == (4, 4, True)
    (resource,) = seen["resources"]
    assert (resource["resource"], resource["buckets"], resource["refusing"]) == ("gpt-4", 4, 1)
    assert [one["text"] for one in resource["limits"]] == ["rpm:10/min", "usd:99.50USD/month@UTC"]
    assert [(one["state"], one["entity"], one["by"]) for one in seen["off"]] == [("off", STRANGE, "ops")]


async def test_why_limits_apply_is_told_as_the_command_line_tells_it(memory: str) -> None:
    """The sentences, the four levels with the one that wins, and whoever of the family binds."""
    async with filled(memory) as found:
        told = await found.view("explain", entity="key-1", resource="gpt-4")
    assert [one["so"] for one in told["buckets"][0]["levels"]] == [
        "wins",
        "has none",
        "overruled",
        "overruled",
    ]
    assert [one["entity"] for one in told["buckets"]] == ["key-1", "team"]
    assert "if these limits are changed (the entity's own for it), 'key-1' goes by the new ones" in " ".join(
        told["sentences"]
    )
    binding = [one["limit"]["name"] for one in told["buckets"][0]["applying"] if one["binds"]]
    assert binding == ["rpm", "usd"]


async def test_names_of_any_script_survive_as_data(store: str) -> None:
    """What looks like markup, quotes, slashes and signs of every plane come back as they were sent."""
    async with filled(store) as found:
        one = await found.view("entity", entity=STRANGE)
        rows = (await found.view("entities", q=STRANGE[:10]))["rows"]
        answer = await found.asked("entity", entity=STRANGE)
    assert (one["entity"], one["name"], one["chain"]) == (STRANGE, STRANGE, [STRANGE, "team"])
    assert [(row["entity"], row["switch"]["reason"]) for row in rows] == [(STRANGE, "has not paid")]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", [*EACH, "live", "usage"])
async def test_only_whoever_may_read_is_told(memory: str, name: str) -> None:
    """Without a token it is 401, and with one for other things 403."""
    async with asking(memory) as found:
        query = EACH[name][1] if name in EACH else {}
        nobody = await found.http.get(f"/v1/view/{name}", params=query)
        assert nobody.status_code == 401
        for scope in ("decide", "change"):
            assert (await found.asked(name, SECRETS[scope], **query)).status_code == 403


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("entity", {}, "entity"),
    ("entity", {"entity": ""}, "entity"),
    ("entity", {"entity": "a#b"}, "entity"),
    ("entity", {"entity": "x" * 9000}, "entity"),
    ("entity", {"entity": ["a", "b"]}, "entity"),
    ("entities", {"limit": "3"}, "limit"),
    ("entities", {"size": "0"}, "size"),
    ("entities", {"size": "201"}, "size"),
    ("entities", {"size": "²"}, "size"),
    ("entities", {"q": "a\nb"}, "q"),
    ("entities", {"cursor": "nonsense"}, "cursor"),
    ("children", {"entity": "a", "cursor": "00"}, "cursor"),
    ("buckets", {"entity": "a", "resource": "#"}, "resource"),
    ("explain", {"entity": "a"}, "resource"),
    ("configs", {}, "level"),
    ("configs", {"level": "all"}, "level"),
    ("configs", {"level": "system", "resource": "a"}, "resource"),
    ("audit", {}, "entity"),
    ("audit", {"entity": "a", "system": "1"}, "entity"),
    ("audit", {"system": "yes"}, "system"),
    ("audit", {"entity": "a", "cursor": "x"}, "start_event_id"),
    ("refusals", {"limit_rows": "1000"}, "limit_rows"),
    ("me", {"now": "1"}, "now"),
    ("overview", {"near": "1"}, "near"),
]


@pytest.mark.parametrize(("name", "query", "field"), WRONG)
async def test_what_is_asked_wrong_is_told_by_its_field(
    memory: str, name: str, query: dict[str, Any], field: str
) -> None:
    """As a problem document of 400, whatever is wrong."""
    async with asking(memory) as found:
        answer = await found.asked(name, **query)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["field"] == field


async def test_a_password_of_the_store_is_not_told(tmp_path: Path) -> None:
    """Not by what says where the data is, and not by anything else."""
    store = "redis://somebody:hunter2@127.0.0.1:1/0"
    async with asking(url_of("memory", tmp_path)) as found:
        found.limiter.repository._connection.url = store
        answers = [await found.asked(name, ALL, **query) for name, (_, query) in EACH.items()]
    assert answers[0].json()["store"] == "redis://…@127.0.0.1:1/0"
    assert not any("hunter2" in answer.text for answer in answers)


async def test_a_list_comes_in_pages_that_go_on_where_the_last_one_ended(store: str) -> None:
    """Each entity once and in order, whatever the size of a page; also those that begin with something."""
    async with asking(store) as found:
        ids = [f"key-{number:02}" for number in range(23)]
        for entity_id in ids:
            await found.limiter.create_entity(entity_id)
            await found.limiter.set_limits(entity_id, [RPM], "gpt-4")
        for name, query in (
            ("entities", {"q": "key-"}),
            ("configs", {"level": "entity", "resource": "gpt-4"}),
        ):
            met, cursor = [], None
            while True:
                more = {} if cursor is None else {"cursor": cursor}
                page = await found.view(name, size=10, **query, **more)
                assert len(page["rows"]) <= 10
                met += [row["entity"] for row in page["rows"]]
                cursor = page["next"]
                if cursor is None:
                    break
            assert met == ids
        assert [row["entity"] for row in (await found.view("entities", q="key-1"))["rows"]] == ids[10:20]


async def test_the_trail_is_told_newest_first(memory: str) -> None:
    """Of an entity, of a resource or of the system, page by page."""
    async with filled(memory) as found:
        first = await found.view("audit", entity="key-1", size=1)
        second = await found.view("audit", entity="key-1", size=1, cursor=first["next"])
        system = await found.view("audit", system="1")
        resource = await found.view("audit", resource="gpt-4")
    assert [row["action_text"] for row in first["rows"] + second["rows"]] == ["limits set", "entity created"]
    assert [(row["principal"], row["resource"]) for row in first["rows"]] == [("ops", "gpt-4")]
    assert [(row["entity"], row["resource"]) for row in system["rows"]] == [(None, None)]
    assert [(row["entity"], row["resource"]) for row in resource["rows"]] == [(None, "gpt-4")]


async def test_levels_are_listed(memory: str) -> None:
    """The system's, the resources', and entities' for a resource or for all."""
    async with filled(memory) as found:
        await found.limiter.set_limits("team", [RPM])
        (system,) = (await found.view("configs", level="system"))["rows"]
        (resource,) = (await found.view("configs", level="resource"))["rows"]
        for_all = await found.view("configs", level="entity")
    assert (system["entity"], system["resource"], system["on_unavailable"]) == (None, None, "allow")
    assert (resource["resource"], len(resource["limits"])) == ("gpt-4", 2)
    assert sorted(one["entity"] for one in for_all["rows"]) == sorted(["team", STRANGE])
    assert for_all["resources"] == ["gpt-4"]


async def test_health_tells_what_was_checked(memory: str) -> None:
    """And what this worker has lost, if anything."""
    async with asking(memory) as found:
        well = await found.view("health")
        found.limiter.repository.writer.refunds_lost += 1
        lost = await found.view("health")
    assert (well["health"], [one["part"] for one in well["checks"]]) == (
        "green",
        ["store", "versions", "worker"],
    )
    assert (lost["health"], lost["checks"][-1]["detail"]) == (
        "yellow",
        "since this worker was started it lost 1 refunds",
    )


async def test_somebody_who_was_never_recorded_is_shown_by_what_it_used(memory: str) -> None:
    """An id need not be created to have buckets."""
    async with filled(memory) as found:
        with pytest.raises(RateLimitExceeded):
            async with found.limiter.acquire("guest", "gpt-4", {"rpm": 11, "usd": 0}):
                pass
        async with found.limiter.acquire("guest", "gpt-4", {"rpm": 1, "usd": 0}):
            pass
        guest = await found.view("entity", entity="guest")
    assert (guest["exists"], guest["chain"], len(guest["buckets"])) == (False, ["guest"], 1)


async def test_other_processes_are_heard(store: str) -> None:
    """Whom they refused, and how they do, as far as they tell."""
    async with filled(store) as found, RateLimiter.open(store) as elsewhere:
        with Telemetry(elsewhere, name="elsewhere") as told:
            told.share()
            with pytest.raises(RateLimitExceeded):
                async with elsewhere.acquire("key-1", "gpt-4", {"rpm": 9, "usd": 0}):
                    pass
            rows: list[Any] = []
            while not rows:
                rows = (await found.view("refusals", entity="key-1", resource="gpt-4"))["rows"]
                await asyncio.sleep(0.05)
            assert mismatches(rows, list[shapes.RefusalShape]) == []
            assert [(row["process"], row["limits"], row["count"]) for row in rows] == [
                ("elsewhere", ["rpm"], 1)
            ]
            assert (await found.view("refusals", entity="key-2"))["rows"] == []
            assert (await found.view("overview"))["refusals"] == rows
            health = await found.view("health")
    assert mismatches(health, shapes.HealthShape) == []
    assert ("elsewhere", 1) in [(one["name"], one["refused"]) for one in health["processes"]]
