"""Deleting what is not there is no error, and says that nothing was deleted."""

from tests.records.store import Store
from zae_limiter import Limit, SyncRepository

RPM = Limit.per_minute("rpm", 60)


async def test_deleting_what_is_not_there_does_nothing(store: Store) -> None:
    """No exception, no audit event, and the answer is false."""
    repository = await store.repository()
    assert await repository.delete_entity("nobody") is False
    assert await repository.delete_limits("nobody") is False
    assert await repository.delete_limits("nobody", "gpt-4") is False
    assert await repository.delete_resource_defaults("gpt-4") is False
    assert await repository.delete_system_defaults() is False
    assert await repository.delete_namespace("nowhere") is None
    for audited in ("nobody", "$SYSTEM", "$RESOURCE:gpt-4"):
        assert await repository.get_audit_events(audited) == []


async def test_deleting_says_whether_anything_was_there(store: Store) -> None:
    """The first deletion answers with true, the second one with false."""
    repository = await store.repository()
    await repository.create_entity("key-1")
    await repository.set_limits("key-1", [RPM], "gpt-4")
    await repository.set_resource_defaults("gpt-4", [RPM])
    await repository.set_system_defaults([RPM])
    await repository.register_namespace("team-a")
    for answer in (True, False):
        assert await repository.delete_limits("key-1", "gpt-4") is answer
        assert await repository.delete_resource_defaults("gpt-4") is answer
        assert await repository.delete_system_defaults() is answer
        assert await repository.delete_entity("key-1") is answer
        assert (await repository.delete_namespace("team-a") is not None) is answer


def test_deleting_in_sync_code() -> None:
    """The sync twins answer the same."""
    with SyncRepository.open(store="memory://") as repository:
        repository.create_entity("key-1")
        assert repository.delete_entity("key-1") is True
        assert repository.delete_entity("key-1") is False
        assert repository.delete_limits("key-1") is False
        assert repository.delete_namespace("nowhere") is None
