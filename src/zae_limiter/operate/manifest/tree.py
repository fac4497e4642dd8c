"""From text to a tree whose parts know where they stand.

A scalar stays the text that was written, so that an entity called ``007`` or ``on`` is called so, and
no tag makes anything. The tree of YAML is built from the parser's events on a stack of our own: no
text can make it recurse. JSON needs no package, which is how a function without PyYAML reads a
manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from ...exceptions import InfrastructureError
from .model import ManifestError, Problem

TEXT_BYTES_MAX = 32_000_000
DEPTH_MAX = 64
"""A manifest has seven levels. Parsers of YAML take ever longer for each one more."""


class Scalar(NamedTuple):
    """One word; ``plain`` if it was written without quotes."""

    text: str
    plain: bool = True
    line: int = 0
    column: int = 0

    @property
    def is_nothing(self) -> bool:
        """Whether it is how YAML writes that there is no value."""
        return self.plain and self.text in ("", "~", "null", "Null", "NULL")

    def __str__(self) -> str:
        return "nothing" if self.is_nothing else repr(self.text)


class Table(NamedTuple):
    """Keys and values in the order of the text, duplicates included."""

    entries: tuple[tuple[Scalar, Tree], ...]
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return "a mapping"


class Other(NamedTuple):
    """Something that no manifest has, such as a list."""

    kind: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return self.kind


Tree: TypeAlias = Scalar | Table | Other


def read_yaml(data: bytes, source: str) -> Tree:
    """The one document that a text holds."""
    try:
        import yaml
    except ImportError as error:
        raise InfrastructureError(
            "reading YAML needs PyYAML, which is not installed; install this package with its extra: cli"
        ) from error
    text = _decoded(data, source)
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = _Builder(source).built(yaml.parse(text, fast))
    except yaml.YAMLError as error:
        raise ManifestError(source, (_misread(_told_slowly(yaml, text) or error, text),)) from error
    if root is None:
        raise _broken(source, "the file is empty; a manifest that wants nothing says so: {}")
    return root


def read_json(text: str, source: str) -> Tree:
    """A manifest in JSON. Nothing in it has a line of its own."""
    try:
        return _of_json(json.loads(text, object_pairs_hook=_Pairs))
    except (ValueError, RecursionError) as error:
        raise _broken(source, f"it is not JSON: {error}") from error


def _decoded(data: bytes, source: str) -> str:
    if len(data) > TEXT_BYTES_MAX:
        raise _broken(source, f"it has {len(data)} bytes; at most {TEXT_BYTES_MAX} are read")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _broken(source, f"it is not UTF-8: {error}") from error


class _Open:
    """A collection whose end has not come yet."""

    def __init__(self, event: Any, line: int, column: int) -> None:
        self.is_table = "Mapping" in type(event).__name__
        self.anchor, self.tag, self.line, self.column = event.anchor, event.tag, line, column
        self.parts: list[Tree] = []

    def closed(self) -> Tree:
        at = (self.line, self.column)
        if self.tag is not None:
            return Other(f"a value with the tag {self.tag!r}", *at)
        if not self.is_table:
            return Other("a list", *at)
        keys = [_as_key(part) for part in self.parts[::2]]
        return Table(tuple(zip(keys, self.parts[1::2], strict=True)), *at)


class _Builder:
    """Puts the parser's events together."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._open: list[_Open] = []
        self._anchored: dict[str, Tree] = {}
        self._root: Tree | None = None

    def built(self, events: Iterable[Any]) -> Tree | None:
        for event in events:
            line, column = event.start_mark.line + 1, event.start_mark.column + 1
            match type(event).__name__:
                case "MappingStartEvent" | "SequenceStartEvent":
                    if len(self._open) == DEPTH_MAX:
                        raise self._problem(line, column, f"it is nested more than {DEPTH_MAX} levels deep")
                    self._open.append(_Open(event, line, column))
                case "MappingEndEvent" | "SequenceEndEvent":
                    ended = self._open.pop()
                    self._add(ended.closed(), ended.anchor)
                case "ScalarEvent":
                    self._add(_scalar(event, line, column), event.anchor)
                case "AliasEvent":
                    if event.anchor not in self._anchored:
                        raise self._problem(line, column, f"nothing before it is called &{event.anchor}")
                    self._add(self._anchored[event.anchor], None)
                case "DocumentStartEvent" if self._root is not None:
                    raise self._problem(line, column, "a second document starts here; a manifest is one")
        return self._root

    def _add(self, part: Tree, anchor: str | None) -> None:
        if anchor is not None:
            self._anchored[anchor] = part
        if self._open:
            self._open[-1].parts.append(part)
        elif not (isinstance(part, Scalar) and part.is_nothing):
            self._root = part

    def _problem(self, line: int, column: int, message: str) -> ManifestError:
        return ManifestError(self._source, (Problem(line, column, (), message),))


def _scalar(event: Any, line: int, column: int) -> Tree:
    if event.tag is not None:
        return Other(f"a value with the tag {event.tag!r}", line, column)
    return Scalar(event.value, event.style in (None, ""), line, column)


def _as_key(part: Tree) -> Scalar:
    """A key that is no word stays one that nobody can mean, for no name holds a ``#``."""
    return part if isinstance(part, Scalar) else Scalar(f"#<{part}>", True, part.line, part.column)


def _told_slowly(yaml: Any, text: str) -> Exception | None:
    """What the parser in Python objects to; its words are the same everywhere."""
    try:
        for _ in yaml.parse(text, yaml.SafeLoader):
            pass
    except yaml.YAMLError as error:
        told: Exception = error
        return told
    return None


def _misread(error: Any, text: str) -> Problem:
    """Where YAML stumbled, and over what."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    words = (getattr(error, name, None) for name in ("context", "problem", "reason"))
    message = f"it is not YAML: {', '.join(word for word in words if word) or error}"
    if mark is not None:
        return Problem(mark.line + 1, mark.column + 1, (), message)
    before = text[: getattr(error, "position", None) or 0]
    return Problem(before.count("\n") + 1, len(before) - before.rfind("\n"), (), message)


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON with all its keys."""


def _of_json(value: Any) -> Tree:
    if isinstance(value, _Pairs):
        return Table(tuple((Scalar(key, plain=False), _of_json(one)) for key, one in value))
    if isinstance(value, list):
        return Other("a list")
    if isinstance(value, str):
        return Scalar(value, plain=False)
    return Scalar(json.dumps(value))


def _broken(source: str, message: str) -> ManifestError:
    return ManifestError(source, (Problem(0, 0, (), message),))
