"""Versions: who writes the record, who is let in, and what the others are told to do."""

import logging
from collections.abc import Sequence

import pytest

from tests.records.store import RPM, Store
from zae_limiter import (
    IncompatibleSchemaError,
    LimiterConfig,
    OnUnavailable,
    RateLimiterUnavailable,
    Repository,
    ValidationError,
    VersionMismatchError,
    VersionRecord,
)
from zae_limiter.records.versions import judge
from zae_limiter.repository_protocol import Backend, Delete, Item, Key
from zae_limiter.schema import older_version_key, version_key
from zae_limiter.testing.stores import Wrapper
from zae_limiter.version import SCHEMA_VERSION, client_version


async def test_whoever_opens_writes_the_record(store: Store) -> None:
    """Once; later openings leave it as it is."""
    repository = await store.repository()
    record = await repository.get_version_record()
    assert record == VersionRecord(SCHEMA_VERSION, None, "0.0.0", "2023-11-14T22:13:20.000Z")
    store.clock.advance(60)
    assert await (await store.repository()).get_version_record() == record


async def test_whoever_connects_writes_nothing(store: Store) -> None:
    """A record that is missing stays so, and lets everybody in."""
    backend = store.open_backend()
    await (await store.repository()).ping()
    await backend.write_each([Delete(version_key())])
    connected = await Repository.over(store.open_backend(), world=store.clock.world, register=False)
    assert await connected.get_version_record() is None
    await connected.close()
    await backend.close()


async def test_a_record_binds_whoever_opens_next(store: Store) -> None:
    """Opening and connecting check alike, and the error says what to do."""
    repository = await store.repository()
    await repository.set_version_record("2.0.0", updated_by="admin")
    for register in (True, False):
        with pytest.raises(IncompatibleSchemaError, match="install a newer zae-limiter"):
            await Repository.over(store.open_backend(), world=store.clock.world, register=register)
    await repository.set_version_record(SCHEMA_VERSION)
    await (await store.repository()).ping()


class Guarded(Wrapper):
    """Fails whoever looks for the record of an older version."""

    def __init__(self, inner: Backend, failure: RateLimiterUnavailable) -> None:
        super().__init__(inner)
        self._failure = failure

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        if older_version_key() in keys:
            raise self._failure
        return await super().batch_get(keys)


@pytest.mark.parametrize("denied", [True, False])
async def test_an_older_table_is_not_taken_for_an_empty_one(store: Store, denied: bool) -> None:
    """Who may not look for older records is let in; who gets no answer is not, and writes nothing."""
    repository = await store.repository()
    backend = store.open_backend()
    await backend.write_each([Delete(version_key())])
    misconfigured = "permission" if denied else ""
    guarded = Guarded(backend, RateLimiterUnavailable("no answer", misconfigured=misconfigured))
    if denied:
        await Repository.over(guarded, world=store.clock.world, register=False)
    else:
        with pytest.raises(RateLimiterUnavailable, match="no answer"):
            await Repository.over(guarded, world=store.clock.world)
    assert await repository.get_version_record() is None
    await backend.close()


async def test_whoever_is_refused_registers_nothing(store: Store) -> None:
    """The namespace that was to be opened is not there afterwards."""
    repository = await store.repository()
    await repository.set_version_record("2.0.0")
    with pytest.raises(IncompatibleSchemaError):
        await Repository.over(store.open_backend(), "new", world=store.clock.world)
    assert await repository.get_namespace("new") is None


@pytest.mark.parametrize(
    ("record", "error", "said"),
    [
        (VersionRecord("0.9.0"), IncompatibleSchemaError, "run `zae-limiter upgrade`"),
        (VersionRecord("2.0.0"), IncompatibleSchemaError, "install a newer zae-limiter"),
        (VersionRecord("1.0.0", client_min_version="9.0.0"), VersionMismatchError, "needs client 9.0.0"),
        (VersionRecord("nonsense"), IncompatibleSchemaError, "cannot be read.*set_version_record"),
        (VersionRecord("1.0.0", "x"), IncompatibleSchemaError, "cannot be read"),
    ],
    ids=str,
)
def test_verdicts(record: VersionRecord, error: type[Exception], said: str) -> None:
    """A client 0.1.0 with schema 1.0.0 against what stores may say."""
    with pytest.raises(error, match=said):
        judge(record, client="0.1.0")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (VersionRecord("1.0.0"), None),
        (VersionRecord("1.0.0", "0.1.0"), None),
        (VersionRecord("1.1.0"), "the table has schema 1.1.0, this client 1.0.0"),
        (VersionRecord("1.0.0", "0.0.1"), "aggregator is 0.0.1"),
    ],
    ids=str,
)
def test_differences(record: VersionRecord, said: str | None) -> None:
    """What is let pass unless a namespace is strict."""
    difference = judge(record, client="0.1.0")
    assert (difference is None) if said is None else (said in (difference or ""))


async def test_strictness_is_the_namespaces_own(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """The system level of the namespace that is opened decides; what is let pass is a warning."""
    repository = await store.repository("strict")
    await store.repository("lax")
    await repository.set_config("system", LimiterConfig((RPM,), strict_version=True))
    await repository.set_version_record(SCHEMA_VERSION, lambda_version="0.0.1")
    with pytest.raises(VersionMismatchError, match="strict_version is set"):
        await store.repository("strict")
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        await store.repository("lax")
    assert "run `zae-limiter upgrade`" in caplog.text
    await repository.set_version_record(SCHEMA_VERSION, lambda_version=client_version())
    await store.repository("strict")


async def test_what_is_set_is_checked(store: Store) -> None:
    """A record that nobody could read is not written."""
    repository = await store.repository()
    before = await repository.get_version_record()
    for given in ({"schema_version": "one"}, {"lambda_version": "x"}, {"client_min_version": ""}):
        with pytest.raises(ValidationError, match="invalid version"):
            await repository.set_version_record(**given)
    with pytest.raises(ValidationError, match="principal"):
        await repository.set_version_record(updated_by="a#b")
    assert await repository.get_version_record() == before


async def test_whoever_is_refused_changes_no_policy() -> None:
    """A builder stores ``on_unavailable`` for everybody, once it is let in."""
    url = "memory://refused-builder"
    async with await Repository.open(store=url) as repository:
        await repository.set_config("system", LimiterConfig(on_unavailable=OnUnavailable.BLOCK))
        await repository.set_version_record("2.0.0")
        with pytest.raises(IncompatibleSchemaError):
            await Repository.builder().store(url).on_unavailable("allow").build()
        stored = await repository.get_config("system")
        assert stored is not None
        assert stored.on_unavailable is OnUnavailable.BLOCK
