"""A function finds its own lease without being handed it, so that its parameters stay what they were.

Tasks and ``asyncio.to_thread`` inherit what is current where they begin; a new thread begins with nothing.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, ClassVar, Self


class Current:
    """Something that the code under it can ask for. Each colour has a place of its own, for they nest."""

    __slots__ = ()
    _place: ClassVar[ContextVar[Any]]

    @classmethod
    def current(cls) -> Self:
        """The lease of the decorated function that this runs in, and of the innermost if they are nested.

        A block has its lease from ``as lease``; this is for functions under ``limiter.limit``. Raises
        ``LookupError`` where there is none.
        """
        found: Self | None = cls._place.get(None)
        if found is None:
            told = f"{cls.__name__}.current() is for what runs in a function under `limiter.limit`"
            raise LookupError(f"{told}: here is none of this kind, and a new thread does not inherit it")
        return found

    def _as_current(self) -> During:
        return During(self._place, self)


class During:
    """A block in which something is current."""

    __slots__ = ("_it", "_place", "_token")
    _token: Token[Any]

    def __init__(self, place: ContextVar[Any], it: Current) -> None:
        self._place, self._it = place, it

    def __enter__(self) -> None:
        self._token = self._place.set(self._it)

    def __exit__(self, *_: object) -> None:
        try:  # noqa: SIM105 - which is paid for by every request
            self._place.reset(self._token)
        except ValueError:
            pass  # whoever threw this away did it elsewhere, where it never was current
