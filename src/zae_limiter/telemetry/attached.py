"""``Telemetry``: a look at a limiter, from when it is made until it is closed."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from ..exceptions import ValidationError, shown
from ..limiter import PLAIN, RateLimiter
from ..records.reports import NAME_LETTERS_MAX, Refusal
from ..sync import SyncRateLimiter
from .counters import Counters, counters_of
from .events import EventHook, EventLog, SafeHook
from .measured import MeasuredBackend
from .observed import COUNTED
from .observer import Observer
from .recent import RECENT_MAX
from .sharing import Sharing
from .spans import Spans


class Telemetry:
    """Counts what a limiter does, from now until ``close``; without one nothing of it runs.

    >>> with SyncRateLimiter.open("memory://") as limiter, Telemetry(limiter) as telemetry:
    ...     limiter.set_system_defaults([Limit.per_minute("rpm", 1)])
    ...     with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
    ...         pass
    ...     telemetry.counters.admitted
    1
    """

    def __init__(
        self,
        limiter: RateLimiter | SyncRateLimiter,
        *,
        on_event: EventHook | None = None,
        log: bool = False,
        log_entities: bool = False,
        name: str | None = None,
    ) -> None:
        """``on_event`` is called with each ``TelemetryEvent``; what it raises reaches nobody.

        ``log`` writes events to the logger ``zae_limiter.events``, with the ids of entities if
        ``log_entities`` says so. ``name`` is what other processes know this one by.
        """
        found = limiter._async if isinstance(limiter, SyncRateLimiter) else limiter
        if not isinstance(found, RateLimiter):
            raise ValidationError("limiter", limiter, "pass a RateLimiter or a SyncRateLimiter")
        if on_event is not None and not callable(on_event):
            raise ValidationError("on_event", on_event, "pass a function of one event")
        if name is not None and (not isinstance(name, str) or not 0 < len(name) <= NAME_LETTERS_MAX):
            raise ValidationError("name", name, f"use 1 to {NAME_LETTERS_MAX} letters")
        self._limiter, self._name = found, name
        self._hooks: list[EventHook] = [] if on_event is None else [SafeHook(on_event)]
        if log or log_entities:
            self._hooks.append(SafeHook(EventLog(with_entities=log_entities)))
        self.sharing: Sharing | None = None
        """Who tells others, if somebody does."""
        self._spans: Spans | None = None
        self._closers: list[Callable[[], None]] = []
        self._is_closed = False
        self.observer: Final = _attach(found, self._hooks)
        """What is counted, for exporters."""

    @property
    def recent(self) -> list[Refusal]:
        """Who was refused lately in this process, at most 200 entries, the newest first."""
        return self.observer.recent.newest(RECENT_MAX)

    @property
    def counters(self) -> Counters:
        """How many acquires came to what, in this process."""
        return counters_of(self.observer)

    def prometheus_text(self) -> str:
        """All metrics as Prometheus reads them, for a route of your own; it needs no library."""
        from .exposition import prometheus_text

        return prometheus_text(self.observer)

    def share(self) -> None:
        """Tell other processes too, in the background: they read it by ``repository.get_reports``.

        At most one write a second, none while nothing happens; a refusal is seen within two seconds.
        """
        self._check_open()
        if self.sharing is None:
            self.sharing = Sharing(self.observer, self._name)
            self._add_hook(self.sharing.notice)
            self.sharing.begin()

    def trace(self, tracer: Any = None, *, with_entities: bool = False) -> None:
        """Make a span of each acquire, by a tracer of OpenTelemetry; the global one without one."""
        self._check_open()
        if tracer is None:
            from opentelemetry import trace

            tracer = trace.get_tracer("zae_limiter")
        self._spans = self.observer.spans = Spans(tracer, with_entities=with_entities)

    def close(self) -> None:
        """Look no more. It may be said again; numbers that were read stay what they are."""
        if self._is_closed:
            return
        self._is_closed = True
        for closer in self._closers:
            closer()
        if self.sharing is not None:
            self.sharing.end()
        if self.observer.spans is self._spans:
            self.observer.spans = None
        _detach(self._limiter, self.observer, self._hooks)

    def on_close(self, closer: Callable[[], None]) -> None:
        """Have something done when it is closed."""
        self._check_open()
        self._closers.append(closer)

    def _add_hook(self, hook: EventHook) -> None:
        self._hooks.append(hook)
        self.observer.hooks = (*self.observer.hooks, hook)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValidationError("telemetry", shown(repr(self)), "it was closed; make another one")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._limiter!r}{', closed' if self._is_closed else ''}>"


def _attach(limiter: RateLimiter, hooks: list[EventHook]) -> Observer:
    """Have a limiter make what counts, and its store measured."""
    repository = limiter.repository
    if repository.observer is None:
        repository.observer = Observer(repository)
    observer: Observer = repository.observer
    connection = repository._connection
    if not isinstance(connection.backend, MeasuredBackend):
        around = connection.measured or MeasuredBackend(connection.backend, connection.world.ticks_ms)
        connection.measured = connection.backend = connection.writer.backend = around
    measured: MeasuredBackend = connection.measured
    measured.users += 1
    observer.users += 1
    if observer.users == 1:
        measured.troubled = (*measured.troubled, observer.trouble)
        connection.writer.mishaps.listeners = (*connection.writer.mishaps.listeners, observer.mishap)
    observer.hooks = (*observer.hooks, *hooks)
    limiter._lookers += 1
    limiter._lease_type, limiter._acquisition_type, limiter._joint_types = COUNTED
    return observer


def _detach(limiter: RateLimiter, observer: Observer, hooks: list[EventHook]) -> None:
    """Undo it, for the last who looks."""
    observer.hooks = tuple(hook for hook in observer.hooks if hook not in hooks)
    observer.users -= 1
    limiter._lookers -= 1
    connection = observer.repository._connection
    measured: MeasuredBackend = connection.measured
    if not limiter._lookers:
        limiter._lease_type, limiter._acquisition_type, limiter._joint_types = PLAIN
    if not observer.users:
        mishaps = connection.writer.mishaps
        mishaps.listeners = tuple(one for one in mishaps.listeners if one != observer.mishap)
        measured.troubled = tuple(one for one in measured.troubled if one != observer.trouble)
    measured.users -= 1
    if not measured.users:
        connection.backend = connection.writer.backend = measured.inner
