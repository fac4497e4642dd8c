"""The buckets to try on the page "the law", in a real browser: keyboard, light and dark, standing still."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.page.browser import PHONE, WIDE, Browser, chromium
from tests.patience import wait_until

DOCS = Path(__file__).resolve().parents[2] / "docs"
LAW = (DOCS / "law.md").read_text(encoding="utf-8")
PLACE = re.compile(
    r'<div class="law-scene" data-scene="(\w+)"></div>\n\n<!-- [^\n]* -->\n```text\n(.*?)```', re.DOTALL
)
SCENES: dict[str, str] = dict(PLACE.findall(LAW))
TABS_MAX = 60


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The places of the page, each with its picture of letters behind it, and nothing around them."""
    assets = (DOCS / "assets").as_uri()
    places = "".join(
        f'<div class="law-scene" data-scene="{name}"></div><pre>{html.escape(picture)}</pre>'
        for name, picture in SCENES.items()
    )
    path = tmp_path_factory.mktemp("law") / "law.html"
    path.write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>law</title>'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f'<link rel="stylesheet" href="{assets}/law.css"><main><h1>The law</h1>{places}</main>'
        f'<script src="{assets}/law.js"></script><script src="{assets}/law-scenes.js"></script>',
        encoding="utf-8",
    )
    return path.as_uri()


@pytest.fixture
def scenes(browser: Browser, page: str) -> Browser:
    """The page, just opened; nothing moves by itself."""
    browser.size(WIDE)
    browser.colours("light")
    browser.open(page)
    return browser


def place(name: str) -> str:
    return f'[data-scene="{name}"]'


def answer(browser: Browser, name: str) -> str:
    return browser.text(f"{place(name)} [role=status]")


def held(browser: Browser, name: str) -> list[str]:
    """What a screen reader is told of the levels."""
    script = (
        "return [...document.querySelectorAll(arguments[0])].map((one) => one.getAttribute('aria-valuetext'))"
    )
    found: list[str] = browser.run(script, f"{place(name)} [role=meter]")
    return found


def test_each_place_has_its_scene_and_its_picture(scenes: Browser) -> None:
    """Four places; with scripts the picture is hidden, without it is all there is."""
    assert list(SCENES) == ["drain", "both", "debt", "line"]
    assert all(picture.count("\n") > 3 for picture in SCENES.values())
    assert scenes.run("return [...document.querySelectorAll('pre')].map((one) => one.hidden)") == [True] * 4
    assert [answer(scenes, name) for name in SCENES] == ["The bucket is full."] * 4
    assert scenes.complaints() == []


def test_a_bucket_is_drained_by_keyboard(scenes: Browser) -> None:
    """Tab and Enter are enough; a millisecond too early is refused, at the millisecond it is admitted."""

    def go_to(label: str) -> None:
        for _ in range(TABS_MAX):
            scenes.press(Keys.TAB)
            focus = scenes.focus()
            assert focus["isShown"], focus
            if focus["text"] == label:
                return
        raise AssertionError(f"{label} is not reached")

    go_to("Take 4")
    scenes.press(Keys.ENTER)
    scenes.press(Keys.SPACE)
    assert (answer(scenes, "drain"), held(scenes, "drain")) == ("Admitted: 4 rpm.", ["2.000 of 10"])
    scenes.press(Keys.ENTER)
    assert answer(scenes, "drain") == "Refused by rpm: 4 rpm fits in 4,000 ms."
    go_to("Ask again 1 ms too early")
    scenes.press(Keys.ENTER)
    assert answer(scenes, "drain") == "Refused by rpm: 4 rpm fits in 1 ms."
    assert held(scenes, "drain") == ["3.999 of 10"]
    go_to("Ask again at the told millisecond")
    scenes.press(Keys.ENTER)
    assert (answer(scenes, "drain"), held(scenes, "drain")) == ("Admitted: 4 rpm.", ["0.000 of 10"])


def test_what_never_fits_is_told_so(scenes: Browser) -> None:
    """More than the capacity has no wait."""
    scenes.click("Take 11", place("drain"))
    assert answer(scenes, "drain") == "Refused for ever: 11 rpm is more than the bucket can hold."


def test_two_limits_take_all_or_nothing(scenes: Browser) -> None:
    """As the picture of letters says."""
    for _ in range(2):
        scenes.click("1 request, 700 tokens", place("both"))
    assert answer(scenes, "both") == (
        "Refused by tpm: 1 rpm, 700 tpm fits in 4,000 ms. Nothing was taken of the other."
    )
    assert held(scenes, "both") == ["3.000 of 4", "300.000 of 1,000"]
    scenes.click("1 request, 100 tokens", place("both"))
    assert held(scenes, "both") == ["2.000 of 4", "200.000 of 1,000"]


def test_settling_makes_debt_and_gives_back(scenes: Browser) -> None:
    """A debt is shown as one, and the next one waits for it; what failed comes back."""
    scenes.click("It failed: refund", place("debt"))
    assert answer(scenes, "debt") == "There is no lease. Reserve something first."
    for _ in range(2):
        scenes.click("Reserve 400", place("debt"))
    scenes.click("It failed: refund", place("debt"))
    assert held(scenes, "debt") == ["600.000 of 1,000"]
    scenes.click("It took 1,700: settle", place("debt"))
    assert held(scenes, "debt") == ["-700.000 of 1,000"]
    assert len(scenes.all(f"{place('debt')} .law-debt")) == 1
    scenes.click("Reserve 400", place("debt"))
    assert answer(scenes, "debt") == "Refused by tpm: 400 tpm fits in 11,000 ms."
    scenes.click("+ 10 s", place("debt"))
    assert held(scenes, "debt") == ["300.000 of 1,000"]


def test_a_line_has_turns(scenes: Browser) -> None:
    """Two begin at once, the others one a second; who does not wait is behind them all."""
    for _ in range(4):
        scenes.click("Wait for 1, up to 5 s", place("line"))
    assert answer(scenes, "line") == "Job 4 begins in 2,000 ms."
    scenes.click("Take 1 without waiting", place("line"))
    assert answer(scenes, "line") == "Refused by calls: 1 calls fits in 3,000 ms."
    scenes.click("+ 1 s", place("line"))
    jobs = scenes.text(f"{place('line')} .law-jobs")
    assert re.findall(r"job \d: (?:at work|in [\d,]+ ms)", jobs)[2:] == [
        "job 3: at work",
        "job 4: in 1,000 ms",
    ]
    for _ in range(5):
        scenes.click("Wait for 1, up to 5 s", place("line"))
    assert answer(scenes, "line") == "Refused at once: the wait would be 6,000 ms."


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_nobody_is_kept_out(scenes: Browser, scheme: str, size: tuple[int, int]) -> None:
    """No barriers in either scheme, and nothing is wider than the window."""
    scenes.colours(scheme)
    scenes.size(size)
    scenes.click("Take 4", place("drain"))
    scenes.click("Reserve 400", place("debt"))
    scenes.click("It took 1,700: settle", place("debt"))
    assert scenes.barriers() == []
    assert scenes.run("return document.documentElement.scrollWidth <= innerWidth")
    scenes.picture(f"law-{scheme}-{size[0]}")


def test_the_clock_runs_only_where_motion_is_welcome(scenes: Browser, page: str) -> None:
    """It stands where the reader prefers less motion, until it is told to run; elsewhere one can stop it."""
    time = f"{place('drain')} .law-time"
    assert scenes.text(time) == "0.000 s"
    scenes.click("Run the clock", place("drain"))
    wait_until(lambda: scenes.text(time) != "0.000 s", "it does not run")
    scenes.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-reduced-motion", "value": "no-preference"}]},
    )
    scenes.open(page)
    wait_until(lambda: scenes.text(time) != "0.000 s", "it does not run")
    scenes.click("Stop the clock", place("drain"))
    stopped = scenes.text(time)
    scenes.click("+ 1 ms", place("drain"))
    before, after = (int(re.sub(r"\D", "", text)) for text in (stopped, scenes.text(time)))
    assert after == before + 1
