"""Buckets: whose they are, what they hold, and the plan of an acquire.

``plan`` turns names and amounts into demands. Whatever it does not know yet, config, entity and
bucket image, it reads in one trip; a parent that has to be learned costs a second one. When the
bucket's last image shows that this process is behind, it reads again before it charges anybody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import overload

from ..engine.account import Account, Meter, Terms
from ..engine.bucket_view import as_found, has_family, is_outdated, life_of, shard_count
from ..engine.demand import BucketDemand, demands_on, order_of, seated
from ..engine.plan import Plan
from ..engine.posting import Posting
from ..engine.split import shard_keys
from ..engine.switches import Rethrown, bypassed, obeyed, off
from ..exceptions import NoLimitsError, RateLimiterUnavailable, RateLimitExceeded
from ..models import BucketState, Limit, OnUnavailable, check_count, check_limits
from ..models.checks import needs_milli
from ..models.explanation import Explanation
from ..naming import validate_entity_id, validate_limit_name, validate_resource
from ..repository_protocol import Backend, Equal, Item, Key, Outcome, Update, Write
from ..schema import bucket_address, bucket_key, bucket_states, entity_key, is_deleted, nsid_key, number
from .belongings import bucket_keys
from .connection import Connection
from .entities import copy_family, family_of
from .explaining import explanation
from .resolution import LASTING, Resolved, level_keys, resolve
from .scope import Scope, check_alive

SHARD_ID_MAX = 999_999_999
"""The largest that a key can say."""


class BucketRecords:
    def __init__(self, connection: Connection, namespace_name: str, namespace_id: str) -> None:
        self._scope = Scope(connection, namespace_name, namespace_id)
        self._connection, self._world = connection, connection.world
        self._namespace_name, self._namespace_id = namespace_name, namespace_id
        self.writer = connection.writer
        """Through whom all writes to buckets go."""
        self.plans: OrderedDict[tuple[str, str], Plan] = OrderedDict()
        """Those that may still stand, by entity and resource."""

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
        """The accounts of an acquire: the entity's and, when it cascades, its parent's.

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
        return self._keep_plan(accounts, policy, limits)

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
        while asked is not None and len(accounts) < 2:
            known = [
                None if e is None else e.item for e in map(cache.last_known, self._records(asked, resource))
            ]
            accounts.append(self._account_of(asked, resource, None, known)[0])
            asked = accounts[-1].parent_id if accounts[-1].cascade else None
        obeyed(accounts)

    async def _family(
        self, entity_id: str, resource: str, limits: Sequence[Limit] | None, *, fresh: bool = False
    ) -> tuple[list[Account], Resolved]:
        """The entity's account and, when it cascades, its parent's, by what is remembered or what is stored.

        Limits that a caller brings along are the entity's own; its parent goes by what is stored for it.
        """
        find = self._fresh if fresh else self._current
        account, resolved = await find(entity_id, resource, limits)
        if not account.cascade or account.parent_id in (None, entity_id):
            return [account], resolved
        parent, _ = await find(account.parent_id, resource, None)
        return [account, parent], resolved

    def _is_missing(self, entity_id: str, resource: str) -> bool:
        """Whether a bucket was seen to be missing, on a store that would not tell of changes since."""
        writer, key = self.writer, bucket_key(self._namespace_id, entity_id, resource)
        return not self._connection.tells_changes and writer.knows(key) and writer.image(key) is None

    def _keep_plan(
        self, accounts: tuple[Account, ...], policy: OnUnavailable, limits: Sequence[Limit] | None
    ) -> Plan:
        """A plan, kept for as long as the records that it was made from are fresh."""
        entity_id, resource = accounts[0].entity_id, accounts[0].resource
        records = [key for account in accounts for key in self._records(account.entity_id, resource)]
        cache = self._connection.cache
        entries = [entry for key in records if (entry := cache.last_known(key)) is not None]
        plan = Plan(accounts, policy, limits, cache, entries)
        if len(entries) == len(records):
            self.plans[entity_id, resource] = plan
            if len(self.plans) > self._connection.options.remembered_max:
                with suppress(KeyError):  # another thread was faster
                    self.plans.popitem(last=False)
        return plan

    def policy_when_down(self, entity_id: str, resource: str) -> OnUnavailable:
        """``on_unavailable`` by what this process remembers, for when nothing can be read."""
        known = [self._connection.cache.last_known(k) for k in self._levels(entity_id, resource)]
        policy = resolve([None if entry is None else entry.item for entry in known]).on_unavailable
        return policy or self._connection.options.on_unavailable

    async def notice_changes(self) -> None:
        """See whether somebody else changed a record, where the store can tell; every acquire begins so."""
        await self._scope.notice_changes()

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
        """
        validate_entity_id(entity_id)
        validate_resource(resource)
        await self.notice_changes()
        accounts, _ = await self._family(entity_id, resource, None, fresh=True)
        return await explanation(self._scope, accounts)

    async def speculative_consume(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
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

        If that is older than what the bucket had seen before the read set out, counts were lost: a
        table was restored, or the stamps of a deleted entity have expired. What is stored is right.
        """
        seen = self._connection.writer.image(bucket_key(self._namespace_id, entity_id, resource))
        account, resolved = await self._account(entity_id, resource, limits, fresh=True)
        if seen is not None and is_outdated(account.terms, seen):
            lost = Equal("cv", number(seen, "cv"))
            shards = [account.key]  # which is there even if its index entry is not
            async for keys in bucket_keys(self._scope, entity_id, resource):
                shards += [key for key in keys if key != account.key]
            await self._put_right([Update(k, set={"cv": resolved.version}, when=(lost,)) for k in shards])
            await self._connection.writer.look(shards)
        return account, resolved

    def moved(self, account: Account, shards: Iterable[Account] = ()) -> list[Account]:
        """The parts of a bucket that say that its entity has another family than was charged."""
        return [a for a in (account, *shards) if a.entity_id == account.entity_id and self.is_moved(a)]

    def is_moved(self, account: Account) -> bool:
        """Whether the bucket's last image names another family than the one the account was charged for."""
        image = self._connection.writer.image(account.key)
        return image is not None and not is_deleted(image) and not has_family(image, account)

    async def is_moved_by_now(
        self, accounts: Sequence[Account], refusal: RateLimitExceeded, seen: Item | None
    ) -> bool:
        """Whether a refusal rests on a family that the entity does not have any more.

        Its bucket says so if there is a newer image than the one ``seen`` before. Where only its parent's was
        asked, on a store that does not tell of changes, the entity's record is read. What either said is
        believed for as long as a refusal.
        """
        first, writer = accounts[0], self.writer
        keys = shard_keys(first, shard_count(writer.image(first.key)))
        if moved := self.moved(first, [first._replace(key=key) for key in keys[1:]]):
            await self.notice_families(moved)
            return True
        blamed = {(status.entity_id, status.resource) for status in refusal.violations}
        own, *others = [(account.entity_id, account.resource) in blamed for account in accounts]
        if own or not any(others) or self._connection.tells_changes:
            return False
        if writer.image(first.key) is not seen:
            writer.note_family(first.key)
        if writer.family_seen_lately(first.key):
            return False
        owner = entity_key(self._namespace_id, first.entity_id)
        with suppress(RateLimiterUnavailable):  # then the refusal stands
            (item,) = await self._connection.fetch([owner], fresh=True)
            writer.note_family(first.key)
            return family_of(item) != (first.parent_id, first.cascade)
        return False

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
        key = entity_key(self._namespace_id, account.entity_id)
        (item,) = await self._connection.fetch([key], fresh=True)
        family = family_of(item)
        if family != family_of(image):
            await self._put_right([copy_family(account.key, *family)])

    async def _put_right(self, writes: Sequence[Write]) -> None:
        """Repair buckets before anything is taken: if it gets lost, nobody is in doubt about tokens."""
        try:
            await self._scope.must_write(writes)
        except RateLimiterUnavailable as error:
            raise RateLimiterUnavailable(str(error), misconfigured=error.misconfigured) from error

    async def _account(
        self,
        entity_id: str,
        resource: str,
        limits: Sequence[Limit] | None,
        *,
        fresh: bool = False,
    ) -> tuple[Account, Resolved]:
        key = bucket_key(self._namespace_id, entity_id, resource)
        keys = self._records(entity_id, resource)
        known = await self._connection.fetch(keys, [key], fresh=fresh)
        check_alive(self._namespace_name, known[0])
        return self._account_of(entity_id, resource, limits, known)

    def _account_of(
        self,
        entity_id: str,
        resource: str,
        limits: Sequence[Limit] | None,
        known: Sequence[Item | None],
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
        account = Account(
            key,
            self._namespace_id,
            entity_id,
            resource,
            terms,
            *family_of(entity),
            meter,
            life=life,
            switch=resolved.switch,
        )
        return account, resolved


def check_shard(shard_id: int) -> int:
    return check_count("shard_id", shard_id, SHARD_ID_MAX, 0)


def _has_limits(accounts: Sequence[Account]) -> bool:
    return any(account.terms.rates for account in accounts)


def _knows_all(accounts: Sequence[Account], names: Collection[str]) -> bool:
    """Whether somebody of a family has each of these limits."""
    return all(any(name in account.terms.rates for account in accounts) for name in names)
