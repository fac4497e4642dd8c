"""What a decorator checks before the first call, and what is left of the function that it decorates."""

import functools
import inspect
import operator
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from zae_limiter import AcquireOptions, Limit, RateLimiter, SyncRateLimiter, ValidationError, limited
from zae_limiter.runtime.colour import run_sync

LIMITS = [Limit.per_day("rpm", 10)]
AMOUNTS = {"rpm": 1}


@pytest.fixture
def limiter() -> Iterator[RateLimiter]:
    it = run_sync(RateLimiter.open("memory://")._open())
    yield it
    run_sync(it.close())


@pytest.fixture
def sync_limiter() -> Iterator[SyncRateLimiter]:
    with SyncRateLimiter.open("memory://") as it:
        yield it


async def answer(key: str, prompt: str = "hello", *, tokens: int = 5) -> int:
    """An answer."""
    return len(key) + len(prompt) + tokens


async def stream(key: str) -> AsyncIterator[str]:
    """An answer in pieces."""
    yield key


def answer_now(key: str, prompt: str = "hello", *, tokens: int = 5) -> int:
    """The same, at once."""
    return len(key) + len(prompt) + tokens


def stream_now(key: str) -> Iterator[str]:
    """The same, in pieces."""
    yield key


KINDS = {
    answer: inspect.iscoroutinefunction,
    stream: inspect.isasyncgenfunction,
    answer_now: inspect.isfunction,
    stream_now: inspect.isgeneratorfunction,
}
OTHERS = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)


@pytest.mark.parametrize("function", KINDS, ids=lambda function: function.__name__)
def test_what_is_left_of_a_function(function: Callable[..., Any]) -> None:
    """Its name, words, module, signature, type hints and kind, and the way back to it."""
    decorated = limited(lambda: None, "gpt-4", AMOUNTS, entity="key-1")(function)
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        assert getattr(decorated, name) == getattr(function, name)
    assert inspect.signature(decorated) == inspect.signature(function)
    assert inspect.signature(decorated, eval_str=True) == inspect.signature(function, eval_str=True)
    assert typing.get_type_hints(decorated) == typing.get_type_hints(function)
    assert inspect.unwrap(decorated) is function
    assert KINDS[function](decorated)
    assert [is_kind(decorated) for is_kind in OTHERS] == [is_kind(function) for is_kind in OTHERS]


def test_a_limiter_refuses_the_other_kind(limiter: RateLimiter, sync_limiter: SyncRateLimiter) -> None:
    """When the module is imported, with the name of the function and the limiter to use."""
    for function in (answer_now, stream_now):
        with pytest.raises(TypeError, match=f"^{function.__name__} is a plain function, .*SyncRateLimiter"):
            limiter.limit("gpt-4", AMOUNTS, entity="key-1")(function)  # type: ignore[type-var]
    for coroutine in (answer, stream):
        with pytest.raises(TypeError, match=f"^{coroutine.__name__} is `async def`, .* use a RateLimiter"):
            sync_limiter.limit("gpt-4", AMOUNTS, entity="key-1")(coroutine)


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_below_and_above_a_static_method(kind: type, sync_limiter: SyncRateLimiter) -> None:
    """Below is where a decorator of functions works; above it is told so."""
    limit = sync_limiter.limit("gpt-4", AMOUNTS, entity="key-1", limits=LIMITS)
    with pytest.raises(TypeError, match=f"put @{kind.__name__} above the limit of answer_now"):
        limit(kind(answer_now))

    class Service:
        @staticmethod
        @limit
        def static(number: int) -> int:
            return number + 1

        @classmethod
        @limit
        def of_class(cls) -> type:
            return cls

    assert (Service.static(1), Service().of_class()) == (2, Service)


@pytest.mark.parametrize("thing", [3, dict, None])
def test_what_is_no_function(thing: Any, sync_limiter: SyncRateLimiter) -> None:
    """Classes, and whatever cannot be called."""
    with pytest.raises(TypeError, match="a limit is for functions"):
        sync_limiter.limit("gpt-4", AMOUNTS, entity="key-1")(thing)


async def look_up(key: str) -> str:
    return key


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"entity": ""}, "entity_id"),
        ({"entity": None}, "entity_id"),
        (
            {"entity": "prompt"},
            "answer_now has a parameter of that name: write `entity=lambda prompt: prompt`",
        ),
        ({"entity": lambda request: request}, "no parameter 'request', answer_now has key, prompt, tokens"),
        ({"entity": lambda *args: args[0]}, "name the parameters"),
        ({"entity": operator.attrgetter("key")}, "name the parameters"),
        ({"entity": dict}, "name the parameters"),
        ({"entity": look_up}, "it is not awaited"),
        ({"resource": "a#b"}, "resource"),
        ({"consume": {"rpm": -1}}, "amount of 'rpm' -1"),
        ({"consume": "rpm"}, "or a callable that gives them"),
        ({"consume": lambda text: {"tpm": len(text)}}, "no parameter 'text'"),
        ({"limits": "rpm"}, "limits"),
        ({"on_unavailable": "maybe"}, "use 'allow' or 'block'"),
        ({"on_error": "maybe"}, "use 'refund', 'keep' or 'settle'"),
        ({"wait": -1}, "it must be 0 or more"),
    ],
)
def test_bad_input_is_told_before_the_first_call(
    given: dict[str, Any], said: str, sync_limiter: SyncRateLimiter
) -> None:
    """The value is shown, and the way out."""
    whole = {"resource": "gpt-4", "consume": AMOUNTS, "entity": "key-1", **given}
    with pytest.raises(ValidationError) as caught:
        sync_limiter.limit(**whole)(answer_now)
    assert said in str(caught.value)


def test_an_option_that_is_not_there(sync_limiter: SyncRateLimiter) -> None:
    """An option with a typing error is no option that is ignored."""
    with pytest.raises(TypeError, match="unexpected argument 'limit': use entity, limits, on_unavailable"):
        sync_limiter.limit("gpt-4", AMOUNTS, entity="key-1", limit=LIMITS)  # type: ignore[call-arg]


def test_every_option_of_acquire_can_be_passed_on() -> None:
    """Whoever adds an option to acquire adds it to what a decorator takes; the deprecated one is left out."""
    asked = set(inspect.signature(RateLimiter.acquire).parameters)
    asked -= {"self", "entity_id", "resource", "consume", "use_stored_limits"}
    assert asked <= set(AcquireOptions.__annotations__)


def test_the_amounts_are_those_of_the_decoration(sync_limiter: SyncRateLimiter) -> None:
    """A mapping that is changed later changes nothing."""
    amounts = {"rpm": 2}
    decorated = sync_limiter.limit("gpt-4", amounts, entity="key-1", limits=LIMITS)(answer_now)
    amounts["rpm"] = 7
    decorated("key")
    assert sync_limiter.available("key-1", "gpt-4", LIMITS) == {"rpm": 8}


def test_callables_get_the_parameters_they_name(sync_limiter: SyncRateLimiter) -> None:
    """However the caller passes them, defaults included; one of its own with a default stays its own."""
    decorated = sync_limiter.limit(
        "gpt-4",
        lambda tokens, prompt, factor=1: {"rpm": factor * (tokens + len(prompt))},
        entity=lambda key: key,
        limits=[Limit.per_day("rpm", 100)],
    )(answer_now)
    assert decorated("a") == decorated(key="b", tokens=5, prompt="hello") == 11
    assert decorated("c", "", tokens=0) == 1
    left = [sync_limiter.available(key, "gpt-4", [Limit.per_day("rpm", 100)])["rpm"] for key in "abc"]
    assert left == [90, 90, 100]
    with pytest.raises(TypeError, match="missing a required argument: 'key'"):
        decorated()  # type: ignore[call-arg]


def test_methods_and_partials(sync_limiter: SyncRateLimiter) -> None:
    """``self`` is a parameter as any other, and so is what a function collects."""

    class Service:
        def __init__(self, key: str) -> None:
            self.key = key

        @sync_limiter.limit(
            "gpt-4", lambda rest: {"rpm": len(rest)}, entity=lambda self: self.key, limits=LIMITS
        )
        def add(self, *rest: int) -> int:
            return sum(rest)

    assert Service("one").add(1, 2, 3) == 6
    assert sync_limiter.available("one", "gpt-4", LIMITS) == {"rpm": 7}
    partial = functools.partial(answer_now, "k", tokens=1)
    limit = sync_limiter.limit("gpt-4", AMOUNTS, entity=lambda prompt: prompt, limits=LIMITS)
    assert limit(partial)(prompt="two") == 5
    assert sync_limiter.available("two", "gpt-4", LIMITS) == {"rpm": 9}


def test_a_limiter_that_is_opened_later(sync_limiter: SyncRateLimiter) -> None:
    """It is asked for at each call, and told apart from what is no open limiter of that kind."""
    place: dict[str, Any] = {}
    decorated = limited(lambda: place.get("limiter"), "gpt-4", AMOUNTS, entity="key-1", limits=LIMITS)(
        answer_now
    )
    for wrong in (None, RateLimiter.open("memory://"), run_sync(RateLimiter.open("memory://")._open())):
        place["limiter"] = wrong
        with pytest.raises(
            TypeError, match=r"^answer_now needs a SyncRateLimiter that is open, and was given"
        ):
            decorated("key")
    place["limiter"] = sync_limiter
    assert decorated("key") == 13
    assert sync_limiter.available("key-1", "gpt-4", LIMITS) == {"rpm": 9}


def test_a_limiter_of_the_object_itself(sync_limiter: SyncRateLimiter) -> None:
    """A method names ``self`` to say where the limiter is."""

    class Service:
        def __init__(self, limiter: SyncRateLimiter) -> None:
            self.limiter = limiter

        @limited(lambda self: self.limiter, "gpt-4", AMOUNTS, entity="key-1", limits=LIMITS)
        def work(self) -> str:
            return "done"

    assert Service(sync_limiter).work() == "done"
    assert sync_limiter.available("key-1", "gpt-4", LIMITS) == {"rpm": 9}


def test_a_limiter_is_no_callable_that_gives_one(sync_limiter: SyncRateLimiter) -> None:
    """Who has it already is told the shorter way."""
    with pytest.raises(ValidationError, match=r"or use `limiter\.limit"):
        limited(sync_limiter, "gpt-4", AMOUNTS, entity="key-1")  # type: ignore[arg-type]
