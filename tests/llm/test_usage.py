"""Usage is read from the bodies of every provider, and nothing in a body raises."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.llm.recorded_bodies import RECORDED, STREAM, Recorded
from zae_limiter import ValidationError
from zae_limiter.llm import Usage, read_usage
from zae_limiter.llm import usage as module
from zae_limiter.models import TOKENS_MAX

BODIES = [one for one in RECORDED if one.name.endswith(".json") and "array" not in one.name]


@pytest.mark.parametrize("recorded", BODIES, ids=lambda one: one.name)
def test_a_body_tells_its_usage(recorded: Recorded) -> None:
    """Whoever wrote it: input with what a cache had to do with, output with reasoning."""
    assert read_usage(json.loads(recorded.body)) == recorded.usage


def documents(recorded: Recorded) -> list[dict[str, Any]]:
    """The events of a stream, by a reader that is not ours."""
    lines = recorded.body.decode().splitlines()
    return [json.loads(line[5:]) for line in lines if line.startswith("data:") and "[DONE]" not in line]


def test_the_bodies_are_what_openai_and_anthropic_publish() -> None:
    """Their own clients read ours: fields and types are right, and they find the same numbers."""
    from anthropic.types import Message, RawMessageDeltaEvent, RawMessageStartEvent
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response

    kinds: dict[str, Any] = {
        "chat.completion": ChatCompletion,
        "chat.completion.chunk": ChatCompletionChunk,
        "response": Response,
        "message": Message,
        "message_start": RawMessageStartEvent,
        "message_delta": RawMessageDeltaEvent,
    }
    met = set()
    for one in RECORDED:
        if one.name.startswith(("openai", "anthropic")):
            for event in documents(one) if one.content_type == STREAM else [json.loads(one.body)]:
                body = event.get("response", event)
                kind = body.get("object") or body.get("type")
                if kind in kinds:
                    met.add(kind)
                    read = kinds[kind].model_validate(body)
                    assert read_usage(read.model_dump()) == read_usage(event)
    assert met == kinds.keys()


class Wire:
    """What botocore reads a stream from, in pieces that fit no frame."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        return (self._body[at : at + 7] for at in range(0, len(self._body), 7))

    def close(self) -> None:
        """There is nothing to close."""


def test_the_bodies_are_what_amazon_publishes() -> None:
    """botocore knows every field and its type, checks every frame, and leaves the same numbers."""
    from botocore.eventstream import EventStream
    from botocore.loaders import Loader
    from botocore.model import ServiceModel
    from botocore.parsers import EventStreamJSONParser, create_parser
    from botocore.validate import ParamValidator

    service = ServiceModel(Loader().load_service_model("bedrock-runtime", "service-2"))
    bodies = {one.name: one for one in RECORDED if one.name.startswith("bedrock")}
    whole, lines, framed = (bodies[f"bedrock.{kind}"] for kind in ("json", "jsonl", "eventstream"))

    shape = service.operation_model("Converse").output_shape
    answer = {"body": whole.body, "headers": {}, "status_code": 200}
    read = create_parser(service.metadata["protocol"]).parse(answer, shape)
    del read["ResponseMetadata"]
    assert read == json.loads(whole.body)
    assert ParamValidator().validate(read, shape).generate_report() == ""
    assert read_usage(read) == whole.usage

    shape = service.operation_model("ConverseStream").output_shape.members["stream"]
    events = list(EventStream(Wire(framed.body), shape, EventStreamJSONParser(), "ConverseStream"))
    assert events == [json.loads(line) for line in lines.body.splitlines()]
    reports = [ParamValidator().validate(event, shape).generate_report() for event in events]
    assert "".join(reports) == ""
    assert [usage for usage in map(read_usage, events) if usage] == [framed.usage] == [lines.usage]


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 40}}, Usage(9, 31)),
        ({"usage": {"prompt_tokens": 9}}, Usage(9)),
        ({"usage": {"completion_tokens": 3.0}}, Usage(0, 3)),
        ({"usage": {"prompt_tokens": 0, "completion_tokens": 0}}, Usage()),
        ({"usage": {"prompt_tokens": -1, "completion_tokens": 4}}, Usage(0, 4)),
        ({"usage": {"prompt_tokens": -1}}, None),
        ({"usage": {"prompt_tokens": True, "completion_tokens": "7"}}, None),
        ({"usage": {"input_tokens": float("nan"), "output_tokens": float("inf")}}, None),
        ({"usage": {"input_tokens": 10**400, "output_tokens": 1}}, Usage(TOKENS_MAX, 1)),
        ({"usage": {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 50}}}, Usage(5, 0, 5)),
        ({"usage": {"input_tokens": 5, "input_tokens_details": [50]}}, Usage(5)),
        ({"usage": [1], "usageMetadata": {"promptTokenCount": 2}}, Usage(2)),
        ({"usage": None}, None),
        ({"message": "no", "response": [], "metadata": {"usage": {}}}, None),
        ([], None),
        (None, None),
    ],
)
def test_what_is_odd_in_a_body(body: Any, usage: Usage | None) -> None:
    """A total beyond its parts is output; what is no count is not there; no part is more than its whole."""
    assert read_usage(body) == usage


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.integers(0, 10**15)
)
NAMES = st.sampled_from(
    [
        name
        for known in vars(module).values()
        if isinstance(known, tuple)
        for name in known
        if isinstance(name, str)
    ]
    + ["cached_tokens", "reasoning_tokens", "cache_write_tokens", "type", "choices"]
) | st.text(max_size=2)
ODD = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=25,
)


@given(body=ODD)
def test_no_body_raises(body: Any) -> None:
    """Whatever it says, counts are whole, not negative, not too large, and parts of their wholes."""
    usage = read_usage(body)
    if usage is not None:
        assert 0 <= usage.cached_tokens + usage.cache_write_tokens <= usage.input_tokens <= TOKENS_MAX
        assert 0 <= usage.reasoning_tokens <= usage.output_tokens <= usage.total_tokens <= TOKENS_MAX
        assert usage.plain_input_tokens + usage.cached_tokens == usage.input_tokens


def test_a_usage_is_checked_when_it_is_made() -> None:
    """Who makes one by hand is told of what cannot be."""
    for wrong in (-1, TOKENS_MAX + 1, 1.5, True):
        with pytest.raises(ValidationError, match="output_tokens"):
            Usage(1, wrong)  # type: ignore[arg-type]
