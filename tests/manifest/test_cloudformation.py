"""The template for pipelines: linted, its function alone, and a whole stack on an emulator that runs it."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import yaml
from cfnlint.api import lint
from cfnlint.config import ManualArgs

from tests.dynamodb.tables import make_table, open_table
from tests.engines import dynamodb_local, emulator
from tests.infra.flows import recorded
from tests.infra.permissions import Request, is_allowed, unused
from tests.infra.rendering import ACCOUNT, NAME, REGION, TABLE_ARN
from zae_limiter import Limit, LimiterConfig, SyncRepository, ValidationError
from zae_limiter.backends.dynamodb.table import create_table_request
from zae_limiter.infra.lambda_builder import build
from zae_limiter.operate.manifest import (
    LevelAddress,
    Manifest,
    SyncStoredLimits,
    parse,
    parse_json,
    provider,
    to_json,
)
from zae_limiter.operate.manifest.template import HANDLER, MANIFEST_BYTES_MAX, template, to_text
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

FIRST = parse("resources: {gpt-3: {limits: {rpm: {capacity: 3}}}, gpt-4: {limits: {rpm: {capacity: 4}}}}")
SECOND = parse("resources: {gpt-4: {limits: {rpm: {capacity: 5}}}}")
ODD = parse("namespace: n\nentities: {Ref: {resources: {Ref: {limits: {Ref: {capacity: 1}}}}}}")


@pytest.mark.parametrize(
    ("manifest", "as_json"),
    [(FIRST, False), (ODD, True), (Manifest({}), False)],
    ids=["plain", "odd", "empty"],
)
def test_the_template_is_sound(manifest: Manifest, as_json: bool) -> None:
    """cfn-lint finds nothing, and the manifest in it is the one that was given."""
    text = to_text(template(manifest, "my-table", "abc"), as_json=as_json)
    assert lint(text, config=ManualArgs(regions=[emulator.REGION])) == []
    data = yaml.safe_load(text)
    limits = data["Resources"]["Limits"]["Properties"]
    assert parse_json(limits["Manifest"]) == manifest
    assert limits["Namespace"] == (manifest.namespace or "default")
    assert data["Parameters"]["TableName"]["Default"] == "my-table"
    assert data["Parameters"]["NamespaceId"]["Default"] == "abc"
    assert "Default" not in template(manifest)["Parameters"]["NamespaceId"]


def test_a_manifest_that_is_too_large_is_refused() -> None:
    """A function is not told more than one event holds."""
    many = {
        LevelAddress("resource", None, f"r{n}"): LimiterConfig((Limit.per_minute("rpm", 1),))
        for n in range(2000)
    }
    with pytest.raises(ValidationError, match=f"at most {MANIFEST_BYTES_MAX}; let the pipeline run"):
        template(Manifest(many))


class Answers(list[dict[str, Any]]):
    """What the function told CloudFormation, and where it tells it."""

    url = ""
    broken = 0
    """So many answers are refused first."""


@pytest.fixture
def answers() -> Iterator[Answers]:
    received = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["Content-Type"] == ""
            received.broken -= 1
            if received.broken < 0:
                received.append(json.loads(body))
            self.send_response(200 if received.broken < 0 else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    received.url = f"http://127.0.0.1:{server.server_port}/answer"
    yield received
    server.shutdown()
    thread.join()
    server.server_close()


class Stack:
    """CloudFormation as the function sees it, on a table of DynamoDB Local."""

    def __init__(self, table: str, answers: Answers) -> None:
        self.table, self.answers = table, answers
        with self.repository() as repository:
            self.namespace_id = repository.namespace_id

    def asks(self, request: str, manifest: Manifest | str, **properties: Any) -> dict[str, Any]:
        text = manifest if isinstance(manifest, str) else to_json(manifest)
        event = {
            "RequestType": request,
            "ResponseURL": self.answers.url,
            "StackId": "stack",
            "RequestId": "request",
            "LogicalResourceId": "Limits",
            "PhysicalResourceId": f"{self.table}/default",
            "ResourceProperties": {
                "TableName": self.table,
                "Namespace": "default",
                "NamespaceId": self.namespace_id,
                "Principal": "cloudformation:s",
                "Manifest": text,
                **properties,
            },
        }
        returned = provider.handler(event)
        assert self.answers[-1] == returned
        return returned

    @contextmanager
    def repository(self, namespace: str = "default") -> Iterator[SyncRepository]:
        with SyncRepository.open(
            namespace, store=dynamodb_local.url(self.table, timeout_ms=60_000)
        ) as repository:
            yield repository


@pytest.fixture
def stack(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setenv("AWS_ENDPOINT_URL", dynamodb_local.endpoint())
    monkeypatch.setenv("AWS_REGION", emulator.REGION)
    monkeypatch.setenv("AWS_DEFAULT_REGION", emulator.REGION)
    return Stack(make_table(), answers)


def test_the_life_of_a_stack(stack: Stack) -> None:
    """Created, updated, asked twice, deleted; what others made stays."""
    made = stack.asks("Create", FIRST)
    assert made == {
        "Status": "SUCCESS",
        "Reason": "",
        "PhysicalResourceId": f"{stack.table}/default",
        "StackId": "stack",
        "RequestId": "request",
        "LogicalResourceId": "Limits",
        "Data": {"Applied": "2 created"},
    }
    assert stack.asks("Create", FIRST)["Data"] == {"Applied": "nothing"}
    with stack.repository() as repository:
        repository.set_resource_defaults("theirs", [Limit.per_minute("rpm", 1)])
        (event,) = repository.get_audit_events("$RESOURCE:gpt-4")
        assert event.principal == "cloudformation:s"
    assert stack.asks("Update", SECOND)["Data"] == {"Applied": "1 updated, 1 deleted"}
    assert stack.asks("Delete", "whatever it was")["Data"] == {"Applied": "1 deleted"}
    assert stack.asks("Delete", SECOND)["Status"] == "SUCCESS"
    with stack.repository() as repository:
        assert repository.list_resources_with_defaults() == ["theirs"]


def test_a_stack_lifts_no_switch(stack: Stack) -> None:
    """Neither an update nor the end of the stack does, if the manifest does not mention it."""
    stack.asks("Create", FIRST)
    with stack.repository() as repository:
        repository.disable(resource="gpt-4", reason="leak")
        assert stack.asks("Update", SECOND)["Status"] == "SUCCESS"
        assert stack.asks("Delete", SECOND)["Status"] == "SUCCESS"
        assert stack.asks("Delete", SECOND)["Data"] == {"Applied": "nothing"}
        config = repository.get_config("resource", "gpt-4")
        assert config is not None
        assert (config.limits, config.disabled) == ((), "leak")


def test_what_goes_wrong_is_answered(stack: Stack) -> None:
    """A stack that is not answered waits for an hour; a deletion does not fail for want of a table."""
    wrong = stack.asks("Create", '{"sytem": {}}')
    assert (wrong["Status"], "Data" in wrong) == ("FAILED", False)
    assert "ManifestError: Manifest: unknown key 'sytem'" in wrong["Reason"]
    assert "invalid namespace '_'" in stack.asks("Create", FIRST, Namespace="_")["Reason"]
    assert "the manifest is for 'n'" in stack.asks("Create", ODD)["Reason"]
    assert stack.asks("Create", FIRST, TableName="no-such-table")["Status"] == "FAILED"
    assert stack.asks("Delete", FIRST, TableName="no-such-table")["Status"] == "SUCCESS"
    assert stack.asks("Delete", FIRST, Namespace="nobody")["Data"] == {"Applied": "nothing"}
    assert len(stack.asks("Create", json.dumps({"x" * 5000: 1}))["Reason"]) <= 1000


def test_another_namespace_is_another_resource(stack: Stack) -> None:
    """Its id differs, so that CloudFormation deletes the old one."""
    with stack.repository("n") as repository:
        namespace_id = repository.namespace_id
    made = stack.asks("Create", ODD, Namespace="n", NamespaceId=namespace_id)
    assert (made["Status"], made["PhysicalResourceId"]) == ("SUCCESS", f"{stack.table}/n")
    with stack.repository("n") as repository:
        assert repository.list_resources_with_entity_configs() == ["Ref"]


def test_a_namespace_that_is_not_the_stacks_is_left_alone(stack: Stack) -> None:
    """One that is missing is not made, and one of another id is not written to; both are told."""
    missing = stack.asks("Create", ODD, Namespace="n")
    assert (missing["Status"], "namespace 'n' does not exist" in missing["Reason"]) == ("FAILED", True)
    with stack.repository("n") as repository:
        said = f"'n' has the id {repository.namespace_id!r}, and this stack may write only to"
        assert said in stack.asks("Create", ODD, Namespace="n")["Reason"]
        assert stack.asks("Delete", ODD, Namespace="n")["Data"] == {"Applied": "nothing"}
        assert repository.list_resources_with_entity_configs() == []


def test_an_answer_is_sent_again(stack: Stack) -> None:
    """Twice; after that the function fails, and Lambda repeats the whole."""
    stack.answers.broken = 2
    assert stack.asks("Create", FIRST)["Status"] == "SUCCESS"
    stack.answers.broken = 3
    with pytest.raises(OSError, match="503"):
        stack.asks("Create", FIRST)


def test_a_stack_that_is_deployed() -> None:
    """CloudFormation, Lambda and DynamoDB together: the package, the template and the events fit."""
    cloudformation, s3, dynamodb = (emulator.client(n) for n in ("cloudformation", "s3", "dynamodb"))
    table, bucket = emulator.fresh_name(), emulator.fresh_name()
    dynamodb.create_table(**create_table_request(table))
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": emulator.REGION})
    s3.put_object(Bucket=bucket, Key="limits.zip", Body=build(HANDLER))
    name = emulator.fresh_name()
    store = f"dynamodb://{table}?region={emulator.REGION}&endpoint_url={emulator.endpoint()}"
    with SyncRepository.open(store=store) as repository:
        namespace_id = repository.namespace_id
    parameters = {
        "TableName": table,
        "NamespaceId": namespace_id,
        "CodeBucket": bucket,
        "CodeKey": "limits.zip",
    }
    request = {
        "StackName": name,
        "Parameters": [{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()],
        "Capabilities": ["CAPABILITY_IAM"],
    }

    cloudformation.create_stack(TemplateBody=to_text(template(FIRST)), **request)
    cloudformation.get_waiter("stack_create_complete").wait(StackName=name, WaiterConfig={"Delay": 1})
    (deployed,) = cloudformation.describe_stacks(StackName=name)["Stacks"]
    assert deployed["Outputs"][0]["OutputValue"] == "2 created"
    with SyncRepository.open(store=store) as repository:
        assert repository.list_resources_with_defaults() == ["gpt-3", "gpt-4"]
        assert repository.get_audit_events("$RESOURCE:gpt-4")[0].principal == f"cloudformation:{name}"

    cloudformation.update_stack(TemplateBody=to_text(template(SECOND)), **request)
    cloudformation.get_waiter("stack_update_complete").wait(StackName=name, WaiterConfig={"Delay": 1})
    with SyncRepository.open(store=store) as repository:
        assert repository.get_resource_defaults("gpt-4") == [Limit.per_minute("rpm", 5)]
        assert repository.list_resources_with_defaults() == ["gpt-4"]
        repository.set_resource_defaults("theirs", [Limit.per_minute("rpm", 1)])

    cloudformation.delete_stack(StackName=name)
    cloudformation.get_waiter("stack_delete_complete").wait(StackName=name, WaiterConfig={"Delay": 1})
    with SyncRepository.open(store=store) as repository:
        assert repository.list_resources_with_defaults() == ["theirs"]


NAMES = {
    "AWS::Partition": "aws",
    "AWS::Region": REGION,
    "AWS::AccountId": ACCOUNT,
    "TableName": NAME,
    "KmsKeyArn": "arn:aws:kms:eu-west-1:123456789012:key/1",
}


def rendered(part: Any, **names: str) -> Any:
    """What CloudFormation makes of a part of the template, for a table with a key of its own."""
    if isinstance(part, list):
        return [rendered(one, **names) for one in part]
    if not isinstance(part, dict):
        return part
    match part:
        case {"Fn::Sub": text}:
            return re.sub(r"\$\{([^}]+)\}", lambda found: {**NAMES, **names}[found[1]], text)
        case {"Ref": name}:
            return NAMES[name]
        case {"Fn::If": [_, then, _]}:
            return rendered(then, **names)
        case {"Fn::GetAtt": [name, _]}:
            return f"arn:{name}"
    return {name: rendered(one, **names) for name, one in part.items()}


def allowed(namespace_id: str) -> list[dict[str, Any]]:
    role = template(FIRST)["Resources"]["ProviderRole"]["Properties"]
    statements: list[dict[str, Any]] = rendered(
        role["Policies"][0]["PolicyDocument"]["Statement"], NamespaceId=namespace_id
    )
    return statements


def test_the_function_may_do_what_it_does() -> None:
    """Its role allows what applies ask of DynamoDB, what the services ask in its name, and no more."""
    table = make_table()
    with SyncRepository.over(open_table(True, table, World())) as repository:
        namespace_id = repository.namespace_id
    backend = open_table(True, table, World())
    requests = recorded(backend)
    run_sync(backend.setup())  # as opening does where the first read does not tell that the table is ours
    with SyncRepository.over(backend, register=False) as repository:
        stored = SyncStoredLimits(repository)
        for manifest in (ODD, FIRST, SECOND):
            stored.apply(manifest)
        repository.delete_resource_defaults("gpt-4")
        stored.apply(Manifest({}))
    requests += [
        Request("logs:CreateLogStream", "arn:ProviderLogGroup"),
        Request("logs:PutLogEvents", "arn:ProviderLogGroup"),
        Request("kms:Decrypt", NAMES["KmsKeyArn"], via=f"dynamodb.{REGION}.amazonaws.com"),
    ]
    assert [one for one in requests if not is_allowed(allowed(namespace_id), one)] == []
    assert unused(allowed(namespace_id), requests) == []


@pytest.mark.parametrize("action", ["PutItem", "UpdateItem", "DeleteItem", "ConditionCheckItem"])
@pytest.mark.parametrize(
    "key", ["b/ENTITY#u", "ab/SYSTEM#", "_/SYSTEM#", "b/AUDIT#u", "b/BUCKET#u#r#0", "a/OTHER"]
)
def test_the_function_writes_to_one_namespace(action: str, key: str) -> None:
    """Not to others, nor to the registry."""
    for keys in ((key,), (key, "a/SYSTEM#")):
        assert not is_allowed(allowed("a"), Request(f"dynamodb:{action}", TABLE_ARN, keys))
    assert is_allowed(allowed("a"), Request(f"dynamodb:{action}", TABLE_ARN, ("a/ENTITY#u",)))


@pytest.mark.parametrize(
    ("action", "key", "expected"),
    [
        ("PutItem", "a/AUDIT#u", True),
        ("UpdateItem", "a/AUDIT#u", False),
        ("UpdateItem", "a/BUCKET#u#r#0", True),
        ("PutItem", "a/BUCKET#u#r#0", False),
        ("DeleteItem", "a/BUCKET#u#r#0", False),
        ("DeleteItem", "a/AUDIT#u", False),
        ("BatchGetItem", "a/AUDIT#u", True),
        ("BatchGetItem", "b/ENTITY#u", False),
        ("BatchGetItem", "_/SYSTEM#", True),
        ("Query", "_/SYSTEM#", False),
        ("Query", "b/ENTITY#u", False),
        ("Scan", "a/ENTITY#u", False),
    ],
)
def test_what_else_the_function_may_and_may_not(action: str, key: str, expected: bool) -> None:
    """It adds to the audit trail and does not change it, makes no buckets, and reads no other namespace."""
    request = Request(f"dynamodb:{action}", TABLE_ARN, (key,))
    assert is_allowed(allowed("a"), request) is expected
    assert not is_allowed(allowed("a"), request._replace(leading_keys=()))
