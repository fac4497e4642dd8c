"""The acquire: what happens between asking for tokens and holding them, for every store and every case.

A plan says whose buckets are charged. If the store answers at once, that is all: a new image for the old one.
Else a write goes out in the bucket's line, alone if one bucket is all there is; whatever it brings to light,
and whatever takes several buckets, is for ``take``. A plan that turns out to charge the wrong family is made
anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence

from ..exceptions import RateLimiterUnavailable, RateLimitExceeded
from ..repository_protocol import NOTHING
from ..schema import LIFE
from .bucket_view import has_family, is_split
from .demand import BucketDemand, Take, taken_from
from .door import swap_at_once
from .holding import Holding
from .parts import Part, asked_of, images_of, moved_by_now, took, uncharged
from .plan import Plan
from .posting import Order, Posting
from .refusal import remembered
from .remaining import exceeded
from .settle import answered_for, give_back
from .spent import spent
from .switches import Rethrown

PLANS_MAX = 8
"""How often an acquire is planned anew because its entity was given another family meanwhile."""


def acquire(holding: Holding, needs: Mapping[str, int]) -> Awaitable[None] | None:
    """Take millitokens by limit from every bucket of a family, or from none: at once, or when awaited."""
    buckets, is_first = holding._buckets, not holding._accounts
    writer, plan = buckets.writer, buckets.plans.get((holding._entity_id, holding._resource))
    if plan is None or plan.given != holding._given or not holding._speculative:
        plan = None
    elif is_first:
        holding._policy = holding._on_unavailable or plan.on_unavailable
    if plan is not None and plan.is_swappable and is_first and needs and writer.swap is not None:
        ticks_ms, cache = writer.world.ticks_ms(), plan.cache
        fresh = ticks_ms < plan.expires_ms and cache.withdrawals == plan.withdrawals
        if fresh or plan.is_fresh(ticks_ms):
            now_ms, image, terms = writer.world.now_ms(), writer.images.get(plan.key), plan.accounts[0].terms
            if image is not None and (image is plan.image or plan.suits(image, now_ms)):
                changed, ttl = spent(terms, needs, image, now_ms), image.get("ttl")
                lives = ttl is None or ttl * 1000 >= now_ms + terms.lasting_ms  # type: ignore[operator]
                if changed is not None and lives:
                    try:
                        new = swap_at_once(
                            writer, writer.swap, plan.key, image, changed, cache.changes, now_ms
                        )
                    except BaseException as error:
                        # Whatever comes out of a signal handler comes before or after it was done.
                        if not isinstance(error, RateLimiterUnavailable) or error.ambiguous:
                            writer.lose(Order(plan.accounts[0], Posting(needs)), error)
                        raise
                    if new is not None:  # from here on nothing is called, after which a handler could raise
                        holding._accounts, holding._taken_alone = plan.accounts, needs
                        holding._seen = now_ms, plan.accounts, ((new,),)
                        plan.image = new
                        cache.hits += plan.records
                        if terms.soft and exceeded(holding._seen, needs):
                            writer.soft_exceeded += 1
                        return None
    parts = ((holding, needs),)
    return writer.colour.keep(acquire_in_line(holding, parts, [plan], is_first=is_first), holding._lost)


async def acquire_in_line(
    whole: Holding, parts: Sequence[Part], known: Sequence[Plan | None], *, is_first: bool
) -> None:
    """Take by writes; by other plans if the replies tell that these charged the wrong families.

    ``whole`` answers for what is taken. It is the one part that there is, unless several are one acquire.
    """
    buckets, writer = whole._buckets, whole._buckets.writer
    whole._wait_ms = wait_ms = whole._wait_ms if is_first else None
    whole._latest_ms = None if wait_ms is None else writer.world.now_ms() + wait_ms
    if writer.backend.changes is not None or writer.backend.news is not None:
        await buckets.notice_changes()
    for attempt in range(1, PLANS_MAX + 1):
        plans: list[Plan] = []
        for (holding, needs), plan in zip(parts, known, strict=True):
            if attempt > 1 or plan is None or not plan.stands(writer, needs, writer.world.ticks_ms()):
                place = holding._entity_id, holding._resource
                plan = await buckets.plan(*place, holding._given, needs)  # noqa: PLW2901 - in its place
            if is_first:
                holding._accounts = plan.accounts
                holding._policy = holding._on_unavailable or plan.on_unavailable
            plans.append(plan)
        (holding, needs), plan = parts[0], plans[0]
        image = writer.images.get(plan.key)
        is_lone = holding is whole and len(plan.accounts) == 1 and bool(needs) and plan.is_counted
        is_lone = is_lone and plan.names.issuperset(needs)
        demands = [BucketDemand(plan.accounts[0], needs)] if is_lone else asked_of(parts, plans)
        if not demands:
            whole._take_in(uncharged(parts, plans), answered_for(writer))
            return
        seen = {} if is_lone else images_of(writer, plans)
        try:
            if writer.refusals and wait_ms is None and (refusal := remembered(writer, demands)):
                raise refusal
            is_whole = is_lone and image is not None and image.get("shard_count", 1) == 1
            is_whole = is_whole and (not plan.seats or plan.seats.isdisjoint(needs))
            if is_whole and is_first and whole._speculative and attempt == 1 and wait_ms is None:
                if await _took_alone(whole, demands[0], plan):
                    return
            elif await took(whole, parts, plans, demands):
                return
        except RateLimitExceeded as refusal:
            refusal.entity_id = holding._entity_id
            if attempt == PLANS_MAX or not await moved_by_now(whole, plans, refusal, seen):
                raise
        except Rethrown:
            continue
    raise RateLimiterUnavailable(f"the family of {whole._entity_id!r} changed {PLANS_MAX} times meanwhile")


async def _took_alone(holding: Holding, demand: BucketDemand, plan: Plan) -> bool:
    """Take from the one bucket there is by one write; false, and nothing taken, if there is more to it."""
    writer, (account, needs) = holding._buckets.writer, demand
    order = Order(account, Posting(needs))
    outcome, interruption = await writer.post_one(order)
    image = None if outcome is None else outcome.item
    if outcome is not None and outcome.applied:
        holding._taken_alone = needs  # before anything is called, after which a signal handler could raise
        if interruption is None and image is not None and has_family(image, account):
            if LIFE in image or account.life is not None:
                later = (Take(holding._accounts, needs, (taken_from(demand, outcome),)),)
                holding._later, holding._taken_alone = later, NOTHING
            holding._seen = writer.world.now_ms(), plan.accounts, ((image,),)
            if account.terms.soft and exceeded(holding._seen, needs):
                writer.soft_exceeded += 1
            return True
        taken = answered_for(writer, [taken_from(demand, outcome)])
        holding._taken_alone = NOTHING
        await give_back(writer, taken)
    if interruption is not None:
        raise interruption
    if outcome is not None and outcome.failure is not None:
        writer.count_unsure([order], [outcome])
        raise outcome.failure
    if outcome is not None and outcome.applied:
        await holding._buckets.notice_families([account])
    elif image is not None and plan.suits(image, writer.world.now_ms()) and not is_split(account, image):
        return await took(holding, ((holding, needs),), (plan,), [demand], account)
    else:
        writer.reconsider(account.key)  # there is more to it than tokens
    return False
