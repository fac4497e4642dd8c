"""Bringing a namespace and a manifest together: plan, apply, compare, export."""

from __future__ import annotations

from collections.abc import Callable

from ...models import LimiterConfig
from ...naming import validate_principal
from ...repository import Repository
from ...runtime.colour import blocking
from ...sync import SyncRepository
from .ledger import Ledger
from .model import Change, Manifest, Plan
from .planning import Forget, plan, steps


def _ignore(change: Change) -> None:
    del change


class StoredLimits:
    """The limits of a namespace, to be described by a manifest as a whole.

    >>> import asyncio
    >>> from zae_limiter import Repository
    >>> from zae_limiter.operate.manifest import parse
    >>> manifest = parse("resources: {gpt-4: {limits: {rpm: {capacity: 60}}}}")
    >>> async def work():
    ...     async with await Repository.open(store="memory://") as repository:
    ...         stored = StoredLimits(repository)
    ...         await stored.apply(manifest)
    ...         return (await stored.plan(manifest)).counts, await repository.list_resources_with_defaults()
    >>> asyncio.run(work())
    ({'created': 0, 'updated': 0, 'deleted': 0, 'unchanged': 1}, ['gpt-4'])
    """

    def __init__(self, repository: Repository) -> None:
        self._ledger = Ledger.of(repository)

    async def plan(self, manifest: Manifest) -> Plan:
        """What an apply would change. It reads what the file names and what applies have made."""
        claims = await self._ledger.claims()
        stored = await self._ledger.levels(dict.fromkeys((*manifest.levels, *claims)))
        return plan(manifest, stored, claims)

    async def difference(self, manifest: Manifest) -> Plan:
        """Everything in which the namespace and the manifest differ, also what an apply leaves alone."""
        claims, stored = await self._ledger.claims(), await self._ledger.everything()
        return plan(manifest, stored, claims, everything=True)

    async def apply(self, manifest: Manifest, principal: str | None = None) -> list[Change]:
        """Make the namespace say what the manifest says; returns what was changed."""
        return await self.carry_out(await self.plan(manifest), principal)

    async def carry_out(
        self, plan: Plan, principal: str | None = None, tell: Callable[[Change], None] = _ignore
    ) -> list[Change]:
        """Do what was planned, and return what was changed by it, level by level.

        Each level changes as a whole and is looked at again when its turn comes. Interrupted anywhere,
        the next apply does the rest. What was planned twice at the same time is done once.
        """
        if principal is not None:
            validate_principal(principal)
        changed: list[Change] = []
        for step in steps(plan):
            if await self._ledger.perform(step, principal) and not isinstance(step, Forget):
                changed.append(step.change)
                tell(step.change)
        return changed

    async def export(self) -> Manifest:
        """A manifest of everything that is stored; applying it changes nothing."""
        stored = await self._ledger.everything()
        levels = {
            place: LimiterConfig(stored[place].config.limits, stored[place].config.on_unavailable)
            for place in sorted(stored, key=lambda place: place.order)
        }
        return Manifest(levels, self._ledger.namespace_name)


class SyncStoredLimits:
    """The sync twin of ``StoredLimits``."""

    def __init__(self, repository: SyncRepository) -> None:
        self._async = StoredLimits(repository._async)

    plan = blocking(StoredLimits.plan)
    difference = blocking(StoredLimits.difference)
    apply = blocking(StoredLimits.apply)
    carry_out = blocking(StoredLimits.carry_out)
    export = blocking(StoredLimits.export)
