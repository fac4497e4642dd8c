"""Bad input, async and sync: each kind gets its own clear error, and the store is not touched.

A case is a call that every colour understands: it gets a stage and returns what the API returned,
which is then awaited or entered. Before the call the whole store is remembered and the recorder
emptied; after it nothing may have been written, not even something that was refused.
"""

import asyncio
import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest

from zae_limiter import (
    InvalidIdentifierError,
    InvalidNameError,
    Limit,
    LimiterConfig,
    RateLimiter,
    Repository,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.models import LIMITS_MAX, TOKENS_MAX
from zae_limiter.testing import ManualClock, RecordingBackend

RPM = Limit.per_minute("rpm", 60)
LIMITS = [RPM, Limit.per_minute("tokens.in", 1000)]


COLOURS = ("async", "sync")


class Case(NamedTuple):
    """A call, the value that its error must show, the way out, and the kind of the error."""

    call: Any
    value: object
    hint: str
    error: type[ValidationError] = ValidationError


def resolved(returned: Any) -> Any:
    """What a call comes to: coroutines are awaited, acquisitions entered and left."""
    if hasattr(returned, "__enter__"):
        with returned as entered:
            return entered
    if hasattr(returned, "__aenter__"):
        return asyncio.run(_entered(returned))
    return asyncio.run(_awaited(returned)) if inspect.isawaitable(returned) else returned


async def _entered(returned: Any) -> Any:
    async with returned as entered:
        return entered


async def _awaited(returned: Any) -> Any:
    return await returned


class Stage:
    """A limiter of one colour over a recorded store that already holds something."""

    def __init__(self, colour: str) -> None:
        clock = ManualClock()
        self.memory = MemoryBackend(clock.world)
        self.recorder = RecordingBackend(self.memory)
        self.repository: Any = (
            asyncio.run(Repository.over(self.recorder, world=clock.world))
            if colour == "async"
            else SyncRepository.over(self.recorder, world=clock.world)
        )
        self.limiter: Any = (RateLimiter if colour == "async" else SyncRateLimiter)(self.repository)
        resolved(self.repository.set_system_defaults(LIMITS))
        resolved(self.repository.create_entity("org-1"))
        resolved(self.repository.create_entity("user-1", parent_id="org-1", cascade=True))
        resolved(self.limiter.acquire("user-1", "gpt-4", {"rpm": 1}))

    def contents(self) -> dict[Any, Any]:
        return copy.deepcopy(self.memory._shelf.items)

    @contextlib.contextmanager
    def untouched(
        self, value: object, hint: str, error: type[ValidationError] = ValidationError
    ) -> Iterator[None]:
        """Exactly this error is raised, it shows value and hint, and it leaves no trace."""
        before = self.contents()
        self.recorder.forget()
        with pytest.raises(ValidationError) as caught:
            yield
        assert type(caught.value) is error
        assert repr(value)[:100] in str(caught.value)
        assert hint in str(caught.value)
        assert self.recorder.writes == 0
        assert self.contents() == before

    def check_refused(
        self,
        call: Callable[[Any], Any],
        value: object,
        hint: str,
        error: type[ValidationError] = ValidationError,
    ) -> None:
        with self.untouched(value, hint, error):
            resolved(call(self))


def cases(table: Iterable[str]) -> Any:
    """The names of a table as parameters."""
    return pytest.mark.parametrize("case", list(table))


@pytest.fixture(scope="module", params=COLOURS)
def stage(request: pytest.FixtureRequest) -> Stage:
    """One stage for all cases: that a case leaves no trace is what each of them checks."""
    return Stage(request.param)


# Names. Each kind of bad name at each place where a name is taken.

ENTITY_PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "acquire": lambda s, bad: s.limiter.acquire(bad, "gpt-4", {"rpm": 1}),
    "available": lambda s, bad: s.limiter.available(bad, "gpt-4"),
    "time_until_available": lambda s, bad: s.limiter.time_until_available(bad, "gpt-4", {"rpm": 1}),
    "check_availability": lambda s, bad: s.limiter.check_availability(bad, "gpt-4"),
    "create_entity": lambda s, bad: s.repository.create_entity(bad),
    "get_entity": lambda s, bad: s.repository.get_entity(bad),
    "update_entity": lambda s, bad: s.repository.update_entity(bad, name="New"),
    "delete_entity": lambda s, bad: s.repository.delete_entity(bad),
    "get_children": lambda s, bad: s.repository.get_children(bad),
    "set_limits": lambda s, bad: s.repository.set_limits(bad, LIMITS),
    "get_limits": lambda s, bad: s.repository.get_limits(bad),
    "delete_limits": lambda s, bad: s.repository.delete_limits(bad),
    "resolve_limits": lambda s, bad: s.repository.resolve_limits(bad, "gpt-4"),
    "explain": lambda s, bad: s.repository.explain(bad, "gpt-4"),
    "get_bucket": lambda s, bad: s.repository.get_bucket(bad, "gpt-4"),
}
RESOURCE_PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "acquire": lambda s, bad: s.limiter.acquire("user-1", bad, {"rpm": 1}),
    "available": lambda s, bad: s.limiter.available("user-1", bad),
    "time_until_available": lambda s, bad: s.limiter.time_until_available("user-1", bad, {"rpm": 1}),
    "check_availability": lambda s, bad: s.limiter.check_availability("user-1", bad),
    "set_limits": lambda s, bad: s.repository.set_limits("user-1", LIMITS, bad),
    "get_limits": lambda s, bad: s.repository.get_limits("user-1", bad),
    "delete_limits": lambda s, bad: s.repository.delete_limits("user-1", bad),
    "set_resource_defaults": lambda s, bad: s.repository.set_resource_defaults(bad, LIMITS),
    "get_resource_defaults": lambda s, bad: s.repository.get_resource_defaults(bad),
    "delete_resource_defaults": lambda s, bad: s.repository.delete_resource_defaults(bad),
    "list_entities_with_custom_limits": lambda s, bad: s.repository.list_entities_with_custom_limits(bad),
    "resolve_limits": lambda s, bad: s.repository.resolve_limits("user-1", bad),
    "explain": lambda s, bad: s.repository.explain("user-1", bad),
    "get_bucket": lambda s, bad: s.repository.get_bucket("user-1", bad),
}
OTHER_PLACES: dict[str, tuple[type[ValidationError], Callable[[Any, Any], Any]]] = {
    "parent of a new entity": (
        InvalidIdentifierError,
        lambda s, bad: s.repository.create_entity("new", parent_id=bad),
    ),
    "parent of an entity": (
        InvalidIdentifierError,
        lambda s, bad: s.repository.update_entity("user-1", parent_id=bad),
    ),
    "principal of a new entity": (
        InvalidIdentifierError,
        lambda s, bad: s.repository.create_entity("new", principal=bad),
    ),
    "principal of a deletion": (
        InvalidIdentifierError,
        lambda s, bad: s.repository.delete_entity("user-1", principal=bad),
    ),
    "principal of limits": (
        InvalidIdentifierError,
        lambda s, bad: s.repository.set_limits("user-1", LIMITS, principal=bad),
    ),
    "new namespace": (InvalidNameError, lambda s, bad: s.repository.register_namespace(bad)),
    "namespace": (InvalidNameError, lambda s, bad: s.repository.namespace(bad)),
    "namespace to look up": (InvalidNameError, lambda s, bad: s.repository.get_namespace(bad)),
    "namespace to delete": (InvalidNameError, lambda s, bad: s.repository.delete_namespace(bad)),
}
BAD_NAMES: list[tuple[Any, str]] = [
    ("a#b", "'#' is reserved"),
    ("", "it is empty"),
    ("x" * 257, "at most"),
    (" a", "begins or ends with white space"),
    ("a\n", "is no character of a name"),
    (7, "it must be a string, not int"),
    (["a"], "it must be a string, not list"),
]
BAD_NAMESPACES = [
    *((bad, hint) for bad, hint in BAD_NAMES if not isinstance(bad, str)),
    *((bad, "start with a letter or digit") for bad in ("a#b", "", " a", "a b", "-a", "a\n")),
]


@pytest.mark.parametrize("place", ENTITY_PLACES)
def test_bad_entity_ids(stage: Stage, place: str) -> None:
    """An entity id is checked wherever one is taken."""
    for bad, hint in BAD_NAMES:
        stage.check_refused(partial(ENTITY_PLACES[place], bad=bad), bad, hint, InvalidIdentifierError)


@pytest.mark.parametrize("place", RESOURCE_PLACES)
def test_bad_resources(stage: Stage, place: str) -> None:
    """A resource is checked wherever one is taken."""
    for bad, hint in BAD_NAMES:
        stage.check_refused(partial(RESOURCE_PLACES[place], bad=bad), bad, hint, InvalidNameError)


@pytest.mark.parametrize("place", OTHER_PLACES)
def test_other_bad_names(stage: Stage, place: str) -> None:
    """So are parents, principals and namespaces."""
    error, call = OTHER_PLACES[place]
    for bad, hint in BAD_NAMESPACES if "namespace" in place else BAD_NAMES:
        stage.check_refused(partial(call, bad=bad), bad, hint, error)


# Amounts.

BAD_AMOUNTS: list[tuple[Any, str]] = [
    (-1, "it must be at least 0"),
    (TOKENS_MAX + 1, f"it must be at most {TOKENS_MAX}"),
    (10**30, f"it must be at most {TOKENS_MAX}"),
    (1.5, "it must be a whole number, not float"),
    (1.0, "it must be a whole number, not float"),
    (float("nan"), "it must be a whole number, not float"),
    (True, "it must be a whole number, not bool"),
    ("1", "it must be a whole number, not str"),
    (None, "it must be a whole number, not NoneType"),
    ([1], "it must be a whole number, not list"),
]
DEMANDS: dict[str, Callable[[Any, Any], Any]] = {
    "acquire": lambda s, needs: s.limiter.acquire("user-1", "gpt-4", needs),
    "acquire with limits": lambda s, needs: s.limiter.acquire("user-1", "gpt-4", needs, LIMITS),
    "time_until_available": lambda s, needs: s.limiter.time_until_available("user-1", "gpt-4", needs),
    "check_availability": lambda s, needs: s.limiter.check_availability("user-1", "gpt-4", needs),
}
every_demand = pytest.mark.parametrize("demand", DEMANDS)


@every_demand
@pytest.mark.parametrize(("bad", "hint"), BAD_AMOUNTS, ids=lambda v: repr(v)[:12])
def test_bad_amounts(stage: Stage, demand: str, bad: Any, hint: str) -> None:
    """An amount is a whole number from 0; the error names its limit, and the good amounts are not taken."""
    call = DEMANDS[demand]
    stage.check_refused(lambda s: call(s, {"tokens.in": 1, "rpm": bad}), bad, hint)
    stage.check_refused(lambda s: call(s, {"rpm": bad}), bad, "amount of 'rpm'")


@every_demand
def test_amounts_too_long_to_print(stage: Stage, demand: str) -> None:
    """Python cannot print this number, but it can be refused."""
    call = DEMANDS[demand]
    with pytest.raises(ValidationError, match="<int that cannot be shown>: it must be at most"):
        resolved(call(stage, {"rpm": 10**5000}))


@every_demand
@pytest.mark.parametrize("bad", [[], "rpm", 1, [("rpm", 1)], {"rpm"}], ids=repr)
def test_demands_that_name_nothing(stage: Stage, demand: str, bad: Any) -> None:
    """A demand is a mapping of limits; the error shows how."""
    stage.check_refused(lambda s: DEMANDS[demand](s, bad), bad, "pass amounts by limit, such as {'rpm': 1}")


def test_an_acquire_of_none(stage: Stage) -> None:
    """Nothing is not a demand either; to look without one, there is ``available``."""
    stage.check_refused(lambda s: s.limiter.acquire("user-1", "gpt-4", None), None, "pass amounts")


@every_demand
@pytest.mark.parametrize("bad", ["nope", "rpm ", "RPM", "a#b", "wcu", "", 7, None], ids=repr)
def test_unknown_limits(stage: Stage, demand: str, bad: Any) -> None:
    """A limit that the bucket does not have is named, and so are those that it has."""
    call = DEMANDS[demand]
    stage.check_refused(lambda s: call(s, {"rpm": 1, bad: 1}), bad, "rpm, tokens.in")


# Limits.

BAD_LIMITS: dict[str, tuple[Any, object, str]] = {
    "empty": ([], [], "pass at least one limit"),
    "twice": ([RPM, Limit.per_day("rpm", 1)], ["rpm", "rpm"], "rpm given more than once"),
    "too many": (
        [Limit.per_day(f"l{i}", 1) for i in range(LIMITS_MAX + 1)],
        LIMITS_MAX + 1,
        f"at most {LIMITS_MAX} limits",
    ),
    "a name": ("rpm", "rpm", "pass a list of Limit"),
    "a limit": (RPM, RPM, "pass a list of Limit"),
    "a mapping": ({"rpm": 60}, {"rpm": 60}, "pass a list of Limit"),
    "names": (["rpm"], ["rpm"], "pass a list of Limit"),
    "half": ([RPM, None], [RPM, None], "pass a list of Limit"),
    "a number": (5, 5, "pass a list of Limit"),
}
LIMIT_PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "acquire": lambda s, bad: s.limiter.acquire("user-1", "gpt-4", {"rpm": 1}, bad),
    "available": lambda s, bad: s.limiter.available("user-1", "gpt-4", bad),
    "time_until_available": lambda s, bad: s.limiter.time_until_available("user-1", "gpt-4", {"rpm": 1}, bad),
    "check_availability": lambda s, bad: s.limiter.check_availability("user-1", "gpt-4", limits=bad),
    "set_limits": lambda s, bad: s.repository.set_limits("user-1", bad),
    "set_resource_defaults": lambda s, bad: s.repository.set_resource_defaults("gpt-4", bad),
    "set_system_defaults": lambda s, bad: s.repository.set_system_defaults(bad),
}


@pytest.mark.parametrize(
    ("kind", "place"),
    # To set no limits deletes them, which is understood with a warning.
    [(k, p) for k in BAD_LIMITS for p in LIMIT_PLACES if k != "empty" or not p.startswith("set_")],
)
def test_bad_sets_of_limits(stage: Stage, place: str, kind: str) -> None:
    """A set of limits is a list of ``Limit``: some, not too many, no name twice."""
    bad, shown, hint = BAD_LIMITS[kind]
    stage.check_refused(lambda s: LIMIT_PLACES[place](s, bad), shown, hint)


def test_a_capacity_of_zero_never_gets_as_far_as_a_limiter() -> None:
    """A limit is checked when it is made."""
    with pytest.raises(ValidationError, match="invalid capacity of 'rpm' 0: it must be at least 1"):
        Limit.per_minute("rpm", 60, burst=0)


# Policies, pages and levels.

WAYS = "use 'allow' or 'block'"
CURSOR = "pass on what the previous page"
LEVELS = "use 'system', 'resource' or 'entity'"
QUIET = LimiterConfig()
SYSTEM_ONLY = LimiterConfig((RPM,), auto_update=True)

OTHER_INPUT: dict[str, Case] = {
    "policy of an acquire": Case(
        lambda s: s.limiter.acquire("user-1", "gpt-4", {"rpm": 1}, on_unavailable="maybe"),
        "maybe",
        WAYS,
    ),
    "policy that is no word": Case(
        lambda s: s.limiter.acquire("user-1", "gpt-4", {"rpm": 1}, on_unavailable=True),
        True,
        WAYS,
    ),
    "policy of an entity": Case(
        lambda s: s.repository.set_limits("user-1", LIMITS, on_unavailable="x"), "x", WAYS
    ),
    "policy of a resource": Case(
        lambda s: s.repository.set_resource_defaults("r", LIMITS, None, "x"), "x", WAYS
    ),
    "policy where a principal goes": Case(
        lambda s: s.repository.set_resource_defaults("r", LIMITS, "block"), "block", "by its name"
    ),
    "policy of the system": Case(lambda s: s.repository.set_system_defaults(LIMITS, "x"), "x", WAYS),
    "no rows": Case(lambda s: s.repository.list_entities(limit=0), 0, "at least 1"),
    "rows below zero": Case(lambda s: s.repository.list_entities(limit=-1), -1, "at least 1"),
    "too many rows": Case(lambda s: s.repository.list_entities(limit=1001), 1001, "at most 1000"),
    "half a row": Case(lambda s: s.repository.list_entities(limit=1.5), 1.5, "not float"),
    "true rows": Case(lambda s: s.repository.list_entities(limit=True), True, "not bool"),
    "rows as text": Case(lambda s: s.repository.list_entities(limit="10"), "10", "not str"),
    "rows of nothing": Case(lambda s: s.repository.list_entities(limit=None), None, "not NoneType"),
    "no rows of limits": Case(
        lambda s: s.repository.list_entities_with_custom_limits(limit=0), 0, "at least 1"
    ),
    "no rows of events": Case(lambda s: s.repository.get_audit_events("user-1", limit=0), 0, "at least 1"),
    "made-up cursor": Case(lambda s: s.repository.list_entities(cursor="page-2"), "page-2", CURSOR),
    "cut cursor": Case(lambda s: s.repository.list_entities(cursor="6162"), "6162", CURSOR),
    "cursor that is no text": Case(lambda s: s.repository.list_entities(cursor=5), 5, CURSOR),
    "cursor of limits": Case(
        lambda s: s.repository.list_entities_with_custom_limits(cursor="x"), "x", CURSOR
    ),
    "unknown level": Case(lambda s: s.repository.get_config("global"), "global", LEVELS),
    "level to set": Case(
        lambda s: s.repository.set_config("global", LimiterConfig((RPM,))), "global", LEVELS
    ),
    "system with a name": Case(
        lambda s: s.repository.get_config("system", "user-1"), "system", "takes no identifier"
    ),
    "entity without a name": Case(lambda s: s.repository.get_config("entity"), None, "name the entity"),
    "resource without a name": Case(lambda s: s.repository.get_config("resource"), None, "name the resource"),
    "config that says nothing": Case(
        lambda s: s.repository.set_config("system", QUIET), QUIET, "it says nothing"
    ),
    "config at the wrong level": Case(
        lambda s: s.repository.set_config("entity", SYSTEM_ONLY, "user-1"),
        "entity",
        "exist at the system level only",
    ),
    "config with a limit twice": Case(
        lambda s: s.repository.set_config("system", LimiterConfig((RPM, RPM))),
        ["rpm", "rpm"],
        "rpm given more than once",
    ),
    "own parent": Case(
        lambda s: s.repository.create_entity("me", parent_id="me"),
        "me",
        "an entity cannot be its own parent",
    ),
    "circle": Case(
        lambda s: s.repository.update_entity("org-1", parent_id="user-1"),
        "user-1",
        "'org-1' would become its own ancestor",
    ),
    "metadata that is no mapping": Case(
        lambda s: s.repository.create_entity("new", metadata=5), 5, "JSON values"
    ),
    "metadata that is not JSON": Case(
        lambda s: s.repository.create_entity("new", metadata={"k": {1}}),
        {"k": {1}},
        "JSON values",
    ),
    "metadata without a number": Case(
        lambda s: s.repository.update_entity("user-1", metadata={"k": float("nan")}),
        {"k": float("nan")},
        "JSON values",
    ),
    "metadata without an end": Case(
        lambda s: s.repository.create_entity("new", metadata={"k": "x" * 70_000}),
        "70009 bytes",
        "at most 65536",
    ),
    "name that is no text": Case(lambda s: s.repository.create_entity("new", name=5), 5, "it must be a text"),
    "cascade that is no truth": Case(
        lambda s: s.repository.create_entity("new", cascade="yes"), "yes", "True or False"
    ),
    "a good namespace before a bad one": Case(
        lambda s: s.repository.register_namespaces(["good", "bad#"]),
        "bad#",
        "'#' is reserved",
        InvalidNameError,
    ),
    "namespaces that are one word": Case(
        lambda s: s.repository.register_namespaces("abc"), "abc", "list of names"
    ),
    "events of a bad name": Case(
        lambda s: s.repository.get_audit_events("a#b"), "a#b", "'#' is reserved", InvalidIdentifierError
    ),
}


@cases(OTHER_INPUT)
@pytest.mark.parametrize("colour", COLOURS)
def test_other_bad_input(colour: str, case: str) -> None:
    """Whatever else can be wrong."""
    Stage(colour).check_refused(*OTHER_INPUT[case])


# Leases.

BAD_ON_LEASES: dict[str, Case] = {
    "consume no list": Case(lambda lease: lease.consume([("rpm", 1)]), [("rpm", 1)], "pass amounts by limit"),
    "consume unknown": Case(lambda lease: lease.consume(nope=1), "nope", "rpm, tokens.in"),
    "consume good and unknown": Case(lambda lease: lease.consume(rpm=1, nope=1), "nope", "rpm, tokens.in"),
    "consume good and bad": Case(lambda lease: lease.consume({"tokens.in": 1}, rpm=-1), -1, "at least 0"),
    "consume twice": Case(lambda lease: lease.consume({"rpm": 1}, rpm=1), "rpm", "rpm given twice"),
    "adjust unknown": Case(lambda lease: lease.adjust(nope=1), "nope", "rpm, tokens.in"),
    "adjust good and unknown": Case(lambda lease: lease.adjust(rpm=1, nope=1), "nope", "rpm, tokens.in"),
    "adjust half": Case(lambda lease: lease.adjust(rpm=0.5), 0.5, "not float"),
    "adjust true": Case(lambda lease: lease.adjust(rpm=True), True, "not bool"),
    "adjust text": Case(lambda lease: lease.adjust(rpm="1"), "1", "not str"),
    "adjust none": Case(lambda lease: lease.adjust(rpm=None), None, "not NoneType"),
    "adjust no mapping": Case(lambda lease: lease.adjust(5), 5, "such as {'rpm': 1}"),
    "adjust huge": Case(lambda lease: lease.adjust(rpm=TOKENS_MAX + 1), TOKENS_MAX + 1, "at most"),
    "adjust twice": Case(lambda lease: lease.adjust({"rpm": 1}, rpm=1), "rpm", "rpm given twice"),
    "release unknown": Case(lambda lease: lease.release(nope=1), "nope", "rpm, tokens.in"),
    "release below zero": Case(lambda lease: lease.release(rpm=-1), -1, "at least 0"),
    "release half": Case(lambda lease: lease.release(rpm=0.5), 0.5, "not float"),
}


@cases(BAD_ON_LEASES)
@pytest.mark.parametrize("colour", COLOURS)
def test_bad_input_on_a_lease(colour: str, case: str) -> None:
    """A lease refuses what makes no sense and stays what it was."""
    stage, (call, *expected) = Stage(colour), BAD_ON_LEASES[case]

    async def hold() -> None:
        acquisition = stage.limiter.acquire("user-1", "gpt-4", {"rpm": 2})
        async with contextlib.AsyncExitStack() as stack:
            enter = stack.enter_context if colour == "sync" else stack.enter_async_context
            lease = await entered if inspect.isawaitable(entered := enter(acquisition)) else entered
            with stage.untouched(*expected):
                if inspect.isawaitable(returned := call(lease)):
                    await returned
            assert lease.consumed == {"rpm": 2}

    asyncio.run(hold())
    assert resolved(stage.limiter.available("user-1", "gpt-4")) == {"rpm": 57, "tokens.in": 1000}
