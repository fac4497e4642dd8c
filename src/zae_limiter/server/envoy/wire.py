"""A request of Envoy as its bytes say it: by the numbers of the published fields, and nothing else of them.

The classes of ``xds-protos`` would refuse a request whose text is no UTF-8, and Envoy lets pass what is not
answered: anybody could step past his limits with a header of one wrong byte. So texts are read as bytes here.
And ``is_negative_hits`` is read although the package does not know it yet: Envoy 1.38 sends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

DESCRIPTORS_MAX = 50
ENTRIES_MAX = 64
HITS_MAX = 2**63
"""More of them than any limit has: they are over it, and none is an error that lets the request pass."""

_PACKAGE = "zae_limiter.envoy"
_KINDS = {
    name: getattr(FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("bytes", "uint32", "uint64", "int32", "bool")
}

_MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "Request": {
        "domain": (1, "bytes"),
        "descriptors": (2, "repeated Descriptor"),
        "hits_addend": (3, "uint32"),
    },
    "Descriptor": {
        "entries": (1, "repeated Entry"),
        "limit": (2, "Override"),
        "hits_addend": (3, "Hits"),
        "is_negative_hits": (4, "bool"),
    },
    "Entry": {"key": (1, "bytes"), "value": (2, "bytes")},
    "Override": {"requests_per_unit": (1, "uint32"), "unit": (2, "int32")},
    "Hits": {"value": (1, "uint64")},
}
"""The fields of ``RateLimitRequest`` and of what is in it, by their numbers in the published protos."""


def _request_class() -> Any:
    file = FileDescriptorProto(name="zae_limiter/envoy.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            of, repeated = kind.removeprefix("repeated "), kind.startswith("repeated ")
            label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            told = message.field.add(name=field, number=number, label=label)
            if of in _KINDS:
                told.type = _KINDS[of]
            else:
                told.type, told.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.{of}"
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Request"))


_Request = _request_class()


class Misread(Exception):
    """A request that says nothing; the message is told to whoever sent it."""


class SaidLimit(NamedTuple):
    """A limit that Envoy sends along instead of those that are stored."""

    requests_per_unit: int
    unit: int
    """As ``RateLimitUnit`` numbers them."""


class SaidDescriptor(NamedTuple):
    """What one descriptor says."""

    entries: tuple[tuple[str, str], ...]
    hits: int
    is_refund: bool = False
    limit: SaidLimit | None = None


class SaidRequest(NamedTuple):
    """What one request says."""

    domain: str
    descriptors: tuple[SaidDescriptor, ...]


def read_request(data: bytes) -> SaidRequest:
    """What the bytes of a ``RateLimitRequest`` say; hits are those of each descriptor, or of the request."""
    try:
        request = _Request.FromString(data)
    except DecodeError as error:
        raise Misread("this is no RateLimitRequest") from error
    if not request.domain:
        raise Misread("the domain is missing")
    if not request.descriptors:
        raise Misread("there are no descriptors")
    if len(request.descriptors) > DESCRIPTORS_MAX:
        raise Misread(f"at most {DESCRIPTORS_MAX} descriptors are answered at once")
    default = request.hits_addend or 1
    return SaidRequest(_text(request.domain), tuple(_descriptor(one, default) for one in request.descriptors))


def _descriptor(said: Any, hits: int) -> SaidDescriptor:
    if not said.entries:
        raise Misread("a descriptor has no entries")
    if len(said.entries) > ENTRIES_MAX:
        raise Misread(f"a descriptor has at most {ENTRIES_MAX} entries")
    entries = tuple((_text(entry.key), _text(entry.value)) for entry in said.entries)
    if said.HasField("hits_addend"):  # 0 is a number, too: it asks whether there is anything left
        hits = min(said.hits_addend.value, HITS_MAX)
    limit = None
    if said.HasField("limit"):
        limit = SaidLimit(said.limit.requests_per_unit, said.limit.unit)
    return SaidDescriptor(entries, hits, said.is_negative_hits, limit)


def _text(data: bytes) -> str:
    """A text; bytes that are none are kept in a form that no name can have."""
    return data.decode("utf-8", "surrogateescape")
