"""Every view in a real browser, on a real server and store: what it shows, to whom, and what it keeps out."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from selenium.webdriver.common.keys import Keys

from tests.page.browser import PHONE, WIDE, Browser
from tests.page.served import CHANGER, HOSTILE, READER, Served, refuse_hostile
from tests.patience import wait_until
from zae_limiter import SyncRateLimiter

VIEWS = {
    "overview": ("overview", ["Right now", "Nearest to a limit", "key-2", "Resources", "maintenance"]),
    "entities": ("entities", ["team-platform", "Gateway", "key-1"]),
    "entity": (
        "entity?entity=key-1&resource=gpt-4",
        ["Levels now", "First to refuse is ", "team-platform", "wins", "plan", "30"],
    ),
    "limits-system": ("limits", ["rpm:600/min"]),
    "limits-resources": ("limits?level=resource", ["usd:100", "maintenance until 15:00", "calls:100/hour"]),
    "limits-entities": ("limits?level=entity&resource=gpt-4", ["key-1", "rpm:30/min"]),
    "usage": ("usage?resource=gpt-4", ["rpm", "tpm", "key-2"]),
    "audit": ("audit?resource=gpt-4", ["limits set"]),
    "health": ("health", ["store", "well", "SQLite"]),
}


@pytest.fixture(autouse=True)
def looking(browser: Browser, served: Served) -> None:
    """Somebody who may change, at a wide window in light colours."""
    browser.size(WIDE)
    browser.colours("light")
    if not browser.run("return location.pathname").startswith("/ui"):
        browser.open(served.page(CHANGER))
    browser.settled()


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shows_what_there_is(browser: Browser, name: str) -> None:
    """Real data, a heading, a title, and nothing that the browser complains of."""
    place, texts = VIEWS[name]
    browser.complaints()
    browser.go(place)
    for text in texts:
        browser.sees(text, "main")
    assert len(browser.all("h1")) == 1
    assert browser.run("return document.title").endswith("zae-limiter")
    assert browser.complaints() == []


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_nobody_is_kept_out(browser: Browser, name: str, look: str) -> None:
    """No serious barrier in any view, light or dark; on a phone nothing must be moved sideways."""
    if look == "phone":
        browser.size(PHONE)
    else:
        browser.colours(look)
    browser.go(VIEWS[name][0])
    browser.sees(VIEWS[name][1][-1], "main")
    if name == "usage":
        wait_until(lambda: bool(browser.all("canvas")), "nothing is drawn")
    browser.picture(f"{name}-{look}")
    assert browser.barriers() == []
    width = browser.run("return document.documentElement.clientWidth")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    script = """return [...document.querySelectorAll('main .scroll:not(.as-table *)')]
        .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.ariaLabel)"""
    assert look != "phone" or browser.run(script) == []


def hostile_places() -> list[tuple[str, str]]:
    """Views, and where in them markup of somebody else's is to be read."""
    entity, both = urlencode({"entity": HOSTILE}), urlencode({"entity": HOSTILE, "resource": HOSTILE})
    return [
        ("overview", ".ticker"),
        ("health", "main"),
        ("overview", "main"),
        ("entities", "main"),
        (f"entity?{both}", "main"),
        ("limits?level=resource", "main"),
        (f"limits?{urlencode({'level': 'entity', 'resource': HOSTILE})}", "main"),
        (f"usage?{entity}", "main"),
        (f"audit?{entity}", "main"),
        (f"audit?{urlencode({'resource': HOSTILE})}", "main"),
    ]


@pytest.fixture(scope="module")
def refused(served: Served) -> None:
    """Not long ago, or it would not be shown any more."""
    with SyncRateLimiter.open(served.store) as limiter:
        refuse_hostile(limiter)


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize(("place", "where"), hostile_places())
def test_names_are_only_ever_text(browser: Browser, place: str, where: str) -> None:
    """Ids, names, resources, reasons, principals and processes that are markup are shown as written."""
    browser.complaints()
    browser.go(place)
    browser.sees(HOSTILE, where)
    assert browser.all("main img") == []
    assert browser.complaints() == []


def test_the_policy_holds(browser: Browser) -> None:
    """What somebody manages to put into the document is not run, and nothing is sent anywhere else."""
    browser.complaints()
    browser.run(
        """window.ran = [];
        const script = document.createElement('script'); script.textContent = 'window.ran.push("script")';
        document.body.append(script);
        const holder = document.createElement('div');
        const image = '<img src="data:," onerror="window.ran.push(1)">';
        holder.innerHTML = image + '<p style="color: red" id="styled">';
        document.body.append(holder);
        setTimeout(() => {  // not while a debugger speaks, who may do what the policy forbids
            try { eval('window.ran.push("eval")') } catch (error) { window.refused = error.name }
        });
        fetch('http://127.0.0.1:9/').catch(() => window.kept = true)"""
    )
    wait_until(lambda: bool(browser.run("return window.kept")), "something was sent")
    told: list[str] = []

    def is_told() -> bool:
        told.extend(browser.complaints())
        return sum("Content Security Policy" in one for one in told) >= 4

    wait_until(is_told, "the browser did not refuse it")
    wait_until(lambda: bool(browser.run("return window.refused")), "text was run as code")
    assert browser.run("return [window.ran, window.refused]") == [[], "EvalError"]
    assert browser.run("return getComputedStyle(document.getElementById('styled')).color") != "rgb(255, 0, 0)"
    browser.driver.refresh()


def test_it_is_walked_by_keyboard_alone(browser: Browser, served: Served) -> None:
    """Past the navigation, to the search, through rows by arrows, into a dialog and out of it."""
    browser.open("about:blank")
    browser.open(f"{served.url}/ui/#/entities")
    browser.settled()
    browser.sees("key-1", "main")
    browser.press(Keys.TAB)
    assert "Skip" in browser.focus()["text"]
    assert browser.focus()["isHere"]
    browser.press(Keys.ENTER)
    assert browser.focus()["id"] == "main"
    browser.press("/")
    assert browser.focus()["type"] == "search"
    browser.press("key-1", Keys.ENTER)
    wait_until(lambda: "q=key-1" in browser.run("return location.hash"))
    browser.settled()
    browser.press(Keys.ESCAPE)
    browser.run("document.querySelector('tbody a').focus()")
    browser.go("entities")
    browser.sees("team-platform", "main")
    browser.run("document.querySelector('tbody a').focus()")
    first = browser.focus()["text"]
    browser.press(Keys.ARROW_DOWN)
    assert browser.focus()["text"] != first
    browser.press(Keys.ARROW_UP)
    assert browser.focus()["text"] == first
    browser.go("entity?entity=key-1")
    browser.button("Set limits").send_keys(Keys.ENTER)
    browser.one("dialog[open]")
    browser.press(Keys.ESCAPE)
    wait_until(lambda: not browser.all("dialog[open]"), "Escape does not close it")
    assert browser.focus()["text"] == "Set limits"


def test_every_stop_of_the_tab_key_is_seen(browser: Browser, served: Served) -> None:
    """Whatever has the focus has a ring, or stands in something that has one."""
    browser.open("about:blank")
    browser.open(f"{served.url}/ui/#/overview")
    browser.settled()
    browser.sees("embeddings", "main")
    seen = set()
    for _ in range(60):
        browser.press(Keys.TAB)
        where = browser.focus()
        if where["tag"] == "BODY":
            break  # behind the last stop
        assert where["isShown"], [where[key] for key in ("tag", "type", "text")]
        seen.add((where["tag"], where["text"], where["href"]))
    assert len(seen) > 15


def test_a_token_that_may_only_read_changes_nothing(browser: Browser, served: Served) -> None:
    """It is shown no buttons for that, and the request itself is refused."""
    browser.click("Log out ann")
    browser.one(".login input")
    browser.open("about:blank")
    browser.open(served.page(READER))
    browser.settled()
    assert browser.run("return location.hash") == ""
    for place, text in (("entity?entity=key-1&resource=gpt-4", "wins"), ("limits?level=resource", "gpt-4")):
        browser.go(place)
        browser.sees(text, "main")
        words = browser.run(
            "return [...document.querySelectorAll('main button')].map((one) => one.innerText)"
        )
        assert not {"Set limits", "Edit", "Switch", "Top up", "Reset", "Set parent"} & set(words)
    answers = browser.driver.execute_async_script(  # type: ignore[no-untyped-call]
        """const done = arguments[arguments.length - 1], sent = {level: 'system', limits: ['rpm:1/min']};
        const ask = (headers) => fetch('/v1/change/limits', {method: 'POST', body: JSON.stringify(sent),
            headers: {'content-type': 'application/json', ...headers}}).then((one) => one.status);
        Promise.all([ask({'x-zae-limiter': '1'}), ask({})]).then(done)"""
    )
    assert answers == [403, 403]
    browser.go("limits")
    browser.sees("rpm:600/min", "main")


def test_whoever_has_no_token_sees_nothing(browser: Browser, served: Served) -> None:
    """A wrong token is told so in words; a right one, typed, opens the page."""
    browser.driver.delete_all_cookies()
    browser.open("about:blank")
    browser.open(served.page("zae_" + "0" * 64))
    browser.sees("does not know this token")
    assert "token=" not in browser.run("return location.href")
    assert "key-1" not in browser.text()
    browser.fill(".login input", CHANGER)
    browser.click("Log in")
    browser.settled()
    browser.sees("key-2", "main")
