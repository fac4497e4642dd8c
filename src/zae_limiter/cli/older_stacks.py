"""The stack around a table of the older product: what an upgrade does about it, step by step.

While records are moved nobody tells its function of changes. Then template, event filter and code are
replaced, and the function is told again. Each step can be repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from ..exceptions import InfrastructureError
from ..infra.older_stack import MARK, is_older
from .progress import Board
from .session import Session

if TYPE_CHECKING:
    from ..infra.stack_manager import SyncStackManager


def options_of(session: Session) -> dict[str, str]:
    """What the address of a table says beside its name."""
    return dict(parse_qsl(urlsplit(session.url).query))


def stack_manager(session: Session) -> SyncStackManager:
    """Whoever looks after the stack around the table of a session."""
    from ..infra.stack_manager import SyncStackManager

    options = options_of(session)
    return SyncStackManager(urlsplit(session.url).netloc, options.get("region"), options.get("endpoint_url"))


class OlderStack:
    """A stack that the older product made."""

    def __init__(self, session: Session, name: str, version: str | None, changes: list[str]) -> None:
        self._session = session
        self.name, self.version, self.changes = name, version, changes

    def switch(self, *, on: bool) -> None:
        manager = stack_manager(self._session)
        try:
            manager.switch_aggregator(on)
        finally:
            manager.close()

    def replace(self) -> None:
        """Give it the template, the filter and the code of this version, and let the function go on."""
        manager = stack_manager(self._session)
        try:
            with Board() as board:
                manager.update(progress=board.show)
            manager.switch_aggregator(True)
        finally:
            manager.close()


def older_stack(session: Session, *, begun: bool) -> OlderStack | None:
    """The stack around the table if the older product made it and it has to be replaced."""
    manager = stack_manager(session)
    try:
        try:
            stack = manager.describe()
        except InfrastructureError:
            return None  # there may well be a table where there is no CloudFormation
        if stack is None or not stack.is_ours or not is_older(stack):
            return None
        if MARK not in stack.parameters and not begun:
            return None
        return OlderStack(session, stack.name, stack.version, [str(one) for one in manager.preview()])
    finally:
        manager.close()
