"""Where names of former modules are found now; they are loaded when somebody asks for one."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

FORMER_NAMES = {
    ("zae_limiter", "RepositoryProtocol"): ("zae_limiter.repository", "Repository"),
    ("zae_limiter", "SyncRepositoryProtocol"): ("zae_limiter.sync", "SyncRepository"),
    ("zae_limiter", "StackCreationError"): ("zae_limiter.exceptions", "StackOperationError"),
    ("zae_limiter.exceptions", "StackCreationError"): ("zae_limiter.exceptions", "StackOperationError"),
    ("zae_limiter.limiter", "SyncRateLimiter"): ("zae_limiter.sync", "SyncRateLimiter"),
    ("zae_limiter.repository_protocol", "RepositoryProtocol"): ("zae_limiter.repository", "Repository"),
}


def former_names(module: str) -> Callable[[str], Any]:
    """What answers for the names that a module does not have any more."""

    def __getattr__(name: str) -> Any:
        if (module, name) not in FORMER_NAMES:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, now = FORMER_NAMES[module, name]
        return getattr(import_module(place), now)

    return __getattr__
