"""Updates as finished JSON: a shape of write is compiled once, then only its values are filled in.

An acquire sends the same update again and again with other numbers. Its *shape* is what its expressions
depend on: which attributes are set and added to, which conditions ask about which, and the type of each
value. The text of a shape is made from ``write_request``, which stays the only definition of what a
write means to DynamoDB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from ...repository_protocol import Update, Value
from .expressions import INTEGER_MAX, PARTITION, SORT, Payload, encode, write_request

SHAPES_MAX = 1_000
"""How many shapes are kept: limits that come and go must not fill the memory."""

SLOTS = {"N": '{"N":"%s"}', "S": '{"S":%s}', "BOOL": '{"BOOL":%s}', "NULL": '{"NULL":true}'}
"""Where the value of a placeholder goes, by its type."""

INTEGERS = frozenset({int})
SLOTTED = frozenset({int, str, bool, type(None)})


class Rendered(Mapping[str, Any]):
    """A request that is JSON already, for who sends text; for others it is a request like any."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def fields(self) -> Payload:
        fields: Payload = json.loads(self.text)
        return fields

    def __getitem__(self, name: str) -> Any:
        return self.fields()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields())

    def __len__(self) -> int:
        return len(self.fields())

    def __or__(self, other: Mapping[str, Any]) -> Payload:
        return self.fields() | dict(other)


class Shapes:
    """The shapes of update that one table has seen."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._templates: dict[tuple[object, ...], tuple[str, bool]] = {}
        """The text of each shape, and whether nothing but integers goes into it."""

    def update_request(self, write: Update) -> Rendered | Payload:
        """The request that performs an update and returns the new image."""
        key, add, set_, when = write
        asking = [condition for condition in when if condition]
        values: list[Any] = [*set_.values(), *add.values(), *[condition[1] for condition in asking]]
        kinds = tuple(map(type, values))
        shape = (*set_, None, *add, None, *map(type, when), None, *[c[0] for c in asking], kinds)
        known = self._templates.get(shape)
        if known is None:
            if not SLOTTED.issuperset(kinds):
                return self._unshaped(write)
            known = self._learn(shape, write, INTEGERS.issuperset(kinds))
        template, plain = known
        if not plain or (values and (max(values) > INTEGER_MAX or min(values) < -INTEGER_MAX)):
            values = [filling for value in values for filling in _fillings(value)]
        return Rendered(template % (quoted(key.partition), quoted(key.sort), *values))

    def _unshaped(self, write: Update) -> Payload:
        _, request = write_request(self._table, write)
        return request | {"ReturnValues": "ALL_NEW"}

    def _learn(self, shape: tuple[object, ...], write: Update, plain: bool) -> tuple[str, bool]:
        request = self._unshaped(write)
        del request["Key"]
        marks = request.pop("ExpressionAttributeValues", {})
        fixed = json.dumps(request, separators=(",", ":")).replace("%", "%%").removesuffix("}")
        slots = ",".join(f'"{mark}":{SLOTS[kind]}' for mark, value in marks.items() for kind in value)
        template = f'{fixed},"Key":{{"{PARTITION}":{SLOTS["S"]},"{SORT}":{SLOTS["S"]}}}'
        template += f',"ExpressionAttributeValues":{{{slots}}}}}' if slots else "}"
        if len(self._templates) >= SHAPES_MAX:
            self._templates.clear()
        known = self._templates[shape] = (template, plain)
        return known


def _fillings(value: Value) -> tuple[object, ...]:
    """What goes into the slot of a value; that of ``None`` has room for nothing."""
    if value is None:
        return ()
    ((kind, content),) = encode(value).items()
    return (content,) if kind == "N" else (json.dumps(content),)
