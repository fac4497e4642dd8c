"""Tenants of one store, and who went where."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.fuzz.tenants import Contents
from zae_limiter import Namespace, SyncRepository
from zae_limiter.records.items import namespace_item
from zae_limiter.repository_protocol import Item, Key, Put, Query, Update, Write
from zae_limiter.schema import INDEXES, namespace_key, nsid_key, sk_nsid
from zae_limiter.testing import RecordingBackend

REGISTRY = "_"
WRITES = ("write_each", "transact_write")

ENDING = {"delete_namespace", "purge_namespace", "delete_table", "recover_namespace"}
ABOUT_THE_STORE = ENDING | {
    *(
        "register_namespace",
        "register_namespaces",
        "get_namespace",
        "list_namespaces",
        "list_orphan_namespaces",
    ),
    *("namespace", "get_version_record", "set_version_record", "ping", "create_table"),
}
"""Methods that are not about one namespace, and go to the registry."""


def places_of(recorder: RecordingBackend) -> set[str]:
    """The namespaces that a process went to: by reading, by asking an index, and by writing."""
    places: set[str] = set()
    for verb, given in recorder.calls:
        for one in given:
            match one:
                case Query(partition=partition):
                    places.add(owner_of(partition))
                case Key(sort=sort) if sort.startswith(sk_nsid("")):
                    places.add(sort.removeprefix(sk_nsid("")))  # what the registry says of a namespace
                case Key(partition=partition):
                    places.add(owner_of(partition))
                case _ if verb in WRITES:
                    places |= places_written(one)
    return places


def places_written(write: Any) -> set[str]:
    """The namespaces of a write: that of its key, and those of all its index entries."""
    attributes: Mapping[str, Any] = {}
    match write:
        case Put(item=item):
            attributes = item
        case Update(set=set_):
            attributes = set_
    entries = [attributes.get(f"{index}PK") for index in INDEXES]
    return {owner_of(text) for text in (write.key.partition, *entries) if text is not None}


def owner_of(partition: str) -> str:
    return partition.partition("/")[0]


def writes_of(recorder: RecordingBackend) -> list[Write]:
    return [one for verb, given in recorder.calls if verb in WRITES for one in given]  # type: ignore[misc]


def of_tenant(contents: Contents, namespace_id: str) -> dict[Key, Item]:
    return {key: item for key, item in contents.items() if owner_of(key.partition) == namespace_id}


def registered(ids: Sequence[str]) -> list[Put]:
    """Records of the registry that give names to ids of one's own choice."""
    puts = []
    for namespace_id in ids:
        item = namespace_item(Namespace(f"name-{namespace_id}", namespace_id))
        puts += [Put(namespace_key(f"name-{namespace_id}"), item), Put(nsid_key(namespace_id), item)]
    return puts


def view_of(repository: SyncRepository, namespace_id: str) -> SyncRepository:
    return repository.namespace(f"name-{namespace_id}")
