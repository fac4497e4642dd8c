"""What moves: levels between two looks, changes that bind, refusals as they happen, a server that goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.dynamodb_local import free_port
from tests.page.browser import Browser
from tests.page.served import CHANGER, Running, Served, serving
from tests.page.speed import refused_beside
from tests.patience import wait_until
from zae_limiter import Limit, PermissionDenied, RateLimitExceeded, SyncRateLimiter
from zae_limiter.telemetry import Telemetry


@pytest.fixture(autouse=True)
def looking(browser: Browser, served: Served) -> None:
    if not browser.run("return location.pathname").startswith("/ui"):
        browser.open(served.page(CHANGER))
    browser.settled()


def test_levels_move_between_two_looks(browser: Browser, served: Served) -> None:
    """A bucket that fills is seen to fill, also while nothing is heard from the server."""
    with SyncRateLimiter.open(served.store) as limiter:
        limiter.set_limits("filling", [Limit.per_minute("calls", 6_000)], resource="api")
        with limiter.acquire("filling", "api", {"calls": 6_000}):
            pass
    browser.go("entity?entity=filling")
    browser.sees("calls", ".level")
    read = "return Number(document.querySelector('.level .left').innerText.replaceAll(',', ''))"
    width = "return document.querySelector('.level .fill').getBoundingClientRect().width"
    script = f"""const close = EventSource.prototype.close; window.EventSource = function () {{ return {{
        addEventListener() {{}}, close() {{}} }} }}; {read}"""
    browser.run(script)  # no stream is opened from now on
    browser.go("entity?entity=key-2")
    browser.go("entity?entity=filling")
    browser.sees("calls", ".level")
    before, wide = browser.run(read), browser.run(width)
    wait_until(lambda: bool(browser.run(read) > before and browser.run(width) > wide), "it stands still")
    browser.driver.refresh()


def take(store: str, entity: str, amount: int) -> None:
    """Use some of a limit that gains nothing while a test looks."""
    with SyncRateLimiter.open(store) as limiter:
        limiter.set_limits(entity, [Limit.per_day("calls", 100)], resource="api")
        with limiter.acquire(entity, "api", {"calls": amount}):
            pass


def test_a_level_falls_when_somebody_uses_it(browser: Browser, served: Served) -> None:
    """What another program takes is seen at the entity by the stream alone."""
    take(served.store, "sinking", 10)
    browser.go("entity?entity=sinking")
    browser.sees("Live", ".connection")
    browser.sees("90", ".level .left")
    browser.hears_only_the_stream()
    take(served.store, "sinking", 50)
    wait_until(lambda: browser.text(".level .left") == "40", "the level stands still")
    browser.driver.refresh()


def test_who_comes_nearer_is_seen_to(browser: Browser, served: Served) -> None:
    """Of those who are nearest to a limit, too, the level falls by the stream alone."""
    take(served.store, "nearing", 81)
    left = """const found = [...document.querySelectorAll('.nearest tbody tr')];
        return found.find((row) => row.innerText.includes('nearing'))?.querySelector('.left').innerText"""
    browser.go("overview")
    browser.sees("Live", ".connection")
    wait_until(lambda: bool(browser.run(left) == "19"), "who is near is not there")
    browser.hears_only_the_stream()
    take(served.store, "nearing", 12)
    wait_until(lambda: bool(browser.run(left) == "7"), "the level stands still")
    browser.driver.refresh()


def test_a_change_binds_who_runs(browser: Browser, served: Served) -> None:
    """A program that is refused is admitted once its limit is raised on the page, and the other way round."""
    with SyncRateLimiter.open(served.store) as limiter:
        limiter.set_limits("runner", [Limit.per_day("calls", 2)], resource="api")
    with Running.beside(served.store, "runner", "api") as running:
        wait_until(lambda: running.refused > 0)
        admitted = running.admitted
        assert admitted == 2
        browser.go("entity?entity=runner&resource=api")
        browser.click("Edit the limits on api")
        browser.fill("dialog .line input", "calls:100000/min")
        browser.click("Set 1 limit", "dialog")
        browser.sees("Done", "dialog")
        wait_until(lambda: running.admitted > admitted + 10, "the change does not bind")
        browser.click("Close", ".dialog-foot")
        browser.click("Edit the limits on api")
        browser.fill("dialog .line input", "calls:1/day")
        browser.click("Set 1 limit", "dialog")
        browser.sees("Done", "dialog")
        refused = running.refused
        wait_until(lambda: running.refused > refused + 3, "the cut does not bind")
        browser.click("Close", ".dialog-foot")


def test_a_refusal_is_seen_as_it_happens(
    browser: Browser, served: Served, record_property: pytest.RecordProperty
) -> None:
    """Who was refused, on what and by which limit, in the list and for whoever listens, without a reload."""
    with refused_beside(browser, served.store) as delay_s:
        record_property("refusal_seen_after_seconds", round(delay_s, 2))
        print(f"a refusal was seen {delay_s:.2f} s after it happened")
        browser.sees("calls said no to 1 calls", ".ticker")
        browser.sees("eager was refused on api by calls", "[role=status].hidden-text")
    browser.driver.refresh()


def test_what_never_passes_says_so_and_money_is_money(browser: Browser, served: Served) -> None:
    """Also where only the entity has a limit that counts money."""
    browser.go("overview")
    with SyncRateLimiter.open(served.store) as limiter, Telemetry(limiter) as telemetry:
        telemetry.share()
        limiter.set_limits("greedy", [Limit.per_month("usd", 1_000_000, unit="usd_micro")], resource="paid")
        with pytest.raises(RateLimitExceeded):
            limiter.acquire("greedy", "paid", {"usd": 5_000_000}).open()
        browser.sees("usd said no to $5.00 · never passes", ".ticker")


def test_a_switch_says_why_and_a_seat_when_at_the_latest(browser: Browser, served: Served) -> None:
    """Both are refusals; no time is told as certain that is not, in the list and at the level."""
    browser.go("overview")
    with SyncRateLimiter.open(served.store) as limiter, Telemetry(limiter) as telemetry:
        telemetry.share()
        limiter.set_limits("seated", [Limit.concurrent("parallel", 1, hold="10m")], resource="jobs")
        limiter.disable(entity_id="banned", reason="unpaid since May")
        with limiter.acquire("seated", "jobs", {"parallel": 1}):
            with pytest.raises(RateLimitExceeded):
                limiter.acquire("seated", "jobs", {"parallel": 1}).open()
            with pytest.raises(PermissionDenied):
                limiter.acquire("banned", "jobs", {"parallel": 1}).open()
            browser.sees("Switched off: unpaid since May", ".ticker")
            browser.sees("again in at most 1", ".ticker")
            browser.picture("refused-light")
            browser.go("entity?entity=seated")
            browser.sees("1 at work", ".level")
            assert "full in" not in browser.text(".level")


def test_a_server_that_goes_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    """The page says that it has lost it, keeps what it showed, and goes on by itself."""
    store, port = f"sqlite:///{tmp_path}/limits.db", str(free_port())
    with SyncRateLimiter.open(store) as limiter:
        limiter.set_system_defaults([Limit.per_minute("rpm", 60)])
        with limiter.acquire("steady", "api", {"rpm": 30}):
            pass
    with serving(tmp_path, store, "--port", port, tokens=False) as first:
        browser.open(f"{first.url}/ui/")
        browser.settled()
        browser.sees("Live", ".connection")
        browser.sees("steady", "main")
    browser.sees("Reconnecting", ".connection")
    assert "steady" in browser.text("main")
    with serving(tmp_path, store, "--port", port, tokens=False):
        browser.sees("Live", ".connection")
        browser.sees("steady", "main")
    browser.open("about:blank")


def test_a_server_that_was_started_anew_asks_for_a_token(browser: Browser, tmp_path: Path) -> None:
    """Its cookies are good for one start; the page asks instead of showing nothing."""
    store, port = f"sqlite:///{tmp_path}/limits.db", str(free_port())
    with serving(tmp_path, store, "--port", port) as first:
        browser.open(first.page(CHANGER))
        browser.settled()
        browser.sees("Live", ".connection")
    with serving(tmp_path, store, "--port", port):
        browser.sees("Show a token")
    browser.open("about:blank")
