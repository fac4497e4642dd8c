"""gunicorn with workers that are processes, over one SQLite file."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.patience import PATIENCE_SECONDS, wait_until
from tests.web.gunicorn_app import CHUNK, LIMITS
from zae_limiter import SyncRateLimiter

ROOT = Path(__file__).resolve().parent.parent.parent


@contextmanager
def gunicorn(folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        command = [sys.executable, "-m", "gunicorn", "--workers", "2", "--bind", f"fd://{number}"]
        command += ["--log-level", "critical", "--no-control-socket", "tests.web.gunicorn_app:app"]
        environment = {**os.environ, "GUNICORN_FOLDER": str(folder)}
        server = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[number])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.terminate()
            server.wait(PATIENCE_SECONDS)


def test_workers_share_limits_and_streams_are_paid(tmp_path: Path) -> None:
    """Five of eight pass over all workers; a client that hangs up pays for what was made until then."""
    with gunicorn(tmp_path) as url, httpx.Client(timeout=PATIENCE_SECONDS, trust_env=False) as client:
        replies = [client.get(f"{url}/plain", headers={"x-api-key": "plain"}) for _ in range(8)]
        assert [one.status_code for one in replies] == [200] * 5 + [429] * 3
        assert replies[0].headers["ratelimit"].startswith('"rpm";r=4;t=')
        for name, chunks in (("one", 1), ("many", 20)):
            with client.stream("GET", f"{url}/{name}", headers={"x-api-key": name}) as response:
                received = 0
                for piece in response.iter_raw():
                    received += len(piece)
                    if received >= chunks * len(CHUNK):
                        break
            wait_until((tmp_path / name).exists)
    with SyncRateLimiter.open(f"sqlite:///{tmp_path}/limits.db?timeout_ms=60000") as limiter:
        assert limiter.available("plain", "api", LIMITS) == {"rpm": 0, "tpm": 10**9 - 10, "parallel": 9}
        for name in ("one", "many"):
            made = int((tmp_path / name).read_text()) * len(CHUNK)
            assert limiter.available(name, "api", LIMITS) == {"rpm": 4, "tpm": 10**9 - made, "parallel": 9}
