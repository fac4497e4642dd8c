"""Things that have to be entered first, and say so to whoever forgets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Never


class Unentered:
    """What has to be entered: it is neither true nor false, and has nothing of what is within."""

    __slots__ = ()
    _entered_by: ClassVar[str]

    def __bool__(self) -> Never:
        raise TypeError(f"{type(self).__name__!r} object is no answer: enter it, `{self._entered_by}`")

    def _lacks(self, name: str) -> AttributeError:
        way_out = "" if name.startswith("_") else f": enter it first, `{self._entered_by}`"
        kind = type(self).__name__
        return AttributeError(f"{kind!r} object has no attribute {name!r}{way_out}", name=name, obj=self)


class Within:
    """The place of something that only a lease has. A ``__getattr__`` would slow every acquire down."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, asking: Unentered | None, owner: type) -> Never:
        if asking is None:
            raise AttributeError(self._name)
        raise asking._lacks(self._name)


class Asked(Unentered):
    """An acquire that is to be entered, in either colour."""

    __slots__ = ()

    if not TYPE_CHECKING:  # which is to see every attribute that is missing
        consumed, degraded, remaining, statuses = Within(), Within(), Within(), Within()
        consume, adjust, settle, release = Within(), Within(), Within(), Within()
        keep, commit, cancel, part, parts = Within(), Within(), Within(), Within(), Within()
