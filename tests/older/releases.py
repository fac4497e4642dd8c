"""The older releases, each in an environment of its own, and the tables that they fill."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.dynamodb.tables import driver
from tests.engines import dynamodb_local
from tests.engines.dynamodb_local import AWS_ENVIRONMENT
from zae_limiter.backends.dynamodb.expressions import decode_item, decode_key
from zae_limiter.repository_protocol import Item, Key

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests/older/fill.py"
KINDS = ROOT / "tests/older/fill_kinds.py"
SCHEDULES = ROOT / "tests/older/fill_schedules.py"
RECORDED = ROOT / "tests/older/recorded"
VERSIONS = ("0.10", "0.17")
PROGRAMS = {**dict.fromkeys(VERSIONS, PROGRAM), "0.17-kinds": KINDS, "0.17-schedules": SCHEDULES}
RECORDINGS = tuple(PROGRAMS)
"""What releases left, the last ones with quotas, soft limits and switches, and with schedules."""

REGION = "us-east-1"

PATIENCE = {"AWS_MAX_ATTEMPTS": "1"}
"""They ask the engine for a Lambda function too, which it does not have however often they try."""


def alone() -> dict[str, str]:
    """An environment in which a release finds itself and not this project."""
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


def ask(
    version: str, table: str, task: str, *features: str, endpoint: str | None = None, program: Path = PROGRAM
) -> Any:
    """Let an older release do something with a table; what it says of it."""
    python = ROOT / f".engines/older-{version}/bin/python"
    if not python.exists():
        pytest.fail(f"release {version} is not installed; run: make engines", pytrace=False)
    url = endpoint or dynamodb_local.endpoint()
    done = subprocess.run(
        [str(python), str(program), url, table, task, *features],
        env={**alone(), **AWS_ENVIRONMENT, **PATIENCE, "AWS_DEFAULT_REGION": REGION, "AWS_ENDPOINT_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(table: str) -> dict[Key, Item]:
    """All of a table, read without the code under test."""
    found: dict[Key, Item] = {}
    for page in driver().get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
        for attributes in page["Items"]:
            found[decode_key(attributes)] = decode_item(attributes) or {}
    return found


def recorded(version: str) -> dict[Key, Item]:
    """What a release left in a table when ``record`` was last run."""
    lines = (RECORDED / f"{version}.jsonl").read_text().splitlines()
    return {Key(*row.pop("key")): row for row in map(json.loads, lines)}
