"""A provider of our own that speaks OpenAI's chat completions and Anthropic's messages, streamed and not.

What it answers is written in a ``Script`` for each prompt. It keeps its own books: what it was asked, how
many words it has sent of each answer, and which answers are over.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

WORD = "abcdefghijkl"
"""What answers are made of: twelve letters weigh four tokens."""
WORD_TOKENS = 4


@dataclass(frozen=True)
class Script:
    """One answer, and what it is said to have taken."""

    words: int = 3
    is_stepped: bool = False
    """Whether each word of a stream waits until ``MockLLM.wanted`` has something for it."""
    input_tokens: int = 11
    cached_tokens: int = 0
    output_tokens: int | None = None
    status: int = 200

    @property
    def told_output(self) -> int:
        return self.words * WORD_TOKENS if self.output_tokens is None else self.output_tokens


class MockLLM:
    """Both APIs, and the books."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.wanted: dict[str, asyncio.Queue[None]] = {}
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.sent: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        routes = {"/v1/chat/completions": self._openai, "/v1/messages": self._anthropic}
        self.app = Starlette(routes=[Route(path, does, methods=["POST"]) for path, does in routes.items()])

    async def _asked(self, request: Request) -> tuple[str, Script, bool]:
        body = await request.json()
        self.asked.append((request.url.path, body, dict(request.headers)))
        prompt = body["messages"][-1]["content"]
        return prompt, self.scripts.get(prompt, Script()), bool(body.get("stream"))

    async def _openai(self, request: Request) -> Response:
        prompt, script, is_streamed = await self._asked(request)
        usage = {
            "prompt_tokens": script.input_tokens,
            "completion_tokens": script.told_output,
            "total_tokens": script.input_tokens + script.told_output,
            "prompt_tokens_details": {"cached_tokens": script.cached_tokens},
        }
        head = {"id": "chatcmpl-1", "created": 1, "model": "gpt-4o"}
        if script.status != 200:
            self._end(prompt, 0)
            error = {"message": "no", "type": "invalid_request_error", "code": None}
            return JSONResponse({"error": error}, script.status)
        if not is_streamed:
            text = {"role": "assistant", "content": " ".join([WORD] * script.words)}
            choice = {"index": 0, "message": text, "finish_reason": "stop"}
            self._end(prompt, script.words)
            return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        head["object"] = "chat.completion.chunk"

        def chunk(choices: list[Any], told: Any = None) -> str:
            return f"data: {json.dumps({**head, 'choices': choices, 'usage': told})}\n\n"

        def delta(finish: str | None = None, **text: str) -> str:
            return chunk([{"index": 0, "delta": text, "finish_reason": finish}])

        first, last = [delta(role="assistant", content="")], [delta("stop"), chunk([], usage)]
        words = [delta(content=WORD)] * script.words
        return self._streamed(prompt, script, first, words, [*last, "data: [DONE]\n\n"])

    async def _anthropic(self, request: Request) -> Response:
        prompt, script, is_streamed = await self._asked(request)
        given = {
            "input_tokens": script.input_tokens - script.cached_tokens,
            "cache_read_input_tokens": script.cached_tokens,
            "cache_creation_input_tokens": 0,
        }
        usage = {**given, "output_tokens": script.told_output}
        message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
        message |= {"model": "claude-sonnet-5", "stop_reason": None, "stop_sequence": None}
        if script.status != 200:
            self._end(prompt, 0)
            error = {"type": "invalid_request_error", "message": "no"}
            return JSONResponse({"type": "error", "error": error}, script.status)
        if not is_streamed:
            content = [{"type": "text", "text": " ".join([WORD] * script.words)}]
            self._end(prompt, script.words)
            return JSONResponse({**message, "content": content, "stop_reason": "end_turn", "usage": usage})

        def event(kind: str, **more: Any) -> str:
            return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n"

        block, word = {"type": "text", "text": ""}, {"type": "text_delta", "text": WORD}
        first = [
            event("message_start", message={**message, "usage": {**given, "output_tokens": 1}}),
            event("content_block_start", index=0, content_block=block),
        ]
        words = [event("content_block_delta", index=0, delta=word)] * script.words
        ended = {"stop_reason": "end_turn", "stop_sequence": None}
        last = [
            event("content_block_stop", index=0),
            event("message_delta", delta=ended, usage={"output_tokens": script.told_output}),
            event("message_stop"),
        ]
        return self._streamed(prompt, script, first, words, last)

    def _streamed(self, prompt: str, script: Script, *parts: list[str]) -> StreamingResponse:
        return StreamingResponse(self._events(prompt, script, *parts), media_type="text/event-stream")

    async def _events(
        self, prompt: str, script: Script, first: list[str], words: list[str], last: list[str]
    ) -> AsyncIterator[str]:
        try:
            yield "".join(first)
            for word in words:
                if script.is_stepped:
                    await self.wanted[prompt].get()
                self.sent[prompt] += 1
                yield word
            if script.is_stepped:
                await self.wanted[prompt].get()
            yield "".join(last)
        finally:
            self.ended[prompt] += 1

    def _end(self, prompt: str, words: int) -> None:
        self.sent[prompt] += words
        self.ended[prompt] += 1

    def play(self, prompt: str, script: Script) -> None:
        """Answer a prompt so from now on."""
        self.scripts[prompt] = script
        self.wanted[prompt] = asyncio.Queue()

    def want(self, prompt: str, words: int = 1) -> None:
        """Let a stepped stream go on."""
        for _ in range(words):
            self.wanted[prompt].put_nowait(None)


def bodies(prompt: str, *, stream: bool = False, **more: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """A request of each API, as the paths and the bodies of it."""
    said: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 500, **more}
    if stream:
        said["stream"] = True
    yield "/v1/chat/completions", {"model": "gpt-4o", **said}
    yield "/v1/messages", {"model": "claude-sonnet-5", **said}
