"""The site in a real browser: no complaints, nothing comes from elsewhere, everybody can use it."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from docs.site import contents
from tests.page.browser import PHONE, WIDE, Browser, chromium
from tests.patience import wait_until

LOOKS = [
    ("index.html", WIDE, "light"),
    ("index.html", PHONE, "dark"),
    ("law.html", WIDE, "light"),
    ("law.html", PHONE, "dark"),
    ("quotas.html", WIDE, "dark"),
    ("quotas.html", PHONE, "light"),
    ("reference/leases.html", WIDE, "light"),
    ("reference/leases.html", PHONE, "dark"),
    ("start.html", WIDE, "dark"),
    ("start.html", PHONE, "light"),
    ("comparison.html", WIDE, "light"),
    ("comparison.html", PHONE, "dark"),
    ("settings.html", WIDE, "dark"),
    ("settings.html", PHONE, "light"),
    ("reference/commands.html", WIDE, "light"),
    ("reference/commands.html", PHONE, "dark"),
]
"""Pages, on a desk or a phone, in the colours that somebody has chosen."""
FILM_BYTES_MAX = 1_500_000
VIDEOS = """return [...document.querySelectorAll('.film video')].map(
    (one) => [getComputedStyle(one).display !== 'none', !one.paused && one.currentTime > 0])"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and does not say so."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def loaded(browser: Browser) -> set[str]:
    """Where all that came from which the page shows, but for what is within it."""
    script = "return performance.getEntriesByType('resource').map((one) => one.name)"
    return {"/".join(name.split("/")[:3]) for name in browser.run(script) if not name.startswith("data:")}


@pytest.mark.parametrize(("page", "size", "colours"), LOOKS)
def test_a_page_is_for_everybody(
    browser: Browser, url: str, page: str, size: tuple[int, int], colours: str
) -> None:
    """Light or dark, on a desk or a phone: no error, no barrier, no sideways scrolling, no other host."""
    browser.complaints()
    browser.size(size)
    browser.colours(colours)
    browser.open(f"{url}/{page}")
    wait_until(lambda: browser.run("return document.fonts.status === 'loaded'"))
    assert browser.barriers() == []
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert browser.complaints() == []
    assert loaded(browser) == {url}
    assert "Inter" in browser.run("return getComputedStyle(document.querySelector('h1')).fontFamily")
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 29)"}[colours]


def test_the_film_plays(browser: Browser, url: str) -> None:
    """One of the two, that of the colours one has, by itself; and stops when it is told to."""
    no_preference = [
        {"name": "prefers-color-scheme", "value": "dark"},
        {"name": "prefers-reduced-motion", "value": "no-preference"},
    ]
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": no_preference})
    browser.open(f"{url}/index.html")
    wait_until(lambda: browser.run(VIDEOS) == [[False, False], [True, True]], "the film does not play")
    browser.click("Pause")
    wait_until(lambda: browser.run(VIDEOS) == [[False, False], [True, False]], "it does not stop")
    assert browser.run("return document.querySelector('.film-dark').duration") == pytest.approx(30, abs=1)


def test_the_film_waits_for_who_prefers_less_motion(browser: Browser, url: str) -> None:
    """There is a picture, and a button that plays it."""
    browser.colours("light")
    browser.open(f"{url}/index.html")
    browser.button("Play")
    assert browser.run(VIDEOS) == [[True, False], [False, False]]
    assert browser.run("return document.querySelector('.film-light').currentTime") == 0
    browser.click("Play")
    wait_until(lambda: browser.run(VIDEOS) == [[True, True], [False, False]], "the film does not play")


def test_the_films_are_small() -> None:
    """Both together, with their pictures."""
    files = list((contents.ROOT / "docs" / "site" / "assets").glob("film-*"))
    assert sorted(file.name for file in files) == [
        "film-dark.jpg",
        "film-dark.webm",
        "film-light.jpg",
        "film-light.webm",
    ]
    assert sum(file.stat().st_size for file in files) < FILM_BYTES_MAX


def test_a_bucket_can_be_drained(browser: Browser, url: str) -> None:
    """The pictures of the law move on the site too."""
    browser.colours("light")  # and its clock stands
    browser.open(f"{url}/law.html")
    for _ in range(3):
        browser.click("Take 4", "[data-scene=drain]")
    browser.sees("Refused", "[data-scene=drain] .law-answer")
    assert loaded(browser) == {url}


def test_what_is_copied_can_be_typed(browser: Browser, url: str) -> None:
    """Neither the prompt of a shell nor what a command prints; of a program, all of it."""
    browser.size(WIDE)
    browser.open(f"{url}/start.html")
    listen = "addEventListener('copy', () => { window.copied.push(String(getSelection())) }, true)"
    browser.run(f"window.copied = []; {listen}")
    page = (contents.ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(console|python)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert {language for language, _ in blocks} == {"console", "python"}
    for button in browser.all(".md-code__button"):
        browser.run("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
    wait_until(lambda: len(browser.run("return window.copied")) == len(blocks), "not all is copied")
    assert [one.splitlines() for one in browser.run("return window.copied")] == [
        re.findall(r"^\$ (.*)$", text, re.MULTILINE) if language == "console" else text.splitlines()
        for language, text in blocks
    ]


def test_a_group_leads_to_its_first_page(browser: Browser, url: str) -> None:
    """Whoever presses "Start" comes to the page that starts, not to a list."""
    browser.size(WIDE)
    browser.open(f"{url}/index.html")
    places = browser.run("return [...document.querySelectorAll('.md-tabs__link')].map((one) => one.href)")
    assert places[:2] == [f"{url}/index.html", f"{url}/start.html"]


def test_what_is_looked_for_is_found(browser: Browser, url: str) -> None:
    """By the search, which has every page and asks nobody."""
    browser.size(WIDE)
    browser.open(f"{url}/index.html")
    browser.run("document.querySelector('[data-md-toggle=search]').click()")
    browser.fill(".md-search__input", "retry_after_seconds")
    wait_until(lambda: bool(browser.all(".md-search-result__link")), "nothing is found")
    assert loaded(browser) == {url}
