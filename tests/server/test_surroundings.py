"""What is deployed around a table, as the view of health tells it: on a table, a stack, or unknown."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from urllib.parse import quote

import pytest

from tests.engines import emulator
from tests.infra.emulated import deployed
from tests.infra.scripted_aws import DENIED, ScriptedAws
from tests.patience import PATIENCE_SECONDS
from tests.server.looker import asking, mismatches
from tests.stores import url_of
from zae_limiter.infra import stack_manager
from zae_limiter.infra.health import QUESTIONS
from zae_limiter.server import surroundings
from zae_limiter.server import view_shapes as shapes


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks first waits until it is known, however busy the machine is."""
    monkeypatch.setattr(surroundings, "FIRST_WAIT_SECONDS", PATIENCE_SECONDS)


def by_part(told: Any) -> dict[str, str]:
    assert mismatches(told, shapes.HealthShape) == []
    found = {one["part"]: one["health"] for one in told["checks"]}
    assert len(found) == len(told["checks"]), "a part is told twice"
    return found


async def test_a_table_without_a_stack(tmp_path: Any) -> None:
    """Of a table by itself it tells how the table is, and that there is nothing else."""
    async with asking(url_of("dynamodb", tmp_path)) as found:
        told = by_part(await found.view("health"))
    assert told.keys() == {"store", "versions", "worker", "stack", *QUESTIONS}
    assert [told[part] for part in ("store", "versions", "table", "indexes")] == ["green"] * 4
    assert [told[part] for part in ("stack", "function", "mapping", "alarms")] == ["off"] * 4


async def test_a_table_with_all_around_it() -> None:
    """The function, its source and the alarms are there, as the command ``status`` has them."""
    with deployed() as name:
        place = f"region={emulator.REGION}&endpoint_url={quote(emulator.endpoint(), safe='')}"
        async with asking(f"dynamodb://{name}?{place}&timeout_ms=60000") as found:
            told = by_part(await found.view("health"))
    assert [told[part] for part in ("stack", "function", "mapping", "stream")] == ["green"] * 4


async def test_what_may_not_be_asked_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """And neither green nor red: the whole is as well as what is known."""
    monkeypatch.setattr(
        stack_manager, "open_cloud", lambda **_: ScriptedAws(DescribeTable=DENIED, DescribeStacks=DENIED)
    )
    async with asking(url_of("dynamodb", tmp_path)) as found:
        told = await found.view("health")
    assert by_part(told) == {
        **dict.fromkeys(("store", "versions", "worker"), "green"),
        "deployment": "unknown",
    }
    assert told["health"] == "green"
    assert "dynamodb:DescribeTable" in told["checks"][-1]["detail"]


async def test_it_is_asked_once_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """While it is slow others are answered, the end does not wait, and it is asked anew after a minute."""
    asked, go = list[str](), threading.Event()

    class Slow(ScriptedAws):
        async def send(self, service: str, operation: str, request: dict[str, Any]) -> dict[str, Any]:
            asked.append(operation)
            go.wait(PATIENCE_SECONDS)
            return await super().send(service, operation, request)

    monkeypatch.setattr(stack_manager, "open_cloud", lambda **_: Slow(DescribeTable=DENIED))
    monkeypatch.setattr(surroundings, "FIRST_WAIT_SECONDS", 0.01)
    try:
        async with asking(url_of("dynamodb", tmp_path)) as found:
            for _ in range(3):
                told = await found.view("health")
                assert by_part(told)["deployment"] == "unknown"
            assert len(asked) <= 1
            go.set()
            while "yet" in told["checks"][-1]["detail"]:
                await asyncio.sleep(0.01)
                told = await found.view("health")
            assert len(asked) == 1
            monkeypatch.setattr(surroundings, "ASK_SECONDS", 0.0)
            go.clear()
            await found.view("health")
    finally:
        go.set()


async def test_other_stores_have_none(tmp_path: Any) -> None:
    async with asking(url_of("sqlite", tmp_path)) as found:
        assert by_part(await found.view("health")).keys() == {"store", "versions", "worker"}
