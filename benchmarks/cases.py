"""What is measured: one value for each case, read by the run and by the workers.

A case says what is asked of a limiter, not of which one. Each contestant has a table of its own in each case.
"""

from __future__ import annotations

from dataclasses import dataclass

OURS = "this"
REFERENCE = "zae-limiter 0.17.0"
BARE = "bare request"
TLS = ", TLS"
CEILING = "bare client"

RESOURCE = "api"
LIMIT = "rps"
SECOND_LIMIT = "tps"
PLENTY = 1_000_000_000
"""Tokens of a limit that refuses nobody. On DynamoDB they are for an hour: a bucket that is full within a
second is soon allowed to expire, and nobody is to pay for making it again."""
FULL = 100
"""Capacity of the bucket that is emptied by each acquire and full again before the next."""
PAUSE_S = 0.002
"""Rest between acquires that need what just accrued: limits count milliseconds, and one has to pass."""
DRAINED_PER_ROUND = 50


@dataclass(frozen=True)
class Case:
    """One kind of work on DynamoDB."""

    name: str
    title: str
    tasks: int = 1
    entities: int = 1
    """How many entities take turns; 0 means a new one for each acquire."""
    limits: int = 1
    cascade: bool = False
    adjust: bool = False
    refused: str = ""
    """``first``: each refusal asks a bucket not seen lately; ``remembered``: the same one again."""
    refill: bool = False
    sync: bool = False
    contestants: tuple[str, ...] = (OURS, REFERENCE, CEILING)
    stretch: float = 1.0
    """How many times as long its rounds are: latencies of seconds do not show in less."""


CASES = (
    Case("hot-1", "hot key, 1 task"),
    Case("hot-10", "hot key, 10 tasks", tasks=10),
    Case("hot-100", "hot key, 100 tasks", tasks=100, stretch=3),
    Case("two-limits", "hot key, two limits, 10 tasks", tasks=10, limits=2),
    Case("adjust-10", "acquire + adjust, hot key, 10 tasks", tasks=10, adjust=True),
    Case("keys-1000", "1,000 keys, 50 tasks", tasks=50, entities=1000),
    Case("first", "first acquire of an entity, 10 tasks", tasks=10, entities=0),
    Case("cascade", "cascade, 100 children, 50 tasks", tasks=50, entities=100, cascade=True),
    Case("refusal-first", "refusal, first", refused="first"),
    Case("refusal-remembered", "refusal, remembered", refused="remembered", contestants=(OURS, REFERENCE)),
    Case("refill", "refill on each acquire", refill=True),
    Case("sync-1", "sync, hot key, 1 thread", sync=True, contestants=(OURS, REFERENCE, CEILING, BARE)),
    Case("sync-8", "sync, hot key, 8 threads", tasks=8, sync=True),
)
LIMITERS = (OURS, REFERENCE)
COLD = Case("cold", "import and open", contestants=LIMITERS)
WARM_UP = Case("warm-up", "", tasks=10, entities=10, adjust=True, contestants=LIMITERS)
"""What the engine is warmed up with by both limiters, until its virtual machine has compiled it."""


@dataclass(frozen=True)
class Embedded:
    """One library on a store inside the process, or in a file beside it."""

    name: str
    group: str
    """Contestants of one group take turns: ``memory-sync``, ``memory-async``, ``sqlite``, ``web``."""
    call: str
    """What is called, as the library's documentation shows it."""


MEMORY_SYNC = "memory-sync"
MEMORY_ASYNC = "memory-async"
SQLITE = "sqlite"
WEB = "web"
GROUPS = {
    MEMORY_SYNC: "memory, sync, one limit",
    MEMORY_ASYNC: "memory, async, one limit",
    SQLITE: "SQLite, sync, one limit",
    WEB: "a request to an ASGI application",
}
ASYNC_GROUPS = frozenset({MEMORY_ASYNC, WEB})

PYRATE = "pyrate-limiter token bucket"
PYRATE_SQLITE = "pyrate-limiter"
THROTTLED = "throttled-py token bucket"
LIMITS_FIXED = "limits fixed window"
LIMITS_MOVING = "limits moving window"
AIOLIMITER = "aiolimiter leaky bucket"
BARE_UPDATE = "bare UPDATE … RETURNING"
BARE_APP = "bare application"
BARE_APP_PEERS = "bare application, in slowapi's environment"
SLOWAPI = "slowapi"
SLOWAPI_ASGI = "slowapi, pure ASGI"

EMBEDDED = (
    Embedded(OURS, MEMORY_SYNC, 'with limiter.acquire("key", "api", {"rps": 1}): pass'),
    Embedded(PYRATE, MEMORY_SYNC, 'create_token_bucket_limiter(…).try_acquire("key")'),
    Embedded(THROTTLED, MEMORY_SYNC, 'Throttled(using="token_bucket", …).limit("key", cost=1)'),
    Embedded(LIMITS_FIXED, MEMORY_SYNC, 'FixedWindowRateLimiter(MemoryStorage()).hit(item, "key")'),
    Embedded(LIMITS_MOVING, MEMORY_SYNC, 'MovingWindowRateLimiter(MemoryStorage()).hit(item, "key")'),
    Embedded(OURS, MEMORY_ASYNC, 'async with limiter.acquire("key", "api", {"rps": 1}): pass'),
    Embedded(PYRATE, MEMORY_ASYNC, 'await create_token_bucket_limiter(…).try_acquire_async("key")'),
    Embedded(THROTTLED, MEMORY_ASYNC, 'await Throttled(using="token_bucket", …).limit("key", cost=1)'),
    Embedded(LIMITS_FIXED, MEMORY_ASYNC, 'await FixedWindowRateLimiter(MemoryStorage()).hit(item, "key")'),
    Embedded(LIMITS_MOVING, MEMORY_ASYNC, 'await MovingWindowRateLimiter(MemoryStorage()).hit(item, "key")'),
    Embedded(AIOLIMITER, MEMORY_ASYNC, "async with AsyncLimiter(…): pass"),
    Embedded(OURS, SQLITE, 'with limiter.acquire("key", "api", {"rps": 1}): pass'),
    Embedded(PYRATE_SQLITE, SQLITE, 'create_sqlite_limiter(…, db_path=…).try_acquire("key")'),
    Embedded(BARE_UPDATE, SQLITE, "one statement in WAL, synchronous NORMAL"),
    Embedded(OURS, WEB, 'add_middleware(RateLimitMiddleware, …, rules=[Rule("/v1/*", "api", …)])'),
    Embedded(BARE_APP, WEB, "Starlette, one route"),
    Embedded(SLOWAPI, WEB, "Limiter(default_limits=…), add_middleware(SlowAPIMiddleware)"),
    Embedded(SLOWAPI_ASGI, WEB, "Limiter(default_limits=…), add_middleware(SlowAPIASGIMiddleware)"),
    Embedded(BARE_APP_PEERS, WEB, "Starlette, one route"),
)


@dataclass(frozen=True)
class Workload:
    """One kind of work on a server."""

    title: str
    tasks: int
    keys: int
    is_bare: bool = False
    """Whether the bare command takes part instead of the other limiters."""


KEYS, HOT, LONE = "keys-1000", "hot", "lone"
WORKLOADS = {
    KEYS: Workload("1,000 keys, 50 tasks", tasks=50, keys=1000),
    HOT: Workload("hot key, 50 tasks", tasks=50, keys=1),
    LONE: Workload("one task beside a bare command", tasks=1, keys=1, is_bare=True),
}
REDIS, POSTGRES = "redis", "postgres"
SERVED = {REDIS: "Redis", POSTGRES: "PostgreSQL"}
PYRATE_POSTGRES = "pyrate-limiter sliding window"
BARE_CONNECTION = "bare PING, a connection of ours"
BARE_REDIS_PY = "bare PING, redis-py"
BARE_PSYCOPG = "bare SELECT 1, psycopg"
ON_SERVERS = {
    REDIS: (OURS, THROTTLED, LIMITS_FIXED, BARE_CONNECTION, BARE_REDIS_PY),
    POSTGRES: (OURS, PYRATE_POSTGRES, BARE_PSYCOPG),
}
BARE_COMMANDS = frozenset({BARE_CONNECTION, BARE_REDIS_PY, BARE_PSYCOPG})
OUR_ENVIRONMENT = frozenset({OURS, BARE, CEILING, BARE_UPDATE, BARE_APP, *BARE_COMMANDS})


BARE_START, ASYNCIO_START = "a bare interpreter", "import asyncio"
IMPORT_START, HELP_START = "import zae_limiter", "zae-limiter --help"

DYNAMODB = "dynamodb"
CONFIG, COLD_PART, IDLE, LONE_PART, STARTING, CROWD = "config", "cold", "idle", "lone", "starting", "crowd"
OTHER_PARTS = {
    CONFIG: "looking up limits",
    COLD_PART: "importing and opening",
    IDLE: "memory of idle entities",
    LONE_PART: "a lone acquire beside a bare request",
    STARTING: "programs that have just started",
    CROWD: "processes on one SQLite file",
}
PARTS = {DYNAMODB: "on DynamoDB", **GROUPS, **SERVED, **OTHER_PARTS}
"""What a run consists of. Each may be measured and published by itself, and has a date of its own."""


@dataclass(frozen=True)
class Scale:
    """How long everything takes."""

    engine_seconds: float
    """How long an engine is warmed up."""
    rounds: int
    seconds: float
    warm_up_seconds: float
    counting_seconds: float
    embedded_seconds: float
    openings: int
    """How often a process is started to see how long importing and opening takes."""
    idle_entities: int
    idle_on_dynamodb: int
    lone_windows: int
    """Short windows of each step, in turn; ten in a row are a round."""
    startings: int
    """How often each program is started to see what it costs."""
    crowd: tuple[int, float]
    """Rounds of the processes on one file, and their seconds."""
    users: int
    """Users of the sparse traffic, each of whom makes one request on average."""
    readings: int
    """How often each kind of config read is timed."""
    counted: tuple[str, ...] = tuple(case.name for case in CASES)
    """The cases whose requests and capacity units are counted."""
    unasked: tuple[str, ...] = tuple(case.name for case in CASES)
    """The cases on DynamoDB that run if nothing is named; each needs three tables more."""
    others: tuple[str, ...] = tuple(OTHER_PARTS)
    """Those of the other parts that run if nothing is named."""
    is_whole: bool = True
    """Whether pyrate-limiter takes part on PostgreSQL, where it makes a table for each of a thousand keys."""


QUICK = Scale(
    engine_seconds=15,
    rounds=2,
    seconds=0.3,
    warm_up_seconds=0.1,
    counting_seconds=0.2,
    embedded_seconds=0.1,
    openings=1,
    idle_entities=140_000,
    idle_on_dynamodb=2_000,
    lone_windows=20,
    startings=2,
    crowd=(2, 0.3),
    users=200,
    readings=30,
    counted=("hot-100", "first"),
    unasked=("hot-1", "hot-100", "keys-1000", "first", "cascade", "sync-1"),
    others=(LONE_PART, STARTING, CROWD),
    is_whole=False,
)
FULL_SCALE = Scale(
    engine_seconds=120,
    rounds=5,
    seconds=1.5,
    warm_up_seconds=0.5,
    counting_seconds=0.5,
    embedded_seconds=0.5,
    openings=5,
    idle_entities=400_000,
    idle_on_dynamodb=10_000,
    lone_windows=200,
    startings=20,
    crowd=(5, 2.0),
    users=5_000,
    readings=300,
)
