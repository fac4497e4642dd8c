"""Decisions over HTTP: what is taken, what comes back, and what whoever sends again is answered."""

from __future__ import annotations

import asyncio

import pytest

from tests.server.asking import OTHER, READER, asking
from zae_limiter.models import Limit
from zae_limiter.records.leases import PLACES, LeaseRow
from zae_limiter.server.leases import StoredLeases
from zae_limiter.testing import ManualClock

EXPIRIES = [
    ("settle", None, 900),
    ("settle", 30, 970),
    ("settle", 300, 700),
    ("keep", 30, 900),
    ("keep", 300, 700),
    ("refund", 30, 1000),
]


async def test_a_lease_is_taken_and_given_back() -> None:
    """Tokens are gone while a lease is held, and all of them are back when it is cancelled."""
    async with asking() as server:
        taken = await server.acquire({"rpm": 2, "tpm": 300})
        assert taken.status_code == 200, taken.text
        lease = taken.json()
        assert (lease["state"], lease["consumed"]) == ("held", {"rpm": 2, "tpm": 300})
        assert lease["remaining"] == await server.left() == {"rpm": 8, "tpm": 700}
        assert taken.headers["ratelimit"] == '"rpm";r=8;t=48, "tpm";r=700;t=42'
        back = await server.post(f"/v1/leases/{lease['lease']}/cancel")
        assert (back.json()["state"], back.json()["consumed"]) == ("cancelled", {"rpm": 0, "tpm": 0})
        assert await server.left() == {"rpm": 10, "tpm": 1000}


async def test_what_it_really_cost() -> None:
    """What was noted last counts when a lease is committed: less comes back, more is charged, into debt."""
    async with asking() as server:
        one = (await server.acquire({"rpm": 1, "tpm": 500})).json()["lease"]
        noted = await server.post(f"/v1/leases/{one}/settle", {"totals": {"tpm": 700}})
        assert noted.json()["consumed"] == {"rpm": 1, "tpm": 700}
        assert (await server.left())["tpm"] == 500, "what is noted counts when it ends"
        ended = await server.post(f"/v1/leases/{one}/commit", {"totals": {"tpm": 120}})
        assert ended.json()["consumed"] == {"rpm": 1, "tpm": 120}
        assert await server.left() == {"rpm": 9, "tpm": 880}
        two = (await server.acquire({"rpm": 1, "tpm": 800})).json()["lease"]
        await server.post(f"/v1/leases/{two}/commit", {"totals": {"tpm": 2000}})
        assert (await server.left())["tpm"] < -1000


async def test_a_refusal_is_a_problem_document() -> None:
    """Who is refused learns of which limit and for how long, and nothing was taken."""
    async with asking() as server:
        refused = await server.acquire({"rpm": 11})
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["violated-policies"] == ["rpm"]
        await server.acquire({"rpm": 10})
        later = await server.acquire({"rpm": 1})
        assert (later.status_code, later.headers["retry-after"]) == (429, "6")
        assert await server.left() == {"rpm": 0, "tpm": 1000}


async def test_a_request_that_is_sent_again() -> None:
    """The same key gets the same lease, at the same time too, and is counted once."""
    async with asking() as server:
        answers = await asyncio.gather(*(server.acquire({"rpm": 3}, key="once") for _ in range(8)))
        leases = {answer.json()["lease"] for answer in answers}
        assert len(leases) == 1
        assert sum("idempotency-replayed" in answer.headers for answer in answers) == 7
        assert (await server.left())["rpm"] == 7
        other = await server.acquire({"rpm": 4}, key="once")
        assert other.status_code == 422
        (lease,) = leases
        ends = await asyncio.gather(
            *(server.post(f"/v1/leases/{lease}/commit", {"totals": {"rpm": 1}}, key="end") for _ in range(4))
        )
        assert {(end.status_code, end.json()["state"]) for end in ends} == {(200, "committed")}
        assert (await server.left())["rpm"] == 9
        again = await server.acquire({"rpm": 3}, key="once")
        assert (again.json()["lease"], again.json()["state"]) == (lease, "committed")


async def test_a_refusal_is_not_remembered() -> None:
    """What was refused under a key had taken nothing, and is decided anew."""
    async with asking() as server:
        held = (await server.acquire({"rpm": 10})).json()["lease"]
        assert (await server.acquire({"rpm": 1}, key="k")).status_code == 429
        await server.post(f"/v1/leases/{held}/cancel")
        assert (await server.acquire({"rpm": 1}, key="k")).status_code == 200


async def test_a_lease_ends_once() -> None:
    """Whoever ends it in the same way is answered again; in another way it is too late."""
    async with asking() as server:
        lease = (await server.acquire({"rpm": 2})).json()["lease"]
        first = await server.post(f"/v1/leases/{lease}/commit")
        again = await server.post(f"/v1/leases/{lease}/commit")
        assert (first.json(), again.status_code) == (again.json(), 200)
        for verb, said in (("cancel", None), ("settle", {"totals": {"rpm": 1}}), ("renew", None)):
            assert (await server.post(f"/v1/leases/{lease}/{verb}", said)).status_code == 409
        assert (await server.left())["rpm"] == 8


async def test_settling_again_under_a_key_changes_nothing() -> None:
    """An older total that is sent again does not overwrite a newer one."""
    async with asking() as server:
        path = f"/v1/leases/{(await server.acquire({'tpm': 100})).json()['lease']}"
        first = await server.post(f"{path}/settle", {"totals": {"tpm": 10}}, key="a")
        await server.post(f"{path}/settle", {"totals": {"tpm": 20}}, key="b")
        again = await server.post(f"{path}/settle", {"totals": {"tpm": 10}}, key="a")
        assert again.json() == first.json()
        assert (await server.post(f"{path}/settle", {"totals": {"tpm": 11}}, key="a")).status_code == 422
        assert (await server.post(f"{path}/commit")).json()["consumed"] == {"tpm": 20}


@pytest.mark.parametrize(("on_expiry", "noted", "left"), EXPIRIES)
async def test_a_lease_that_nobody_ends(on_expiry: str, noted: int | None, left: int) -> None:
    """It ends by itself as was said, once, and whoever comes too late is told so."""
    clock = ManualClock()
    async with asking(clock.world) as server:
        lease = (await server.acquire({"tpm": 100}, on_expiry=on_expiry, lease_seconds=1)).json()["lease"]
        if noted is not None:
            await server.post(f"/v1/leases/{lease}/settle", {"totals": {"tpm": noted}})
        clock.advance(1)
        late = await server.post(f"/v1/leases/{lease}/commit", {"totals": {"tpm": 1}})
        assert (late.status_code, late.json()["state"]) == (410, "expired")
        for place in range(PLACES):
            assert await server.server.leases.sweep(place) == 0
        assert (await server.left())["tpm"] == min(1000, left + 16), "16 tokens came in that second"


async def test_leases_that_expired_are_found() -> None:
    """The sweep of a worker ends what nobody asks for, and what was renewed later."""
    clock = ManualClock()
    async with asking(clock.world) as server:
        leases = [(await server.acquire({"tpm": 100}, on_expiry="refund")).json()["lease"] for _ in range(6)]
        longer = await server.post(f"/v1/leases/{leases[0]}/renew", {"lease_seconds": 600})
        assert longer.json()["expires_ms"] == clock.now_ms + 600_000
        clock.advance(60)
        swept = [await server.server.leases.sweep(place) for place in range(PLACES)]
        assert sum(swept) + server.server.leases.counts.expired >= 5
        assert (await server.post(f"/v1/leases/{leases[0]}/commit")).status_code == 200
        assert (await server.post(f"/v1/leases/{leases[1]}/commit")).status_code == 410


async def test_a_lease_that_cannot_be_ended_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong with one, the sweep ends the others, and goes on."""
    clock = ManualClock()
    async with asking(clock.world) as server:
        ids = [(await server.acquire({"tpm": 100}, on_expiry="refund")).json()["lease"] for _ in range(6)]
        leases = server.server.leases
        expire = leases.expire

        async def failing(row: LeaseRow) -> LeaseRow | None:
            if row.lease_id == ids[0]:
                raise KeyError("a mistake of ours")
            return await expire(row)

        monkeypatch.setattr(leases, "expire", failing)
        clock.advance(60)
        for place in range(PLACES):
            await leases.sweep(place)
        assert (leases.counts.expired, leases.counts.failed) == (5, 1)


@pytest.mark.parametrize("hold", ["8s", "1s"])
@pytest.mark.parametrize("is_waiting", [False, True])
async def test_a_seat_is_renewed_by_whichever_worker(hold: str, is_waiting: bool) -> None:
    """A lease that is held for longer than a seat keeps it, and loses it with its own end.

    Workers look for leases every few seconds, so a seat of theirs is held for longer than some limits say.
    """
    clock = ManualClock()
    async with asking(clock.world) as server:
        limits = [Limit.concurrent("parallel", 1, hold=hold), Limit.per_minute("rpm", 10)]
        await server.server.limiter.set_resource_defaults("gpu", limits)
        said = {"entity": "key-1", "resource": "gpu", "consume": {"parallel": 1}, "lease_seconds": 30}
        first = said
        if is_waiting:
            all_of_it = {**said, "consume": {"rpm": 10}, "lease": False}
            await server.post("/v1/acquire", {**all_of_it, "lease_seconds": None})
            first = {**said, "consume": {"parallel": 1, "rpm": 1}, "wait": 15}
        taken = (await server.post("/v1/acquire", first)).json()
        assert (taken["waited_ms"] > 0) is is_waiting
        lease = taken["lease"]
        other = StoredLeases(server.server.limiter)
        for _ in range(9):
            clock.advance(3)
            assert (await server.post("/v1/acquire", said)).status_code == 429
            for place in range(PLACES):
                await other.sweep(place)
        clock.advance(3)
        for place in range(PLACES):
            await other.sweep(place)
        assert (await server.post("/v1/acquire", said)).status_code == 200
        assert (await server.post(f"/v1/leases/{lease}/commit")).status_code == 410
        assert (await server.post("/v1/acquire", said)).status_code == 429, "it is its own seat"


async def test_several_demands_are_one_lease() -> None:
    """All or none, and each part is settled by itself."""
    async with asking() as server:
        await server.server.limiter.set_resource_defaults("search", [Limit.per_minute("rpm", 5)])
        demands = [
            {"entity": "key-1", "resource": "gpt-4", "consume": {"rpm": 1, "tpm": 100}},
            {"entity": "key-1", "resource": "search", "consume": {"rpm": 5}},
        ]
        taken = await server.post("/v1/acquire", {"demands": demands}, key="both")
        assert taken.status_code == 200, taken.text
        lease = taken.json()["lease"]
        assert (await server.post("/v1/acquire", {"demands": demands})).status_code == 429
        assert (await server.left()) == {"rpm": 9, "tpm": 900}
        both = await server.post(f"/v1/leases/{lease}/settle", {"totals": {"rpm": 1}})
        assert (both.status_code, both.json()["field"]) == (400, "totals.rpm")
        said = {"totals": {"rpm": 2}, "resource": "search"}
        assert (await server.post(f"/v1/leases/{lease}/commit", said)).status_code == 200
        assert (await server.left()) == {"rpm": 9, "tpm": 900}
        assert (await server.left(resource="search")) == {"rpm": 3}


async def test_as_many_buckets_as_change_at_once_beside_a_record() -> None:
    """Fifty entities with a parent each are one bucket too many; whoever asks is told so."""
    async with asking() as server:
        repository = server.server.limiter.repository
        for number in range(50):
            await repository.create_entity(f"above-{number}")
            await repository.create_entity(f"e-{number}", parent_id=f"above-{number}", cascade=True)
        demands = [{"entity": f"e-{at}", "resource": "gpt-4", "consume": {"rpm": 1}} for at in range(50)]
        for key in (None, "k"):
            refused = await server.post("/v1/acquire", {"demands": demands}, key=key)
            assert (refused.status_code, refused.json()["field"]) == (400, "demands"), refused.text
        assert (await server.post("/v1/acquire", {"demands": demands, "lease": False})).status_code == 200
        taken = await server.post("/v1/acquire", {"demands": demands[1:]})
        assert taken.status_code == 200, taken.text
        ended = await server.post(f"/v1/leases/{taken.json()['lease']}/cancel")
        assert ended.status_code == 200, ended.text
        assert [(await server.left(entity=e))["rpm"] for e in ("e-0", "e-7", "above-7")] == [9, 9, 9]


async def test_a_plain_decision() -> None:
    """Without a lease it counts at once; with a key, once."""
    async with asking() as server:
        plain = await server.acquire({"rpm": 1}, lease=False)
        assert (plain.json()["lease"], plain.json()["state"]) == (None, "decided")
        for _ in range(2):
            keyed = await server.acquire({"rpm": 1}, lease=False, key="k")
            assert (keyed.status_code, keyed.json()["state"]) == (200, "decided")
        assert (await server.left())["rpm"] == 8


async def test_seats_are_held_by_a_lease() -> None:
    """A seat is taken with the lease and back with its end; a plain decision cannot have one."""
    async with asking() as server:
        await server.server.limiter.set_resource_defaults("gpu", [Limit.concurrent("parallel", 1, hold="1m")])
        about = {"entity": "key-1", "resource": "gpu", "need": "parallel:1"}
        said = {"entity": "key-1", "resource": "gpu", "consume": {"parallel": 1}}
        first = await server.post("/v1/acquire", said)
        assert first.status_code == 200, first.text
        assert (await server.post("/v1/acquire", said)).status_code == 429
        assert (await server.get("/v1/available", **about)).json()["retry_after_is_latest"] is True
        await server.post(f"/v1/leases/{first.json()['lease']}/commit")
        assert (await server.get("/v1/available", **about)).json()["retry_after_is_latest"] is False
        for key in (None, "k"):
            plain = await server.post("/v1/acquire", {**said, "lease": False}, key=key)
            assert (plain.status_code, plain.json()["field"]) == (400, "lease")
        second = await server.post("/v1/acquire", said)
        assert second.status_code == 200
        await server.post(f"/v1/leases/{second.json()['lease']}/cancel")
        assert (await server.left(resource="gpu")) == {"parallel": 1}


async def test_who_waits_gets_a_lease_when_its_turn_has_come() -> None:
    """A request waits as long as it says, and no longer."""
    async with asking() as server:
        limits = {"rps": {"capacity": 50, "refill_amount": 50, "refill_period": 1}}
        said = {"entity": "w", "resource": "r", "consume": {"rps": 50}, "limits": limits}
        assert (await server.post("/v1/acquire", said)).status_code == 200
        waits = {**said, "consume": {"rps": 2}, "wait": 10}
        waited = await server.post("/v1/acquire", waits, key="w")
        assert waited.status_code == 200, waited.text
        assert waited.json()["waited_ms"] >= 0
        again = await server.post("/v1/acquire", waits, key="w")
        assert again.json()["lease"] == waited.json()["lease"]


async def test_who_may_ask() -> None:
    """A token without the scope, another's lease and no token at all."""
    async with asking() as server:
        lease = (await server.acquire()).json()["lease"]
        said = {"entity": "a", "resource": "gpt-4", "consume": {"rpm": 1}}
        assert (await server.post("/v1/acquire", said, secret=READER)).status_code == 403
        assert (await server.http.post("/v1/acquire", json=said)).status_code == 401
        assert (await server.post(f"/v1/leases/{lease}/commit", secret=OTHER)).status_code == 404
        assert (await server.post(f"/v1/leases/{lease}/commit")).status_code == 200


MISTAKES = [
    ({}, "entity"),
    ({"entity": "a", "resource": "gpt-4", "consume": {"rpm": 1.5}}, "consume.rpm"),
    ({"entity": "a", "resource": "gpt-4", "consume": {"rpm": True}}, "consume.rpm"),
    ({"entity": "a", "resource": "gpt-4", "consume": [1]}, "consume"),
    ({"entity": "a", "resource": "gpt-4", "consume": {"rpm": 1}, "wiat": 1}, "wiat"),
    ({"entity": "a", "resource": "gpt-4", "consume": {"rpm": 1}, "wait": 1e9}, "wait"),
    ({"entity": "a", "resource": "gpt-4", "consume": {"rpm": 1}, "lease_seconds": 0}, "lease_seconds"),
    ({"entity": "a", "resource": "gpt-4", "consume": {"rpm": 1}, "on_expiry": "no"}, "on_expiry"),
    ({"entity": "a", "resource": "gpt-4", "consume": {"rpm": 1}, "lease": "no"}, "lease"),
    ({"entity": "a", "resource": "gpt-4", "consume": {"rpm": 1}, "demands": []}, "entity"),
    ({"demands": []}, "demands"),
    ({"entity": 7, "resource": "gpt-4", "consume": {"rpm": 1}}, "entity"),
    ({"entity": "a#b", "resource": "gpt-4", "consume": {"rpm": 1}}, "entity"),
    ({"entity": "a", "resource": "gpt-4", "consume": {"rpm": -1}}, "consume.rpm"),
    ({"entity": "a", "resource": "gpt-4", "consume": {"rpm": 10**30}}, "consume.rpm"),
    ({"entity": "a", "resource": "gpt-4", "consume": {"rmp": 1}}, "consume"),
    ({"entity": "a", "resource": "gpt-4", "consume": {"rpm": 1}, "limits": {"rpm": "2/min"}}, "limits.rpm"),
    (
        {"entity": "a", "resource": "gpt-4", "consume": {"rpm": 1}, "limits": {"rpm": {"capacity": 0}}},
        "limits.rpm.capacity",
    ),
]


async def test_who_has_no_limits_is_told_so_in_words_of_the_server() -> None:
    """No name of a Python method, for whoever asks may never have seen one."""
    async with asking() as server:
        said = {"entity": "a", "resource": "a-b", "consume": {"rpm": 1}}
        answer = await server.post("/v1/acquire", said)
    told = answer.json()
    assert (answer.status_code, told["field"], "set_resource_defaults" in told["detail"]) == (
        400,
        "limits",
        False,
    )


@pytest.mark.parametrize(("said", "field"), MISTAKES, ids=[field for _, field in MISTAKES])
async def test_mistakes_are_told_by_their_field(said: dict[str, object], field: str) -> None:
    """Bad input is 400 with the field, and changes nothing."""
    async with asking() as server:
        answer = await server.post("/v1/acquire", said)
        assert (answer.status_code, answer.json().get("field")) == (400, field), answer.text
        assert (await server.left(entity="a"))["rpm"] == 10
