"""Each test that asks for ``stage`` runs once for every store; ``embedded`` leaves DynamoDB out."""

from pathlib import Path

import pytest

from tests.migrations.old_store import OldStore, old_store
from zae_limiter.runtime.colour import run_sync

OLD = ("memory", "sqlite", "dynamodb")
"""Stores that have records of older shapes, or can have got them."""


@pytest.fixture(params=OLD)
def stage(request: pytest.FixtureRequest, tmp_path: Path):
    it = old_store(request.param, tmp_path)
    yield it
    run_sync(it.backend.close())


@pytest.fixture(params=["memory", "sqlite"])
def embedded(request: pytest.FixtureRequest, tmp_path: Path):
    it = old_store(request.param, tmp_path)
    yield it
    run_sync(it.backend.close())


@pytest.fixture
def in_memory(tmp_path: Path) -> OldStore:
    return old_store("memory", tmp_path)
