"""An apply that dies anywhere and is run again ends where it was to, and takes nothing that is not its own.

It is tried with a crash at every call to the store, before the call takes effect and after it, and
with every request and every reply lost in turn.
"""

from collections import Counter
from textwrap import dedent

import pytest

from tests.records.store import RPM, TPM, Store
from tests.records.test_crashes import CALLS_MAX, crash_everywhere
from zae_limiter import RateLimiterUnavailable, Repository
from zae_limiter.operate.manifest import Action, LevelAddress, Manifest, StoredLimits, parse
from zae_limiter.repository_protocol import Backend
from zae_limiter.testing import Fault, FaultyBackend

pytestmark = pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)

BEFORE = parse(
    dedent(
        """
        system: {limits: {rpm: {capacity: 100}}}
        resources:
          gpt-3: {limits: {rpm: {capacity: 10}}}
          gpt-4: {limits: {rpm: {capacity: 20}}}
        entities:
          user-1: {resources: {gpt-4: {limits: {rpm: {capacity: 1}}}, _default_: {on_unavailable: allow}}}
        """
    )
)
AFTER = parse(
    dedent(
        """
        resources:
          gpt-4: {on_unavailable: block, limits: {rpm: {capacity: 25}, tpm: {capacity: 5}}}
          gpt-5: {limits: {rpm: {capacity: 5}}}
          theirs: {limits: {rpm: {capacity: 6}}}
        entities:
          user-1: {resources: {gpt-4: {limits: {rpm: {capacity: 1}}}}}
          user-2: {resources: {gpt-4: {limits: {rpm: {capacity: 2}}}}}
        """
    )
)
THEIRS = {
    LevelAddress("resource", None, "kept"),
    LevelAddress("resource", None, "theirs"),
    LevelAddress("entity", "user-3", "gpt-4"),
}
CHANGED = Counter(
    {
        "$SYSTEM": 2,
        "$RESOURCE:gpt-3": 2,
        "$RESOURCE:gpt-4": 2,
        "$RESOURCE:gpt-5": 1,
        "$RESOURCE:theirs": 2,
        "$RESOURCE:kept": 1,
        "user-1": 4,
        "user-2": 1,
        "user-3": 1,
    }
)


async def prepare(repository: Repository) -> None:
    """An earlier apply, and levels that others made."""
    await StoredLimits(repository).apply(BEFORE)
    await repository.set_resource_defaults("kept", [RPM])
    await repository.set_resource_defaults("theirs", [TPM])
    await repository.set_limits("user-3", [TPM], "gpt-4")
    # One that an apply made, and others made again: its claim has lapsed.
    await repository.delete_limits("user-1", "_default_")
    await repository.set_limits("user-1", [TPM], "_default_")


async def change(repository: Repository) -> None:
    await StoredLimits(repository).apply(AFTER, "ops")


async def check(repository: Repository) -> None:
    """Whatever the interrupted one did, the next one does the rest and not more."""
    stored = StoredLimits(repository)
    theirs = THEIRS | {LevelAddress("entity", "user-1", "_default_")}
    assert theirs <= (await stored.export()).levels.keys()
    await change(repository)
    left = await stored.difference(AFTER)
    assert {change.action for change in left.changes} == {Action.LEAVE}
    assert {change.address for change in left.changes} == theirs - AFTER.levels.keys()
    assert left.lapsed == {}
    assert await stored.apply(AFTER) == []
    events = {name: await repository.get_audit_events(name) for name in CHANGED}
    # user-1: two levels made, one of them deleted and made again.
    assert {name: len(found) for name, found in events.items()} == dict(CHANGED)
    # All that was ever made by applies goes with them, and nothing else.
    await stored.apply(Manifest({}))
    assert (await stored.export()).levels.keys() == theirs


async def test_a_crash_anywhere(store: Store) -> None:
    """Each level with its claim and its event is changed or not, so nothing is between the two files."""
    assert await crash_everywhere(store, prepare, change, check) >= 20


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_REPLY])
async def test_a_lost_answer_anywhere(store: Store, fault: Fault) -> None:
    """The caller is told, and running it again settles it."""
    for at in range(CALLS_MAX):
        faulty: list[FaultyBackend] = []

        def wrap(backend: Backend, faulty: list[FaultyBackend] = faulty) -> Backend:
            faulty.append(FaultyBackend(backend))
            return faulty[0]

        repository = await store.repository(f"at-{at}", wrap=wrap)
        await prepare(repository)
        faulty[0].faults = [*([None] * at), fault]
        try:
            await change(repository)
        except RateLimiterUnavailable:
            await check(repository)
        else:
            assert at >= 10
            return
    raise AssertionError(f"an apply takes more than {CALLS_MAX} calls")
