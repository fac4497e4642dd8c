"""Bugs of the aggregator that the simulation must find: what it costs, makes or counts twice."""

import logging
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from tests.simulation.theorem import Scenario
from zae_limiter.engine.split import split
from zae_limiter.repository_protocol import AtLeast, AtMost, Put, Update
from zae_limiter_aggregator import buckets, usage


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Lost refunds and rows are part of the plan."""
    loggers = [logging.getLogger(name) for name in ("zae_limiter", "zae_limiter_aggregator")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def costly_refill(*given: Any) -> Update | None:
    """A refill that moves the origin and forgets the gain of one limit."""
    write = buckets.refill(*given)
    if write is not None:
        write = write._replace(add={a: n for a, n in write.add.items() if a != "b_slow_tk"})
    return write


def minting_refill(*given: Any) -> Update | None:
    """A refill that credits a full bucket as well."""
    write = buckets.refill(*given)
    if write is not None and "b_fast_tk" in write.add:
        added = {**write.add, "b_fast_tk": write.add["b_fast_tk"] + 1000}
        kept = tuple(c for c in write.when if not isinstance(c, AtMost | AtLeast))
        write = write._replace(add=added, when=kept)
    return write


def minting_split(*given: Any) -> tuple[Update, Put]:
    """A split whose new shard starts full."""
    update, put = split(*given)
    full = {a: put.item[f"{a[:-3]}_cp"] for a in put.item if a.startswith("b_") and a.endswith("_tk")}
    return update, put._replace(item={**put.item, **full})


def forgetful(seen: usage.Seen, change: Any) -> bool:
    """A row that does not remember what it has counted."""
    del seen, change
    return True


BUGS = {
    "a refill that costs": ("zae_limiter_aggregator.buckets.refill", costly_refill),
    "a refill that mints": ("zae_limiter_aggregator.buckets.refill", minting_refill),
    "a split that mints": ("zae_limiter.engine.split.split", minting_split),
    "a row that counts twice": ("zae_limiter_aggregator.usage._note", forgetful),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    """The simulation would notice."""
    target, broken = BUGS[bug]
    refill = buckets.refill
    with mock.patch(target, broken), mock.patch.dict(globals(), {"buckets": mock.Mock(refill=refill)}):
        assert any(fails(seed) for seed in range(200)), f"{bug} went unnoticed"


def fails(seed: int) -> bool:
    try:
        Scenario(seed).run()
    except AssertionError:
        return True
    return False
