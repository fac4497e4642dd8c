"""The page on ten thousand entities: a page of rows at a time, and few requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.page.browser import Browser
from tests.page.served import Served, serving
from tests.page.speed import ENTITIES, fill, opened


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Ten thousand entities, a fifth of them with a bucket that was used."""
    folder = tmp_path_factory.mktemp("many")
    store = f"sqlite:///{folder}/limits.db"
    fill(store)
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
    for name, took in opened(browser, many):
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
