"""An operator's program: entities, levels of limits, switches, why a limit applies, and a clock of a test."""

from zae_limiter import (
    AuditEvent,
    Entity,
    Explanation,
    Limit,
    LimiterConfig,
    ResourceDisabled,
    SyncRateLimiter,
    SyncRepository,
    UsageSummary,
    ValidationError,
)
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.testing import Fault, FaultyBackend, ManualClock, simulate


def everybody(repository: SyncRepository) -> list[Entity]:
    found: list[Entity] = []
    cursor: str | None = None
    while True:
        rows, cursor = repository.list_entities(limit=1, cursor=cursor)
        found += rows
        if cursor is None:
            return found


def main() -> None:
    clock = ManualClock()
    store = FaultyBackend(MemoryBackend(clock.world))
    repository = SyncRepository.over(store, world=clock.world)
    limiter = SyncRateLimiter(repository)
    repository.create_entity("team", name="Team")
    repository.create_entity("key-1", parent_id="team", cascade=True, metadata={"plan": "pro"})
    repository.set_system_defaults([Limit.per_minute("rpm", 60)])
    repository.set_config("resource", LimiterConfig((Limit.per_hour("rph", 100),)), "gpt-4")
    assert [entity.id for entity in everybody(repository)] == ["key-1", "team"]
    why: Explanation = repository.explain("key-1", "gpt-4")
    assert "rph" in str(why)
    limiter.disable(resource="gpt-4", reason="maintenance")
    try:
        with limiter.acquire("key-1", "gpt-4", {"rph": 1}):
            raise AssertionError("it is off")
    except ResourceDisabled as off:
        assert off.reason == "maintenance"
    assert limiter.enable(resource="gpt-4") is True
    clock.advance(61)
    with limiter.acquire("key-1", "gpt-4", {"rph": 1}) as lease:
        assert lease.consumed == {"rph": 1}
    events: list[AuditEvent] = repository.get_audit_events("key-1", limit=5)
    assert events
    summary: UsageSummary = repository.get_usage_summary(resource="gpt-4")
    assert summary.snapshot_count == 0
    try:
        limiter.available("no#id", "gpt-4")
    except ValidationError as mistake:
        assert mistake.value == "no#id"
    store.always = Fault.UNREACHABLE
    assert limiter.is_available(timeout=0.1) is False
    answers = simulate([Limit.per_minute("rpm", 2)], [(0, {"rpm": 2}), (0.5, {"rpm": 1})])
    assert [answer.admitted for answer in answers] == [True, False]


if __name__ == "__main__":
    main()
