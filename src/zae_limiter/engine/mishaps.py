"""What went wrong behind somebody's back: it is logged, and whoever asked to be told is told.

Each kind has a name that stays: the record of the log has it as ``event``, beside ``resource``, ``entity_id``
and ``count``. Whoever is told must not raise: this stands in the way of settlements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from ..runtime.logs import logger
from .posting import Order


class Mishap(StrEnum):
    """The kinds of what can go wrong."""

    REFUND_LOST = "refund_lost"
    """A refund, a settlement or an acquire whose reply was lost: nobody knows whether it was stored."""
    SEAT_LOST = "seat_lost"
    """A seat was not renewed in time: others may have it while the work goes on."""


class Whose(Protocol):
    """Whose something is: an account, for one."""

    @property
    def entity_id(self) -> str: ...
    @property
    def resource(self) -> str: ...


class WhoseName(NamedTuple):
    """An entity on a resource."""

    entity_id: str
    resource: str


@dataclass(frozen=True, slots=True)
class MishapTold:
    """One mishap: what it was, and whose."""

    kind: Mishap
    entity_id: str
    resource: str
    count: int
    detail: str


class Mishaps:
    """Those of one writer."""

    def __init__(self) -> None:
        self.listeners: tuple[Callable[[MishapTold], None], ...] = ()
        """Replaced as a whole, so that whoever is just telling them all is not disturbed."""

    def note(self, kind: Mishap, whose: Whose, message: str, *details: object, count: int = 1) -> None:
        """Log it, with its name and whose it is beside the message, and tell it."""
        entity_id, resource = whose.entity_id, whose.resource
        extra = {"event": kind.value, "entity_id": entity_id, "resource": resource, "count": count}
        logger.warning(message, *details, extra=extra)
        for listener in self.listeners:
            listener(MishapTold(kind, entity_id, resource, count, message % details))

    def lose(self, order: Order, error: object) -> None:
        """Note that an order may or may not have been carried out."""
        account, posting = order
        told = "%s may or may not have got %s: %s"
        self.note(Mishap.REFUND_LOST, account, told, account.key.partition, posting, error)
