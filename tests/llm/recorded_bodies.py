"""Responses in the formats that providers publish, and what each of them took."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from zae_limiter.llm import Usage

FOLDER = Path(__file__).parent / "recorded"

STREAM, JSON, LINES = "text/event-stream; charset=utf-8", "application/json", "application/x-ndjson"
AMAZON = "application/vnd.amazon.eventstream"


class Recorded(NamedTuple):
    """A response, and what it tells."""

    name: str
    content_type: str
    usage: Usage | None
    text: str = ""
    """What of its answer is text, where it comes in a stream."""

    @property
    def body(self) -> bytes:
        if self.content_type == AMAZON:
            return b"".join(map(amazon_frame, (FOLDER / "bedrock.jsonl").read_text("utf-8").splitlines()))
        return (FOLDER / self.name).read_bytes()


def amazon_frame(event: str) -> bytes:
    """An event as it comes from converse-stream: its name is a header, its value the payload."""
    ((name, value),) = json.loads(event).items()
    headers = b"".join(
        struct.pack("!B", len(key)) + key.encode() + struct.pack("!BH", 7, len(text)) + text.encode()
        for key, text in ((":event-type", name), (":content-type", JSON), (":message-type", "event"))
    )
    payload = json.dumps(value).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack("!I", zlib.crc32(message))


CHAT = 'Hello! How can I "help" you — today?'
HI = "Hi there! How can I assist you today?"
PATTERNS = "AI works by finding patterns in data."
RESPONDED = Usage(328, 52, cached_tokens=256, cache_write_tokens=64, reasoning_tokens=32)
SONGS = "Here's a list of pop songs."

RECORDED = (
    Recorded("openai_chat.json", JSON, Usage(2006, 300, cached_tokens=1920, reasoning_tokens=64)),
    Recorded("openai_chat.sse", STREAM, Usage(9, 12), CHAT),
    Recorded("openai_chat_silent.sse", STREAM, None, CHAT),
    Recorded("openai_responses.json", JSON, RESPONDED),
    Recorded("openai_responses.sse", STREAM, RESPONDED, HI),
    Recorded("openai_responses_incomplete.sse", STREAM, Usage(328, 16, reasoning_tokens=16), HI),
    Recorded("openai_responses_failed.sse", STREAM, Usage(328, 7), HI),
    Recorded("anthropic.json", JSON, Usage(1233, 393, cached_tokens=1024, cache_write_tokens=188)),
    Recorded(
        "anthropic.sse",
        STREAM,
        Usage(125, 89, cached_tokens=100, reasoning_tokens=17),
        'Hello! I can look that up.{"location": "San Francisco"}',
    ),
    Recorded("gemini.json", JSON, Usage(1130, 100, cached_tokens=1024, reasoning_tokens=88)),
    Recorded("gemini.sse", STREAM, Usage(8, 100, reasoning_tokens=88), PATTERNS),
    Recorded("gemini_array.json", JSON, Usage(8, 100, reasoning_tokens=88), PATTERNS),
    Recorded("bedrock.json", JSON, Usage(1425, 60, cached_tokens=1200, cache_write_tokens=100)),
    Recorded("bedrock.jsonl", LINES, Usage(47, 20), SONGS),
    Recorded("bedrock.eventstream", AMAZON, Usage(47, 20), SONGS),
)
TELLING = tuple(one for one in RECORDED if one.usage is not None)
