"""Tables of settings and of environment variables, made from the code that reads them.

They stand in `docs/settings.md`, for readers of the repository as well. `python -m docs.site.tables` writes
them there, and a test compares.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from docs.site.contents import ROOT
from zae_limiter.backends import dynamodb, redis
from zae_limiter.backends.dynamodb.boto import Access
from zae_limiter.backends.postgres import address
from zae_limiter.backends.redis.carrier import RedisOptions
from zae_limiter.backends.sqlite import backend as sqlite
from zae_limiter.records.connection import Options
from zae_limiter.settings import CACHE_TTL_SECONDS_MAX, COUNTS, STACK_VARIABLE, STORE_VARIABLE, Settings

PAGE = ROOT / "docs" / "settings.md"
MARK = "<!-- {0}: made by python -m docs.site.tables -->\n{1}\n<!-- end of {0} -->"
SAID = re.compile(r"^ *``(\w+)``: (.*)$", re.MULTILINE)
VARIABLE = re.compile(r"_?[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")
OURS = re.compile(r"_?(?:ZAE_LIMITER|ZAEL)_[A-Z_]+")

TIMEOUTS_MS = {
    "SQLite": (sqlite.TIMEOUT_MS, sqlite.TIMEOUT_MS_MAX),
    "Redis": (RedisOptions("").timeout_ms, redis.TIMEOUT_MS_MAX),
    "PostgreSQL": (address.TIMEOUT_MS, address.TIMEOUT_MS_MAX),
    "DynamoDB": (Access().timeout_ms, dynamodb.TIMEOUT_MS_MAX),
}
"""The deadline of each store if nothing is said, and the longest; memory waits for nothing."""


def by_value(values: dict[str, str]) -> str:
    """Each value with the stores that have it: ``1 on A and B, 2 on C``."""
    groups: dict[str, list[str]] = {}
    for store, value in values.items():
        groups.setdefault(value, []).append(store)
    told = {
        value: " and ".join(filter(None, (", ".join(stores[:-1]), stores[-1])))
        for value, stores in groups.items()
    }
    return ", ".join(f"{value} on {stores}" for value, stores in told.items())


NOT_SAID = {
    "store": "a SQLite file in your state directory",
    "stack": "none",
    "region": "what botocore finds",
    "endpoint_url": "AWS",
    "timeout_ms": by_value({store: f"{least:,}" for store, (least, _) in TIMEOUTS_MS.items()}),
    "session": "one of its own",
    "config": "one of its own",
    "world": "the machine's",
}
"""What is so if nothing is said, where the options of a repository do not tell."""
FROM_ENVIRONMENT = {
    "store": STORE_VARIABLE,
    "stack": STACK_VARIABLE,
    "region": "AWS_DEFAULT_REGION",
    "endpoint_url": "AWS_ENDPOINT_URL",
}
MEANINGS = {
    "ZAE_LIMITER_STORE": "the URL of the store, for programs and commands that name none",
    "ZAEL_STACK": "the DynamoDB table of this name is the store, where no store is named",
    "ZAEL_NAMESPACE": "the namespace, where none is named; else `default`",
    "ZAE_LIMITER_SERVER_TOKENS": "the tokens that `zae-limiter serve` knows, separated by `;`,"
    " if there is no file of them",
    "_ZAE_LIMITER_COMPLETE": "set by the completion of a shell, which asks for words",
    "ZAE_LIMITER_DYNAMODB_LOCAL": "where DynamoDB Local is, for `zae-limiter local up`",
    "ZAE_LIMITER_EMULATOR": "which program emulates AWS, for `zae-limiter local up`",
    "ZAE_LIMITER_REDIS_SERVER": "which program is the Redis of `zae-limiter local up`",
    "ZAE_LIMITER_POSTGRES": "which program is the PostgreSQL of `zae-limiter local up`",
    "XDG_STATE_HOME": "where the SQLite file is that is used when no store is named; else `~/.local/state`",
    "NO_COLOR": "whatever it says: the command line writes without colours",
    "COLUMNS": "how wide tables and charts are, where no terminal says it",
    "REQUESTS_CA_BUNDLE": "the certificates that DynamoDB's are checked with,"
    " if the configuration of AWS names none",
    "TIKTOKEN_CACHE_DIR": "where the vocabularies of tiktoken are, so that prompts are counted exactly",
    "DATA_GYM_CACHE_DIR": "the same, by the older name",
    "TABLE_NAME": "the function of a stack: the table",
    "SNAPSHOT_WINDOWS": "the function of a stack: which windows of usage it counts",
    "SNAPSHOT_TTL_DAYS": "the function of a stack: for how many days these are kept",
    "ENABLE_ARCHIVAL": "the function of a stack: whether audit events are archived",
    "ARCHIVE_BUCKET_NAME": "the function of a stack: the bucket they go to",
}


def settings() -> str:
    """Every setting, with what the class and its options say of it."""
    said = dict(SAID.findall(Settings.__doc__ or ""))
    options = {name.removesuffix("_seconds"): value for name, value in asdict(Options()).items()}
    rows = ["| setting | type | default | environment | range | meaning |", "|---|---|---|---|---|---|"]
    for name, kind in Settings.__annotations__.items():
        value = NOT_SAID.get(name) or (
            f"{options[name]:,}" if isinstance(options[name], int) else f"`{options[name]}`"
        )
        variable = FROM_ENVIRONMENT.get(name)
        cells = [f"`{name}`", type_of(kind), value, f"`{variable}`" if variable else "", range_of(name)]
        rows.append(f"| {' | '.join([*cells, said[name].rstrip('.').replace('``', '`')])} |")
    return "\n".join(rows)


def type_of(kind: object) -> str:
    """A type as readers know it; what is left open is a driver's."""
    told = str(getattr(kind, "__forward_arg__", kind)).removesuffix(" | None")
    told = {"OnUnavailable | str": "str", "Any": "a driver's"}.get(told, told)
    return told if " " in told else f"`{told}`"


def range_of(name: str) -> str:
    if name == "config_cache_ttl":
        return f"0 to {CACHE_TTL_SECONDS_MAX:,}"
    if name == "timeout_ms":
        return by_value({store: f"1 to {most:,}" for store, (_, most) in TIMEOUTS_MS.items()})
    least, most = COUNTS.get(name, (None, None))
    return "" if least is None else f"{least:,} to {most:,}"


def variables() -> dict[str, set[str]]:
    """Every environment variable that the code reads, and the modules that name it."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        module = path.relative_to(ROOT / "src").with_suffix("").as_posix().replace("/", ".")
        for name in read_by(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(name, set()).add(module.removesuffix(".__init__"))
    return found


def read_by(tree: ast.AST) -> Iterator[str]:
    """Names that are asked of the environment, and names of ours wherever they stand alone."""
    for node in ast.walk(tree):
        texts: list[ast.expr] = []
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("get", "pop")
        ):
            texts = node.args[:1] if is_environment(node.func.value) else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.getenv", "getenv"):
            texts = node.args[:1]
        elif isinstance(node, ast.keyword) and node.arg == "envvar":
            texts = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
        elif isinstance(node, ast.Subscript) and is_environment(node.value):
            texts = [node.slice]
        elif isinstance(node, ast.Compare) and any(is_environment(one) for one in node.comparators):
            texts = [node.left]
        elif isinstance(node, ast.Constant) and OURS.fullmatch(str(node.value)):
            texts = [node]
        for one in texts:
            if isinstance(one, ast.Constant) and VARIABLE.fullmatch(str(one.value)):
                yield str(one.value)


def is_environment(node: ast.expr) -> bool:
    """`os.environ`, or what a function of ours is given in its place."""
    return (
        isinstance(node, ast.Attribute) and node.attr == "environ" and ast.unparse(node) == "os.environ"
    ) or (isinstance(node, ast.Name) and node.id == "environment")


def environment() -> str:
    """Every environment variable, what it means and where it is read; each must have a meaning."""
    found = variables()
    wrong = sorted(set(found) ^ set(MEANINGS))
    if wrong:
        raise SystemExit(f"error: docs/site/tables.py and the code do not agree on {', '.join(wrong)}")
    rows = ["| variable | meaning | read by |", "|---|---|---|"]
    for name, meaning in MEANINGS.items():
        where = ", ".join(f"`{module}`" for module in sorted(found[name]))
        rows.append(f"| `{name}` | {meaning} | {where} |")
    return "\n".join(rows)


def written(page: str) -> str:
    """The page with its tables as the code has them now."""
    for name, table in (("settings", settings()), ("environment", environment())):
        first, last = MARK.format(name, "\0").split("\0")
        before, begun, rest = page.partition(first)
        _, ended, after = rest.partition(last)
        if not (begun and ended):
            raise SystemExit(f"error: {PAGE.name} has no place for the table of {name}")
        page = before + first + table + last + after
    return page


def main(page: Path = PAGE) -> None:
    page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
