"""The page on ten thousand entities: a page of rows at a time, and few requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.page.browser import Browser
from tests.page.served import CHANGER, Served, serving
from tests.patience import wait_until
from zae_limiter import Limit, SyncRateLimiter

ENTITIES, USED = 10_000, 2_000

TIMED = """
window.seen = {};
new MutationObserver(() => {
  for (const [name, selector] of [["overview", ".nearest tbody tr"], ["entities", ".card-foot .pager"]]) {
    if (!(name in window.seen) && document.querySelector(selector)) window.seen[name] = performance.now();
  }
}).observe(document, {childList: true, subtree: true});
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Ten thousand entities, a fifth of them with a bucket that was used."""
    folder = tmp_path_factory.mktemp("many")
    store = f"sqlite:///{folder}/limits.db"
    with SyncRateLimiter.open(store) as limiter:
        limiter.set_resource_defaults("gpt-4", [Limit.per_day("rpd", 100), Limit.per_day("tpd", 10_000)])
        for number in range(ENTITIES):
            limiter.repository.create_entity(f"key-{number:05}")
        for number in range(USED):
            with limiter.acquire(f"key-{number:05}", "gpt-4", {"rpd": 1 + number % 90, "tpd": 100}):
                pass
    with serving(folder, store) as found:
        yield found


def requests(browser: Browser) -> list[str]:
    """What was asked of the server, without the files of the page."""
    script = """return performance.getEntriesByType('resource').map((one) => one.name)
        .filter((name) => name.includes('/v1/')).map((name) => name.replace(location.origin, ''))"""
    found: list[str] = browser.run(script)
    return found


def test_it_opens_at_once(browser: Browser, many: Served, record_property: pytest.RecordProperty) -> None:
    """With few requests, at most fifty rows, and a figure for whoever wants to know how fast that was."""
    browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": TIMED})
    browser.open(many.page(CHANGER))
    browser.settled()
    browser.one(".nearest tbody tr")
    for name in ("overview", "entities"):
        browser.open("about:blank")
        browser.open(f"{many.url}/ui/#/{name}")
        wait_until(lambda name=name: bool(browser.run("return window.seen[arguments[0]]", name)))  # type: ignore[misc]
        took = round(browser.run("return window.seen[arguments[0]]", name))
        record_property(f"{name}_ms", took)
        print(f"{name} of {ENTITIES} entities was there after {took} ms")
        asked = [one for one in requests(browser) if "/live" not in one]
        assert len(asked) <= 3, asked
    assert len(browser.all("tbody tr")) == 100


def test_all_of_them_are_reached(browser: Browser, many: Served) -> None:
    """By leafing and by the beginning of an id, a page of a hundred at a time, with one request each."""
    del many
    browser.go("entities")
    browser.sees("1–100", ".pager")
    before = len(requests(browser))
    browser.click("Next")
    browser.sees("101–200", ".pager")
    browser.sees("key-00100", "tbody")
    assert len(requests(browser)) == before + 1
    browser.click("Back")
    browser.sees("1–100", ".pager")
    browser.fill(".search-inline input", "key-0999")
    browser.sees("1–10", ".pager")
    browser.sees("key-09999", "tbody")
    browser.fill(".search-inline input", "nobody")
    browser.sees("No entity begins like this", "main")
