"""How many tokens a prompt has before anybody has counted them.

Without a tokenizer a text is weighed by its bytes, on the upper side: prose and code come out at 1.05 to
1.7 times what OpenAI's encodings count. ``tokens_at_most`` is the bound that no tokenizer of bytes exceeds.
With ``tiktoken`` installed and the encoding of a model on disk, short prompts are counted exactly.

Nothing is ever downloaded here, nothing in a prompt raises, and none holds up an event loop for long. This
module knows no limits.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from ..exceptions import ValidationError
from ..models.checks import TOKENS_MAX, check_count
from .usage import count_of

if TYPE_CHECKING:
    from tiktoken import Encoding

Prompt: TypeAlias = str | Mapping[str, Any] | Sequence[Any]
"""A text, a list of messages, or the whole body of a request."""

MESSAGE_TOKENS = 4
"""What a message takes beside its text: marks at both ends, and whose it is."""

ANSWER_TOKENS = 3
"""What it takes to ask for the answer."""

EXACT_CHARACTERS_MAX = 32_768
"""Of one prompt; the rest is weighed. Counting takes milliseconds, in which a server does nothing else."""

PARTS_MAX = 65_536
"""A prompt with more texts, lists and mappings is none, and is taken for as many tokens as there can be."""

DEPTH_MAX, MODEL_LENGTH_MAX = 64, 256

MEDIA = frozenset(
    {"image_url", "input_audio", "audio", "file", "file_data", "source", "data", "url"}
    | {"inlineData", "inline_data", "fileData", "bytes"}
)
"""Parts of messages that are no text; what they take differs from provider to provider."""

SCHEMAS = frozenset(
    {"tools", "functions", "toolConfig", "response_format", "output_config", "generationConfig"}
)
"""Parts of a request that a model reads with all names and marks in them."""

TOOL_INPUTS = frozenset({"input", "args", "arguments", "response", "json"})
"""What a tool was given or gave: as a mapping it is read with all names and numbers in it, too."""

CAPS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens", "maxTokens")
ANSWERS = ("n", "best_of", "candidateCount", "candidate_count")  # each may be as long as the cap
ANSWERS_MAX = 128  # no provider gives more, and whoever asks for endless ones reserves no endless amount
CAPS_WITHIN = ("generationConfig", "generation_config", "inferenceConfig")

# Weights of a byte in twelfths of a token, by what o200k_base and cl100k_base make of prose, code and data.
_LETTER, _WHITE, _OTHER, _HIGH, _LEAD = 4, 2, 10, 6, 14
_TWELFTHS = 12
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WHITES = b" \t\r\n"
_ASCII = bytes(range(0x80))
_UP_TO_THREE_BYTES = bytes(range(0xF0))

_PLACE = "https://openaipublic.blob.core.windows.net/encodings/"
ENCODING_FILES = {
    "r50k_base": ("r50k_base", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"),
    "p50k_base": ("p50k_base", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"),
    "p50k_edit": ("p50k_base", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"),
    "cl100k_base": ("cl100k_base", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"),
    "o200k_base": ("o200k_base", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
    "o200k_harmony": ("o200k_base", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
}
"""The file of each encoding, and its sum: a file that is not as it should be would be downloaded again."""

_not_on_disk: set[str] = set()
"""Encodings that were looked for and are not there, which nobody looks for twice."""


def estimate_tokens(prompt: Prompt, model: str | None = None) -> int:
    """How many tokens a text, some messages or the body of a request has, about and rather too many.

    Pictures, sound and files are not counted. With a ``model`` whose encoding ``tiktoken`` has on disk,
    up to 32,768 characters of a prompt are counted exactly. The first such call loads the encoding, which
    takes a while: make one when the program starts.

    >>> estimate_tokens("All human beings are born free and equal in dignity and rights.")
    20
    """
    encoding = None if model is None else _encoding(model)
    messages, exact_left, total = _Messages(), EXACT_CHARACTERS_MAX, 0
    for text in messages.texts(prompt):
        if encoding is not None and len(text) <= exact_left:
            exact_left -= len(text)
            total += len(encoding.encode_ordinary(text))
        else:
            total += _weigh(_bytes(text))
    return min(total + messages.beside, TOKENS_MAX)


def tokens_at_most(prompt: Prompt) -> int:
    """The most tokens that a tokenizer of bytes can make of it: one for each byte.

    >>> tokens_at_most("héllo")
    6
    """
    messages = _Messages()
    total = sum(len(_bytes(text)) for text in messages.texts(prompt))
    return min(total + messages.beside, TOKENS_MAX)


def output_cap(body: Mapping[str, Any], default: int) -> int:
    """How many tokens a request's body allows its answers; at most ``default`` each, and that if silent.

    >>> output_cap({"model": "gpt-4o", "max_completion_tokens": 800}, 4_096)
    800
    """
    check_count("default", default, TOKENS_MAX, 0)
    caps, answers = list[int](), [1]  # nobody knows which of several a provider goes by
    for part in (body, *(body.get(name) for name in CAPS_WITHIN)) if isinstance(body, Mapping) else ():
        if isinstance(part, Mapping):
            for names, said in ((CAPS, caps), (ANSWERS, answers)):
                said += [count for name in names if (count := count_of(part.get(name))) is not None]
    return min(min(max(caps, default=default), default) * min(max(answers), ANSWERS_MAX), TOKENS_MAX)


class _Messages:
    """The texts of a prompt, and what its messages take beside them."""

    def __init__(self) -> None:
        self._messages = self._ids = 0
        self._parts_left = PARTS_MAX

    @property
    def beside(self) -> int:
        if self._parts_left < 0:
            return TOKENS_MAX
        return self._ids + (self._messages * MESSAGE_TOKENS + ANSWER_TOKENS if self._messages else 0)

    def texts(self, prompt: Prompt) -> Iterator[str]:
        if not _is_within(prompt):  # a text is a sequence, too
            raise ValidationError("prompt", prompt, "pass a text, messages or the body of a request")
        todo: list[tuple[object, int]] = [(prompt, 0)]
        while todo:
            part, depth = todo.pop()
            if isinstance(part, str):
                yield part
            elif depth >= DEPTH_MAX or not _is_within(part):
                continue
            elif isinstance(part, list) and {int}.issuperset(map(type, part)):
                self._ids += len(part)  # of tokens
            else:
                self._parts_left -= len(part)
                if self._parts_left < 0:
                    return
                if not isinstance(part, Mapping):
                    todo += [(one, depth + 1) for one in part]
                    continue
                self._messages += "role" in part
                for name, value in part.items():
                    if name in SCHEMAS or (name in TOOL_INPUTS and isinstance(value, Mapping)):
                        yield _as_json(value)
                    elif name == "source" and isinstance(value, Mapping):  # of a document, which may be text
                        text = value.get("data" if value.get("type") == "text" else "content")
                        todo.append((text, depth + 1))
                    elif name not in MEDIA:
                        todo.append((value, depth + 1))


def _is_within(part: object) -> TypeGuard[Mapping[Any, Any] | Sequence[Any]]:
    """Whether there may be texts in it."""
    return isinstance(part, Mapping | Sequence) and not isinstance(part, bytes | bytearray)


def _as_json(value: object) -> str:
    try:
        return json.dumps(value, default=str)
    except (ValueError, TypeError, RecursionError):
        return ""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _weigh(data: bytes) -> int:
    """By how many bytes there are of each kind, each counted in one pass at the speed of C."""
    size = len(data)
    letters = size - len(data.translate(None, _LETTERS))
    white = size - len(data.translate(None, _WHITES))
    high = len(data.translate(None, _ASCII))
    lead = len(data.translate(None, _UP_TO_THREE_BYTES))
    weight = letters * _LETTER + white * _WHITE + high * _HIGH + lead * _LEAD
    weight += (size - letters - white - high) * _OTHER
    return min(-(-weight // _TWELFTHS), size)


def _encoding(model: str) -> Encoding | None:
    """The encoding of a model, if ``tiktoken`` has it in memory or on disk."""
    name = _encoding_name(model) if isinstance(model, str) and len(model) <= MODEL_LENGTH_MAX else None
    if name is None:
        return None
    import tiktoken.registry

    loaded: Encoding | None = tiktoken.registry.ENCODINGS.get(name)
    if loaded is None and name not in _not_on_disk:
        if _is_on_disk(name):
            return tiktoken.get_encoding(name)
        _not_on_disk.add(name)
    return loaded


@lru_cache(256)
def _encoding_name(model: str) -> str | None:
    try:
        from tiktoken.model import encoding_name_for_model

        return encoding_name_for_model(model)
    except (ImportError, KeyError):
        return None


def _is_on_disk(name: str) -> bool:
    """Whether ``tiktoken`` would find a good file of an encoding, so that it does not download one."""
    if name not in ENCODING_FILES:
        return False
    file, right_sum = ENCODING_FILES[name]
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder is None:
        folder = str(Path(tempfile.gettempdir()) / "data-gym-cache")
    if not folder:
        return False  # which switches the cache off
    key = hashlib.sha1(f"{_PLACE}{file}.tiktoken".encode(), usedforsecurity=False).hexdigest()
    try:
        return hashlib.sha256((Path(folder) / key).read_bytes()).hexdigest() == right_sum
    except OSError:
        return False
