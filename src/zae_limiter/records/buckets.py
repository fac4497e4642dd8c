"""Buckets: whose they are, what they hold, and the plan of an acquire.

``plan`` turns names and amounts into demands. Whatever it does not know yet, config, entity and
bucket image, it reads in one trip; each ancestor that has to be learned costs another one, and a family that
was charged before is read at once. When the last image of a bucket shows that this process is behind, it
reads again before it charges anybody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any, overload

from ..engine.account import Account, Meter, Terms
from ..engine.bucket_view import as_found, has_family, is_outdated, life_of, shard_count
from ..engine.demand import BucketDemand, demands_on, order_of, seated
from ..engine.group_commit import BucketWriter
from ..engine.plan import Plan
from ..engine.posting import Posting
from ..engine.seen_changes import LOST, has_missed, together
from ..engine.split import shard_keys
from ..engine.switches import Rethrown, bypassed, obeyed, off
from ..exceptions import DamagedRecordError, NoLimitsError, RateLimiterUnavailable, RateLimitExceeded
from ..models import GENERATIONS_MAX, BucketState, Limit, OnUnavailable, check_count, check_limits
from ..models.checks import needs_milli
from ..models.explanation import Explanation
from ..naming import validate_entity_id, validate_limit_name, validate_resource
from ..repository_protocol import Backend, Equal, Item, Key, Outcome, Update, Write
from ..schema import bucket_address, bucket_key, entity_key, is_deleted, nsid_key, number
from .ancestry import chain_text
from .belongings import bucket_keys
from .connection import Connection
from .explaining import explanation
from .families import copy_family
from .items import bucket_states
from .resolution import LASTING, Resolved, cascade_policy, family_of, level_keys, resolve
from .scope import Scope, check_alive

SHARD_ID_MAX = 999_999_999
"""The largest that a key can say."""


class BucketRecords:
    def __init__(self, connection: Connection, namespace_name: str, namespace_id: str) -> None:
        self._scope = Scope(connection, namespace_name, namespace_id)
        self._connection, self._world = connection, connection.world
        self._namespace_name, self._namespace_id = namespace_name, namespace_id
        self.writer: BucketWriter = connection.writer
        """Through whom all writes to buckets go."""
        self.plans: OrderedDict[tuple[str, str], Plan] = OrderedDict()
        """Those that may still stand, by entity and resource."""
        self.observer: Any = None
        """Who counts what acquires come to, once somebody looks."""

    @property
    def _backend(self) -> Backend:
        return self._scope.backend

    @property
    def stack_name(self) -> str | None:
        """The stack around the table, which has the table's name."""
        return self._scope.table_name

    async def plan(
        self, entity_id: str, resource: str, limits: Sequence[Limit] | None, needed: Collection[str] = ()
    ) -> Plan:
        """The accounts of an acquire: the entity's and, as far as each cascades, those of its ancestors.

        A limit that is ``needed`` and not remembered may be new, so it is looked for before it is missed.
        """
        self._scope.check_open()
        plan = self.plans.get((entity_id, resource))
        known = plan is not None and plan.given == limits
        if plan is not None and known and plan.stands(self.writer, needed, self._world.ticks_ms()):
            return plan
        # A bucket that is about to be made is not made from what may have been deleted meanwhile.
        fresh = self._is_missing(entity_id, resource)
        accounts, resolved = await self._charged(entity_id, resource, limits, fresh=fresh)
        if not _has_limits(accounts) or not _knows_all(accounts, needed):
            accounts, resolved = await self._charged(entity_id, resource, limits, fresh=True)
        if not _has_limits(accounts):
            raise NoLimitsError(entity_id, resource)
        policy = resolved.on_unavailable or self._connection.options.on_unavailable
        return self._keep_plan(accounts, policy, limits, resolved.records)

    async def _charged(
        self, entity_id: str, resource: str, limits: Sequence[Limit] | None, *, fresh: bool
    ) -> tuple[tuple[Account, ...], Resolved]:
        """The family as its switches let it be charged.

        Where nobody tells of changes, that it is off is believed for as long as a refusal, and read then.
        """
        tells, key = self._connection.tells_changes, bucket_key(self._namespace_id, entity_id, resource)
        if fresh and self.writer.refused_lately(key):
            obeyed((await self._family(entity_id, resource, limits))[0])
        accounts, resolved = await self._family(entity_id, resource, limits, fresh=fresh)
        if not tells and off(accounts) is not None and not self.writer.refused_lately(key):
            with suppress(RateLimiterUnavailable):  # then it is off as far as anybody knows
                if not fresh:
                    accounts, resolved = await self._family(entity_id, resource, limits, fresh=True)
                self.writer.note_refusal(key)
        return obeyed(accounts), resolved

    def check_switches_when_down(self, entity_id: str, resource: str) -> None:
        """Raise if somebody is switched off by what this process remembers, for when nothing can be read."""
        cache, accounts = self._connection.cache, list[Account]()
        asked: str | None = entity_id
        while asked is not None and asked not in [account.entity_id for account in accounts]:
            known = [
                None if e is None else e.item for e in map(cache.last_known, self._records(asked, resource))
            ]
            accounts.append(self._account_of(asked, resource, None, known)[0])
            asked = accounts[-1].parent_id if accounts[-1].cascade else None
        obeyed(accounts)

    async def _family(
        self, entity_id: str, resource: str, limits: Sequence[Limit] | None, *, fresh: bool = False
    ) -> tuple[list[Account], Resolved]:
        """The entity's account and, as far as each cascades, its ancestors', remembered or as stored.

        Limits that a caller brings along are the entity's own; the others go by what is stored for them. A
        circle that is stored is not followed twice.
        """
        find = self._fresh if fresh else self._current
        if not fresh:
            await self._read_ahead(entity_id, resource)
        account, resolved = await find(entity_id, resource, limits)
        accounts = {entity_id: account}
        while account.cascade and account.parent_id is not None and account.parent_id not in accounts:
            if len(accounts) == GENERATIONS_MAX:
                chain = chain_text([*accounts, account.parent_id])
                told = f"it cascades through more than {GENERATIONS_MAX} generations, {chain}"
                raise DamagedRecordError(f"family of {entity_id!r}", f"{told}; give one another parent")
            account, above = await find(account.parent_id, resource, None)
            accounts[account.entity_id] = account
            resolved = resolved._replace(records=(*resolved.records, *above.records))
        return list(accounts.values()), resolved

    async def _read_ahead(self, entity_id: str, resource: str) -> None:
        """Remember the records of the family that was charged last in one trip, for it is likely the same."""
        plan, options = self.plans.get((entity_id, resource)), self._connection.options
        if plan is not None and len(plan.accounts) > 1 and options.config_cache_ttl_seconds:
            records = [key for one in plan.accounts for key in self._records(one.entity_id, resource)]
            await self._connection.fetch(list(dict.fromkeys(records)), [one.key for one in plan.accounts])

    def _is_missing(self, entity_id: str, resource: str) -> bool:
        """Whether a bucket was seen to be missing, on a store that would not tell of changes since."""
        writer, key = self.writer, bucket_key(self._namespace_id, entity_id, resource)
        return not self._connection.tells_changes and writer.knows(key) and writer.image(key) is None

    def _keep_plan(
        self,
        accounts: tuple[Account, ...],
        policy: OnUnavailable,
        limits: Sequence[Limit] | None,
        made_of: Sequence[Item | None],
    ) -> Plan:
        """A plan, kept for as long as the records that it was made from are fresh.

        If others are remembered by now, somebody has learnt of a change meanwhile.
        """
        entity_id, resource = accounts[0].entity_id, accounts[0].resource
        records = [key for account in accounts for key in self._records(account.entity_id, resource)]
        cache = self._connection.cache
        entries = [entry for key in records if (entry := cache.last_known(key)) is not None]
        plan = Plan(accounts, policy, limits, cache, entries)
        if [entry.item for entry in entries] == [*made_of]:
            self.plans[entity_id, resource] = plan
            if len(self.plans) > self._connection.options.remembered_max:
                with suppress(KeyError):  # another thread was faster
                    self.plans.popitem(last=False)
        return plan

    def policy_when_down(self, entity_id: str, resource: str) -> OnUnavailable:
        """``on_unavailable`` by what this process remembers, for when nothing can be read."""
        policy = resolve(self._last_known_levels(entity_id, resource)).on_unavailable
        return policy or self._connection.options.on_unavailable

    async def notice_changes(self) -> None:
        """See whether somebody else changed a record, where the store can tell; every acquire begins so."""
        await self._scope.notice_changes()

    def _last_known_levels(self, entity_id: str, resource: str) -> list[Item | None]:
        known = [self._connection.cache.last_known(k) for k in self._levels(entity_id, resource)]
        return [None if entry is None else entry.item for entry in known]

    def _levels(self, entity_id: str, resource: str) -> tuple[Key, ...]:
        return level_keys(self._namespace_id, entity_id, resource)

    def _records(self, entity_id: str, resource: str) -> tuple[Key, ...]:
        """All that an account is worked out from."""
        owner = entity_key(self._namespace_id, entity_id)
        return (nsid_key(self._namespace_id), owner, *self._levels(entity_id, resource))

    async def renewed(self, account: Account) -> Account:
        """The account under the configuration as it is stored now; raises if it has another switch."""
        renewed, _ = await self._fresh(account.entity_id, account.resource, None)
        if renewed.switch != account.switch:
            raise Rethrown
        if account.terms.version is None:  # limits that were brought along stay
            return account._replace(terms=replace(account.terms, seen=renewed.terms.version))
        return bypassed(renewed, {account.bypass})

    @overload
    async def get_bucket(self, entity_id: str, resource: str) -> list[BucketState]: ...
    @overload
    async def get_bucket(
        self, entity_id: str, resource: str, limit_name: str, shard_id: int = 0
    ) -> BucketState | None: ...
    async def get_bucket(
        self, entity_id: str, resource: str, limit_name: str | None = None, shard_id: int = 0
    ) -> list[BucketState] | BucketState | None:
        """The state of one limit of a bucket; ``None`` if there is none.

        Without a limit, one state for each of the bucket's; empty if it was never used.
        """
        place = validate_entity_id(entity_id), validate_resource(resource), check_shard(shard_id)
        key = bucket_key(self._namespace_id, *place)
        (image,) = await self._connection.writer.look([key])
        now_ms = self._connection.world.now_ms()
        states = [] if image is None else bucket_states(as_found(image, now_ms), bucket_address(key))
        if limit_name is None:
            return states
        validate_limit_name(limit_name)
        return next((state for state in states if state.limit_name == limit_name), None)

    async def explain(self, entity_id: str, resource: str) -> Explanation:
        """Which limits an acquire would go by, at which level, why, and which of them binds now.

        It is read from the store, not from memory. Nothing is consumed.

        >>> (await limiter.explain("key-1", "gpt-4")).binding
        {'rpm': 'key-1', 'tpm': 'key-1'}
        """
        validate_entity_id(entity_id)
        validate_resource(resource)
        await self.notice_changes()
        accounts, _ = await self._family(entity_id, resource, None, fresh=True)
        return await explanation(self._scope, accounts)

    async def speculative_consume(
        self, entity_id: str, resource: str, consume: Mapping[str, int], limits: Sequence[Limit] | None = None
    ) -> Outcome:
        """Take amounts from one bucket with one conditional write, and say what became of it.

        Nothing is tried again, nothing is charged to a parent, and what was taken is the caller's to
        give back: ``RateLimiter.acquire`` does all that.
        """
        given = None if limits is None else check_limits(limits)
        validate_entity_id(entity_id)
        validate_resource(resource)
        needs = needs_milli(consume)
        await self.notice_changes()
        account = (await self.plan(entity_id, resource, given, needs)).accounts[0]
        demand = next(iter(demands_on([account], needs)), BucketDemand(account, needs))
        order = order_of(seated(demand, self._world.now_ms()), Posting())
        (outcome,), interruption = await self.writer.post([order])
        if interruption is not None:
            raise interruption
        return outcome

    async def _current(
        self, entity_id: str, resource: str, limits: Sequence[Limit] | None
    ) -> tuple[Account, Resolved]:
        """The account, by what is remembered unless the bucket's last image proves that outdated."""
        account, resolved = await self._account(entity_id, resource, limits)
        image = self._connection.writer.image(account.key)
        if image is None:
            return account, resolved
        if is_deleted(image):  # which says that nothing remembered of the entity is to be believed
            return await self._fresh(entity_id, resource, limits)
        if family_of(image) != (account.parent_id, account.cascade):
            await self._notice_family(account)
            account, resolved = await self._account(entity_id, resource, limits)
        if is_outdated(account.terms, image):
            return await self._fresh(entity_id, resource, limits)
        return account, resolved

    async def _fresh(
        self, entity_id: str, resource: str, limits: Sequence[Limit] | None
    ) -> tuple[Account, Resolved]:
        """The account by what is stored now.

        If that is older than what the bucket had seen before the read set out, counts were lost: a store
        has failed over, a table was restored, or the stamps of a deleted entity have expired. What is stored
        is right, and the bucket says so to whoever remembers what was lost.
        """
        seen = self._connection.writer.image(bucket_key(self._namespace_id, entity_id, resource))
        account, resolved = await self._account(entity_id, resource, limits, fresh=True)
        if seen is not None and is_outdated(account.terms, seen):
            had_seen = number(seen, "cv")
            as_seen = Equal("cv", had_seen)
            had_seen = together(had_seen, number(seen, LOST)) if LOST in seen else had_seen
            lost = had_seen if has_missed(resolved.version, had_seen) else None
            right = {"cv": resolved.version, LOST: lost}
            shards = [account.key]  # which is there even if its index entry is not
            async for keys in bucket_keys(self._scope, entity_id, resource):
                shards += [key for key in keys if key != account.key]
            await self._put_right([Update(k, set=right, when=(as_seen,)) for k in shards])
            await self._connection.writer.look(shards)
        return account, resolved

    def moved(self, accounts: Sequence[Account], shards: Iterable[Account] = ()) -> list[Account]:
        """The parts of buckets that say that an entity has another family than was charged."""
        whole = {(account.entity_id, account.resource): account for account in accounts}
        ours = [(whole.get((a.entity_id, a.resource)), a.key) for a in (*accounts, *shards)]
        parts = {key: account for account, key in ours if account is not None}
        return [account._replace(key=key) for key, account in parts.items() if self.is_moved(account, key)]

    def is_moved(self, account: Account, key: Key) -> bool:
        """Whether a shard's last image names another family than the one the account was charged for."""
        image = self._connection.writer.image(key)
        return image is not None and not is_deleted(image) and not has_family(image, account)

    async def is_moved_by_now(
        self, accounts: Sequence[Account], refusal: RateLimitExceeded, seen: Mapping[Key, Item | None]
    ) -> bool:
        """Whether a refusal rests on a family that the entity does not have any more.

        Their buckets say so if there are newer images than those ``seen`` before. On a store that does not
        tell of changes, all those are looked at that lead to the first who refused: their buckets, or the
        records of who has none. What these said is believed for as long as a refusal.
        """
        writer = self.writer
        counts = [shard_count(writer.image(account.key)) for account in accounts]
        shards = [
            one._replace(key=key)
            for one, n in zip(accounts, counts, strict=True)
            for key in shard_keys(one, n)[1:]
        ]
        if moved := self.moved(accounts, shards):
            await self.notice_families(moved)
            return True
        blamed = {(status.entity_id, status.resource) for status in refusal.violations}
        below = list(takewhile(lambda one: (one.entity_id, one.resource) not in blamed, accounts))
        if len(below) == len(accounts) or self._connection.tells_changes:
            return False
        for account in below:
            if (image := writer.image(account.key)) is not seen.get(account.key):
                if is_deleted(image):  # it says of no family, and whose it was may have none any more
                    return True
                writer.note_family(account.key)
        if unsure := [account for account in below if not writer.family_seen_lately(account.key)]:
            with suppress(RateLimiterUnavailable):  # then the refusal stands
                return await self._lead_elsewhere(unsure)
        return False

    async def _lead_elsewhere(self, accounts: Sequence[Account]) -> bool:
        """Whether one of these has another family by now, read in one trip."""
        writer = self.writer
        used = [one for one in accounts if writer.image(one.key) is not None]
        unused = [one for one in accounts if one not in used]
        owners = [entity_key(self._namespace_id, one.entity_id) for one in unused]
        items = await self._connection.fetch(owners, [one.key for one in used], fresh=True)
        for account in accounts:
            writer.note_family(account.key)
        moved = self.moved(used)
        await self.notice_families(moved)
        if moved or any((image := writer.image(one.key)) is None or is_deleted(image) for one in used):
            return True
        levels = [self._last_known_levels(one.entity_id, one.resource) for one in unused]
        found = [family_of(item, cascade_policy(at)[0]) for item, at in zip(items, levels, strict=True)]
        return found != [(one.parent_id, one.cascade) for one in unused]

    async def notice_families(self, moved: Iterable[Account]) -> None:
        """Learn, before another plan, what some parts of a bucket said."""
        for account in moved:
            await self._notice_family(account)

    async def _notice_family(self, account: Account) -> None:
        """Compare the family an account was charged for with the copy in its bucket's last image.

        If they differ either this process is behind, then it reads the record anew, or the bucket
        is, because somebody changed the record and died; then it is put right.
        """
        image = self._connection.writer.image(account.key)
        if image is None or is_deleted(image) or family_of(image) == (account.parent_id, account.cascade):
            return
        records = self._records(account.entity_id, account.resource)
        _, item, *levels = await self._connection.fetch(records, fresh=True)
        family = family_of(item, cascade_policy(levels)[0])
        if family != family_of(image):
            await self._put_right([copy_family(account.key, *family)])

    async def _put_right(self, writes: Sequence[Write]) -> None:
        """Repair buckets before anything is taken: if it gets lost, nobody is in doubt about tokens."""
        try:
            await self._scope.must_write(writes)
        except RateLimiterUnavailable as error:
            raise RateLimiterUnavailable(str(error), misconfigured=error.misconfigured) from error

    async def _account(
        self, entity_id: str, resource: str, limits: Sequence[Limit] | None, *, fresh: bool = False
    ) -> tuple[Account, Resolved]:
        key = bucket_key(self._namespace_id, entity_id, resource)
        keys = self._records(entity_id, resource)
        known = await self._connection.fetch(keys, [key], fresh=fresh)
        check_alive(self._namespace_name, known[0])
        return self._account_of(entity_id, resource, limits, known)

    def _account_of(
        self, entity_id: str, resource: str, limits: Sequence[Limit] | None, known: Sequence[Item | None]
    ) -> tuple[Account, Resolved]:
        """The account that some records make: those of ``_records``, in that order."""
        key, (_, entity, *levels) = bucket_key(self._namespace_id, entity_id, resource), known
        resolved, ttl_fills = resolve(levels), self._connection.options.bucket_ttl_multiplier
        if limits is not None:
            terms = replace(Terms.of(limits, None, ttl_fills), seen=resolved.version)
        else:
            fills = 0 if resolved.source in LASTING else ttl_fills
            terms = Terms.of(resolved.limits or (), resolved.version, fills)
        # Who is at work is counted in one item, however often that is written.
        meter = Meter.COUNT if terms.seats else Meter.LIMIT
        meter = meter if self._backend.capabilities.hot_partitions else Meter.NONE
        life = life_of(self.writer.image(key))
        family = family_of(entity, resolved.cascade)
        place = key, self._namespace_id, entity_id, resource
        account = Account(*place, terms, *family, meter, life=life, switch=resolved.switch)
        return account, resolved._replace(records=tuple(known))


def check_shard(shard_id: int) -> int:
    return check_count("shard_id", shard_id, SHARD_ID_MAX, 0)


def _has_limits(accounts: Sequence[Account]) -> bool:
    return any(account.terms.rates for account in accounts)


def _knows_all(accounts: Sequence[Account], names: Collection[str]) -> bool:
    """Whether somebody of a family has each of these limits."""
    return all(any(name in account.terms.rates for account in accounts) for name in names)
