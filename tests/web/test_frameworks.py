"""The frameworks under gunicorn, with workers that block and workers of uvicorn, over one SQLite file."""

from pathlib import Path

import httpx
import pytest

from tests.patience import PATIENCE_SECONDS, wait_until
from tests.web.gunicorn_app import CHUNK, LIMITS
from tests.web.servers import gunicorn
from zae_limiter import SyncRateLimiter

APP = "tests.web.frameworks_app:app"
UVICORN = "uvicorn.workers.UvicornWorker"
WORKERS = {"fastapi": UVICORN, "flask": "sync", "django wsgi": "sync", "django asgi": UVICORN}


@pytest.mark.parametrize("kind", WORKERS)
def test_workers_share_limits_and_streams_are_paid(kind: str, tmp_path: Path) -> None:
    """Five of eight pass over all workers; a client that hangs up pays for what was made until then."""
    with (
        gunicorn(APP, tmp_path, WORKERS[kind], FRAMEWORK=kind) as url,
        httpx.Client(timeout=PATIENCE_SECONDS, trust_env=False) as client,
    ):
        replies = [client.get(f"{url}/plain", headers={"x-api-key": "plain"}) for _ in range(8)]
        assert [one.status_code for one in replies] == [200] * 5 + [429] * 3
        assert replies[0].headers["ratelimit"].startswith('"rpm";r=4;t=')
        assert replies[5].json()["violated-policies"] == ["rpm"]
        with client.stream("GET", f"{url}/left", headers={"x-api-key": "left"}) as response:
            assert len(next(response.iter_raw())) >= len(CHUNK)
        wait_until((tmp_path / "left").exists)
    with SyncRateLimiter.open(f"sqlite:///{tmp_path}/limits.db?timeout_ms=60000") as limiter:
        sent = 5 * len(replies[0].content)
        assert limiter.available("plain", "api", LIMITS) == {"rpm": 0, "tpm": 10**9 - sent, "parallel": 9}
        made = int((tmp_path / "left").read_text()) * len(CHUNK)
        assert limiter.available("left", "api", LIMITS) == {"rpm": 4, "tpm": 10**9 - made, "parallel": 9}
