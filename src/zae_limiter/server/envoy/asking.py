"""What a request of Envoy asks of the limiter: for each descriptor an entity, a resource and amounts.

Nothing is decided here. What a client can make up, such as a name or a number of hits, is never an error:
errors let requests pass, unless Envoy was told otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ...exceptions import ValidationError
from ...models import TOKENS_MAX, Limit, OnUnavailable
from .rules import DescriptorRule, DescriptorRules
from .wire import Misread, SaidDescriptor, SaidLimit, SaidRequest

_DAY = 86_400
UNIT_SECONDS: Mapping[int, int] = dict(enumerate((1, 60, 3600, _DAY, 30 * _DAY, 365 * _DAY, 7 * _DAY), 1))
"""How long the units of ``RateLimitUnit`` are, by their numbers; a month has 30 days, as Envoy counts."""

UNIT_PERIODS: Mapping[str, int] = {"hour": 3, "day": 4, "week": 7, "month": 5, "year": 6}
"""The same of periods of the calendar."""

Place: TypeAlias = tuple[str, str]
"""An entity and a resource."""


class AskedHits(NamedTuple):
    """What one descriptor asks for."""

    place: Place
    rule: DescriptorRule
    amounts: Mapping[str, int]
    """By limit; 0 to ask whether there is anything left."""
    is_refund: bool = False
    given: Limit | None = None
    """The limit that Envoy sent along."""
    unit: int | None = None
    """That limit lets nothing through, and this is its unit."""

    @property
    def is_look(self) -> bool:
        """Whether nothing is to be taken: it is refused in debt only."""
        return not any(self.amounts.values())

    @property
    def limits(self) -> tuple[Limit, ...] | None:
        return None if self.given is None else (self.given,)

    @property
    def need(self) -> Mapping[str, int]:
        """What has to be there."""
        return dict.fromkeys(self.amounts, 0) if self.rule.afterwards else self.amounts


def asked_by(request: SaidRequest, rules: DescriptorRules) -> list[AskedHits | None]:
    """What each descriptor asks for; ``None`` for those that no rule is for."""
    asked = []
    for said in request.descriptors:
        try:
            rule = rules.match(request.domain, said.entries)
        except ValidationError as error:
            raise Misread(f"the domain cannot be a resource: {error.reason}; name one in a rule") from error
        asked.append(None if rule is None else _asked(said, rule))
    return asked


def _asked(said: SaidDescriptor, rule: DescriptorRule) -> AskedHits:
    place = rule.entity_of(said.entries), rule.resource
    amounts = {name: said.hits * each for name, each in rule.cost.items()}
    asked = AskedHits(place, rule, amounts, said.is_refund)
    if said.limit is None or not rule.overrides:
        return asked
    if len(rule.cost) > 1:
        raise Misread("a limit cannot be sent along where a hit is taken of several; say overrides: false")
    return _with_limit(asked, said.limit, next(iter(rule.cost)))


def _with_limit(asked: AskedHits, said: SaidLimit, name: str) -> AskedHits:
    """The same under the limit that Envoy sent along."""
    if said.unit not in UNIT_SECONDS:
        raise Misread(f"the unit {said.unit} of a limit is none that is known")
    if not said.requests_per_unit:
        return asked._replace(unit=said.unit)
    requests = said.requests_per_unit
    return asked._replace(given=Limit(name, requests, requests, UNIT_SECONDS[said.unit]))


def merged_needs(asked: Sequence[AskedHits]) -> dict[Place, dict[str, int]]:
    """What has to be there at each place, the hits of several descriptors together."""
    return _sums([(one.place, one.need) for one in asked])


def merged_amounts(asked: Sequence[AskedHits]) -> dict[Place, dict[str, int]]:
    """What is counted, or given back, at each place."""
    return _sums([(one.place, one.amounts) for one in asked])


def _sums(parts: Sequence[tuple[Place, Mapping[str, int]]]) -> dict[Place, dict[str, int]]:
    sums: dict[Place, dict[str, int]] = {}
    for place, amounts in parts:
        total = sums.setdefault(place, {})
        for name, amount in amounts.items():  # more than any limit can hold is refused like one that can be
            total[name] = min(total.get(name, 0) + amount, TOKENS_MAX)
    return sums


def limits_of(asked: Sequence[AskedHits]) -> dict[Place, tuple[Limit, ...] | None]:
    """The limits that were sent along for each place."""
    return {one.place: one.limits for one in asked}


def at_odds(asked: Sequence[AskedHits]) -> set[Place]:
    """Places for which several limits were sent along, which cannot all be kept.

    A client brings that about that may name itself by two values, so it is no error.
    """
    found: dict[Place, tuple[Limit, ...] | None] = {}
    return {one.place for one in asked if found.setdefault(one.place, one.limits) != one.limits}


def policy_of(asked: Sequence[AskedHits]) -> OnUnavailable | None:
    """What to do while the store is down: to block if one rule says so, to allow if all do."""
    said = {one.rule.on_unavailable for one in asked}
    if OnUnavailable.BLOCK in said:
        return OnUnavailable.BLOCK
    return OnUnavailable.ALLOW if said == {OnUnavailable.ALLOW} else None
