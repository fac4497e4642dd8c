"""Bad settings, async and sync: each kind gets its own clear error before anything is opened.

The store is a file, so that a trace would be seen.
"""

import ast
import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs.site import tables
from zae_limiter import (
    InvalidNameError,
    RateLimiter,
    Repository,
    RepositoryBuilder,
    Settings,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.backends import DRIVERS
from zae_limiter.settings import STACK_VARIABLE, STORE_VARIABLE

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
DAYS = "it must be a whole number, not"
SETTINGS: dict[str, tuple[Any, ...]] = {
    "unknown setting": ({"cache": 1}, "cache", "use store, stack"),
    "policy": ({"on_unavailable": "maybe"}, "maybe", "use 'allow' or 'block'"),
    "time below zero": ({"config_cache_ttl": -1}, -1, "0 disables"),
    "time as text": ({"config_cache_ttl": "60"}, "60", "0 disables"),
    "no time": ({"config_cache_ttl": None}, None, "0 disables"),
    "no number": ({"config_cache_ttl": float("nan")}, float("nan"), "0 disables"),
    "multiplier below zero": ({"bucket_ttl_multiplier": -1}, -1, "at least 0"),
    "half a multiplier": ({"bucket_ttl_multiplier": 1.5}, 1.5, DAYS),
    "true multiplier": ({"bucket_ttl_multiplier": True}, True, DAYS),
    "nothing remembered": ({"remembered_max": 10}, 10, "at least 1000"),
    "days below zero": ({"audit_retention_days": -1}, -1, "at least 0"),
    "days as text": ({"audit_retention_days": "90"}, "90", DAYS),
    "days without end": ({"audit_retention_days": 10**9}, 10**9, "at most"),
    "days of usage": (
        {"usage_retention_days": 90},
        "usage_retention_days",
        "zae-limiter aggregate --retention-days",
    ),
    "namespace": ({"namespace": "a#b"}, "a#b", "'#' is reserved", InvalidNameError),
    "the registry": ({"namespace": "_"}, "_", "reserved for the registry", InvalidNameError),
    "a store for a namespace": (
        {"namespace": "memory://"},
        "memory://",
        "this is a store; say open(store=",
        InvalidNameError,
    ),
    "namespace that is no text": ({"namespace": 7}, 7, "not int", InvalidNameError),
    "store that is no text": ({"store": 5}, 5, "pass a URL such as"),
    "store that is no URL": ({"store": "limits.db"}, "limits.db", "a file is sqlite:///limits.db"),
    "store of nobody": ({"store": "mongo://host/db"}, "mongo://", "the scheme is unknown"),
    "two stores": ({"stack": "limits"}, "sqlite:///limits.db", "give either store= or stack=, not both"),
    "stack": ({"store": None, "stack": "a_b"}, "a_b", "start with a letter", InvalidNameError),
}
OPENERS: tuple[Callable[..., Any], ...] = (
    Repository.open,
    Repository.connect,
    RateLimiter.open,
    SyncRepository.open,
    SyncRepository.connect,
    SyncRateLimiter.open,
)


def opened(returned: Any) -> Any:
    """What an opener comes to, in either colour."""

    async def awaited() -> Any:
        return await returned

    return asyncio.run(awaited()) if inspect.isawaitable(returned) else returned


@pytest.mark.parametrize("case", SETTINGS)
def test_bad_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """What a repository is opened with is checked before anything is opened."""
    monkeypatch.chdir(tmp_path)
    settings, value, hint, *kind = SETTINGS[case]
    for opener in OPENERS:
        with pytest.raises(ValidationError) as caught:
            opened(opener(**{"store": "sqlite:///limits.db", **settings}))
        assert type(caught.value) is (kind[0] if kind else ValidationError)
        assert repr(value) in str(caught.value)
        assert hint in str(caught.value)
        assert list(tmp_path.iterdir()) == []


def rows() -> dict[str, str]:
    """The lines of the first table of the page, by setting."""
    table = PAGE.read_text(encoding="utf-8").partition("## Beside them")[0]
    return {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)` \|.*$", table, re.MULTILINE)}


def test_the_page_has_every_setting() -> None:
    """In the order of the class, whose help has them too, and with what is so if nothing is said."""
    assert list(rows()) == list(Settings.__annotations__)
    assert re.findall(r"^ *``(\w+)``: ", Settings.__doc__ or "", re.MULTILINE) == list(rows())
    assert PAGE.read_text(encoding="utf-8") == tables.written(PAGE.read_text(encoding="utf-8")), (
        "python -m docs.site.tables writes them anew"
    )
    assert STORE_VARIABLE in rows()["store"]
    assert STACK_VARIABLE in rows()["stack"]


def test_the_page_tells_the_deadline_of_every_store() -> None:
    """Each that waits for something, with its default and its range; memory does not."""
    waiting = set(DRIVERS.values()) - {DRIVERS["memory"]}
    assert {DRIVERS[name.lower()] for name in tables.TIMEOUTS_MS} == waiting
    _, _, _, default, _, span, _, _ = rows()["timeout_ms"].split("|")
    assert [one for one in tables.TIMEOUTS_MS if one not in default or one not in span] == []


def test_a_table_that_drifted_is_seen() -> None:
    """A setting with another default, and a variable that is gone."""
    page = PAGE.read_text(encoding="utf-8")
    for old, new in (("| 100,000 |", "| 10,000 |"), ("| `NO_COLOR` |", "| `COLOUR` |")):
        assert old in page
        assert tables.written(page.replace(old, new)) == page


def test_a_variable_without_a_meaning_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks the environment, and any name of ours that stands in the code."""
    source = """os.environ.get("A_NAME"), os.environ["B_NAME"], "C_NAME" in os.environ
environment.get("D_NAME")
os.getenv("F_NAME", "x"), getenv("G"), option("--h", envvar="H_NAME"), option("--i", envvar=["I", "J"])
environ.get("PATH_INFO"), found.get("E_NAME"), "ZAEL_NEW", "the ZAEL_NEW", "ZAE_LIMITER"
"""
    names = set(tables.read_by(ast.parse(source)))
    asked = {"A_NAME", "B_NAME", "C_NAME", "D_NAME", "F_NAME", "G", "H_NAME", "I", "J"}
    assert names == {*asked, "ZAEL_NEW"}
    monkeypatch.delitem(tables.MEANINGS, "NO_COLOR")
    with pytest.raises(SystemExit, match="NO_COLOR"):
        tables.environment()


def test_a_builder_knows_every_setting() -> None:
    """As a method of the same name."""
    builder = RepositoryBuilder()
    assert [name for name in Settings.__annotations__ if not callable(getattr(builder, name, None))] == []
