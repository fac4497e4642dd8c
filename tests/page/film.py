"""Takes the film of the first page of the site, `python -m tests.page.film`: thirty seconds of `demo --ui`.

A real browser looks at the real demo, and somebody raises the budget of a tenant who has nearly used it up.
What is seen is photographed as it is; only the ring where a button is pressed is added. Then the same browser
makes a film of it.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.page import taken
from tests.page.browser import ROOT, Browser, chromium
from tests.page.webm import Chunk, film
from tests.patience import wait_until

PLACE = ROOT / "docs" / "site" / "assets"
SIZE = (1120, 700)
SECONDS = 30
PICTURES_A_SECOND = 8
QUANTIZER = 50
KEY_EVERY = 240
BYTES_MAX = 720_000
"""Of one film; there are two, for light and for dark."""
WARM_SECONDS = 12
ADDRESS = re.compile(r"http://\S+/ui/#token=\w+")
BUDGET = "usd:500USD/month"

RING = """const [x, y] = arguments, ring = document.createElement('div');
    ring.popover = 'manual';
    Object.assign(ring.style, {position: 'fixed', inset: 'auto', left: `${x - 18}px`, top: `${y - 18}px`,
        width: '36px', height: '36px', margin: '0', padding: '0', border: '3px solid #e29a1b',
        borderRadius: '50%', background: 'none', pointerEvents: 'none'});
    document.body.append(ring);
    ring.showPopover();
    setTimeout(() => ring.remove(), 600)"""

MAKE = """const [width, height, quantizer, keyEvery] = arguments, found = [];
    const text = (chunk) => {
        const data = new Uint8Array(chunk.byteLength);
        chunk.copyTo(data);
        return btoa(data.reduce((all, one) => all + String.fromCharCode(one), ''));
    };
    const encoder = new VideoEncoder({
        output: (chunk) => found.push([chunk.timestamp, chunk.type === 'key', text(chunk)]),
        error: (error) => found.push(String(error)),
    });
    const codec = 'vp09.00.31.08';
    encoder.configure({codec, width, height, bitrateMode: 'quantizer', latencyMode: 'quality'});
    window.take = async (data, timestamp, number) => {
        const jpeg = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
        const frame = new VideoFrame(await createImageBitmap(new Blob([jpeg])), {timestamp});
        encoder.encode(frame, {keyFrame: number % keyEvery === 0, vp9: {quantizer}});
        frame.close();
    };
    window.finish = async () => { await encoder.flush(); return found; }"""


class Picture(NamedTuple):
    """What was to be seen, and when."""

    at: float
    jpeg: str


class Camera:
    """Takes pictures of a browser while somebody does things in it."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.began = time.monotonic()
        self.pictures: list[Picture] = []

    def until(self, second: float) -> None:
        while (now := time.monotonic() - self.began) < second:
            told: Any = self.browser.driver.execute_cdp_cmd(
                "Page.captureScreenshot", {"format": "jpeg", "quality": 92}
            )
            self.pictures.append(Picture(now, str(told["data"])))
            rest = (len(self.pictures) / PICTURES_A_SECOND) - (time.monotonic() - self.began)
            time.sleep(max(0.0, min(rest, 0.2)))

    def press(self, second: float, find: Callable[[], WebElement]) -> None:
        """Something at a second, with a ring around it before."""
        self.until(second)
        found = find()
        place = found.rect
        scrolled = self.browser.run("return [scrollX, scrollY]")
        self.browser.run(
            RING,
            place["x"] + place["width"] / 2 - scrolled[0],
            place["y"] + place["height"] / 2 - scrolled[1],
        )
        self.until(second + 0.5)
        found.click()


def act(camera: Camera) -> None:
    """What happens in the thirty seconds."""
    browser = camera.browser
    camera.press(7, lambda: browser.one('main a[href="#/entity?entity=globex&resource=gpt-4"]'))
    browser.settled()
    camera.press(11.5, lambda: browser.button("Edit the limits on gpt-4"))
    wait_until(lambda: bool(browser.all("dialog[open]")))
    camera.until(12.5)
    fields = [one for one in browser.all("dialog .line input") if "usd" in (one.get_attribute("value") or "")]
    fields[0].send_keys(Keys.CONTROL, "a")
    for number, letter in enumerate(BUDGET):
        fields[0].send_keys(letter)
        camera.until(12.8 + number * 0.14)
    camera.press(15.8, lambda: browser.one("dialog .button.primary"))
    browser.sees("Done", "dialog")
    camera.press(18, lambda: browser.button("Close", ".dialog-foot"))
    camera.until(23)
    browser.go("overview")
    camera.until(SECONDS)


def encoded(browser: Browser, pictures: list[Picture]) -> bytes:
    # Encoders are for pages that are safe from others, and a page of this machine is one.
    browser.run(MAKE, *SIZE, QUANTIZER, KEY_EVERY)
    done = "const done = arguments[arguments.length - 1], fail = (error) => done(String(error));"
    for number, picture in enumerate(pictures):
        script = f"{done} window.take(...[...arguments].slice(0, 3)).then(done, fail)"
        told = browser.driver.execute_async_script(script, picture.jpeg, round(picture.at * 1e6), number)  # type: ignore[no-untyped-call]
        assert told is None, told
    found = browser.driver.execute_async_script(f"{done} window.finish().then(done, fail)")  # type: ignore[no-untyped-call]
    chunks = [Chunk(at // 1000, is_key, base64.b64decode(data)) for at, is_key, data in found]
    return film(chunks, SIZE, SECONDS * 1000)


def take(colours: str) -> None:
    command = [sys.executable, "-m", "zae_limiter", "demo", "--ui", "--no-open", "--seconds", "180"]
    log = PLACE / "film.log"
    with log.open("w") as output:
        demo = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "COLUMNS": "300"})
    try:
        wait_until(lambda: bool(ADDRESS.search(log.read_text())), "the demo does not begin")
        found = ADDRESS.search(log.read_text())
        assert found is not None
        with chromium() as browser:
            browser.size(SIZE)
            browser.colours(colours)
            browser.open(found[0])
            browser.settled()
            time.sleep(WARM_SECONDS)  # nothing is tested here: it is to look lived in
            still = browser.driver.execute_cdp_cmd(
                "Page.captureScreenshot", {"format": "jpeg", "quality": 70}
            )
            (PLACE / f"film-{colours}.jpg").write_bytes(base64.b64decode(still["data"]))
            camera = Camera(browser)
            act(camera)
            browser.open(f"{found[0].partition('/ui/')[0]}/healthz")
            made = encoded(browser, camera.pictures)
    finally:
        demo.terminate()
        demo.wait()
        log.unlink()
    assert len(made) <= BYTES_MAX, f"{len(made)} bytes"
    path = PLACE / f"film-{colours}.webm"
    path.write_bytes(made)
    print(f"{path.relative_to(ROOT)}: {len(made)} bytes, {len(camera.pictures)} pictures")


def main() -> None:
    for colours in ("light", "dark"):
        take(colours)
    taken.note("film")


if __name__ == "__main__":
    main()
