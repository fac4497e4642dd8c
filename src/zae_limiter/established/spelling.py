"""Spellings that are understood with a warning, and options that are gone with what took their place."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable
from typing import Any, Never

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


def deprecated(what: str, instead: str, stacklevel: int = 3) -> None:
    """Warn that a spelling will go; Python shows it once for each place that uses it."""
    warnings.warn(f"{what} is deprecated: {instead}", DeprecationWarning, stacklevel=stacklevel)


def refuse_former(function: str, names: Iterable[str]) -> None:
    """Raise for options that a function does not have, or has no more, and tell what took their place."""
    for name in names:
        instead = way_out(name, "there is no such option", sync=function.startswith("Sync"))
        raise TypeError(f"{function}() got an unexpected argument {name!r}: {instead}")


class Done:
    """The answer of something that is done already: it may be awaited, and need not be."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Never, None]:
        return
        yield
