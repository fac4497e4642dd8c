"""What a failover may cost, in a formula that every write is held against.

Two judges hear of all writes. The ideal buckets of a primary go back with it, and from then on they must
agree with what is stored as if nothing had happened: what is left of the history is lawful by itself. The
promise never goes back. It is given what was lost, and nothing else:

    admitted in an interval, net of refunds  <=  capacity + refill + what failovers in it have undone

A refund of what was lost counts as any other, so it cannot cost more than the take that it is of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.simulation.ideal import Ideal, Intent, Judge
from tests.simulation.replicated import Entry, Failover, Primary
from tests.simulation.simulation import Simulation
from zae_limiter.engine.law import Rate
from zae_limiter.engine.seen_changes import has_missed
from zae_limiter.repository_protocol import Item, Key
from zae_limiter.schema import bucket_limit_names, limit_attributes, number, stored_rate


class Promise:
    """One limit of one bucket, by all that was admitted, be it lost or not."""

    def __init__(self, name: str, rate: Rate, now_ms: int) -> None:
        self.name = name
        self.most = Ideal(rate, now_ms)
        """With what was lost."""
        self.plain = Ideal(rate, now_ms)
        """As if there had been no failover: what is taken beyond it is what that has cost."""
        self.cost = 0

    def advance(self, now_ms: int, span_ms: int) -> None:
        for ideal in (self.most, self.plain):
            ideal.advance(now_ms)
            ideal.doubt(span_ms)

    def change(self, rate: Rate, span_ms: int) -> None:
        for ideal in (self.most, self.plain):
            if ideal.rate != rate:
                ideal.change(rate, span_ms)

    def lose(self, amount: int) -> None:
        """A failover has undone a take: the bucket has it again, as far as there is room."""
        self.most.level = min(self.most.rate.capacity_milli, self.most.level + amount)

    def admit(self, need: int, taken: int) -> None:
        """Somebody has been given what it needs, and the bucket has less."""
        assert not need or self.most.level + self.most.slack >= need, (
            f"{self.name} admitted {need} when {self.most.level} is the most that was promised "
            f"(slack {self.most.slack})"
        )
        self.most.level -= taken
        self.take_unseen(need, taken)

    def take_unseen(self, need: int, taken: int) -> None:
        """The former primary has admitted somebody, and no other knows: that is taken and lost at once."""
        if need:
            self.cost = max(self.cost, need - self.plain.level - self.plain.slack)
        self.plain.level -= taken


@dataclass
class Note:
    """What one transaction did to buckets, for whoever has to undo it."""

    judges: dict[Key, Judge | None] = field(default_factory=dict)
    taken: Counter[tuple[Key, str]] = field(default_factory=Counter)
    """In millitokens, whatever was given back by the same write."""
    consumed: Counter[tuple[Key, str]] = field(default_factory=Counter)
    """What counters have gone up by."""


class Courts:
    """The judges of every primary, and what all failovers have undone."""

    def __init__(self, simulation: Simulation, primary: Primary) -> None:
        self._simulation, self._primary = simulation, primary
        self._judges: dict[Primary, dict[Key, Judge]] = {primary: {}}
        self._notes: dict[int, tuple[Entry, Note]] = {}
        self.promises: dict[tuple[Key, str], Promise] = {}
        self.lost: Counter[tuple[Key, str]] = Counter()
        """What was taken, and undone."""
        self.undone: Counter[tuple[Key, str]] = Counter()
        """What was consumed by what was undone; less what it gave back."""
        self._entered: dict[tuple[Primary, Key], dict[int, tuple[tuple[Key, int], ...]]] = {}
        """The changes of limits that a bucket has gone by, and what was stored when it did."""
        self.vanished: set[Key] = set()
        """Buckets that were not there any more after a failover: what is given back to them is nobody's."""

    def see(self, primary: Primary, key: Key, before: Item | None, after: Item, intent: Intent) -> None:
        """A write was applied to a bucket of a primary, as part of its last transaction."""
        now_ms, entry = self._simulation.now_ms, primary.log[-1]
        _, note = self._notes.setdefault(id(entry), (entry, Note()))
        judges = self._judges[primary]
        judge = judges.setdefault(key, Judge(key.partition, self._simulation))
        note.judges[key] = judge.copied() if before is not None else None
        judge.lost = {name: lost for (where, name), lost in self.lost.items() if where == key}
        judge.see(before, after, intent, now_ms)
        gross: Counter[str] = Counter()
        for posting in intent.postings:
            gross.update(posting.need)
            gross.update(posting.debit)
        span_ms, moved = judge.span_ms, Note()
        for name in bucket_limit_names(after):
            tc = limit_attributes(name).tc
            consumed = number(after, tc) - number(before or {}, tc)
            moved.consumed[key, name] = consumed
            moved.taken[key, name] = gross[name] if intent.postings else max(0, consumed)
            rate, taken = stored_rate(after, name), intent.taken(name, before, after)
            assert rate is not None
            promise = self.promises.get((key, name))
            if promise is None:
                promise = self.promises[key, name] = Promise(f"{key.partition} {name}", rate, now_ms)
            need = 0 if intent.waits else intent.needs.get(name, 0)
            promise.advance(now_ms, span_ms)
            if primary is self._primary:
                promise.change(rate, span_ms)
                promise.admit(need, taken)
            else:
                promise.take_unseen(need, taken)
        note.taken.update(moved.taken)
        note.consumed.update(moved.consumed)
        if primary is not self._primary:
            self._lose(moved)
            if key not in self._primary.items:
                self.vanished.add(key)
        self._check_limits(primary, key, before, after)

    def fail_over(self, failover: Failover) -> None:
        """Let the judges go back with their buckets, and let the promise have what is lost by that."""
        former, primary, undone = failover
        now_ms = self._simulation.now_ms
        judges = {key: judge.copied() for key, judge in self._judges[former].items()}
        for promise in self.promises.values():
            promise.advance(now_ms, 0)
        for entry in reversed(undone):
            _, note = self._notes.get(id(entry), (entry, Note()))
            for key, judge in note.judges.items():
                judges.pop(key, None)
                if judge is not None:
                    judges[key] = judge.copied()
            self._lose(note)
            for at, amount in note.taken.items():
                self.promises[at].lose(amount)
        lag_ms = now_ms - undone[0].at_ms if undone else 0
        for (key, name), promise in self.promises.items():
            rate = stored_rate(primary.items.get(key) or {}, name)
            if rate is not None:  # by which it has filled since, whoever had changed that
                promise.change(rate, lag_ms)
        self.vanished |= {key for key in former.items if key not in primary.items}
        self._judges[primary], self._primary = judges, primary

    def _check_limits(self, primary: Primary, key: Key, before: Item | None, after: Item) -> None:
        """Nobody turns a bucket again to a change of limits that it was turned back from as lost.

        Each time it would be given what the change gives. If somebody has made a change of the same number
        since, it is another one.
        """
        was, now = number(before or {}, "cv"), number(after, "cv")
        entered = self._entered.setdefault((primary, key), {})
        if was == now:
            return
        stored = self._counts(primary)
        assert not has_missed(was, now) or entered.get(now) != stored, (
            f"{key.partition} was turned again to limits that were lost: {now} after {was}"
        )
        entered[now] = stored

    @staticmethod
    def _counts(primary: Primary) -> tuple[tuple[Key, int], ...]:
        """How often each level of configuration was changed, as far as a primary knows."""
        levels = ((key, item.get("config_version")) for key, item in primary.items.items())
        return tuple((key, count) for key, count in levels if type(count) is int)

    def _lose(self, note: Note) -> None:
        self.lost.update(note.taken)
        self.undone.update(note.consumed)

    def costs(self) -> Mapping[tuple[Key, str], int]:
        """What was admitted beyond capacity and refill, by bucket and limit."""
        return {at: promise.cost for at, promise in self.promises.items() if promise.cost > 0}
