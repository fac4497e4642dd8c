"""The rules that ``test_tidy`` checks, as tables: to change a rule, change its table."""

import re
from dataclasses import dataclass

PACKAGE = "zae_limiter"
AGGREGATOR = "zae_limiter_aggregator"


@dataclass(frozen=True)
class Layer:
    """Modules that may import one another, the layers named in `below`, and the third-party `packages`.

    Modules are named without the package, as patterns; `__init__` is the package itself.
    """

    name: str
    modules: str
    below: str = ""
    packages: str = ""


BACKEND = "established facts waist schema world colour"
CORE = "established facts waist schema world colour shares config"
RECORDS = f"{CORE} engine backends"
PUBLIC = f"{RECORDS} infra records"

LAYERS = (
    # What programs for the established package say: forms without a meaning of their own, for all to use.
    Layer("established", "established", "facts"),
    Layer(
        "facts",
        "models models.* exceptions naming bucket version engine.law engine.law.* engine.level"
        " engine.level.* engine.phases engine.phases.*"
        " engine.seen_changes engine.seen_changes.* runtime.unentered runtime.unentered.*"
        " runtime.current runtime.current.* runtime.logs",
        "established",
    ),
    Layer("colour", "runtime.colour runtime.loops runtime.kept runtime.within runtime.beside"),
    Layer("world", "runtime runtime.world runtime.world.*", "facts"),
    Layer("shares", "engine engine.shares engine.shares.*", "facts"),
    Layer("waist", "repository_protocol", "established facts colour"),
    Layer(
        "schema",
        "schema records.items records.items.* records.resolution records.resolution.* records.switch_list",
        "facts waist",
    ),
    Layer("config", "config_cache", "facts waist schema world"),
    Layer("engine", "engine.*", CORE),
    # One layer for each store, so that no store can import another.
    Layer("change_log", "backends.change_log", BACKEND),
    Layer(
        "memory", "backends.memory backends.memory.* backends.shelf backends.shelf.*", f"{BACKEND} change_log"
    ),
    Layer("sqlite", "backends.sqlite backends.sqlite.*", f"{BACKEND} change_log"),
    Layer(
        "dynamodb",
        "backends.dynamodb backends.dynamodb.*",
        f"{BACKEND} wires",
        packages="botocore aiobotocore aiohttp",
    ),
    # What stores on servers share.
    Layer("wires", "backends.convoy backends.pool", "colour"),
    Layer(
        "redis",
        "backends.redis backends.redis.*",
        f"{BACKEND} change_log wires",
    ),
    Layer(
        "postgres",
        "backends.postgres backends.postgres.*",
        f"{BACKEND} change_log wires",
        packages="psycopg",
    ),
    Layer("backends", "backends backends.around", f"{BACKEND} memory sqlite dynamodb redis postgres"),
    # Builds and finds stacks; a repository's builder asks it to.
    Layer(
        "infra",
        "infra infra.*",
        f"{BACKEND} backends dynamodb aggregator",
        packages="botocore aiobotocore yaml",
    ),
    Layer(
        "records",
        "repository builder settings lease lease_view acquisition joint records records.*",
        f"{RECORDS} infra",
    ),
    # Puts what a limiter does around functions; a limiter of either colour has it as a method.
    Layer("decorator", "decorator", "facts"),
    Layer("limiter", "limiter", f"{PUBLIC} decorator"),
    Layer("sync", "sync sync_lease", f"{PUBLIC} decorator limiter"),
    # What calls to language models took, as facts; and what was learned of them, which is stored.
    Layer(
        "llm",
        "llm.amounts llm.events llm.meter llm.sketch llm.tokens llm.usage",
        "facts",
        packages="tiktoken",
    ),
    Layer("learning", "llm llm.estimates", f"{PUBLIC} limiter sync llm"),
    Layer("package", "__init__", f"{PUBLIC} decorator limiter sync"),
    # Requests to others, each client library in a module of its name.
    Layer(
        "outbound",
        "outbound outbound.*",
        f"{PUBLIC} limiter sync",
        packages="httpx httpx2 requests urllib3",
    ),
    # One layer for each framework, so that only its module needs it.
    Layer("web_fastapi", "web.fastapi", f"{PUBLIC} limiter web", packages="fastapi starlette"),
    Layer("web_flask", "web.flask", f"{PUBLIC} sync web", packages="flask"),
    Layer("web_django", "web.django", f"{PUBLIC} limiter sync web", packages="django asgiref"),
    # Puts what a limiter does around requests, and uses the package as others do.
    Layer("web", "web web.*", f"{PUBLIC} decorator limiter sync package manifest"),
    # What a limiter counts, for those who collect such things.
    Layer(
        "telemetry",
        "telemetry telemetry.*",
        f"{PUBLIC} limiter sync",
        packages="opentelemetry prometheus_client",
    ),
    # Decisions for programs that are not Python, and a page to look at.
    Layer(
        "envoy",
        "server.envoy server.envoy.*",
        f"{PUBLIC} limiter package server telemetry web manifest",
        packages="grpc envoy google",
    ),
    Layer(
        "server",
        "server server.*",
        f"{PUBLIC} limiter sync package telemetry web manifest envoy change_log",
        packages="starlette uvicorn",
    ),
    # What users test their own programs with.
    Layer("testing", "testing testing.*", f"{PUBLIC} sync memory"),
    # It knows the records, and what is pure about buckets and shards, but no limiter.
    Layer(
        "aggregator",
        "aggregator aggregator.*",
        f"{CORE} engine backends dynamodb change_log",
        packages="botocore",
    ),
    # Limits as a file, and tables of older shapes: both work through the records.
    Layer("manifest", "operate.manifest operate.manifest.*", f"{PUBLIC} dynamodb sync", packages="yaml"),
    Layer("migrations", "operate.migrations operate.migrations.*", f"{PUBLIC} memory sqlite dynamodb sync"),
    Layer("copying", "operate.copying operate.copying.*", f"{PUBLIC} aggregator migrations"),
    Layer("visualization", "visualization visualization.*", "facts", packages="rich"),
    Layer("local", "operate operate.local operate.local.*", "facts world"),
    Layer(
        "cli",
        "cli cli.*",
        f"{PUBLIC} limiter sync package testing aggregator infra manifest migrations"
        " copying visualization local change_log postgres server envoy telemetry",
        packages="click rich",
    ),
    Layer("command", "__main__", "cli"),
)

SRC_LINES_MAX = 62_000 + 78 + 80 + 36 + 66
"""What `src` may have in all: whoever adds something finds what can go. The 78 are examples in docstrings,
of what people call most: they are run, and nothing else says so shortly what a method does. The 80 keep
neighbours apart: leases of the same id, answers that nobody reads, transactions that disturb each other.
The 36 spare a fresh process two of five round trips, and say as before what is wrong with a table.
The 66 tell an answer of Redis and PostgreSQL from what else a server may say."""

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 7
READING_LINES_MAX = 1_500
"""All files of the reading order in CONTRIBUTING together."""

# What may be larger, as "path" or "path::Class.function", each with its reason.
OVERSIZE: dict[str, str] = {
    "src/zae_limiter/limiter.py::RateLimiter.acquire": "everybody makes this call, with options by name",
    "src/zae_limiter/sync.py::SyncRateLimiter.acquire": "the same, for type checkers",
    "src/zae_limiter/outbound/provider.py::Provider.__init__": "said once in a program, with options by name",
}


@dataclass(frozen=True)
class Ban:
    """Names that only the modules in `only_in` may import or use."""

    names: str
    only_in: str
    why: str


BANS = (
    Ban(
        "asyncio threading.Thread",
        "runtime.colour runtime.loops runtime.kept runtime.within runtime.beside backends.convoy"
        " backends.redis.loop backends.postgres.loop backends.postgres.listening"
        " backends.dynamodb.http.loop server server.* cli cli.*",
        "only runtime.colour, what belongs to it, and what drives connections know async from sync",
    ),
    Ban(
        "time.time time.time_ns time.monotonic time.monotonic_ns time.perf_counter time.perf_counter_ns"
        " datetime.datetime.now datetime.datetime.utcnow datetime.date.today"
        " random secrets uuid os.urandom",
        "runtime.world testing.traffic",
        "clocks, randomness and ids come from runtime.world",
    ),
    Ban("print", "cli cli.*", "standard output belongs to the command line"),
)

WRITE_VERBS = ("write_each", "transact_write", "swap")
"""The verbs of the waist that write: only the door to the buckets says them to a store."""

MAY_WRITE = {
    "engine.door": "it is the door",
    "backends.*": "the stores, and what they are made of",
    "engine.group_commit": "looks whether the store has a swap, and hands it on",
    "engine.acquire": "hands the store's swap to the door",
    "repository": "declares verbs of these names, for callers who build on the store themselves",
    "sync": "twins of the repository's verbs of these names",
    "telemetry.measured": "a store around another one, which measures its calls",
    "aggregator.processor": "rows of usage, which nobody remembers",
    "aggregator.streams": "the place where a follower has got to",
}
"""Who may name these verbs at all, and why."""

CLOCKS = frozenset({"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"})
"""What reads the time of a real machine, on which no test may put an upper bound."""

VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "base", "manager"})
VAGUE_NAMES_ALLOWED = frozenset({"stack_manager", "test_stack_manager"})

# Spelled in pieces, because this file is searched as well.
BANNED_TEXT = (
    (re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME)\b"), "unfinished work belongs in the tracker"),
    (re.compile(r"(?<![\w.~])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me)(?![\w.-])"), "a path of one machine"),
    (re.compile(r"pypi\." + r"org|registry\." + r"npmjs"), "a package registry's host"),
    (re.compile(r"\.\./sha" + r"red\b"), "a path beside the repository"),
    (
        re.compile(r"\b[Ii]ssue #?\d{1,3}\b|(?<=[\s(])#\d{1,3}\b(?![\w-])"),
        "a number that only a tracker knows",
    ),
)
BANNER = re.compile(r"#+\s*([-=#*~_─═])\1{3,}")
