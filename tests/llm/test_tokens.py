"""Prompts are weighed on the upper side, within a bound for all tokenizers; nothing is downloaded."""

import hashlib
import math
from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import requests
import tiktoken
import tiktoken.load
import tiktoken.registry
import tiktoken_ext.openai_public
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zae_limiter import ValidationError
from zae_limiter.llm import estimate_tokens, output_cap, tokens, tokens_at_most
from zae_limiter.models import TOKENS_MAX

ROOT = Path(__file__).resolve().parents[2]
PATTERN = r"""[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"""
MERGES = (
    *("th", "he", "in", "er", "an", "re", "on", " a", " t", " th", " the", "ing", "and", " and", "en", "es"),
    *("  ", "    ", "==", "00", "\u00e9", "\u4eba", "12", "123"),
)
"""What a tiny encoding knows beside single bytes, shorter parts first."""


def tiny_encoding(name: str = "tiny") -> tiktoken.Encoding:
    """An encoding of our own in tiktoken's own class: all bytes, and few merges."""
    ranks = {bytes([value]): value for value in range(256)}
    for merge in sorted(MERGES, key=lambda text: len(text.encode())):
        ranks.setdefault(merge.encode(), len(ranks))
    special = {"<|endoftext|>": len(ranks)}
    return tiktoken.Encoding(name, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)


TINY = tiny_encoding()
texts = st.text(max_size=60) | st.text("ab the123 .,\n\u00e9\u4eba\U0001f600", max_size=200)


@given(text=texts)
@settings(max_examples=200)
def test_no_tokenizer_of_bytes_goes_beyond_the_bound(text: str) -> None:
    """One that knows next to nothing makes the most tokens, and stays within; so does the estimate."""
    assert len(TINY.encode_ordinary(text)) <= tokens_at_most(text) == len(text.encode("utf-8", "replace"))
    assert estimate_tokens(text) <= tokens_at_most(text)


@given(one=texts, other=texts)
def test_a_longer_text_is_never_estimated_lower(one: str, other: str) -> None:
    """And what is cut in two is not lower than the whole, so that a stream may be counted piece by piece."""
    assert estimate_tokens(one) <= estimate_tokens(one + other)
    assert estimate_tokens(one + other) <= estimate_tokens(one) + estimate_tokens(other)


def test_words_are_not_underestimated() -> None:
    """As common words take one token each, and long ones one for four letters, pages and code are covered."""
    for path in ("README.md", "docs/quotas.md", "src/zae_limiter/engine/law.py"):
        text = (ROOT / path).read_text(encoding="utf-8")
        words = [piece for piece in text.split() if piece.isalpha()]
        assert estimate_tokens(" ".join(words)) >= sum(math.ceil(len(word) / 6) for word in words)
        assert estimate_tokens(text) <= len(text.encode()) / 1.5


class Unseen(Sequence[str]):
    """More than anybody should look at."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("somebody looks at each of them")


class TestMessages:
    def test_every_message_takes_something_beside_its_text(self) -> None:
        """As OpenAI's own recipe has it: some for each message, some for the answer."""
        one = estimate_tokens([{"role": "user", "content": "hello"}])
        assert one == estimate_tokens("user") + estimate_tokens("hello") + 4 + 3
        assert estimate_tokens([{"role": "user", "content": "hello"}] * 3) == 3 * (one - 3) + 3

    def test_parts_bodies_and_tools(self) -> None:
        """All shapes of providers count; what is no text does not."""
        text = "word " * 40
        shapes: list[Any] = [
            [{"role": "user", "content": [{"type": "text", "text": text}]}],
            {"model": "m", "messages": [{"role": "user", "content": text}]},
            {"system": text, "messages": []},
            {"instructions": text, "input": "hi"},
            {"contents": [{"role": "user", "parts": [{"text": text}]}]},
            {"tools": [{"name": text, "input_schema": {"type": "object"}}]},
            {"content": [{"type": "tool_use", "input": {text: 1}}]},
            {"content": [{"type": "tool_use", "input": {"data": text}}]},
            {"parts": [{"functionCall": {"args": {"rows": [text]}}}]},
            {"content": [{"type": "document", "source": {"type": "text", "data": text}}]},
            {"content": [{"type": "document", "source": {"type": "content", "content": [{"text": text}]}}]},
        ]
        for shape in shapes:
            assert estimate_tokens(text) <= estimate_tokens(shape) <= estimate_tokens(text) + 40
        numbers = {"input": {"rows": list(range(1_000))}}
        assert estimate_tokens(numbers) > 2_000
        for source in ({"type": "base64", "data": "A" * 10_000}, {"type": "url", "url": "A" * 10_000}):
            assert estimate_tokens([{"role": "user", "content": [{"source": source}]}]) < 30
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000}}
        assert estimate_tokens([{"role": "user", "content": [picture]}]) < 30

    @given(
        prompt=st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats()
            | st.text(max_size=9)
            | st.binary(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.sampled_from(["role", "content", "tools", "data", ""]), inner, max_size=4
                )
            ),
            max_leaves=20,
        ).filter(lambda value: isinstance(value, str | list | dict))
    )
    def test_no_prompt_raises(self, prompt: Any) -> None:
        """Users write them."""
        assert 0 <= estimate_tokens(prompt, "gpt-4o") <= TOKENS_MAX
        assert 0 <= tokens_at_most(prompt) <= TOKENS_MAX

    def test_depth_ends_somewhere(self) -> None:
        """What lies deeper than a provider would look is not followed."""
        deep: Any = "word " * 1_000
        for _ in range(10_000):
            deep = [deep]
        tools: Any = {}
        for _ in range(100_000):
            tools = {"a": tools}
        assert estimate_tokens(deep) == 0
        assert estimate_tokens({"tools": tools}) >= 0

    def test_so_many_parts_are_looked_at(self) -> None:
        """What has more is taken for as much as can be, before anybody has looked: it is no prompt."""
        assert estimate_tokens({"input": [1] * 300_000}) == 300_000
        empty = [""] * (tokens.PARTS_MAX - 2)
        assert estimate_tokens({"messages": empty}) == tokens_at_most({"messages": empty}) == 0
        for prompt in ([*empty, "", "", ""], {"messages": Unseen()}, [Unseen()], [{"a": [""] * 9}] * 9_999):
            assert estimate_tokens(prompt) == tokens_at_most(prompt) == TOKENS_MAX

    @given(ids=st.lists(st.integers(0, 200_000), max_size=9))
    def test_tokens_that_are_sent_as_numbers(self, ids: list[int]) -> None:
        """As the prompts of embeddings and completions may be: they are counted, however many."""
        assert estimate_tokens({"input": ids}) == tokens_at_most({"input": [ids]}) == len(ids)
        assert estimate_tokens({"n": 7, "logprobs": True, "input": [True, None]}) == 0

    def test_what_is_no_prompt_is_told(self) -> None:
        """By whoever writes the gateway."""
        for wrong in (None, 7, b"bytes"):
            with pytest.raises(ValidationError, match="pass a text"):
                estimate_tokens(wrong)  # type: ignore[arg-type]

    def test_half_a_surrogate_is_text_too(self) -> None:
        """As JSON allows."""
        assert estimate_tokens("\ud83d") == 1


@pytest.mark.parametrize(
    ("body", "cap"),
    [
        ({"max_tokens": 100}, 100),
        ({"max_completion_tokens": 100, "max_tokens": 5}, 100),
        ({"max_output_tokens": 100}, 100),
        ({"max_output_tokens": 0, "max_tokens": 100}, 100),
        ({"max_completion_tokens": 1, "generationConfig": {"maxOutputTokens": 100}}, 100),
        ({"max_tokens": 0}, 0),
        ({"generationConfig": {"maxOutputTokens": 100}}, 100),
        ({"inferenceConfig": {"maxTokens": 100}}, 100),
        ({"max_tokens": 10**30}, 4_096),
        ({"max_tokens": -5}, 4_096),
        ({"max_tokens": "100"}, 4_096),
        ({"max_tokens": None, "generationConfig": []}, 4_096),
        ({}, 4_096),
        ([], 4_096),
        ({"max_tokens": 100, "n": 7}, 700),
        ({"max_tokens": 100, "n": 2, "best_of": 5}, 500),
        ({"generationConfig": {"maxOutputTokens": 100, "candidateCount": 3}}, 300),
        ({"n": 2}, 8_192),
        ({"max_tokens": 100, "n": 0}, 100),
        ({"max_tokens": 100, "n": -3, "best_of": "7"}, 100),
        ({"max_tokens": 100, "n": 10**30}, 12_800),
    ],
)
def test_how_long_answers_may_be(body: Any, cap: int) -> None:
    """By whatever name it is said; what makes no sense is not said, and no answer gets beyond the default."""
    assert output_cap(body, 4_096) == cap


class TestTiktoken:
    @pytest.fixture(autouse=True)
    def fresh(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
        """Nothing loaded, nothing on disk, and a network that is known not to be asked."""
        monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
        monkeypatch.setattr(tokens, "_not_on_disk", set())
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
        self.asked: list[str] = []
        monkeypatch.setattr(requests, "get", self.asked.append)
        yield
        assert self.asked == []

    def test_an_encoding_that_is_loaded_counts_exactly(self) -> None:
        """Marks of the model's own that a user writes are text; what is too long is weighed."""
        tiktoken.registry.ENCODINGS["o200k_base"] = TINY
        text = "the thing <|endoftext|> 123"
        assert estimate_tokens(text, "gpt-4o") == len(TINY.encode_ordinary(text))
        longest = "the " * (tokens.EXACT_CHARACTERS_MAX // 4)
        assert estimate_tokens(longest, "gpt-4o") == len(TINY.encode_ordinary(longest))
        assert estimate_tokens(longest + "t", "gpt-4o") == estimate_tokens(longest + "t")

    @given(sizes=st.lists(st.integers(0, tokens.EXACT_CHARACTERS_MAX + 1), max_size=9))
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
    def test_so_much_of_a_prompt_is_counted(self, sizes: list[int]) -> None:
        """In all its texts together, and not in each of them; the rest is weighed."""

        class Counting:
            seen = 0

            def encode_ordinary(self, text: str) -> str:
                self.seen += len(text)
                return text[: len(text) // 2]

        encoding: Any = Counting()
        tiktoken.registry.ENCODINGS["o200k_base"] = encoding
        found = estimate_tokens(["x" * size for size in sizes], "gpt-4o")
        assert encoding.seen <= tokens.EXACT_CHARACTERS_MAX
        assert found <= sum(sizes)
        if sum(sizes) <= tokens.EXACT_CHARACTERS_MAX:
            assert found == sum(size // 2 for size in sizes)

    @pytest.mark.parametrize("model", ["gpt-4o", "gpt-3.5-turbo", "claude-sonnet-4-5", "", "x" * 10_000])
    def test_nothing_is_downloaded(self, model: str) -> None:
        """A model whose encoding is not here, or that has none, is weighed."""
        assert estimate_tokens("hello there", model) == estimate_tokens("hello there")

    def test_an_encoding_on_disk_is_loaded(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """From where tiktoken keeps it, if the file is as it should be."""
        ranks = {bytes([value]): value for value in range(256)} | {b"hello": 256}
        data = b"".join(b64encode(token) + f" {rank}\n".encode() for token, rank in ranks.items())
        place = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
        right = hashlib.sha256(data).hexdigest()
        (tmp_path / hashlib.sha1(place.encode()).hexdigest()).write_bytes(data)
        assert estimate_tokens("hello", "gpt-4o") == 2, "it is another file than tiktoken expects"
        assert tokens._not_on_disk == {"o200k_base"}
        load = tiktoken.load.load_tiktoken_bpe
        monkeypatch.setattr(
            tiktoken_ext.openai_public, "load_tiktoken_bpe", lambda file, **_: load(file, right)
        )
        monkeypatch.setitem(tokens.ENCODING_FILES, "o200k_base", ("o200k_base", right))
        tokens._not_on_disk.clear()
        assert estimate_tokens("hello", "gpt-4o") == 1

    def test_our_table_of_files_is_tiktokens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """So that a file which is found here is one that tiktoken takes."""
        asked: list[tuple[str, str]] = []

        def load(file: str, expected_hash: str) -> dict[bytes, int]:
            asked.append((file, expected_hash))
            return {}

        monkeypatch.setattr(tiktoken_ext.openai_public, "load_tiktoken_bpe", load)
        for name, (file, right) in tokens.ENCODING_FILES.items():
            tiktoken_ext.openai_public.ENCODING_CONSTRUCTORS[name]()
            assert asked.pop() == (f"{tokens._PLACE}{file}.tiktoken", right)
        assert set(tiktoken_ext.openai_public.ENCODING_CONSTRUCTORS) - {"gpt2"} == set(tokens.ENCODING_FILES)

    def test_a_folder_without_a_name_is_no_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """That is how tiktoken is told to keep nothing."""
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
        assert estimate_tokens("hello", "gpt-4o") == estimate_tokens("hello")
