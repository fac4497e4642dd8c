"""What the bytes of a request say: the same as the published messages, and more where these say nothing."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.envoy.calls import descriptor
from zae_limiter.server.envoy import wire
from zae_limiter.server.envoy.wire import HITS_MAX, Misread, SaidDescriptor, SaidLimit, read_request

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NEGATIVE_REQUEST = b"\n\x04edge\x12\x16\n\x0e\n\x06entity\x12\x04acme\x1a\x02\x08\x05 \x01"
"""What envoy-data-plane 2.2.0 (PyPI), made from Envoy's own descriptions, serialises: a ``RateLimitRequest``
of the domain ``edge`` with ``RateLimitDescriptor(hits_addend=5, is_negative_hits=True)`` of one entry."""

DESCRIPTORS = st.builds(
    lambda entries, hits, negative, limit: descriptor(*entries, hits=hits, negative=negative, limit=limit),
    st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3),
    st.none() | st.integers(0, 2**64 - 1),
    st.booleans(),
    st.none() | st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 7)),
)


@given(TEXTS.filter(bool), st.lists(DESCRIPTORS, min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_a_published_request_is_read(domain: str, sent: list[RateLimitDescriptor], hits: int) -> None:
    """Every field of the published messages arrives, and the one that is newer than they are."""
    request = RateLimitRequest(domain=domain, descriptors=sent, hits_addend=hits)
    read = read_request(request.SerializeToString())
    assert read.domain == domain
    for one, said in zip(sent, read.descriptors, strict=True):
        expected = one.hits_addend.value if one.HasField("hits_addend") else hits or 1
        assert said == SaidDescriptor(
            tuple((entry.key, entry.value) for entry in one.entries),
            min(expected, HITS_MAX),
            b"\x20\x01" in one.SerializeToString()[-2:],
            SaidLimit(one.limit.requests_per_unit, one.limit.unit) if one.HasField("limit") else None,
        )


def test_the_numbers_are_those_of_the_published_messages() -> None:
    """Each field that is read has the number, and the kind, that the published message gives it."""
    published: dict[str, Any] = {
        "Request": RateLimitRequest,
        "Descriptor": RateLimitDescriptor,
        "Entry": RateLimitDescriptor.Entry,
        "Override": RateLimitDescriptor.RateLimitOverride,
    }
    for name, message in published.items():
        theirs = {field.name: field.number for field in message.DESCRIPTOR.fields}
        ours = {field: number for field, (number, _) in wire._MESSAGES[name].items()}
        ours.pop("is_negative_hits", None) if "is_negative_hits" not in theirs else None
        assert ours == theirs


def test_negative_hits_are_where_the_published_description_has_them() -> None:
    """The field that the installed messages lack is read from bytes of others, and ours are the same."""
    said = SaidDescriptor((("entity", "acme"),), 5, is_refund=True)
    assert read_request(NEGATIVE_REQUEST).descriptors == (said,)
    sent = descriptor(("entity", "acme"), hits=5, negative=True)
    assert RateLimitRequest(domain="edge", descriptors=[sent]).SerializeToString() == NEGATIVE_REQUEST


def test_text_that_is_no_text() -> None:
    """Bytes that are no UTF-8 are some entity's all the same, each its own."""
    values = set()
    for value in (b"\xff", b"\xfe", b"\xc3\x28"):
        entry = b"\n\x01k\x12" + bytes([len(value)]) + value
        one = b"\n" + bytes([len(entry)]) + entry
        read = read_request(b"\n\x01d\x12" + bytes([len(one)]) + one)
        values.add(read.descriptors[0].entries[0][1])
    assert len(values) == 3


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_none(data: bytes) -> None:
    """Whatever arrives is read, or said to be no request."""
    with contextlib.suppress(Misread):
        assert read_request(data).descriptors


def test_there_is_a_limit_on_everything() -> None:
    many = RateLimitRequest(domain="d", descriptors=[descriptor(*[("k", "v")] * 65)])
    with pytest.raises(Misread, match="at most 64 entries"):
        read_request(many.SerializeToString())
