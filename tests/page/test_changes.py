"""What may be changed from the page: each change as a person makes it, and what is stored afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver.common.keys import Keys

from tests.page.browser import Browser
from tests.page.served import CHANGER, Served
from tests.patience import wait_until
from zae_limiter import Limit, SyncRateLimiter

ON_GPT_4 = "entity?entity={}&resource=gpt-4"
RPM = Limit.per_day("rpm", 100)


@pytest.fixture(scope="module")
def limiter(served: Served) -> Iterator[SyncRateLimiter]:
    """A program that uses the same store."""
    with SyncRateLimiter.open(served.store) as found:
        yield found


@pytest.fixture(autouse=True)
def looking(browser: Browser, served: Served) -> None:
    if not browser.run("return location.pathname").startswith("/ui"):
        browser.open(served.page(CHANGER))
    browser.settled()


def drained(limiter: SyncRateLimiter, entity: str, by: int) -> None:
    """Somebody with a hundred a day who has used some, or too many."""
    limiter.set_limits(entity, [RPM], resource="gpt-4")
    with limiter.acquire(entity, "gpt-4", {"rpm": min(by, 100)}) as lease:
        if by > 100:
            lease.adjust(rpm=by - 100)


def asked(browser: Browser, entity: str, button: str) -> None:
    """Somebody's page is open, and on it the dialog of a change."""
    browser.go(ON_GPT_4.format(entity))
    browser.click(button, "main")


def done(browser: Browser, *event: str) -> None:
    """The change is told as done, with what is asked for of the event that it made and who did it."""
    for told in ("Done", *event):
        browser.sees(told, "dialog")
    browser.click("Close", ".dialog-foot")
    wait_until(lambda: not browser.all("dialog[open]"), "it stays open")


def test_limits_are_set(browser: Browser, limiter: SyncRateLimiter) -> None:
    """What is now stands beside what will be; then it is stored, and the view shows it."""
    limiter.set_limits("set-1", [Limit.per_minute("rpm", 10)], resource="gpt-4")
    asked(browser, "set-1", "Edit the limits on gpt-4")
    browser.fill("dialog .line input", "rpm:25/min")
    browser.sees("rpm:10/min", "dialog .changed")
    browser.sees("rpm:25/min", "dialog .changed")
    browser.click("Add a limit", "dialog")
    browser.fill("dialog .line:nth-of-type(2) input", "tpm:5k/min")
    browser.click("Set 2 limits", "dialog")
    done(browser, "limits set", "ann")
    browser.sees("rpm:25/min", "main")
    stored = limiter.get_limits("set-1", resource="gpt-4")
    assert stored == [Limit.per_minute("rpm", 25), Limit.per_minute("tpm", 5_000)]


def test_limits_of_a_resource_are_made_and_deleted(browser: Browser, limiter: SyncRateLimiter) -> None:
    """A resource that had none has some, and has none again."""
    browser.go("limits?level=resource")
    browser.click("Set limits", ".page-head")
    browser.fill("dialog .field input", "made-here")
    browser.fill("dialog .line input", "calls:7/hour")
    browser.click("Set 1 limit", "dialog")
    done(browser)
    browser.sees("calls:7/hour", "main")
    assert limiter.get_resource_defaults("made-here") == [Limit.per_hour("calls", 7)]
    browser.click("Edit the limits of made-here", "main")
    browser.click("Remove limit 1", "dialog")
    browser.click("Delete these limits", "dialog")
    done(browser)
    wait_until(lambda: limiter.get_resource_defaults("made-here") == [])


def test_what_is_wrong_is_said_in_words(browser: Browser, limiter: SyncRateLimiter) -> None:
    """The words of the server stand in the dialog, what was typed stays, and nothing is stored."""
    limiter.set_limits("wrong-1", [Limit.per_minute("rpm", 10)], resource="gpt-4")
    asked(browser, "wrong-1", "Edit the limits on gpt-4")
    browser.fill("dialog .line input", "rpm:lots/min")
    browser.click("Set 1 limit", "dialog")
    browser.sees("rpm:lots/min", "dialog .note")
    assert browser.one("dialog .line input").get_property("value") == "rpm:lots/min"
    browser.press(Keys.ESCAPE)
    assert limiter.get_limits("wrong-1", resource="gpt-4") == [Limit.per_minute("rpm", 10)]


def test_a_bucket_is_topped_up(browser: Browser, limiter: SyncRateLimiter) -> None:
    """So much more, as the dialog says before."""
    drained(limiter, "top-1", 90)
    asked(browser, "top-1", "Top up")
    browser.fill("dialog .field input", "40")
    browser.sees("50", "dialog .changed")
    browser.click("Top up", ".dialog-foot")
    done(browser, "topped up", "ann")
    assert limiter.available("top-1", "gpt-4")["rpm"] == 50


def test_a_lost_answer_gives_nothing_twice(browser: Browser, limiter: SyncRateLimiter) -> None:
    """A request whose answer was lost is sent again with its key, and counted once."""
    drained(limiter, "lost-1", 90)
    browser.go(ON_GPT_4.format("lost-1"))
    browser.run(
        """const whole = window.fetch; let isLost = false;
        window.fetch = async (...asked) => {
            const answer = await whole(...asked);
            if (isLost || asked[1]?.method !== 'POST') return answer;
            isLost = true;
            throw new TypeError('lost');
        }"""
    )
    browser.click("Top up", ".bucket")
    browser.fill("dialog .field input", "20")
    browser.click("Top up", ".dialog-foot")
    browser.sees("cannot be reached", "dialog .note")
    browser.click("Top up", ".dialog-foot")
    browser.sees("not done twice", "dialog")
    assert limiter.available("lost-1", "gpt-4")["rpm"] == 30
    browser.driver.refresh()


def test_a_bucket_is_filled(browser: Browser, limiter: SyncRateLimiter) -> None:
    """To the brim."""
    drained(limiter, "reset-1", 90)
    asked(browser, "reset-1", "Reset")
    browser.sees("100", "dialog .changed")
    browser.click("Fill the bucket", "dialog")
    done(browser, "reset", "ann")
    assert limiter.available("reset-1", "gpt-4")["rpm"] == 100


def test_a_debt_is_forgiven(browser: Browser, limiter: SyncRateLimiter) -> None:
    """It is shown as one, and is zero afterwards."""
    drained(limiter, "debt-1", 150)
    browser.go(ON_GPT_4.format("debt-1"))
    browser.sees("in debt", ".level.debt")
    browser.click("Forgive", ".bucket")
    browser.sees("−50", "dialog .changed")
    browser.click("Forgive the debt", "dialog")
    done(browser, "forgiven", "ann")
    assert limiter.available("debt-1", "gpt-4")["rpm"] == 0


def test_somebody_is_switched_off_and_on(browser: Browser, limiter: SyncRateLimiter) -> None:
    """With a reason that must be given and is shown; then as before."""
    limiter.repository.create_entity("off-1")
    browser.go("entity?entity=off-1")
    browser.click("Switch")
    assert not browser.button("Switch off", "dialog").is_enabled()
    browser.fill("dialog .field input", "leaked")
    browser.click("Switch off", "dialog")
    done(browser, "disabled", "ann")
    browser.sees("leaked", ".page-head")
    assert [one.disabled for one in limiter.list_switches()[0] if one.entity_id == "off-1"] == ["leaked"]
    browser.click("Switch")
    browser.click("Remove the switch", "dialog")
    done(browser, "enabled", "ann")
    wait_until(lambda: "leaked" not in browser.text(".page-head"))
    assert [one for one in limiter.list_switches()[0] if one.entity_id == "off-1"] == []


def test_somebody_moves_to_another_parent(browser: Browser, limiter: SyncRateLimiter) -> None:
    """The tree shows it at once; a parent that is not there is an error in words."""
    for entity in ("child-1", "house-1"):
        limiter.repository.create_entity(entity)
    browser.go("entity?entity=child-1")
    browser.click("Set parent")
    browser.fill("dialog .field input", "nobody-here")
    browser.click("Move it", "dialog")
    browser.sees("nobody-here", "dialog .note")
    browser.fill("dialog .field input", "house-1")
    browser.click("Move it", "dialog")
    done(browser, "parent", "ann")
    browser.sees("house-1", ".tree")
    found = limiter.get_entity("child-1")
    assert found is not None
    assert found.parent_id == "house-1"


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("button", ["Edit the limits on gpt-4", "Top up", "Reset", "Switch", "Set parent"])
def test_no_dialog_keeps_anybody_out(browser: Browser, button: str, colours: str) -> None:
    """No serious barrier; the focus is in it, and goes back when it is left."""
    browser.colours(colours)
    browser.go(ON_GPT_4.format("key-1"))
    browser.click(button, "main")
    browser.one("dialog[open]")
    assert browser.run("return !!document.activeElement.closest('dialog')")
    browser.picture(f"dialog-{button.split(' ', maxsplit=1)[0].lower()}-{colours}")
    assert browser.barriers() == []
    browser.press(Keys.ESCAPE)
    wait_until(lambda: not browser.all("dialog[open]"))
    assert button in (browser.focus()["text"], browser.run("return document.activeElement.ariaLabel"))
