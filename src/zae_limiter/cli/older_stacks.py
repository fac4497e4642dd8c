"""The stack around a table of the older product: what an upgrade does about it, step by step.

While records are moved nobody tells its function of changes. Then template, event filter and code are
replaced, and the function is told again. Each step can be repeated.
"""

from __future__ import annotations

from ..infra.older_stack import MARK, is_older
from ..runtime.colour import run_sync
from .progress import Board
from .session import Session
from .stacks import stack_around, stack_or_none


class OlderStack:
    """A stack that the older product made."""

    def __init__(self, session: Session, name: str, version: str | None, changes: list[str]) -> None:
        self._session = session
        self.name, self.version, self.changes = name, version, changes

    def switch(self, *, on: bool) -> None:
        with stack_around(self._session) as manager:
            run_sync(manager.switch_aggregator(on))

    def replace(self) -> None:
        """Give it the template, the filter and the code of this version, and let the function go on."""
        with stack_around(self._session) as manager:
            with Board() as board:
                run_sync(manager.update(progress=board.show))
            run_sync(manager.switch_aggregator(True))


def older_stack(session: Session, *, begun: bool) -> OlderStack | None:
    """The stack around the table if the older product made it and it has to be replaced."""
    with stack_around(session) as manager:
        stack = stack_or_none(manager)
        if stack is None or not stack.is_ours or not is_older(stack):
            return None
        if MARK not in stack.parameters and not begun:
            return None
        changes = [str(one) for one in run_sync(manager.preview())]
        return OlderStack(session, stack.name, stack.version, changes)
