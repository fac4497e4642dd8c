"""Properties that a limiter had, and that its repository has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .spelling import deprecated

if TYPE_CHECKING:
    from typing import Protocol

    class Named(Protocol):
        """What a repository says of its table."""

        @property
        def stack_name(self) -> str | None: ...


class LimiterForms:
    """Where a limiter's state lives, asked of the limiter."""

    @property
    def repository(self) -> Named:
        """Whose state it is."""
        raise NotImplementedError

    def _stack_name(self, asked: str) -> str | None:
        deprecated(f"limiter.{asked}", "use limiter.repository.stack_name", stacklevel=4)
        return self.repository.stack_name

    @property
    def name(self) -> str | None:
        """Deprecated: the same as ``repository.stack_name``."""
        return self._stack_name("name")

    @property
    def stack_name(self) -> str | None:
        """Deprecated: the same as ``repository.stack_name``."""
        return self._stack_name("stack_name")

    @property
    def table_name(self) -> str | None:
        """Deprecated: the same as ``repository.table_name``."""
        return self._stack_name("table_name")
