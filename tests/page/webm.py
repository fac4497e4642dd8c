"""Writes pictures that are encoded already as a film one can jump about in: WebM, by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

EBML, VERSION, READ_VERSION, ID_LENGTH, SIZE_LENGTH = 0x1A45DFA3, 0x4286, 0x42F7, 0x42F2, 0x42F3
DOC_TYPE, DOC_VERSION, DOC_READ_VERSION = 0x4282, 0x4287, 0x4285
SEGMENT, INFO, SCALE, DURATION, APP = 0x18538067, 0x1549A966, 0x2AD7B1, 0x4489, 0x4D80
TRACKS, ENTRY, NUMBER, UID, TYPE, CODEC = 0x1654AE6B, 0xAE, 0xD7, 0x73C5, 0x83, 0x86
VIDEO, WIDTH, HEIGHT = 0xE0, 0xB0, 0xBA
CLUSTER, TIMECODE, BLOCK = 0x1F43B675, 0xE7, 0xA3
CUES, CUE, CUE_TIME, CUE_PLACE, CUE_TRACK, CUE_CLUSTER = 0x1C53BB6B, 0xBB, 0xB3, 0xB7, 0xF7, 0xF1
KEY = 0x80


class Chunk(NamedTuple):
    """A picture of a film: when it is shown, whether it needs no other, and its bytes."""

    at_ms: int
    is_key: bool
    data: bytes


def element(name: int, body: bytes) -> bytes:
    return name.to_bytes((name.bit_length() + 7) // 8) + (1 << 56 | len(body)).to_bytes(8) + body


def number(name: int, value: int) -> bytes:
    return element(name, value.to_bytes(max(1, (value.bit_length() + 7) // 8)))


def film(chunks: Sequence[Chunk], size: tuple[int, int], duration_ms: int) -> bytes:
    """A whole file, with a cluster and a cue for each picture that needs no other."""
    head = element(
        EBML,
        number(VERSION, 1)
        + number(READ_VERSION, 1)
        + number(ID_LENGTH, 4)
        + number(SIZE_LENGTH, 8)
        + element(DOC_TYPE, b"webm")
        + number(DOC_VERSION, 4)
        + number(DOC_READ_VERSION, 2),
    )
    info = element(
        INFO,
        number(SCALE, 1_000_000) + element(DURATION, struct.pack(">d", duration_ms)) + element(APP, b"film"),
    )
    picture = element(VIDEO, number(WIDTH, size[0]) + number(HEIGHT, size[1]))
    entry = number(NUMBER, 1) + number(UID, 1) + number(TYPE, 1) + element(CODEC, b"V_VP9") + picture
    body = info + element(TRACKS, element(ENTRY, entry))
    cues = b""
    for start, group in groups(chunks):
        place = number(CUE_TRACK, 1) + number(CUE_CLUSTER, len(body))
        cues += element(CUE, number(CUE_TIME, start) + element(CUE_PLACE, place))
        blocks = b"".join(
            element(
                BLOCK, b"\x81" + struct.pack(">hB", one.at_ms - start, KEY if one.is_key else 0) + one.data
            )
            for one in group
        )
        body += element(CLUSTER, number(TIMECODE, start) + blocks)
    return head + element(SEGMENT, body + element(CUES, cues))


def groups(chunks: Sequence[Chunk]) -> list[tuple[int, list[Chunk]]]:
    """Pictures from one that needs no other to the next such."""
    found: list[tuple[int, list[Chunk]]] = []
    for one in chunks:
        if one.is_key:
            found.append((one.at_ms, []))
        found[-1][1].append(one)
    return found
