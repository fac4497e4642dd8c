"""What a request asks for: query parameters and fields of a body, checked, with mistakes told by their names.

Nothing is guessed: what is not known is refused, and so is what is said twice, so that a page which misspells
a name hears of it. Names of entities and resources are checked by those who read the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from starlette.requests import Request

from ..exceptions import ValidationError
from ..naming import validate_entity_id, validate_resource
from ..web.request import parsed_json

SIZE = 50
SIZE_MAX = 200
"""How many rows a page has at most."""
LETTERS_MAX = 8192
"""Longer than any cursor."""
INSTANT_MAX_MS = 32_503_680_000_000
"""The year 3000."""

T = TypeVar("T")


class ViewQuery:
    """The parameters of a request that looks."""

    def __init__(self, request: Request, known: Collection[str]) -> None:
        self._said: dict[str, str] = {}
        for name, value in request.query_params.multi_items():
            if name not in known:
                raise ValidationError(name[:64], value[:64], f"there is no such parameter; {_listed(known)}")
            if name in self._said:
                raise ValidationError(name, value[:64], "say it once")
            if len(value) > LETTERS_MAX:
                raise ValidationError(name, value[:64], f"use at most {LETTERS_MAX} characters")
            self._said[name] = value

    def text(self, name: str) -> str | None:
        """A text that may be missing; an empty one is."""
        return self._said.get(name) or None

    def needed(self, name: str) -> str:
        found = self.text(name)
        if found is None:
            raise ValidationError(name, self._said.get(name), f"name it: ?{name}=…")
        return found

    def entity(self) -> str:
        return validate_entity_id(self.needed("entity"))

    def resource(self) -> str:
        return validate_resource(self.needed("resource"))

    def maybe_entity(self) -> str | None:
        found = self.text("entity")
        return None if found is None else validate_entity_id(found)

    def maybe_resource(self) -> str | None:
        found = self.text("resource")
        return None if found is None else validate_resource(found)

    def choice(self, name: str, choices: Collection[str], otherwise: str | None = None) -> str:
        found = self.text(name) or otherwise
        if found is None or found not in choices:
            raise ValidationError(name, found, f"use {', '.join(choices)}")
        return found

    def number(self, name: str, most: int, otherwise: int | None = None, least: int = 1) -> int | None:
        found = self.text(name)
        if found is None:
            return otherwise
        if not (found.isascii() and found.isdecimal() and len(found) < 18 and least <= int(found) <= most):
            raise ValidationError(name, found[:64], f"use a whole number from {least} to {most}")
        return int(found)

    def size(self) -> int:
        return self.number("size", SIZE_MAX, SIZE) or SIZE

    def instant_ms(self, name: str) -> int | None:
        return self.number(name, INSTANT_MAX_MS, None, 0)


class ChangeBody:
    """The fields of a request that changes something."""

    def __init__(self, said: object, known: Collection[str]) -> None:
        if not isinstance(said, dict):
            raise ValidationError("body", type(said).__name__, "send a JSON object")
        for name in said:
            if name not in known:
                raise ValidationError(str(name)[:64], "…", f"there is no such field; {_listed(known)}")
        self._said: Mapping[str, Any] = said

    @classmethod
    async def of(cls, request: Request, known: Collection[str]) -> ChangeBody:
        return cls(parsed_json(await request.body()), known)

    def get(self, name: str) -> Any:
        return self._said.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._said

    def checked(self, name: str, check: Callable[[Any], T]) -> T:
        """A field that must be there, as ``check`` returns it."""
        if self._said.get(name) is None:
            raise ValidationError(name, None, "it is missing")
        return check(self._said[name])

    def maybe(self, name: str, check: Callable[[Any], T]) -> T | None:
        """The same of a field that may be missing."""
        return None if self._said.get(name) is None else check(self._said[name])


def _listed(known: Collection[str]) -> str:
    return f"there are {', '.join(known)}" if known else "there are none"
