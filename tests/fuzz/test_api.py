"""The whole API, given anything: it works or raises an error of ours, and a refusal leaves no trace."""

import inspect
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.fuzz.damage import NEIGHBOUR, check_neighbour
from tests.fuzz.figures import cases
from tests.fuzz.outcomes import outcome
from tests.fuzz.surface import LIMITER, REPOSITORY, arguments, calls
from tests.fuzz.tenants import LIMITS, Tenants, check_refused, contents, in_memory, template
from tests.fuzz.values import amounts, anything
from zae_limiter import Demand, LeaseExpiredError, SyncRateLimiter, ValidationError, ZAELimiterError
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import Fault, FaultyBackend, ManualClock

colours = st.sampled_from(["async", "sync"])


def check_call(who: str, name: str, given: st.SearchStrategy[Any], colour: str, data: Any) -> None:
    """A method either does its work or refuses it, and then it has changed nothing."""
    stage, backend = in_memory(colour)
    before, arguments_given = contents(backend), data.draw(given)
    result = outcome(lambda: getattr(getattr(stage, who), name)(**arguments_given))
    if isinstance(result, ZAELimiterError):
        check_refused(result, before, contents(backend))


pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
"""Former spellings are among the arguments."""


@pytest.mark.parametrize("name", sorted(REPOSITORY))
@cases("api", 40, colour=colours, data=st.data())
def test_any_arguments_of_a_repository(name: str, colour: str, data: Any) -> None:
    """Every method, with values of any type in any place."""
    check_call("repository", name, arguments(REPOSITORY[name]), colour, data)


@pytest.mark.parametrize("name", sorted(LIMITER))
@cases("api", 100, colour=colours, data=st.data())
def test_any_arguments_of_a_limiter(name: str, colour: str, data: Any) -> None:
    """What the limiter adds to the repository's methods."""
    check_call("limiter", name, arguments(LIMITER[name]), colour, data)


@cases("api", 300, colour=colours, data=st.data())
def test_any_arguments_of_an_acquire(colour: str, data: Any) -> None:
    """Nothing is asked of the store before every argument is checked."""
    stage, backend = in_memory(colour)
    before = contents(backend)
    given = data.draw(arguments(SyncRateLimiter.acquire))
    result = outcome(lambda: stage.limiter.acquire(**given))
    if isinstance(result, ZAELimiterError):
        check_refused(result, before, contents(backend))


# Leases.

usual_demands = st.sampled_from([{"rpm": 1}, {"rpm": 2, "tokens.in": 3}, {"rpm": -1}, {"rpm": 61}, {}, None])
demands = st.one_of(usual_demands, amounts, anything)
first_demands = st.one_of(st.just({"rpm": 1}), st.just({"rpm": 1}), demands)
"""Without a lease there is nothing to try."""

steps = st.lists(
    st.tuples(st.sampled_from(["consume", "adjust", "release"]), demands), min_size=1, max_size=5
)
entities = st.sampled_from(["user-1", "user-2"])


def drive(returned: Any) -> Any:
    return run_sync(returned) if inspect.iscoroutine(returned) else returned


def hold(stage: Tenants, acquisition: Any, done: list[Any]) -> dict[str, int]:
    """Enter an acquisition, take some steps on its lease, leave; what it has cost in the end.

    A step that is refused leaves the lease and the store as they were.
    """
    colour = "a" if hasattr(acquisition, "__aenter__") else ""
    lease = drive(getattr(acquisition, f"__{colour}enter__")())
    for name, given in done:
        before, held = contents(stage.backend), lease.consumed
        result = outcome(lambda name=name, given=given: getattr(lease, name)(given))
        if isinstance(result, ZAELimiterError):
            check_refused(result, before, contents(stage.backend))
            assert lease.consumed == held
        assert all(type(amount) is int for amount in lease.consumed.values())
    drive(getattr(acquisition, f"__{colour}exit__")(None, None, None))
    assert isinstance(outcome(lambda: lease.adjust({"rpm": 1})), LeaseExpiredError)
    return dict(lease.consumed)


@cases(
    "api",
    300,
    colour=colours,
    needs=first_demands,
    done=steps,
    given=st.sampled_from([None, LIMITS]),
    entity=entities,
)
def test_any_amounts_on_a_lease(colour: str, needs: Any, done: list[Any], given: Any, entity: str) -> None:
    """Whatever is asked of a lease, in the end the bucket has given what the lease says that it has cost."""
    stage, backend = in_memory(colour)
    before, there = contents(backend), stage.tenants[0].available(entity, "gpt-4")
    result = outcome(lambda: hold(stage, stage.limiter.acquire(entity, "gpt-4", needs, given), done))
    if isinstance(result, ZAELimiterError):
        check_refused(result, before, contents(backend))
    else:
        left = stage.tenants[0].available(entity, "gpt-4")
        assert left == {name: tokens - result.get(name, 0) for name, tokens in there.items()}


@cases("api", 200, colour=colours, listed=st.lists(st.one_of(anything, st.builds(str)), max_size=3))
def test_any_list_instead_of_demands(colour: str, listed: list[Any]) -> None:
    """Whatever is in a list, it is told before anything is asked of the store."""
    stage, backend = in_memory(colour)
    before = contents(backend)
    for asked in (listed, [Demand("user-1", "gpt-4", {"rpm": 1}), *listed] if listed else ()):
        result = outcome(lambda asked=asked: stage.limiter.acquire(asked))
        assert isinstance(result, ValidationError)
        check_refused(result, before, contents(backend))


@cases("api", 300, colour=colours, needs=first_demands, done=steps)
def test_any_amounts_on_a_lease_for_several_demands(colour: str, needs: Any, done: list[Any]) -> None:
    """Amounts that may be meant for both are refused; what is left of the two is what the lease has cost."""
    stage, backend = in_memory(colour)
    tenant, before = stage.tenants[0], contents(backend)
    there = [tenant.available("user-1", resource, LIMITS) for resource in ("gpt-4", "other")]

    def asked() -> list[Demand]:
        return [Demand("user-1", "gpt-4", needs, LIMITS), Demand("user-1", "other", {"rpm": 1}, LIMITS)]

    result = outcome(lambda: hold(stage, stage.limiter.acquire(asked()), done))
    if isinstance(result, ZAELimiterError):
        check_refused(result, before, contents(backend))
        return
    left = [tenant.available("user-1", resource, LIMITS) for resource in ("gpt-4", "other")]
    for name in there[0]:
        used = sum(full[name] - rest[name] for full, rest in zip(there, left, strict=True))
        assert used == result.get(name, 0)


@cases("api", 150, colour=colours, needs=first_demands, done=steps)
def test_any_amounts_while_the_store_is_down(colour: str, needs: Any, done: list[Any]) -> None:
    """The policy lets work through, but not nonsense; nothing is written."""
    _, backend = in_memory(colour)
    faulty = FaultyBackend(backend)
    faulty.always = Fault.UNREACHABLE
    stage = Tenants(colour, faulty, ManualClock().world, template().ids)
    stage.backend = backend
    before = contents(backend)
    acquire = stage.limiter.acquire
    outcome(lambda: hold(stage, acquire("user-1", "gpt-4", needs, None, "allow"), done))
    assert contents(backend) == before


# Many calls one after another.


@cases("api", 150, made=st.lists(calls(REPOSITORY), min_size=2, max_size=8))
def test_sessions_of_any_calls(made: list[Any]) -> None:
    """After whatever came before, each call works or is refused without a trace, and neighbours are well."""
    stage, backend = in_memory("sync")
    for name, given in made:
        if any(isinstance(value, str) and value == NEIGHBOUR for value in given.values()):
            continue  # somebody who is left alone, found by chance
        before = contents(backend)
        result = outcome(lambda name=name, given=given: getattr(stage.repository, name)(**given))
        if isinstance(result, ZAELimiterError):
            check_refused(result, before, contents(backend))
    used = {one.namespace_id for one in stage.repository.list_namespaces()}
    for tenant in stage.tenants:
        if tenant.repository.namespace_id in used:
            check_neighbour(tenant)
