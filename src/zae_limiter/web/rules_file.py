"""Rules from a file in YAML or JSON, read like a manifest: every mistake is told with its line and column.

A rule is an entry of ``rules``: its path, with methods before it if only those are meant, and what there is
to say of it. What only a program can say, such as a meter, is called by a name that the program gives. The
file is looked at again when requests come, at most once a second and beside them: nobody waits for it. A new
file that cannot be used is told once, and the rules that were good go on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

from ..exceptions import ValidationError
from ..models import PERIOD_SECONDS_MAX, TOKENS_MAX, OnUnavailable
from ..models.leases import OnError
from ..naming import validate_entity_id, validate_limit_name
from ..operate.manifest.grammar import Fields, KeyPath, TreeReader
from ..operate.manifest.model import ManifestError
from ..operate.manifest.tree import LIST, MAPPING, WORD, Node, read_json, read_yaml
from ..runtime.colour import ForkSafe
from ..runtime.logs import logger
from ..runtime.world import World
from .identity import Identity, api_key, bearer, claim, client_address
from .rules import Match, Rule, Rules

_NOTHING = "a file that limits nothing says so: rules: {}"

LOOK_MS = 1_000
"""How often a file is looked at, at most."""

RULE_FIELDS = (
    *("resource", "cost", "entity", "limits", "wait", "on_unavailable", "on_error"),
    *("usage", "messages", "exempt"),
)
ENTITY_FIELDS = (
    *("id", "from", "header", "claim", "state", "anonymous", "hashed"),
    *("trusted", "v4_prefix", "v6_prefix"),
)
SOURCES: Mapping[str, tuple[Callable[..., Identity], tuple[str, ...]]] = {
    "api_key": (api_key, ("header", "anonymous", "hashed")),
    "bearer": (bearer, ("anonymous", "hashed")),
    "claim": (claim, ("claim", "state", "anonymous")),
    "client_address": (client_address, ("trusted", "header", "v4_prefix", "v6_prefix")),
}
"""Where a file can say that an entity comes from, and what else it says of that."""

Given: TypeAlias = Mapping[str, Callable[..., Any]]
"""Callables of a program by the names that a file calls them."""

_beside = ForkSafe(lambda: ThreadPoolExecutor(1, "zae-limiter-rules"))


def load_rules(path: str | Path, given: Given | None = None, entity: str | Identity | None = None) -> Rules:
    """Read rules from a file, as they are now."""
    data = Path(path).read_bytes()
    if Path(path).suffix.lower() == ".json":
        return parse_rules_json(data, str(path), given, entity)
    return _rules_of(read_yaml(data, str(path), _NOTHING), str(path), given, entity)


def parse_rules_json(
    data: bytes, source: str, given: Given | None = None, entity: str | Identity | None = None
) -> Rules:
    """Read rules in JSON, for which nothing needs to be installed; with PyYAML mistakes have lines, too."""
    try:
        return _rules_of(read_json(data.decode("utf-8-sig", "replace"), source), source, given, entity)
    except ManifestError as error:
        try:
            _rules_of(read_yaml(data, source, _NOTHING), source, given, entity)
        except ManifestError as placed:
            raise placed from None
        except Exception:  # PyYAML is not there
            raise error from None
        raise


def _rules_of(tree: Node, source: str, given: Given | None, entity: str | Identity | None) -> Rules:
    reader = _RulesReader(given or {}, entity)
    rules = reader.rules(tree)
    if reader.problems:
        raise ManifestError(source, *sorted(reader.problems))
    return Rules(rules, entity=reader.entity)


class _RulesReader(TreeReader):
    """Reads the tree of a file of rules, and notes what is wrong with it."""

    def __init__(self, given: Given, entity: str | Identity | None) -> None:
        super().__init__()
        self._given, self.entity = given, entity
        self._is_entity_wrong = False

    def rules(self, tree: Node) -> list[Rule]:
        fields = self._fields(tree, (), ("entity", "rules"))
        if "entity" in fields:
            found = self._whose(fields["entity"], ("entity",))
            self.entity = found if found is not None else self.entity
            self._is_entity_wrong = found is None
        if "rules" not in fields:
            if tree.kind == MAPPING:
                self._wrong(tree, (), f"it has no rules; {_NOTHING}")
            return []
        return list(self._listed(fields["rules"]))

    def _listed(self, tree: Node) -> Iterator[Rule]:
        if tree.is_nothing:
            return
        for key, value in self._entries(tree, ("rules",), "a mapping from paths"):
            if (rule := self._rule(key, value, ("rules", key.text))) is not None:
                yield rule

    def _rule(self, key: Node, tree: Node, at: KeyPath) -> Rule | None:
        *methods, path = key.text.split() or [""]
        said: dict[str, Any] = {}
        before, fields = len(self.problems), self._fields(tree, at, RULE_FIELDS)
        if methods:
            said["methods"] = [one for word in methods for one in word.split(",") if one]
        if (exempt := self._flag(fields, "exempt", at)) is not None:
            said["exempt"] = exempt
        if "entity" in fields:
            said["entity"] = self._whose(fields["entity"], (*at, "entity"))
        if "resource" in fields:
            said["resource"] = self._checked(fields["resource"], (*at, "resource"), str)
        for name in ("cost", "messages"):
            if name in fields:
                said[name] = self._cost(fields[name], (*at, name))
        if "usage" in fields:
            said["usage"] = self._called(fields["usage"], (*at, "usage"))
        if "wait" in fields:
            said["wait"] = self._seconds(fields["wait"], (*at, "wait"))
        said["on_unavailable"] = self._chosen(fields, at, "on_unavailable", OnUnavailable)
        said["on_error"] = self._chosen(fields, at, "on_error", OnError)
        if "limits" in fields:
            named = self._named(fields, at, "limits", validate_limit_name)
            read = [self._limit(value, where, name) for name, value, where in named]
            said["limits"] = [limit for limit in read if limit is not None]
        if len(self.problems) > before:  # what else is wrong may come from that
            return None
        is_somebodys = self.entity is not None or self._is_entity_wrong  # which was told already
        if not exempt and "entity" not in fields and not is_somebodys:
            self._wrong(key, at, "say whose requests they are: entity: api_key, here or for the whole file")
            return None
        try:
            return Rule(path, **said)
        except ValidationError as error:
            self._wrong(key, at, f"{error.field} {error.value!r}: {error.reason}")
            return None

    def _whose(self, tree: Node, at: KeyPath) -> str | Identity | None:
        """A word for where it comes from, or a mapping that says more of it."""
        if tree.kind == WORD:
            if tree.text in SOURCES and tree.text != "claim":
                return SOURCES[tree.text][0]()
            named: Identity | None = self._called(tree, at, "; or one of api_key, bearer, client_address")
            return named
        fields = self._fields(tree, at, ENTITY_FIELDS)
        if "id" in fields:
            return self._checked(fields["id"], (*at, "id"), validate_entity_id)
        source = fields.get("from")
        if source is None or source.text not in SOURCES:
            self._wrong(source or tree, (*at, "from"), f"say from where: {', '.join(SOURCES)}; or an id")
            return None
        make, known = SOURCES[source.text]
        options = self._options(fields, at)
        if unknown := [name for name in fields if name not in (*known, "from")]:
            self._wrong(
                fields[unknown[0]], at, f"{source.text} has {', '.join(known)}, and no {unknown[0]!r}"
            )
            return None
        if source.text == "claim":
            if "claim" not in options:
                self._wrong(tree, at, "say which claim, such as claim: sub")
                return None
            options["name"] = options.pop("claim")
        try:
            return make(**options)
        except ValidationError as error:
            self._wrong(tree, at, f"{error.field} {error.value!r}: {error.reason}")
            return None

    def _options(self, fields: Fields, at: KeyPath) -> dict[str, Any]:
        options: dict[str, Any] = {}
        for name in ("header", "claim", "state", "anonymous"):
            if name in fields and (word := self._checked(fields[name], (*at, name), str)) is not None:
                options[name] = word
        if "trusted" in fields:
            tree = fields["trusted"]
            words = tree.items if tree.kind == LIST else (tree,)
            texts = [self._checked(word, (*at, "trusted"), str) for word in words]
            options["trusted"] = [one for text in texts for one in (text or "").replace(",", " ").split()]
        for name, most in (("v4_prefix", 32), ("v6_prefix", 128)):
            if (number := self._number(fields, name, at, most)) is not None:
                options[name] = number
        if (hashed := self._flag(fields, "hashed", at)) is not None:
            options["hashed"] = hashed
        return options

    def _cost(self, tree: Node, at: KeyPath) -> Any:
        if tree.kind == WORD:
            return self._called(tree, at, "; or amounts by limit: {rpm: 1}")
        amounts = {}
        for key, value in self._entries(tree, at, "amounts by limit, or a name that the program gives"):
            if (name := self._checked(key, (*at, key.text), validate_limit_name)) is not None:
                amounts[name] = self._number({name: value}, name, at, TOKENS_MAX) or 0
        return amounts

    def _called(self, tree: Node, at: KeyPath, hint: str = "") -> Any:
        """What a program has given a name."""
        if tree.kind == WORD and tree.text in self._given:
            return self._given[tree.text]
        names = ", ".join(sorted(self._given)) or "none"
        self._wrong(tree, at, f"expected a name that the program gives, of which there are: {names}{hint}")
        return None

    def _seconds(self, tree: Node, at: KeyPath) -> float | None:
        try:
            if tree.kind == WORD and tree.plain and 0 <= float(tree.text) <= PERIOD_SECONDS_MAX:
                return float(tree.text)
        except ValueError:
            pass
        self._wrong(tree, at, f"write seconds such as 2.5, not {tree}")
        return None


class FileRules(Rules):
    """Rules of a file, which is looked at again from time to time."""

    def __init__(
        self,
        path: str | Path,
        given: Given | None = None,
        entity: str | Identity | None = None,
        world: World | None = None,
    ) -> None:
        self._path, self._given, self._default = Path(path), given, entity
        self._ticks_ms = (world or World()).ticks_ms
        self._mark = self._seen()
        self._now = load_rules(path, given, entity)
        self._look_at_ms = self._ticks_ms() + LOOK_MS
        self.entity: str | Identity | None = self._now.entity

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._now)

    def __len__(self) -> int:
        return len(self._now)

    def match(self, method: str, path: str) -> Match | None:
        return self.current().match(method, path)

    def current(self) -> Rules:
        """The rules that count now; the file is looked at beside this, if it is time to."""
        now_ms = self._ticks_ms()
        if now_ms >= self._look_at_ms:
            self._look_at_ms = now_ms + LOOK_MS
            try:
                _beside.get().submit(self.look)
            except RuntimeError:  # the interpreter is going down
                logger.debug("%s is not looked at any more", self._path)
        return self._now

    def look(self) -> None:
        """Read the file if it has changed. It never raises: rules that were good go on."""
        try:
            mark = self._seen()
            if mark == self._mark:
                return
            self._mark = mark  # whatever comes of it: what is broken is told once
            self._now = load_rules(self._path, self._given, self._default)
            logger.info("the rules of %s have changed: there are %s now", self._path, len(self._now))
        except Exception as error:
            logger.error("the rules of %s stay as they were, for it cannot be read: %s", self._path, error)

    def _seen(self) -> tuple[int, int, int] | None:
        """What tells one state of the file from another; nothing if it is not there."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
