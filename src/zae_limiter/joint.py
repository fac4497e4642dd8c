"""One lease for several demands: all of them were admitted, or none, and they end together.

The lease is one holding: what was taken for all demands, and what was noted since, is in one place, so
whatever ends or interrupts the work finds all of it. A *part* is a view of it, the lease of one demand, and
has no life of its own. What the lease is told by the name of a limit goes to the demand that asked for it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .acquisition import Acquisition, DegradedLease
from .engine.acquire import acquire_in_line
from .engine.demand import BucketDemand, Take
from .engine.holding import Buckets, Holding
from .engine.parts import Part
from .engine.posting import Order
from .engine.remaining import UNSEEN, Seen
from .engine.settle import Charge, Debtor, enter, settlement
from .exceptions import LeaseExpiredError, RateLimiterUnavailable, ValidationError, shown
from .lease import Lease
from .models import TOKENS_MAX, OnUnavailable, check_count
from .models.checks import named_amounts, needs_milli
from .models.demand import Demand
from .repository_protocol import NOTHING, Key

ENDS_TOGETHER = "is part of one for several demands, and ends with it; commit, cancel or keep that one"


class _AskedPart(NamedTuple):
    """One demand of several: for whom, how many millitokens of what, and by which names."""

    by: Holding
    needs: Mapping[str, int]
    names: frozenset[str]


class _Shared:
    """A fact about the whole lease, which its parts have in common."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, part: LeasePart, owner: type) -> Any:
        return getattr(part._lease, self._name)

    def __set__(self, part: LeasePart, value: object) -> None:
        setattr(part._lease, self._name, value)


class LeasePart(Lease):
    """What a lease for several demands holds for one of them: a lease, but it ends with the whole."""

    __slots__ = ("_at", "_lease")

    def __init__(self, lease: JointLease, at: int) -> None:
        asked = lease._asked[at].by
        self._lease, self._at = lease, at
        self._buckets, self._entity_id, self._resource = asked._buckets, asked._entity_id, asked._resource
        self._given, self._on_unavailable, self._policy = asked._given, asked._on_unavailable, asked._policy
        self._speculative, self._accounts = asked._speculative, asked._accounts
        self._taken_alone, self._in_block = NOTHING, False

    _abandoned: Any = _Shared()
    _counted: Any = _Shared()
    _ended: Any = _Shared()
    _forks: Any = _Shared()
    _latest_ms: Any = _Shared()
    _on_error: Any = _Shared()
    _receipt: Any = _Shared()
    _seen: Any = _Shared()
    _settled: Any = _Shared()
    _state: Any = _Shared()
    _wait_ms: Any = _Shared()
    _waited_ms: Any = _Shared()

    def _sights(self) -> Iterable[Seen]:
        """Those of the buckets that were charged for this demand."""
        accounts = [*self._accounts, *(account for take in self._later for account in take.accounts)]
        keys, saw = dict.fromkeys(account.key for account in accounts), self._lease._saw
        return [saw[key] for key in keys if key in saw]

    async def keep(self) -> None:
        raise self._ends_together()

    async def commit(self) -> None:
        raise self._ends_together()

    async def cancel(self) -> None:
        raise self._ends_together()

    def _ends_together(self) -> LeaseExpiredError:
        return LeaseExpiredError(self._entity_id, self._resource, ENDS_TOGETHER)

    @property
    def _later(self) -> tuple[Take, ...]:  # type: ignore[override]  # it is only noted by the whole
        place = self._entity_id, self._resource
        return tuple(
            t for t in self._lease._later if (t.accounts[0].entity_id, t.accounts[0].resource) == place
        )

    @property
    def _adjusted(self) -> Mapping[str, int]:
        noted: Mapping[Any, int] = self._lease._adjusted
        return {name: change for (at, name), change in noted.items() if at == self._at}

    @_adjusted.setter
    def _adjusted(self, changes: Mapping[str, int]) -> None:
        noted: Mapping[Any, int] = self._lease._adjusted
        others = {key: change for key, change in noted.items() if key[0] != self._at}
        self._lease._adjusted = others | {(self._at, name): change for name, change in changes.items()}

    def _take_in(self, takes: tuple[Take, ...], taken: Charge[BucketDemand]) -> bool:
        return self._lease._take_in(takes, taken)

    def _has(self, name: str) -> bool:
        """Whether it is known that somebody who is charged for this demand has such a limit."""
        known = any(name in account.terms.rates for account in self._accounts)
        return known or any(name in take.amounts for take in self._later)

    def __del__(self) -> None:
        """The lease settles all of it."""


class JointLease(Lease):
    """What an acquire of several demands has taken: one lease, with a part for each of them.

    Limits of several demands may have one name. An amount goes to the demand that asked for such a limit,
    else to the one that has it; where there are several, ``part`` says which is meant.
    """

    __slots__ = ("_asked", "_saw")
    _part_type: type[LeasePart] = LeasePart

    def __init__(self, asked: Sequence[_AskedPart]) -> None:
        first = asked[0].by
        self._saw: Mapping[Key, Seen] = {}
        """What was last seen of each bucket."""
        super().__init__(
            first._buckets, first._entity_id, first._resource, None, first._on_unavailable, first._speculative
        )
        self._asked = tuple(asked)

    @property
    def parts(self) -> tuple[LeasePart, ...]:
        """What it holds for each entity and resource, in the order of the demands."""
        return tuple(self._part_type(self, at) for at in range(len(self._asked)))

    def part(self, resource: str | None = None, entity_id: str | None = None) -> LeasePart:
        """What it holds for one demand, by its resource, its entity or both: a lease of its own to adjust."""
        found = [
            part
            for part in self.parts
            if resource in (None, part._resource) and entity_id in (None, part._entity_id)
        ]
        if len(found) == 1:
            return found[0]
        wanted = f"part({shown(resource)}, {shown(entity_id)})"
        told = f"{'several demands match' if found else 'no demand matches'}; there are {_listed(self.parts)}"
        raise ValidationError("part", wanted, told)

    @property
    def consumed(self) -> dict[str, int]:
        """What this lease has cost so far, limits of one name together; ``parts`` tell them apart."""
        total: dict[str, int] = {}
        for part in self.parts:
            for name, amount in part.consumed.items():
                total[name] = total.get(name, 0) + amount
        return total

    @property
    def bypassed(self) -> bool:
        """True when switches let all of its work go past the limits; ``parts`` tell them apart."""
        return all(part.bypassed for part in self.parts)

    @property
    def exceeded(self) -> tuple[str, ...]:
        """Of which soft limits there was not enough, whichever demand asked; ``parts`` tell them apart."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.exceeded))

    def _asked_by(self) -> Collection[str]:
        return {part._entity_id for part in self.parts}

    def _sights(self) -> Iterable[Seen]:
        return self._saw.values()

    @property
    def _seen(self) -> Seen:
        return UNSEEN  # as a whole: it is kept by bucket

    @_seen.setter
    def _seen(self, seen: Seen) -> None:
        now_ms, accounts, images = seen
        for account, shards in zip(accounts, images, strict=True):
            self._saw = {**self._saw, account.key: (now_ms, (account,), (shards,))}

    def _told(self) -> str:
        return "; ".join(part._told() for part in self.parts)

    async def consume(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Take more for one or several demands, if all of it is there: like ``Lease.consume``."""
        self._check_open()
        wanted = named_amounts(amounts, named)
        needs_milli(wanted)
        shares = self._shares(wanted)
        try:
            asked = [(self._asked[part._at].by, needs_milli(share)) for part, share in shares]
            if any(needs for _, needs in asked):
                await self._take(asked, is_first=False)
        except RateLimiterUnavailable as error:
            self._let_through(f"letting a lease of {self._entity_id} consume", error)
            if not error.ambiguous:
                for part, share in shares:
                    part._add(share)

    async def adjust(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Note what it cost more or less: like ``Lease.adjust``, for the demands that have these limits."""
        self._check_open()
        changes = named_amounts(amounts, named)
        for name, change in changes.items():
            check_count(f"adjustment of {shown(name)}", change, TOKENS_MAX, -TOKENS_MAX)
        for part, share in self._shares(changes):
            await part.adjust(share)

    async def settle(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Note the whole cost: like ``Lease.settle``, for the demands that have these limits."""
        self._check_open()
        totals = named_amounts(amounts, named)
        for name, total in totals.items():
            check_count(f"total of {shown(name)}", total, TOKENS_MAX, 0)
        for part, share in self._shares(totals):
            await part.settle(share)

    def _shares(self, amounts: Mapping[str, int]) -> list[tuple[LeasePart, dict[str, int]]]:
        """Which part each amount is meant for."""
        shares: dict[int, dict[str, int]] = {}
        parts = self.parts
        for name, amount in amounts.items():
            shares.setdefault(self._meant(parts, name)._at, {})[name] = amount
        return [(parts[at], share) for at, share in shares.items()]

    def _meant(self, parts: Sequence[LeasePart], name: str) -> LeasePart:
        """The one demand that asked for a limit of this name, else the one that has it."""
        asked = [part for part in parts if name in self._asked[part._at].names]
        found = asked or self._having(parts, name)
        if len(found) == 1:
            return found[0]
        if found:
            several = len({part._resource for part in found}) < len(found)
            way_out = f"part({found[0]._resource!r}{f', {found[0]._entity_id!r}' if several else ''})"
            told = f"{_listed(found)} have such a limit; say which is meant, such as lease.{way_out}"
            raise ValidationError("limit name", name, told)
        raise ValidationError("limit name", name, f"none has such a limit of {_listed(parts)}")

    def _having(self, parts: Sequence[LeasePart], name: str) -> Sequence[LeasePart]:
        return [part for part in parts if part._has(name)]

    async def _acquire(self, needs: Mapping[str, int]) -> None:
        """Take all that is asked for, or none of it; ``needs`` is the sum, whoever it is for."""
        del needs
        await self._take([(asked.by, asked.needs) for asked in self._asked], is_first=True)
        blocking = any(asked.by._policy is OnUnavailable.BLOCK for asked in self._asked)
        self._policy = OnUnavailable.BLOCK if blocking else OnUnavailable.ALLOW

    async def _take(self, parts: Sequence[Part], *, is_first: bool) -> None:
        taking = acquire_in_line(self, parts, [None] * len(parts), is_first=is_first)
        await self._buckets.writer.colour.keep(taking, self._lost)

    def _settlement(self) -> list[Order]:
        orders: dict[Debtor, Order] = {}
        for part in self.parts:
            for account, posting in settlement(part._accounts, part._later, part._adjusted):
                enter(orders, account, posting)
        return list(orders.values())

    def _let_through(self, what: str, error: RateLimiterUnavailable) -> None:
        """Nothing goes ahead unchecked as long as one of the demands is to be blocked."""
        parts = self.parts
        strictest = next((part for part in parts if part._is_blocked()), parts[0])
        Lease._let_through(strictest, what, error)


class DegradedPart(DegradedLease, LeasePart):
    """A part of a lease given while the store was down."""

    __slots__ = ()

    def __init__(self, lease: JointLease, at: int) -> None:
        LeasePart.__init__(self, lease, at)


class DegradedJointLease(DegradedLease, JointLease):
    """A lease for several demands, given while the store was down: it writes nothing and refuses nothing."""

    __slots__ = ()
    _part_type = DegradedPart

    def __init__(self, lease: JointLease) -> None:
        JointLease.__init__(self, lease._asked)
        noted: dict[Any, int] = {
            (at, name): need // 1000
            for at, asked in enumerate(self._asked)
            for name, need in asked.needs.items()
        }
        self._on_error, self._adjusted, self._settled = lease._on_error, noted, True
        self._waited_ms = lease._waited_ms

    def _having(self, parts: Sequence[LeasePart], name: str) -> Sequence[LeasePart]:
        """Nobody can be asked who has such a limit, and nobody is charged."""
        del name
        return parts[:1]


class JointAcquisition(Acquisition):
    """What ``acquire`` of several demands returns."""

    __slots__ = ()
    _lease: JointLease

    def __repr__(self) -> str:
        asked = []
        for by, needs, _ in self._lease._asked:
            amounts = {name: need // 1000 for name, need in needs.items()}
            asked.append(f"{amounts} by {by._entity_id!r} on {by._resource!r}")
        state = "not entered" if self._entered is False else "entered"
        return f"<Acquisition of {', '.join(asked)}, {state}>"

    def degrade(self, error: RateLimiterUnavailable) -> None:
        lease = self._lease
        lease._let_through(f"admitting {_listed(lease.parts)}", error)
        self._lease = DegradedJointLease(lease)

    async def __aenter__(self) -> JointLease:
        await super().__aenter__()
        return self._lease

    async def open(self) -> JointLease:
        """See ``Acquisition.open``."""
        await super().open()
        return self._lease

    def __await__(self) -> Generator[Any, Any, JointLease]:
        return self.open().__await__()


def joint_acquisition(
    buckets: Buckets,
    demands: Sequence[Demand],
    policy: OnUnavailable | None,
    speculative: bool,
    types: tuple[type[JointLease], type[JointAcquisition]] = (JointLease, JointAcquisition),
) -> JointAcquisition:
    """Several demands as one acquire; none of them for the same entity and resource as another."""
    lease_type, acquisition_type = types
    asked, total = list[_AskedPart](), dict[str, int]()
    for demand in demands:
        given = None if demand.limits is None else tuple(demand.limits)
        by = Holding(buckets, demand.entity_id, demand.resource, given, policy, speculative)
        needs = needs_milli(demand.consume)
        asked.append(_AskedPart(by, needs, frozenset(demand.consume)))
        for name, need in needs.items():
            total[name] = total.get(name, 0) + need
    return acquisition_type(lease_type(asked), total)


def _listed(parts: Sequence[LeasePart]) -> str:
    return ", ".join(f"{part._entity_id!r} on {part._resource!r}" for part in parts)
