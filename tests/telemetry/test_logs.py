"""Logs: fields of stable names, and no id of an entity unless it was asked for."""

import json
import logging

import pytest

from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.telemetry import JsonFormatter, Telemetry


def refused(**how: bool) -> None:
    with (
        SyncRateLimiter.open("memory://") as limiter,
        Telemetry(limiter, log=True, **how),
        pytest.raises(RateLimitExceeded),
        limiter.acquire("secret-key", "gpt-4", {"rpm": 2}, [Limit.per_hour("rpm", 1)]),
    ):
        pass


@pytest.mark.parametrize("with_entities", [False, True])
def test_an_event_is_one_line_of_json(with_entities: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Its name, the resource and the limits; who it was if that is asked for."""
    caplog.set_level(logging.INFO, "zae_limiter.events")
    refused(log_entities=with_entities)
    (record,) = [record for record in caplog.records if record.name == "zae_limiter.events"]
    line = JsonFormatter(with_entities=with_entities).format(record)
    told = json.loads(line)
    assert (told["event"], told["resource"], told["limits"]) == ("refused", "gpt-4", ["rpm"])
    assert told["level"] == "info"
    assert ("secret-key" in line) is with_entities
    assert ("secret-key" in record.getMessage()) is with_entities


@pytest.mark.parametrize("with_entities", [False, True])
def test_a_sentence_that_names_somebody_is_cut_to_its_words(with_entities: bool) -> None:
    """What went wrong is told with its fields, and not whose it was."""
    record = logging.LogRecord(
        "zae_limiter", logging.WARNING, "", 0, "%s may not have got it", ("secret-key",), None
    )
    record.event, record.entity_id = "refund_lost", "secret-key"
    line = JsonFormatter(with_entities=with_entities).format(record)
    assert json.loads(line)["event"] == "refund_lost"
    assert ("secret-key" in line) is with_entities
