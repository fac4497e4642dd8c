"""A real browser without a window, and what tests ask of it: what is to be seen, what is complained of."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.engines.servers import program
from tests.patience import wait_until

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / ".engines/node_modules/axe-core/axe.min.js"
PICTURES = Path(os.environ.get("PAGE_SCREENSHOTS") or ROOT / ".page-screenshots")

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync --hide-scrollbars --disable-dev-shm-usage"
)
WIDE, PHONE = (1360, 900), (360, 780)
TALLEST = 2600


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, which is gone afterwards."""
    profile = tempfile.mkdtemp(prefix="zae-limiter-browser-")
    options = webdriver.ChromeOptions()
    options.binary_location = program("chromium")
    for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(program("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
        shutil.rmtree(profile, ignore_errors=True)


class Browser:
    """What tests do with it. Everything that must come is waited for."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.size(WIDE)

    def size(self, size: tuple[int, int]) -> None:
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def colours(self, scheme: str) -> None:
        """What the system of whoever looks prefers, light or dark; what moves stands still."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, url: str) -> None:
        self.driver.get(url)

    def go(self, place: str) -> None:
        """Another view of the page, once it is there."""
        self.run("location.hash = arguments[0]", f"#/{place}")
        self.settled()

    def settled(self) -> None:
        """Wait for a view that has what it shows."""
        wait_until(
            lambda: bool(
                self.run("return !!document.querySelector('main h1') && !document.querySelector('.bone')")
            ),
            "the view is not there",
        )

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)  # type: ignore[no-untyped-call]

    def text(self, selector: str = "body") -> str:
        """What is to be read there, or nothing."""
        found = self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return str(found)

    def sees(self, text: str, selector: str = "body") -> None:
        """Wait until a text is there."""
        wait_until(lambda: text in self.text(selector), f"{text!r} is not in {selector}")

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """An element, once it is there."""
        wait_until(lambda: bool(self.all(selector)), f"there is no {selector}")
        return self.all(selector)[0]

    def button(self, text: str, within: str = "body") -> WebElement:
        """The button that is called so by what is on it or by its label, once it is there."""
        found: list[WebElement] = []

        def is_there() -> bool:
            script = """const [where, text] = arguments;
                return [...document.querySelector(where)?.querySelectorAll('button') ?? []].filter(
                    (one) => one.innerText.trim() === text || one.ariaLabel === text)"""
            found[:] = self.run(script, within, text)
            return bool(found)

        wait_until(is_there, f"there is no button {text!r} in {within}")
        return found[0]

    def click(self, text: str, within: str = "body") -> None:
        """Press a button, however often the view is drawn anew meanwhile."""

        def is_pressed() -> bool:
            try:
                self.button(text, within).click()
            except StaleElementReferenceException:
                return False
            return True

        wait_until(is_pressed, f"{text!r} cannot be pressed")

    def fill(self, selector: str, text: str) -> None:
        field = self.one(selector)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text)

    def press(self, *keys: str) -> None:
        """Keys, wherever the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def focus(self) -> dict[str, Any]:
        """What has the focus, and whether one sees that."""
        script = """const one = document.activeElement, look = getComputedStyle(one);
            return {tag: one.tagName, text: (one.innerText || one.ariaLabel || '').trim(), id: one.id,
                href: one.getAttribute('href'), type: one.type ?? '', isShown: look.outlineStyle !== 'none' ||
                getComputedStyle(one.parentElement ?? one).outlineStyle !== 'none',
                isHere: one.getBoundingClientRect().bottom > 0}"""
        found: dict[str, Any] = self.run(script)
        return found

    def hears_only_the_stream(self) -> None:
        """From now on, until it is loaded anew, no view that the page asks for is answered."""
        self.run(
            """const whole = window.fetch;
            window.fetch = (where, ...more) =>
                String(where).includes('v1/view/') ? new Promise(() => {}) : whole(where, ...more)"""
        )

    def complaints(self) -> list[str]:
        """What the browser has to say: refused scripts, failed requests, errors of ours."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def barriers(self) -> list[str]:
        """What axe finds serious or critical in what is shown."""
        if not self.run("return 'axe' in window"):
            # A policy forbids scripts in line, so it comes the way of a debugger.
            source = AXE.read_text(encoding="utf-8")
            self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": source})
        found = self.driver.execute_async_script(  # type: ignore[no-untyped-call]
            """const done = arguments[0];
            const failed = (error) => done({error: String(error)});
            axe.run(document, {resultTypes: ['violations']}).then(done, failed)"""
        )
        assert "violations" in found, found
        return [
            json.dumps(
                [one["id"], one["help"], [(n["html"][:160], n["failureSummary"]) for n in one["nodes"][:3]]]
            )
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    def picture(self, name: str) -> Path:
        """What is to be seen, from the top to the bottom."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        width, height = self.run("return [innerWidth, innerHeight]")
        whole = self.run("return document.documentElement.scrollHeight")
        self.size((width, min(TALLEST, max(height, whole))))
        path = PICTURES / f"{name}.png"
        self.driver.save_screenshot(str(path))
        self.size((width, height))
        return path
