"""``/metrics``: who may read it, and that whichever worker is asked answers for all that live."""

import asyncio
import gc
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.server.asking import asking
from tests.server.test_app import SECRET, application, client, config
from tests.stores import url_of
from tests.telemetry.test_exposition import samples
from zae_limiter import Limit, RateLimiter, RateLimitExceeded
from zae_limiter.server.metrics import LEFT_SECONDS, Desk, readings_of
from zae_limiter.server.tokens import token_of
from zae_limiter.telemetry.exposition import CONTENT_TYPE

READ = {"authorization": f"Bearer {SECRET}"}
DECIDE_ONLY = "zae_" + "6" * 64
LIMITS = [Limit.per_hour("rpm", 6)]
PACED = {"rps": {"capacity": 10, "refill_amount": 20, "refill_period": 1}}


async def use(limiter: RateLimiter, times: int) -> None:
    for _ in range(times):
        try:
            async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, LIMITS):
                pass
        except RateLimitExceeded:
            pass


async def test_a_scrape_needs_the_scope_read() -> None:
    """Unless the server was started with metrics that are open."""
    tokens = (token_of("decides", ["decide"], DECIDE_ONLY), token_of("all", ["read"], SECRET))
    async with client(tokens=tokens) as asking:
        answers = [
            await asking.get("/metrics", headers=headers)
            for headers in ({}, {"authorization": f"Bearer {DECIDE_ONLY}"}, READ)
        ]
    assert [answer.status_code for answer in answers] == [401, 403, 200]
    assert answers[2].headers["content-type"] == CONTENT_TYPE
    async with client(metrics_open=True) as asking:
        assert (await asking.get("/metrics")).status_code == 200
    async with client(metrics=False) as asking:
        assert (await asking.get("/metrics", headers=READ)).status_code == 404


async def test_it_counts_what_the_server_decides() -> None:
    """Every series has the worker that counted it, and is there once."""
    app = application(config())
    async with app.router.lifespan_context(app):
        await use(app.state.server.limiter, 8)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400") as asking:
            found = samples((await asking.get("/metrics", headers=READ)).text)
    results = {
        dict(labels)["result"]: value
        for (name, labels), value in found.items()
        if name == "zae_limiter_acquire_total"
    }
    assert results == {"admitted": 6, "refused": 2}
    assert {dict(labels)["worker"] for _, labels in found} == {"0"}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_what_is_sent_again_is_counted_once(store: str, count: int, tmp_path: Path) -> None:
    """However empty the bucket is by then; and a lease that a record answers for is open in no process."""
    demands = [{"entity": f"key-{at}", "resource": "gpt-4", "consume": {"rpm": 10}} for at in range(count)]
    async with asking(store=url_of(store, tmp_path)) as server:
        cells = server.server.watch.observer.cells

        async def sent(key: str, **more: object) -> tuple[int, str | None]:
            answer = await server.post("/v1/acquire", {"demands": demands, **more}, key=key)
            return answer.status_code, answer.headers.get("idempotency-replayed")

        assert await sent("one") == (200, None)
        for _ in range(3):
            assert await sent("one") == (200, "true")
            assert await sent("one", wait=5) == (200, "true")
            assert await sent("two") == (429, None)  # which is remembered, and refuses others, too
        await server.server.limiter.reset("key-0", "gpt-4")
        assert await sent("one") == (200, "true")
        paced = {"resource": "paced", "consume": {"rps": 10}, "limits": PACED}
        demands = [{**one, **paced} for one in demands]
        assert await sent("three") == (200, None)
        assert await sent("four", wait=15) == (200, None)
        gc.collect()
        admitted, waited = cells["gpt-4"], cells["paced"]
        assert (admitted.admitted, admitted.taken) == (count, {"rpm": 10_000 * count})
        assert admitted.refused == {"rpm": 3 * count}
        assert [one.requested for one in server.server.watch.recent] == [{"rpm": 10}]
        assert (admitted.failed, admitted.open, admitted.handed_over) == (0, 0, count)
        assert (waited.admitted, waited.failed, waited.open, waited.handed_over) == (
            2 * count,
            0,
            0,
            2 * count,
        )


async def test_whoever_is_asked_answers_for_all(tmp_path: Path) -> None:
    """With the numbers that each has; a worker that is gone is gone from the next scrape, too."""
    told = config(store=f"sqlite:///{tmp_path}/limits.db", workers=3)
    async with AsyncExitStack() as stack:
        apps = [application(told) for _ in range(3)]
        for app in apps[:2]:
            await stack.enter_async_context(app.router.lifespan_context(app))
        async with apps[2].router.lifespan_context(apps[2]):
            for number, app in enumerate(apps):
                await use(app.state.server.limiter, number + 1)
            await left(apps)
            for app in apps:
                assert await admitted(app) == {"0": 1, "1": 2, "2": 3}
        assert await admitted(apps[0]) == {"0": 1, "1": 2}
    assert not apps[0].state.server.desk._folder.exists()


async def left(apps: list[object]) -> None:
    for app in apps:
        server = app.state.server  # type: ignore[attr-defined]
        await asyncio.to_thread(server.desk._leave, readings_of(server.watch.observer))


async def admitted(app: object) -> dict[str, float]:
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400") as asking:
        found = samples((await asking.get("/metrics", headers=READ)).text)
    return {
        dict(labels)["worker"]: value
        for (name, labels), value in found.items()
        if name == "zae_limiter_acquire_total" and ("result", "admitted") in labels
    }


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"zae_limiter.queued": [[["memory"], "x"]]}'])
async def test_what_a_worker_left_half_done_does_no_harm(damage: bytes, tmp_path: Path) -> None:
    """It is left out of the scrape."""
    told = config(store=f"sqlite:///{tmp_path}/limits.db", workers=2)
    app, other = application(told), application(told)
    async with app.router.lifespan_context(app), other.router.lifespan_context(other):
        await use(app.state.server.limiter, 1)
        await asyncio.sleep(0)
        desk: Desk = other.state.server.desk
        desk._path(desk.worker, "json").write_bytes(damage)
        assert await admitted(app) == {"0": 1}
    assert LEFT_SECONDS <= 1


async def test_a_machine_without_a_place_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever cannot be written there, decisions are made, and a worker tells of itself."""

    def none() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    for workers in (1, 2):
        app = application(config(store=f"sqlite:///{tmp_path}/limits.db", workers=workers))
        async with app.router.lifespan_context(app):
            await use(app.state.server.limiter, 1)
            assert await admitted(app) == {"0": 1}


async def test_one_worker_writes_no_file() -> None:
    """There is nobody who would read it."""
    app = application(config())
    async with app.router.lifespan_context(app):
        assert not app.state.server.desk._folder.exists()
