"""A short storm over every server; ``make storm`` makes a long one."""

from pathlib import Path

import pytest

from tests.breaking.faulty_proxy import FAULTS, OF_SERVERS
from tests.breaking.storm import EVENTS, Plan, Storm

SLOW_MACHINE = pytest.mark.timeout(900)
"""An engine that has to be started twice, and clients that may take their time, on a machine that is busy."""


FAULTS_OF = {"dynamodb": FAULTS, "redis": OF_SERVERS, "postgres": OF_SERVERS}


@SLOW_MACHINE
@pytest.mark.parametrize("store", FAULTS_OF)
def test_storm(store: str, tmp_path: Path) -> None:
    """Two hundred tasks, every fault, and everybody killed once: the books agree, and nobody hangs."""
    faults = FAULTS_OF[store]
    report = Storm(Plan(seconds=8, rate=0.03, faults=faults, admitted_min=50, store=store), tmp_path).run()
    assert report.complaints == [], report.summary
    assert set(report.faults) == set(faults), report.summary
    assert set(report.kills) == set(EVENTS)
    assert report.ledger.how["admitted"] >= 50, report.summary


@SLOW_MACHINE
@pytest.mark.parametrize("store", FAULTS_OF)
def test_a_write_that_is_repeated_blindly_is_found(store: str, tmp_path: Path) -> None:
    """The books can disagree: a client that sends lost writes again is caught."""
    lost = ("lost reply",)
    plan = Plan(3, tasks=40, rate=0.25, faults=lost, events=(), hits_min=30, bug="repeat", store=store)
    report = Storm(plan, tmp_path).run()
    assert any("by the store" in complaint for complaint in report.complaints), report.summary
