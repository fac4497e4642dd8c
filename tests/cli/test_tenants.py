"""The past of the tenants: made by the same calls as the present, in any month."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from zae_limiter import SyncRateLimiter
from zae_limiter.cli.tenants import BUDGET_LEFT, GPT, HISTORY_HOURS, OWN, write_history
from zae_limiter_aggregator.runner import aggregate


@pytest.mark.parametrize(
    "day", ["2026-11-18T20:40", "2026-12-01T00:10", "2026-12-01T03:59", "2024-02-29T12:00"]
)
def test_the_past_ends_with_a_budget_that_is_nearly_used_up(tmp_path: Path, day: str) -> None:
    """On any day: some dollars are left of the month, every hour has been used, and nobody is in debt."""
    now_ms = int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000)
    url = f"sqlite:///{tmp_path}/past.db"
    clock = write_history(url, "demo", now_ms)
    assert now_ms - 7_200_000 <= clock.now_ms <= now_ms
    clock.advance((now_ms - clock.now_ms) / 1000)
    with SyncRateLimiter.open(url, namespace="demo", world=clock.world) as limiter:
        left = limiter.available("globex", GPT)["usd"]
        # On the first of a month there may be no full hour yet, in which it could have been used.
        is_early = day.startswith("2026-12-01T00")
        assert left == OWN["globex", GPT][-1].capacity if is_early else 0 <= left - BUDGET_LEFT < 100
        for entity_id in ("acme", "acme/search/web", "acme/support/bot", "globex/research", "initech"):
            levels = limiter.available(entity_id, GPT)
            assert min(levels["rpm"], levels["tpm"]) > 0
        aggregate(url, until_idle=True)
        hours, _ = limiter.get_usage_snapshots("acme", GPT, "hourly", limit=1000)
        assert len(hours) == HISTORY_HOURS
