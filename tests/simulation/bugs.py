"""Bugs that a simulation must find: each breaks the core in one place while it is planted."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from unittest import mock

from tests.engine.booking_bugs import BOOKING_BUGS
from tests.simulation.failover_bugs import FAILOVER_BUGS
from tests.simulation.schedule_bugs import SCHEDULE_BUGS
from tests.simulation.simulation import SimColour
from zae_limiter.acquisition import Acquisition
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.config_cache import ConfigCache
from zae_limiter.engine.account import Account, _terms_of
from zae_limiter.engine.announced import said, waiters
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.demand import BucketDemand, Take, demands_on
from zae_limiter.engine.fitting import fitting
from zae_limiter.engine.group_commit import BucketWriter
from zae_limiter.engine.law import Rate, accrued
from zae_limiter.engine.merge import merge
from zae_limiter.engine.parts import Part, asked_of
from zae_limiter.engine.plan import Plan
from zae_limiter.engine.posting import Posting
from zae_limiter.engine.renewal import Renewals
from zae_limiter.engine.seating import with_seats
from zae_limiter.engine.seats import TICK_MS, Place
from zae_limiter.engine.seen_changes import counts_of
from zae_limiter.engine.settle import give_back
from zae_limiter.engine.spent import spent
from zae_limiter.engine.split import split
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.lease import Lease
from zae_limiter.models.accruals import Steps, period_and_zone, steps_of, window_start, zone_of
from zae_limiter.operate.migrations.shapes import MOVED_TO, OldRecord
from zae_limiter.records import versions
from zae_limiter.records.buckets import BucketRecords
from zae_limiter.records.scope import Scope
from zae_limiter.repository_protocol import (
    AtLeast,
    AtMost,
    Condition,
    Delete,
    Exists,
    Item,
    Key,
    Put,
    Update,
    Write,
)
from zae_limiter.runtime.world import StoreClock
from zae_limiter.schema import BOOKED, limit_attributes

look, leave = StoreClock._look, Acquisition.__aexit__
refuse_older_shape = versions._refuse_older_shape
find_family = BucketRecords._family


def _without_floor(*given: Any) -> Write | None:
    """A debit that does not ask whether the tokens are there."""
    write = write_for(*given)
    if not isinstance(write, Update) or "rf" in write.set:
        return write
    return write._replace(when=_without(write, AtLeast, set(write.add)))


def _without_clamp(*given: Any) -> Write | None:
    """A debit that leaves what has overflowed in the bucket."""
    write, posting = write_for(*given), given[1]
    if not isinstance(write, Update) or "rf" in write.set:
        return write
    names = {attribute: attribute[2:-3] for attribute in write.set if attribute != "ttl"}
    moved = {a: -posting.need.get(name, 0) - posting.debit.get(name, 0) for a, name in names.items()}
    write = write._replace(when=_without(write, AtLeast, set(moved)))
    kept = _without(write, AtMost, {*write.add, *moved})
    return write._replace(add={**write.add, **moved}, set={}, when=kept)


def _spent_without_floor(terms: Any, needs: Any, image: Any, now_ms: int) -> dict[str, int] | None:
    """Taking at once what is not there."""
    rich = {
        **image,
        **{slot.tokens: image[slot.tokens] + slot.capacity_milli for slot in terms.slots.values()},
    }
    return spent(terms, needs, rich, now_ms)


def _swap_unseen(store: MemoryBackend, key: Key, image: Item, changed: Mapping[str, int], *_: object) -> Item:
    """A swap that does not look whether somebody else was faster."""
    del image
    new = {**store._shelf.items[key], **changed}
    store._shelf.items[key] = new
    return new


def _last_come_first_served(postings: Sequence[Posting], *given: Any) -> list[bool]:
    """A group that is cut from its tail."""
    return fitting(postings[::-1], *given)[::-1]


def _split_that_mints(*given: Any) -> tuple[Update, Put]:
    """A new shard that starts full, whatever the old one had."""
    update, put = split(*given)
    full = {a: put.item[f"{a[:-3]}_cp"] for a in put.item if a.startswith("b_") and a.endswith("_tk")}
    return update, put._replace(item={**put.item, **full})


def _merge_that_mints(*given: Any) -> list[Write]:
    """A shard that came back and is still there."""
    return [write for write in merge(*given) if not isinstance(write, Delete)]


async def _refund_to_first_shard(writer: BucketWriter, taken: Sequence[BucketDemand]) -> None:
    """A refund that goes to the bucket instead of the shard."""
    moved = [d._replace(account=d.account._replace(key=d.account.whole_key)) for d in taken]
    await give_back(writer, moved)


def _deaf(*_: Any) -> None:
    """A clock that does not listen to the store."""


def _set_back(clock: StoreClock) -> int:
    """A clock that goes back with the machine's."""
    clock._lead_ms, clock._told_ms, clock._shift_ms = -math.inf, 0, 0
    return look(clock)


async def _stamp_nothing(*_: Any, **__: Any) -> None:
    """A change of an entity's limits of which nobody is told."""


async def _believe_the_parent(view: BucketRecords, accounts: Sequence[Account], *_: Any) -> bool:
    """A refusal by a parent that is told to whoever was its child when this process last looked."""
    return view.is_moved(accounts[0], accounts[0].key)


def _believe_the_cache(cache: ConfigCache, changes: int) -> None:
    """A store that tells, and a client that does not listen."""
    cache.changes = changes


async def _forget_refund(*_: Any) -> None:
    """A refund that nobody makes."""


async def _forget_readers(acquisition: Acquisition, kind: Any, error: Any, trace: Any) -> None:
    if kind is GeneratorExit:
        acquisition._lease._ended = acquisition._lease._settled = True
    else:
        await leave(acquisition, kind, error, trace)


async def _commit_nothing(lease: Lease) -> None:
    """A commit that forgets what was noted."""
    lease._ended = lease._settled = True


async def _keep_nothing(_: SimColour, coroutine: Coroutine[Any, Any, Any], *__: Any) -> Any:
    return await coroutine


def _mark_again(source: OldRecord, where: str) -> Update:
    """A move that does not look whether somebody else has moved the record."""
    return Update(source.key, set={MOVED_TO: where}, when=(Exists(),))


async def _enter_blindly(scope: Scope) -> None:
    """An opening that takes a store which does not answer for one without older records."""
    with suppress(RateLimiterUnavailable):
        await refuse_older_shape(scope)


def _without(write: Update, kind: type[Condition], attributes: set[str]) -> tuple[Condition, ...]:
    return tuple(
        c for c in write.when if not (isinstance(c, kind) and getattr(c, "attribute", "") in attributes)
    )


async def _widened_family(
    view: BucketRecords, entity_id: str, resource: str, limits: Any, *, fresh: bool = False
) -> Any:
    """Limits brought along that are taken for those of the parent too."""
    find = view._fresh if fresh else view._current
    account, resolved = await find(entity_id, resource, limits)
    if not account.cascade or account.parent_id in (None, entity_id):
        return [account], resolved
    return [account, (await find(account.parent_id, resource, limits))[0]], resolved


async def _spare_grandparents(view: BucketRecords, *asked: Any, **how: Any) -> Any:
    """A cascade that ends at the parent."""
    accounts, resolved = await find_family(view, *asked, **how)
    return accounts[:2], resolved


def _charge_grandparents_twice(parts: Sequence[Part], plans: Sequence[Plan]) -> list[BucketDemand]:
    """A chain whose upper end is met on two ways."""
    return [
        demand if at < 2 else demand._replace(amounts={n: 2 * a for n, a in demand.amounts.items()})
        for at, demand in enumerate(asked_of(parts, plans))
    ]


def _count_nothing(*_: Any) -> None:
    """Debits whose replies are lost, and of which nobody speaks."""


def _never(*_: Any) -> bool:
    return False


def _ask_for_the_last(parts: Sequence[Part], plans: Sequence[Plan]) -> list[BucketDemand]:
    """A bucket that several demands meet at, and that is asked for one of them only."""
    asked = [demands_on(plan.accounts, needs) for (_, needs), plan in zip(parts, plans, strict=True)]
    return list({demand.account.key: demand for demands in asked for demand in demands}.values())


def _give_to_the_first(
    parts: Sequence[Part], plans: Sequence[Plan], taken: Sequence[BucketDemand]
) -> tuple[Take, ...]:
    """All that several demands have taken, noted for one of them."""
    return tuple(
        Take(plan.accounts, needs, () if at else (*taken,))
        for at, ((_, needs), plan) in enumerate(zip(parts, plans, strict=True))
    )


def _always(*_: Any) -> bool:
    return True


def _missed_in_sum(version: int, other: int) -> bool:
    """Changes of one level that make up for those of another."""
    one, another = (sum(counts_of(of)) for of in (version, other))
    return one < another


GIVE_BACK = tuple(
    f"zae_limiter.engine.{module}.give_back" for module in ("acquire", "parts", "take", "holding", "wait")
)
"""Wherever a refund is made."""


def _is_booked(image: Item, now_ms: int) -> bool:
    """A line that is over when somebody says so, which a process that died does not."""
    del now_ms
    return BOOKED in image


IN_LINE = tuple(
    f"zae_limiter.engine.{module}.in_line" for module in ("bucket_view", "bucket_writes", "rebase")
)


def _seat_back_twice(*given: Any) -> Write | None:
    """A seat that is given back and counts as two."""
    write, posting = with_seats(*given), given[2]
    back = {limit_attributes(m.name).tk for m in posting.seats if m.amount < 0 and m.later is None}
    if not isinstance(write, Update):
        return write
    return write._replace(add={a: n + (1_000 if a in back else 0) for a, n in write.add.items()})


def _over_too_early(place: Place, now_ms: int) -> bool:
    """A seat that others get before its holder had a chance to renew it."""
    return place.until * TICK_MS <= now_ms + 6_000


def _seats_forgotten(orders: Any, seats: Any) -> Any:
    """A lease that ends and keeps its seats."""
    del seats
    return orders


def _last_off(image: Item, name: str, ticket: int | None, now_ms: int) -> str | None:
    """Whoever takes a seat takes off who asked last, instead of itself."""
    del ticket
    return said(waiters(image, name, now_ms)[:-1])


async def _nothing_renewed(_: Renewals) -> float:
    """Nobody looks after those who work for long."""
    return math.inf


def _boundary_twice(rate: Rate, t_ms: int) -> int:
    """A boundary that counts when it is there, and a minute later again."""
    late_ms = 60_000 if rate.accrual is not None and "@" in rate.accrual else 0
    return accrued(rate, t_ms) + (accrued(rate, t_ms - late_ms) if late_ms else 0)


class _Moved(NamedTuple):
    """Steps that are counted too late, or too early."""

    steps: Steps
    by_ms: Callable[[int], int]

    def count(self, t_ms: int) -> int:
        return self.steps.count(t_ms - self.by_ms(t_ms))

    def instant(self, number: int) -> int:
        t_ms = self.steps.instant(number)
        return t_ms + self.by_ms(t_ms)


def _deaf_to_summer(accrual: str) -> Steps:
    """Boundaries by the time that a zone has in winter."""
    if window_start(accrual) is not None or "@" not in accrual:
        return steps_of(accrual)
    zone = zone_of(period_and_zone(accrual)[1])

    def summer_ms(t_ms: int) -> int:
        return (datetime.fromtimestamp(t_ms / 1000, zone).dst() or timedelta()) // timedelta(milliseconds=1)

    return _Moved(steps_of(accrual), summer_ms)


def _full_too_early(accrual: str) -> Steps:
    """A session whose window is over a minute before it is."""
    is_window = window_start(accrual) is not None
    return _Moved(steps_of(accrual), lambda _: -60_000) if is_window else steps_of(accrual)


BUGS: dict[str, dict[str, Any]] = {
    **BOOKING_BUGS,
    **SCHEDULE_BUGS,
    **FAILOVER_BUGS,
    "deaf_to_switches": {"zae_limiter.engine.plan.Plan.is_fresh": lambda *_: True},
    "changes_masked": {"zae_limiter.engine.bucket_view.has_missed": _missed_in_sum},
    "boundary_twice": {"zae_limiter.engine.law.accrued": _boundary_twice},
    "deaf_to_summer": {"zae_limiter.engine.law.steps_of": _deaf_to_summer},
    "session_full_early": {"zae_limiter.engine.law.steps_of": _full_too_early},
    "seat_back_twice": {"zae_limiter.engine.bucket_writes.with_seats": _seat_back_twice},
    "seat_over_too_early": {"zae_limiter.engine.seats.Place.is_over": _over_too_early},
    "seats_forgotten": {"zae_limiter.engine.holding.seats_back": _seats_forgotten},
    "waiters_ignored": dict.fromkeys(
        ("zae_limiter.engine.seats.ahead", "zae_limiter.engine.seating.ahead"), lambda *_: []
    ),
    "waiters_for_ever": {"zae_limiter.engine.announced.Announcement.is_believed": _always},
    "wrong_waiter_off": {"zae_limiter.engine.seating.without": _last_off},
    "seats_not_renewed": {"zae_limiter.engine.renewal.Renewals.renew": _nothing_renewed},
    "parent_booked_early": {
        "zae_limiter.engine.wait.LEAD_MS": 10**9,
        "zae_limiter.engine.wait._can_give": lambda *_: False,
    },
    "line_never_over": dict.fromkeys(IN_LINE, _is_booked),
    "booked_far": {"zae_limiter.engine.booking.nears_ms": _count_nothing},
    "woken_alike": {"zae_limiter.engine.booking.AGED_MS_MAX": 0},
    "ended_twice": {"zae_limiter.engine.set_aside.is_ended": _never},
    "counted_twice": {"zae_limiter.records.once._is_over": _always},
    "parent_widened": {"zae_limiter.records.buckets.BucketRecords._family": _widened_family},
    "grandparent_spared": {"zae_limiter.records.buckets.BucketRecords._family": _spare_grandparents},
    "grandparent_twice": {"zae_limiter.engine.acquire.asked_of": _charge_grandparents_twice},
    "holds_believed": {
        "zae_limiter.engine.seen_buckets.SeenBuckets.is_doubtful": _never,
        "zae_limiter.engine.seen_buckets.SeenBuckets.is_held_here": _never,
    },
    "parts_unsummed": {"zae_limiter.engine.acquire.asked_of": _ask_for_the_last},
    "parts_confused": {"zae_limiter.engine.parts.shared_out": _give_to_the_first},
    "lost_in_silence": {"zae_limiter.engine.group_commit.BucketWriter.count_unsure": _count_nothing},
    "no_floor": {"zae_limiter.engine.group_commit.write_for": _without_floor},
    "no_clamp": {"zae_limiter.engine.group_commit.write_for": _without_clamp},
    "overdrawn_at_once": {"zae_limiter.engine.acquire.spent": _spent_without_floor},
    "unstamped": {"zae_limiter.records.levels._stamp_buckets": _stamp_nothing},
    "former_parent": {"zae_limiter.records.buckets.BucketRecords.is_moved_by_now": _believe_the_parent},
    "unnoticed": {"zae_limiter.config_cache.ConfigCache.notice": _believe_the_cache},
    "blind_swap": {"zae_limiter.backends.memory.MemoryBackend.swap": _swap_unseen},
    "tail_first": {"zae_limiter.engine.group_commit.fitting": _last_come_first_served},
    "split_mints": {"zae_limiter.engine.split.split": _split_that_mints},
    "merge_mints": {"zae_limiter_aggregator.buckets.merge": _merge_that_mints},
    "wrong_shard": dict.fromkeys(GIVE_BACK, _refund_to_first_shard),
    "blind_entry": {"zae_limiter.records.versions._refuse_older_shape": _enter_blindly},
    "deaf_clock": {"zae_limiter.runtime.world.StoreClock.observe": _deaf},
    "clock_set_back": {"zae_limiter.runtime.world.StoreClock._look": _set_back},
    "moved_twice": {"zae_limiter.operate.migrations.moving.mark": _mark_again},
    "commit_forgotten": {"zae_limiter.lease.Lease.commit": _commit_nothing},
    "reader_forgotten": {"zae_limiter.acquisition.Acquisition.__aexit__": _forget_readers},
    "undone_by_nobody": {"tests.simulation.simulation.SimColour.keep": _keep_nothing},
    "no_refund": dict.fromkeys(GIVE_BACK, _forget_refund),
}


@contextmanager
def planted(bug: str | None, bugs: Mapping[str, Mapping[str, Any]] = BUGS) -> Iterator[None]:
    """Break the core in one way for a while."""
    with ExitStack() as stack:
        for target, broken in bugs[bug].items() if bug is not None else ():
            stack.enter_context(mock.patch(target, broken))
        if bug is not None:  # what is worked out with it, or was without, is not for the other
            stack.callback(_terms_of.cache_clear)
            _terms_of.cache_clear()
        yield
