"""Opening with any URL, any settings, any builder: what cannot be opened says so and leaves nothing."""

import inspect
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from tests.fuzz.damage import is_whole
from tests.fuzz.figures import cases
from tests.fuzz.outcomes import outcome
from tests.fuzz.values import anything, texts
from tests.infra.chosen import EVERYTHING
from zae_limiter import (
    RateLimiter,
    Repository,
    Settings,
    StackOptions,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
    ZAELimiterError,
)
from zae_limiter.backends import DRIVERS, open_backend
from zae_limiter.builder import RepositoryOptions
from zae_limiter.infra import template
from zae_limiter.repository_protocol import Backend
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.settings import store_url
from zae_limiter_aggregator.handler import archive_from, settings_from

SECRET = f"{2**61 - 1:x}"  # no constant of any module, for Hypothesis tries those that it finds

pieces = st.one_of(
    texts, st.sampled_from(["limits", "limits.db", "a/b.db", "/tmp", "%00", "%2e%2e", "[::1", "x:y"])
)
options = st.one_of(
    st.sampled_from(
        ["", "?", "?timeout_ms=1000", "?region=eu-west-1", "?pool=5&pool=6", "?transport=carrier-pigeon"]
    ),
    st.sampled_from(
        [f"?password={SECRET}", f"?endpoint_url=http://me:{SECRET}@host", f"?key={SECRET}&region=x"]
    ),
    st.sampled_from(
        [f"?endpoint_url=http%3A%2F%2Fme%3A{SECRET}%40host&nope=1", f"?region=x&token={SECRET}#f"]
    ),
    st.tuples(texts, texts).map(lambda pair: f"?{pair[0]}={pair[1]}"),
)
urls = st.one_of(
    anything,
    st.builds(
        "{}{}{}{}{}".format,
        st.sampled_from([*DRIVERS, "redis", "postgresql", "mongo", "", "SQLITE", "dynamo db"]),
        st.sampled_from(["://", ":///", ":////", ":", "//", ""]),
        st.sampled_from(["", f"me:{SECRET}@", f"{SECRET}@", f":{SECRET}@"]),
        pieces,
        options,
    ),
)


@pytest.fixture(scope="module", autouse=True)
def _nowhere(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An empty directory to stand in, and nothing in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("nowhere"))
        for name in ("ZAE_LIMITER_STORE", "ZAEL_STACK", "ZAEL_NAMESPACE"):
            patch.delenv(name, raising=False)
        patch.setenv("XDG_STATE_HOME", os.getcwd())
        yield


@cases("opening", 600, url=urls, sync=st.booleans())
def test_any_url(url: Any, sync: bool) -> None:
    """A store or an error of ours, which shows no password; no file is made before it is needed."""
    result = outcome(lambda: open_backend(url, sync=sync, world=World()))
    assert list(Path.cwd().iterdir()) == []
    if isinstance(result, ZAELimiterError):
        if isinstance(url, str) and ("@" in url or "?" in url):
            assert SECRET not in f"{result} {result!r} {getattr(result, 'value', '')}"
    else:
        backend: Backend = result
        assert SECRET not in repr(backend)


SETTINGS = sorted(set(Settings.__annotations__) - {"store", "stack", "session", "config"})
known = {
    "config_cache_ttl": 60,
    "bucket_ttl_multiplier": 7,
    "on_unavailable": "allow",
    "audit_retention_days": 90,
    "timeout_ms": 1000,
    "remembered_max": 10_000,
    "region": None,
    "endpoint_url": None,
    "world": None,
}
settings = st.fixed_dictionaries(
    {},
    optional={name: st.one_of(st.just(known[name]), anything) for name in SETTINGS}
    | {"namespace": st.one_of(st.sampled_from(["team-a", None]), anything), "nope": st.just(1)},
)


@cases("opening", 300, given=settings, kind=st.sampled_from([SyncRepository.open, SyncRateLimiter.open]))
def test_any_settings(given: dict[str, Any], kind: Any) -> None:
    """Opened under these settings, or refused for one of them."""
    result = outcome(lambda: kind(store="memory://", **given))
    if isinstance(result, SyncRepository):
        assert result.namespace_name == ("default" if given.get("namespace") is None else given["namespace"])


@cases("opening", 100, store=anything, stack=anything, given=settings)
def test_any_store_and_stack(store: Any, stack: Any, given: dict[str, Any]) -> None:
    """Neither makes anything on the way to a refusal."""
    assume(not (store is None and stack is None))  # which is the embedded store
    outcome(lambda: SyncRepository.open(store=store, stack=stack, **{**given, "timeout_ms": 1}))
    assert list(Path.cwd().iterdir()) == []


variables = st.fixed_dictionaries(
    {},
    optional={
        "ZAE_LIMITER_STORE": st.one_of(st.just("memory://"), urls.filter(lambda url: isinstance(url, str))),
        "ZAEL_STACK": st.one_of(st.sampled_from(["limits", ""]), texts),
        "ZAEL_NAMESPACE": st.one_of(st.sampled_from(["team-a", ""]), texts),
    },
).map(lambda named: {name: value for name, value in named.items() if is_settable(value)})


def is_settable(text: str) -> bool:
    """Whether a variable of the environment can have this value."""
    return "\0" not in text and is_whole(text)


@cases("opening", 200, named=variables)
def test_any_environment(named: dict[str, str]) -> None:
    """What the environment says is checked like what is passed."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in named.items():
            patch.setenv(name, value)
        if not named.get("ZAE_LIMITER_STORE", "").startswith(("memory:", "sqlite:")):
            result = outcome(lambda: store_url({}))  # what it leads to may be anywhere
        else:
            result = outcome(lambda: open_backend(store_url({}), sync=True, world=World()))
        assert SECRET not in str(result) or not isinstance(result, ZAELimiterError)
        opened = outcome(lambda: SyncRepository.open(store="memory://"))
    if isinstance(opened, SyncRepository):
        assert opened.namespace_name == (named.get("ZAEL_NAMESPACE") or "default")
    assert list(Path.cwd().iterdir()) == []


# Stacks.

stack_values = {
    field.name: st.one_of(st.just(getattr(EVERYTHING, field.name)), anything)
    for field in fields(StackOptions)
}


@cases(
    "opening",
    500,
    said=st.fixed_dictionaries({}, optional=stack_values),
    name=st.one_of(st.just("limits"), texts),
)
def test_any_options_of_a_stack(said: dict[str, Any], name: str) -> None:
    """Everything that a deployment sends is text, or an option was refused before."""
    options = outcome(lambda: StackOptions(**said))
    if isinstance(options, ZAELimiterError):
        return
    outcome(lambda: template.names(name, options))
    for made in (
        outcome(lambda: template.parameters(options)),
        outcome(lambda: template.tags(name, options)),
    ):
        if not isinstance(made, ZAELimiterError):
            assert all(isinstance(text, str) for pair in made.items() for text in pair)


function_variables = st.fixed_dictionaries(
    {},
    optional={
        "SNAPSHOT_WINDOWS": st.one_of(st.sampled_from(["hourly", "daily, monthly", ""]), texts),
        "SNAPSHOT_TTL_DAYS": st.one_of(st.sampled_from(["0", "90", "9" * 5_000, "\u0663"]), texts),
        "ENABLE_ARCHIVAL": st.one_of(st.sampled_from(["0", "false"]), texts),
    },
)


@cases("opening", 200, named=function_variables)
def test_any_environment_of_the_function(named: dict[str, str]) -> None:
    """The aggregator starts with what it understands, or says what it does not."""
    for read in (settings_from, archive_from):
        outcome(lambda read=read: read(named))


# Builders.

OPTIONS = sorted(
    name
    for name, value in vars(RepositoryOptions).items()
    if not name.startswith("_") and not isinstance(value, property) and not inspect.isfunction(value)
)


@cases(
    "opening", 300, said=st.dictionaries(st.sampled_from(OPTIONS), anything, max_size=4), sync=st.booleans()
)
def test_any_builder(said: dict[str, Any], sync: bool) -> None:
    """Options can be noted whatever they are; building checks them before it does anything."""
    builder: Any = (SyncRepository if sync else Repository).builder().store("memory://")
    for name, value in said.items():
        if name not in ("store", "stack", "region", "endpoint_url"):
            builder = getattr(builder, name)(value)
    result = outcome(builder.build)
    if not isinstance(result, ZAELimiterError):
        outcome(result.close)


@cases("opening", 200, repository=anything, kind=st.sampled_from(["async", "sync"]))
def test_a_limiter_needs_a_repository(repository: Any, kind: str) -> None:
    """Whatever else it is given, it says so at once."""
    assert isinstance(
        outcome(lambda: (RateLimiter if kind == "async" else SyncRateLimiter)(repository)), ValidationError
    )


def test_opening_in_a_loop_leaves_nothing() -> None:
    """What is refused was never set up."""
    for namespace in ("a#b", "", "_"):
        result = outcome(
            lambda name=namespace: run_sync(Repository._open({"store": "memory://shared"}, name, sync=True))
        )
        assert isinstance(result, ZAELimiterError), namespace
