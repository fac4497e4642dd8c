"""What the target has in the place of a namespace, and who may use it while it is filled: pure.

A namespace keeps its id, so every key and every index entry stays what it is. From the first item to the last
its record in the target says ``copying``: nobody can open it, nobody who had it open may use it, and what an
abandoned copy left can be purged. A *mark* beside it says where the copy has come to. The transaction that
ends a copy opens the namespace under its name and takes the mark away; until then nothing of the target that
was in use is touched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...exceptions import NamespaceStateError
from ...models import Namespace, NamespaceStatus
from ...records.items import namespace_item
from ...records.scope import DAY_SECONDS, TOMBSTONE_DAYS
from ...repository_protocol import (
    Absent,
    Condition,
    Cursor,
    Delete,
    Equal,
    Item,
    Key,
    Put,
    Update,
    Value,
    Write,
)
from ...schema import iso_time, namespace_key, nsid_key, registry_key, text


def mark_key(namespace_id: str) -> Key:
    """Where the target notes how far a copy has come."""
    return registry_key(f"#COPY#{namespace_id}")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A namespace that is to come, and what the target has in its place."""

    space: Namespace
    """As it is in the source."""
    name: str
    """What it is to be called."""
    here: Namespace | None
    """What the target has under its id."""
    named: Namespace | None
    """What the target has under its name."""
    named_is_empty: bool
    mark: Item | None

    @property
    def is_begun(self) -> bool:
        """Whether an earlier copy began, and did not end."""
        return self.here is not None and self.here.status is NamespaceStatus.COPYING

    @property
    def is_there(self) -> bool:
        """Whether the target has it, and may be using it."""
        return self.here is not None and self.here.status is NamespaceStatus.ACTIVE

    @property
    def other(self) -> Namespace | None:
        """Somebody else who has the name."""
        taken = self.named is not None and self.named.namespace_id != self.space.namespace_id
        return self.named if taken else None

    def check(self, *, overwrite: bool) -> None:
        """Raise if something is in the way."""
        name, here, status = self.name, self.here, None if self.here is None else self.here.status
        if here is not None and status is NamespaceStatus.ACTIVE and here.namespace_name != name:
            told = f"the target has it as {here.namespace_name!r}; copy it under that name"
        elif status is NamespaceStatus.PURGING:
            told = f"what the target had of it is being purged; end that first: {self._purge}"
        elif status is NamespaceStatus.DELETED and not overwrite:
            told = f"the target has what was deleted of it; purge that ({self._purge}), or pass --overwrite"
        elif self.other is not None and not self.named_is_empty and not overwrite:
            told = (
                "the target has another namespace of that name; choose one with --as, "
                "or pass --overwrite, which deletes that one and lets it be recovered"
            )
        else:
            return
        raise NamespaceStateError(f"namespace {name!r} cannot be copied: {told}", namespace_name=name)

    @property
    def _purge(self) -> str:
        return f"zae-limiter namespace purge -- {self.space.namespace_id}"

    def resumes(self, source: str) -> Cursor | None:
        """Where the first pass of an earlier copy from the same source came to, if it did not end."""
        if not self.is_fresh(source) or self.mark is None:
            return None
        place = [text(self.mark, name) for name in ("after_partition", "after_sort", "after_place")]
        partition, sort, at = place
        return None if partition is None or sort is None or at is None else Cursor(Key(partition, sort), at)

    def is_fresh(self, source: str) -> bool:
        """Whether what the target has of it can only be what this source had."""
        if not self.is_begun:
            return self.here is None or self.here.status is NamespaceStatus.PURGED
        return self.mark is not None and text(self.mark, "source") == source and "all" not in self.mark

    def begin(self, source: str, run: str, now_ms: int) -> list[Write]:
        """Close the namespace in the target, and note who copies it from where."""
        space_key, mark = nsid_key(self.space.namespace_id), mark_key(self.space.namespace_id)
        noted: dict[str, Value] = {"source": source, "run": run, "begun_at": iso_time(now_ms)}
        if self.is_begun:
            kept = dict(self.mark or {}) if self.is_fresh(source) else {}
            seen = None if self.mark is None else text(self.mark, "run")
            return [Put(mark, {**kept, **noted}, when=(Equal("run", seen),))]
        was: Condition = Absent() if self.here is None else Equal("status", self.here.status.value)
        closed = replace(self.space, namespace_name=self.name, status=NamespaceStatus.COPYING)
        writes: list[Write] = [Put(space_key, namespace_item(closed), when=(was,)), Put(mark, noted)]
        if self.is_there:
            mine = Equal("namespace_id", self.space.namespace_id)
            writes.append(Delete(namespace_key(self.name), when=(mine,)))
        return writes

    def finish(self, run: str, now_ms: int) -> list[Write]:
        """Open the namespace under its name, in the place of whoever had that."""
        opened = namespace_item(replace(self.space, namespace_name=self.name, status=NamespaceStatus.ACTIVE))
        other, now = self.other, iso_time(now_ms)
        free: Condition = Absent() if other is None else Equal("namespace_id", other.namespace_id)
        copying = Equal("status", NamespaceStatus.COPYING.value)
        writes: list[Write] = [
            Put(nsid_key(self.space.namespace_id), opened, when=(copying,)),
            Put(namespace_key(self.name), opened, when=(free,)),
            Delete(mark_key(self.space.namespace_id), when=(Equal("run", run),)),
        ]
        if other is not None:
            status = NamespaceStatus.PURGED if self.named_is_empty else NamespaceStatus.DELETED
            gone = namespace_item(replace(other, status=status, deleted_at=now))
            ttl = now_ms // 1000 + TOMBSTONE_DAYS * DAY_SECONDS if self.named_is_empty else None
            writes.append(Put(nsid_key(other.namespace_id), {**gone, "ttl": ttl}))
        return writes


def progress(namespace_id: str, run: str, after: Cursor | None) -> Update:
    """Note where the first pass has come to, or that all of it is there, unless another run took over."""
    place: dict[str, Value] = {"after_partition": None, "after_sort": None, "after_place": None, "all": True}
    if after is not None:
        (partition, sort), at = after
        place = {"after_partition": partition, "after_sort": sort, "after_place": at}
    return Update(mark_key(namespace_id), set=place, when=(Equal("run", run),))
