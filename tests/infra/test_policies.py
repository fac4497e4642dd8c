"""The policies allow what the library really does, and nothing that nobody does.

The library is recorded at work on a real table. Each policy must allow every request of the uses it is
meant for, and each of its permissions must be needed by one of them. Tables say what is refused.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.aggregator.images import NOW, bucket, expired, record
from tests.dynamodb.tables import driver, make_table, open_table
from tests.engines import dynamodb_local
from tests.infra import flows
from tests.infra.chosen import KEY
from tests.infra.flows import Called, StreamClient, opened, recorded
from tests.infra.permissions import Request, is_allowed, unused
from tests.infra.rendering import MADE, STREAM_ARN, TABLE_ARN, render
from zae_limiter import SyncRepository, schema
from zae_limiter.backends.dynamodb.expressions import encode, encode_key
from zae_limiter.infra import template
from zae_limiter.repository_protocol import Item, Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.testing import ManualClock
from zae_limiter_aggregator import AggregatorSettings, handler
from zae_limiter_aggregator.streams import StreamSource, stream_of

TAG = "zae-limiter-namespace-id"
STACK = render()
POLICIES: dict[str, list[dict[str, Any]]] = {
    one["Properties"]["ManagedPolicyName"].removeprefix("demo-"): one["Properties"]["PolicyDocument"][
        "Statement"
    ]
    for one in STACK.resources.values()
    if one["Type"] == "AWS::IAM::ManagedPolicy"
}
AGGREGATOR = [
    statement
    for policy in STACK.properties("AggregatorRole")["Policies"]
    for statement in policy["PolicyDocument"]["Statement"]
]

# Which uses of the library a policy is for; "registry" is the administration of namespaces.
USES = {
    "acq": ("application",),
    "full": ("application", "administration", "reading", "registry", "making", "following"),
    "read": ("reading",),
    "ns-acq": ("application",),
    "ns-full": ("application", "administration", "reading"),
    "ns-read": ("reading",),
}

# Methods of a repository that policies for using a table are not about, each with its reason.
NOT_FOR_USERS = {
    "close": "asks for nothing",
    "create_stack": "deploying has permissions of its own",
    "create_table": "deploying has permissions of its own",
    "delete_stack": "deploying has permissions of its own",
    "delete_table": "deploying has permissions of its own",
    "get_cache_stats": "asks for nothing",
}

# What the services ask for in the name of the aggregator's role; nobody can record that here.
BY_AWS = [
    Request("dynamodb:ListStreams", "*"),
    Request("dynamodb:DescribeStream", STREAM_ARN),
    Request("dynamodb:GetShardIterator", STREAM_ARN),
    Request("dynamodb:GetRecords", STREAM_ARN),
    Request("sqs:SendMessage", MADE["AggregatorQueue.Arn"]),
    Request("logs:CreateLogStream", MADE["AggregatorLogGroup.Arn"]),
    Request("logs:PutLogEvents", MADE["AggregatorLogGroup.Arn"]),
]


class Uses:
    """The requests of each use, the id of the namespace in which it happened, and the methods called."""

    def __init__(self) -> None:
        self.requests: dict[str, list[Request]] = {}
        self.called: set[str] = set()
        self.namespace_id = ""


@pytest.fixture(scope="module")
def uses() -> Uses:
    """Every use once, on one table; each by a process of its own, so that nothing is known before."""
    found, table, clock = Uses(), make_table(with_stream=True), ManualClock()
    with opened(table, clock) as (repository, requests):
        found.namespace_id = repository.namespace_id
    found.requests["making"] = list(requests)
    for name in ("administration", "application", "reading", "registry"):
        with opened(table, clock) as (repository, requests):
            called = Called(repository, found.called)
            getattr(flows, name)(*(called, clock) if name == "application" else (called,))
        found.requests[name] = list(requests)
    found.requests["following"] = looked = following(table, clock)
    # Opening looks at the table as well, where its first read does not tell that it is one of ours.
    found.requests = {use: [*asked, looked[0]] for use, asked in found.requests.items()}
    return found


def following(table: str, clock: ManualClock) -> list[Request]:
    """The requests of the aggregator as a program."""
    backend = open_table(True, table, clock.world)
    requests = recorded(backend)
    run_sync(backend.setup())
    client, arn = stream_of(dynamodb_local.url(table))
    source = StreamSource(
        backend, StreamClient(client, requests), arn, World(clock.world.now_ms), AggregatorSettings()
    )
    while (tally := run_sync(source.step())).records:
        assert tally.failed == {}
    run_sync(source.close())
    run_sync(backend.close())
    return requests


@pytest.fixture
def aggregator(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Request]]:
    """The requests of a function that counts, refills, splits, merges and archives."""
    table = make_table(with_stream=True)
    for name, value in {
        "TABLE_NAME": table,
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL_DYNAMODB": dynamodb_local.endpoint(),
        "ENABLE_ARCHIVAL": "true",
        "ARCHIVE_BUCKET_NAME": MADE["ArchiveBucket"],
    }.items():
        monkeypatch.setenv(name, value)
    handler.service.cache_clear()
    service = handler.service()
    requests = recorded(service.backend)
    service.archive._client = SimpleNamespace(  # type: ignore[union-attr]
        put_object=lambda Bucket, Key, **_: requests.append(
            Request("s3:PutObject", f"arn:aws:s3:::{Bucket}/{Key}")
        )
    )
    hot, thirsty = (schema.bucket_key("ns", entity_id, "gpt-4") for entity_id in ("hot", "thirsty"))
    event = schema.audit_key("ns", "user", "01J")
    used = bucket({"tpm": 90}, 900)
    store(table, hot, used)
    cool = bucket({"tpm": 1}, 2, shard_count=2, b_tpm_sc=2, sampled=f"{NOW}:0")
    for shard_id in (0, 1):
        store(table, schema.bucket_key("ns", "cool", "gpt-4", shard_id), cool)
    answer = handler.handler(
        {
            "Records": [
                *(record(hot, bucket({"tpm": 0}, 1), used, sequence) for sequence in range(10, 810)),
                record(thirsty, bucket({"tpm": 0}, 1), bucket({"tpm": 90}, 2), 2),
                expired(record(event, {"event_id": "01J"}, None, 3)),
                record(schema.bucket_key("ns", "grown", "gpt-4"), used, {**used, "shard_count": 2}, 4),
                record(schema.bucket_key("ns", "cool", "gpt-4"), cool, cool, 5),
            ]
        }
    )
    assert (answer["batchItemFailures"], answer["refills_written"]) == ([], 0)
    yield requests
    run_sync(service.backend.close())
    handler.service.cache_clear()


def store(table: str, key: Key, image: Item) -> None:
    driver().put_item(TableName=table, Item=encode_key(key) | {at: encode(it) for at, it in image.items()})


def tagged(request: Request, namespace_id: str) -> Request:
    return request._replace(tags=((TAG, namespace_id),))


@pytest.mark.parametrize(("policy", "use"), [(policy, use) for policy, many in USES.items() for use in many])
def test_a_policy_allows_what_it_is_for(policy: str, use: str, uses: Uses) -> None:
    """Every request that the library made, cold and warm."""
    requests = [tagged(request, uses.namespace_id) for request in uses.requests[use]]
    assert requests
    assert [one for one in requests if not is_allowed(POLICIES[policy], one)] == []


@pytest.mark.parametrize("policy", USES)
def test_a_policy_allows_nothing_that_nobody_needs(policy: str, uses: Uses) -> None:
    """Each action, each resource and each pattern of keys was needed by some request."""
    requests = [tagged(one, uses.namespace_id) for use in USES[policy] for one in uses.requests[use]]
    assert unused(POLICIES[policy], requests) == []


def test_the_aggregator_may_do_its_work_and_nothing_else(aggregator: list[Request]) -> None:
    """Count, refill, split, merge, archive; and what the services do in its name."""
    requests = [*aggregator, *BY_AWS]
    assert {"dynamodb:PutItem", "dynamodb:DeleteItem", "s3:PutObject"} <= {one.action for one in requests}
    assert [one for one in requests if not is_allowed(AGGREGATOR, one)] == []
    assert unused(AGGREGATOR, requests) == []


def encrypted() -> dict[str, list[dict[str, Any]]]:
    """The policies of a stack with a key of its own, and those of its aggregator."""
    stack = render(KmsKeyArn=KEY)
    found = {
        one["Properties"]["ManagedPolicyName"].removeprefix("demo-"): one["Properties"]["PolicyDocument"]
        for one in stack.resources.values()
        if one["Type"] == "AWS::IAM::ManagedPolicy"
    }
    inline = [policy["PolicyDocument"] for policy in stack.properties("AggregatorRole")["Policies"]]
    return {
        **{name: document["Statement"] for name, document in found.items()},
        "aggr": [statement for document in inline for statement in document["Statement"]],
    }


@pytest.mark.parametrize("policy", [*USES, "aggr"])
def test_a_key_of_ones_own_is_used_through_the_services_alone(policy: str) -> None:
    """DynamoDB decrypts for everybody who may read or write; the aggregator also fills archive and queue."""
    services = {"aggr": ("dynamodb", "s3", "sqs")}.get(policy, ("dynamodb",))
    actions = {"aggr": ("kms:Decrypt", "kms:GenerateDataKey")}.get(policy, ("kms:Decrypt",))
    statements, other = encrypted()[policy], KEY.replace("1234abcd", "other")
    (added,) = [
        one for one in statements if one not in (AGGREGATOR if policy == "aggr" else POLICIES[policy])
    ]
    needed = [
        Request(action, KEY, via=f"{service}.eu-west-1.amazonaws.com")
        for action in actions
        for service in services
    ]
    assert all(is_allowed(statements, one) for one in needed)
    assert unused([added], needed) == []
    for request in needed:
        for wrong in (
            request._replace(via=""),
            request._replace(via="ec2.eu-west-1.amazonaws.com"),
            request._replace(resource=other),
            request._replace(action="kms:CreateGrant"),
        ):
            assert not is_allowed(statements, wrong), wrong


def test_every_method_of_a_repository_was_recorded(uses: Uses) -> None:
    """A method that is added has to be added to a use as well, or to the table of exceptions."""
    public = {name for name, value in vars(SyncRepository).items() if name[0] != "_" and callable(value)}
    static = {n for n in public if inspect.ismethod(getattr(SyncRepository, n))}
    assert sorted(public - static - uses.called - NOT_FOR_USERS.keys()) == []


def test_a_tenant_cannot_administer_namespaces(uses: Uses) -> None:
    """They may look up a name, and use their own rows; everything else that it takes is refused."""
    mine, denied = f"{uses.namespace_id}/", 0
    for request in uses.requests["registry"]:
        looked_up = {"_/SYSTEM#"} if request.action == "dynamodb:BatchGetItem" else set()
        is_theirs = all(key.startswith(mine) or key in looked_up for key in request.leading_keys)
        for policy in ("ns-acq", "ns-full", "ns-read"):
            allowed = is_allowed(POLICIES[policy], tagged(request, uses.namespace_id))
            assert is_theirs or not allowed, (policy, request)
            denied += not is_theirs
    assert denied


# One request a line: the policy, the action, where, the caller's tag, the partition keys, the verdict.
TABLE = """
acq      BatchGetItem        table  -    a/BUCKET#u#gpt-4#0                        yes
acq      BatchGetItem        table  -    a/BUCKET#u#a/b:c#31                       yes
acq      BatchGetItem        table  -    a/SYSTEM# a/RESOURCE#r a/ENTITY#u _/SYSTEM#  yes
acq      BatchGetItem        table  -    a/AUDIT#u                                 no
acq      BatchGetItem        table  -    a/BUCKET#u#r#0 a/AUDIT#u                  no
acq      BatchGetItem        table  -    a/AUDIT#$RESOURCE:x/BUCKET                no
acq      BatchGetItem        table  -                                              no
acq      PutItem             table  -    a/BUCKET#u#r#0                            yes
acq      UpdateItem          table  -    a/BUCKET#u#r#7                            yes
acq      UpdateItem          table  -    a/BUCKET#u#r#0 a/BUCKET#p#r#0             yes
acq      UpdateItem          table  -    a/ENTITY#u                                no
acq      UpdateItem          table  -    a/SYSTEM#                                 no
acq      UpdateItem          table  -    a/RESOURCE#r                              no
acq      UpdateItem          table  -    a/RESOURCE#x/BUCKET                       no
acq      UpdateItem          table  -    a/BUCKET#u#r#0 a/ENTITY#u                 no
acq      UpdateItem          table  -                                              no
acq      PutItem             table  -    a/AUDIT#u                                 no
acq      PutItem             table  -    _/SYSTEM#                                 no
acq      PutItem             table  -    a/ENTITY#u                                no
acq      DeleteItem          table  -    a/BUCKET#u#r#0                            no
acq      ConditionCheckItem  table  -    a/BUCKET#u#r#0                            no
acq      Query               table  -    a/BUCKET#u#r#0                            no
acq      Query               GSI2   -    a/RESOURCE#r                              no
acq      Scan                table  -                                              no
acq      DescribeTable       table  -                                              yes
acq      DescribeTable       other  -                                              no
acq      BatchGetItem        other  -    a/BUCKET#u#r#0                            no
acq      UpdateItem          other  -    a/BUCKET#u#r#0                            no
acq      DeleteTable         table  -                                              no
acq      GetRecords          stream -                                              no

full     PutItem             table  -    _/SYSTEM#                                 yes
full     DeleteItem          table  -    a/AUDIT#u                                 yes
full     Decrypt             key    -                                              no
full     ConditionCheckItem  table  -    a/ENTITY#u                                yes
full     Query               table  -    a/AUDIT#u                                 yes
full     Query               GSI4   -    a                                         yes
full     GetRecords          stream -                                              yes
full     GetRecords          other  -                                              no
full     PutItem             other  -    a/ENTITY#u                                no
full     Scan                table  -                                              no
full     Scan                GSI1   -                                              no
full     UpdateTable         table  -                                              no
full     DeleteTable         table  -                                              no
full     CreateBackup        table  -                                              no
full     PutItem             GSI1   -    a/ENTITY#u                                no

read     BatchGetItem        table  -    a/AUDIT#u                                 yes
read     Query               table  -    _/SYSTEM#                                 yes
read     Query               GSI3   -    a/ENTITIES                                yes
read     DescribeTable       table  -                                              yes
read     Scan                table  -                                              no
read     UpdateItem          table  -    a/BUCKET#u#r#0                            no
read     PutItem             table  -    a/BUCKET#u#r#0                            no
read     DeleteItem          table  -    a/ENTITY#u                                no
read     ConditionCheckItem  table  -    a/ENTITY#u                                no
read     GetRecords          stream -                                              no

ns-acq   BatchGetItem        table  a    a/BUCKET#u#r#0                            yes
ns-acq   BatchGetItem        table  a    _/SYSTEM# a/SYSTEM#                       yes
ns-acq   BatchGetItem        table  a    a/AUDIT#u                                 no
ns-acq   BatchGetItem        table  a    ab/BUCKET#u#r#0                           no
ns-acq   BatchGetItem        table  ab   a/BUCKET#u#r#0                            no
ns-acq   BatchGetItem        table  a    a/BUCKET#u#r#0 b/BUCKET#u#r#0             no
ns-acq   BatchGetItem        table  -    a/BUCKET#u#r#0                            no
ns-acq   BatchGetItem        table  -    _/SYSTEM#                                 no
ns-acq   BatchGetItem        table  a    _/PING                                    no
ns-acq   Query               table  a    _/SYSTEM#                                 no
ns-acq   Query               table  a    a/BUCKET#u#r#0                            no
ns-acq   UpdateItem          table  a    a/BUCKET#u#r#0                            yes
ns-acq   PutItem             table  a    a/BUCKET#u#r#1                            yes
ns-acq   UpdateItem          table  a    b/BUCKET#u#r#0                            no
ns-acq   UpdateItem          table  a    ab/BUCKET#u#r#0                           no
ns-acq   UpdateItem          table  a    b/RESOURCE#a/BUCKET#                      no
ns-acq   UpdateItem          table  a    a/ENTITY#u                                no
ns-acq   UpdateItem          table  -    a/BUCKET#u#r#0                            no
ns-acq   UpdateItem          table  *    a/BUCKET#u#r#0                            no
ns-acq   UpdateItem          table  _    _/BUCKET#u#r#0                            no
ns-acq   UpdateItem          table  a                                              no
ns-acq   DeleteItem          table  a    a/BUCKET#u#r#0                            no
ns-acq   Scan                table  a                                              no

ns-full  BatchGetItem        table  a    a/AUDIT#u a/ENTITY#u _/SYSTEM#            yes
ns-full  BatchGetItem        table  a    b/ENTITY#u                                no
ns-full  BatchGetItem        table  a    a/ENTITY#u b/ENTITY#u                     no
ns-full  PutItem             table  a    a/ENTITY#u                                yes
ns-full  PutItem             table  a    a/AUDIT#u                                 yes
ns-full  PutItem             table  a    a/ENTITY#u a/AUDIT#u                      no
ns-full  UpdateItem          table  a    a/AUDIT#u                                 no
ns-full  UpdateItem          table  a    a/AUDIT#$SYSTEM                           no
ns-full  UpdateItem          table  a    a/AUDIT#$RESOURCE:x/ENTITY#y              no
ns-full  UpdateItem          table  a    a/ENTITY#u a/AUDIT#u                      no
ns-full  DeleteItem          table  a    a/AUDIT#u                                 no
ns-full  DeleteItem          table  a    a/AUDIT#$RESOURCE:x                       no
ns-full  ConditionCheckItem  table  a    a/AUDIT#u                                 no
ns-full  BatchWriteItem      table  a    a/AUDIT#u                                 no
ns-full  BatchWriteItem      table  a    a/ENTITY#u                                no
ns-full  PartiQLUpdate       table  a    a/AUDIT#u                                 no
ns-full  PartiQLDelete       table  a    a/AUDIT#u                                 no
ns-full  PutItem             table  a    b/AUDIT#u                                 no
ns-full  PutItem             table  -    a/AUDIT#u                                 no
ns-full  PutItem             table  _    _/AUDIT#u                                 no
ns-full  UpdateItem          table  a    a/SYSTEM#                                 yes
ns-full  UpdateItem          table  a    a/RESOURCE#r                              yes
ns-full  DeleteItem          table  a    a/BUCKET#u#r#0                            yes
ns-full  PutItem             table  a    a/OTHER#u                                 no
ns-full  PutItem             table  a    ab/ENTITY#u                               no
ns-full  PutItem             table  a    _/SYSTEM#                                 no
ns-full  UpdateItem          table  a    _/SYSTEM#                                 no
ns-full  DeleteItem          table  a    _/SYSTEM#                                 no
ns-full  ConditionCheckItem  table  a    _/SYSTEM#                                 no
ns-full  PutItem             table  _    _/SYSTEM#                                 no
ns-full  DeleteItem          table  a    a/ENTITY#u                                yes
ns-full  DeleteItem          table  a    b/ENTITY#u                                no
ns-full  ConditionCheckItem  table  a    a/ENTITY#u                                yes
ns-full  ConditionCheckItem  table  a    b/ENTITY#u                                no
ns-full  Query               table  a    a/AUDIT#u                                 yes
ns-full  Query               table  a    b/AUDIT#u                                 no
ns-full  Query               table  a    _/SYSTEM#                                 no
ns-full  Query               table  _    _/SYSTEM#                                 no
ns-full  Query               GSI2   a    a/RESOURCE#r                              yes
ns-full  Query               GSI2   a    b/RESOURCE#r                              no
ns-full  Query               GSI4   a    a                                         yes
ns-full  Query               GSI4   a    ab                                        no
ns-full  Query               GSI4   ab   a                                         no
ns-full  Query               GSI4   a                                              no
ns-full  Query               GSI4   -    a                                         no
ns-full  Scan                table  a                                              no
ns-full  GetRecords          stream a                                              no
ns-full  PutItem             table  -    a/ENTITY#u                                no
ns-full  PutItem             other  a    a/ENTITY#u                                no

ns-read  BatchGetItem        table  a    a/AUDIT#u _/SYSTEM#                       yes
ns-read  BatchGetItem        table  a    b/AUDIT#u                                 no
ns-read  Query               GSI3   a    a/ENTITIES                                yes
ns-read  Query               GSI3   a    ab/ENTITIES                               no
ns-read  Query               table  a    _/SYSTEM#                                 no
ns-read  UpdateItem          table  a    a/BUCKET#u#r#0                            no
ns-read  PutItem             table  a    a/BUCKET#u#r#0                            no
ns-read  DeleteItem          table  a    a/BUCKET#u#r#0                            no
ns-read  ConditionCheckItem  table  a    a/ENTITY#u                                no
ns-read  Query               table  -    a/AUDIT#u                                 no

aggr     UpdateItem          table  -    a/ENTITY#u                                yes
aggr     UpdateItem          table  -    a/SYSTEM#                                 no
aggr     UpdateItem          table  -    a/RESOURCE#r                              no
aggr     UpdateItem          table  -    a/AUDIT#u                                 no
aggr     PutItem             table  -    a/BUCKET#u#r#1                            yes
aggr     PutItem             table  -    a/ENTITY#u                                no
aggr     DeleteItem          table  -    a/BUCKET#u#r#0                            no
aggr     BatchGetItem        table  -    a/SYSTEM#                                 no
aggr     BatchGetItem        table  -    _/SYSTEM#                                 no
aggr     Query               table  -    a/ENTITY#u                                no
aggr     DescribeTable       table  -                                              no
"""
PLACES = {
    "table": TABLE_ARN,
    "stream": STREAM_ARN,
    "other": f"{TABLE_ARN}2",
    "key": KEY,
    **{index: f"{TABLE_ARN}/index/{index}" for index in schema.INDEXES},
}
ROWS = [line.split() for line in TABLE.strip().splitlines() if line]


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_what_is_allowed_and_what_is_not(row: list[str]) -> None:
    """Row by row."""
    policy, action, place, tag, *keys, verdict = row
    tags = () if tag == "-" else ((TAG, tag),)
    request = Request(f"dynamodb:{action}", PLACES[place], tuple(keys), tags)
    statements = AGGREGATOR if policy == "aggr" else POLICIES[policy]
    assert is_allowed(statements, request) == (verdict == "yes")


def test_the_table_has_rows_for_every_policy() -> None:
    """Of both kinds."""
    kinds = {(row[0], row[-1]) for row in ROWS}
    assert kinds == {(policy, verdict) for policy in (*POLICIES, "aggr") for verdict in ("yes", "no")}
    assert set(POLICIES) == set(template.POLICIES) == set(USES)


IDS = st.text("ab_-", min_size=1, max_size=3)
ACTIONS = ("BatchGetItem", "Query", "PutItem", "UpdateItem", "DeleteItem", "ConditionCheckItem", "Scan")


@given(
    policy=st.sampled_from(["ns-acq", "ns-full", "ns-read"]),
    action=st.sampled_from(ACTIONS),
    place=st.sampled_from(list(PLACES)),
    mine=IDS,
    theirs=IDS,
    make=st.sampled_from(
        [
            schema.pk_system,
            lambda ns: schema.pk_resource(ns, "a/b:c"),
            lambda ns: schema.pk_entity(ns, "u"),
            lambda ns: schema.pk_bucket(ns, "u", "a/b", 3),
            lambda ns: schema.pk_audit(ns, "$RESOURCE:a/b"),
            lambda ns: schema.gsi1_pk_parent(ns, "u"),
            lambda ns: schema.gsi3_pk_entity_config(ns, "r"),
            schema.gsi3_pk_entities,
            lambda ns: ns,
        ]
    ),
    with_own=st.booleans(),
)
def test_no_tenant_reaches_another(
    policy: str, action: str, place: str, mine: str, theirs: str, make: Any, with_own: bool
) -> None:
    """Whatever the ids, also if one begins like the other, and also beside rows of its own."""
    assume(theirs not in (mine, schema.REGISTRY))
    keys = (make(mine), make(theirs)) if with_own else (make(theirs),)
    request = Request(f"dynamodb:{action}", PLACES[place], keys, ((TAG, mine),))
    assert not is_allowed(POLICIES[policy], request)


@given(action=st.sampled_from([a for a in ACTIONS if a != "BatchGetItem"]), mine=IDS)
def test_no_tenant_lists_or_writes_the_registry(action: str, mine: str) -> None:
    """Whatever its tag says, the id of the registry included."""
    for policy in ("ns-acq", "ns-full", "ns-read"):
        for key in (schema.pk_system(schema.REGISTRY), schema.REGISTRY):
            for place in PLACES.values():
                request = Request(f"dynamodb:{action}", place, (key,), ((TAG, mine),))
                assert not is_allowed(POLICIES[policy], request)


def test_policies_fit_into_iam() -> None:
    """A managed policy has at most 6,144 characters, white space not counted."""
    for name, statements in POLICIES.items():
        assert len("".join(str(statements).split())) < 6_000, name


def test_what_the_namespace_policies_are_told_by() -> None:
    """The tag of the caller, as the guide says."""
    guide = (Path(__file__).resolve().parents[2] / "docs" / "stack.md").read_text(encoding="utf-8")
    assert f"aws:PrincipalTag/{TAG}" in template.template_text()
    assert f"`{TAG}`" in guide
