"""From text to a tree whose parts know where they stand.

A word stays the text that was written, so that an entity called ``007`` or ``on`` is called so, and
no tag makes anything. The tree of YAML is built from the parser's events on a stack of our own: no
text can make it recurse. JSON needs no package, which is how a function without PyYAML reads a
manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from ...exceptions import InfrastructureError
from .model import ManifestError, Problem

TEXT_BYTES_MAX = 32_000_000
DEPTH_MAX = 64
"""A manifest has seven levels. Parsers of YAML take ever longer for each one more."""

WORD, MAPPING, LIST = "a word", "a mapping", "a list"


class Node(NamedTuple):
    """A word, a mapping, a list, or something that no text of ours has, such as a value with a tag."""

    kind: str
    text: str = ""
    """Of a word."""
    plain: bool = True
    """Whether a word was written without quotes."""
    entries: tuple[tuple[Node, Node], ...] = ()
    """Of a mapping: keys, which are words, and values in the order of the text, duplicates included."""
    items: tuple[Node, ...] = ()
    """Of a list."""
    line: int = 0
    column: int = 0

    @property
    def is_nothing(self) -> bool:
        """Whether it is how YAML writes that there is no value."""
        return self.kind == WORD and self.plain and self.text in ("", "~", "null", "Null", "NULL")

    def __str__(self) -> str:
        return self.kind if self.kind != WORD else "nothing" if self.is_nothing else repr(self.text)


def read_yaml(data: bytes, source: str, nothing: str = "a manifest that wants nothing says so: {}") -> Node:
    """The one document that a text holds; ``nothing`` says how to write that there is none."""
    try:
        import yaml
    except ImportError as error:
        raise InfrastructureError(
            "reading YAML needs PyYAML, which is not installed; install this package with its extra: cli"
        ) from error
    if len(data) > TEXT_BYTES_MAX:
        raise _broken(source, f"it has {len(data)} bytes; at most {TEXT_BYTES_MAX} are read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _broken(source, f"it is not UTF-8: {error}") from error
    try:
        root = _built(yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), source)
    except yaml.YAMLError as error:
        raise ManifestError(source, _misread(yaml, error, text)) from error
    if root is None:
        raise _broken(source, f"the file is empty; {nothing}")
    return root


def read_json(text: str, source: str) -> Node:
    """A manifest in JSON. Nothing in it has a line of its own."""
    try:
        return _of_json(json.loads(text, object_pairs_hook=_Pairs))
    except (ValueError, RecursionError) as error:
        raise _broken(source, f"it is not JSON: {error}") from error


def _built(events: Iterable[Any], source: str) -> Node | None:
    """The parser's events put together; nothing if they hold no document."""
    root: Node | None = None
    anchored: dict[str, Node] = {}
    unfinished: list[tuple[Any, list[Node]]] = []
    """Collections whose end has not come yet: how each began, and its parts so far."""
    for event in events:
        at = event.start_mark.line + 1, event.start_mark.column + 1
        start, name = event, type(event).__name__
        match name:
            case "MappingStartEvent" | "SequenceStartEvent":
                if len(unfinished) == DEPTH_MAX:
                    raise _broken(source, f"it is nested more than {DEPTH_MAX} levels deep", *at)
                unfinished.append((event, []))
                continue
            case "MappingEndEvent" | "SequenceEndEvent":
                start, parts = unfinished.pop()
                if name == "MappingEndEvent":
                    node = _node(start, MAPPING, entries=_entries(parts))
                else:
                    node = _node(start, LIST, items=tuple(parts))
            case "ScalarEvent":
                node = _node(event, WORD, text=event.value, plain=event.style in (None, ""))
            case "AliasEvent":
                if event.anchor not in anchored:
                    raise _broken(source, f"nothing before it is called &{event.anchor}", *at)
                node = anchored[event.anchor]
            case "DocumentStartEvent" if root is not None:
                raise _broken(source, "a second document starts here; a manifest is one", *at)
            case _:
                continue
        if start.anchor is not None:
            anchored[start.anchor] = node
        if unfinished:
            unfinished[-1][1].append(node)
        elif not node.is_nothing:
            root = node
    return root


def _node(event: Any, kind: str, **more: Any) -> Node:
    """What begins with an event; a tag makes it something that no manifest has."""
    line, column = event.start_mark.line + 1, event.start_mark.column + 1
    if event.tag is not None:
        return Node(f"a value with the tag {event.tag!r}", line=line, column=column)
    return Node(kind, line=line, column=column, **more)


def _entries(parts: list[Node]) -> tuple[tuple[Node, Node], ...]:
    # A key that is no word stays one that nobody can mean, for no name holds a `#`.
    keys = [key if key.kind == WORD else key._replace(kind=WORD, text=f"#<{key}>") for key in parts[::2]]
    return tuple(zip(keys, parts[1::2], strict=True))


def _misread(yaml: Any, error: Any, text: str) -> Problem:
    """Where YAML stumbled, and over what."""
    try:  # the words of the parser in Python are the same everywhere
        for _ in yaml.parse(text, yaml.SafeLoader):
            pass
    except yaml.YAMLError as told:
        error = told
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    words = (getattr(error, name, None) for name in ("context", "problem", "reason"))
    message = f"it is not YAML: {', '.join(word for word in words if word) or error}"
    if mark is not None:
        return Problem(mark.line + 1, mark.column + 1, (), message)
    before = text[: getattr(error, "position", None) or 0]
    return Problem(before.count("\n") + 1, len(before) - before.rfind("\n"), (), message)


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON with all its keys."""


def _of_json(value: Any) -> Node:
    if isinstance(value, _Pairs):
        entries = ((Node(WORD, key, plain=False), _of_json(one)) for key, one in value)
        return Node(MAPPING, entries=tuple(entries))
    if isinstance(value, list):
        return Node(LIST, items=tuple(map(_of_json, value)))
    return Node(WORD, value, plain=False) if isinstance(value, str) else Node(WORD, json.dumps(value))


def _broken(source: str, message: str, line: int = 0, column: int = 0) -> ManifestError:
    return ManifestError(source, Problem(line, column, (), message))
