"""Reserve what calls really take instead of what they may: learned by model and cap, shared by all processes.

``reserve`` answers from memory, always: what covers most calls that were seen lately, or the cap as long as
too little is known. ``observe`` notes what a call took. What was noted is stored, and what others have
stored is read, in the background of these calls, once in a while. So a store that is slow or gone costs
nobody time: the last that is known stands, then the cap.

This module knows no bucket. A reservation that falls short is settled like any other, into debt if need be.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from fractions import Fraction
from types import TracebackType
from typing import Final, Self

from ..exceptions import ValidationError, ZAELimiterError
from ..limiter import RateLimiter
from ..models.checks import TOKENS_MAX, check_count
from ..naming import validate_model
from ..records.estimates import GENERATIONS, CallKind, add_calls, read_calls
from ..repository import Repository
from ..runtime.colour import ForkSafe, blocking, plain
from ..runtime.logs import logger
from ..sync import SyncRateLimiter, SyncRepository
from .sketch import CALLS_MAX, ENDS, bin_of, covering, merged

CAP_CLASS_MIN = 16
"""Caps up to here are one class; above it each class is twice as wide as the one before."""

LATE_SECONDS = 120
"""How long after a generation is over somebody may still add to it."""


class _Sketch:
    """What this process knows of one kind of calls."""

    __slots__ = ("counts", "covers", "is_used", "over", "pending", "seen", "until_ms")

    def __init__(self) -> None:
        self.pending: Counter[int] = Counter()
        """What was observed here and is not stored yet."""
        self.counts: dict[int, dict[int, int]] = {}
        """What all have stored, by generation."""
        self.over: set[int] = set()
        """Generations that nobody adds to any more."""
        self.covers: int | None = None
        self.until_ms = 0.0
        """Until when that is worth something, by the ticks."""
        self.is_used = False
        self.seen = 0
        """How many calls it knew of when it was last read, to tell those that matter from the others."""

    def weight(self, now_ms: float) -> int:
        """How many calls would be forgotten with it."""
        return self.pending.total() + (self.seen if now_ms < self.until_ms else 0)

    def learn(self, since: int, counts: Mapping[int, int]) -> None:
        """Numbers only grow, so of two images the larger numbers are newer, whichever came first."""
        known = self.counts.setdefault(since, {})
        for at, count in counts.items():
            if at < len(ENDS) and count <= CALLS_MAX:
                known[at] = max(known.get(at, 0), count)


class _Learned:
    """All that a process knows; a forked child begins with nothing, lest calls are stored twice."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sketches: OrderedDict[CallKind, _Sketch] = OrderedDict()
        self.leaving: dict[CallKind, _Sketch] = {}
        """What had to make room before all of it was stored."""
        self.refresh_at_ms = 0.0


class LearnedEstimates:
    """How much calls take, by model and cap.

    >>> import asyncio
    >>> async def ask():
    ...     async with RateLimiter.open("memory://") as limiter, LearnedEstimates(limiter) as estimates:
    ...         for used in [200] * 190 + [900] * 2:
    ...             estimates.observe("gpt-4o", 4_096, used)
    ...         before = await estimates.reserve("gpt-4o", 4_096)
    ...         await estimates.refresh()
    ...         return before, await estimates.reserve("gpt-4o", 4_096)
    >>> asyncio.run(ask())
    (4096, 204)
    """

    def __init__(
        self,
        limiter: RateLimiter | Repository,
        quantile: float = 0.95,
        *,
        refresh_seconds: int = 10,
        generation_seconds: int = 900,
        enough: int = 1_000,
        sketches_max: int = 256,
    ) -> None:
        """``quantile`` is the share of calls that a reservation is to cover.

        The newest generations that have ``enough`` calls count, of eight at most that last
        ``generation_seconds`` each.
        """
        repository = limiter.repository if isinstance(limiter, RateLimiter) else limiter
        if not isinstance(repository, Repository):
            raise ValidationError("limiter", limiter, "pass a RateLimiter or a Repository")
        if not isinstance(quantile, float) or not 0.5 <= quantile <= 0.999:
            raise ValidationError("quantile", quantile, "use a share from 0.5 to 0.999")
        self._scope = repository._scope
        self._quantile = Fraction(quantile).limit_denominator(10_000)
        self._refresh_ms = check_count("refresh_seconds", refresh_seconds, 3600) * 1000
        self._generation_seconds = check_count("generation_seconds", generation_seconds, 30 * 86_400, 10)
        self._enough = check_count("enough", enough, CALLS_MAX)
        self._sketches_max = check_count("sketches_max", sketches_max, 10_000)
        self._learned = ForkSafe(_Learned)

    async def reserve(self, model: str, cap: int) -> int:
        """What to reserve for a call that may take ``cap`` tokens; the cap, as long as too little is known.

        It never waits for the store.
        """
        learned, kind = self._learned.get(), self._kind(model, cap)
        with learned.lock:
            now_ms = self._scope.world.ticks_ms()
            sketch = self._sketch(learned, kind, now_ms, is_observed=False)
            covers = sketch.covers if sketch is not None and now_ms < sketch.until_ms else None
            is_due = now_ms >= learned.refresh_at_ms
            if is_due:
                learned.refresh_at_ms = now_ms + self._refresh_ms
        if is_due:
            self._scope.connection.backend.colour.later(0, self._refresh_quietly)
        return cap if covers is None else min(cap, covers)

    def observe(self, model: str, cap: int, used: int) -> None:
        """Note what a call with this cap took. It is stored later, in the background of another call."""
        kind, at = self._kind(model, cap), bin_of(check_count("used", used, TOKENS_MAX, 0))
        learned = self._learned.get()
        with learned.lock:
            sketch = self._sketch(learned, kind, self._scope.world.ticks_ms(), is_observed=True)
            assert sketch is not None
            sketch.pending[at] += 1

    async def refresh(self) -> None:
        """Store what was observed and read what others have stored, or raise ``RateLimiterUnavailable``.

        Calls do so by themselves every ``refresh_seconds``, without waiting for it.
        """
        learned, ticks_ms = self._learned.get(), self._scope.world.ticks_ms()
        with learned.lock:
            learned.refresh_at_ms = ticks_ms + self._refresh_ms
            used = {kind: it for kind, it in learned.sketches.items() if it.is_used or it.pending}
            used |= learned.leaving
            for sketch in used.values():
                sketch.is_used = False
        if not used:
            return
        await self._scope.notice_changes()
        await self._scope.check_namespace()
        since = next(iter(used)).since(self._scope.world.now_ms())
        stored = await self._store(learned, used, since)
        await self._read(learned, used, since, stored)
        with learned.lock:
            for sketch in used.values():
                newest = [sketch.counts[at] for at in sorted(sketch.counts, reverse=True)]
                sketch.covers = covering(merged(newest, self._enough), self._quantile)
                sketch.seen = sum(count for counts in newest for count in counts.values())
                sketch.until_ms = ticks_ms + GENERATIONS * self._generation_seconds * 1000

    async def close(self) -> None:
        """Store what was observed; whoever goes on afterwards is none the worse."""
        await self._refresh_quietly()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._learned.get().sketches)} kinds of calls>"

    async def _store(self, learned: _Learned, used: Mapping[CallKind, _Sketch], since: int) -> set[CallKind]:
        """Add what was observed here; which kinds were thereby read as well."""
        with learned.lock:
            taken = {kind: sketch.pending for kind, sketch in used.items() if sketch.pending}
            for kind in taken:
                used[kind].pending = Counter()
        if not taken:
            return set()
        # From here on it is in somebody else's hands: what is not told to have failed does not come back.
        counted = await add_calls(self._scope, since, taken)
        failures = [one.failure for one in counted.values() if one.failure is not None]
        with learned.lock:
            for kind, (total, failure) in counted.items():
                if total is not None:
                    used[kind].learn(since, total)
                elif failure is not None and not failure.ambiguous:
                    here = learned.sketches.get(kind) or learned.leaving.setdefault(kind, used[kind])
                    here.pending.update(taken[kind])
            learned.leaving = {kind: sketch for kind, sketch in learned.leaving.items() if sketch.pending}
        if failures:
            raise failures[0]
        return {kind for kind, one in counted.items() if one.total is not None}

    async def _read(
        self, learned: _Learned, used: Mapping[CallKind, _Sketch], since: int, known: set[CallKind]
    ) -> None:
        """Read the generations that count, except those that this process knows to the last."""
        every = range(since, since - GENERATIONS * self._generation_seconds, -self._generation_seconds)
        wanted = [
            (kind, at)
            for kind, sketch in used.items()
            for at in every
            if at not in sketch.over and not (at == since and kind in known)
        ]
        found = await read_calls(self._scope, wanted)
        # As of now, not of when it set out: what is later than this is not in what was found.
        over_by = self._scope.world.now_ms() // 1000 - LATE_SECONDS
        with learned.lock:
            for (kind, at), counts in zip(wanted, found, strict=True):
                used[kind].learn(at, counts)
                if at + self._generation_seconds <= over_by:
                    used[kind].over.add(at)
            for sketch in used.values():
                sketch.counts = {at: sketch.counts[at] for at in every if at in sketch.counts}
                sketch.over.intersection_update(every)

    async def _refresh_quietly(self) -> None:
        try:
            await self.refresh()
        except ZAELimiterError as error:
            logger.info("learned estimates were not refreshed: %s", error)

    def _kind(self, model: str, cap: int) -> CallKind:
        check_count("cap", cap, TOKENS_MAX, 0)
        return CallKind(validate_model(model), cap_class(cap), self._generation_seconds)

    def _sketch(
        self, learned: _Learned, kind: CallKind, now_ms: float, *, is_observed: bool
    ) -> _Sketch | None:
        """The sketch of a kind, which is used now; nothing if there is no room for it.

        Names of models are whatever users send. So one that is only asked for takes the place of nobody of
        whom something is known, and one that was observed takes that of whom the least is known.
        """
        sketches, sketch = learned.sketches, learned.sketches.get(kind)
        if sketch is None:
            if len(sketches) >= self._sketches_max:
                least = min(sketches, key=lambda one: sketches[one].weight(now_ms))  # the oldest of equals
                if not is_observed and sketches[least].weight(now_ms):
                    return None
                left = sketches.pop(least)
                if left.pending and len(learned.leaving) < self._sketches_max:
                    learned.leaving[least] = left
            sketch = sketches[kind] = learned.leaving.pop(kind) if kind in learned.leaving else _Sketch()
        sketches.move_to_end(kind)
        sketch.is_used = True
        return sketch


def cap_class(cap: int) -> int:
    """The largest cap that is learned together with this one: the next power of two."""
    return max(CAP_CLASS_MIN, 1 << max(cap - 1, 0).bit_length())


class SyncLearnedEstimates:
    """The sync twin of ``LearnedEstimates``."""

    def __init__(
        self,
        limiter: SyncRateLimiter | SyncRepository,
        quantile: float = 0.95,
        *,
        refresh_seconds: int = 10,
        generation_seconds: int = 900,
        enough: int = 1_000,
        sketches_max: int = 256,
    ) -> None:
        """See ``LearnedEstimates``."""
        repository = limiter.repository if isinstance(limiter, SyncRateLimiter) else limiter
        if not isinstance(repository, SyncRepository):
            raise ValidationError("limiter", limiter, "pass a SyncRateLimiter or a SyncRepository")
        self._async = LearnedEstimates(
            repository._async,
            quantile,
            refresh_seconds=refresh_seconds,
            generation_seconds=generation_seconds,
            enough=enough,
            sketches_max=sketches_max,
        )

    reserve: Final = blocking(LearnedEstimates.reserve)
    observe: Final = plain(LearnedEstimates.observe)
    refresh: Final = blocking(LearnedEstimates.refresh)
    close: Final = blocking(LearnedEstimates.close)

    def __repr__(self) -> str:
        return repr(self._async).replace("<", "<Sync", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
