"""A batch worker: jobs that call somebody else's API, by as many workers as you like, within its limits.

    python -m examples.batch_worker add one two three
    PROVIDER=https://api.example.com python -m examples.batch_worker

Start the second line several times, on one machine or, with a store that they share, on many. Every job is
taken by one worker; all of them wait for their turn in one line, and go by what the provider says.
"""

import asyncio
import os
import sqlite3
import sys
from contextlib import closing

import httpx

from zae_limiter import Limit, RateLimiter, RateLimitExceeded
from zae_limiter.outbound import Provider

STORE = os.environ.get("STORE", "sqlite:///limits.db")
JOBS = os.environ.get("JOBS", "jobs.db")
PROVIDER = os.environ.get("PROVIDER", "http://127.0.0.1:8080")
TASKS = int(os.environ.get("TASKS", "8"))
LIMITS = [Limit.per_second("requests", 50, burst=5)]  # to begin with: what the provider says counts

COLUMNS = "id INTEGER PRIMARY KEY, job TEXT, state TEXT DEFAULT 'new', answer TEXT"
TAKE = "UPDATE jobs SET state = 'taken' WHERE id = (SELECT id FROM jobs WHERE state = 'new' LIMIT 1)"


class Jobs:
    """A table of jobs; every statement is a transaction, so no two workers take the same job."""

    def __init__(self, path: str) -> None:
        self._table = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
        self._table.execute(f"CREATE TABLE IF NOT EXISTS jobs ({COLUMNS})")

    def add(self, jobs: list[str]) -> None:
        self._table.executemany("INSERT INTO jobs (job) VALUES (?)", [(job,) for job in jobs])

    def take(self) -> tuple[int, str] | None:
        found: list[tuple[int, str]] = self._table.execute(f"{TAKE} RETURNING id, job").fetchall()
        return found[0] if found else None

    def end(self, number: int, state: str, answer: str) -> None:
        self._table.execute("UPDATE jobs SET state = ?, answer = ? WHERE id = ?", (state, answer, number))

    def close(self) -> None:
        self._table.close()


async def ask(client: httpx.AsyncClient, job: str) -> httpx.Response:
    """Ask until the provider has not refused: each time is another turn, and nobody's comes in a pause."""
    while True:
        try:
            answer = await client.post("/v1/work", json={"job": job})
        except RateLimitExceeded as late:  # its turn would come after more than ten minutes
            await asyncio.sleep(late.retry_after_seconds)
            continue
        if answer.status_code != 429:
            return answer


async def work(client: httpx.AsyncClient, jobs: Jobs) -> None:
    """Do one job after the other, until there are none."""
    while (taken := await asyncio.to_thread(jobs.take)) is not None:  # it may wait for other workers
        number, job = taken
        try:
            answer = (await ask(client, job)).raise_for_status()
        except httpx.HTTPError as error:
            await asyncio.to_thread(jobs.end, number, "failed", repr(error))
        else:
            await asyncio.to_thread(jobs.end, number, "done", answer.text)
            print(job, answer.text, flush=True)


async def main(jobs: Jobs) -> None:
    async with RateLimiter.open(STORE) as limiter:
        provider = Provider(limiter, "vendor", LIMITS, wait=600, raises=True)
        transport = provider.httpx_transport()
        async with httpx.AsyncClient(base_url=PROVIDER, transport=transport, timeout=60) as client:
            await asyncio.gather(*(work(client, jobs) for _ in range(TASKS)))


if __name__ == "__main__":
    with closing(Jobs(JOBS)) as table:
        if sys.argv[1:2] == ["add"]:
            table.add(sys.argv[2:])
        else:
            asyncio.run(main(table))
