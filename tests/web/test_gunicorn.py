"""gunicorn with workers that are processes, over one SQLite file."""

from pathlib import Path

import httpx

from tests.patience import PATIENCE_SECONDS, wait_until
from tests.web.gunicorn_app import CHUNK, LIMITS
from tests.web.servers import gunicorn
from zae_limiter import SyncRateLimiter


def test_workers_share_limits_and_streams_are_paid(tmp_path: Path) -> None:
    """Five of eight pass over all workers; a client that hangs up pays for what was made until then."""
    with (
        gunicorn("tests.web.gunicorn_app:app", tmp_path) as url,
        httpx.Client(timeout=PATIENCE_SECONDS, trust_env=False) as client,
    ):
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
