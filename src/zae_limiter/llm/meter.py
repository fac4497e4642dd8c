"""A meter: it is fed the response that a gateway passes on, and tells what that cost.

It takes chunks as they come, JSON bodies and event streams, compressed or not, and never raises because of
them. What it holds is bounded. Until the provider tells what was used, nothing is known; or, where the
tokens of the prompt are given, what has come so far is counted by its text, so that who hangs up pays for
what was sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from ..models.checks import TOKENS_MAX, check_count
from .amounts import Amounts, total_tokens
from .events import DocumentReader, Inflated, reader_for, reader_of
from .tokens import estimate_tokens
from .usage import Usage, is_final, read_usage

HINT = b'"usage'
"""What tells its usage has this in it, so that nothing else need be parsed."""

TEXTS = ("content", "text", "reasoning_content", "refusal", "thinking", "partial_json", "arguments", "input")
"""Under which names an answer brings its text."""

NESTED = (
    *("delta", "choices", "message", "content", "tool_calls", "function"),  # OpenAI, Anthropic
    *("candidates", "parts", "output", "contentBlockDelta", "toolUse"),  # Gemini, Bedrock
)
"""In what it wraps them."""

EVENT_BYTES_MIN = len(b'{"text":"a"}')
"""What is shorter brings no text."""

DEPTH_MAX = 8

UsageMeterFactory: TypeAlias = "Callable[[Any, int, Mapping[str, str]], UsageMeter | None]"
"""Makes the meter of a response, by its request, its status and its headers."""


class UsageMeter:
    """Reads the usage of one response while it goes by.

    >>> meter = UsageMeter()
    >>> meter.feed(b'{"choices": [], "usage": {"prompt_tokens": 9, "compl')
    >>> meter.feed(b'etion_tokens": 12}}')
    >>> meter.amounts()
    {'tpm': 21}
    """

    def __init__(
        self,
        amounts: Amounts | None = None,
        *,
        content_type: str | None = None,
        content_encoding: str | None = None,
        input_tokens: int | None = None,
        tell: Callable[[Usage], object] | None = None,
    ) -> None:
        self._amounts = total_tokens() if amounts is None else amounts
        self._is_open = True
        self._reader: DocumentReader | None = None
        self._beginning = b""
        self._inflate: Inflated | None = None
        self._input = (
            None if input_tokens is None else check_count("input_tokens", input_tokens, TOKENS_MAX, 0)
        )
        self._tell = tell
        self._told: Usage | None = None
        self._counted = 0
        self._is_final = False
        if content_type is not None:
            self._reader = reader_for(content_type)
            self._is_open = self._reader is not None
        encoding = (content_encoding or "identity").strip().lower()
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._inflate = Inflated()
        elif encoding != "identity":
            self._is_open = False  # in a language that Python does not speak

    @classmethod
    def factory(
        cls,
        amounts: Amounts | None = None,
        *,
        input_tokens: Callable[[Any], int | None] | None = None,
        tell: Callable[[Any, Usage], object] | None = None,
    ) -> UsageMeterFactory:
        """Makes a meter for each response that can tell its usage. One of 4xx or 5xx took nothing.

        ``input_tokens`` and ``tell`` are those of a meter, given the request first.
        """

        def meter_for(request: Any, status: int, headers: Mapping[str, str]) -> UsageMeter | None:
            if status >= 400:  # it is no answer, and is not read
                return cls(amounts, content_encoding="unread", input_tokens=0)
            named = {str(name).lower(): value for name, value in headers.items()}
            meter = cls(
                amounts,
                content_type=named.get("content-type"),
                content_encoding=named.get("content-encoding"),
                input_tokens=None if input_tokens is None else input_tokens(request),
                tell=None if tell is None else lambda usage: tell(request, usage),
            )
            return meter if meter._is_open else None

        return meter_for

    @property
    def usage(self) -> Usage | None:
        """What the call has taken as far as is known; ``None`` if nothing is."""
        if not self._is_final:
            self._see_unfinished()
        if self._is_final or (self._told is None and self._input is None):
            return self._told
        if self._inflate is not None and self._inflate.has_given_up:
            return None  # what was read is not all that came
        told = self._told or Usage(self._input or 0)
        counted = min(max(told.output_tokens, self._counted), TOKENS_MAX)
        return replace(told, output_tokens=counted, is_estimated=True)

    def amounts(self) -> Mapping[str, int] | None:
        """What it has cost so far, by limit, as a limit can take it; ``None`` if nothing is known."""
        usage = self.usage
        if usage is None:
            return None
        return {name: max(0, min(int(count), TOKENS_MAX)) for name, count in self._amounts(usage).items()}

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the response, cut anywhere."""
        if not self._is_open:
            return
        for piece in (chunk,) if self._inflate is None else self._inflate.feed(bytes(chunk)):
            for document in self._documents(bytes(piece)):
                self._see(document)

    def _documents(self, chunk: bytes) -> Iterator[bytes]:
        if self._reader is None:
            chunk = (self._beginning + chunk).lstrip()
            self._reader = reader_of(chunk)
            if self._reader is None:
                self._beginning = chunk
                return
        yield from self._reader.feed(chunk)

    def _see(self, document: bytes, *, is_whole: bool = True) -> None:
        """Learn what a document says; of one that may go on nothing is counted, lest it count twice."""
        counts = is_whole and not self._is_final and (self._input is not None or self._told is not None)
        if HINT not in document and (not counts or len(document) < EVENT_BYTES_MIN):
            return
        event = _parsed(document)
        usage = None if event is None else read_usage(event)
        if event is None:
            return
        if usage is not None:
            self._learn(usage, is_final(event))
        elif counts:
            self._counted += sum(estimate_tokens(text) for text in _texts(event))

    def _learn(self, usage: Usage, is_final: bool) -> None:
        self._told = usage if self._told is None else self._told.with_more(usage)
        self._is_final = self._is_final or is_final
        if self._tell is not None and is_final:
            tell, self._tell = self._tell, None
            tell(self._told)

    def _see_unfinished(self) -> None:
        document = None if self._reader is None else self._reader.unfinished()
        if document is not None:
            self._see(document, is_whole=False)


def _parsed(document: bytes) -> Mapping[str, Any] | None:
    try:
        event = json.loads(document)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _texts(event: Mapping[str, Any]) -> Iterator[str]:
    """The text of an answer that an event of a stream brings."""
    if str(event.get("type")).startswith("response."):  # OpenAI's, which repeat a text when it is done
        if isinstance(delta := event.get("delta"), str):
            yield delta
        return
    todo: list[tuple[Any, int]] = [(event, 0)]
    while todo:
        part, depth = todo.pop()
        if isinstance(part, list):
            todo += [(one, depth + 1) for one in part if depth < DEPTH_MAX]
        elif isinstance(part, dict):
            yield from (text for name in TEXTS if isinstance(text := part.get(name), str))
            todo += [(part[name], depth + 1) for name in NESTED if name in part and depth < DEPTH_MAX]
