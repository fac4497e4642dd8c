"""What limits count, where that is money, as commands ask for it."""

from __future__ import annotations

from collections.abc import Iterable

from ..records.belongings import resources_with_own_limits
from ..records.units import NOBODY, Units, agreed
from ..records.units import units_of_places as _units_of_places
from ..runtime.colour import run_sync
from .session import Session

ENTITIES_MAX = 100
"""Of how many entities with limits of their own it is asked whether they count the same as the others."""


def units_of_places(session: Session, places: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Units]:
    """What the limits of entities on resources count, as they are now; one read for all of them."""
    return run_sync(_units_of_places(session.repository._async._scope, places))


def units_of_all(session: Session, entity_id: str | None, resource: str | None) -> Units:
    """What the limits of an entity count on all resources, of a resource for all entities, or of both."""
    repository = session.repository
    if entity_id is not None and resource is not None:
        return units_of_places(session, [(entity_id, resource)]).get((entity_id, resource), {})
    if resource is not None:
        others, _ = repository.list_entities_with_custom_limits(resource, ENTITIES_MAX)
        return agreed(units_of_places(session, [(one, resource) for one in (NOBODY, *others)]).values())
    assert entity_id is not None, "usage is of an entity, of a resource, or of both"
    own = run_sync(resources_with_own_limits(repository._async._scope, entity_id))
    known = dict.fromkeys((*own, *repository.list_resources_with_defaults(), NOBODY))
    return agreed(units_of_places(session, [(entity_id, one) for one in known]).values())
