"""Buckets: whose they are, what they hold, and the plan of an acquire.

``plan`` turns names and amounts into demands. Whatever it does not know yet, config, entity and
bucket image, it reads in one trip; a parent that has to be learned costs a second one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..acquire import Demand
from ..exceptions import ValidationError
from ..models import BucketState, Limit, OnUnavailable
from ..posting import Account, Terms
from ..repository_protocol import Key
from ..schema import bucket_key, bucket_states, entity_key, number
from ..teller import Teller
from .entities import EntityRecords, family_of
from .resolution import LASTING, Resolved, level_keys, resolve


class Plan(NamedTuple):
    """Whom an acquire charges, the entity first, and what to do if the store does not answer."""

    accounts: tuple[Account, ...]
    on_unavailable: OnUnavailable

    def demands(self, amounts_milli: Mapping[str, int]) -> list[Demand]:
        """What each account is asked for: the entity for all of it, a parent for the limits it has."""
        return demands_on(self.accounts, amounts_milli)


class BucketRecords(EntityRecords):
    @property
    def teller(self) -> Teller:
        """Through whom all writes to buckets go."""
        return self._connection.teller

    async def plan(self, entity_id: str, resource: str, limits: Sequence[Limit] | None) -> Plan:
        """The accounts of an acquire: the entity's and, when it cascades, its parent's."""
        account, resolved = await self._account(entity_id, resource, limits)
        accounts = [account]
        if account.cascade and account.parent_id is not None:
            parent, _ = await self._account(account.parent_id, resource, limits, required=False)
            accounts.append(parent)
        return Plan(tuple(accounts), resolved.on_unavailable or self._connection.options.on_unavailable)

    def policy_when_down(self, entity_id: str, resource: str) -> OnUnavailable:
        """``on_unavailable`` by what this process remembers, for when nothing can be read."""
        known = [self._connection.cache.last_known(k) for k in self._levels(entity_id, resource)]
        policy = resolve([None if entry is None else entry.item for entry in known]).on_unavailable
        return policy or self._connection.options.on_unavailable

    def _levels(self, entity_id: str, resource: str) -> tuple[Key, ...]:
        return level_keys(self._namespace_id, entity_id, resource)

    async def renewed(self, account: Account) -> Account:
        """The account under the configuration as it is stored now."""
        renewed, resolved = await self._account(account.entity_id, account.resource, None, fresh=True)
        image = self._connection.teller.image(account.key)
        if image is not None and image.get("cv") != resolved.version:
            # The bucket outlived the configuration it was made under. What was just read is the
            # newest there is, so the bucket's own version is adopted rather than chased.
            version = max(resolved.version, number(image, "cv"))
            terms = Terms(renewed.terms.rates, version, renewed.terms.ttl_fills)
            return renewed._replace(terms=terms)
        return renewed

    async def get_bucket(self, entity_id: str, resource: str) -> list[BucketState]:
        """One state for each limit of a bucket; empty if it was never used."""
        (image,) = await self._connection.teller.look([bucket_key(self._namespace_id, entity_id, resource)])
        return [] if image is None else bucket_states(image)

    async def _account(
        self,
        entity_id: str,
        resource: str,
        limits: Sequence[Limit] | None,
        *,
        required: bool = True,
        fresh: bool = False,
    ) -> tuple[Account, Resolved]:
        namespace_id, options = self._namespace_id, self._connection.options
        key = bucket_key(namespace_id, entity_id, resource)
        records: list[Key] = [entity_key(namespace_id, entity_id)]
        records += self._levels(entity_id, resource)
        entity, *levels = await self._connection.fetch(records, [key], fresh=fresh)
        resolved = resolve(levels)
        if limits is not None:
            terms = Terms.of(limits, None, options.bucket_ttl_multiplier)
        elif resolved.limits is not None or not required:
            fills = 0 if resolved.source in LASTING else options.bucket_ttl_multiplier
            terms = Terms.of(resolved.limits or (), resolved.version, fills)
        else:
            raise ValidationError(
                "limits",
                None,
                f"none are stored for {entity_id!r} on {resource!r} at any level; "
                "call set_system_defaults, set_resource_defaults or set_limits, or pass limits=",
            )
        parent_id, cascade = family_of(entity)
        return Account(key, namespace_id, entity_id, resource, terms, parent_id, cascade), resolved


def demands_on(accounts: Sequence[Account], amounts_milli: Mapping[str, int]) -> list[Demand]:
    """Amounts as demands; the first account must have every limit, the others are asked for theirs."""
    first = accounts[0]
    for name in amounts_milli:
        if name not in first.terms.rates:
            raise ValidationError(
                "limit name",
                name,
                f"{first.entity_id!r} has no such limit on {first.resource!r}; "
                f"it has {', '.join(first.terms.rates)}",
            )
    demands = [Demand(first, amounts_milli)]
    for account in accounts[1:]:
        if shared := {name: n for name, n in amounts_milli.items() if name in account.terms.rates}:
            demands.append(Demand(account, shared))
    return demands
