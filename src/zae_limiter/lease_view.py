"""What a lease tells of its buckets, by the very replies that admitted it: nothing is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .engine.holding import Holding
from .engine.remaining import Seen, Standing, exceeded, standings_of
from .models.leases import LeaseStatus


class View(Holding):
    """How its buckets stood when a lease had taken its part."""

    __slots__ = ()

    @property
    def remaining(self) -> dict[str, int]:
        """What its buckets had left when it had taken its part, by limit: the least of a family.

        The reply that admitted it told so; nothing is read. Empty for a lease that is degraded.
        """
        left: dict[str, int] = {}
        for standing in self._standings():
            name, found = standing.limit_name, standing.remaining
            left[name] = min(found, left.get(name, found))
        return left

    @property
    def statuses(self) -> tuple[LeaseStatus, ...]:
        """The same in full, for every bucket: each limit, what was left of it, and when it is full again."""
        return tuple(standing.status for standing in self._standings())

    @property
    def public_statuses(self) -> tuple[LeaseStatus, ...]:
        """Those of whoever asked, who may be told of them, in headers for one; no parent's are among them."""
        return tuple(standing.status for standing in self._standings(is_public=True))

    @property
    def exceeded(self) -> tuple[str, ...]:
        """Of which soft limits there was not enough for it: had they not been soft, they would have refused.

        The reply that admitted it told so, or its latest ``consume``; nothing is read. Of a lease that is
        bypassed and counted every limit is soft.
        """
        asked = {name for take in self._taken() for name in take.amounts}
        return tuple(dict.fromkeys(name for seen in self._sights() for name in exceeded(seen, asked)))

    def _standings(self, *, is_public: bool = False) -> list[Standing]:
        """The statuses before anything is worked out of them; of whoever asked, or of everybody."""
        asked = self._asked_by() if is_public else None
        return [standing for seen in self._sights() for standing in standings_of(seen, asked)]

    def _asked_by(self) -> Collection[str]:
        return (self._entity_id,)

    def _sights(self) -> Iterable[Seen]:
        return (self._seen,)
