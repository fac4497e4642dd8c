"""The levels of a namespace as the store has them, and which of them an apply made.

Every change goes through the records that all other changes go through, and so has its audit event.
A *claim* is a record that names the event by which an apply gave a level its life. It is written and
deleted in the transaction of the level itself, so there is no moment at which one of them is
missing; what somebody else deletes and makes again leads another life, which the claim does not fit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from ...exceptions import ValidationError
from ...models import LimiterConfig
from ...records.config import Claim, ConfigRecords, Level, governs
from ...records.items import claim_item, config_of
from ...repository import Repository
from ...repository_protocol import PAGE_ROWS_MAX, Delete, Equal, Row
from ...schema import claim_key, pk_system, sk_claim, starting, text
from .model import ENTITY, RESOURCE, SYSTEM, Place, Stored
from .planning import Forget, Remove, Set, Step, revised

READ_MAX = 1000
"""Levels that are asked for at once."""


class Ledger(ConfigRecords):
    """One namespace, as a manifest sees it."""

    @classmethod
    def of(cls, repository: Repository) -> Ledger:
        return cls(repository._connection, repository.namespace_name, repository.namespace_id)

    async def claims(self) -> dict[Place, str]:
        """Which levels an apply made, and the events by which it did."""
        query = starting(pk_system(self._namespace_id), sk_claim(""))._replace(rows_max=PAGE_ROWS_MAX)
        found: dict[Place, str] = {}
        async for row in self._rows(query):
            place, born = self._place_of(row), text(row.item, "born")
            if place is not None and born is not None:
                found[place] = born
        return found

    async def levels(self, places: Iterable[Place]) -> dict[Place, Stored]:
        """What some levels say; those that have no limits and no policy are left out."""
        found: dict[Place, Stored] = {}
        wanted = list(places)
        for at in range(0, len(wanted), READ_MAX):
            part = wanted[at : at + READ_MAX]
            items = await self._backend.batch_get([self._at(place).key for place in part])
            for place, item in zip(part, items, strict=True):
                config = config_of(item or {})
                if governs(config):
                    found[place] = Stored(config, text(item or {}, "born"))
        return found

    async def everything(self) -> dict[Place, Stored]:
        """Every level of the namespace that has limits or a policy."""
        resources = [Place(RESOURCE, None, name) for name in await self.list_resources_with_defaults()]
        found = await self.levels([Place(SYSTEM), *resources])
        for resource in await self.list_resources_with_entity_configs():
            async for page in self._entities_with(resource):
                found |= await self.levels(page)
        return found

    async def perform(self, step: Step, principal: str | None) -> bool:
        """Take one step; returns whether the level was changed by it."""
        claim = self._claim(step.place)
        match step:
            case Set(config=config):
                return await self._change(
                    self._at(step.place), lambda now, _: revised(now, config), principal, claim
                )
            case Remove(born=life):
                return await self._change(
                    self._at(step.place),
                    lambda now, born: revised(now, LimiterConfig()) if born == life else None,
                    principal,
                    claim,
                )
            case Forget(born=life):
                await self._must_write([Delete(claim.key, when=(Equal("born", life),))])
                return False

    async def _entities_with(self, resource: str) -> AsyncIterator[list[Place]]:
        cursor: str | None = None
        while True:
            ids, cursor = await self.list_entities_with_custom_limits(resource, READ_MAX, cursor)
            yield [Place(ENTITY, entity_id, resource) for entity_id in ids]
            if cursor is None:
                return

    def _place_of(self, row: Row) -> Place | None:
        """The level that a claim is for; ``None`` if it is not one that was written here."""
        place = Place(text(row.item, "level") or "", *(text(row.item, n) for n in ("entity_id", "resource")))
        try:
            self._at(place)
        except ValidationError:
            return None
        return place if row.key == self._claim(place).key else None

    def _at(self, place: Place) -> Level:
        return self._level(place.level, place.entity_id, place.resource)

    def _claim(self, place: Place) -> Claim:
        key = claim_key(self._namespace_id, *place.names)
        return Claim(key, claim_item(self._namespace_id, key, *place))
