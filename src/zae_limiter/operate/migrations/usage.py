"""How an older row of usage is added to one of today. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...naming import WCU
from ...records.items import USAGE_SEEN, usage_counter, usage_counters
from ...repository_protocol import Absent, Equal, Exists, Item, Key, Update, Value
from ...schema import number, text

_MOVED_BEFORE = re.compile(r"-1@0:0-(\d+);?")


def added(key: Key, attributes: Mapping[str, Value], row: Item | None, older: Item) -> Update:
    """Add an older row to the one at the key, which may be missing; both may have counted in one window.

    Whoever writes a row notes what it is made of and pins that, so no addition is lost. What an older
    table had counted is noted as versions of a shard that does not exist.
    """
    seen = text(row or {}, USAGE_SEEN)
    add = {usage_counter(name): amount for name, amount in usage_counters(older).items() if name != WCU}
    add["total_events"] = number(older, "total_events")
    set_: dict[str, Value] = {USAGE_SEEN: noted(seen or "")}
    if row is None:
        ttl = older.get("ttl")
        set_ |= {**attributes, **({"ttl": ttl} if type(ttl) is int else {})}
    return Update(key, add, set_, (Equal(USAGE_SEEN, seen), Absent() if row is None else Exists()))


def noted(seen: str) -> str:
    """What a row is made of, and one older row more: versions of a shard that does not exist."""
    before = _MOVED_BEFORE.match(seen)
    if before is None:
        return f"-1@0:0-1;{seen}".rstrip(";")
    return f"-1@0:0-{int(before[1]) + 1};{seen[before.end() :]}".rstrip(";")
