"""What cannot be taken back is not waited for longer than a call may take, from standing in line on."""

from collections.abc import Callable

import pytest

from tests.engine.fake_store import (
    KEY,
    Scripted,
    Store,
    claim,
    credit,
    group_of,
    image_of,
    is_busy,
    need,
    outcomes,
    release,
    writer_of,
)
from zae_limiter.engine.group_commit import BucketWriter
from zae_limiter.engine.sending import LATE
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import number

CALL_S = 2.0
"""The deadline of a call."""


def busy_with(*steps: Callable[[], None]) -> tuple[Store, BucketWriter, Scripted]:
    """A bucket that is busy, and what happens while somebody waits."""
    store, colour = Store(e=image_of()), Scripted(*steps)
    writer = writer_of(store)
    writer.colour = colour
    claim(writer, KEY)
    return store, writer, colour


def test_a_binding_order_that_is_not_called_within_a_call_goes_on_by_itself() -> None:
    """Who placed it is told that nobody knows. It stays in line, and in the end its turn comes."""
    _, writer, colour = busy_with()
    colour.patient = False
    (outcome,), interruption = run_sync(writer.post([credit(1_000)], binding=True))
    assert (outcome, interruption, colour.waits) == (LATE, None, [CALL_S])
    assert len(colour.left) == 1
    release(writer, KEY)
    ((seconds, going_on),) = colour.left
    assert seconds == 0
    (outcome,) = run_sync(going_on)
    assert (outcome.applied, is_busy(writer, KEY)) == (True, False)


@pytest.mark.parametrize("patient", [True, False])
def test_a_binding_order_that_is_called_late_has_what_is_left_of_a_call(patient: bool) -> None:
    def call() -> None:
        store.clock.advance(0.5)
        release(writer, KEY)

    store, writer, colour = busy_with(call)
    colour.patient = patient
    (outcome,), _ = run_sync(writer.post([credit(1_000)], binding=True))
    ((seconds, going_on),) = colour.left
    assert seconds == CALL_S - 0.5
    if not patient:
        assert (outcome, store.sent) == (LATE, [])
        (outcome,) = run_sync(going_on)
    assert outcome.applied
    assert (store.sent, is_busy(writer, KEY)) == ([[1_000]], False)


def test_a_binding_order_that_is_called_soon_is_carried_out_at_once() -> None:
    def call() -> None:
        store.clock.advance(0.2)
        release(writer, KEY)

    store, writer, colour = busy_with(call)
    (outcome,), _ = run_sync(writer.post([credit(1_000)], binding=True))
    assert (outcome.applied, store.sent, colour.left) == (True, [[1_000]], [])


def test_a_leader_whose_bucket_does_not_hold_still_leads_for_one_call() -> None:
    """Each write is refused because somebody else was faster; after a deadline the leader is told so.

    Those whom it led are led by the next of them, who has a deadline of its own.
    """
    store = Store(e=image_of(9_000))
    writer = writer_of(store)

    def be_faster() -> None:
        store.clock.advance(CALL_S / 4)
        store.shelf.items[KEY] = {**store.shelf.items[KEY], "rf": number(store.shelf.items[KEY], "rf") - 1}

    store.meanwhile = be_faster
    visits, group = group_of(writer, need(1_000), need(2_000))
    run_sync(writer.serve([group]))
    assert len(store.calls) == 4
    first, second = outcomes(visits)
    assert first is not None
    assert (first.applied, first.failure, second) == (False, None, None)
    store.meanwhile = lambda: None
    (second,) = run_sync(visits[1].run())
    assert second.applied
    assert store.held() <= 9_000 - 2_000 + 10_000
