"""One program, run by both packages: the answers are the same, but for a short list with a reason each."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import zae_limiter
from tests.dynamodb.tables import make_table
from tests.engines import dynamodb_local
from tests.stores import url_of

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("program.py")
ESTABLISHED = ROOT / ".engines" / "older-0.17" / "bin" / "python"
PATIENCE_SECONDS = 300

MAKE_TABLE = """
import asyncio, sys, warnings
from zae_limiter import Repository
from zae_limiter.version import get_schema_version

async def main():
    warnings.simplefilter("ignore")
    repo = Repository(name=sys.argv[1], region="us-east-1", endpoint_url=sys.argv[2])
    await repo.create_table()
    await repo.register_namespace("default")
    await repo.set_version_record(get_schema_version(), client_min_version="0.0.0")
    await repo.close()

asyncio.run(main())
"""
"""How the established package makes a table without CloudFormation."""

DIFFERENCES: dict[str, tuple[Any, Any, str]] = {
    "batch": (
        [["user-1", "gpt-4", "rpm"], ["user-1", "gpt-4", "tpm"]],
        [["user-1", "gpt-4", "rpm"], ["user-1", "gpt-4", "tpm"], ["user-1", "gpt-4", "wcu"]],
        "the limit that counts writes is hidden, here as well",
    ),
    "impossible": (True, False, "a request above the capacity never passes, and is told so"),
    "origin": (7_001, 6_996, "gains telescope from the epoch, so there is no drift to make up for"),
    "parent_deleted": ("EntityError", None, "children are not left with a parent that is gone"),
    "stray": ("EntityNotFoundError", "made", "a parent must exist before its child"),
    "unknown_limit": ("ValidationError", "admitted", "an amount that no limit covers would go unlimited"),
    "unknown_purged": (
        "NamespaceNotFoundError",
        None,
        "a mistyped id must not look like a purge that was done",
    ),
    "unknown_recovered": (
        "NamespaceNotFoundError",
        "EntityNotFoundError",
        "it is a namespace that is missing",
    ),
    "unnamed": (None, "unnamed", "an entity that was given no name has none"),
    "wait_exact": (6.0, 6.001, "a wait is exact to the millisecond, not one longer"),
}
"""What differs on purpose: ours, theirs, and why."""


def ran(python: str | Path, *arguments: str, **environment: str) -> Any:
    """What the program answers, run with nothing of this process but what is named."""
    inherited = {"PATH": os.environ["PATH"], **dynamodb_local.AWS_ENVIRONMENT}
    done = subprocess.run(
        [python, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        env=inherited | environment,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ours(*arguments: str, **environment: str) -> Any:
    return ran(sys.executable, *arguments, PYTHONPATH=str(ROOT / "src"), **environment)


@pytest.fixture(scope="module")
def theirs() -> Any:
    """The answers of the established package, on a table that it made."""
    if not ESTABLISHED.exists():
        pytest.fail("the established package is not installed; run: make engines")
    table, endpoint = dynamodb_local.fresh_table(), dynamodb_local.endpoint()
    environment = {"PATH": os.environ["PATH"], **dynamodb_local.AWS_ENVIRONMENT}
    subprocess.run(
        [ESTABLISHED, "-c", MAKE_TABLE, table, endpoint],
        env=environment,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return ran(ESTABLISHED, table, endpoint)


def answers_of(store: str, tmp_path: Path) -> Any:
    match store:
        case "memory":
            return ours(ZAE_LIMITER_STORE="memory://")
        case "sqlite":
            return ours(ZAE_LIMITER_STORE=f"sqlite:///{tmp_path}/limits.db")
        case "redis" | "postgres":
            return ours(ZAE_LIMITER_STORE=url_of(store, tmp_path))
    return ours(make_table(), dynamodb_local.endpoint())


@pytest.mark.parametrize("store", ["memory", "sqlite", "dynamodb", "redis", "postgres"])
def test_a_program_for_the_established_package_gets_the_same_answers(
    store: str, tmp_path: Path, theirs: Any
) -> None:
    """On every store; where they differ, it is on purpose and as the list says."""
    mine = answers_of(store, tmp_path)
    assert set(mine) == set(theirs)
    differing = {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}
    assert differing == {name: (own, other) for name, (own, other, _) in DIFFERENCES.items()}


def test_the_page_lists_what_differs() -> None:
    """Every reason is told to whoever migrates."""
    page = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    assert [reason for *_, reason in DIFFERENCES.values() if reason not in page] == []


def test_every_name_that_is_gone_is_in_the_guide() -> None:
    """With what takes its place; the guide names no other."""
    program = "import zae_limiter; print(*zae_limiter.__all__)"
    ran = subprocess.run([ESTABLISHED, "-c", program], env={}, capture_output=True, text=True, check=True)
    guide = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `from zae_limiter import (.+?) \| `ImportError` \| .+ \|$", guide, re.MULTILINE)
    assert set(ran.stdout.split()) - set(zae_limiter.__all__) == set(re.findall(r"\w+", " ".join(rows)))
