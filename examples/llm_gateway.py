"""An LLM gateway: teams and their keys, three kinds of limits, for the clients of OpenAI and Anthropic.

    OPENAI_API_KEY=… ANTHROPIC_API_KEY=… uvicorn examples.llm_gateway:app

A call is charged to its key and its team: requests, tokens, and how many run at once. Tokens are reserved by
what such calls took lately, and settled by what the provider tells; who hangs up pays for what was sent.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

from zae_limiter import EntityExistsError, Limit, RateLimiter
from zae_limiter.llm import LearnedEstimates, Usage, UsageMeter, estimate_tokens, output_cap
from zae_limiter.web import RateLimitMiddleware, RequestRefused, Rule, hashed_id
from zae_limiter.web import Request as Asked

STORE = os.environ.get("STORE", "sqlite:///gateway.db")
OPENAI, ANTHROPIC, UNPACKED = "/v1/chat/completions", "/v1/messages", {"accept-encoding": "identity"}
OPENAI_KEY = {"authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
ANTHROPIC_KEY = {"x-api-key": os.environ.get("ANTHROPIC_API_KEY", "")}
UPSTREAMS = {
    OPENAI: (os.environ.get("OPENAI_UPSTREAM", "https://api.openai.com"), OPENAI_KEY),
    ANTHROPIC: (os.environ.get("ANTHROPIC_UPSTREAM", "https://api.anthropic.com"), ANTHROPIC_KEY),
}
ASKED = ("accept", "anthropic-version", "anthropic-beta")
TOLD = ("content-type", "retry-after", "retry-after-ms", "x-should-retry", "request-id", "x-request-id")
MODELS = {"gpt-4o": 16_384, "claude-sonnet-5": 64_000}  # and what to reserve where no cap is sent
TEAMS = {"team-otter": ["sk-otter-1", "sk-otter-2"], "team-heron": ["sk-heron-1"]}  # yours are in a database
ENTITIES = {key: hashed_id(key) for keys in TEAMS.values() for key in keys}  # the store never sees a key
KEY_LIMITS = [Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 100_000), Limit.concurrent("parallel", 8)]
TEAM_LIMITS = [Limit.per_minute("tpm", 150_000), Limit.per_month("tokens", 50_000_000, tz="Europe/Berlin")]


@asynccontextmanager
async def opened() -> AsyncIterator[RateLimiter]:
    """All that lives as long as the server; keys cascade to their teams."""
    async with (
        RateLimiter.open(STORE) as limiter,
        LearnedEstimates(limiter) as app.state.estimates,
        httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None)) as app.state.upstream,
    ):
        await limiter.set_resource_defaults("chat", KEY_LIMITS)
        for team, keys in TEAMS.items():
            for entity_id, parent_id in [(team, None), *((ENTITIES[key], team) for key in keys)]:
                with suppress(EntityExistsError):
                    await limiter.create_entity(entity_id, parent_id=parent_id, cascade=parent_id is not None)
            await limiter.set_limits(team, TEAM_LIMITS, "chat")
        yield limiter


def whose(asked: Asked) -> str | None:
    """Whose call it is, by the key that clients of either provider send; a key that is not ours is a 401."""
    sent = asked.headers.get("x-api-key") or asked.headers.get("authorization", "").removeprefix("Bearer ")
    return ENTITIES.get(sent)


async def cost(asked: Asked) -> dict[str, int]:
    """A request, a seat, and the tokens that it will probably take: its prompt, and an answer."""
    body = await asked.json(limit_bytes=2**20)  # parsing holds up all others: as much as your prompts need
    model = str(body.get("model")) if isinstance(body, dict) else ""
    if model not in MODELS:
        raise RequestRefused(404, "there is no such model")
    prompt, cap = estimate_tokens(body, model), output_cap(body, MODELS[model])
    asked.state.update(body=body, model=model, prompt=prompt, cap=cap)
    tokens = prompt + await app.state.estimates.reserve(model, cap)
    return {"rpm": 1, "parallel": 1, "tpm": tokens, "tokens": tokens}


def taken(usage: Usage) -> dict[str, int]:
    """What a call took: input that was read from a cache counts for the month, not for the minute."""
    return {"tpm": usage.plain_input_tokens + usage.output_tokens, "tokens": usage.total_tokens}


def learn(asked: Asked, usage: Usage) -> None:
    """Remember how long an answer was, for the next reservation."""
    app.state.estimates.observe(asked.state["model"], asked.state["cap"], usage.output_tokens)


meter = UsageMeter.factory(taken, input_tokens=lambda asked: asked.state["prompt"], tell=learn)
rules = [Rule(path, "chat", cost, entity=whose, usage=meter) for path in UPSTREAMS]
app = FastAPI()
app.add_middleware(RateLimitMiddleware, limiter=opened, rules=rules)


class Passed(StreamingResponse):
    """An answer on its way from upstream, which is closed however that ends."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        told = {name: answer.headers[name] for name in TOLD if name in answer.headers}
        super().__init__(answer.aiter_raw(), answer.status_code, told)

    async def __call__(self, *connection: Any) -> None:
        try:
            await super().__call__(*connection)
        finally:
            await self.answer.aclose()


@app.post(OPENAI)
@app.post(ANTHROPIC)
async def forward(request: Request) -> Passed:
    """Pass a call on, and its answer back as it comes."""
    path, body = request.url.path, request.state.body
    url, key = UPSTREAMS[path]
    if path == OPENAI and body.get("stream"):
        body["stream_options"] = {"include_usage": True}  # or nobody tells what it took
    asked = {name: request.headers[name] for name in ASKED if name in request.headers}
    call = httpx.Request("POST", url + path, json=body, headers=asked | key | UNPACKED)
    try:
        return Passed(await app.state.upstream.send(call, stream=True))
    except httpx.TransportError as error:
        raise HTTPException(502, "the provider does not answer") from error
