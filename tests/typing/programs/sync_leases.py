"""A program with threads of its own: leases by block and open, settled, refused, several at once."""

from zae_limiter import Demand, Limit, RateLimiterUnavailable, RateLimitExceeded, SyncLease, SyncRateLimiter

LIMITS = [Limit.per_minute("rpm", 3), Limit.per_day("tpm", 10_000)]


def answer(limiter: SyncRateLimiter, key: str, prompt: str) -> tuple[int, str]:
    try:
        with limiter.acquire(key, "gpt-4", {"rpm": 1, "tpm": 500}, on_unavailable="allow") as lease:
            lease.settle(tpm=10 * len(prompt))
            left: int = lease.remaining["tpm"]
            return 200, f"{prompt}: {left} left"
    except RateLimitExceeded as refusal:
        names: list[str] = [violation.limit_name for violation in refusal.violations]
        return 429, f"{names}, retry after {refusal.retry_after_seconds:.0f} s"
    except RateLimiterUnavailable as failure:
        return 503, f"{failure.cause!r}"


def hold(limiter: SyncRateLimiter) -> SyncLease:
    return limiter.acquire("key-2", "gpt-4", {"rpm": 1}, wait=1.5, on_error="settle").open()


def main() -> None:
    with SyncRateLimiter.open("memory://", config_cache_ttl=60) as limiter:
        limiter.set_resource_defaults("gpt-4", LIMITS)
        told: dict[int, list[str]] = {}
        for number in range(4):
            status, text = answer(limiter, "key-1", f"prompt {number}")
            told.setdefault(status, []).append(text)
        assert sorted(told) == [200, 429], told
        lease = hold(limiter)
        lease.adjust({"tpm": 20})
        lease.commit()
        with limiter.acquire(
            [Demand("key-3", "gpt-4", {"rpm": 1}), Demand("key-4", "gpt-4", {"tpm": 5})]
        ) as both:
            part: SyncLease = both.part("gpt-4", "key-4")
            part.settle(tpm=1)
        available: dict[str, int] = limiter.available("key-4", "gpt-4")
        assert available == {"rpm": 3, "tpm": 9_999}, available


if __name__ == "__main__":
    main()
