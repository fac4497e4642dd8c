"""One code base, two colours.

Everything that may touch a store is written as ``async def``. A coroutine suspends only where a driver does.
Over a blocking driver nothing suspends, so one ``send`` runs a coroutine to its end, with no event loop and
no thread: that is the whole sync side. A ``Colour`` is what a backend brings along to say how its driver
waits: ``Blocking`` is here, ``Asyncio`` in ``loops``, which only programs with an event loop load. Apart from
the backends that own a driver, no other modules know async from sync.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, overload
from weakref import WeakSet

from .within import Lost, Work, in_thread_of_its_own, is_within_ourselves

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future, ThreadPoolExecutor

    from .loops import Asyncio

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
T_co = TypeVar("T_co", covariant=True)

THREADS_MAX = 32

LAST_WORDS_SECONDS = 0.1
"""How long somebody who is thrown away waits for a lock: whoever has it may be the one who waits."""

Finished = tuple[T, BaseException | None]
"""A result, and the cancellation that came meanwhile."""


def nothing() -> None: ...


class Signal(Protocol):
    """Something that one coroutine waits for and another one gives, once, in whichever thread or loop."""

    @property
    def given(self) -> bool: ...

    def give(self) -> None: ...

    async def wait(self, seconds: float | None = None) -> None:
        """Return when the signal is given, or after this long without it."""


class HomeLoop(Protocol):
    """What connections and timers cannot leave: an event loop."""

    def is_closed(self) -> bool: ...


class Blocking:
    """How coroutines wait for each other where nothing ever suspends: several calls take a thread each."""

    home: Callable[[], HomeLoop] | None = None
    """What connections and timers cannot leave: the process."""

    def __init__(self) -> None:
        self._threads = ForkSafe(lambda: _threads("zae-limiter"))
        # Of their own, lest calls that wait for others take the threads these would run in.
        self._timed = ForkSafe(lambda: _threads("zae-limiter-timed"))

    async def together(self, coroutines: Sequence[Work[T]]) -> list[T]:
        """Run several coroutines at the same time and return their results in order."""
        if len(coroutines) == 1:
            return [await coroutines[0]]
        return list(self._threads.get().map(run_sync, coroutines))

    async def finish(self, coroutine: Work[T], on_cancel: Callable[[], None] = nothing) -> Finished[T]:  # noqa: ARG002 - nothing interrupts
        """Run a coroutine to its end even if the caller is cancelled, which ``on_cancel`` may hurry up.

        Whoever asked must know what happened before it obeys.
        """
        return await coroutine, None

    async def within(self, seconds: float, coroutine: Work[T]) -> T:
        """Wait no longer than this for a coroutine; ``TimeoutError`` after that."""
        return self._timed.get().submit(run_sync, coroutine).result(seconds)

    async def at_most(self, seconds: float, coroutine: Work[T]) -> T | None:
        """Wait no longer than this for a coroutine, which goes on by itself after that."""
        try:
            return await self.within(seconds, coroutine)
        except TimeoutError:
            return None

    def keep(self, coroutine: Work[T], lost: Lost) -> Awaitable[T]:  # noqa: ARG002 - it never suspends
        """Run a coroutine that is undone, as if cancelled, even if the caller is thrown away meanwhile."""
        return coroutine

    def may_wait(self, left_by: BaseException | None) -> bool:
        """Whether whoever leaves a block by this exception may still await something."""
        return not isinstance(left_by, GeneratorExit) or not is_within_ourselves()

    def carry_out(self, coroutine: Work[None], lost: Lost) -> None:
        """Run a coroutine for somebody who may not wait."""
        if is_within_ourselves():
            in_thread_of_its_own(functools.partial(run_sync, coroutine), lost)
        else:
            run_sync(coroutine)

    def later(self, seconds: float, work: Callable[[], Work[None]]) -> Callable[[], None]:
        """Run a coroutine after this long, for nobody who waits; returns how to call it off."""
        off = threading.Event()

        def run() -> None:
            if not off.wait(min(seconds, threading.TIMEOUT_MAX)):
                run_sync(work())

        with contextlib.suppress(RuntimeError):  # the interpreter is going down
            threading.Thread(target=run, name="zae-limiter-later", daemon=True).start()
        return off.set

    def signal(self) -> Signal:
        """A new signal that nobody has given yet."""
        return _ThreadSignal()

    async def sleep(self, seconds: float) -> None:
        """Let this long pass."""
        time.sleep(seconds)  # noqa: ASYNC251 - blocking is what this colour is for

    def gone(self) -> Callable[[], bool]:
        """A question that anybody may ask later: will whoever runs this now never go on?"""
        return never  # whatever ends a thread or a call unwinds it


def _threads(name: str) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(THREADS_MAX, name)


def never() -> bool:
    return False


class _ThreadSignal:
    """A lock that is held until the signal is given: one step, which nothing can interrupt halfway."""

    def __init__(self) -> None:
        self.given = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def give(self) -> None:
        self.given = True
        if self._gate.locked():
            with contextlib.suppress(RuntimeError):  # somebody else gives it, too
                self._gate.release()

    async def wait(self, seconds: float | None = None) -> None:
        for _ in taken(self._gate, -1 if seconds is None else seconds):
            with contextlib.suppress(RuntimeError):  # somebody gives it once more, just now
                self._gate.release()  # for others who wait


def taken(lock: threading.Lock, seconds: float) -> Iterator[bool]:
    """Yields once if the lock could be taken in this time, which may be 0, or -1 for however long it takes.

    Signal handlers run after calls, and may raise. So whoever calls ``acquire`` and then begins a ``try`` can
    end up with a lock that nobody gives back. No handler runs between a step of a loop and what follows it::

        for _ in taken(lock, 1.0):
            try:
                ...
            finally:
                lock.release()
    """
    return filter(None, map(lock.acquire, (True,), (seconds,)))


Colour: TypeAlias = "Blocking | Asyncio"


def colour_of(*, sync: bool) -> Colour:
    """How to wait over a store whose calls never suspend; sync programs do without event loops."""
    if sync:
        return Blocking()
    from .loops import Asyncio

    return Asyncio()


def aside(
    name: str, function: Callable[[], T], late: Callable[[Future[T]], object] = lambda _: None
) -> Future[T]:
    """Call a function in a thread of its own; ``late`` is told what comes of it if nobody else can be.

    A pool would be cheaper. But an exception out of a signal handler may come between any two steps of its
    locks, and then it answers nobody any more.
    """
    from concurrent.futures import Future

    job = Future[T]()

    def run() -> None:
        try:
            job.set_result(function())
        except BaseException as error:
            job.set_exception(error)

    try:
        threading.Thread(target=run, name=f"zae-limiter-{name}", daemon=True).start()
    except RuntimeError:
        run()  # an interpreter that is shutting down starts no threads, but a last refund may still be due
    except BaseException:
        job.add_done_callback(late)
        raise
    return job


async def in_thread(threads: Executor, function: Callable[..., T], *args: Any) -> T:
    """Call a blocking function off the event loop."""
    from asyncio import get_running_loop

    return await get_running_loop().run_in_executor(threads, functools.partial(function, *args))


def until_shutdown(close: Callable[[], Work[None]]) -> AsyncGenerator[None, None]:
    """Have something closed when the running event loop shuts down in good order, or by ``aclose`` before.

    ``asyncio.run`` ends the asynchronous generators of its loop, so this is one; it has to be held.
    """

    async def wait() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await close()

    waiting = wait()
    run_sync(waiting.__anext__())
    return waiting


class ForkSafe(Generic[T]):
    """A resource that a forked child must not inherit: each process makes its own when it needs it.

    With a ``home`` it makes one for each place, such as an event loop; that of a closed loop is buried.
    """

    def __init__(
        self,
        make: Callable[[], T],
        home: Callable[[], HomeLoop] | None = None,
        bury: Callable[[T], object] = lambda _: None,
    ) -> None:
        self._make, self._home, self._bury = make, home, bury
        self._made: dict[HomeLoop | None, T] = {}
        _fork_safe.add(self)

    def get(self) -> T:
        home = None if self._home is None else self._home()
        made = self._made.get(home)
        if made is None:
            # Threads that race may each make one, but all get the same. A lock could be held during a fork.
            made = self._made.setdefault(home, self._make())
            for former in list(self._made):
                closed = former is not None and former.is_closed()
                if closed and (left := self._made.pop(former, None)) is not None:
                    self._bury(left)
        return made

    def peek(self) -> T | None:
        """The resource of this process, if it was made."""
        return self._made.get(self._home and self._home())

    def forget(self) -> T | None:
        """The same, and the next ``get`` makes another one."""
        return self._made.pop(self._home and self._home(), None)

    def forget_all(self) -> list[T]:
        """The resources of all homes, and each makes another one when it needs it."""
        made, self._made = self._made, {}
        return list(made.values())


_fork_safe: WeakSet[ForkSafe[Any]] = WeakSet()


def _forget_what_was_inherited() -> None:
    for resource in _fork_safe:
        resource._made = {}


def at_fork(**hooks: Callable[[], None]) -> None:
    """Have functions called before and after a fork, where there is such a thing."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)


at_fork(after_in_child=_forget_what_was_inherited)


def run_sync(coroutine: Work[T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} suspended: a sync twin needs a backend that was opened for sync")


class Method(Protocol[P, T_co]):
    """A method that a function made, for type checkers: they do not agree when a mere callable is bound."""

    @overload
    def __get__(self, instance: None, owner: type, /) -> Callable[Concatenate[Any, P], T_co]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None, /) -> Callable[P, T_co]: ...
    def __call__(self, instance: Any, /, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


def _twin(call: Callable[Concatenate[Any, P], T], method: Callable[..., Any]) -> Method[P, T]:
    """Give a sync twin the name, signature and docstring of its method, in which nothing is awaited."""
    functools.update_wrapper(call, method)
    call.__doc__ = (method.__doc__ or "").replace("async with ", "with ").replace("await ", "")
    return call


def blocking(method: Callable[Concatenate[Any, P], Work[T]]) -> Method[P, T]:
    """The sync twin of a coroutine method: same signature, same docstring.

    It is found by its name when it is called, for what has a twin may be of a class that does it otherwise.
    """
    name = method.__name__

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        coroutine: Work[T] = getattr(self._async, name)(*args, **kwargs)
        return run_sync(coroutine)

    return _twin(call, method)


def plain(method: Callable[Concatenate[Any, P], T]) -> Method[P, T]:
    """The sync twin of a method that was never async."""

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self._async, *args, **kwargs)

    return _twin(call, method)


def wrapping(
    twins: Mapping[type[T], Callable[[Any], S]], method: Callable[Concatenate[Any, P], T]
) -> Method[P, S]:
    """The sync twin of a plain method whose result needs a twin of its own, by its class."""

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> S:
        made = method(self._async, *args, **kwargs)
        return twins[type(made)](made)

    first = next(iter(twins.values()))
    twin = _twin(call, method)
    call.__dict__["__signature__"] = inspect.signature(method).replace(return_annotation=first)
    return twin
