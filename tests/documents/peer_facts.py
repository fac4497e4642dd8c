"""Facts about other limiters, asked from the packages; run by the Python that they are installed for.

Prints JSON: for each library its cells, by row. A cell that is more than a name or a number is the outcome of
a call. ``test_peers`` compares the table on the page with what this prints.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from unittest.mock import patch

AT = 1_774_735_200
GIVES_BACK = re.compile("refund|release|settle|adjust|cancel")
Cells = dict[str, str]


def lines(package: str) -> str:
    """Lines of Python, to the hundred."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    count = sum(path.read_bytes().count(b"\n") for path in Path(spec.origin).parent.rglob("*.py"))
    return f"{round(count, -2):,}"


def needs(name: str, found: set[str] | None = None) -> set[str]:
    """All distributions that come with it."""
    found = set() if found is None else found
    for wanted in distribution(name).requires or ():
        word, _, marker = wanted.partition(";")
        match = re.match(r"[\w.-]+", word)
        assert match is not None
        if "extra" in marker or "python_" in marker or match[0].lower() in found:
            continue
        found.add(match[0].lower())
        needs(match[0], found)
    return found


def common(name: str, package: str) -> Cells:
    count = len(needs(name))
    return {
        "version": distribution(name).version,
        "lines of Python": lines(package),
        "packages it brings": str(count),
    }


def words(name: str) -> str:
    """A name of a class or a value, as words."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("-", " ").replace("_", " ")
    return apart if apart.isupper() else apart.lower()


def gives_back(*kinds: type) -> str:
    named = {name for kind in kinds for name in dir(kind) if GIVES_BACK.search(name) and name[0] != "_"}
    return ", ".join(f"`{name}`" for name in sorted(named)) or "no"


def windows_of_limits() -> Cells:
    from limits import parse, storage, strategies

    limiter = strategies.FixedWindowRateLimiter(storage.MemoryStorage())
    requests, tokens = parse("5/day"), parse("1000/day")
    assert not (limiter.hit(requests, "key") and limiter.hit(tokens, "key", cost=1_500))
    taken = limiter.get_window_stats(requests, "key").remaining == 4
    stores = sorted(
        {name.removesuffix("Storage") for name in storage.__all__ if name.endswith("Storage")} - {""}
    )
    assert importlib.util.find_spec("limits.aio") is not None
    return {
        **common("limits", "limits"),
        "algorithms": ", ".join(words(name) for name in strategies.STRATEGIES),
        "stores": ", ".join(one.lower() for one in stores if "Cluster" not in one and "Sentinel" not in one),
        "async, sync": "both",
        "several limits, each its own amount": "no: the first counted although the second refused"
        if taken
        else "yes",
        "a refusal tells the wait": "end of the window, by a second call",
        "waits for its turn": "no" if not hasattr(limiter, "acquire") else "yes",
        "gives back, settles": gives_back(type(limiter)),
    }


def slow_api() -> Cells:
    import slowapi
    from slowapi.extension import STRATEGIES

    given = inspect.signature(slowapi.Limiter.__init__).parameters
    assert {"storage_uri", "strategy", "in_memory_fallback"} <= given.keys()
    theirs = windows_of_limits()
    return {
        **common("slowapi", "slowapi"),
        "algorithms": ", ".join(words(name) for name in STRATEGIES),
        "stores": theirs["stores"],
        "async, sync": "for Starlette and FastAPI",
        "several limits, each its own amount": "as `limits`, which it calls",
        "a refusal tells the wait": "`Retry-After`, if headers are on",
        "waits for its turn": "no",
        "gives back, settles": gives_back(slowapi.Limiter),
    }


def pyrate() -> Cells:
    import pyrate_limiter as theirs
    from pyrate_limiter import Duration, Limiter, Rate

    limiter = Limiter([Rate(2, Duration.HOUR), Rate(3, Duration.DAY)])
    assert [limiter.try_acquire("a", weight, blocking=False) for weight in (2, 1)] == [True, False]
    assert limiter.buckets()[0].count() == 2
    asked = inspect.signature(limiter.try_acquire).parameters
    kinds = [one for name in dir(theirs) if inspect.isclass(one := getattr(theirs, name))]
    abstract = (theirs.LogAlgorithm, theirs.StateAlgorithm, theirs.Algorithm)
    algorithms = [k.__name__ for k in kinds if issubclass(k, theirs.Algorithm) and k not in abstract]
    buckets = [
        k.__name__ for k in kinds if issubclass(k, theirs.AbstractBucket) and k.__name__.endswith("Bucket")
    ]
    stores = [
        name.removesuffix("Bucket") for name in buckets if name not in ("AbstractBucket", "StateBucket")
    ]
    return {
        **common("pyrate-limiter", "pyrate_limiter"),
        "algorithms": ", ".join(words(name) for name in algorithms),
        "stores": ", ".join(words(name) for name in stores),
        "async, sync": "both",
        "several limits, each its own amount": "several rates at once, one weight for all",
        "a refusal tells the wait": "no",
        "waits for its turn": "yes, asks again" if {"blocking", "timeout"} <= asked.keys() else "no",
        "gives back, settles": gives_back(Limiter),
    }


def throttled() -> Cells:
    from throttled import RateLimiterType, Throttled
    from throttled.constants import StoreType

    told = Throttled(using="token_bucket", quota="7/m burst 1", key="key", timeout=-1)
    found = [told.limit() for _ in range(3)]
    waits = [one.state.retry_after for one in found if one.limited]
    assert waits
    exact = "yes" if any(wait != int(wait) for wait in waits) else "in whole seconds"
    assert "timeout" in inspect.signature(Throttled.__init__).parameters
    return {
        **common("throttled-py", "throttled"),
        "algorithms": ", ".join(words(one.value) for one in RateLimiterType),
        "stores": ", ".join(sorted(one.value for one in StoreType)),
        "async, sync": "both",
        "several limits, each its own amount": "one quota for a call",
        "a refusal tells the wait": exact,
        "waits for its turn": "yes, asks again",
        "gives back, settles": gives_back(Throttled),
    }


def aio_limiter() -> Cells:
    from aiolimiter import AsyncLimiter

    assert inspect.iscoroutinefunction(AsyncLimiter.acquire)
    assert not hasattr(AsyncLimiter, "__enter__")
    return {
        **common("aiolimiter", "aiolimiter"),
        "algorithms": "leaky bucket",
        "stores": "one event loop",
        "async, sync": "async",
        "several limits, each its own amount": "one limit",
        "a refusal tells the wait": "never refuses",
        "waits for its turn": "yes, in one loop",
        "gives back, settles": gives_back(AsyncLimiter),
    }


def established() -> Cells:
    import zae_limiter

    limit = zae_limiter.Limit.per_minute("rpm", 2)
    status = zae_limiter.LimitStatus(
        "key", "api", "rpm", limit, 0, 1, exceeded=True, retry_after_seconds=29.5
    )
    refusal = zae_limiter.RateLimitExceeded([status])
    asked = inspect.signature(zae_limiter.RateLimiter.acquire).parameters
    assert {"consume", "limits"} <= asked.keys()
    return {
        **common("zae-limiter", "zae_limiter"),
        "algorithms": "token bucket, quotas",
        "stores": "DynamoDB",
        "async, sync": "both" if hasattr(zae_limiter, "SyncRateLimiter") else "async",
        "several limits, each its own amount": "yes",
        "a refusal tells the wait": "yes" if refusal.retry_after_seconds == 29.5 else "no",
        "waits for its turn": "no" if "wait" not in asked else "yes",
        "gives back, settles": gives_back(zae_limiter.Lease),
    }


def main() -> None:
    with patch("time.time", return_value=AT):
        found = {
            "limits": windows_of_limits(),
            "slowapi": slow_api(),
            "pyrate-limiter": pyrate(),
            "throttled-py": throttled(),
            "aiolimiter": aio_limiter(),
            "zae-limiter 0.17": established(),
        }
    print(json.dumps(found))


def table(python: Path, ours: dict[str, str]) -> str:
    """The facts as the page shows them, ours first."""
    ran = subprocess.run(
        [python, "-m", "tests.documents.peer_facts"],
        cwd=Path(__file__).resolve().parents[2],
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = {"this": ours, **json.loads(ran.stdout)}
    rows = [["", *found], ["---"] * (len(found) + 1)]
    rows += [[fact, *(cells[fact] for cells in found.values())] for fact in ours]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


if __name__ == "__main__":
    main()
