"""A bucket as this process uses it: whose it is, and the terms that it is to have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from ..models import Limit
from ..models.accruals import CONCURRENT, SESSION
from ..models.switches import Bypass, Switch
from ..repository_protocol import Key, Value
from ..schema import bucket_key, kind_attributes, limit_attributes, rate_attributes
from .law import Rate


class Slot(NamedTuple):
    """One limit: its numbers, and where a bucket keeps it. The period is 0 if it has another accrual."""

    capacity_milli: int
    amount_milli: int
    period_ms: int
    tokens: str
    counter: str
    least_milli: int = 0
    """What a take leaves at least that is answered at once: deeper debt has to prolong the bucket's life."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The limits a bucket is to have, and the config version they come from.

    ``version`` is ``None`` for limits that the caller brought along: they change numbers, but not
    what the stored configuration says. ``ttl_fills`` is how many times the longest time to fill an
    idle bucket is kept; 0 keeps it for ever. A limit that is ``soft`` refuses nothing: what is taken of it
    leaves debt. A bucket does not know which are.
    """

    rates: Mapping[str, Rate]
    version: int | None = None
    ttl_fills: int = 0
    soft: frozenset[str] = frozenset()
    phase_ms: int | None = None
    """Since when limits with schedules have these numbers; ``None`` if they are those of no instant."""
    ticket: int | None = None
    """Of somebody who waits for seats: since when, so that it is before those who asked later."""
    seen: int | None = field(default=None, compare=False)
    """Of the stored configuration, where that is not what the limits come from."""
    units: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What the limits count that count money; nothing goes by it."""
    until_ms: int = field(default=0, compare=False)
    """When the phase ends, if they are those of one."""
    phased: list[Terms] = field(default_factory=list, init=False, compare=False, repr=False)
    """The same of the phase that was last asked for."""
    scheduled: bool = field(init=False, compare=False, repr=False)
    """Whether some numbers depend on an instant, and it is not said on which."""
    fill_ms: int = field(init=False, compare=False, repr=False)
    """How long the slowest limit takes to fill, 0 if there is none."""
    lasting_ms: int = field(init=False, compare=False, repr=False)
    """A bucket that is kept for so long is full a fill before it disappears, after whatever is taken."""
    said: Mapping[str, Value] = field(init=False, compare=False, repr=False)
    """What a bucket says that has these numbers."""
    unsaid: frozenset[str] = field(init=False, compare=False, repr=False)
    """What it does not say."""
    counted: tuple[str, ...] = field(init=False, compare=False, repr=False)
    """Where it has integers besides."""
    slots: Mapping[str, Slot] = field(init=False, compare=False, repr=False)
    names: frozenset[str] = field(init=False, compare=False, repr=False)
    seats: frozenset[str] = field(init=False, compare=False, repr=False)
    """The limits that count who is at work; they have no slot."""
    windows: frozenset[str] = field(init=False, compare=False, repr=False)
    """The limits of sessions; they have none either."""

    def __post_init__(self) -> None:
        fill_ms = max((rate.fill_ms for rate in self.rates.values()), default=0)
        said: dict[str, Value] = {} if self.version is None else {"cv": self.version}
        counted, slots = ["rf"] if self.version is None else ["rf", "cv"], {}
        for name, rate in self.rates.items():
            names, (capacity, amount, period, accrual, _) = limit_attributes(name), rate
            said |= rate_attributes(name, rate)
            counted += [names.tk, names.tc]
            if accrual not in (CONCURRENT, SESSION):
                least = -capacity if name in self.soft else 0
                slots[name] = Slot(capacity, amount, 0 if accrual else period, names.tk, names.tc, least)
        unsaid = {kind_attributes(name).ac for name, rate in self.rates.items() if rate.accrual is None}
        unsaid |= {kind_attributes(name).sd for name, rate in self.rates.items() if rate.schedule is None}
        worked_out = {
            "fill_ms": fill_ms,
            "lasting_ms": (3 if self.soft else 2) * fill_ms,
            "said": said,
            "unsaid": frozenset(unsaid),
            "counted": tuple(counted),
            "slots": slots,
            "names": frozenset(self.rates),
            "scheduled": self.phase_ms is None and any(rate.schedule for rate in self.rates.values()),
            "seats": frozenset(name for name, rate in self.rates.items() if rate.accrual == CONCURRENT),
            "windows": frozenset(name for name, rate in self.rates.items() if rate.accrual == SESSION),
        }
        for attribute, value in worked_out.items():
            object.__setattr__(self, attribute, value)

    @staticmethod
    def of(limits: Iterable[Limit], version: int | None = None, ttl_fills: int = 0) -> Terms:
        """One for all entities that have the same limits."""
        return _terms_of(tuple(limits), version, ttl_fills)


@lru_cache(1024)
def _terms_of(limits: tuple[Limit, ...], version: int | None, ttl_fills: int) -> Terms:
    by_name = {limit.name: limit for limit in limits}
    soft = frozenset(name for name, limit in by_name.items() if limit.soft)
    units = {name: limit.unit for name, limit in by_name.items() if limit.unit is not None}
    rates = {name: Rate.of(limit) for name, limit in by_name.items()}
    return Terms(rates, version, ttl_fills, soft, units=units)


class Meter(Enum):
    """What is done about the number of writes to a bucket item."""

    NONE = "none"
    """Nothing: the store has no hot partitions."""
    COUNT = "count"
    LIMIT = "limit"
    """They are counted, and a demand is refused when they are too many."""


WRITE_MILLI = 1_000
WRITES = Rate(1_000_000, 1_000_000, 1_000)
"""What one partition takes: 1,000 writes a second. Kept beside the limits, under the reserved name."""


class Account(NamedTuple):
    """One bucket, or one shard of it, and the terms under which this process uses it."""

    key: Key
    namespace_id: str
    entity_id: str
    resource: str
    terms: Terms
    parent_id: str | None = None
    cascade: bool = False
    meter: Meter = Meter.NONE
    shard_id: int = 0
    shard_count: int = 1
    """How many shards there were when the shares in ``terms`` were cut."""
    life: str | None = None
    """Since which deletion of the entity the bucket is there from which was taken; "" if nobody knows."""
    switch: Switch | None = None
    """What the levels say that apply, if one of them has a switch."""
    bypass: Bypass | None = None
    """Whether it is charged past its limits, or not at all."""

    @property
    def is_counted(self) -> bool:
        """Whether it is charged at all."""
        return self.bypass is not Bypass.UNCOUNTED

    @property
    def whole_key(self) -> Key:
        """The key of shard 0, which stands for the bucket."""
        return self.key if self.shard_id == 0 else self.shard_key(0)

    def shard_key(self, shard_id: int) -> Key:
        """The key of one shard of the bucket."""
        return bucket_key(self.namespace_id, self.entity_id, self.resource, shard_id)
