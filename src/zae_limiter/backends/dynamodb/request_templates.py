"""Updates as finished JSON: a shape of write is compiled once, then only its values are filled in.

An acquire sends the same update again and again with other numbers. Its *shape* is what its expressions
depend on: which attributes are set and added to, which conditions ask about which, and the type of each
value. The text of a shape is made from ``write_request``, which stays the only definition of what a
write means to DynamoDB.
"""

from __future__ import annotations

import json
from itertools import chain
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from ...repository_protocol import Update, Value
from .expressions import INTEGER_MAX, PARTITION, SORT, Payload, Request, encode, write_request

SHAPES_MAX = 1_000
"""How many shapes are kept: limits that come and go must not fill the memory."""

SLOTS = {"N": '{"N":"%s"}', "S": '{"S":%s}', "BOOL": '{"BOOL":%s}', "NULL": '{"NULL":true}'}
"""Where the value of a placeholder goes, by its type."""

INTEGERS = frozenset({int, type(None)})
SLOTTED = frozenset({int, str, bool, type(None)})


class UpdateTemplates:
    """The shapes of update that one table has seen."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._templates: dict[tuple[object, ...], tuple[str, bool]] = {}
        """The text of each shape, and whether nothing but integers goes into it."""

    def request(self, write: Update) -> Request:
        """The request that performs an update and returns the new image."""
        (partition, sort), add, set_, when = write
        asked: list[Any] = list(chain.from_iterable(when))  # names and values in turn
        values = [*set_.values(), *add.values(), *asked[1::2]]
        kinds = tuple(map(type, values))
        shape = (*set_, None, *add, None, *map(type, when), *asked[::2], kinds)
        known = self._templates.get(shape)
        if known is None:
            request = write_request(self._table, write)[1] | {"ReturnValues": "ALL_NEW"}
            if not SLOTTED.issuperset(kinds):
                return request
            if len(self._templates) >= SHAPES_MAX:
                self._templates.clear()
            known = self._templates[shape] = (_template(request), INTEGERS.issuperset(kinds))
        template, is_plain = known
        values = [value for value in values if value is not None]  # whose slot has room for nothing
        if not is_plain or (values and (max(values) > INTEGER_MAX or min(values) < -INTEGER_MAX)):
            values = [filling for value in values for filling in _fillings(value)]
        return template % (quoted(partition), quoted(sort), *values)


def _template(request: Payload) -> str:
    """The JSON of a request with slots for its key and its values."""
    del request["Key"]
    marks = request.pop("ExpressionAttributeValues", {})
    fixed = json.dumps(request, separators=(",", ":")).replace("%", "%%").removesuffix("}")
    slots = ",".join(f'"{mark}":{SLOTS[kind]}' for mark, value in marks.items() for kind in value)
    template = f'{fixed},"Key":{{"{PARTITION}":{SLOTS["S"]},"{SORT}":{SLOTS["S"]}}}'
    return template + (f',"ExpressionAttributeValues":{{{slots}}}}}' if slots else "}")


def _fillings(value: Value) -> tuple[object, ...]:
    """What goes into the slot of a value."""
    ((kind, content),) = encode(value).items()
    return (content,) if kind == "N" else (json.dumps(content),)
