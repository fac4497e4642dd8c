"""The LLM gateway: what is reserved, what is settled, who sits where, and what nobody is told."""

import asyncio
import os
import random
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx

from tests.examples.gateway import (
    KEYS,
    NAMESPACE,
    NEVER,
    PARALLEL,
    RPM,
    TEAMS,
    TOKENS,
    TPM,
    UPSTREAM_KEYS,
    Gateway,
)
from tests.examples.gateway import running_gateway as running
from tests.examples.mock_llm import WORD, WORD_TOKENS, Script, bodies
from tests.web.servers import PATIENCE_S
from zae_limiter import Limit
from zae_limiter.llm import LearnedEstimates, estimate_tokens
from zae_limiter.web import hashed_id

STREAMS = int(os.environ.get("GATEWAY_STREAMS", "60"))
AT_ONCE = 30
WORDS = 6
CAP = 500
OTTER, OTHER, HERON = KEYS
TEAM_OF = {key: team for team, keys in TEAMS.items() for key in keys}


def auth(key: str, path: str) -> dict[str, str]:
    return {"x-api-key": key} if path == "/v1/messages" else {"authorization": f"Bearer {key}"}


async def ask(gateway: Gateway, key: str, path: str, body: Any) -> httpx.Response:
    return await gateway.client.post(path, json=body, headers=auth(key, path))


async def read(gateway: Gateway, key: str, path: str, body: Any, words: int | None) -> None:
    """Read so many words of a stream and hang up, or to its end."""
    prompt, seen, wanted = body["messages"][0]["content"], "", 0
    async with gateway.client.stream("POST", path, json=body, headers=auth(key, path)) as response:
        assert response.status_code == 200
        async with aclosing(response.aiter_text()) as chunks:
            async for chunk in chunks:
                seen += chunk
                has_begun = '"assistant"' in seen
                if has_begun and words == seen.count(WORD):
                    return
                if has_begun and wanted == seen.count(WORD):
                    wanted += 1
                    gateway.upstream.want(prompt)
    assert words is None


async def settled(gateway: Gateway, *keys: str) -> dict[str, dict[str, int]]:
    """What was taken of each bucket, as soon as nobody has a seat."""

    async def all_free() -> bool:
        return not any([(await gateway.taken(key))["parallel"] for key in keys])

    async with asyncio.timeout(PATIENCE_S):
        while not await all_free():  # noqa: ASYNC110 - another process makes it so
            await asyncio.sleep(0.01)
    return {name: await gateway.taken(name) for name in [*keys, *{TEAM_OF[key] for key in keys}]}


async def test_streams_whose_clients_hang_up(tmp_path: Path) -> None:
    """Balances of keys and teams are the books: what the provider told, or what was sent until the end."""
    dice, books = random.Random(11), {name: Counter[str]() for name in [*KEYS, *TEAMS]}
    async with running(tmp_path) as gateway:

        async def one(number: int) -> None:
            prompt, key, is_anthropic = f"stream {number}", KEYS[number % 3], number % 2
            script = Script(words=WORDS, is_stepped=True, input_tokens=20 + number, output_tokens=7 * number)
            gateway.upstream.play(prompt, script)
            words = dice.randrange(WORDS) if dice.random() < 1 / 3 else None
            path, body = list(bodies(prompt, stream=True))[is_anthropic]
            await read(gateway, key, path, body, words)
            given = script.input_tokens if is_anthropic or words is None else estimate_tokens(body)
            # Anthropic says at once that one token of the answer was taken.
            until_then = None if words is None else max(words * WORD_TOKENS, is_anthropic)
            cost = given + (script.told_output if until_then is None else until_then)
            books[key] += Counter(rpm=1, tpm=cost)
            books[TEAM_OF[key]] += Counter(tpm=cost, tokens=cost)

        for first in range(0, STREAMS, AT_ONCE):
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*map(one, range(first, min(first + AT_ONCE, STREAMS))))
        found = await settled(gateway, *KEYS)
        assert found == {
            **{key: {**books[key], "parallel": 0} for key in KEYS},
            **{team: dict(books[team]) for team in TEAMS},
        }
        await asyncio.wait_for(_all_ended(gateway), PATIENCE_S)
        assert gateway.upstream.ended.total() == STREAMS == len(gateway.upstream.asked)


async def _all_ended(gateway: Gateway) -> None:
    while gateway.upstream.ended.total() < STREAMS:  # noqa: ASYNC110 - a server ends them
        await asyncio.sleep(0.01)


async def test_what_is_reserved_and_what_is_settled(tmp_path: Path) -> None:
    """Reserved are the prompt and the cap, or what calls took lately; settled is what was told."""
    async with running(tmp_path) as gateway:
        books: Counter[str] = Counter()

        async def reserved(path: str, body: Any, script: Script) -> int:
            """What a stream holds while it is under way."""
            prompt = body["messages"][0]["content"]
            gateway.upstream.play(prompt, script)
            before = (await gateway.taken(OTTER))["tpm"]
            call = gateway.client.stream("POST", path, json=body, headers=auth(OTTER, path))
            async with call as response:
                assert response.status_code == 200
                held = await gateway.taken(OTTER)
                assert held["parallel"] == 1
                gateway.upstream.want(prompt, script.words + 1)
                await response.aread()
            await settled(gateway, OTTER)
            return held["tpm"] - before

        for cached, output in ((0, 9), (900, 40), (0, CAP + 70)):  # less, less by a cache, more than reserved
            for path, body in bodies("name a river", stream=True):
                script = Script(3, True, 1_000, cached, output)
                assert await reserved(path, body, script) == estimate_tokens(body) + CAP
                books += Counter(tpm=1_000 - cached + output, tokens=1_000 + output, rpm=1)
        for path, body in bodies("name a lake"):
            gateway.upstream.play("name a lake", Script(3, False, 50, 30, 12))
            assert (await ask(gateway, OTTER, path, body)).status_code == 200
            books += Counter(tpm=32, tokens=62, rpm=1)
        found = await settled(gateway, OTTER)
        assert found[OTTER] == {"rpm": books["rpm"], "tpm": books["tpm"], "parallel": 0}
        assert found[TEAM_OF[OTTER]] == {"tpm": books["tpm"], "tokens": books["tokens"]}

        # Calls of another process are learned from, as soon as this one has read of them.
        async with LearnedEstimates(gateway.limiter) as others:
            for _ in range(200):
                others.observe("gpt-4o", CAP, 60)
            await others.refresh()
            learned = await others.reserve("gpt-4o", CAP)
        assert learned < CAP // 2
        path, body = next(bodies("name a river", stream=True))
        async with asyncio.timeout(PATIENCE_S):
            while (held := await reserved(path, body, Script(1, True))) != estimate_tokens(body) + learned:
                assert held == estimate_tokens(body) + CAP


async def test_a_seat_is_given_back(tmp_path: Path) -> None:
    """Who finds no seat is charged nothing; who hangs up has left its seat, and the next one sits there."""
    async with running(tmp_path) as gateway:
        await gateway.limit(OTTER, RPM, TPM, Limit.concurrent("parallel", 1, hold="1h"))
        for path, body in bodies("name a river", stream=True):
            gateway.upstream.play("name a river", Script(is_stepped=True))
            async with gateway.client.stream("POST", path, json=body, headers=auth(OTTER, path)):
                before = await gateway.taken(OTTER)
                refused = await ask(gateway, OTTER, path, body)
                assert await gateway.taken(OTTER) == before
            assert (refused.status_code, refused.json()["violated-policies"]) == (429, ["parallel"])
            assert refused.headers["retry-after-ms"] == "1000"
            await settled(gateway, OTTER)
            gateway.upstream.play("name a river", Script())
            assert (await ask(gateway, OTTER, path, body)).status_code == 200
        told = {headers.get("accept-encoding") for *_, headers in gateway.upstream.asked}
        assert told == {"identity"}, "answers are passed on without saying how they are packed"


async def test_what_failed_upstream(tmp_path: Path) -> None:
    """What the provider refuses took no tokens but was a request; what it fails to answer costs nothing."""
    async with running(tmp_path) as gateway:
        for status, requests in ((400, 1), (429, 1), (500, 0), (529, 0)):
            before = await settled(gateway, OTTER)
            gateway.upstream.play("name a river", Script(status=status))
            for path, body in bodies("name a river"):
                answer = await ask(gateway, OTTER, path, body)
                assert (answer.status_code, "error" in answer.json()) == (status, True)
            before[OTTER]["rpm"] += 2 * requests
            assert await settled(gateway, OTTER) == before


async def test_nobody_is_named(tmp_path: Path) -> None:
    """No answer has a key, the id of an entity, a team or a namespace in it, nor anything of the store."""
    async with running(tmp_path) as gateway:
        team, empty = TEAM_OF[HERON], Limit("tpm", 1, 1, NEVER)
        statuses: list[int] = []

        async def all_paths(key: str, **more: Any) -> None:
            for path, body in bodies("name a river", **more):
                statuses.append((await ask(gateway, key, path, body)).status_code)

        await all_paths(OTTER)
        await all_paths(OTTER, stream=True)
        await all_paths("sk-nobody")
        await all_paths(OTTER, model=["team-otter"])
        for wrong in ("[]", "{", "x" * (2**20 + 1)):
            for path, _ in bodies(""):
                answer = await gateway.client.post(path, content=wrong, headers=auth(OTTER, path))
                statuses.append(answer.status_code)
        await gateway.limit(OTTER, RPM, empty, PARALLEL)
        await all_paths(OTTER)
        await gateway.limiter.set_limits(team, [empty, TOKENS], "chat")
        await all_paths(HERON)
        await gateway.limiter.disable(entity_id=team, reason="team-heron has not paid")
        await all_paths(HERON)
        await gateway.limiter.disable(resource="chat", reason="maintenance")
        await all_paths(OTHER)
        assert statuses == [n for n in (200, 200, 401, 404, 404, 400, 413, 429, 429, 403, 503) for _ in "ab"]

        secrets = [*KEYS, *map(hashed_id, KEYS), *TEAMS, NAMESPACE, *UPSTREAM_KEYS, "sk-nobody", "gateway.db"]
        secrets.append(gateway.limiter.repository.namespace_id)
        said = [str(one).lower() for one in await gateway.seen()]
        assert len(said) == len(statuses)
        assert [(secret, one) for one in said for secret in secrets if secret in one] == []
