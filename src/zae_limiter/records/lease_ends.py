"""Ending and renewing stored leases: what their buckets get or pay, and the record, in one transaction.

Whoever finds that something is due does it, whichever process gave the lease. The record changes only if
nobody has changed it since it was read, so of many who try one succeeds, and a reply that was lost is made up
for by reading again. What a lease owes, or is owed, is worked out from its record and the buckets as they are
by then: a shard that has gone is asked for through its elder, and who has been deleted since is owed nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from ..engine.account import Account, Meter
from ..engine.bucket_view import shard_count, stored_terms
from ..engine.demand import BucketDemand, Take
from ..engine.lifetime import lasts, prolong
from ..engine.posting import Order, Posting
from ..engine.seats import SeatMove, as_recorded, due_ms, rate_by_now, take_off, until
from ..engine.settle import Debtor, enter, settlement
from ..engine.shares import parent_of
from ..exceptions import RateLimiterUnavailable, ValidationError, ZAELimiterError
from ..models.switches import Bypass
from ..repository_protocol import Item, Key, Write
from ..runtime.logs import logger
from ..schema import bucket_key, is_deleted
from .buckets import BucketRecords
from .leases import GiverRow, LeaseRow, OnExpiry, PartRow, SeatRow, forgotten, get_lease, replaced
from .scope import Scope

ATTEMPTS_MAX = 32
CALLS_MAX = 4
"""A change is tried again for so many times the deadline of a call."""

PAUSE_SECONDS_MAX = 0.1

MARKS = 16**8


class LeaseEnds:
    """Changes stored leases together with the buckets that they hold something of."""

    def __init__(self, buckets: BucketRecords) -> None:
        self._buckets, self._scope, self._writer = buckets, buckets._scope, buckets.writer

    @property
    def scope(self) -> Scope:
        return self._scope

    def new_mark(self) -> str:
        """One that no other change has."""
        return f"{self._scope.world.random.randrange(MARKS):x}"

    async def end(self, row: LeaseRow, ended: LeaseRow, cost: OnExpiry) -> LeaseRow | None:
        """End a lease; what it became, or ``None`` if somebody else has changed it."""
        return await self._change(row, ended, functools.partial(self._orders, row, ended, cost))

    async def forget(self, row: LeaseRow) -> None:
        """Give all of a lease back, and its record is gone, unless somebody else has changed it."""
        await self._change(row, None, functools.partial(self._orders, row, row, OnExpiry.REFUND))

    async def note(self, row: LeaseRow, noted: LeaseRow) -> LeaseRow | None:
        """Change what a lease says, and nothing of its buckets; ``None`` if somebody else has changed it."""
        return await self._change(row, noted)

    async def renew_seats(self, row: LeaseRow) -> LeaseRow | None:
        """Hold the seats of a lease for longer that are due."""
        now_ms = self._scope.world.now_ms()
        images = await self._images(row)
        moves: list[tuple[Account, SeatMove]] = []
        parts, lost = list[PartRow](), 0
        for part in row.parts:
            givers = []
            for giver in part.givers:
                account, seats = self._account(images, giver, giver.shard_id, giver.life), list[SeatRow]()
                for seat in giver.seats:
                    if seat.due_ms > now_ms:
                        seats.append(seat)
                        continue
                    image = images.get(account.key)
                    rate = account.terms.rates.get(seat.name)
                    mark = self.new_mark()
                    if rate is None or image is None:
                        lost += seat.amount
                        continue
                    rate = as_recorded(rate_by_now(rate, image, seat.name))
                    later = until(rate, now_ms)
                    move = SeatMove(seat.name, seat.until, -seat.amount, later=later, mark=mark)
                    if not take_off([move], image, {}):
                        lost += seat.amount  # it was not renewed in time, and others may have it
                        continue
                    moves.append((account, move))
                    seats.append(SeatRow(seat.name, later, seat.amount, due_ms(rate, later)))
                givers.append(giver._replace(seats=tuple(seats)))
            parts.append(part._replace(givers=tuple(givers)))
        if lost:
            self._writer.renewals.lost += lost
            logger.warning("%d seats of a stored lease were not renewed in time: others may have them", lost)

        async def orders() -> list[Order]:
            owed: dict[Debtor, Order] = {}
            for account, move in moves:
                enter(owed, account, Posting(seats=(move,)))
            return list(owed.values())

        return await self._change(row, row.changed(parts=tuple(parts)), orders, attempts_max=1)

    async def _change(
        self,
        row: LeaseRow,
        changed: LeaseRow | None,
        orders: Callable[[], Awaitable[list[Order]]] | None = None,
        attempts_max: int = ATTEMPTS_MAX,
    ) -> LeaseRow | None:
        scope, world = self._scope, self._scope.world
        until_ms = world.ticks_ms() + CALLS_MAX * scope.backend.capabilities.timeout_ms
        lost: RateLimiterUnavailable | None = None
        put: Write = forgotten(scope.namespace_id, row)
        if changed is not None:
            changed = replace(changed, mark=self.new_mark())
            put = replaced(scope.namespace_id, changed, row.mark)
        for attempt in range(attempts_max):
            if attempt:
                pause = min(PAUSE_SECONDS_MAX, 0.002 * 2 ** min(attempt, 8))
                await scope.backend.colour.sleep(world.random.random() * pause)
                now = await get_lease(scope, row.lease_id)
                if now is None or (now.rev, now.mark) != (row.rev, row.mark):
                    return changed if now == changed else None  # it was written, and the reply was lost
            owed: Sequence[Order] = await orders() if orders is not None else ()
            now_ms = world.now_ms()
            shaped = [(order, self._writer._shape([order], now_ms)) for order in owed]
            writes: list[Write] = [write for _, write in shaped if write is not None]
            try:
                outcomes = await scope.write_together([*writes, put])
            except RateLimiterUnavailable as error:
                if not error.ambiguous:
                    raise
                lost = error
            else:
                if all(outcome.applied for outcome in outcomes):
                    await self._after([order for order, write in shaped if write is not None])
                    return changed
            if world.ticks_ms() >= until_ms:
                break
        if attempts_max == 1 and lost is None:
            return None  # the next sweep tries again
        raise lost or RateLimiterUnavailable(f"a lease changed under all of {attempts_max} attempts")

    async def _after(self, orders: Sequence[Order]) -> None:
        """Let those know who were refused, and buckets outlive their debts."""
        writer, now_ms = self._writer, self._scope.world.now_ms()
        for account, posting in orders:
            writer.reconsider(account.whole_key)
            if posting.seats:
                writer.seat_line.stir(account.key)
            image = writer.image(account.key)
            if not posting.debit or image is None or lasts(account.terms, image, now_ms):
                continue
            write = prolong(stored_terms(image, account.terms.ttl_fills), account.key, image, now_ms)
            if write is not None:
                try:
                    await self._scope.write([write])
                except RateLimiterUnavailable as error:  # the next write to the bucket looks again
                    logger.warning(
                        "%s may disappear before its debts are paid: %s", account.key.partition, error
                    )

    # From the record to what the buckets get.

    async def _orders(self, row: LeaseRow, ended: LeaseRow, cost: OnExpiry) -> list[Order]:
        images = await self._images(row)
        owed: dict[Debtor, Order] = {}
        left: dict[Key, dict[tuple[str, int], int]] = {}
        for at, part in enumerate(row.parts):
            if cost is not OnExpiry.REFUND:
                for account, posting in await self._settlement(images, ended, at, cost):
                    enter(owed, account, posting)
            for giver in part.givers:
                account = self._account(images, giver, giver.shard_id, giver.life)
                image = images.get(account.key)
                if image is None:
                    continue
                if cost is OnExpiry.REFUND and (tokens := _tokens(giver)):
                    enter(owed, account, Posting(credit=tokens))
                there = left.setdefault(account.key, {})
                for seat in giver.seats:
                    is_refund = cost is OnExpiry.REFUND
                    move = SeatMove(seat.name, seat.until, -seat.amount, is_refund)
                    if take_off([move], image, there):
                        enter(owed, account, Posting(seats=(move,)))
        return list(owed.values())

    async def _settlement(
        self, images: dict[Key, Item | None], ended: LeaseRow, at: int, cost: OnExpiry
    ) -> list[Order]:
        """What a part owes, or is owed, by what was noted of it."""
        part = ended.parts[at]
        taken = {name: milli // 1000 for name, milli in part.amounts.items()}
        noted = ended.noted[at] if at < len(ended.noted) else {}
        adjusted = {
            name: more
            for name, total in noted.items()
            if (more := total - taken.get(name, 0)) and (more > 0 or cost is not OnExpiry.KEEP)
        }
        if not adjusted:
            return []
        family = []
        for entity_id, is_counted in part.family:
            giver = GiverRow(entity_id, part.resource, 0, "", {})
            account = self._account(images, giver, 0, "")
            if images.get(account.key) is None and any(more > 0 for more in adjusted.values()):
                account = await self._planned(part, entity_id) or account
            family.append(account if is_counted else account._replace(bypass=Bypass.UNCOUNTED))
        demands = tuple(
            BucketDemand(self._account(images, giver, giver.shard_id, giver.life), _tokens(giver))
            for giver in part.givers
        )
        take = Take(tuple(family), part.amounts, demands)
        orders = settlement(take.accounts, (take,), adjusted)
        return [order for order in orders if images.get(order.account.key) is not None or order.posting.debit]

    async def _planned(self, part: PartRow, entity_id: str) -> Account | None:
        """An account whose bucket has gone meanwhile, by the limits that are stored now."""
        try:
            plan = await self._buckets.plan(part.entity_id, part.resource, None)
        except RateLimiterUnavailable:
            raise
        except (ValidationError, ZAELimiterError) as error:
            logger.warning("what a lease cost more of %s is charged to nobody: %s", part.resource, error)
            return None
        return next((account for account in plan.accounts if account.entity_id == entity_id), None)

    async def _images(self, row: LeaseRow) -> dict[Key, Item | None]:
        """The buckets of a lease as they are now; what a deletion left behind is none."""
        namespace_id, wanted = self._scope.namespace_id, dict[Key, None]()
        for part in row.parts:
            for entity_id, _ in part.family:
                wanted[bucket_key(namespace_id, entity_id, part.resource)] = None
            for giver in part.givers:
                shard_id = giver.shard_id
                while shard_id:  # it may be part of its elder again
                    wanted[bucket_key(namespace_id, giver.entity_id, giver.resource, shard_id)] = None
                    shard_id = parent_of(shard_id)
                wanted[bucket_key(namespace_id, giver.entity_id, giver.resource)] = None
        images = await self._writer.look(list(wanted)) if wanted else []
        return {key: None if is_deleted(image) else image for key, image in zip(wanted, images, strict=True)}

    def _account(
        self, images: dict[Key, Item | None], giver: GiverRow, shard_id: int, life: str | None
    ) -> Account:
        """A bucket, or the elder that a shard came back to, under the limits that it has itself."""
        namespace_id, place = self._scope.namespace_id, (giver.entity_id, giver.resource)
        while shard_id and images.get(bucket_key(namespace_id, *place, shard_id)) is None:
            shard_id = parent_of(shard_id)
        key = bucket_key(namespace_id, *place, shard_id)
        image = images.get(key)
        terms = stored_terms(image or {}, self._scope.connection.options.bucket_ttl_multiplier)
        meter = Meter.COUNT if terms.seats else Meter.LIMIT
        meter = meter if self._scope.backend.capabilities.hot_partitions else Meter.NONE
        return Account(
            *(key, namespace_id, *place, terms),
            meter=meter,
            shard_id=shard_id,
            shard_count=shard_count(image),
            life=life,
        )


def _tokens(giver: GiverRow) -> dict[str, int]:
    """What a bucket gave that is no seat."""
    seats = {seat.name for seat in giver.seats}
    return {name: amount for name, amount in giver.amounts.items() if name not in seats}


def parts_of(takes: Iterable[Take]) -> tuple[PartRow, ...]:
    """What was taken, as a record says it: by entity and resource, in the order of the demands."""
    found: dict[tuple[str, str], PartRow] = {}
    for take in takes:
        first = take.accounts[0]
        place = first.entity_id, first.resource
        names = (name for account in take.accounts for name in account.terms.rates)
        seats = {name for account in take.accounts for name in account.terms.seats}
        part = PartRow(
            *place,
            dict(take.amounts),
            tuple(dict.fromkeys(name for name in names if name not in seats)),
            tuple((account.entity_id, account.is_counted) for account in take.accounts),
            tuple(_giver(demand) for demand in take.demands),
        )
        found[place] = part
    return tuple(found.values())


def _giver(demand: BucketDemand) -> GiverRow:
    account, seats = demand.account, getattr(demand, "seats", ())
    rows = tuple(
        SeatRow(
            seat.name, seat.until, seat.count, due_ms(as_recorded(account.terms.rates[seat.name]), seat.until)
        )
        for seat in seats
        if not seat.is_lost
    )
    place = account.entity_id, account.resource, account.shard_id, account.life
    return GiverRow(*place, dict(demand.amounts), rows)
