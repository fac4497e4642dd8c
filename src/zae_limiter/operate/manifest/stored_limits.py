"""Bringing a namespace and a manifest together: plan, apply, compare, export.

Every change goes through the records that all other changes go through, and so has its audit event.
A *claim* is a record that names the event by which an apply gave a level its life. It is written and
deleted in the transaction of the level itself, so there is no moment at which one of them is
missing; what somebody else deletes and makes again leads another life, which the claim does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ...exceptions import ValidationError
from ...models import LimiterConfig
from ...naming import validate_principal
from ...records.items import claim_item, config_of
from ...records.levels import Claim, ConfigLevel, change_level, governs, level_at
from ...repository import Repository
from ...repository_protocol import PAGE_ROWS_MAX, Delete, Equal
from ...runtime.colour import blocking
from ...schema import claim_key, pk_system, sk_claim, starting, text
from ...sync import SyncRepository
from .model import LevelAddress, LevelChange, Manifest, ManifestPlan, StoredLevel, plan, revised

READ_MAX = 1000
"""Levels that are asked for at once."""


class StoredLimits:
    """The limits of a namespace, to be described by a manifest as a whole."""

    def __init__(self, repository: Repository) -> None:
        self._repository, self._scope = repository, repository._scope

    async def plan(self, manifest: Manifest) -> ManifestPlan:
        """What an apply would change. It reads what the file names and what applies have made."""
        claims = await self._claims()
        stored = await self._levels(dict.fromkeys((*manifest.levels, *claims)))
        return plan(manifest, stored, claims)

    async def difference(self, manifest: Manifest) -> ManifestPlan:
        """Everything in which the namespace and the manifest differ, also what an apply leaves alone."""
        claims, stored = await self._claims(), await self._everything()
        return plan(manifest, stored, claims, everything=True)

    async def apply(self, manifest: Manifest, principal: str | None = None) -> list[LevelChange]:
        """Make the namespace say what the manifest says; returns what was changed."""
        return await self.carry_out(await self.plan(manifest), principal)

    async def carry_out(
        self,
        plan: ManifestPlan,
        principal: str | None = None,
        tell: Callable[[LevelChange], None] = lambda _: None,
    ) -> list[LevelChange]:
        """Do what was planned, and return what was changed by it, level by level.

        Each level changes as a whole and is looked at again when its turn comes. Interrupted anywhere,
        the next apply does the rest. What was planned twice at the same time is done once.
        """
        if principal is not None:
            validate_principal(principal)
        changed: list[LevelChange] = []
        for change in plan.steps:
            if await self._perform(change, principal):
                changed.append(change)
                tell(change)
        for address, born in plan.lapsed.items():
            await self._scope.must_write([Delete(self._claim(address).key, (Equal("born", born),))])
        return changed

    async def export(self) -> Manifest:
        """A manifest of everything that is stored; applying it changes nothing."""
        stored = sorted((await self._everything()).items(), key=lambda found: found[0].order)
        levels = {at: revised(LimiterConfig(), said.config) or LimiterConfig() for at, said in stored}
        return Manifest(levels, self._repository.namespace_name)

    async def _perform(self, change: LevelChange, principal: str | None) -> bool:
        """Let a level say what is wanted, if it still leads the life that is meant."""
        return await change_level(
            self._scope,
            self._level(change.address),
            lambda now, born: revised(now, change.wanted) if change.born in (None, born) else None,
            principal,
            self._claim(change.address),
        )

    async def _claims(self) -> dict[LevelAddress, str]:
        """Which levels an apply made, and the events by which it did."""
        query = starting(pk_system(self._repository.namespace_id), sk_claim(""))
        found: dict[LevelAddress, str] = {}
        async for key, item in self._scope.rows(query._replace(rows_max=PAGE_ROWS_MAX)):
            names = (text(item, "entity_id"), text(item, "resource"))
            address, born = LevelAddress(text(item, "level") or "", *names), text(item, "born")
            try:
                self._level(address)
            except ValidationError:
                continue  # nobody wrote this one here
            if born is not None and key == self._claim(address).key:
                found[address] = born
        return found

    async def _levels(self, addresses: Iterable[LevelAddress]) -> dict[LevelAddress, StoredLevel]:
        """What some levels say; those that have no limits, no policy and no switch are left out."""
        found: dict[LevelAddress, StoredLevel] = {}
        wanted = list(addresses)
        for at in range(0, len(wanted), READ_MAX):
            part = wanted[at : at + READ_MAX]
            items = await self._scope.backend.batch_get([self._level(address).key for address in part])
            for address, item in zip(part, items, strict=True):
                config = config_of(item or {})
                if governs(config):
                    found[address] = StoredLevel(config, text(item or {}, "born"))
        return found

    async def _everything(self) -> dict[LevelAddress, StoredLevel]:
        """Every level of the namespace that has limits, a policy or a switch."""
        repository = self._repository
        resources = await repository.list_resources_with_defaults()
        found = await self._levels(
            [LevelAddress("system"), *(LevelAddress("resource", None, name) for name in resources)]
        )
        for resource in await repository.list_resources_with_entity_configs():
            cursor, is_over = None, False
            while not is_over:
                ids, cursor = await repository.list_entities_with_custom_limits(resource, READ_MAX, cursor)
                found |= await self._levels(LevelAddress("entity", name, resource) for name in ids)
                is_over = cursor is None
        return found

    def _level(self, address: LevelAddress) -> ConfigLevel:
        return level_at(self._scope, *address)

    def _claim(self, address: LevelAddress) -> Claim:
        namespace_id = self._repository.namespace_id
        key = claim_key(namespace_id, *address.names)
        return Claim(key, claim_item(namespace_id, key, *address))


class SyncStoredLimits:
    """The sync twin of ``StoredLimits``."""

    def __init__(self, repository: SyncRepository) -> None:
        self._async = StoredLimits(repository._async)

    plan: Final = blocking(StoredLimits.plan)
    difference: Final = blocking(StoredLimits.difference)
    apply: Final = blocking(StoredLimits.apply)
    carry_out: Final = blocking(StoredLimits.carry_out)
    export: Final = blocking(StoredLimits.export)
