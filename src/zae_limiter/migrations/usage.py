"""What a row of usage notes of an older row that was added to it. Pure."""

from __future__ import annotations

import re

_MOVED_BEFORE = re.compile(r"-1@0:0-(\d+);?")


def noted(seen: str) -> str:
    """What a row is made of, and one older row more: versions of a shard that does not exist."""
    before = _MOVED_BEFORE.match(seen)
    if before is None:
        return f"-1@0:0-1;{seen}".rstrip(";")
    return f"-1@0:0-{int(before[1]) + 1};{seen[before.end() :]}".rstrip(";")
