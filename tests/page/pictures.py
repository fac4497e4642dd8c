"""Takes the pictures of the documents, `python -m tests.page.pictures`: a real server with a day behind it.

The day is lived on a clock that is set; the last minute by programs that run while the pictures are taken.
"""

from __future__ import annotations

import math
import random
import tempfile
import threading
import time
from pathlib import Path

from tests.page import taken
from tests.page.browser import PHONE, ROOT, Browser, chromium
from tests.page.served import CHANGER, MONEY, serving
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.telemetry import Telemetry
from zae_limiter.testing import ManualClock
from zae_limiter_aggregator.runner import aggregate

PLACE = ROOT / "docs" / "pictures"
TENANTS = ("acme/gateway", "acme/batch", "globex", "initech", "umbrella", "key-1", "key-2", "notebook")
HOURS, HOUR_MS = 24, 3_600_000


def furnish(limiter: SyncRateLimiter) -> None:
    limiter.set_system_defaults([Limit.per_minute("rpm", 600)], principal="deploy")
    limiter.set_resource_defaults(
        "gpt-4", [Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 60_000), MONEY], principal="deploy"
    )
    limiter.set_resource_defaults("embeddings", [Limit.per_minute("rpm", 300)], principal="deploy")
    limiter.set_resource_defaults("web-search", [Limit.per_hour("calls", 120)], principal="deploy")
    limiter.set_resource_defaults("jobs", [Limit.concurrent("parallel", 4)], principal="deploy")
    repository = limiter.repository
    repository.create_entity("acme", name="Acme Inc.", metadata={"plan": "scale"})
    for child in ("acme/gateway", "acme/batch"):
        repository.create_entity(child, parent_id="acme", cascade=True, metadata={"plan": "scale"})
    for entity in ("globex", "initech", "umbrella", "key-1", "key-2", "notebook"):
        repository.create_entity(entity)
    limiter.set_limits(
        "acme", [Limit.per_minute("rpm", 200), Limit.per_minute("tpm", 200_000), MONEY], resource="gpt-4"
    )
    limiter.set_limits(
        "acme/gateway",
        [Limit.per_minute("rpm", 120), Limit.per_minute("tpm", 90_000), MONEY],
        resource="gpt-4",
        principal="ann",
    )
    limiter.disable(resource="web-search", reason="maintenance until 15:00", principal="ann")
    limiter.bypass(entity_id="notebook", principal="ann")


def live_a_day(limiter: SyncRateLimiter, clock: ManualClock, chance: random.Random) -> None:
    """Until the hour in which we are began."""
    began_ms = clock.now_ms
    for hour in range(HOURS):
        clock.now_ms = max(clock.now_ms, began_ms + hour * HOUR_MS)
        for at, tenant in enumerate(TENANTS):
            busy = (1.2 + math.sin((hour - 6) / 3.8)) * (1.4 / (1 + at * 0.45))
            for _ in range(max(1, round(busy * 4))):
                amounts = {"rpm": chance.randint(6, 28), "tpm": chance.randint(4_000, 30_000)}
                amounts["usd"] = amounts["tpm"] * 12
                try:
                    with limiter.acquire(tenant, "gpt-4", amounts):
                        pass
                    with limiter.acquire(tenant, "embeddings", {"rpm": chance.randint(20, 120)}):
                        pass
                except RateLimitExceeded:
                    pass
                clock.advance(30)


def go_on(store: str, is_over: threading.Event) -> None:
    """What happens while somebody looks."""
    chance = random.Random(2)
    with SyncRateLimiter.open(store) as limiter, Telemetry(limiter, name="gateway-1") as telemetry:
        telemetry.share()
        jobs = [limiter.acquire("acme/batch", "jobs", {"parallel": 1}).open() for _ in range(3)]
        with limiter.acquire("umbrella", "gpt-4", {"rpm": 1, "tpm": 20_000}) as lease:
            lease.adjust(tpm=52_000)
        while not is_over.wait(0.15):
            tenant = chance.choices(TENANTS[:7], (9, 6, 4, 4, 1, 2, 2))[0]
            amounts = {"rpm": chance.randint(1, 5), "tpm": chance.randint(300, 6_000)}
            try:
                with limiter.acquire(tenant, "gpt-4", amounts):
                    pass
            except RateLimitExceeded:
                pass
        for job in jobs:
            job.commit()


def take(browser: Browser, name: str, place: str, seconds: float) -> None:
    browser.go(place)
    time.sleep(seconds)  # nothing is tested here: it is to look lived in
    browser.driver.save_screenshot(str(PLACE / f"{name}.png"))
    print(PLACE / f"{name}.png")


def main() -> None:
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="zae-limiter-pictures-") as folder:
        store = f"sqlite:///{folder}/limits.db"
        clock = ManualClock(round(time.time() * 1000) // HOUR_MS * HOUR_MS - HOURS * HOUR_MS)
        with SyncRateLimiter.open(store, world=clock.world) as limiter:
            furnish(limiter)
            live_a_day(limiter, clock, random.Random(1))
        aggregate(store, until_idle=True)
        is_over = threading.Event()
        working = threading.Thread(target=go_on, args=(store, is_over))
        with serving(Path(folder), store, "--changes") as served, chromium() as browser:
            working.start()
            try:
                browser.open(served.page(CHANGER))
                browser.settled()
                look(browser)
            finally:
                is_over.set()
                working.join()
    taken.note("pictures")


def look(browser: Browser) -> None:
    entity = "entity?entity=acme%2Fgateway&resource=gpt-4"
    take(browser, "overview-light", "overview", 25)
    take(browser, "entity-light", entity, 2)
    browser.colours("dark")
    take(browser, "usage-dark", "usage?resource=gpt-4", 2)
    take(browser, "overview-dark", "overview", 2)
    take(browser, "limits-dark", "limits?level=resource", 1)
    browser.size(PHONE)
    browser.colours("light")
    take(browser, "overview-phone", "overview", 2)
    take(browser, "entity-phone", entity, 2)


if __name__ == "__main__":
    main()
