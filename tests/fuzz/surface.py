"""Every public method, and for each parameter what one would pass.

Methods are found by looking, so a new one is tried as soon as it exists. A parameter that this table does
not know fails the tests: whoever adds one says here what is usually passed.
"""

import inspect
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.fuzz.tenants import HOME, LIMITS, LOST, RPM, template
from tests.fuzz.values import anything
from zae_limiter import LimiterConfig, OnError, OnUnavailable, SyncRateLimiter, SyncRepository, UsageWindow
from zae_limiter.repository_protocol import Absent, Check, Delete, Equal, Key, Put, Update

NOT_CALLED = {
    "acquire": "tried with the lease that it gives",
    "builder": "has a test of its own",
    "close": "ends the stage",
    "connect": "has a test of its own",
    "limit": "puts an acquire around functions, and has a test of its own",
    "list_deployed": "asks AWS",
    "open": "has a test of its own",
    "over": "has a test of its own",
}


def methods_of(owner: type) -> dict[str, Callable[..., Any]]:
    """The public methods of a class, by name."""
    return {
        name: member
        for name, member in inspect.getmembers(owner, callable)
        if not name.startswith("_") and name not in NOT_CALLED
    }


REPOSITORY = methods_of(SyncRepository)
LIMITER = {name: m for name, m in methods_of(SyncRateLimiter).items() if name not in REPOSITORY}
"""The twins have the public methods and nothing else."""


def usual(ids: Mapping[str, str]) -> dict[str, tuple[Any, ...]]:
    """What is passed by those who know what they do, and a little beside it."""

    def own(sort: str) -> Key:
        return Key(f"{ids[HOME]}/ENTITY#user-1", sort)

    return {
        "keys": (
            [("user-1", "gpt-4")],
            [("user-1", "gpt-4", 0), ("nobody", "other", "rpm")],
            [tuple(own("#CONFIG#gpt-4"))],
            [],
        ),
        "amounts": ({"rpm": 1}, {"rpm": 61, "tokens.in": 5}, {"tokens.in": 1}),
        "cascade": (True, False, None),
        "client_min_version": ("0.0.0", "99.0.0"),
        "config": (LimiterConfig((RPM,)), LimiterConfig((), OnUnavailable.ALLOW), LimiterConfig()),
        "consume": ({"rpm": 1}, {"rpm": 61}, {"rpm": 1, "tokens.in": 5}, {"tokens.in": 1}),
        "counted": (True, False),
        "cursor": (None, *template().cursors),
        "end_time": (None, datetime(2030, 1, 1, tzinfo=UTC), "2024-01-01", "2030-01-01T00:00:00Z"),
        "entity_id": ("user-1", "user-2", "org-1", "nobody", "$SYSTEM", "$RESOURCE:gpt-4"),
        "expected_version": (None, 1, 2),
        "identifier": (None, "user-1", "gpt-4"),
        "lambda_version": (None, "1.0.0"),
        "level": ("system", "resource", "entity"),
        "limit": (1, 2, 100, 1000),
        "limit_name": ("rpm", "tokens.in", None),
        "shard_id": (0, 1),
        "key": (None, "k-1", "k-2"),
        "limits": (None, LIMITS, [RPM], (RPM,), ["rpm"]),
        "metadata": (None, {}, {"plan": "free", "n": [1, 2.5, None, {"a": True}]}),
        "name": ("new", HOME, "Name"),
        "namespace": ("new", HOME, "Name"),
        "namespaces": (["new"], ["new", HOME], ()),
        "namespace_id": (ids[LOST], ids[HOME], "nobody"),
        "needed": (None, {"rpm": 1}, {"rpm": 61}),
        "next_key": (None, *template().cursors),
        "on_error": (None, "refund", "keep", OnError.SETTLE),
        "on_unavailable": (None, "allow", "block", OnUnavailable.ALLOW),
        "overrule": (True, False),
        "parent_id": (None, "org-1", "user-1", "nobody"),
        "parents_only": (True, False),
        "principal": (None, "admin"),
        "reason": ("maintenance", "x" * 500),
        "resource": ("gpt-4", "other", None, "_default_"),
        "schema_version": ("1.0.0", "2.0.0"),
        "stack_options": (None,),
        "start_event_id": (None, template().event_id),
        "start_time": (None, datetime(2020, 1, 1, tzinfo=UTC), "2020-01-01"),
        "timeout": (1.0, 0.1),
        "updated_by": (None, "admin"),
        "use_stored_limits": (None,),
        "wait": (None, 0, 0.5, 60, float("inf")),
        "window_type": (None, "hourly", UsageWindow.DAILY),
        "writes": _writes(own),
    }


def _writes(own: Callable[[str], Key]) -> tuple[Any, ...]:
    """Writes that somebody makes by hand."""
    return (
        [Update(own("#META"), {"children": 1}, {"name": "x"})],
        [Put(own("#MINE"), {"a": 1}, (Absent(),)), Delete(own("#YOURS")), Check(own("#META"))],
        [Update(own("#META"), set={"name": "y"}, when=(Equal("name", "x"),))],
        [],
    )


@st.composite
def arguments(draw: DrawFn, method: Callable[..., Any]) -> dict[str, Any]:
    """Arguments for a method: some as they should be, some not."""
    known, passed = usual(template().ids), {}
    # Without a part that is right, nothing would get past the first check.
    wrong = draw(st.sampled_from([0.0, 0.2, 0.5]))
    for name, optional in parameters_of(method).items():
        if optional and draw(st.booleans()):
            continue
        good = st.sampled_from(known[name])
        passed[name] = draw(anything if draw(st.floats(0, 1)) < wrong else good)
    return passed


def usual_arguments(rng: random.Random, method: Callable[..., Any], ids: Mapping[str, str]) -> dict[str, Any]:
    """Arguments for a method as one would pass them."""
    known = usual(ids)
    return {
        name: rng.choice(known[name])
        for name, optional in parameters_of(method).items()
        if not optional or rng.random() < 0.5
    }


def parameters_of(method: Callable[..., Any]) -> dict[str, bool]:
    """The parameters of a method, and whether they may be left out."""
    return {
        name: parameter.default is not parameter.empty
        for name, parameter in inspect.signature(method).parameters.items()
        if name != "self"
    }


def calls(methods: Mapping[str, Callable[..., Any]]) -> SearchStrategy[Any]:
    """A method by name and its arguments."""
    return st.sampled_from(sorted(methods)).flatmap(
        lambda name: st.tuples(st.just(name), arguments(methods[name]))
    )
