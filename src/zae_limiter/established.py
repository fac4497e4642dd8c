"""What programs for the established zae-limiter say and expect, where this package says it otherwise.

Values that also read as the dicts they used to be, former names and options with what took their place, and
answers that may be awaited. Nothing of it decides anything. A later major version drops this module with the
lines that import it; ``docs/migrating.md`` lists what is kept and what differs on purpose.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Never

if TYPE_CHECKING:
    from .models import Namespace

FORMER_NAMES = {
    ("zae_limiter", "RepositoryProtocol"): ("zae_limiter.repository", "Repository"),
    ("zae_limiter", "SyncRepositoryProtocol"): ("zae_limiter.sync", "SyncRepository"),
    ("zae_limiter", "StackCreationError"): ("zae_limiter.exceptions", "StackOperationError"),
    ("zae_limiter.exceptions", "StackCreationError"): ("zae_limiter.exceptions", "StackOperationError"),
    ("zae_limiter.limiter", "SyncRateLimiter"): ("zae_limiter.sync", "SyncRateLimiter"),
    ("zae_limiter.repository_protocol", "RepositoryProtocol"): ("zae_limiter.repository", "Repository"),
    ("zae_limiter_aggregator", "Settings"): ("zae_limiter_aggregator.processor", "AggregatorSettings"),
}
"""Where names of former modules are found now; they are loaded when somebody asks for one."""


def former_names(module: str) -> Callable[[str], Any]:
    """What answers for the names that a module does not have any more."""

    def __getattr__(name: str) -> Any:
        if (module, name) not in FORMER_NAMES:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, now = FORMER_NAMES[module, name]
        return getattr(import_module(place), now)

    return __getattr__


FORMER = {
    "name": "open a repository first, with Repository.open(stack=…)",
    "stack_options": "deploy with Repository.builder().stack(…).stack_options(…), or `zae-limiter deploy`",
    "auto_update": "say it to Repository.builder().auto_update(…), or run `zae-limiter upgrade`",
    "bucket_ttl_refill_multiplier": "it is bucket_ttl_multiplier, said to Repository.open or its builder",
    "parallel_mode": "leave it out: sync code needs no threads of its own here",
    "rejection_cache_ttl": "leave it out: a refusal is remembered for at most a second",
    "rejection_cache_size": "leave it out, or bound all that is remembered with remembered_max",
    "stamp_ttl": "leave it out",
    "enable_provisioner": "leave it out: `zae-limiter limits apply` needs no function of its own",
    "usage_retention_days": (
        "a repository writes no usage: deploy with it, or say `zae-limiter aggregate --retention-days`"
    ),
    "strict_version": "store it: set_config('system', LimiterConfig(strict_version=True))",
}
"""What took the place of options that are gone; ``way_out`` says it to sync code, too."""


def way_out(name: str, otherwise: str, *, sync: bool) -> str:
    """What took the place of an option, with the names that the caller uses."""
    told = FORMER.get(name, otherwise)
    return told.replace("Repository.", "SyncRepository.") if sync else told


def refuse_former(function: str, names: Iterable[str]) -> None:
    """Raise for options that a function does not have, or has no more, and tell what took their place."""
    for name in names:
        instead = way_out(name, "there is no such option", sync=function.startswith("Sync"))
        raise TypeError(f"{function}() got an unexpected argument {name!r}: {instead}")


def deprecated(what: str, instead: str) -> None:
    """Warn that a spelling will go; Python shows it once for each place outside of the package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("zae_limiter."):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"{what} is deprecated: {instead}", DeprecationWarning, stacklevel=level)


def _stack_name(limiter: Any, asked: str) -> str | None:
    deprecated(f"limiter.{asked}", "use limiter.repository.stack_name")
    found: str | None = limiter.repository.stack_name
    return found


class LimiterForms:
    """Where a limiter's state lives, asked of the limiter."""

    @property
    def name(self) -> str | None:
        """Deprecated: the same as ``repository.stack_name``."""
        return _stack_name(self, "name")

    @property
    def stack_name(self) -> str | None:
        """Deprecated: the same as ``repository.stack_name``."""
        return _stack_name(self, "stack_name")

    @property
    def table_name(self) -> str | None:
        """Deprecated: the same as ``repository.table_name``."""
        return _stack_name(self, "table_name")


class Done:
    """The answer of something that is done already: it may be awaited, and need not be."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Never, None]:
        return
        yield


class AsMapping(Mapping[str, Any]):
    """A dataclass that reads as the dict it used to be, too, and equals a mapping that says the same."""

    __slots__ = ()

    def _as_dict(self) -> dict[str, Any]:
        from dataclasses import fields  # which exceptions, who need this module too, do without

        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def __getitem__(self, key: str) -> Any:
        return self._as_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._as_dict())

    def __len__(self) -> int:
        return len(self._as_dict())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._as_dict() == dict(other)

    def __hash__(self) -> int:
        return hash(tuple(self.items()))


class NamespaceWord(str):
    """The id or the name of a namespace: a text that knows the rest of the namespace too."""

    __slots__ = ("namespace",)
    namespace: Namespace

    def __new__(cls, text: str, namespace: Namespace) -> NamespaceWord:
        word = super().__new__(cls, text)
        word.namespace = namespace
        return word

    def __getnewargs__(self) -> tuple[str, Namespace]:  # type: ignore[override]  # one more than str has
        return str(self), self.namespace

    @property
    def namespace_id(self) -> str:
        """The opaque id that prefixes its keys."""
        return self.namespace.namespace_id

    @property
    def namespace_name(self) -> str:
        """The name that people gave it."""
        return self.namespace.namespace_name

    @property
    def status(self) -> str:
        """Whether it is in use; see ``NamespaceStatus``."""
        return self.namespace.status
