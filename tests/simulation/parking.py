"""Where tasks of a simulated world wait, and by what they are ended."""

from __future__ import annotations

from collections.abc import Generator


class Cancelled(BaseException):
    """Thrown into a task that is cancelled."""


class SimSignal:
    """A signal that parks the task which waits for it."""

    def __init__(self) -> None:
        self.given = False

    def give(self) -> None:
        self.given = True

    async def wait(self, seconds: float | None = None) -> None:
        if not self.given:
            await Parked(self, seconds)


class Nap(SimSignal):
    """A signal that nobody gives: whoever waits for it sleeps."""


class Parked:
    def __init__(self, signal: SimSignal | None = None, seconds: float | None = None) -> None:
        self.signal, self.seconds = signal, seconds

    def __await__(self) -> Generator[Parked, None, None]:
        yield self


async def pause() -> None:
    """Let anything else happen first."""
    await Parked()
