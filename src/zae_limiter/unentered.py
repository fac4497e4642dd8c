"""Things that have to be entered first, and say so to whoever forgets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Never


class Unentered:
    """What has to be entered: of whatever only the thing within has, it tells how to get there."""

    __slots__ = ()
    _entered_by: ClassVar[str]

    if not TYPE_CHECKING:  # which is to see every attribute that is missing

        def __getattr__(self, name: str) -> Never:
            way_out = "" if name.startswith("_") else f": enter it first, `{self._entered_by}`"
            kind = type(self).__name__
            raise AttributeError(f"{kind!r} object has no attribute {name!r}{way_out}", name=name, obj=self)


class Asking(Unentered):
    """An acquire that is to be entered: what it asks for, and of whom."""

    __slots__ = ()
    _entered_by = "async with limiter.acquire(…) as lease"
    _entity_id: str
    _resource: str
    _needs: Mapping[str, int]
    _entered: bool

    def __repr__(self) -> str:
        amounts = {name: need // 1000 for name, need in self._needs.items()}
        state = "entered" if self._entered else "not entered"
        return f"<Acquisition of {amounts} by {self._entity_id!r} on {self._resource!r}, {state}>"
