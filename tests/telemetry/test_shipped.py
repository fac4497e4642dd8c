"""What is shipped works: each panel shows something on the real Prometheus, each rule does what it says."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.engines.prometheus_server import Recorded, recorded, tool
from zae_limiter import Limit, RateLimiter, RateLimitExceeded
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.repository import Repository
from zae_limiter.runtime.loops import Asyncio
from zae_limiter.telemetry import Telemetry
from zae_limiter.telemetry.metrics import METRICS
from zae_limiter.telemetry.shipped import alerts, dashboard, metric_table
from zae_limiter.testing import Fault, FaultyBackend

STEP_SECONDS = 15
SCRAPES = 60
LIMITS = [Limit.per_minute("rpm", 100), Limit.per_minute("tpm", 10_000).softly()]
PAGE = Path(__file__).parent.parent.parent / "docs" / "telemetry.md"


def scraped(telemetry: Telemetry, at: float) -> list[str]:
    """What Prometheus keeps of a scrape, with its time."""
    lines = []
    for family in text_string_to_metric_families(telemetry.prometheus_text()):
        for sample in family.samples:
            labels = {"job": "gateway", "instance": "one", **sample.labels}
            told = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
            lines.append(f"{sample.name}{{{told}}} {sample.value} {at}")
    return lines


class Suspending(FaultyBackend):
    """A store whose answers take a turn of the loop, so that others stand in line meanwhile.

    No fault strikes those who hold and want the crane: one waits through all scrapes, and asks when it likes.
    """

    async def _ask(self, verb: str, ask: Any, given: Any) -> Any:
        await asyncio.sleep(0)
        return await (ask(given) if "crane" in repr(given) else super()._ask(verb, ask, given))


async def busy(until: float) -> list[str]:
    """Some minutes of a limiter to which all happens that can, as they were scraped."""
    faulty = Suspending(MemoryBackend(colour=Asyncio()))
    limiter = RateLimiter(await Repository.over(faulty))
    one_at_once = [Limit.concurrent("parallel", 1, hold="1h")]
    lines: list[str] = []
    await limiter.set_resource_defaults("gpt-4", LIMITS, on_unavailable="allow")
    await limiter.set_resource_defaults("jobs", [Limit.per_second("rps", 200)])
    with Telemetry(limiter) as telemetry:
        held = await limiter.acquire("crew", "crane", {"parallel": 1}, one_at_once)
        waiting = asyncio.create_task(
            limiter.acquire("crew", "crane", {"parallel": 1}, one_at_once, wait=600).open()
        )
        for scrape in range(SCRAPES):
            await work(limiter, f"key-{scrape}", faulty)
            lines += scraped(telemetry, until - (SCRAPES - scrape) * STEP_SECONDS)
        await held.commit()
        await (await waiting).commit()
    await limiter.close()
    return lines


async def work(limiter: RateLimiter, entity_id: str, faulty: FaultyBackend) -> None:
    """Admitted, refused, corrected, given back, waited for, unchecked, in a crowd."""

    async def one() -> None:
        try:
            async with limiter.acquire(entity_id, "gpt-4", {"rpm": 15, "tpm": 2_000}) as lease:
                await lease.adjust(tpm=-100)
        except RateLimitExceeded:
            pass

    await asyncio.gather(*(one() for _ in range(12)))
    async with limiter.acquire(entity_id, "jobs", {"rps": 200}):
        pass
    async with limiter.acquire(entity_id, "jobs", {"rps": 1}, wait=60):
        pass
    lease = await limiter.acquire(entity_id, "jobs", {"rps": 1}, wait=60)
    await lease.cancel()
    faulty.always = Fault.UNREACHABLE
    async with limiter.acquire(entity_id, "gpt-4", {"rpm": 1}):
        pass
    faulty.always = None


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Recorded, float]]:
    until = float(int(time.time()) - 3_600)
    lines = asyncio.run(busy(until))
    with recorded(lines, tmp_path_factory.mktemp("prometheus")) as it:
        yield it, until


PANELS = [
    pytest.param(panel["title"], target["expr"], id=f"{panel['title']} {target['refId']}")
    for panel in json.loads(dashboard())["panels"]
    for target in panel["targets"]
]


NOTHING_WAS_LOST = ("zae_limiter_refunds_lost_total", "zae_limiter_seats_lost_total")
"""What is zero where all is well, as in what was recorded."""


@pytest.mark.parametrize(("title", "expression"), PANELS)
def test_each_panel_shows_something(title: str, expression: str, prometheus: tuple[Recorded, float]) -> None:
    """Its query gives numbers from a scrape that was recorded, and not only zeros."""
    server, until = prometheus
    asked = expression.replace("$__rate_interval", "1m").replace("$job", ".*")
    found = server.over(asked, until - SCRAPES * STEP_SECONDS, until, STEP_SECONDS)
    values = [float(value) for series in found for _, value in series["values"]]
    if any(name in expression for name in NOTHING_WAS_LOST):
        assert set(values) == {0.0}, f"{title}: {asked}"
    else:
        assert any(value > 0 for value in values), f"{title} shows nothing: {asked}"


def test_panels_and_rules_name_what_there_is() -> None:
    """Every metric that they ask for is one of ours, and every metric of ours is in a panel or a rule."""
    asked = dashboard() + alerts()
    named = set(re.findall(r"zae_limiter_[a-z_]+", asked))
    ours = {
        name for row in metric_table().splitlines() for name in re.findall(r"`(zae_limiter_[a-z_]+)`", row)
    }
    endings = ("_bucket", "_sum", "_count")
    there = ours | {f"{name}{ending}" for name in ours for ending in endings}
    assert named <= there
    assert all(any(one.startswith(name) for one in named) for name in ours)


def test_panels_have_names_and_places_of_their_own() -> None:
    """Nothing lies upon something else."""
    panels = json.loads(dashboard())["panels"]
    taken = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["title"] for panel in panels}) == len(panels) == len({panel["id"] for panel in panels})


FIRES = {
    "ZaeLimiterUnchecked": {'zae_limiter_degraded_total{job="a",store="redis"}': "0+3x60"},
    "ZaeLimiterUnavailable": {
        'zae_limiter_acquire_total{job="a",store="redis",result="unavailable"}': "0+1x60"
    },
    "ZaeLimiterStoreErrors": {
        'zae_limiter_store_errors_total{job="a",store="redis",verb="query"}': "0+5x60",
        'zae_limiter_store_duration_seconds_count{job="a",store="redis",verb="query"}': "0+100x60",
    },
    "ZaeLimiterStoreSlow": {
        'zae_limiter_store_duration_seconds_bucket{job="a",store="redis",le="0.25"}': "0+1x60",
        'zae_limiter_store_duration_seconds_bucket{job="a",store="redis",le="0.5"}': "0+100x60",
        'zae_limiter_store_duration_seconds_bucket{job="a",store="redis",le="+Inf"}': "0+100x60",
    },
    "ZaeLimiterRefundsLost": {'zae_limiter_refunds_lost_total{job="a",store="redis"}': "0 0 0 1+0x60"},
    "ZaeLimiterSeatsLost": {'zae_limiter_seats_lost_total{job="a",store="redis"}': "0 0 0 1+0x60"},
    "ZaeLimiterWaitsLong": {
        'zae_limiter_wait_duration_seconds_bucket{job="a",resource="r",le="30"}': "0+1x60",
        'zae_limiter_wait_duration_seconds_bucket{job="a",resource="r",le="60"}': "0+100x60",
        'zae_limiter_wait_duration_seconds_bucket{job="a",resource="r",le="+Inf"}': "0+100x60",
    },
    "ZaeLimiterRefusesMuch": {
        'zae_limiter_acquire_total{job="a",resource="r",result="refused"}': "0+9x60",
        'zae_limiter_acquire_total{job="a",resource="r",result="admitted"}': "0+1x60",
    },
}
AT = {"ZaeLimiterRefundsLost": "10m", "ZaeLimiterSeatsLost": "10m"}


def rules_test(folder: Path, alert: str, series: dict[str, str], *, fires: bool) -> Path:
    """A file by which promtool says whether a rule fires on some series."""
    (folder / "alerts.yaml").write_text(alerts(), encoding="utf-8")
    firing = {
        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
        "eval_time": AT.get(alert, "50m"),
        "exp_samples": [{"value": 1, "labels": "{}"}] if fires else [],
    }
    given = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": given, "promql_expr_test": [firing]}
    told = {"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": [test]}
    path = folder / "rules_test.yaml"
    path.write_text(yaml.safe_dump(told), encoding="utf-8")
    return path


@pytest.mark.parametrize("alert", FIRES)
def test_a_rule_fires_when_it_should(alert: str, tmp_path: Path) -> None:
    """And is silent where the numbers stand still."""
    tool("test", "rules", rules_test(tmp_path, alert, FIRES[alert], fires=True))
    still = dict.fromkeys(FIRES[alert], "5x60")
    tool("test", "rules", rules_test(tmp_path, alert, still, fires=False))


def test_every_rule_is_tried(tmp_path: Path) -> None:
    """The rules are well formed, and none was forgotten above."""
    path = tmp_path / "alerts.yaml"
    path.write_text(alerts(), encoding="utf-8")
    tool("check", "rules", path)
    assert {rule["alert"] for group in yaml.safe_load(alerts())["groups"] for rule in group["rules"]} == set(
        FIRES
    )


def test_the_page_has_all_names() -> None:
    """The table is made by ``zae-limiter metrics list --markdown``."""
    text = PAGE.read_text(encoding="utf-8")
    _, start, rest = text.partition("<!-- metrics -->\n")
    table, end, _ = rest.partition("\n<!-- end of metrics -->")
    assert start
    assert end
    assert table == metric_table()
    assert len(METRICS) == len({metric.name for metric in METRICS})
