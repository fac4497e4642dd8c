"""Who asks: credentials from botocore's providers, renewed in time and never by waiting in an event loop.

Finding credentials may read files, start programs and call other services, and so may renewing them. Both
happen aside, once for however many calls want them. A renewal that is merely due does not hold up calls:
they go on under the present credentials until these are about to expire.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import botocore.exceptions as failures

from ....runtime.colour import ForkSafe
from ..boto import Access, transport_error
from ..transport import NoReply, NotConfigured, TransportError
from .endpoint import DriverNeeded, Target, find_target
from .signing import Signer

if TYPE_CHECKING:
    from .transport import Network

PREPARE_MS_MAX = 30_000
"""Getting ready happens once and may take long on a small machine, so no call's deadline counts for it."""

URGENT_S = 600
"""How long before they expire credentials are no longer used; botocore's own providers say the same."""


class _Pending:
    """The one piece of work that is under way."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.job: Any = None


class SignerSource:
    """The present signer of a target, whatever its credentials come from."""

    def __init__(self, access: Access, network: Network, ticks_ms: Callable[[], float]) -> None:
        self._access, self._network, self._ticks_ms = access, network, ticks_ms
        self._pending = ForkSafe(_Pending, network.home)
        self._credentials: Any = None
        self._frozen: Any = None
        self.target: Target | None = None
        self.obstacle: str | None = None
        """Why all goes through botocore's own client instead, if it does."""
        self.signer: Signer | None = None
        self.checked_s: int = 0
        """The second in which the credentials were last seen to be valid."""

    async def prepare(self) -> None:
        """Find credentials and target; afterwards there is a ``target`` or an ``obstacle``."""
        await self._together(self._find, self._ticks_ms() + PREPARE_MS_MAX)

    async def renew(self, at_s: int, until_ms: float) -> Signer:
        """The signer for this second."""
        is_due = getattr(self._credentials, "refresh_needed", None)
        if is_due is None or not is_due():
            self._adopt(await _awaited(self._credentials.get_frozen_credentials()))
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
        """Forget about work under way, and return its job."""
        pending = self._pending.forget()
        return pending and pending.job

    async def _find(self) -> None:
        aside = self._network.aside
        session = await aside(self._access.botocore_session)
        credentials = await _awaited(await aside(session.get_credentials))
        frozen = credentials and await _awaited(await aside(credentials.get_frozen_credentials))
        account_id = getattr(frozen, "account_id", None)
        try:
            target = await aside(lambda: find_target(self._access, session, account_id))
        except DriverNeeded as obstacle:
            self.obstacle = str(obstacle)
            return
        except (AttributeError, KeyError, TypeError) as error:
            self.obstacle = f"the settings of this botocore are not understood: {error!r}"
            return
        if frozen is None:
            raise failures.NoCredentialsError()
        self.target, self._credentials = target, credentials
        self._adopt(frozen)

    async def _refresh(self) -> None:
        self._adopt(await _awaited(await self._network.aside(self._credentials.get_frozen_credentials)))

    def _adopt(self, frozen: Any) -> None:
        target = self.target
        if frozen == self._frozen:
            return
        assert target is not None
        try:
            self.signer = Signer(frozen, target.region, target.authority, target.user_agent)
        except ValueError as error:
            raise NotConfigured(f"invalid AWS credentials: {error}; copy them again") from error
        self._frozen = frozen

    def _launch(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Any:
        """Begin the work unless somebody has."""
        pending = self._pending.get()
        with pending.lock:
            if pending.job is None or pending.job.done():
                pending.job = self._network.start(work())
            return pending.job

    async def _together(self, work: Callable[[], Coroutine[Any, Any, None]], until_ms: float) -> None:
        try:
            await self._network.wait(self._launch(work), (until_ms - self._ticks_ms()) / 1000)
        except TransportError:
            raise
        except TimeoutError as error:
            raise NoReply("there were no credentials in time", ambiguous=False) from error
        except Exception as error:
            known = transport_error(error)
            if isinstance(known, NotConfigured):
                raise known from error
            raise NotConfigured(f"no AWS credentials: {error}; look at what provides them") from error


async def _awaited(result: Any) -> Any:
    """What aiobotocore returns has to be waited for, what botocore returns has not."""
    return await result if inspect.isawaitable(result) else result
