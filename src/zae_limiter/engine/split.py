"""Buckets in several items: where a demand goes, how a shard is split, how shards are gathered.

Every shard says itself of how many shards its shares are a part, and each write pins that number; so a
process that knows of fewer shards than there are is never wrong, only less spread out. Shard 0 is the
truth about how many there can be. A shard that nobody has needed yet is still part of the one it will
be split from: it is never made from nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..exceptions import RateLimiterUnavailable
from ..models.accruals import SESSION
from ..naming import WCU
from ..repository_protocol import (
    Absent,
    AtLeast,
    Condition,
    Equal,
    Exists,
    Item,
    Key,
    Put,
    Update,
    Value,
    Write,
)
from ..schema import (
    BOOKED,
    BOOKED_SINCE,
    BURIED,
    FORGIVEN,
    LAPSES,
    LIFE,
    PHASE,
    bucket_entries,
    bucket_limit_names,
    kind_attributes,
    limit_attributes,
    number,
    pinned,
    rate_attributes,
    shard_attributes,
    stored_rate,
)
from .account import WRITES, Account, Meter, Terms
from .bucket_view import in_shards, level, shard_count, still_forgiven, stored_terms
from .door import write_together
from .group_commit import BucketWriter
from .law import gain, moved_origin
from .level import Level
from .posting import believed
from .shares import SHARDS_MAX, Spread, birth_count, gathered, halves, parent_of, share_rate, splits_further
from .soft import hard


def spread_of(image: Item, name: str) -> int:
    """Over how many shards a limit is spread, by one of its shards."""
    return in_shards(number(image, shard_attributes(name).sc, 1))


def shard_account(account: Account, shard_id: int, image: Item | None) -> Account:
    """One shard of a bucket, under its shares of the terms; ``account`` is that of the whole bucket."""
    count, terms = shard_count(image), account.terms
    if image is None or (shard_id == 0 and count == 1):
        return account
    rates = {
        name: rate if spread == 1 else share_rate(rate, shard_id, spread)
        for name, rate in terms.rates.items()
        if shard_id < (spread := spread_of(image, name))
    }
    return account._replace(
        key=account.shard_key(shard_id),
        terms=Terms(rates, terms.version, soft=terms.soft, ticket=terms.ticket, units=terms.units),
        shard_id=shard_id,
        shard_count=count,
    )


def levels(account: Account, images: Sequence[Item | None], name: str, now_ms: int) -> Spread:
    """A limit of the whole bucket, from the images of all its shards."""
    parts: list[Level] = []
    for shard_id, image in enumerate(images):
        shard = shard_account(account, shard_id, image)
        if name in shard.terms.rates and (shard_id == 0 or image is not None):
            parts.append(level(shard.terms, name, image, now_ms))
    return Spread(parts)


def shard_keys(account: Account, count: int) -> list[Key]:
    """The keys of all shards of a bucket."""
    return [account.key, *(account.shard_key(shard_id) for shard_id in range(1, count))]


def known_images(writer: BucketWriter, account: Account) -> list[Item | None]:
    """The images of all shards of a bucket, as last seen."""
    return [writer.image(key) for key in shard_keys(account, shard_count(writer.image(account.key)))]


def are_known(writer: BucketWriter, account: Account) -> bool:
    """Whether this process has seen all shards of a bucket, be they missing."""
    return all(writer.knows(key) for key in shard_keys(account, shard_count(writer.image(account.key))))


async def survey(writer: BucketWriter, accounts: Sequence[Account]) -> list[list[Item | None]]:
    """The images of all shards of some buckets as they are now; one read unless there are shards."""
    firsts = await writer.look([account.key for account in accounts])
    others = [
        account.shard_key(shard_id)
        for account, first in zip(accounts, firsts, strict=True)
        for shard_id in range(1, shard_count(first))
    ]
    if others:
        await writer.look(others)
    return [known_images(writer, account) for account in accounts]


async def catch_up(writer: BucketWriter, accounts: Sequence[Account], needs: Mapping[str, int]) -> bool:
    """Give buckets the limits that are stored for them if they lack some needs under older ones.

    Whether any was written to. Limits that a caller brings along have to wait for one who takes something.
    """
    now_ms, behind = writer.world.now_ms(), list[Account]()
    for account in accounts:
        images, mine = known_images(writer, account), [name for name in needs if name in account.terms.rates]
        lacking = any(levels(account, images, name, now_ms).balance(now_ms) < needs[name] for name in mine)
        if lacking and account.terms.version is not None:
            there = [(shard_id, image) for shard_id, image in enumerate(images) if image is not None]
            shards = [shard_account(account, shard_id, image) for shard_id, image in there]
            behind += [shard for shard in shards if writer.is_behind(shard, now_ms)]
    for shard in behind:
        await writer.bring_up_to_date(shard)
    return bool(behind)


async def place(writer: BucketWriter, account: Account, names: Mapping[str, int]) -> Account:
    """A shard that holds all the named limits, chosen at random; it is split off if nobody has yet."""
    first = writer.image(account.key)
    if account.meter is Meter.NONE or first is None or shard_count(first) == 1:
        return account
    shard_id = writer.world.random.randrange(min(spread_of(first, name) for name in names))
    while shard_id:
        key = account.shard_key(shard_id)
        if not writer.knows(key):
            await writer.look([key])
        if writer.image(key) is not None or await _split_off(writer, account, shard_id, first):
            break
        shard_id = parent_of(shard_id)
    return shard_account(account, shard_id, writer.image(account.shard_key(shard_id)))


async def relieve(writer: BucketWriter, account: Account, shard: Account) -> Account:
    """Answer an overload: split the shard, or let the bucket have twice as many.

    Whether or not that succeeds, this demand goes on unhindered: the count of writes is only a gauge.
    """
    first, image = writer.image(account.key), writer.image(shard.key)
    if first is None or image is None:
        return account._replace(meter=Meter.COUNT)
    behind = shard.shard_id > 0 and shard_count(image) < shard_count(first)
    target = {n: spread_of(first, n) for n in bucket_limit_names(first)} if behind else doubled(first)
    split_id = shard.shard_id if behind else 0
    if target is not None:
        await _split(writer, account, split_id, target)
    return account._replace(meter=Meter.COUNT)


async def gather(
    writer: BucketWriter, account: Account, amounts: Mapping[str, int]
) -> list[tuple[Account, dict[str, int]]]:
    """What to take from which shards when one of them is not enough; nothing if all of them are not."""
    (images,) = await survey(writer, [account])
    now_ms = writer.world.now_ms()
    shards = [
        shard_account(account, shard_id, image)
        for shard_id, image in enumerate(images)
        if shard_id == 0 or image is not None
    ]
    balances = [
        {
            name: level(shard.terms, name, writer.image(shard.key), now_ms).balance(now_ms)
            for name in amounts
            if name in shard.terms.rates
        }
        for shard in shards
    ]
    parts = gathered(hard(account.terms, amounts), balances)
    if parts:  # the first shard holds every limit, and of a soft one any shard has enough
        parts[0] |= {name: amount for name, amount in amounts.items() if name in account.terms.soft}
    return [(shard, part) for shard, part in zip(shards, parts or (), strict=False) if part]


def doubled(first: Item) -> dict[str, int] | None:
    """How far each limit is spread when shard 0 is split once more; ``None`` if that would not help."""
    count = shard_count(first)
    # Who is at work is counted in one place, and so is what changes with the time of day.
    if count * 2 > SHARDS_MAX or PHASE in first or stored_terms(first).seats:
        return None
    target = {}
    for name in bucket_limit_names(first):
        if (
            first.get(kind_attributes(name).ac) == SESSION
        ):  # a window that begins in one place begins everywhere
            return None
        spread, largest = spread_of(first, name), number(first, shard_attributes(name).mx)
        splits = spread == count and splits_further(number(first, limit_attributes(name).cp), largest)
        target[name] = spread * 2 if splits else spread
    return target if any(spread == count * 2 for spread in target.values()) else None


def splitting(
    account: Account, shard_id: int, images: Sequence[Item | None], target: Mapping[str, int], now_ms: int
) -> list[Write]:
    """The transaction that splits a shard; any but shard 0 only as far as that one says there can be.

    ``images`` are those of shard 0 and of the shard itself, in the last place.
    """
    first, image = images[0], images[-1]
    if image is None or (shard_id and shard_count(first) <= shard_count(image)):
        return []
    if BOOKED in image or PHASE in image:  # what somebody waits for stays where it is, and what has phases
        return []
    writes: list[Write] = [*split(account, shard_id, image, target, now_ms)]
    if shard_id and first is not None:
        writes.append(unchanged(account, 0, first))
    return writes


def unchanged(account: Account, shard_id: int, image: Item) -> Update:
    """A part of a transaction that holds only if a shard is split as far as it was seen to be.

    It needs no other permission than the rest.
    """
    same = {"shard_count": image.get("shard_count")}
    return Update(account.shard_key(shard_id), set=same, when=(Exists(), *pinned(image, "shard_count")))


def split(
    account: Account, shard_id: int, image: Item, target: Mapping[str, int], now_ms: int
) -> tuple[Update, Put]:
    """The two writes of one transaction that move half of a shard's limits to a new shard.

    Like a rebase it credits every limit and moves the origin. What the one loses the other gets; if
    the shard has less than that by the time of the write, it is refused.
    """
    count, origin = shard_count(image), number(image, "rf")
    new_id, at_ms = shard_id + count, max(now_ms, origin)
    origin_after = moved_origin(origin, at_ms)
    when: list[Condition] = [Exists(), Equal("rf", origin), Equal("cv", number(image, "cv"))]
    when += [*pinned(image, "shard_count"), Equal(BOOKED_SINCE, None)]
    add: dict[str, int] = {}
    set_: dict[str, Value] = {"rf": origin_after, "shard_count": count * 2, "ttl": None}
    if "ttl" in image:
        set_[LAPSES] = True
    made = _new_shard(account, new_id, image, at_ms)
    for name in bucket_limit_names(image):
        names, rate = limit_attributes(name), stored_rate(image, name)
        assert rate is not None
        stored, moved, kept = number(image, names.tk), 0, rate
        gained, _, is_full, as_believed = believed(rate, names.tk, stored, origin, at_ms)
        when.append(as_believed)
        if spread_of(image, name) == count and target.get(name, 1) > count:
            kept_capacity, new_capacity = halves(rate.capacity_milli)
            kept_refill, new_refill = halves(rate.refill_amount_milli)
            kept = rate._replace(capacity_milli=kept_capacity, refill_amount_milli=kept_refill)
            given = rate._replace(capacity_milli=new_capacity, refill_amount_milli=new_refill)
            moved = min(rate.capacity_milli, stored + gained) * new_capacity // rate.capacity_milli
            set_[names.cp], set_[names.ra], set_[shard_attributes(name).sc] = (
                kept_capacity,
                kept_refill,
                count * 2,
            )
            made |= {names.tk: moved, **rate_attributes(name, given)}
            made |= {names.tc: 0, shard_attributes(name).sc: count * 2}
            made[shard_attributes(name).mx] = image.get(shard_attributes(name).mx)
        counted = gain(kept, origin_after, at_ms)
        if is_full:
            set_[names.tk] = kept.capacity_milli - counted
        else:
            add[names.tk] = gained - moved - counted
            if moved > 0:
                when.append(AtLeast(names.tk, moved - gained))
    if FORGIVEN in image:
        set_[FORGIVEN], made[FORGIVEN] = _spared(image, made, at_ms)
    names = limit_attributes(WCU)
    if names.tk in image:
        set_[names.tk] = WRITES.capacity_milli
    key = account.shard_key(shard_id)
    made = {name: value for name, value in made.items() if value is not None}
    return Update(key, add, set_, tuple(when)), Put(account.shard_key(new_id), made, (Absent(),))


def _spared(image: Item, made: Item, at_ms: int) -> tuple[Value, Value]:
    """What cuts have spared and each of two shards has to make up for: the halves of a limit, half of it."""
    kept: dict[str, Value] = {}
    given: dict[str, Value] = {}
    for name in bucket_limit_names(image):
        kept[name], given[name] = still_forgiven(image, name, at_ms), 0
        if limit_attributes(name).tk in made:
            kept[name], given[name] = halves(still_forgiven(image, name, at_ms))
    return {n: v for n, v in kept.items() if v} or None, {n: v for n, v in given.items() if v} or None


def _new_shard(account: Account, shard_id: int, image: Item, at_ms: int) -> dict[str, Value]:
    names, gauge = limit_attributes(WCU), rate_attributes(WCU, WRITES)
    made: dict[str, Value] = {name: image.get(name) for name in ("cv", "cascade", "parent_id", LIFE)}
    made |= {"entity_id": account.entity_id, "resource": account.resource, "rf": at_ms}
    made |= {"born": max(at_ms, number(image, BURIED) + 1), BURIED: image.get(BURIED)}
    made |= {"shard_count": shard_count(image) * 2, names.tk: WRITES.capacity_milli, names.tc: 0, **gauge}
    return made | bucket_entries(account.namespace_id, account.entity_id, account.resource, shard_id)


async def _split_off(writer: BucketWriter, account: Account, shard_id: int, first: Item) -> bool:
    """Make a missing shard by splitting those it is still a part of; false if it has to wait."""
    parent_id, birth = parent_of(shard_id), birth_count(shard_id)
    key = account.shard_key(parent_id)
    if not writer.knows(key):
        await writer.look([key])
    target = {name: spread_of(first, name) for name in bucket_limit_names(first)}
    while (image := writer.image(key)) is not None and shard_count(image) <= birth:
        if not await _split(writer, account, parent_id, target):
            return False
    return writer.image(account.shard_key(shard_id)) is not None


async def _split(writer: BucketWriter, account: Account, shard_id: int, target: Mapping[str, int]) -> bool:
    images = [writer.image(account.key), writer.image(account.shard_key(shard_id))]
    writes = splitting(account, shard_id, images, target, writer.world.now_ms())
    if not writes:
        return False
    try:
        outcomes = await write_together(writer.backend, writer, writes)
    except RateLimiterUnavailable as error:  # a split takes nothing, so nobody is in doubt about tokens
        raise RateLimiterUnavailable(str(error), misconfigured=error.misconfigured) from error
    await writer.look([write.key for write in writes])
    return outcomes[0].applied
