"""``limiter.limit`` and ``limited``: a lease around every call of a function.

The function keeps its name, its parameters and its kind: a coroutine function stays one, and a generator
holds its lease for as long as it is read. A decorator runs when its module is imported, so whatever can be
checked is checked then. Nothing is decided here: every call is an ordinary ``acquire``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from types import AsyncGeneratorType
from typing import Any, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack

from .exceptions import ValidationError
from .models import Limit, OnUnavailable, check_limits
from .models.checks import check_mapping, needs_milli, wait_ms
from .models.leases import OnError
from .naming import validate_entity_id, validate_resource

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound=Coroutine[Any, Any, Any] | AsyncIterator[Any])
AnyDecorator = TypeVar("AnyDecorator")

Ask = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""From the arguments of a call to what has to be entered around it."""

BY_NAME = "name the parameters of the function that it needs, as in `lambda request: request.key`"
AMOUNTS = "pass amounts by limit, such as {'rpm': 1}, or a callable that gives them"


class AcquireOptions(TypedDict, total=False):
    """What a decorator passes on to ``acquire``, where each is explained."""

    limits: Sequence[Limit] | None
    on_unavailable: OnUnavailable | str | None
    on_error: OnError | str | None
    wait: float | None


class Decorator(Protocol):
    """Takes a function and gives one with the same parameters and result."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


class AsyncDecorator(Protocol):
    """The same for coroutine functions and async generator functions, and no others."""

    def __call__(self, function: Callable[P, A], /) -> Callable[P, A]: ...


class Limiter(Protocol):
    """A limiter of either colour."""

    @property
    def acquire(self) -> Callable[..., Any]: ...


class Limiting(Generic[AnyDecorator]):
    """The decorator of a limiter, in both colours."""

    def limit(
        self,
        resource: str,
        consume: Mapping[str, int] | Callable[..., Mapping[str, int]],
        *,
        entity: str | Callable[..., str],
        **options: Unpack[AcquireOptions],
    ) -> AnyDecorator:
        """Put a lease around every call: ``@limiter.limit("gpt-4", {"rpm": 1}, entity="key-1")``.

        - ``resource``, ``consume``: as for ``acquire``; ``consume`` may be a callable.
        - ``entity``: who asks, an id, or a callable that gives it: ``entity=lambda request: request.key``.
        - ``options``: ``limits``, ``on_unavailable`` and what else ``acquire`` can be told.

        A callable gets those parameters of the function that it names, for each call anew. A ``RateLimiter``
        takes ``async def`` functions, async generator functions included, a ``SyncRateLimiter`` the others. A
        generator takes its lease when it is first read, and settles it when its reader is done or leaves.
        Within the function ``Lease.current()`` is its lease, ``SyncLease.current()`` in sync code.

        A limiter that is opened later than the module is imported: ``limited``.
        """
        wanted = _Wanted(self, resource, consume, entity, options)
        decorator: AnyDecorator = wanted.decorator(for_async=hasattr(self, "__aenter__"))
        return decorator


def limited(
    limiter: Callable[..., Limiter | None],
    resource: str,
    consume: Mapping[str, int] | Callable[..., Mapping[str, int]],
    *,
    entity: str | Callable[..., str],
    **options: Unpack[AcquireOptions],
) -> Decorator:
    """``limiter.limit`` for a limiter that is not there yet when the module is imported.

    ``limiter`` gives it for each call: ``@limited(lambda: app.limiter, "gpt-4", {"rpm": 1}, entity=…)``, or
    ``lambda self: self.limiter`` for a method. An ``async def`` function needs a ``RateLimiter``, any other
    a ``SyncRateLimiter``. All the rest is as for ``limiter.limit``.
    """
    if not callable(limiter):
        raise ValidationError("limiter", limiter, "pass a callable that gives it, or use `limiter.limit(…)`")
    decorator: Decorator = _Wanted(limiter, resource, consume, entity, options).decorator(for_async=None)
    return decorator


class _Wanted:
    """What is asked for every call of a function, checked as far as it is known before the first."""

    def __init__(
        self, limiter: Any, resource: str, consume: Any, entity: Any, options: AcquireOptions
    ) -> None:
        if unknown := sorted(options.keys() - AcquireOptions.__annotations__.keys()):
            known = ", ".join(AcquireOptions.__annotations__)
            raise TypeError(f"limit() got an unexpected argument {unknown[0]!r}: use entity, {known}")
        if not callable(consume):
            consume = check_mapping("consume", consume, AMOUNTS)
            needs_milli(consume)
        if not callable(entity):
            validate_entity_id(entity)
        if (limits := options.get("limits")) is not None:
            check_limits(limits)
        if (policy := options.get("on_unavailable")) is not None:
            OnUnavailable.of(policy)
        if (on_error := options.get("on_error")) is not None:
            OnError.of(on_error)
        if (wait := options.get("wait")) is not None:
            wait_ms(wait)
        self.resource, self.options = validate_resource(resource), options
        self.limiter, self.consume, self.entity = limiter, consume, entity

    def decorator(self, for_async: bool | None) -> Any:
        """For functions of one colour, or of both while nobody knows which limiter there will be."""

        def decorate(function: Callable[..., Any], /) -> Callable[..., Any]:
            is_async, around = _kind_of(function)
            if for_async is not None and is_async != for_async:
                raise TypeError(_wrong_kind(function, is_async))
            return functools.wraps(function)(around(function, self.ask(function, is_async)))

        return decorate

    def ask(self, function: Callable[..., Any], is_async: bool) -> Ask:
        """How to ask for one call of a function."""
        signature, name = _signature_of(function), _name(function)
        if isinstance(self.entity, str) and self.entity in signature.parameters:
            told = f"{name} has a parameter of that name: write `entity=lambda {self.entity}: {self.entity}`"
            told += f", or `lambda: {self.entity!r}` if all calls are of one entity"
            raise ValidationError("entity", self.entity, told)
        limiter_of, entity_of, consume_of = (
            _PerCall(field, getattr(self, field), name, signature)
            for field in ("limiter", "entity", "consume")
        )
        reads = limiter_of.names or entity_of.names or consume_of.names
        enter = "__aenter__" if is_async else "__enter__"

        def ask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            call: Mapping[str, Any] = {}
            if reads:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                call = bound.arguments
            limiter = limiter_of(call)
            if not (hasattr(type(limiter), enter) and hasattr(limiter, "acquire")):
                needed = "a RateLimiter" if is_async else "a SyncRateLimiter"
                raise TypeError(f"{name} needs {needed} that is open, and was given {limiter!r}")
            return limiter.acquire(entity_of(call), self.resource, consume_of(call), **self.options)

        return ask


class _PerCall:
    """What is the same for every call, or a callable that says it by the parameters that it names."""

    def __init__(self, field: str, given: Any, function: str, signature: inspect.Signature) -> None:
        self.given, self.is_asked, self.names = given, callable(given), list[str]()
        if not self.is_asked:
            return
        if inspect.iscoroutinefunction(given):
            raise ValidationError(field, given, "it is not awaited: pass a plain function")
        there = signature.parameters
        for one in _signature_of(given).parameters.values():
            if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
                raise ValidationError(field, given, BY_NAME)
            if one.name in there:
                self.names.append(one.name)
            elif one.default is one.empty:
                has = f"{function} has {', '.join(there) or 'none'}"
                raise ValidationError(field, given, f"there is no parameter {one.name!r}, {has}; {BY_NAME}")

    def __call__(self, call: Mapping[str, Any]) -> Any:
        return self.given(**{name: call[name] for name in self.names}) if self.is_asked else self.given


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:  # something built in that does not say
        return inspect.signature(lambda *args, **kwargs: (args, kwargs))


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _wrong_kind(function: Callable[..., Any], is_async: bool) -> str:
    """Why a limiter does not take a function."""
    if is_async:
        return f"{_name(function)} is `async def`, and this limiter is sync: use a RateLimiter for it"
    return f"{_name(function)} is a plain function, and this limiter is async: use a SyncRateLimiter for it"


def _kind_of(function: Callable[..., Any]) -> tuple[bool, Callable[[Callable[..., Any], Ask], Any]]:
    """Whether a function is async, and what puts a lease around its calls."""
    if isinstance(function, staticmethod | classmethod):
        raise TypeError(f"put @{type(function).__name__} above the limit of {_name(function)}, not below it")
    if isinstance(function, type) or not callable(function):
        raise TypeError(f"a limit is for functions, not for {function!r}: decorate a method instead")
    if inspect.isasyncgenfunction(function):
        return True, _around_async_generator
    if inspect.iscoroutinefunction(function):
        return True, _around_coroutine
    if inspect.isgeneratorfunction(function):
        return False, _around_generator
    return False, _around_function


def _around_coroutine(function: Callable[..., Any], ask: Ask) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        async with ask(args, kwargs) as lease:
            with lease._as_current():
                return await function(*args, **kwargs)

    return call


def _around_function(function: Callable[..., Any], ask: Ask) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with ask(args, kwargs) as lease, lease._as_current():
            return function(*args, **kwargs)

    return call


# A generator runs in the context of whoever reads it: its lease is current during a step and not between two,
# lest the reader find it there, or another task take the next step and find none.


def _around_async_generator(function: Callable[..., Any], ask: Ask) -> Callable[..., Any]:
    async def read(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        async with ask(args, kwargs) as lease:
            inner: AsyncGeneratorType[Any, Any] = function(*args, **kwargs)
            step: Callable[[Any], Awaitable[Any]] = inner.asend
            given: Any = None
            while True:
                try:
                    with lease._as_current():
                        value = await step(given)
                except StopAsyncIteration:
                    return
                finally:
                    del given  # an exception that was thrown in would hold itself by this frame
                try:
                    step, given = inner.asend, (yield value)
                except GeneratorExit:
                    if not inner.ag_running:  # else a loop that shuts down is closing it, too
                        with lease._as_current():
                            await inner.aclose()
                    raise
                except BaseException as error:
                    step, given = inner.athrow, error

    return read


def _around_generator(function: Callable[..., Any], ask: Ask) -> Callable[..., Any]:
    def read(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with ask(args, kwargs) as lease:
            inner: Generator[Any, Any, Any] = function(*args, **kwargs)
            step: Callable[[Any], Any] = inner.send
            given: Any = None
            while True:
                try:
                    with lease._as_current():
                        value = step(given)
                except StopIteration as done:
                    return done.value
                finally:
                    del given
                try:
                    step, given = inner.send, (yield value)
                except GeneratorExit:
                    with lease._as_current():
                        inner.close()
                    raise
                except BaseException as error:
                    step, given = inner.throw, error

    return read
