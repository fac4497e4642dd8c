"""A page names nothing that is not there: members, options, commands, variables, classes, settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.site import contents
from tests.documents.named import unknown

ROOT = Path(__file__).resolve().parents[2]
# A decision keeps the names of its time, and so does what is told of a version.
PAGES = [page for page in contents.written() if "/adr/" not in page and page != "CHANGELOG.md"]

OTHERS_HAVE = {
    "Django": "StreamingHttpResponse",
    "Envoy": "apply_on_stream_done dynamic_metadata enable_x_ratelimit_headers transport_socket",
    "limits": "get_window_stats",
    "nginx": "limit_req",
    "Lambda": "ParallelizationFactor",
    "PostgreSQL": "autovacuum_naptime full_page_writes max_locks_per_transaction synchronous_commit",
    "providers": "message_delta",
    "pyrate-limiter": "BucketFactory PostgresBucket RedisBucket TokenBucket limiter.as_decorator try_acquire",
    "slowapi": "error_message exempt_when in_memory_fallback limiter.exempt",
    "the established package": "FanoutIncomplete ScheduleEntry build_composite_create reset_bucket",
    "uvicorn": "--forwarded-allow-ips --no-proxy-headers",
    "tests": "--check --every",
    "the template of a stack, put together from pieces": "AggregatorRole PolicyNamePrefix RoleNamePrefix",
    "records, with the name or the number of something in them": "b_usd_ac hold_0 hold_7",
}
"""Names that pages may name, by whose they are."""
METRICS = "zae_limiter_"
"""With which metrics begin; the table of the telemetry is made from them."""


def complaints(page: str) -> list[str]:
    allowed = {name for names in OTHERS_HAVE.values() for name in names.split()}
    found = unknown((ROOT / page).read_text(encoding="utf-8"))
    return [one for one in found if (name := one.split()[1]) not in allowed and not name.startswith(METRICS)]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_in_the_code(page: str) -> None:
    """A reader who uses a name as it is written there gets what the page says."""
    assert complaints(page) == []


def test_every_name_of_others_is_needed() -> None:
    """One that no page has any more is gone from the table."""
    texts = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert [n for names in OTHERS_HAVE.values() for n in names.split() if n not in texts] == []


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("`ZAE_LIMITER_STOER`", "variable ZAE_LIMITER_STOER"),
        ("in a block\n```console\n$ ZAEL_NAME=a\n```\n", "variable ZAEL_NAME"),
        ("`limiter.aquire(…)`", "member limiter.aquire"),
        ("`Limit.per_fortnight(1)`", "member Limit.per_fortnight"),
        ("`SyncRateLimiter.opne`", "member SyncRateLimiter.opne"),
        ("`RateLimitExeeded`", "name RateLimitExeeded"),
        ("`retry_after_secnds`", "name retry_after_secnds"),
        ("`config_cache_tll=`", "name config_cache_tll"),
        ("`--on-unavailble`", "option --on-unavailble"),
        ("`zae-limiter entity shw key-1`", "command entity shw"),
        ("`zae-limiter sreve --ui`", "command sreve"),
        ("`zae-limiter serve --grcp x`", "option --grcp of serve"),
        ("```console\n$ zae-limiter entity show --json --nome x\n```\n", "option --nome of entity show"),
    ],
)
def test_a_wrong_name_is_seen(said: str, complaint: str) -> None:
    """Each kind, misspelt by a letter or two."""
    assert unknown(said) == [complaint]


@pytest.mark.parametrize(
    "said",
    [
        "`ZAE_LIMITER_STORE` `ZAEL_STACK` `_ZAE_LIMITER_COMPLETE`",
        "`limiter.acquire(…)` `lease.consumed` `lease.part(…)` `Limit.per_day` `RateLimiter.open(store=…)`",
        "`SyncLease.current()` `RateLimitExceeded` `retry_after_seconds` `on_unavailable=` `ValueError`",
        "`--on-unavailable` `--help` `limiter.py` `os.environ` `anything`",
        "`zae-limiter serve token gateway --scope read` `zae-limiter entity show ENTITY`",
        "```console\n$ zae-limiter usage list --plot | head\n```\n",
    ],
)
def test_a_right_name_is_accepted(said: str) -> None:
    """Each kind, and words that are nobody's."""
    assert unknown(said) == []
