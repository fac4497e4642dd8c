"""A repository that brings its stack along: what is deployed when one is built, and what never is."""

import logging
from typing import Any

import pytest

from tests.dynamodb.tables import session
from tests.engines import emulator
from tests.infra.emulated import deployed, manager, place, sync_manager
from tests.stores import drive
from zae_limiter import (
    LimiterConfig,
    Repository,
    StackOptions,
    SyncRepository,
    SyncRepositoryBuilder,
    version,
)
from zae_limiter.exceptions import (
    InfrastructureError,
    InfrastructureNotFoundError,
    InvalidNameError,
    ValidationError,
    VersionMismatchError,
)
from zae_limiter.infra import stack_manager

SMALL = StackOptions(enable_aggregator=False)


def builder(name: str) -> SyncRepositoryBuilder:
    whole = SyncRepository.builder().stack(name).region(emulator.REGION).endpoint_url(emulator.endpoint())
    return whole.session(session(True))


def lambda_version(name: str, said: str | None = None) -> str | None:
    """What the table says of its function; said anew, if something is said."""
    with SyncRepository.open(stack=name, **place()) as repository:
        if said is not None:
            repository.set_version_record(lambda_version=said)
        record = repository.get_version_record()
    return None if record is None else record.lambda_version


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_a_repository_deploys_what_its_options_ask_for(sync: bool) -> None:
    """The stack is there, the namespace is registered, the versions are recorded."""
    name = emulator.fresh_name()

    async def scenario() -> None:
        if sync:
            built = builder(name).namespace("default").lambda_memory(128).build()._async
        else:
            asked = Repository.builder().stack(name).region(emulator.REGION).endpoint_url(emulator.endpoint())
            built = await asked.namespace("default").lambda_memory(128).session(session(False)).build()
        async with built:
            assert built.namespace_name == "default"
            record = await built.get_version_record()
            assert record is not None
            assert record.lambda_version == version.client_version()
            await built.delete_stack()

    drive(sync, scenario())


def test_building_again_only_looks() -> None:
    """Unless an option says something else than what is deployed."""
    with deployed(SMALL) as name, sync_manager(name) as stack:
        with builder(name).enable_aggregator(False).build() as repository:
            assert repository.table_name == name
        made = stack.ours()
        assert made.status == "CREATE_COMPLETE"
        builder(name).enable_aggregator(False).pitr_recovery_days(7).build().close()
        assert stack.ours().parameters["PitrRecoveryDays"] == "7"
        assert stack.ours().stack_id == made.stack_id


def test_opening_deploys_nothing() -> None:
    """Neither does building without an option of a stack: a missing table is told with its command."""
    name = emulator.fresh_name()
    for attempt in (
        lambda: SyncRepository.open(stack=name, **place()),
        lambda: SyncRepository.connect(stack=name, **place()),
        lambda: builder(name).build(),
        lambda: builder(name).auto_update(True).build(),
    ):
        with pytest.raises(InfrastructureNotFoundError, match=f"zae-limiter deploy --name {name}"):
            attempt()
    with sync_manager(name) as stack:
        assert stack.describe() is None


@pytest.mark.parametrize(
    ("option", "value", "kind"),
    [
        ("lambda_memory", 5, ValidationError),
        ("namespace", "_", InvalidNameError),
        ("config_cache_ttl", -1, ValidationError),
        ("on_unavailable", "maybe", ValidationError),
        ("stack", "my_stack", InvalidNameError),
        ("tags", {"aws:x": "y"}, ValidationError),
    ],
)
def test_whatever_is_wrong_is_told_before_anything_is_deployed(
    option: str, value: Any, kind: type[Exception]
) -> None:
    """No stack is made for a repository that could not be opened."""
    name = emulator.fresh_name()
    wrong = builder(name).stack_options(SMALL)
    with pytest.raises(kind):
        getattr(wrong, option)(value).build()
    with sync_manager(name) as stack:
        assert stack.describe() is None


@pytest.mark.parametrize(
    ("said", "stored", "asks_for_stack", "updated"),
    [
        (None, None, True, True),
        (None, None, False, False),
        (None, True, False, True),
        (None, False, True, False),
        (True, False, False, True),
        (False, True, True, False),
    ],
)
def test_who_decides_about_updates(
    said: bool | None, stored: bool | None, asks_for_stack: bool, updated: bool
) -> None:
    """The builder's word, else the system's, else whether the program deploys the stack itself."""
    with deployed(StackOptions(enable_alarms=False)) as name:
        lambda_version(name, said="0.0.1")
        with SyncRepository.open(stack=name, **place()) as repository:
            if stored is not None:
                repository.set_config("system", LimiterConfig(auto_update=stored))
        built = builder(name)
        if said is not None:
            built.auto_update(said)
        if asks_for_stack:
            built.enable_alarms(False)
        built.build().close()
        assert lambda_version(name) == (version.client_version() if updated else "0.0.1")


def test_an_update_comes_before_a_strict_check() -> None:
    """Whoever wants both gets both: the difference is gone by the time that it is looked for."""
    with deployed(StackOptions(enable_alarms=False)) as name:
        lambda_version(name, said="0.0.1")
        with SyncRepository.open(stack=name, **place()) as repository:
            repository.set_config("system", LimiterConfig(auto_update=True, strict_version=True))
        builder(name).build().close()
        assert lambda_version(name) == version.client_version()
        with SyncRepository.open(stack=name, **place()) as repository:
            repository.set_version_record(lambda_version="0.0.1")
        with pytest.raises(VersionMismatchError, match="strict_version is set"):
            builder(name).auto_update(False).build()


def test_a_program_that_may_not_update_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With what is deployed, and the log tells."""

    async def refused(*_: object) -> bool:
        raise InfrastructureError("you shall not pass")

    with deployed(SMALL) as name:
        lambda_version(name, said="0.0.1")
        monkeypatch.setattr(stack_manager.StackManager, "update_lambda", refused)
        with caplog.at_level(logging.WARNING, "zae_limiter"):
            builder(name).auto_update(True).build().close()
        assert f"the aggregator of '{name}' was not updated: you shall not pass" in caplog.text
        assert lambda_version(name) == "0.0.1"


def test_stores_without_stacks_say_so() -> None:
    """There is nothing to create and nothing to delete."""
    with SyncRepository.open(store="memory://") as repository:
        for verb in (repository.create_stack, repository.delete_stack):
            with pytest.raises(InfrastructureError, match="a memory store has no stack"):
                verb()


def test_a_session_reaches_the_stack_too() -> None:
    """Whoever passed one to the repository need not pass it again."""
    with deployed(SMALL) as name:

        async def scenario() -> None:
            async with manager(True, name) as stack:
                assert await stack.describe() is not None
            whole = await Repository.open(stack=name, session=session(False), **place())
            async with whole, whole._stack_manager() as found:
                assert found._cloud._session is session(False)  # type: ignore[attr-defined]

        drive(False, scenario())
