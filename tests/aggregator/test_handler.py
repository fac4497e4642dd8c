"""The Lambda entry point: what it reads from its environment, answers, logs and never swallows."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tests.aggregator.images import NOW, Step, bucket, expired, history, record, records_of
from tests.aggregator.known_usage import Stream
from tests.dynamodb.tables import driver, make_table
from tests.engines import dynamodb_local
from zae_limiter.exceptions import ValidationError
from zae_limiter.models import UsageWindow
from zae_limiter.repository_protocol import Equal, Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import audit_key, bucket_key
from zae_limiter_aggregator import FILTERS, AggregatorSettings, change_of
from zae_limiter_aggregator import handler as lambda_function

USAGE = Key("ns/ENTITY#user-1", "#USAGE#gpt-4#2023-11-14T22:00:00Z")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that is deployed beside a table of its own."""
    name = make_table(with_stream=True)
    monkeypatch.setenv("TABLE_NAME", name)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb_local.endpoint())
    lambda_function.service.cache_clear()
    yield name
    run_sync(lambda_function.service().backend.close())
    lambda_function.service.cache_clear()


def matches(pattern: Any, value: Any) -> bool:
    """What an event source mapping does with a filter."""
    if isinstance(pattern, dict):
        return isinstance(value, dict) and all(matches(p, value.get(name)) for name, p in pattern.items())
    return any(
        isinstance(value, str) and value.startswith(one["prefix"]) if isinstance(one, dict) else value == one
        for one in pattern
    )


def test_a_batch_becomes_usage(table: str) -> None:
    """And the answer names no failures."""
    context = SimpleNamespace(aws_request_id="request-1")
    answer = lambda_function.handler({"Records": records_of(history([Step(3, NOW), Step(4, NOW)]))}, context)
    assert answer == {"batchItemFailures": [], "refills_written": 0, "passed_over": 0}
    stored = driver().get_item(TableName=table, Key={"PK": {"S": USAGE.partition}, "SK": {"S": USAGE.sort}})
    assert stored["Item"]["tpm"] == {"N": "7"}
    assert lambda_function.handler({"Records": []}, None)["batchItemFailures"] == []


def test_an_unreadable_record_is_passed_over_and_the_others_count(
    table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each by its sequence number, as one JSON line; the stream does not wait for it."""
    lambda_function.logger.handlers.clear()
    lambda_function.service.cache_clear()
    good = records_of(history([Step(3, NOW)]))
    bad = record(Key("ns/BUCKET#only-two#parts", "#STATE"), None, bucket({}, 1), 77)
    answer = lambda_function.handler({"Records": [*good, bad]}, None)
    assert answer["batchItemFailures"] == []
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (passed,) = [line for line in lines if line["message"] == "passed over"]
    assert passed["sequences"] == ["77"]
    assert "only-two" in passed["reason"]
    (summary,) = [line for line in lines if line["message"] == "batch"]
    assert (summary["records"], summary["rows_written"], summary["failed"]) == (2, 2, 0)
    assert summary["passed_over"] == 1
    assert table
    lambda_function.logger.handlers.clear()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("SNAPSHOT_WINDOWS", "hourly,weekly", "weekly"),
        ("SNAPSHOT_TTL_DAYS", "-3", "-3"),
        ("SNAPSHOT_TTL_DAYS", "soon", "soon"),
        ("ENABLE_ARCHIVAL", "maybe", "maybe"),
        ("ENABLE_ARCHIVAL", "true", "ARCHIVE_BUCKET_NAME"),
        ("TABLE_NAME", "", "TABLE_NAME"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str) -> None:
    """The function fails before it does half of its work."""
    monkeypatch.setenv("TABLE_NAME", "limits")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv(name, value)
    lambda_function.service.cache_clear()
    with pytest.raises(ValidationError, match=says):
        lambda_function.handler({"Records": []}, None)
    logging.getLogger("zae_limiter_aggregator").handlers.clear()
    lambda_function.service.cache_clear()


def test_settings_have_defaults() -> None:
    """Hours and days, for ninety days; no days mean for ever."""
    assert lambda_function.settings_from({}) == AggregatorSettings()
    everything = {"SNAPSHOT_WINDOWS": " hourly, monthly,", "SNAPSHOT_TTL_DAYS": "0"}
    assert lambda_function.settings_from(everything) == AggregatorSettings(
        (UsageWindow.HOURLY, UsageWindow.MONTHLY), None
    )


def test_the_filters_let_pass_what_matters() -> None:
    """Keys begin with the namespace, so the filters ask for sort keys; the function agrees with them."""
    image = bucket({"tpm": 1}, 1)
    audit = audit_key("ns", "user-1", "01ABC")
    cases = {
        "a new bucket": (record(bucket_key("ns", "u", "r"), None, image, 1), True),
        "a changed bucket": (record(bucket_key("ns", "u", "r"), image, image, 2), True),
        "an expired audit event": (expired(record(audit, {"event_id": "01ABC"}, None, 3)), True),
        "a deleted audit event": (record(audit, {"event_id": "01ABC"}, None, 4), False),
        "a new audit event": (record(audit, None, {"event_id": "01ABC"}, 5), False),
        "a usage row": (record(USAGE, None, {"tpm": 1}, 6), False),
        "an expired usage row": (expired(record(USAGE, {"tpm": 1}, None, 7)), False),
        "an entity": (record(Key("ns/ENTITY#u", "#META"), None, {"entity_id": "u"}, 8), False),
    }
    for what, (one, wanted) in cases.items():
        assert any(matches(pattern, one) for pattern in FILTERS) is wanted, what
        assert (change_of(one) is not None) is wanted, what


def test_real_records_pass_the_filters() -> None:
    """What the engine's own stream says of a bucket and of a condition that failed."""
    table = make_table(with_stream=True)
    key = {"PK": {"S": "ns/BUCKET#u#r#0"}, "SK": {"S": "#STATE"}}
    driver().put_item(TableName=table, Item=key | {"born": {"N": "1"}, "b_wcu_tc": {"N": "1000"}})
    stream = Stream(table)
    stream.drain(NOW)
    (one,) = stream.records
    assert any(matches(pattern, one) for pattern in FILTERS)
    change = change_of(one)
    assert change is not None
    assert change.key == Key("ns/BUCKET#u#r#0", "#STATE")
    assert Equal("born", 1).holds(change.new)  # type: ignore[union-attr]
