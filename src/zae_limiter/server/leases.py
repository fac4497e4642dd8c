"""Leases over HTTP: taken by one worker, ended by any, and by none of them twice.

The record of a lease is written in the transaction that takes its tokens (``engine.receipts``). Its id is
made of the key that a request has, so a request that is sent again finds the record, whoever gave it and
whether or not that worker still lives. What waits for its turn is recorded when that has come: a worker that
is killed before has given nothing, and what it had booked counts as spent. Leases that nobody ends are ended
by the sweep of whichever worker finds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ..engine.demand import Take, seats_of
from ..engine.receipts import RecordedBefore
from ..engine.settle import rest
from ..exceptions import RateLimiterUnavailable, RateLimitExceeded, ValidationError, ZAELimiterError
from ..joint import JointLease
from ..lease import Lease
from ..limiter import RateLimiter
from ..models import OnUnavailable
from ..models.demand import Demand
from ..records.lease_ends import LeaseEnds, parts_of
from ..records.leases import PLACES, LeaseRow, LeaseState, OnExpiry, PartRow, due_leases, get_lease, made
from ..repository_protocol import TRANSACT_WRITES_MAX, Cursor, Write
from ..runtime.logs import server_logger as logger
from ..web.answers import RequestRefused

SWEEP_LEASES_MAX = 64
"""How many leases a worker looks after before it looks what else there is to do."""

SWEEP_SECONDS = 0.5
"""How often a worker looks for leases that are due."""

GIVEN_MAX, GIVEN_LETTERS_MAX = 4096, 1024
"""How many leases a worker remembers as it gave them, and how long each may be as text: 32 MB in all."""

RESENT_MAX = 2
"""How often a record is looked for that was there a moment ago."""

LEASE_WITH_SEATS = "it counts who is at work until its lease ends; take it with a lease"


@dataclass(frozen=True, kw_only=True)
class AskedLease:
    """What somebody asks for, and how long it is to be held."""

    demands: tuple[Demand, ...]
    owner: str
    key: str | None = None
    is_lease: bool = True
    lease_seconds: float = 60.0
    on_expiry: OnExpiry = OnExpiry.SETTLE
    on_unavailable: OnUnavailable | None = None
    wait: float | None = None

    @property
    def said(self) -> str:
        """What is asked for, hashed: whoever sends a key again has to ask for the same."""
        asked = [(d.entity_id, d.resource, sorted(d.consume.items()), repr(d.limits)) for d in self.demands]
        return digest(asked, self.is_lease, self.lease_seconds, self.on_expiry.value)


@dataclass(frozen=True, kw_only=True)
class Granted:
    """What somebody got."""

    row: LeaseRow | None
    """The record; there is none of a plain decision without a key, or while the store is down."""
    lease: Lease | None
    """As it was taken; not there if that was some time ago."""
    is_again: bool = False


def digest(*said: object) -> str:
    """A short name for something that was said, which nobody finds a second thing for."""
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:32]


class _LeaseReceipt:
    """The record of one acquire, on its way."""

    def __init__(self, leases: StoredLeases, asked: AskedLease, lease_id: str) -> None:
        self._leases, self._asked, self._id = leases, asked, lease_id
        self.is_written = False
        self.is_small = False
        self.row: LeaseRow | None = None

    def write(self, takes: Sequence[Take]) -> Write:
        asked, now_ms = self._asked, self._leases.now_ms()
        parts = parts_of(takes)
        check_fits(parts)
        if not asked.is_lease:
            check_no_seats(parts)
        state = LeaseState.HELD if asked.is_lease else LeaseState.DECIDED
        self.row = LeaseRow(
            lease_id=self._id,
            owner=asked.owner,
            said=asked.said,
            began_ms=now_ms,
            expires_ms=now_ms + round(asked.lease_seconds * 1000),
            on_expiry=asked.on_expiry,
            parts=parts,
            state=state,
            ended_ms=None if asked.is_lease else now_ms,
            noted=tuple({} for _ in parts),
            mark=self._leases.ends.new_mark(),
        )
        put = made(self._leases.ends.scope.namespace_id, self.row)
        self.is_small = len(str(put.item["parts"])) <= GIVEN_LETTERS_MAX
        return put

    async def check_new(self) -> None:
        if self._asked.key is None:
            return
        with contextlib.suppress(RateLimiterUnavailable):  # as long as nobody knows, it is new
            if await get_lease(self._leases.ends.scope, self._id) is not None:
                raise RecordedBefore

    async def undo(self) -> None:
        self.is_written = False
        if self.row is not None:
            await self._leases.ends.forget(self.row)


def check_fits(parts: Sequence[PartRow]) -> None:
    """Refuse what may need more writes at its end, or needs them now, than go together with a record.

    That is all that give, and the first shard of everybody who is charged: what cost more than was taken is
    charged there, by the limits that there are by then.
    """
    places = {(giver.entity_id, giver.resource, giver.shard_id) for part in parts for giver in part.givers}
    places |= {(entity_id, part.resource, 0) for part in parts for entity_id, _ in part.family}
    if len(places) > (most := TRANSACT_WRITES_MAX - 1):
        told = f"it takes {len(places)} buckets and shards of buckets to give that, at most {most} change"
        raise ValidationError("demands", len(parts), f"{told} at once beside a lease; ask for fewer together")


def check_no_seats(parts: Sequence[PartRow]) -> None:
    """Refuse seats for whoever has no lease that could end."""
    for part in parts:
        for giver in part.givers:
            for seat in giver.seats:
                raise ValidationError("lease", seat.name, LEASE_WITH_SEATS)


@dataclass
class SweepCounts:
    """What a worker has done about leases that nobody ended."""

    expired: int = 0
    renewed: int = 0
    failed: int = 0


Remember: TypeAlias = Callable[[LeaseRow], LeaseRow]
"""Adds to a changed lease what is answered by it."""


def _as_it_is(row: LeaseRow) -> LeaseRow:
    return row


class StoredLeases:
    """The leases of one namespace, as one worker knows them."""

    def __init__(self, limiter: RateLimiter) -> None:
        self.ends: Final = LeaseEnds(limiter.repository)
        self._limiter = limiter
        self.counts: Final = SweepCounts()
        self._given: dict[str, LeaseRow] = {}
        """Leases as this worker gave them, each good for one look: what changes one says if it is another."""
        self._after: dict[int, Cursor] = {}
        """Where a sweep goes on that has not come to the end, by place."""

    def now_ms(self) -> int:
        """The time by which leases expire: the store's, as well as this worker knows it."""
        return self.ends.scope.world.now_ms()

    # Taking.

    async def acquire(self, asked: AskedLease) -> Granted:
        """Take what is asked for, or find what was taken when the same was asked before."""
        if asked.key is None and not asked.is_lease:
            return await self._decide(asked)
        lease_id = self._id_of(asked)
        for _ in range(RESENT_MAX):
            try:
                return await self._taken(asked, lease_id)
            except RecordedBefore:
                if (found := await self._again(asked, lease_id)) is not None:
                    return found
            except RateLimitExceeded:
                raise  # the engine has looked whether it was given before
            except ZAELimiterError as error:
                if asked.key is None and not getattr(error, "ambiguous", False):
                    raise
                with contextlib.suppress(RateLimiterUnavailable):
                    if (found := await self._again(asked, lease_id)) is not None:
                        return found
                raise
        raise RateLimiterUnavailable("the record of a lease comes and goes; send the request again")

    def _id_of(self, asked: AskedLease) -> str:
        if asked.key is None:
            return f"{self.ends.scope.world.random.getrandbits(160):040x}"
        return hashlib.sha256(f"{asked.owner}\0{asked.key}".encode()).hexdigest()[:40]

    async def _decide(self, asked: AskedLease) -> Granted:
        """A plain decision: what is taken counts at once."""
        lease = await self._acquisition(asked).open()
        if seats := seats_of(lease._later):
            await lease.cancel()
            raise ValidationError("lease", seats[0].name, LEASE_WITH_SEATS)
        await lease.commit()
        return Granted(row=None, lease=lease)

    def _acquisition(self, asked: AskedLease) -> Any:
        policy, demands, wait = asked.on_unavailable, asked.demands, asked.wait
        if len(demands) == 1:
            (one,) = demands
            given = (one.entity_id, one.resource, one.consume, one.limits, policy)
            return self._limiter.acquire(*given, wait=wait)
        return self._limiter.acquire(list(demands), on_unavailable=policy, wait=wait)

    async def _taken(self, asked: AskedLease, lease_id: str) -> Granted:
        receipt = _LeaseReceipt(self, asked, lease_id)
        acquisition = self._acquisition(asked)
        acquisition._lease._receipt = receipt
        acquisition._lease._speculative = False  # what is taken at once has no record beside it
        lease = await acquisition.open()
        if lease.degraded:
            return Granted(row=None, lease=lease)
        if not receipt.is_written:  # it had to wait, or nobody is charged
            await self._record(lease, receipt)
        if (row := receipt.row) is not None and row.state is LeaseState.HELD and receipt.is_small:
            while len(self._given) >= GIVEN_MAX:
                del self._given[next(iter(self._given))]
            self._given[lease_id] = row
        return Granted(row=receipt.row, lease=lease)

    async def _record(self, lease: Lease, receipt: _LeaseReceipt) -> None:
        """Let a record answer for what this process holds."""
        colour = lease._buckets.writer.colour
        await colour.keep(self._handed_over(lease, receipt), lease._lost)

    async def _handed_over(self, lease: Lease, receipt: _LeaseReceipt) -> None:
        scope = self.ends.scope
        try:
            interruption = await rest(lease._buckets.writer, seats_of(lease._later))
            if interruption is not None:
                raise interruption
            (outcome,) = await scope.write([receipt.write(takes_of(lease))])
            if outcome.failure is not None and outcome.failure.ambiguous:
                await self._find_own(receipt, outcome.failure)
            elif outcome.failure is not None:
                raise outcome.failure
            elif not outcome.applied:
                raise RecordedBefore
        except RateLimiterUnavailable as error:
            if error.ambiguous:  # it may be there, and then it answers: counted in any case
                lease._ended = lease._settled = True
            else:
                await lease.cancel()
            raise
        except BaseException:
            await lease.cancel()
            raise
        receipt.is_written = True
        lease._ended = lease._settled = True
        row = receipt.row
        if row is not None and row.state is LeaseState.HELD and row.due_ms <= self.now_ms():
            with contextlib.suppress(ZAELimiterError):  # the next sweep does it
                receipt.row = await self.ends.renew_seats(row) or row

    async def _find_own(self, receipt: _LeaseReceipt, lost: RateLimiterUnavailable) -> None:
        """Go on if the record is there whose reply was lost; as long as nobody knows, nothing comes back."""
        assert receipt.row is not None
        try:
            found = await get_lease(self.ends.scope, receipt.row.lease_id)
        except ZAELimiterError as error:
            raise lost from error
        if found is None:
            raise lost
        if not found.rev and found.mark != receipt.row.mark:
            raise RecordedBefore  # by somebody else who has the same key

    async def _again(self, asked: AskedLease, lease_id: str) -> Granted | None:
        """What was given to the same request before."""
        row = await get_lease(self.ends.scope, lease_id)
        if row is None:
            return None
        if row.said != asked.said:
            told = "this Idempotency-Key was used for something else; send that again, or use another key"
            raise RequestRefused(422, told)
        return Granted(row=row, lease=None, is_again=True)

    # Ending.

    async def held(self, lease_id: str, owner: str) -> LeaseRow:
        """A lease of somebody; one whose time is over is ended first."""
        row = self._given.pop(lease_id, None)
        if row is None or row.expires_ms <= self.now_ms():  # somebody may have ended or renewed it
            row = await get_lease(self.ends.scope, lease_id)
        if row is None or row.owner != owner:
            raise RequestRefused(404, "there is no such lease; it may have ended more than a day ago")
        if row.state is LeaseState.HELD and row.expires_ms <= self.now_ms():
            row = await self.expire(row) or await get_lease(self.ends.scope, lease_id) or row
        return row

    async def finish(
        self,
        row: LeaseRow,
        state: LeaseState,
        cost: OnExpiry,
        ending: str = "",
        remember: Remember = _as_it_is,
    ) -> LeaseRow | None:
        """End a lease; ``None`` if somebody else has changed it."""
        noted = tuple(cost_of(row, at, cost) for at in range(len(row.parts)))
        ended = row.changed(state=state, ended_ms=self.now_ms(), noted=noted, ending=ending)
        return await self.ends.end(row, remember(ended), cost)

    async def expire(self, row: LeaseRow) -> LeaseRow | None:
        """End a lease whose time is over."""
        ended = await self.finish(row, LeaseState.EXPIRED, row.on_expiry)
        if ended is not None:
            self.counts.expired += 1
        return ended

    # What nobody asks for.

    async def sweep(self, place: int) -> int:
        """End what has expired, and renew seats, in one place; how many leases were due.

        It goes on where it was left: those about which nothing can be done keep nobody from the next ones.
        """
        scope, done, place = self.ends.scope, 0, place % PLACES
        if not place:
            self._given = {known: row for known, row in self._given.items() if row.expires_ms > self.now_ms()}
        after = self._after.pop(place, None)
        due, more = await due_leases(scope, place, self.now_ms(), SWEEP_LEASES_MAX, after)
        if more is not None:
            self._after[place] = more
        for lease_id in due:
            try:
                row = await get_lease(scope, lease_id)
                if row is None or row.state is not LeaseState.HELD or row.due_ms > self.now_ms():
                    continue
                done += 1
                if row.expires_ms <= self.now_ms():
                    await self.expire(row)
                else:
                    await self.ends.renew_seats(row)
                    self.counts.renewed += 1
            except ZAELimiterError as error:  # the next sweep tries again
                self.counts.failed += 1
                logger.warning("a lease that is due was left as it is: %s", error)
            except Exception:  # a mistake of ours, on account of which no other lease is to be held for ever
                self.counts.failed += 1
                logger.exception("a lease that is due was left as it is")
        return done

    async def run(self, stopping: asyncio.Event) -> None:
        """Sweep one place after the other until the worker ends."""
        random = self.ends.scope.world.random
        place = random.randrange(1 << 16)
        while not stopping.is_set():
            place += 1
            busy = 0
            try:
                busy = await self.sweep(place)
            except ZAELimiterError as error:
                logger.warning("leases that are due cannot be looked for: %s", error)
            seconds = SWEEP_SECONDS * random.uniform(0.5, 1.5) if busy < SWEEP_LEASES_MAX // 2 else 0.01
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), seconds)


def takes_of(lease: Lease) -> list[Take]:
    """What a lease has taken, for whichever part."""
    if isinstance(lease, JointLease):
        return list(lease._later)
    return list(lease._taken())


def cost_of(row: LeaseRow, at: int, cost: OnExpiry) -> Mapping[str, int]:
    """What a part has cost once the lease has ended so, in tokens by limit."""
    taken = {name: milli // 1000 for name, milli in row.parts[at].amounts.items()}
    noted = row.totals(at)
    if cost is OnExpiry.REFUND:
        return dict.fromkeys(taken, 0)
    if cost is OnExpiry.KEEP:
        return {name: max(total, taken.get(name, 0)) for name, total in noted.items()}
    return noted
