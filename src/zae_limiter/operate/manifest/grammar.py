"""The grammar of a manifest: from a tree to what it wants, or to everything that is wrong with it.

    namespace: team-a                   # optional
    system:
      on_unavailable: allow | block     # optional, at every level
      limits:
        rpm: {capacity: 60, refill_amount: 60, refill_period: 60}
    resources:
      gpt-4: {limits: …, on_unavailable: …}
    entities:
      user-1:
        resources:
          gpt-4: {limits: …}
          _default_: {limits: …}        # for every resource

``refill_amount`` is the capacity unless it is given, ``refill_period`` is 60 seconds. A level has
limits, a policy, or both. Reading goes on after a mistake, so that all of them are told at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TypeAlias, TypeVar

from ...exceptions import ValidationError
from ...models import (
    LIMITS_MAX,
    PERIOD_SECONDS_MAX,
    TOKENS_MAX,
    Limit,
    LimiterConfig,
    OnUnavailable,
    check_count,
)
from ...naming import (
    DEFAULT_RESOURCE,
    validate_entity_id,
    validate_limit_name,
    validate_namespace,
    validate_resource,
)
from .model import ENTITY, RESOURCE, SYSTEM, Manifest, ManifestError, Place, Problem
from .tree import Scalar, Table, Tree, read_json, read_yaml

LEVELS_MAX = 200_000
"""With aliases a short text can name very many levels."""

REFILL_PERIOD_SECONDS = 60

LEVEL_KEYS = ("limits", "on_unavailable")
LIMIT_KEYS = ("capacity", "refill_amount", "refill_period")

_NUMBER = re.compile(r"0|[1-9][0-9]*(?:_[0-9]+)*")

T = TypeVar("T")
KeyPath: TypeAlias = tuple[str, ...]


def load(path: str | Path) -> Manifest:
    """Read a manifest from a file."""
    return parse(Path(path).read_bytes(), str(path))


def parse(text: bytes | str, source: str = "manifest") -> Manifest:
    """Read a manifest in YAML; ``source`` is what mistakes are reported in.

    >>> manifest = parse("resources: {gpt-4: {limits: {rpm: {capacity: 60}}}}")
    >>> [(str(place), config.limits) for place, config in manifest.levels.items()]
    [('resource gpt-4', (Limit(name='rpm', capacity=60, refill_amount=60, refill_period_seconds=60),))]
    """
    # Half of a character cannot be encoded; it is told with everything else that is not UTF-8.
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    return manifest_of(read_yaml(data, source), source)


def parse_json(text: str, source: str = "manifest") -> Manifest:
    """Read a manifest in JSON, without any package."""
    return manifest_of(read_json(text, source), source)


def manifest_of(tree: Tree, source: str) -> Manifest:
    reader, manifest = _Reader(), Manifest({})
    with suppress(_Enough):
        manifest = reader.manifest(tree)
    if reader.problems:
        raise ManifestError(source, tuple(sorted(reader.problems)))
    return manifest


class _Enough(Exception):
    """Reading on would take for ever; why is noted."""


class _Reader:
    """Reads one tree and notes what is wrong with it."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._levels: dict[Place, LimiterConfig] = {}

    def manifest(self, tree: Tree) -> Manifest:
        fields = self._fields(tree, (), ("namespace", "system", "resources", "entities"))
        namespace = None
        if "namespace" in fields:
            namespace = self._checked(fields["namespace"], ("namespace",), validate_namespace)
        if "system" in fields:
            self._level(fields["system"], ("system",), Place(SYSTEM))
        for name, value, path in self._named(fields.get("resources"), ("resources",), validate_resource):
            self._level(value, path, Place(RESOURCE, None, name))
        for name, value, path in self._named(fields.get("entities"), ("entities",), validate_entity_id):
            self._entity(value, path, name)
        return Manifest(self._levels, namespace)

    def _entity(self, tree: Tree, path: KeyPath, entity_id: str) -> None:
        fields = self._fields(tree, path, ("resources",))
        below = (*path, "resources")
        if _is_known(tree, fields) and not _has_names(fields.get("resources")):
            self._wrong(
                fields.get("resources", tree), path, "it names no resources; give it some or remove it"
            )
        for name, value, at in self._named(fields.get("resources"), below, _validate_own_resource):
            self._level(value, at, Place(ENTITY, entity_id, name))

    def _level(self, tree: Tree, path: KeyPath, place: Place) -> None:
        fields = self._fields(tree, path, LEVEL_KEYS)
        limits = [
            limit
            for name, value, at in self._named(fields.get("limits"), (*path, "limits"), validate_limit_name)
            if (limit := self._limit(value, at, name)) is not None
        ]
        policy = None
        if "on_unavailable" in fields:
            policy = self._policy(fields["on_unavailable"], (*path, "on_unavailable"))
        elif _is_known(tree, fields) and not _has_names(fields.get("limits")):
            self._wrong(tree, path, "it says nothing; give it limits or on_unavailable, or remove it")
        if len(limits) > LIMITS_MAX:
            self._wrong(fields["limits"], (*path, "limits"), f"one level has at most {LIMITS_MAX} limits")
        if len(self._levels) == LEVELS_MAX:
            self._wrong(tree, path, f"a manifest has at most {LEVELS_MAX} levels")
            raise _Enough
        self._levels[place] = LimiterConfig(tuple(sorted(limits, key=lambda limit: limit.name)), policy)

    def _limit(self, tree: Tree, path: KeyPath, name: str) -> Limit | None:
        fields = self._fields(tree, path, LIMIT_KEYS)
        if "capacity" not in fields:
            if _is_known(tree, fields):
                self._wrong(tree, path, "its capacity is missing")
            return None
        capacity = self._number(fields, "capacity", path, TOKENS_MAX)
        amount = self._number(fields, "refill_amount", path, TOKENS_MAX, capacity)
        period = self._number(fields, "refill_period", path, PERIOD_SECONDS_MAX, REFILL_PERIOD_SECONDS)
        if capacity is None or amount is None or period is None:
            return None
        return Limit(name, capacity, amount, period)

    def _number(
        self, fields: dict[str, Tree], key: str, path: KeyPath, value_max: int, default: int | None = None
    ) -> int | None:
        if key not in fields:
            return default
        tree = fields[key]
        if not isinstance(tree, Scalar) or not tree.plain or not _NUMBER.fullmatch(tree.text):
            self._wrong(tree, (*path, key), f"write a whole number such as 1000, not {_shown(tree)}")
            return None
        digits = tree.text.replace("_", "")
        # Python refuses to read numbers of thousands of digits; they are too large in any case.
        number = int(digits[: len(str(value_max)) + 1])
        try:
            return check_count(key, number, value_max)
        except ValidationError as error:
            self._wrong(tree, (*path, key), f"{error.reason}, not {digits[:40]}")
            return None

    def _policy(self, tree: Tree, path: KeyPath) -> OnUnavailable | None:
        choices = [policy.value for policy in OnUnavailable]
        if isinstance(tree, Scalar) and tree.text in choices:
            return OnUnavailable(tree.text)
        meant = tree.text if isinstance(tree, Scalar) else ""
        self._wrong(tree, path, f"use {_either(choices)}, not {tree}{_did_you_mean(meant, choices)}")
        return None

    def _fields(self, tree: Tree, path: KeyPath, allowed: Sequence[str]) -> dict[str, Tree]:
        """The values of a mapping whose keys are known; the first of several counts."""
        found: dict[str, Tree] = {}
        for key, value in self._entries(tree, path, f"a mapping with {_either(allowed)}"):
            if key.text in allowed:
                found[key.text] = value
            else:
                hint = _did_you_mean(key.text, allowed)
                self._wrong(key, path, f"unknown key {key.text!r}; use {_either(allowed)}{hint}")
        return found

    def _named(
        self, tree: Tree | None, path: KeyPath, check: Callable[[str], str]
    ) -> Iterator[tuple[str, Tree, KeyPath]]:
        """The values of a mapping whose keys are names."""
        if tree is None or _is_nothing(tree):
            return
        for key, value in self._entries(tree, path, "a mapping from names"):
            at = (*path, key.text)
            if self._checked(key, at, check) is not None:
                yield key.text, value, at

    def _entries(self, tree: Tree, path: KeyPath, expected: str) -> Iterator[tuple[Scalar, Tree]]:
        if not isinstance(tree, Table):
            self._wrong(tree, path, f"expected {expected}, found {_shown(tree)}")
            return
        first: dict[str, Scalar] = {}
        for key, value in tree.entries:
            if key.plain and key.text == "<<":
                self._wrong(key, path, "nothing is merged here; write it out, or quote '<<' if it is a name")
                continue
            if key.text in first:
                before = f"; the first is in line {first[key.text].line}" if key.line else ""
                self._wrong(key, path, f"{key.text!r} is given twice{before}")
                continue
            first[key.text] = key
            yield key, value

    def _checked(self, tree: Tree, path: KeyPath, check: Callable[[str], T]) -> T | None:
        """A name that follows its rules."""
        if not isinstance(tree, Scalar):
            self._wrong(tree, path, f"expected a name, found {tree}")
            return None
        try:
            return check(tree.text)
        except ValidationError as error:
            self._wrong(tree, path, f"invalid {error.field} {tree.text!r}: {error.reason}")
            return None

    def _wrong(self, tree: Tree, path: KeyPath, message: str) -> None:
        self.problems.append(Problem(tree.line, tree.column, path, message))


def _validate_own_resource(name: str) -> str:
    return name if name == DEFAULT_RESOURCE else validate_resource(name)


def _is_known(tree: Tree, fields: dict[str, Tree]) -> bool:
    """Whether every key of a mapping was understood; otherwise what is missing may be what was not."""
    return isinstance(tree, Table) and len(tree.entries) == len(fields)


def _has_names(tree: Tree | None) -> bool:
    """Whether a mapping from names has any; what is no mapping at all is told elsewhere."""
    if tree is None or _is_nothing(tree):
        return False
    return not isinstance(tree, Table) or bool(tree.entries)


def _is_nothing(tree: Tree) -> bool:
    return isinstance(tree, Scalar) and tree.is_nothing


def _shown(tree: Tree) -> str:
    """A value as the reader of a message knows it from the file."""
    return f"{tree} in quotes" if isinstance(tree, Scalar) and not tree.plain else str(tree)


def _either(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def _did_you_mean(word: str, allowed: Sequence[str]) -> str:
    near = get_close_matches(word, allowed, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
