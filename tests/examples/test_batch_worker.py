"""The batch worker: several processes, every job done once, and a provider whose limit is kept."""

import asyncio
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from examples import batch_worker
from tests.examples.servers import ROOT
from tests.outbound.mock_provider import MockProvider
from tests.patience import PATIENCE_SECONDS

WORKERS, TASKS = 3, 4
(LIMIT,) = batch_worker.LIMITS
IN_FLIGHT = WORKERS * TASKS
"""How many requests can be under way: so many may arrive late, together with those that are on time."""


def started(folder: Path, url: str, *arguments: str) -> subprocess.Popen[str]:
    settings = {"STORE": f"sqlite:///{folder}/limits.db?timeout_ms=60000", "JOBS": str(folder / "jobs.db")}
    settings |= {"PROVIDER": url.removesuffix("/v1"), "TASKS": str(TASKS)}
    command = [sys.executable, "-m", "examples.batch_worker", *arguments]
    env = {**os.environ, **settings}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> list[str]:
    """The jobs that a worker says it has done."""
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    return [line.partition(" ")[0] for line in out.splitlines()]


def states(folder: Path) -> Counter[str]:
    with sqlite3.connect(folder / "jobs.db") as table:
        return Counter(state for (state,) in table.execute("SELECT state FROM jobs"))


@pytest.mark.parametrize(
    ("jobs", "rate", "burst"),
    [(100, LIMIT.refill_amount, LIMIT.capacity + IN_FLIGHT), (50, LIMIT.refill_amount // 2, 2)],
    ids=["as declared", "half of it, untold"],
)
def test_workers_share_the_jobs_and_the_limit(jobs: int, rate: int, burst: int, tmp_path: Path) -> None:
    """Every job is done once; nobody is refused, unless the provider allows less than was declared."""
    is_less = rate < LIMIT.refill_amount
    names, vendor = [f"job-{number}" for number in range(jobs)], MockProvider(rate, burst, tells=not is_less)
    with vendor.serving() as url:
        assert said(started(tmp_path, url, "add", *names)) == []
        workers = [started(tmp_path, url) for _ in range(WORKERS)]
        done = [job for worker in workers for job in said(worker)]
    assert sorted(done) == sorted(names)
    assert states(tmp_path) == {"done": jobs}
    answered = Counter((json.loads(body)["job"], status) for body, status in vendor.asked)
    assert Counter({job: n for (job, status), n in answered.items() if status == 200}) == Counter(names)
    assert (429 in vendor.statuses()) == is_less
    assert vendor.answers[-1][0] - vendor.answers[0][0] >= (jobs - burst) / rate


def test_what_cannot_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose provider is not there has failed, and says why."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    monkeypatch.setattr(batch_worker, "STORE", "memory://")
    monkeypatch.setattr(batch_worker, "PROVIDER", f"http://127.0.0.1:{port}")
    jobs = batch_worker.Jobs(str(tmp_path / "jobs.db"))
    jobs.add(["one", "two"])
    asyncio.run(batch_worker.main(jobs))
    assert states(tmp_path) == {"failed": 2}
    jobs.close()
