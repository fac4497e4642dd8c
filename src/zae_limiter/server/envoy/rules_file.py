"""Rules for descriptors from a file in YAML: every mistake is told with its line and column.

    domains:
      edge:
        - when: {api_key: }            # any key of an API
          entity: api_key
          resource: api
        - when: {generic_key: slow}    # one value, for everybody together
          entity: {id: everybody}

It is read when the server starts; ``docs/envoy.md`` has all that a rule can say.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...exceptions import ValidationError
from ...models import TOKENS_MAX, OnUnavailable
from ...naming import validate_entity_id, validate_limit_name, validate_resource
from ...operate.manifest.grammar import KeyPath, TreeReader
from ...operate.manifest.model import ManifestError
from ...operate.manifest.tree import LIST, MAPPING, WORD, Node, read_yaml
from .rules import RULES_MAX, DescriptorRule, DescriptorRules

_NOTHING = "a file that limits nothing says so: domains: {}"

RULE_FIELDS = ("when", "entity", "resource", "cost", "afterwards", "overrides", "on_unavailable")


def load_descriptor_rules(path: str | Path) -> DescriptorRules:
    """Read rules from a file, as they are now."""
    return parse_descriptor_rules(Path(path).read_bytes(), str(path))


def parse_descriptor_rules(data: bytes, source: str = "rules") -> DescriptorRules:
    """Read rules from a text; ``source`` is what mistakes are reported in."""
    reader = _DescriptorRulesReader()
    domains = reader.domains(read_yaml(data, source, _NOTHING))
    if reader.problems:
        raise ManifestError(source, *sorted(reader.problems))
    return DescriptorRules(domains)


class _DescriptorRulesReader(TreeReader):
    """Reads the tree of a file of rules for descriptors, and notes what is wrong with it."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def domains(self, tree: Node) -> dict[str, list[DescriptorRule]]:
        fields = self._fields(tree, (), ("domains",))
        if "domains" not in fields:
            if tree.kind == MAPPING:
                self._wrong(tree, (), f"it has no domains; {_NOTHING}")
            return {}
        if fields["domains"].is_nothing:
            return {}
        domains = self._entries(fields["domains"], ("domains",), "a mapping from domains")
        return {key.text: list(self._rules(value, key.text)) for key, value in domains}

    def _rules(self, tree: Node, domain: str) -> Iterator[DescriptorRule]:
        at: KeyPath = ("domains", domain)
        if tree.kind != LIST:
            self._wrong(tree, at, f"expected a list of rules, found {tree}")
            return
        seen: list[tuple[DescriptorRule, Node]] = []
        for number, item in enumerate(tree.items):
            self._count += 1
            if self._count > RULES_MAX:
                self._wrong(item, at, f"at most {RULES_MAX} rules are read")
                return
            rule = self._rule(item, (*at, str(number)), domain)
            if rule is None:
                continue
            if before := next((node for other, node in seen if other.covers(rule)), None):
                told = f"the rule in line {before.line} is for all of its descriptors, and comes before it"
                self._wrong(item, (*at, str(number)), told)
            seen.append((rule, item))
            yield rule

    def _rule(self, tree: Node, at: KeyPath, domain: str) -> DescriptorRule | None:
        before, fields = len(self.problems), self._fields(tree, at, RULE_FIELDS)
        said: dict[str, Any] = {"resource": domain}
        if "when" in fields:
            said["when"] = self._when(fields["when"], (*at, "when"))
        elif tree.kind == MAPPING:
            self._wrong(tree, at, "say for which descriptors it is, such as when: {api_key: }")
        if "entity" in fields:
            said |= self._whose(fields["entity"], (*at, "entity"))
        elif tree.kind == MAPPING:
            self._wrong(tree, at, "say which key names whoever asks, such as entity: api_key")
        if "resource" in fields:
            said["resource"] = self._checked(fields["resource"], (*at, "resource"), validate_resource)
        if "cost" in fields:
            said["cost"] = self._cost(fields["cost"], (*at, "cost"))
        for name in ("afterwards", "overrides"):
            if (flag := self._flag(fields, name, at)) is not None:
                said[name] = flag
        said["on_unavailable"] = self._chosen(fields, at, "on_unavailable", OnUnavailable)
        if len(self.problems) > before:  # what else is wrong may come from that
            return None
        try:
            return DescriptorRule(**said)
        except ValidationError as error:
            self._wrong(fields.get(error.field, tree), at, f"{error.field} {error.value!r}: {error.reason}")
            return None

    def _when(self, tree: Node, at: KeyPath) -> dict[str, frozenset[str] | None]:
        """Keys with the values that are meant: nothing for any, a word, or a list of them."""
        found: dict[str, frozenset[str] | None] = {}
        for key, value in self._entries(tree, at, "a mapping from keys of descriptors, such as {api_key: }"):
            if value.is_nothing:
                found[key.text] = None
                continue
            words = value.items if value.kind == LIST else (value,)
            texts = [self._checked(word, (*at, key.text), str) for word in words]
            if not texts:
                self._wrong(value, (*at, key.text), "it has no values; write nothing for any value")
            found[key.text] = frozenset(text for text in texts if text is not None)
        if tree.kind == MAPPING and not tree.entries:
            self._wrong(tree, at, "a descriptor has one key at least, such as {api_key: }")
        return found

    def _whose(self, tree: Node, at: KeyPath) -> dict[str, Any]:
        """The key of the entity as a word, or a mapping that says more of it."""
        if tree.kind == WORD:
            return {"entity": tree.text}
        fields = self._fields(tree, at, ("key", "id", "hashed"))
        said: dict[str, Any] = {}
        if "id" in fields:
            said["entity_id"] = self._checked(fields["id"], (*at, "id"), validate_entity_id)
        if "key" in fields:
            said["entity"] = self._checked(fields["key"], (*at, "key"), str)
        if (hashed := self._flag(fields, "hashed", at)) is not None:
            said["hashed"] = hashed
        return said

    def _cost(self, tree: Node, at: KeyPath) -> dict[str, int]:
        amounts = {}
        for key, value in self._entries(tree, at, "amounts by limit, such as {requests: 1}"):
            if (name := self._checked(key, (*at, key.text), validate_limit_name)) is not None:
                amounts[name] = self._number({name: value}, name, at, TOKENS_MAX) or 1
        return amounts
