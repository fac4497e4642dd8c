"""The grammar of a manifest: from a tree to what it wants, or to everything that is wrong with it.

``refill_amount`` is the capacity unless it is given, ``refill_period`` is 60 seconds. A calendar quota has a
``period`` instead, and a ``tz`` unless that is UTC; ``unit`` says that a limit counts money. What limits how
many are at work at once has a ``hold``, a session a ``window``; what is ``soft`` is counted and refuses
nobody. A level has limits, a policy, a switch, or several of them; ``docs/limits-file.md`` shows a whole
manifest. Reading goes on after a mistake, so that all of them are told at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ...exceptions import ValidationError
from ...models import (
    LIMITS_MAX,
    PERIOD_SECONDS_MAX,
    TOKENS_MAX,
    Bypass,
    Limit,
    LimiterConfig,
    OnUnavailable,
    check_count,
)
from ...models.accruals import LASTING, PERIODS, calendar, check_period, check_zone, period_seconds
from ...models.checks import Choice
from ...models.durations import seconds_of, written
from ...models.money import check_unit
from ...models.schedules import check_schedule
from ...models.switches import check_reason
from ...naming import validate_entity_id, validate_limit_name, validate_namespace, validate_resource
from ...records.levels import check_level_resource
from .model import SETTINGS, LevelAddress, Manifest, ManifestError, Problem
from .tree import MAPPING, WORD, Node, read_json, read_yaml

LEVELS_MAX = 200_000
"""With aliases a short text can name very many levels."""

LIMIT_FIELDS = (
    "capacity",
    "refill_amount",
    "refill_period",
    "period",
    "tz",
    "unit",
    *LASTING.values(),
    "soft",
    "schedule",
)

_CHOICES: dict[str, type[Choice]] = {"on_unavailable": OnUnavailable, "bypass": Bypass}
YES_OR_NO = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n"})
"""What a writer of YAML means as yes or no: never a reason."""

_NUMBER = re.compile(r"0|[1-9][0-9]*(?:_[0-9]+)*")

KeyPath: TypeAlias = tuple[str, ...]
Fields: TypeAlias = dict[str, Node]


def load(path: str | Path) -> Manifest:
    """Read a manifest from a file."""
    return parse(Path(path).read_bytes(), str(path))


def parse(text: bytes | str, source: str = "manifest") -> Manifest:
    """Read a manifest in YAML; ``source`` is what mistakes are reported in.

    >>> manifest = parse("resources: {gpt-4: {limits: {rpm: {capacity: 60}}}}")
    >>> [(str(address), config.limits) for address, config in manifest.levels.items()]
    [('resource gpt-4', (Limit(name='rpm', capacity=60, refill_amount=60, refill_period_seconds=60),))]
    """
    # Half of a character cannot be encoded; it is told with everything else that is not UTF-8.
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    return _manifest_of(read_yaml(data, source), source)


def parse_json(text: str, source: str = "manifest") -> Manifest:
    """Read a manifest in JSON, without any package."""
    return _manifest_of(read_json(text, source), source)


def _manifest_of(tree: Node, source: str) -> Manifest:
    reader, namespace = TreeReader(), None
    with suppress(_Enough):
        namespace = reader.read(tree)
    if reader.problems:
        raise ManifestError(source, *sorted(reader.problems))
    return Manifest(reader.levels, namespace)


class _Enough(Exception):
    """Reading on would take for ever; why is noted."""


class TreeReader:
    """Reads one tree and notes what is wrong with it."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.levels: dict[LevelAddress, LimiterConfig] = {}

    def read(self, tree: Node) -> str | None:
        """Note all levels; returns the namespace that they are for."""
        fields = self._fields(tree, (), ("namespace", "system", "resources", "entities"))
        namespace = None
        if "namespace" in fields:
            namespace = self._checked(fields["namespace"], ("namespace",), validate_namespace)
        if "system" in fields:
            self._level(fields["system"], ("system",), LevelAddress("system"))
        for name, value, path in self._named(fields, (), "resources", validate_resource):
            self._level(value, path, LevelAddress("resource", None, name))
        for name, value, path in self._named(fields, (), "entities", validate_entity_id):
            self._entity(value, path, name)
        return namespace

    def _entity(self, tree: Node, path: KeyPath, entity_id: str) -> None:
        fields = self._fields(tree, path, ("resources",))
        if _is_known(tree, fields) and not _has_names(fields.get("resources")):
            message = "it names no resources; give it some or remove it"
            self._wrong(fields.get("resources", tree), path, message)
        for name, value, at in self._named(fields, path, "resources", check_level_resource):
            self._level(value, at, LevelAddress("entity", entity_id, name))

    def _level(self, tree: Node, path: KeyPath, address: LevelAddress) -> None:
        fields = self._fields(tree, path, ("limits", *SETTINGS))
        named = self._named(fields, path, "limits", validate_limit_name)
        read = [self._limit(value, at, name) for name, value, at in named]
        limits = sorted((limit for limit in read if limit is not None), key=lambda limit: limit.name)
        if (
            fields.keys().isdisjoint(SETTINGS)
            and _is_known(tree, fields)
            and not _has_names(fields.get("limits"))
        ):
            self._wrong(tree, path, f"it says nothing; give it limits, {_either(SETTINGS)}, or remove it")
        policy, bypass = (self._chosen(fields, path, *one) for one in _CHOICES.items())
        disabled, cascade = self._disabled(fields, path), self._flag(fields, "cascade", path)
        if disabled is not None and bypass is not None:
            self._wrong(fields["bypass"], (*path, "bypass"), "a level has one switch: disabled or bypass")
            bypass = None
        if len(limits) > LIMITS_MAX:
            self._wrong(fields["limits"], (*path, "limits"), f"one level has at most {LIMITS_MAX} limits")
        if len(self.levels) == LEVELS_MAX:
            self._wrong(tree, path, f"a manifest has at most {LEVELS_MAX} levels")
            raise _Enough
        said = {"disabled": disabled, "bypass": bypass, "cascade": cascade}
        self.levels[address] = LimiterConfig(tuple(limits), policy, **said)

    def _limit(self, tree: Node, path: KeyPath, name: str) -> Limit | None:
        fields = self._fields(tree, path, LIMIT_FIELDS)
        if "capacity" not in fields:
            if _is_known(tree, fields):
                self._wrong(tree, path, "its capacity is missing")
            return None
        soft = self._flag(fields, "soft", path)
        others = {key: node for key, node in fields.items() if key not in ("soft", "schedule")}
        limit = self._hard_limit(others, path, name)
        if limit is not None and "schedule" in fields:
            limit = self._scheduled(limit, fields["schedule"], (*path, "schedule"))
        return limit.softly() if limit is not None and soft else limit

    def _scheduled(self, limit: Limit, tree: Node, path: KeyPath) -> Limit | None:
        """A limit with other numbers at other times."""
        text = self._checked(tree, path, partial(check_schedule, "schedule"))
        if text is None:
            return None
        if limit.accrual is not None:
            self._wrong(tree, path, "only a plain rate can have a schedule; leave out one of the two")
            return None
        return replace(limit, schedule=text)

    def _hard_limit(self, fields: Fields, path: KeyPath, name: str) -> Limit | None:
        """The numbers of a limit, whatever becomes of what goes beyond them."""
        capacity = self._number(fields, "capacity", path, TOKENS_MAX)
        unit = None
        if "unit" in fields:
            unit = self._checked(fields["unit"], (*path, "unit"), partial(check_unit, "unit"))
            if unit is None:
                return None
        if not fields.keys().isdisjoint(LASTING.values()):
            return self._lasting(fields, path, name, capacity, unit)
        amount = self._number(fields, "refill_amount", path, TOKENS_MAX, capacity)
        period, accrual = self._number(fields, "refill_period", path, PERIOD_SECONDS_MAX, 60), None
        if "period" in fields or "tz" in fields:
            period, accrual = self._calendar(fields, path) or (None, None)
        if capacity is None or amount is None or period is None:
            return None
        return Limit(name, capacity, amount, period, accrual, unit)

    def _lasting(
        self, fields: Fields, path: KeyPath, name: str, capacity: int | None, unit: str | None
    ) -> Limit | None:
        """A limit whose accrual says how long something lasts: a seat that is held, or a window."""
        accrual, field = next((accrual, field) for accrual, field in LASTING.items() if field in fields)
        others = fields.keys() - {"capacity", "unit", field}
        for other in others:
            message = f"a limit with a {field} has nothing but its capacity"
            self._wrong(fields[other], (*path, other), message)
        lasts = self._checked(fields[field], (*path, field), partial(_checked_duration, field))
        if capacity is None or lasts is None or others:
            return None
        try:
            return Limit(name, capacity, capacity, seconds_of(field, lasts), accrual, unit)
        except ValidationError as error:
            self._wrong(fields[field], path, f"{error.field} {error.value}: {error.reason}")
            return None

    def _calendar(self, fields: Fields, path: KeyPath) -> tuple[int, str] | None:
        """A calendar period in a time zone: how long its longest is, and its text."""
        if "period" not in fields:
            self._wrong(fields["tz"], (*path, "tz"), f"a zone needs a period: {_either(tuple(PERIODS))}")
            return None
        if "refill_period" in fields:
            message = "a calendar period has its own length; leave refill_period out"
            self._wrong(fields["refill_period"], (*path, "refill_period"), message)
            return None
        tz = "UTC"
        if "tz" in fields:
            found = self._checked(fields["tz"], (*path, "tz"), check_zone)
            if found is None:
                return None
            tz = found
        period = self._checked(fields["period"], (*path, "period"), check_period)
        return None if period is None else (period_seconds(calendar(period, tz)), calendar(period, tz))

    def _number(
        self, fields: Fields, key: str, path: KeyPath, value_max: int, default: int | None = None
    ) -> int | None:
        if key not in fields:
            return default
        tree = fields[key]
        if tree.kind != WORD or not tree.plain or not _NUMBER.fullmatch(tree.text):
            self._wrong(tree, (*path, key), f"write a whole number such as 1000, not {_shown(tree)}")
            return None
        digits = tree.text.replace("_", "")
        try:
            # Python refuses to read numbers of thousands of digits; they are too large in any case.
            return check_count(key, int(digits[: len(str(value_max)) + 1]), value_max)
        except ValidationError as error:
            self._wrong(tree, (*path, key), f"{error.reason}, not {digits[:40]}")
            return None

    def _chosen(self, fields: Fields, path: KeyPath, key: str, words: type[Choice]) -> Any:
        """One of some words, if the field is there."""
        if key not in fields:
            return None
        tree, choices = fields[key], [word.value for word in words]
        if tree.kind == WORD and tree.text in choices:
            return words(tree.text)
        told = f"use {_either(choices)}, not {tree}{_did_you_mean(tree.text, choices)}"
        self._wrong(tree, (*path, key), told)
        return None

    def _disabled(self, fields: Fields, path: KeyPath) -> str | Literal[False] | None:
        """Why a level is off; ``false`` if it is on whatever broader levels say."""
        if "disabled" not in fields:
            return None
        tree, at = fields["disabled"], (*path, "disabled")
        if tree.kind == WORD and tree.plain and tree.text in ("false", "False", "FALSE"):
            return False
        is_flag = tree.plain and tree.text.lower() in YES_OR_NO
        if tree.kind != WORD or tree.is_nothing or is_flag:
            told = f"give the reason as text, or false where it is on in any case, not {_shown(tree)}"
            self._wrong(tree, at, told)
            return None
        try:
            return check_reason(tree.text)
        except ValidationError as error:
            self._wrong(tree, at, error.reason)
            return None

    def _flag(self, fields: Fields, key: str, path: KeyPath) -> bool | None:
        """Yes or no, if the field is there."""
        if key not in fields:
            return None
        tree = fields[key]
        if tree.kind == WORD and tree.plain and tree.text.lower() in ("true", "false"):
            return tree.text.lower() == "true"
        self._wrong(tree, (*path, key), f"write true or false, not {_shown(tree)}")
        return None

    def _fields(self, tree: Node, path: KeyPath, allowed: Sequence[str]) -> Fields:
        """The values of a mapping whose keys are known; the first of several counts."""
        found: Fields = {}
        for key, value in self._entries(tree, path, f"a mapping with {_either(allowed)}"):
            if key.text in allowed:
                found[key.text] = value
            else:
                hint = _did_you_mean(key.text, allowed)
                self._wrong(key, path, f"unknown key {key.text!r}; use {_either(allowed)}{hint}")
        return found

    def _named(
        self, fields: Fields, path: KeyPath, field: str, check: Callable[[str], str]
    ) -> Iterator[tuple[str, Node, KeyPath]]:
        """The values of a mapping whose keys are names, if the field is there."""
        tree = fields.get(field)
        if tree is None or tree.is_nothing:
            return
        for key, value in self._entries(tree, (*path, field), "a mapping from names"):
            at = (*path, field, key.text)
            if self._checked(key, at, check) is not None:
                yield key.text, value, at

    def _entries(self, tree: Node, path: KeyPath, expected: str) -> Iterator[tuple[Node, Node]]:
        if tree.kind != MAPPING:
            self._wrong(tree, path, f"expected {expected}, found {_shown(tree)}")
        first: dict[str, Node] = {}
        for key, value in tree.entries:
            if key.plain and key.text == "<<":
                self._wrong(key, path, "nothing is merged here; write it out, or quote '<<' if it is a name")
            elif key.text in first:
                before = f"; the first is in line {first[key.text].line}" if key.line else ""
                self._wrong(key, path, f"{key.text!r} is given twice{before}")
            else:
                first[key.text] = key
                yield key, value

    def _checked(self, tree: Node, path: KeyPath, check: Callable[[str], str]) -> str | None:
        """A name that follows its rules."""
        if tree.kind != WORD:
            self._wrong(tree, path, f"expected a name, found {tree}")
            return None
        try:
            return check(tree.text)
        except ValidationError as error:
            self._wrong(tree, path, f"invalid {error.field} {tree.text!r}: {error.reason}")
            return None

    def _wrong(self, tree: Node, path: KeyPath, message: str) -> None:
        self.problems.append(Problem(tree.line, tree.column, path, message))


def _checked_duration(field: str, text: str) -> str:
    return written(seconds_of(field, int(text) if text.isdecimal() and len(text) < 12 else text))


def _is_known(tree: Node, fields: Fields) -> bool:
    """Whether every key of a mapping was understood; otherwise what is missing may be what was not."""
    return tree.kind == MAPPING and len(tree.entries) == len(fields)


def _has_names(tree: Node | None) -> bool:
    """Whether a mapping from names has any; what is no mapping at all is told elsewhere."""
    return tree is not None and not tree.is_nothing and (tree.kind != MAPPING or bool(tree.entries))


def _shown(tree: Node) -> str:
    """A value as the reader of a message knows it from the file."""
    return str(tree) if tree.plain else f"{tree} in quotes"


def _either(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def _did_you_mean(word: str, allowed: Sequence[str]) -> str:
    near = get_close_matches(word, allowed, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
