"""What a call to a language model really took, as its provider tells it.

``read_usage`` takes a parsed body or event of OpenAI (chat completions, responses), Anthropic (messages),
Gemini or Bedrock (converse) and knows them by their fields, not by who is asked. All of them come out in
one form: input tokens include those that were read from a cache or written to one, output tokens include
reasoning.

A body is somebody else's text. Nothing in it raises: what is no count is no count, what is negative is
nothing, and what is larger than a limit can be is ``TOKENS_MAX``. This module knows no limits and no
streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..models.checks import TOKENS_MAX, check_count

USAGES = ("usage", "usageMetadata", "usage_metadata")
"""Under which names a body tells its usage."""

WITHIN = ("message", "response", "metadata")
"""In what an event wraps the body: Anthropic's first one, OpenAI's last one, Bedrock's last one."""

# Who calls it what. The names in one tuple mean the same; the first that is there is taken.
_INPUT = ("prompt_tokens", "input_tokens", "inputTokens", "promptTokenCount", "prompt_token_count")
_OUTPUT = (
    "completion_tokens",
    "output_tokens",
    "outputTokens",
    "candidatesTokenCount",
    "candidates_token_count",
)
_TOTAL = ("total_tokens", "totalTokens", "totalTokenCount", "total_token_count")
# Beside the input: Anthropic and Bedrock count there only what no cache had to do with.
_READ_BESIDE = ("cache_read_input_tokens", "cacheReadInputTokens")
_WRITTEN_BESIDE = ("cache_creation_input_tokens", "cacheWriteInputTokens")
_TOOLS_BESIDE = ("toolUsePromptTokenCount", "tool_use_prompt_token_count")
# Within the input, and beside the output: Gemini.
_READ_WITHIN = ("cachedContentTokenCount", "cached_content_token_count")
_THOUGHTS_BESIDE = ("thoughtsTokenCount", "thoughts_token_count")
# Within both: OpenAI, and Anthropic within the output, in an object of their own.
_INPUT_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_OUTPUT_DETAILS = ("completion_tokens_details", "output_tokens_details")


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of one call. What has to do with a cache is part of the input, reasoning of the output.

    >>> Usage(input_tokens=1_200, output_tokens=300, cached_tokens=1_000).total_tokens
    1500
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Read from a cache, which costs less."""
    cache_write_tokens: int = 0
    """Written to a cache, which costs more."""
    reasoning_tokens: int = 0
    """Output that the caller does not see."""
    is_estimated: bool = False
    """The provider has not told yet: these were counted by the text that has come so far."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            check_count(name, getattr(self, name), TOKENS_MAX, 0)

    @property
    def total_tokens(self) -> int:
        """Input and output, each token once."""
        return min(self.input_tokens + self.output_tokens, TOKENS_MAX)

    @property
    def plain_input_tokens(self) -> int:
        """Input that was not read from a cache."""
        return max(self.input_tokens - self.cached_tokens, 0)

    def with_more(self, later: Usage) -> Usage:
        """What two events of one call tell together: counts of a call only rise, so the larger is newer."""
        return _usage(**{name: max(getattr(self, name), getattr(later, name)) for name in _COUNTS})


_COUNTS = tuple(field.name for field in fields(Usage) if field.type == "int")


def read_usage(body: Mapping[str, Any]) -> Usage | None:
    """The usage that a parsed body or event tells; ``None`` if it tells none.

    >>> read_usage({"usage": {"prompt_tokens": 9, "completion_tokens": 12}}) == Usage(9, 12)
    True
    """
    for whole in (body, *(_within(body, name) for name in WITHIN)):
        for name in USAGES:
            told = _within(whole, name)
            if isinstance(told, Mapping) and (usage := _told(told)) is not None:
                return usage
    return None


def _within(part: object, name: str) -> object:
    return part.get(name) if isinstance(part, Mapping) else None


def is_final(event: Mapping[str, Any]) -> bool:
    """Whether the usage that an event tells is that of the whole call, not of what has come so far."""
    if event.get("type") == "message_start":
        return False
    parts = event.get("candidates") or event.get("choices")
    if not isinstance(parts, list) or not parts:
        return True
    reasons = ("finish_reason", "finishReason")
    return any(isinstance(one, Mapping) and any(one.get(name) for name in reasons) for one in parts)


def _told(told: Mapping[str, Any]) -> Usage | None:
    """What an object of counts says, whoever wrote it."""
    given, out = _first(told, _INPUT), _first(told, _OUTPUT)
    if given is None and out is None:
        return None
    read, written = _first(told, _READ_BESIDE) or 0, _first(told, _WRITTEN_BESIDE) or 0
    thoughts = _first(told, _THOUGHTS_BESIDE) or 0
    input_tokens = (given or 0) + read + written + (_first(told, _TOOLS_BESIDE) or 0)
    output_tokens = (out or 0) + thoughts
    # A provider may count more than it lists, such as reasoning that it names nowhere. That is output.
    output_tokens = max(output_tokens, (_first(told, _TOTAL) or 0) - input_tokens)
    return _usage(
        input_tokens,
        output_tokens,
        read or _first(told, _READ_WITHIN) or _detail(told, _INPUT_DETAILS, "cached_tokens"),
        written or _detail(told, _INPUT_DETAILS, "cache_write_tokens"),
        thoughts or _detail(told, _OUTPUT_DETAILS, "reasoning_tokens", "thinking_tokens"),
    )


def _usage(
    input_tokens: int, output_tokens: int, cached_tokens: int, cache_write_tokens: int, reasoning_tokens: int
) -> Usage:
    """Counts of which none is too large, and no part larger than its whole."""
    whole, out = min(input_tokens, TOKENS_MAX), min(output_tokens, TOKENS_MAX)
    cached = min(cached_tokens, whole)
    return Usage(whole, out, cached, min(cache_write_tokens, whole - cached), min(reasoning_tokens, out))


def _first(told: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((count for name in names if (count := count_of(told.get(name))) is not None), None)


def _detail(told: Mapping[str, Any], groups: tuple[str, ...], *names: str) -> int:
    found = (_within(told.get(one), name) for one in groups for name in names)
    return next((count for value in found if (count := count_of(value)) is not None), 0)


def count_of(value: object) -> int | None:
    """A count that somebody else wrote: whole, not negative, not too large; ``None`` if it is none at all."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return min(value, TOKENS_MAX) if value >= 0 else None
