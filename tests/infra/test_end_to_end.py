"""From a deployment to its end, through the commands and the library that people use.

Everything is real but the account: CloudFormation makes the stack, the stream feeds the function, the
function runs and writes, on an emulator of AWS. Only the clock of expiry is not waited for.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner, Result

from tests.aggregator.known_usage import unpack
from tests.engines import emulator
from tests.infra.emulated import place
from zae_limiter import AuditAction, RateLimiter, SyncRateLimiter, SyncRepository
from zae_limiter.backends.dynamodb.expressions import encode_key
from zae_limiter.cli.app import program
from zae_limiter.infra.lambda_builder import build, code_sha256
from zae_limiter.infra.template import POLICIES, ROLES
from zae_limiter.schema import audit_key
from zae_limiter.version import client_version

T = TypeVar("T")
PATIENCE_SECONDS = 60


def until(look: Callable[[], T], enough: Callable[[T], bool] = bool) -> T:
    """What is seen as soon as it is enough."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not enough(seen := look()):
        assert time.monotonic() < deadline, f"still {seen!r} after {PATIENCE_SECONDS} seconds"
        time.sleep(0.05)
    return seen


def run(name: str, *words: str) -> Result:
    """A command about the stack, which must succeed."""
    where = ["--name", name, "--region", emulator.REGION, "--endpoint-url", emulator.endpoint()]
    result = CliRunner().invoke(program, [*words, *where])
    assert result.exit_code == 0, result.output
    return result


def said(name: str, *words: str) -> Any:
    return json.loads(run(name, *words, "--output", "json").stdout)


def inventory(name: str) -> dict[str, set[str]]:
    """Everything in the account that bears the name, by kind."""
    ask = emulator.client

    def named(found: list[str]) -> set[str]:
        return {one.removeprefix(name) for one in found if one.startswith(name)}

    mappings = ask("lambda").list_event_source_mappings()["EventSourceMappings"]
    groups = ask("logs").describe_log_groups(logGroupNamePrefix=f"/aws/lambda/{name}")["logGroups"]
    return {
        "tables": named(ask("dynamodb").list_tables()["TableNames"]),
        "functions": named([f["FunctionName"] for f in ask("lambda").list_functions()["Functions"]]),
        "mappings": named([m["FunctionArn"].rpartition(":")[2] for m in mappings]),
        "queues": named([q.rpartition("/")[2] for q in ask("sqs").list_queues().get("QueueUrls", [])]),
        "buckets": {
            b["Name"] for b in ask("s3").list_buckets()["Buckets"] if b["Name"].startswith(name.lower())
        },
        "alarms": named([a["AlarmName"] for a in ask("cloudwatch").describe_alarms()["MetricAlarms"]]),
        "policies": named([p["PolicyName"] for p in ask("iam").list_policies(Scope="Local")["Policies"]]),
        "roles": named([r["RoleName"] for r in ask("iam").list_roles()["Roles"]]),
        "logs": {group["logGroupName"] for group in groups},
    }


def check_inventory(name: str) -> str:
    """All that the stack promises is there, and wired; the name of the archive."""
    found, function = inventory(name), "-aggregator"
    (archive,) = found.pop("buckets")
    assert found == {
        "tables": {""},
        "functions": {function},
        "mappings": {function},
        "queues": {f"{function}-dlq"},
        "alarms": {f"{function}-{w}" for w in ("errors", "duration", "iterator-age", "throttles", "dlq")},
        "policies": {f"-{policy}" for policy in POLICIES},
        "roles": {f"-{role}" for role in ROLES},
        "logs": {f"/aws/lambda/{name}{function}"},
    }
    config = emulator.client("lambda").get_function_configuration(FunctionName=f"{name}{function}")
    assert config["CodeSha256"] == code_sha256(build())
    assert config["Environment"]["Variables"]["TABLE_NAME"] == name
    table = emulator.client("dynamodb").describe_table(TableName=name)["Table"]
    assert {index["IndexName"] for index in table["GlobalSecondaryIndexes"]} == {
        "GSI1",
        "GSI2",
        "GSI3",
        "GSI4",
    }
    (mapping,) = emulator.client("lambda").list_event_source_mappings(FunctionName=f"{name}{function}")[
        "EventSourceMappings"
    ]
    assert mapping["EventSourceArn"] == table["LatestStreamArn"]
    assert len(mapping["FilterCriteria"]["Filters"]) == 2
    assert emulator.client("s3").get_bucket_versioning(Bucket=archive)["Status"] == "Enabled"
    return archive


def complete(name: str) -> None:
    """What the template says of the table, and the emulator does not do."""
    dynamodb = emulator.client("dynamodb")
    ttl = {"Enabled": True, "AttributeName": "ttl"}
    dynamodb.update_time_to_live(TableName=name, TimeToLiveSpecification=ttl)
    recovery = {"PointInTimeRecoveryEnabled": True}
    dynamodb.update_continuous_backups(TableName=name, PointInTimeRecoverySpecification=recovery)


def used(limiter: SyncRateLimiter) -> dict[str, dict[str, int]]:
    """What was counted so far, by window."""
    snapshots, _ = limiter.get_usage_snapshots("user-1", "gpt-4")
    return {snapshot.window_type: dict(snapshot.counters) for snapshot in snapshots}


async def acquire_async(name: str) -> None:
    limiter = await RateLimiter.open(stack=name, **place())
    async with limiter, limiter.acquire("user-1", "gpt-4", {"rpm": 1, "tpm": 300}) as lease:
        await lease.adjust(tpm=-100)


def expire(repository: SyncRepository) -> dict[str, Any]:
    """Remove an audit event as its expiry would, and return the record that the stream then holds.

    The emulator removes at a time of its own choosing, so this does it; a removal by hand differs from
    the service's in who did it, and only in that.
    """
    table = str(repository.table_name)
    (event,) = repository.get_audit_events("user-1")
    assert event.action is AuditAction.ENTITY_CREATED
    key = encode_key(audit_key(repository.namespace_id, "user-1", event.event_id))
    gone = emulator.client("dynamodb").delete_item(TableName=table, Key=key, ReturnValues="ALL_OLD")
    return {
        "eventID": "1",
        "eventName": "REMOVE",
        "eventSource": "aws:dynamodb",
        "userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"},
        "dynamodb": {
            "Keys": key,
            "OldImage": gone["Attributes"],
            "SequenceNumber": "1",
            "ApproximateCreationDateTime": time.time(),
            "StreamViewType": "NEW_AND_OLD_IMAGES",
        },
    }


def archived(bucket: str) -> list[str]:
    objects = emulator.client("s3").list_objects_v2(Bucket=bucket, Prefix="audit/")
    return [one["Key"] for one in objects.get("Contents", ())]


@pytest.mark.timeout(240)
def test_from_deployment_to_deletion() -> None:
    """One stack, used the way it is meant to be, and then gone but for what it keeps."""
    name = emulator.fresh_name()

    # It is deployed, and everything in it is there and well.
    roles = ("--create-iam-roles", "--role-principal", "arn:aws:iam::000000000000:role/team-*")
    deployment = said(name, "deploy", *roles, "--tag", "team=a")
    assert (deployment["is_new"], deployment["code_updated"]) == (True, True)
    archive = check_inventory(name)
    complete(name)
    status = said(name, "status")
    assert status["health"] == "green", status["checks"]
    assert name in {one["stack_name"] for one in listed()}

    # It is used, by both colours, with limits that a command has set.
    run(name, "entity", "create", "user-1")
    run(name, "resource", "set-defaults", "gpt-4", "-l", "rpm:60", "-l", "tpm:10000")
    with SyncRateLimiter.open(stack=name, **place()) as limiter:
        with limiter.acquire("user-1", "gpt-4", {"rpm": 1, "tpm": 500}) as lease:
            lease.adjust(tpm=250)
        asyncio.run(acquire_async(name))

        # The function, fed by the stream, counts it; a command draws it.
        total = {"rpm": 2, "tpm": 500 + 250 + 300 - 100}
        counted = until(lambda: used(limiter), lambda seen: seen.get("daily") == total)
        assert counted == {"hourly": total, "daily": total}
        drawn = run(name, "usage", "list", "-e", "user-1", "--plot").stdout
        assert "tpm" in drawn
        rows = said(name, "usage", "list", "-e", "user-1")
        assert {row["counters"]["tpm"] for row in rows["snapshots"]} == {950}

        # An audit event that expires is archived as it was.
        record = expire(limiter.repository)
        reply = emulator.client("lambda").invoke(
            FunctionName=f"{name}-aggregator", Payload=json.dumps({"Records": [record]})
        )
        assert "FunctionError" not in reply, reply["Payload"].read()
        assert json.loads(reply["Payload"].read())["batchItemFailures"] == []
        (kept,) = until(lambda: archived(archive))
        content = emulator.client("s3").get_object(Bucket=archive, Key=kept)["Body"].read()
        (event,) = unpack(content)
        assert (event.entity_id, event.action) == ("user-1", AuditAction.ENTITY_CREATED)

        # An upgrade finds nothing to do, until the function is of an older version.
        assert said(name, "upgrade", "--yes")["changed"] is False
        limiter.repository.set_version_record(lambda_version="0.0.1")
        assert said(name, "upgrade", "--yes")["lambda_updated"] is True
        assert said(name, "check")["stored"]["lambda_version"] == client_version()
        with limiter.acquire("user-1", "gpt-4", {"rpm": 1}):
            pass
        until(lambda: used(limiter), lambda seen: seen["daily"]["rpm"] == 3)

    # It is deleted, and leaves the table and the archive with what is in them.
    deletion = said(name, "delete", "--yes")
    assert {one["name"] for one in deletion["kept"]} == {name, archive}
    left = inventory(name)
    assert (left.pop("tables"), left.pop("buckets")) == ({""}, {archive})
    assert set().union(*left.values()) == set()
    assert archived(archive) == [kept]
    with SyncRateLimiter.open(stack=name, **place()) as limiter:
        assert used(limiter)["daily"]["rpm"] == 3


def listed() -> Any:
    where = ["--region", emulator.REGION, "--endpoint-url", emulator.endpoint(), "--output", "json"]
    return json.loads(CliRunner().invoke(program, ["list", *where]).stdout)
