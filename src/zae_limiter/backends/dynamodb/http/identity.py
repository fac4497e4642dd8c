"""Who asks: credentials from botocore's providers, renewed in time and never by waiting in an event loop.

Finding credentials may read files, start programs and call other services, and so may renewing them. Both
happen aside, once for however many calls want them. A renewal that is merely due does not hold up calls:
they go on under the present credentials until these are about to expire.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, NamedTuple, Protocol, TypeVar

import botocore.exceptions as failures

from ....runtime.colour import ForkSafe
from ..access import Access
from ..boto import transport_error
from ..transport import NoReply, NotConfigured, TransportError
from .endpoint import Obstacle, Target, find_target
from .signing import Credentials, Signer

T = TypeVar("T")

PREPARE_MS_MAX = 30_000
"""Getting ready happens once and may take long on a small machine, so no call's deadline counts for it."""

URGENT_S = 600
"""How long before they expire credentials are no longer used; botocore's own providers say the same."""


class Workers(Protocol):
    """How one colour does work aside."""

    async def aside(self, function: Callable[[], T]) -> T:
        """Call a function that may block."""
        ...

    def start(self, work: Coroutine[Any, Any, T]) -> Any:
        """Begin work that does not end with its caller, and return a handle on it."""
        ...

    def is_done(self, job: Any) -> bool: ...

    async def wait(self, job: Any, seconds: float) -> Any:
        """The result of work that was started; ``TimeoutError`` if it takes longer."""
        ...


class Found(NamedTuple):
    target: Target
    credentials: Any


class _Flight:
    """The one piece of work that is under way."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.job: Any = None


class Identity:
    """The present signer of a target, whatever its credentials come from."""

    def __init__(
        self,
        access: Access,
        workers: Workers,
        home: Callable[[], Hashable] | None,
        ticks_ms: Callable[[], float],
    ) -> None:
        self._access, self._workers, self._ticks_ms = access, workers, ticks_ms
        self._flights = ForkSafe(_Flight, home)
        self._found: Found | None = None
        self._frozen: Credentials | None = None
        self.obstacle: str | None = None
        self.signer: Signer | None = None
        self.checked_s = 0
        """The second in which the credentials were last seen to be valid."""

    @property
    def target(self) -> Target | None:
        return None if self._found is None else self._found.target

    async def prepare(self) -> None:
        """Find credentials and target; afterwards there is a ``target`` or an ``obstacle``."""
        await self._together(self._find, self._ticks_ms() + PREPARE_MS_MAX)

    async def renew(self, at_s: int, until_ms: float) -> Signer:
        """The signer for this second."""
        assert self._found is not None
        credentials = self._found.credentials
        is_due = getattr(credentials, "refresh_needed", None)
        if is_due is None or not is_due():
            self._adopt(await _awaited(credentials.get_frozen_credentials()))
        elif self.signer is None or is_due(URGENT_S):
            await self._together(self._refresh, until_ms)
            if is_due(URGENT_S):
                # What was waited for had begun, and failed, while it was not urgent.
                await self._together(self._refresh, until_ms)
        else:
            self._launch(self._refresh)
        self.checked_s = at_s
        assert self.signer is not None
        return self.signer

    def stop(self) -> Any:
        """Forget about work under way, and return a handle on it."""
        flight = self._flights.forget()
        return flight and flight.job

    async def _find(self) -> None:
        session = await self._workers.aside(self._access.botocore_session)
        credentials = await _awaited(await self._workers.aside(session.get_credentials))
        frozen = credentials and await _awaited(await self._workers.aside(credentials.get_frozen_credentials))
        account_id = getattr(frozen, "account_id", None)
        try:
            target = await self._workers.aside(lambda: find_target(self._access, session, account_id))
        except Obstacle as obstacle:
            self.obstacle = str(obstacle)
            return
        except (AttributeError, KeyError, TypeError) as error:
            self.obstacle = f"the settings of this botocore are not understood: {error!r}"
            return
        if frozen is None:
            raise failures.NoCredentialsError()
        self._found = Found(target, credentials)
        self._adopt(frozen)

    async def _refresh(self) -> None:
        assert self._found is not None
        self._adopt(await _awaited(await self._workers.aside(self._found.credentials.get_frozen_credentials)))

    def _adopt(self, frozen: Any) -> None:
        assert self._found is not None
        present = Credentials(frozen.access_key, frozen.secret_key, frozen.token or None)
        if present == self._frozen:
            return
        target = self._found.target
        try:
            self.signer = Signer(present, target.region, target.authority, target.user_agent)
        except ValueError as error:
            raise NotConfigured(f"invalid AWS credentials: {error}; copy them again") from error
        self._frozen = present

    def _launch(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Any:
        """Begin the work unless somebody has."""
        flight = self._flights.get()
        with flight.lock:
            if flight.job is None or self._workers.is_done(flight.job):
                flight.job = self._workers.start(work())
            return flight.job

    async def _together(self, work: Callable[[], Coroutine[Any, Any, None]], until_ms: float) -> None:
        try:
            await self._workers.wait(self._launch(work), (until_ms - self._ticks_ms()) / 1000)
        except TransportError:
            raise
        except TimeoutError as error:
            raise NoReply("there were no credentials in time", ambiguous=False) from error
        except Exception as error:
            raise _not_sent(error) from error


async def _awaited(result: Any) -> Any:
    """What aiobotocore returns has to be waited for, what botocore returns has not."""
    return await result if inspect.isawaitable(result) else result


def _not_sent(error: Exception) -> TransportError:
    known = transport_error(error, never_connected=(Exception,))
    if isinstance(known, NotConfigured):
        return known
    return NotConfigured(f"no AWS credentials: {error}; look at what provides them")
