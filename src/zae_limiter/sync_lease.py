"""The sync twins of leases and of how they are entered: declarations, and what a signal handler may undo."""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Final

from .acquisition import Acquisition
from .engine import holding
from .engine.remaining import Standing
from .exceptions import RateLimiterUnavailable
from .joint import DegradedPart, JointAcquisition, JointLease, LeasePart
from .lease import Lease
from .models.leases import LeaseStatus
from .runtime.colour import blocking, run_sync, wrapping
from .runtime.current import Current
from .runtime.unentered import Asked


class SyncLease(Current):
    """The sync twin of ``Lease``."""

    __slots__ = ("_async",)
    _place = ContextVar("sync lease")

    def __init__(self, lease: Lease) -> None:
        self._async = lease
        lease._in_block = True

    @property
    def consumed(self) -> dict[str, int]:
        """See ``Lease.consumed``."""
        return self._async.consumed

    @property
    def degraded(self) -> bool:
        """See ``Lease.degraded``."""
        return self._async.degraded

    @property
    def bypassed(self) -> bool:
        """See ``Lease.bypassed``."""
        return self._async.bypassed

    @property
    def exceeded(self) -> tuple[str, ...]:
        """See ``Lease.exceeded``."""
        return self._async.exceeded

    @property
    def waited_ms(self) -> int:
        """See ``Lease.waited_ms``."""
        return self._async.waited_ms

    @property
    def remaining(self) -> dict[str, int]:
        """See ``Lease.remaining``."""
        return self._async.remaining

    @property
    def statuses(self) -> tuple[LeaseStatus, ...]:
        """See ``Lease.statuses``."""
        return self._async.statuses

    @property
    def public_statuses(self) -> tuple[LeaseStatus, ...]:
        """See ``Lease.public_statuses``."""
        return self._async.public_statuses

    def _standings(self, *, is_public: bool = False) -> list[Standing]:
        return self._async._standings(is_public=is_public)

    def __repr__(self) -> str:
        return repr(self._async).replace("<", "<Sync", 1)

    consume: Final = blocking(Lease.consume)
    adjust: Final = blocking(Lease.adjust)
    settle: Final = blocking(Lease.settle)
    release: Final = blocking(Lease.release)
    keep: Final = blocking(Lease.keep)
    commit: Final = blocking(Lease.commit)
    cancel: Final = blocking(Lease.cancel)


class SyncAcquisition(Asked):
    """The sync twin of ``Acquisition``."""

    __slots__ = ("_async",)
    _entered_by = "with limiter.acquire(…) as lease"
    _twin: type[SyncLease] = SyncLease

    def __init__(self, acquisition: Acquisition) -> None:
        self._async = acquisition

    def __repr__(self) -> str:
        return repr(self._async).replace("<", "<Sync", 1)

    def __enter__(self) -> SyncLease:
        acquisition = self._async
        if acquisition._entered is not False:
            raise acquisition.entered_before()
        acquisition._entered, acquisition._lease._forks = None, holding.forks
        try:
            try:
                if (taking := acquisition._lease._acquire(acquisition._needs)) is not None:
                    run_sync(taking)  # type: ignore[arg-type]  # nothing else is kept where nothing suspends
            except RateLimiterUnavailable as error:
                acquisition.degrade(error)
            acquisition._entered = True
            return self._twin(acquisition._lease)
        except BaseException:
            lease = acquisition._lease
            if lease._taken_alone or lease._later:
                # A signal handler raised in between, and what is not entered is not left.
                run_sync(lease._abandon())
            raise

    def open(self) -> SyncLease:
        """See ``Acquisition.open``."""
        lease = self.__enter__()
        lease._async._in_block, lease._async._state = False, "open"
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        acquisition = self._async
        try:
            if acquisition.end(kind):
                run_sync(acquisition.leave(kind, error))
        except BaseException:
            if acquisition._entered and not acquisition._lease._settled:
                # A signal handler raised before it had begun.
                run_sync(acquisition.leave(kind, error))
            raise


PART_TWINS: dict[type[LeasePart], type[SyncLease]] = {LeasePart: SyncLease, DegradedPart: SyncLease}


class SyncJointLease(SyncLease):
    """The sync twin of ``JointLease``."""

    __slots__ = ()
    _async: JointLease

    @property
    def parts(self) -> tuple[SyncLease, ...]:
        """See ``JointLease.parts``."""
        return tuple(map(SyncLease, self._async.parts))

    part: Final = wrapping(PART_TWINS, JointLease.part)
    consume: Final = blocking(JointLease.consume)  # type: ignore[misc]  # of the lease that it has
    adjust: Final = blocking(JointLease.adjust)  # type: ignore[misc]  # of the lease that it has
    settle: Final = blocking(JointLease.settle)  # type: ignore[misc]  # of the lease that it has


class SyncJointAcquisition(SyncAcquisition):
    """The sync twin of ``JointAcquisition``."""

    __slots__ = ()
    _async: JointAcquisition
    _twin = SyncJointLease

    if TYPE_CHECKING:

        def __enter__(self) -> SyncJointLease: ...
        def open(self) -> SyncJointLease: ...


TWINS: dict[type[Acquisition], type[SyncAcquisition]] = {
    Acquisition: SyncAcquisition,
    JointAcquisition: SyncJointAcquisition,
}
"""Which sync acquisition stands for which async one; whoever counts adds classes that do."""
