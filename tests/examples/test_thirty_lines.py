"""The gateway on the page about gateways, as it stands there, before a provider that keeps books."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.examples.mock_llm import WORD, WORD_TOKENS, MockLLM, Script
from tests.examples.servers import ROOT, UVICORN, serving
from tests.web.servers import PATIENCE_S, until
from tests.web.servers import serving as serving_here
from zae_limiter import RateLimiter
from zae_limiter.llm import estimate_tokens
from zae_limiter.web import hashed_id
from zae_limiter_aggregator.runner import aggregate

LINES_MAX = 30
KEY, UPSTREAM_KEY = "sk-ada", "upstream-secret"
PAGE = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
PROGRAM = re.search(r"<!-- file: gateway.py -->.*?```python\n(.*?)```", PAGE, re.DOTALL)[1]  # type: ignore[index]


def asking(prompt: str, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": prompt}], "max_tokens": 500, **more}


class Running:
    """What tests have in their hands: the gateway, its provider, and the store that it writes to."""

    def __init__(self, url: str, upstream: MockLLM, store: str, limiter: RateLimiter) -> None:
        self.url, self.upstream, self._store, self._limiter = url, upstream, store, limiter

    async def used(self) -> dict[str, int]:
        """What was taken of both limits, whatever has been refilled since."""
        await asyncio.to_thread(aggregate, self._store, until_idle=True)
        return dict((await self._limiter.get_usage_summary(hashed_id(KEY), "chat")).total)

    async def comes_to(self, **used: int) -> None:
        """Wait until a lease is settled; its response was over before."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.used() != used:  # noqa: ASYNC110 - another process makes it so
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    (folder / "gateway.py").write_text(PROGRAM, encoding="utf-8")
    upstream = MockLLM()
    async with serving_here("uvicorn h11", upstream.app) as provider:
        settings = {"UPSTREAM": provider, "OPENAI_API_KEY": UPSTREAM_KEY, "KEYS": f"{KEY} sk-bob"}
        with serving(UVICORN, "gateway:app", folder, within=folder, **settings) as url:
            async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as client:
                assert (await client.get(url)).status_code == 404  # it has started, and made its file
            store = f"sqlite:///{folder}/gateway.db?timeout_ms=60000"
            async with RateLimiter.open(store) as limiter:
                yield Running(url, upstream, store, limiter)
                await until(lambda: len(upstream.asked) == upstream.ended.total())


def test_it_is_short() -> None:
    """As the heading says."""
    assert sum(map(bool, PROGRAM.splitlines())) <= LINES_MAX
    assert "## In thirty lines" in PAGE


def test_a_middleware_is_five_lines() -> None:
    """Of a program that was there before: what the page about the web shows first, and runs."""
    page = (ROOT / "docs" / "web.md").read_text(encoding="utf-8")
    added = re.search(r"^app.add_middleware\(\n.*?^\)$", page, re.DOTALL | re.MULTILINE)[0]  # type: ignore[index]
    assert added.count("\n") + 1 <= 5


async def test_it_is_a_gateway(tmp_path: Path) -> None:
    """Answers and streams come through, cost what the provider tells, and name nobody's key."""
    async with running(tmp_path) as gateway:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY) as client:
            gateway.upstream.play("whole", Script(input_tokens=11, output_tokens=300))
            whole = await client.chat.completions.create(**asking("whole"))
            assert whole.choices[0].message.content == " ".join([WORD] * 3)
            await gateway.comes_to(rpm=1, tpm=311)

            gateway.upstream.play("stream", Script(input_tokens=20, output_tokens=70))
            chunks = await client.chat.completions.create(**asking("stream", stream=True))
            words = [chunk.choices[0].delta.content async for chunk in chunks if chunk.choices]
            assert [word for word in words if word] == [WORD] * 3
            await gateway.comes_to(rpm=2, tpm=401)

            gateway.upstream.play("no", Script(status=400))
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(**asking("no"))
            await gateway.comes_to(rpm=3, tpm=401)

            hopeless = client.with_options(max_retries=3)
            with pytest.raises(openai.RateLimitError, match="tpm"):
                await hopeless.chat.completions.create(**asking("much", max_tokens=10**6, n=7))
            with pytest.raises(openai.AuthenticationError):
                await client.with_options(api_key="sk-eve").chat.completions.create(**asking("whole"))
        told = [body.get("stream_options") for _, body, _ in gateway.upstream.asked]
        keys = [headers["authorization"] for _, _, headers in gateway.upstream.asked]
        assert (told, keys) == ([None, {"include_usage": True}, None], [f"Bearer {UPSTREAM_KEY}"] * 3)


@pytest.mark.parametrize("words", [0, 2])
async def test_who_hangs_up_pays_what_was_sent(words: int, tmp_path: Path) -> None:
    """The prompt, by estimate, and the words that came; the call to the provider ends as well."""
    body = asking("stream", stream=True)
    async with running(tmp_path) as gateway:
        gateway.upstream.play("stream", Script(words=9, is_stepped=True))
        gateway.upstream.want("stream", words)
        seen, headers = "", {"authorization": f"Bearer {KEY}"}
        async with (
            httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S, trust_env=False) as client,
            client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer,
            aclosing(answer.aiter_text()) as chunks,
        ):
            async for chunk in chunks:
                seen += chunk
                if '"assistant"' in seen and seen.count(WORD) == words:
                    break
        await gateway.comes_to(rpm=1, tpm=estimate_tokens(body) + words * WORD_TOKENS)
        await until(lambda: gateway.upstream.ended.total() == 1)
