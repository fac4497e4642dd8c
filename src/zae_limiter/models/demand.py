"""What is asked for by an acquire that asks for several things at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..exceptions import ValidationError
from ..naming import validate_entity_id, validate_resource
from . import Limit, check_limits
from .checks import AMOUNTS_HINT, check_mapping, needs_milli

DEMANDS_MAX = 50
"""In one acquire: each of them may have a parent, and a store changes at most 100 items at once.

Where families are deeper, fewer fit, unless they meet above.
"""

DEMANDS_HINT = "pass a list of Demand, such as [Demand('key-1', 'gpt-4', {'rpm': 1})]"


@dataclass(frozen=True, slots=True)
class Demand:
    """What one entity asks of one resource, as one of several that are to be had together or not at all.

    >>> Demand("key-1", "gpt-4", {"rpm": 1, "tpm": 500})
    Demand(entity_id='key-1', resource='gpt-4', consume={'rpm': 1, 'tpm': 500}, limits=None)
    """

    entity_id: str
    resource: str
    consume: Mapping[str, int]
    limits: Sequence[Limit] | None = None

    def __post_init__(self) -> None:
        validate_entity_id(self.entity_id)
        validate_resource(self.resource)
        amounts = check_mapping("consume", self.consume, AMOUNTS_HINT)
        needs_milli(amounts)
        object.__setattr__(self, "consume", amounts)
        if self.limits is not None:
            object.__setattr__(self, "limits", check_limits(self.limits))


def check_demands(demands: Sequence[Demand], *beside: object) -> list[Demand]:
    """Usable demands: some, not too many; those of one entity on one resource as one, with the sum."""
    for given in beside:
        if given is not None:
            raise ValidationError("demands", given, "each Demand says its own resource, consume and limits")
    if not isinstance(demands, list | tuple) or not all(isinstance(one, Demand) for one in demands):
        raise ValidationError("demands", demands, DEMANDS_HINT)
    if not demands:
        raise ValidationError("demands", demands, "pass at least one Demand")
    if len(demands) > DEMANDS_MAX:
        raise ValidationError("demands", len(demands), f"one acquire takes at most {DEMANDS_MAX}")
    by_place: dict[tuple[str, str], Demand] = {}
    for demand in demands:
        place = demand.entity_id, demand.resource
        by_place[place] = _sum(by_place[place], demand) if place in by_place else demand
    return list(by_place.values())


def _sum(one: Demand, other: Demand) -> Demand:
    """Two demands of an entity on a resource as one."""
    if one.limits != other.limits:
        told = f"the demands of {one.entity_id!r} on {one.resource!r} have others; give all of them the same"
        raise ValidationError("limits", other.limits, told)
    names = dict.fromkeys((*one.consume, *other.consume))
    amounts = {name: one.consume.get(name, 0) + other.consume.get(name, 0) for name in names}
    return Demand(one.entity_id, one.resource, amounts, one.limits)
