"""How fast the page is: ``python -m tests.page.speed``, and nothing else should run beside it.

Of ten thousand entities the overview and their list are opened, several times, and the best of each counts,
for whatever else the machine does is in it too. Programs are refused while somebody looks, each at another
time after it has told of a refusal, for it tells once a second: the worst of these counts. It fails if the
page takes a second to open, or two to tell of any refusal.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.page.browser import Browser, chromium
from tests.page.served import CHANGER, Running, Served, serving
from tests.patience import wait_until
from zae_limiter import Limit, SyncRateLimiter

ROUNDS, REFUSALS = 3, 7
OPENED_MS_MAX, REFUSED_SECONDS_MAX = 1_000, 2.0
ENTITIES, USED = 10_000, 2_000

TIMED = """
window.seen = {};
new MutationObserver(() => {
  for (const [name, selector] of [["overview", ".nearest tbody tr"], ["entities", ".card-foot .pager"]]) {
    if (!(name in window.seen) && document.querySelector(selector)) window.seen[name] = performance.now();
  }
}).observe(document, {childList: true, subtree: true});
"""


def fill(store: str) -> None:
    """Ten thousand entities, a fifth of them with a bucket that was used."""
    with SyncRateLimiter.open(store) as limiter:
        limiter.set_resource_defaults("gpt-4", [Limit.per_day("rpd", 100), Limit.per_day("tpd", 10_000)])
        for number in range(ENTITIES):
            limiter.repository.create_entity(f"key-{number:05}")
        for number in range(USED):
            with limiter.acquire(f"key-{number:05}", "gpt-4", {"rpd": 1 + number % 90, "tpd": 100}):
                pass


def opened(browser: Browser, served: Served) -> Iterator[tuple[str, int]]:
    """The views that have most to show, and after how many milliseconds each was there."""
    browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": TIMED})
    browser.open("about:blank")  # another place of the same page is no visit
    browser.open(served.page(CHANGER))
    browser.settled()
    browser.one(".nearest tbody tr")
    for name in ("overview", "entities"):
        browser.open("about:blank")
        browser.open(f"{served.url}/ui/#/{name}")
        wait_until(lambda name=name: bool(browser.run("return window.seen[arguments[0]]", name)))  # type: ignore[misc]
        yield name, round(browser.run("return window.seen[arguments[0]]", name))


@contextmanager
def refused_beside(
    browser: Browser, store: str, entity: str = "eager", after_s: float | None = None
) -> Iterator[float]:
    """A program that is refused, and after how many seconds the overview told that, by its stream alone."""
    with SyncRateLimiter.open(store) as limiter:
        limiter.set_limits(entity, [Limit.per_day("calls", 1)], resource="api")
    browser.go("overview")
    browser.sees("Live", ".connection")
    browser.hears_only_the_stream()
    with Running.beside(store, entity, "api", after_s) as running:
        browser.sees(entity, ".ticker")
        yield time.monotonic() - running.first_refused_s


def main() -> int:
    opening: dict[str, list[int]] = {}
    delays: list[float] = []
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        store = f"sqlite:///{folder}/limits.db"
        fill(store)
        with serving(Path(folder), store) as served:
            for _ in range(ROUNDS):
                for name, took_ms in opened(browser, served):
                    opening.setdefault(name, []).append(took_ms)
                    print(f"{name} of {ENTITIES} entities was there after {took_ms} ms")
            for number in range(REFUSALS):
                with refused_beside(browser, store, f"eager-{number}", number / REFUSALS) as delay_s:
                    delays.append(delay_s)
                    print(f"a refusal was seen {delay_s:.2f} s after it happened")
                browser.driver.refresh()
    slow = [name for name, took in opening.items() if min(took) >= OPENED_MS_MAX]
    slow += ["a refusal"] if max(delays) >= REFUSED_SECONDS_MAX else []
    print(f"too slow: {', '.join(slow)}" if slow else "fast enough")
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
