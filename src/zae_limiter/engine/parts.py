"""The parts of an acquire: what it asks for in each place, and what of all that was taken belongs to which.

Most acquires have one part. Where several of them meet at a bucket, one entity twice or a common parent, the
bucket is asked once, for the sum: so it is admitted or refused, and waited for, as a whole. How much of that
was whose is only told when it was taken, for each part is settled by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ..exceptions import RateLimitExceeded, ValidationError
from ..repository_protocol import TRANSACT_WRITES_MAX, Item, Key, Write
from .account import Account
from .demand import BucketDemand, Take, demand_on, demands_on, share_of
from .group_commit import BucketWriter
from .holding import Holding
from .plan import Plan
from .receipts import Receipt, Record
from .remaining import exceeded, seen_now
from .settle import Charge, give_back
from .take import take
from .wait import wait_for

Part: TypeAlias = tuple[Holding, Mapping[str, int]]
"""Who asks, for which resource, and how many millitokens by limit."""


def asked_of(parts: Sequence[Part], plans: Sequence[Plan]) -> list[BucketDemand]:
    """What some parts ask of their buckets together, of each of them once."""
    asked = [demands_on(plan.accounts, needs) for (_, needs), plan in zip(parts, plans, strict=True)]
    if len(asked) == 1:
        return asked[0]
    # Whoever asks for itself may have brought limits along, under which it goes as a parent, too.
    own = {plan.key: plan.accounts[0] for plan in plans}
    accounts: dict[object, Account] = {}
    sums: dict[object, dict[str, int]] = {}
    for account, amounts in (demand for demands in asked for demand in demands):
        accounts[account.key] = own.get(account.key, account)
        total = sums.setdefault(account.key, {})
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    _check_count(parts, len(accounts), TRANSACT_WRITES_MAX)
    merged = (demand_on(account, sums[key]) for key, account in accounts.items())
    return [demand for demand in merged if demand is not None]


def _check_count(parts: Sequence[Part], buckets: int, most: int) -> None:
    if buckets > most:
        told = f"they are charged to {buckets} buckets, at most {most} change at once"
        raise ValidationError("demands", len(parts), f"{told}; ask for fewer together")


def shared_out(
    parts: Sequence[Part], plans: Sequence[Plan], taken: Sequence[BucketDemand]
) -> tuple[Take, ...]:
    """Who of some parts has how much of what was taken for all of them.

    Empty if a part has none of something that it asked for: a limit has disappeared meanwhile.
    """
    if len(parts) == 1:
        return (Take(plans[0].accounts, parts[0][1], (*taken,)),)
    left = [(demand, dict(demand.amounts)) for demand in taken]
    takes = []
    for (_, needs), plan in zip(parts, plans, strict=True):
        demands: list[BucketDemand] = []
        for account in plan.accounts:
            owed = dict(needs)
            for giver, amounts in left:
                if giver.account.whole_key == account.whole_key and (share := _claimed(owed, amounts)):
                    demands.append(share_of(giver, share))
        charged = {name for account in plan.accounts if account.is_counted for name in account.terms.rates}
        if any(all(name not in demand.amounts for demand in demands) for name in charged.intersection(needs)):
            return ()
        if needs:
            takes.append(Take(plan.accounts, needs, (*demands,)))
    return (*takes,)


def uncharged(parts: Sequence[Part], plans: Sequence[Plan]) -> tuple[Take, ...]:
    """What parts have had of nobody, because all whom it could be charged to are bypassed without a trace."""
    pairs = zip(parts, plans, strict=True)
    return tuple(Take(plan.accounts, needs, ()) for (_, needs), plan in pairs if needs)


def _claimed(owed: dict[str, int], amounts: dict[str, int]) -> dict[str, int]:
    """Take as much of what is owed as there is, and say how much that was."""
    share = {name: part for name, need in owed.items() if (part := min(need, amounts.get(name, 0)))}
    for name, part in share.items():
        owed[name] -= part
        amounts[name] -= part
    return share


async def _asked_anew(whole: Holding, parts: Sequence[Part], plans: list[Plan]) -> Sequence[BucketDemand]:
    """What is asked of which buckets under the limits and switches of now."""
    buckets, writer = whole._buckets, whole._buckets.writer
    await buckets.notice_changes()
    for at, (holding, needs) in enumerate(parts):
        if not plans[at].stands(writer, needs, writer.world.ticks_ms()):
            plans[at] = await buckets.plan(holding._entity_id, holding._resource, holding._given, needs)
            holding._accounts = plans[at].accounts
    return asked_of(parts, plans)


async def took(
    whole: Holding,
    parts: Sequence[Part],
    plans: Sequence[Plan],
    demands: Sequence[BucketDemand],
    refused: Account | None = None,
) -> bool:
    """Take from the buckets of some families; false, and nothing taken, if one is another one by now."""
    buckets, writer = whole._buckets, whole._buckets.writer
    receipt, taken = whole._receipt, None
    speculative = whole._speculative or receipt is not None
    taking = functools.partial(take, renew=buckets.renewed, speculative=speculative, refused=refused)
    if receipt is not None:
        _check_count(parts, len(demands), TRANSACT_WRITES_MAX - 1)  # and the record
        record = functools.partial(_record, receipt, parts, plans)
        taken = await _taken_with(record, receipt, whole, functools.partial(taking, writer, demands))
    if taken is None and whole._wait_ms is None:
        taken = await taking(writer, demands)
    elif taken is None:
        planned = [*plans]
        asked_anew = functools.partial(_asked_anew, whole, parts, planned)
        taken, plans = await wait_for(whole, demands, taking, asked_anew), planned
    if whole._waited_ms:
        await _check_switches(whole, parts, taken)
    shards = [demand.account for demand in taken]
    moved = [account for plan in plans for account in buckets.moved(plan.accounts, shards)]
    if not moved and (takes := shared_out(parts, plans, taken)) and whole._take_in(takes, taken):
        whole._seen = seen_now(writer, [demand.account for demand in demands])
        if any(shard.terms.soft for shard in shards):
            _note_exceeded(whole, demands, shards)
        return True
    if receipt is not None and receipt.is_written:
        del taken[:]
        await receipt.undo()
    await give_back(writer, taken)
    if whole._abandoned:  # the work failed while a task of its own was still asking for more
        whole._check_open()
    await buckets.notice_families(moved)
    return False


async def _taken_with(
    record: Record, receipt: Receipt, whole: Holding, taking: Callable[..., Awaitable[Charge[BucketDemand]]]
) -> Charge[BucketDemand] | None:
    """Take what is there at once, and write its record with it; ``None`` if it has to be waited for."""
    try:
        taken = await taking(record=record)
    except RateLimitExceeded:
        if whole._wait_ms is None:
            raise
        await receipt.check_new()  # whoever has it already need not wait for it
        return None
    receipt.is_written = True
    return taken


def _record(
    receipt: Receipt, parts: Sequence[Part], plans: Sequence[Plan], demands: Sequence[BucketDemand]
) -> Write:
    """The write of a record of what is about to be taken, for whichever part it is."""
    takes = shared_out(parts, plans, demands)
    return receipt.write(takes or (Take(plans[0].accounts, parts[0][1], (*demands,)),))


def _note_exceeded(whole: Holding, demands: Sequence[BucketDemand], shards: Sequence[Account]) -> None:
    """Count an acquire that went beyond limits which refuse nothing, by the terms it was admitted under."""
    writer, soft = whole._buckets.writer, {shard.whole_key: shard.terms.soft for shard in shards}
    accounts, over = list[Account](), False
    for account, amounts in demands:
        names = soft.get(account.key, account.terms.soft)
        if names != account.terms.soft:  # somebody has made them so, or not so, meanwhile
            account = account._replace(terms=replace(account.terms, soft=names))  # noqa: PLW2901
        over = bool(exceeded(seen_now(writer, [account]), amounts)) or over
        accounts.append(account)
    whole._seen = seen_now(writer, accounts)
    writer.soft_exceeded += over


async def _check_switches(whole: Holding, parts: Sequence[Part], taken: Charge[BucketDemand]) -> None:
    """Begin no work that was switched off while it waited; the tokens go back."""
    try:
        await whole._buckets.notice_changes()
        for holding, needs in parts:
            await whole._buckets.plan(holding._entity_id, holding._resource, holding._given, needs)
    except GeneratorExit:  # a coroutine that is thrown away may not await any more
        raise
    except BaseException:
        await give_back(whole._buckets.writer, taken)
        raise


def images_of(writer: BucketWriter, plans: Sequence[Plan]) -> dict[Key, Item | None]:
    """The buckets of some families as they were last seen."""
    return {account.key: writer.images.get(account.key) for plan in plans for account in plan.accounts}


async def moved_by_now(
    whole: Holding, plans: Sequence[Plan], refusal: RateLimitExceeded, seen: Mapping[Key, Item | None]
) -> bool:
    """Whether a refusal rests on a family that an entity does not have any more; if not, it is one."""
    if any([await whole._buckets.is_moved_by_now(plan.accounts, refusal, seen) for plan in plans]):
        return True
    if whole._receipt is not None:
        await whole._receipt.check_new()  # whoever has it already is not refused
    return False
