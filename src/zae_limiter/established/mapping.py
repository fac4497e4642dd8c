"""Values that also read as the dicts they used to be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from ..models import Namespace


class AsMapping(Mapping[str, Any]):
    """A value whose attributes can be read by key too: ``value["name"]``, ``dict(value)``.

    It equals a mapping that says the same.
    """

    __slots__ = ()
    _attributes: ClassVar[Mapping[str, str]] = {}
    """Which attribute a key reads; keys that are not listed are answered too."""

    def __getitem__(self, key: str) -> Any:
        return getattr(self, self._attributes[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed())

    def __len__(self) -> int:
        return len(self._listed())

    def _listed(self) -> list[str]:
        return list(self._attributes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self) == dict(other)

    def __hash__(self) -> int:
        return hash(tuple(self.items()))


class NamespaceMapping(AsMapping):
    """A namespace that reads as a dict and equals its id."""

    __slots__ = ()
    _attributes: ClassVar[Mapping[str, str]] = {
        "name": "namespace_name",
        "namespace_id": "namespace_id",
        "status": "status",
        "created_at": "created_at",
        "deleted_at": "deleted_at",
        "namespace": "namespace_name",
        "namespace_name": "namespace_name",
    }
    namespace_id: str
    deleted_at: str | None

    def _listed(self) -> list[str]:
        return list(self._attributes)[: 4 if self.deleted_at is None else 5]

    def __eq__(self, other: object) -> bool:
        return other == self.namespace_id if isinstance(other, str) else super().__eq__(other)

    def __hash__(self) -> int:
        return hash(self.namespace_id)


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


class VersionMapping(AsMapping):
    """A version record that reads as a dict."""

    __slots__ = ()
    _attributes: ClassVar[Mapping[str, str]] = {
        name: name
        for name in ("schema_version", "lambda_version", "client_min_version", "updated_at", "updated_by")
    }
