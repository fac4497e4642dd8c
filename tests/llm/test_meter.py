"""A meter reads every response, however it is cut, packed or broken, and never raises."""

import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.recorded_bodies import AMAZON, JSON, RECORDED, STREAM, TELLING, Recorded
from zae_limiter.llm import Usage, UsageMeter, estimate_tokens, events, separate_tokens
from zae_limiter.llm.events import DOCUMENT_BYTES_MAX, TEXT_BYTES_MAX
from zae_limiter.models import TOKENS_MAX

every_response = pytest.mark.parametrize("recorded", RECORDED, ids=lambda one: one.name)
BY_NAME = {one.name: one for one in RECORDED}


def pieces(body: bytes, cuts: list[int]) -> Iterator[bytes]:
    """A body cut at some places; twice at the same one is a piece with nothing in it."""
    ends = sorted([*(min(cut, len(body)) for cut in cuts), len(body)])
    for start, end in zip([0, *ends], ends, strict=False):
        yield body[start:end]


def read(body: bytes, cuts: list[int] | None = None, **how: Any) -> UsageMeter:
    meter = UsageMeter(**how)
    for piece in pieces(body, cuts or []):
        meter.feed(piece)
    return meter


@every_response
def test_a_response_is_read_wherever_it_is_cut(recorded: Recorded) -> None:
    """In two at every byte, and byte by byte."""
    body = recorded.body
    for cut in range(0, len(body) + 1, 1 if len(body) < 2_000 else 7):
        assert read(body, [cut], content_type=recorded.content_type).usage == recorded.usage
    every_byte = list(range(len(body)))
    assert read(body, every_byte, content_type=recorded.content_type).usage == recorded.usage


@pytest.mark.parametrize(
    "recorded", [one for one in TELLING if one.content_type != AMAZON], ids=lambda o: o.name
)
def test_a_response_that_does_not_say_what_it_is(recorded: Recorded) -> None:
    """Is known by how it begins, white space and the mark of UTF-8 aside."""
    for before in (b"", b"\n \r\n", "\ufeff".encode(), b" \xef\xbb\xbf\n "):
        for cuts in ([], list(range(12))):
            assert read(before + recorded.body, cuts).usage == recorded.usage


@every_response
@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate", "br", "zstd", "gzip, gzip"])
def test_a_compressed_response(recorded: Recorded, encoding: str) -> None:
    """What Python can unpack is read; what it cannot tells nothing."""
    packed = {"gzip": gzip.compress, "deflate": zlib.compress}.get(encoding.lower(), bytes)(recorded.body)
    for cuts in ([], list(range(0, len(packed), 3))):
        meter = read(packed, cuts, content_type=recorded.content_type, content_encoding=encoding)
        assert meter.usage == (recorded.usage if encoding in ("gzip", "GZIP", "deflate") else None)


def test_several_packed_one_after_another() -> None:
    """Servers flush like that."""
    body = BY_NAME["openai_chat.sse"].body
    packed = gzip.compress(body[:700]) + gzip.compress(body[700:])
    assert read(packed, [5, 300], content_type=STREAM, content_encoding="gzip").usage == Usage(9, 12)


class TestUntilTheProviderTells:
    @pytest.mark.parametrize("recorded", [one for one in RECORDED if one.text], ids=lambda one: one.name)
    def test_a_reader_who_leaves_pays_for_what_came(self, recorded: Recorded) -> None:
        """With the prompt known, text is counted as it comes: never less for more, never twice."""
        body, last = recorded.body, -1
        for end in range(0, len(body), 5):
            usage = read(body[:end], content_type=recorded.content_type, input_tokens=40).usage
            assert usage is not None
            if not usage.is_estimated:
                assert usage == recorded.usage
                break
            assert usage.input_tokens in (40, recorded.usage.input_tokens if recorded.usage else 40)
            told_so_far = recorded.usage.output_tokens if recorded.usage else 0
            # Each piece is rounded up by itself.
            assert last <= usage.output_tokens <= max(estimate_tokens(recorded.text) + 12, told_so_far)
            last = usage.output_tokens

    def test_all_of_a_text_is_counted(self) -> None:
        """Where the provider says nothing at all."""
        silent = BY_NAME["openai_chat_silent.sse"]
        usage = read(silent.body, content_type=STREAM, input_tokens=40).usage
        assert usage is not None
        assert usage.is_estimated
        assert estimate_tokens(silent.text) <= usage.output_tokens <= estimate_tokens(silent.text) + 4

    def test_without_the_prompt_nothing_is_known(self) -> None:
        """And what was taken stays taken."""
        assert read(BY_NAME["openai_chat_silent.sse"].body, content_type=STREAM).amounts() is None

    def test_anthropic_tells_the_input_first(self) -> None:
        """So its streams need no estimate of the prompt: the output is counted until it is told."""
        body = BY_NAME["anthropic.sse"].body
        usage = read(body[: body.index(b"message_delta") - 20], content_type=STREAM).usage
        assert usage is not None
        assert usage.is_estimated
        assert (usage.input_tokens, usage.cached_tokens) == (125, 100)
        assert usage.output_tokens >= 10

    def test_a_body_without_usage_is_counted_too(self) -> None:
        """As a server of one's own may send it."""
        body = {"choices": [{"message": {"role": "assistant", "content": "word " * 30}}]}
        usage = read(json.dumps(body).encode(), content_type=JSON, input_tokens=7).usage
        assert usage == Usage(7, estimate_tokens("word " * 30), is_estimated=True)


class TestTelling:
    @pytest.mark.parametrize("recorded", TELLING, ids=lambda one: one.name)
    def test_the_usage_of_a_whole_call_is_told_once(self, recorded: Recorded) -> None:
        """However often somebody looks, and never before the provider has told all of it."""
        told: list[Usage] = []
        meter = UsageMeter(content_type=recorded.content_type, tell=told.append)
        for piece in pieces(recorded.body, list(range(0, len(recorded.body), 50))):
            meter.feed(piece)
            meter.amounts()
        assert told == [recorded.usage]

    def test_a_stream_that_is_cut_off_tells_nothing(self) -> None:
        """What it would have taken is not known."""
        told: list[Usage] = []
        for name in ("anthropic.sse", "gemini.sse", "gemini_array.json", "openai_chat.sse"):
            meter = UsageMeter(content_type=BY_NAME[name].content_type, tell=told.append)
            meter.feed(BY_NAME[name].body[: len(BY_NAME[name].body) // 2])
            meter.amounts()
        assert told == []


def test_counts_of_a_stream_only_rise() -> None:
    """A server that tells as it goes, or twice, or zeros at the end, is understood."""
    counts = [(9, 0), (9, 5), (9, 12), (9, 12), (0, 0)]
    events = [{"choices": [], "usage": {"prompt_tokens": a, "completion_tokens": b}} for a, b in counts]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    assert read(body, content_type=STREAM).usage == Usage(9, 12)


def test_the_last_event_needs_no_empty_line() -> None:
    """Some servers end their streams without one."""
    body = b'data: {"usage": {"prompt_tokens": 9, "completion_tokens": 12}}'
    for end in (b"", b"\n", b"\r"):
        meter = read(body + end, content_type=STREAM)
        assert meter.amounts() == meter.amounts() == {"tpm": 21}


def test_lines_of_an_event_belong_together() -> None:
    """As the standard of server-sent events has it, whatever ends the lines."""
    for end in ("\n", "\r\n", "\r"):
        lines = [
            ": hi",
            "id: 1",
            'data: {"usage":',
            'data:{"prompt_tokens": 4}',
            "retry: 5",
            "data: }",
            "",
            "",
        ]
        body = end.join(lines).encode()
        for cut in range(len(body)):
            assert read(body, [cut, cut], content_type=STREAM).usage == Usage(4)


class TestFactory:
    @pytest.mark.parametrize("name", ["Content-Type", "content-type"])
    def test_a_meter_for_each_response(self, name: str) -> None:
        """By its headers, however they are written; what cannot tell has none."""
        make = UsageMeter.factory(separate_tokens())
        meter = make(object(), 200, {name: STREAM})
        assert meter is not None
        meter.feed(BY_NAME["anthropic.sse"].body)
        assert meter.amounts() == {"itpm": 25, "otpm": 89}
        assert make(object(), 200, {name: "text/html"}) is None
        assert make(object(), 200, {name: JSON, "Content-Encoding": "br"}) is None
        assert make(object(), 200, {}) is not None

    @pytest.mark.parametrize("status", [400, 429, 500])
    def test_what_failed_took_nothing(self, status: int) -> None:
        """Whatever it says: the estimate is given back. Nobody learns from it."""
        told: list[Any] = []
        make = UsageMeter.factory(separate_tokens(), input_tokens=len, tell=lambda *those: told.append(those))
        meter = make("four", status, {"content-type": STREAM})
        assert meter is not None
        meter.feed(BY_NAME["anthropic.sse"].body)
        assert (meter.amounts(), told) == ({"itpm": 0, "otpm": 0}, [])

    def test_what_is_known_of_the_request_is_used(self) -> None:
        """How long its prompt is, and who wants to hear what it took."""
        told: list[Any] = []
        make = UsageMeter.factory(input_tokens=len, tell=lambda request, usage: told.append((request, usage)))
        meter = make("four", 200, {"content-type": STREAM})
        assert meter is not None
        assert meter.amounts() == {"tpm": 4}
        meter.feed(BY_NAME["openai_chat.sse"].body)
        assert (meter.amounts(), told) == ({"tpm": 21}, [("four", Usage(9, 12))])


class TestHostile:
    """What comes from elsewhere may be anything."""

    @given(
        size=st.integers(0, 60_000),
        unit=st.sampled_from([b"0", b"\n", b'""', b"[{}],", b"{}", b"data: {}\n\n"]),
    )
    @settings(max_examples=60)
    def test_a_chunk_holds_so_much(self, size: int, unit: bytes) -> None:
        """What is packed into a chunk is read up to a multiple of it; beyond that nothing is known."""
        packed = gzip.compress(unit * (40 * size // len(unit)))
        bound = events.DECODED_FEED_BYTES + events.DECODED_FEED_RATIO * len(packed)
        inflated = events.Inflated()
        read = sum(map(len, inflated.feed(packed)))
        assert read <= bound + events._DECODED_STEP_BYTES
        assert inflated.has_given_up == (len(unit) * (40 * size // len(unit)) > read)

    def test_who_packs_too_much_is_not_estimated(self) -> None:
        """For what was read is not all that came; what the provider tells counts."""
        for bomb, known in ((b"", {"tpm": 5}), (b" " * 2**21, None)):
            meter = UsageMeter(content_type=JSON, content_encoding="gzip", input_tokens=5)
            meter.feed(gzip.compress(bomb))
            assert meter.amounts() == known
        told = gzip.compress(b'{"usage": {"prompt_tokens": 1, "completion_tokens": 2}}') + gzip.compress(bomb)
        meter = UsageMeter(content_type=JSON, content_encoding="gzip", input_tokens=5)
        meter.feed(told)
        assert meter.amounts() == {"tpm": 3}

    @given(
        recorded=st.sampled_from(RECORDED),
        content_type=st.sampled_from([JSON, STREAM, AMAZON, "text/html", "", "x/y+json", "\x00;", None]),
        content_encoding=st.sampled_from([None, "gzip", "deflate", "br", ""]),
        packed=st.booleans(),
        harm=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 60), st.binary(max_size=40)), max_size=4),
        cuts=st.lists(st.integers(0, 3_000), max_size=8),
        input_tokens=st.none() | st.integers(0, 100),
    )
    @settings(max_examples=300)
    def test_nothing_raises(
        self,
        recorded: Recorded,
        content_type: str | None,
        content_encoding: str | None,
        packed: bool,
        harm: list[tuple[float, int, bytes]],
        cuts: list[int],
        input_tokens: int | None,
    ) -> None:
        """Bytes replaced, left out, put in; the wrong content type; truncated; packed or not."""
        body = recorded.body
        for place, less, more in harm:
            at = int(place * len(body))
            body = body[:at] + more + body[at + less :]
        body = gzip.compress(body, 1) if packed else body
        how = {"content_type": content_type, "content_encoding": content_encoding}
        meter = read(body, cuts, input_tokens=input_tokens, amounts=separate_tokens(cached="ctpm"), **how)
        amounts = meter.amounts()
        assert amounts is None or all(0 <= amount <= TOKENS_MAX for amount in amounts.values())

    @given(
        count=st.integers() | st.floats() | st.text(max_size=4) | st.none() | st.booleans(),
        name=st.sampled_from(["prompt_tokens", "completion_tokens", "input_tokens", "totalTokens"]),
    )
    def test_any_count(self, count: Any, name: str) -> None:
        """Wrong types, negative, huge, not a number."""
        body = json.dumps({"usage": {"output_tokens": 5, name: count}}).encode()
        amounts = read(body, content_type=JSON).amounts()
        assert amounts is not None
        assert 0 <= amounts["tpm"] <= TOKENS_MAX

    @pytest.mark.parametrize(
        "body",
        [
            b'{"usage":' * 100_000,
            b"[" * 200_000 + b'{"usage": {"prompt_tokens": 1}}',
            b'{"usage": {"prompt_tokens": ' + b"9" * 100_000 + b"}}",
            b'{"usage": {"prompt_tokens": 1, "prompt_tokens": 2}}',
            b'data: {"usage": {"prompt_tokens": NaN, "completion_tokens": -Infinity}}\n\n',
            b'{"usage": "\xff\xfe\x00\\',
            b"data: " + b'{"a":' * 50_000 + b'"usage"' + b"}" * 50_000 + b"\n\n",
            b"}}}]]]{",
        ],
    )
    def test_what_parsers_stumble_over(self, body: bytes) -> None:
        """Depth, digits, keys twice, no numbers, no text, brackets that close nothing."""
        amounts = read(body, input_tokens=3).amounts()
        assert amounts is not None
        assert 0 <= amounts["tpm"] <= TOKENS_MAX

    def test_a_function_of_ones_own_cannot_overcharge(self) -> None:
        """Whatever it makes of a usage is cut to what a limit can take."""
        body = b'{"usage": {"prompt_tokens": 7}}'
        odd = read(body, amounts=lambda usage: {"a": -usage.input_tokens, "b": 10**30, "c": 2.5})  # type: ignore[dict-item]
        assert odd.amounts() == {"a": 0, "b": TOKENS_MAX, "c": 2}

    def test_a_picture_does_not_hide_the_usage(self) -> None:
        """A long text within a body is passed over, escapes and all, wherever it is cut."""
        picture = 'iVBOR\\n\\u00e9\\"' * (2 * DOCUMENT_BYTES_MAX // 15)
        body = (
            f'{{"data": [{{"b64_json": "{picture}"}}], "usage": {{"input_tokens": 4, "output_tokens": 5}}}}'
        )
        for size in (1 << 16, 4_093, len(body)):
            cuts = list(range(0, len(body), size))
            assert read(body.encode(), cuts, content_type=JSON).usage == Usage(4, 5)

    @pytest.mark.parametrize(
        ("how", "beginning", "more"),
        [
            ({"content_type": JSON}, b'{"a": "', b"a" * 65_536),
            ({"content_type": JSON}, b"{", b'"a": [%s], ' % (b"1, " * 400) * 54),
            ({"content_type": JSON}, b"[", b"[" * 65_536),
            ({"content_type": STREAM}, b"data: ", b"a" * 65_536),
            ({"content_type": STREAM}, b"", b"data: aaaaaaaaa\n" * 4_096),
            ({"content_type": AMAZON}, (DOCUMENT_BYTES_MAX + 1).to_bytes(4) + bytes(8), b"a" * 65_536),
            ({"content_type": AMAZON}, DOCUMENT_BYTES_MAX.to_bytes(4) + bytes(4), b"a" * 65_536),
            ({}, b"", b" \n" * 32_768),
            ({"content_type": STREAM, "content_encoding": "gzip"}, b"", gzip.compress(bytes(10**6))),
        ],
    )
    def test_what_a_meter_holds_is_bounded(self, how: dict[str, str], beginning: bytes, more: bytes) -> None:
        """However much comes: four times that, or a bomb that unpacks to 64 MB."""
        meter = UsageMeter(**how)  # type: ignore[arg-type]
        tracemalloc.start()
        try:
            meter.feed(beginning)
            for _ in range(4 * DOCUMENT_BYTES_MAX // (1 << 16)):
                meter.feed(more)
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert meter.amounts() is None
        assert held < 2 * DOCUMENT_BYTES_MAX
        assert peak < 4 * DOCUMENT_BYTES_MAX

    def test_a_good_document_behind_one_that_is_too_large(self) -> None:
        """Is read all the same, in lines, arrays and streams of events."""
        good = '{"usage": {"prompt_tokens": 3}}'
        large = json.dumps({"usage": ["x" * 100] * (DOCUMENT_BYTES_MAX // 80)})
        for body, kind in (
            (f"{large}\n{good}", "application/x-ndjson"),
            (f"[{large}, {good}]", JSON),
            (f"data: {large}\n\ndata: {good}\n\n", STREAM),
        ):
            assert read(body.encode(), [100, TEXT_BYTES_MAX], content_type=kind).usage == Usage(3)


def test_garbage_at_random() -> None:
    """Bytes that mean nothing tell nothing."""
    chance = random.Random(20)
    for kind in (JSON, STREAM, AMAZON, None):
        for _ in range(50):
            assert read(chance.randbytes(500), [100, 200], content_type=kind).usage is None
