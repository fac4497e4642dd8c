"""The clients of OpenAI and Anthropic against the gateway: what they repeat, when, and what they read."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.examples.gateway import KEYS, PARALLEL, RPM, TPM, Gateway, running_gateway
from tests.examples.mock_llm import WORD, Script
from tests.patience import PATIENCE_SECONDS, growing_ms
from zae_limiter import Limit, RateLimitExceeded
from zae_limiter.web import hashed_id

KEY = KEYS[0]
PROMPT = "name a river"
ASKED: Any = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 300}
GPT, CLAUDE = {"model": "gpt-4o", **ASKED}, {"model": "claude-sonnet-5", **ASKED}
ANSWER = f"{WORD} {WORD} {WORD}"


async def openai_async(url: str, is_streamed: bool) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        if not is_streamed:
            return (await client.chat.completions.create(**GPT)).choices[0].message.content or ""
        chunks = await client.chat.completions.create(**GPT, stream=True)
        words = [chunk.choices[0].delta.content async for chunk in chunks if chunk.choices]
        return " ".join(word for word in words if word)


def openai_sync(url: str, is_streamed: bool) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        if not is_streamed:
            return client.chat.completions.create(**GPT).choices[0].message.content or ""
        chunks = client.chat.completions.create(**GPT, stream=True)
        words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
        return " ".join(word for word in words if word)


async def anthropic_async(url: str, is_streamed: bool) -> str:
    async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY) as client:
        if not is_streamed:
            return (await client.messages.create(**CLAUDE)).content[0].text
        async with client.messages.stream(**CLAUDE) as stream:
            return " ".join([text async for text in stream.text_stream])


def anthropic_sync(url: str, is_streamed: bool) -> str:
    with anthropic.Anthropic(base_url=url, api_key=KEY) as client:
        if not is_streamed:
            return client.messages.create(**CLAUDE).content[0].text
        with client.messages.stream(**CLAUDE) as stream:
            return " ".join(stream.text_stream)


CALLS: list[Callable[..., Any]] = [openai_async, openai_sync, anthropic_async, anthropic_sync]
REFUSED = (openai.RateLimitError, anthropic.RateLimitError)


async def called(call: Callable[..., Any], url: str, is_streamed: bool) -> str:
    if asyncio.iscoroutinefunction(call):
        found: str = await call(url, is_streamed)
        return found
    return await asyncio.to_thread(call, url, is_streamed)


@asynccontextmanager
async def new_arrivals(gateway: Gateway) -> AsyncIterator[list[dict[str, Any]]]:
    """What the gateway has answered to whoever asked within a block."""
    found: list[dict[str, Any]] = []
    before = len(await gateway.seen())
    yield found
    found += (await gateway.seen())[before:]


async def test_clients_of_both_providers(tmp_path: Path) -> None:
    """A refused call is repeated once, after the told wait, and passes; a hopeless one is not repeated."""
    async with running_gateway(tmp_path) as gateway:
        gateway.upstream.play(PROMPT, Script(input_tokens=40))
        for number, call in enumerate(CALLS):
            is_streamed = bool(number % 2)
            await gateway.limit(KEY, RPM, TPM, PARALLEL)
            for either in (False, True):
                async with new_arrivals(gateway) as seen:
                    assert await called(call, gateway.url, either) == ANSWER
                assert [one["status"] for one in seen] == [200]
            await _is_repeated_once(gateway, call, is_streamed)
            await gateway.limit(KEY, RPM, Limit.per_minute("tpm", 200), PARALLEL)
            await _is_not_repeated(gateway, call, is_streamed)
            await gateway.limit(KEY, Limit("rpm", 1, 1, 86_400), TPM, PARALLEL)
            with suppress(RateLimitExceeded):  # whether or not there was one left
                await (await gateway.limiter.acquire(hashed_id(KEY), "chat", {"rpm": 1})).commit()
            await _is_not_repeated(gateway, call, is_streamed)


async def _is_repeated_once(gateway: Gateway, call: Callable[..., Any], is_streamed: bool) -> None:
    """Ask while the key has to wait; who asks too late to be refused tries again with a longer wait."""
    for period_ms in growing_ms(1_000):
        limit = Limit("rpm", 1, 1, period_ms // 1_000)
        await gateway.limit(KEY, limit, TPM, PARALLEL)
        async with gateway.limiter.acquire(hashed_id(KEY), "chat", {"rpm": 1}, wait=PATIENCE_SECONDS):
            pass
        async with new_arrivals(gateway) as seen:
            assert await called(call, gateway.url, is_streamed) == ANSWER
        if seen[0]["status"] == 429:
            break
    assert [one["status"] for one in seen] == [429, 200]
    told = dict(seen[0]["headers"])
    assert 0 < int(told["retry-after-ms"]) <= period_ms
    assert int(told["retry-after"]) == -(-int(told["retry-after-ms"]) // 1_000)
    assert seen[1]["arrived"] - seen[0]["answered"] >= int(told["retry-after-ms"]) / 1_000


async def _is_not_repeated(gateway: Gateway, call: Callable[..., Any], is_streamed: bool) -> None:
    asked = len(gateway.upstream.asked)
    async with new_arrivals(gateway) as seen:
        with pytest.raises(REFUSED):
            await called(call, gateway.url, is_streamed)
    assert [(one["status"], dict(one["headers"])["x-should-retry"]) for one in seen] == [(429, "false")]
    assert len(gateway.upstream.asked) == asked
