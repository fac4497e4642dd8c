"""Seats stay true when a renewal and the end of a lease come between any two steps of each other."""

from __future__ import annotations

import threading

import pytest

from tests.threads.switching import together
from zae_limiter import Limit, RateLimitExceeded, SyncLease, SyncRateLimiter
from zae_limiter.engine.demand import Seat, seats_of
from zae_limiter.engine.settle import rest
from zae_limiter.runtime.colour import Signal, run_sync
from zae_limiter.testing import ManualClock

TURNS, HOLD_SECONDS = 20, 80
SEATS = ("/lease.py", "/engine/holding.py", "/engine/settle.py", "/engine/renewal.py")


def seated(limiter: SyncRateLimiter) -> SyncLease:
    return limiter.acquire("key", "api", {"parallel": 1}).open()


@pytest.mark.parametrize("seed", range(3))
def test_seats_are_renewed_while_leases_end(limiter: SyncRateLimiter, clock: ManualClock, seed: int) -> None:
    """Whoever ends a lease while its seat is on the move gives back that seat, once, and no other."""
    limiter.set_system_defaults([Limit.concurrent("parallel", 3, hold=f"{HOLD_SECONDS}s")])

    def renews() -> None:
        run_sync(limiter.repository._async.writer.renewals.renew())

    leases = [seated(limiter) for _ in range(3)]
    for turn in range(TURNS):
        clock.advance(HOLD_SECONDS / 2)
        together([renews, leases[0].commit, renews, leases[1].cancel], SEATS, seed * TURNS + turn)
        assert limiter.available("key", "api") == {"parallel": 2}
        leases = [leases[2], seated(limiter), seated(limiter)]
        with pytest.raises(RateLimitExceeded):
            seated(limiter)
    for lease in leases:
        lease.commit()
    assert limiter.available("key", "api") == {"parallel": 3}
    assert (limiter.seats_lost, limiter.refunds_lost) == (0, 0)


def test_a_renewal_may_end_between_two_looks(limiter: SyncRateLimiter) -> None:
    """Whoever ends the lease goes on all the same, and the seat comes back."""
    limiter.set_system_defaults([Limit.concurrent("parallel", 1, hold=f"{HOLD_SECONDS}s")])
    lease = seated(limiter)
    writer = limiter.repository._async.writer
    (seat,) = seats_of(lease._async._later)
    done = writer.colour.signal()
    done.give()
    looks: list[Signal | None] = [done]

    class Landing(Seat):
        """A renewal is under way at the first look, and is over at the next."""

        @property
        def moving(self) -> Signal | None:
            return looks.pop() if looks else None

        @moving.setter
        def moving(self, signal: Signal | None) -> None:
            pass

    landing = Landing(seat.account, seat.name, seat.until, seat.count)
    assert run_sync(rest(writer, [landing])) is None
    lease.commit()
    assert limiter.available("key", "api") == {"parallel": 1}


def test_no_lease_has_a_thread(limiter: SyncRateLimiter) -> None:
    """However many seats are held, one timer renews them all."""
    limiter.set_system_defaults([Limit.concurrent("parallel", 50, hold=f"{HOLD_SECONDS}s")])
    limiter.available("key", "api")
    before = threading.active_count()
    leases = [seated(limiter) for _ in range(50)]
    assert threading.active_count() <= before + 1
    for lease in leases:
        lease.commit()
    assert limiter.available("key", "api") == {"parallel": 50}
