"""Who a descriptor of Envoy is, and what it asks for: rules by the keys of its entries.

A rule is for descriptors with exactly its keys, in any order; it may want certain values, too. What no rule
is for is not limited, as Envoy expects. Values come from clients: one becomes the id of an entity only if it
can be one, and is its hash otherwise, so that nobody escapes a limit by a name that is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...exceptions import ValidationError
from ...models import TOKENS_MAX, OnUnavailable, check_count
from ...naming import validate_entity_id, validate_limit_name, validate_resource
from ...runtime.logs import server_logger as logger
from ...web.identity import entity_of, hashed_id

RULES_MAX = 1000
KEYS_TOLD_MAX = 256
"""For so many kinds of descriptor it is logged that no rule is for them."""

DEFAULT_KEYS = ("entity", "api_key", "remote_address")
"""Without a file the first of these says who asks, else the first entry of the descriptor."""

HITS = "requests"
"""The limit that hits are taken of, unless a rule says another."""

Entries = Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class DescriptorRule:
    """For which descriptors it is, whom they are charged to, and what one hit costs."""

    when: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    """The keys of a descriptor, and the values that are meant; ``None`` for any."""
    entity: str | None = None
    """The key whose value is the entity; the first known one if nothing is said."""
    entity_id: str | None = None
    """The entity that all of them are charged to, instead."""
    hashed: bool = False
    """Whether the store sees the hash of the value only."""
    resource: str
    cost: Mapping[str, int] = field(default_factory=lambda: {HITS: 1})
    afterwards: bool = False
    """The hits were used already: they are counted in any case, and may leave debt."""
    overrides: bool = True
    """Whether a limit counts that Envoy sends along."""
    on_unavailable: OnUnavailable | None = None

    def __post_init__(self) -> None:
        validate_resource(self.resource)
        if self.entity_id is not None:
            validate_entity_id(self.entity_id)
        if self.when and (self.entity in self.when) is (self.entity_id is not None):
            told = "name one key of `when`, or the id of an entity, and not both"
            raise ValidationError("entity", self.entity if self.entity is not None else self.entity_id, told)
        if not self.cost:
            raise ValidationError("cost", {}, "say what a hit takes of which limit, such as {requests: 1}")
        for name, amount in self.cost.items():
            validate_limit_name(name)
            check_count(f"cost of {name!r}", amount, TOKENS_MAX)

    def fits(self, said: Mapping[str, str]) -> bool:
        """Whether the values of a descriptor that has its keys are meant."""
        return all(values is None or said[key] in values for key, values in self.when.items())

    def covers(self, other: DescriptorRule) -> bool:
        """Whether it is for every descriptor that another one is for."""
        return self.when.keys() == other.when.keys() and all(
            values is None or values >= (other.when[key] or {None}) for key, values in self.when.items()
        )

    def entity_of(self, entries: Entries) -> str:
        """Whom a descriptor is charged to."""
        if self.entity_id is not None:
            return self.entity_id
        said = dict(reversed(entries))  # the first of several counts
        value = said[self.entity] if self.entity is not None else _first_known(said, entries)
        return hashed_id(value) if self.hashed else entity_of(value)


def _first_known(said: Mapping[str, str], entries: Entries) -> str:
    return next((said[key] for key in DEFAULT_KEYS if key in said), entries[0][1])


class DescriptorRules:
    """The rules of all domains; without any, every domain is a resource of its name."""

    def __init__(self, domains: Mapping[str, Sequence[DescriptorRule]] | None = None) -> None:
        self._is_default = domains is None
        self._by_keys: dict[tuple[str, frozenset[str]], list[DescriptorRule]] = {}
        for domain, rules in (domains or {}).items():
            for rule in rules:
                self._by_keys.setdefault((domain, frozenset(rule.when)), []).append(rule)
        self._made: dict[str, DescriptorRule] = {}
        self._told: set[tuple[str, frozenset[str]]] = set()

    def match(self, domain: str, entries: Entries) -> DescriptorRule | None:
        """The rule for a descriptor, if there is one; a domain that cannot be a resource is told."""
        if self._is_default:
            return self._made.get(domain) or self._make(domain)
        said = dict(entries)
        place = domain, frozenset(said)
        if len(said) == len(entries):  # else a key says two things, and no rule knows which is meant
            for rule in self._by_keys.get(place, ()):
                if rule.fits(said):
                    return rule
        if place not in self._by_keys:
            self._tell(place)
        return None

    def _make(self, domain: str) -> DescriptorRule:
        rule = DescriptorRule(resource=domain)
        if len(self._made) < RULES_MAX:
            self._made[domain] = rule
        return rule

    def _tell(self, place: tuple[str, Iterable[str]]) -> None:
        domain, keys = place[0], frozenset(place[1])
        if (domain, keys) not in self._told and len(self._told) < KEYS_TOLD_MAX:
            self._told.add((domain, keys))
            logger.warning("no rule is for descriptors of %r with %s: they pass", domain, sorted(keys))
