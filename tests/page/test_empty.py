"""The page on a store in which nothing has happened: each view says what to do, and keeps nobody out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.page.browser import Browser
from tests.page.served import CHANGER, Served, serving

EMPTY = {
    "overview": ["Nobody is near a limit", "Nobody was refused", "Nothing is limited yet"],
    "entities": ["There are no entities yet", "zae-limiter entity create"],
    "entity?entity=nobody&resource=api": ["not created", "Nothing was used yet", "never used", "Not lately"],
    "limits": ["The system has no limits", "zae-limiter system set-defaults"],
    "limits?level=resource": ["No resource has limits", "zae-limiter resource set-defaults"],
    "limits?level=entity": ["No entity has limits of its own", "zae-limiter entity set-limits"],
    "usage": ["Nothing was used yet"],
    "audit": ["Nothing was changed yet"],
    "audit?of=entity": ["Which entity?"],
    "health": ["well", "No process has reported"],
    "nowhere": ["There is no such view"],
}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("empty")
    with serving(folder, f"sqlite:///{folder}/limits.db", "--changes") as found:
        yield found


@pytest.mark.parametrize("place", EMPTY)
def test_what_is_empty_says_what_to_do(browser: Browser, empty: Served, place: str) -> None:
    """In words, with a command or a button, and without a complaint of the browser."""
    if browser.run("return location.origin") != empty.url:
        browser.open(empty.page(CHANGER))
        browser.settled()
    browser.complaints()
    browser.run("location.hash = arguments[0]", f"#/{place}")
    for text in EMPTY[place]:
        browser.sees(text, "main")
    assert browser.barriers() == []
    assert browser.complaints() == []


def test_the_first_limit_is_set_where_there_was_none(browser: Browser, empty: Served) -> None:
    """From the empty view to a limit that binds everybody."""
    del empty
    browser.go("limits")
    browser.click("Set limits", "main")
    browser.fill("dialog .line input", "rpm:60")
    browser.click("Set 1 limit", "dialog")
    browser.sees("Done", "dialog")
    browser.click("Close", ".dialog-foot")
    browser.sees("rpm:60/min", "main")
