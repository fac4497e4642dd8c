"""Opening by URL: options, sessions, credentials, and drivers that never retry on their own."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import botocore.session
import pytest
from botocore.config import Config

from tests.dynamodb.peer import Peer
from tests.dynamodb.scripted import Script
from tests.dynamodb.tables import driver, make_table, opened, session
from tests.engines import dynamodb_local
from tests.stores import drive
from zae_limiter import Repository
from zae_limiter.backends import open_backend as open_any
from zae_limiter.backends.dynamodb import DynamoDBBackend, open_backend, parse_url
from zae_limiter.backends.dynamodb.aioboto import AiobotocoreTransport
from zae_limiter.backends.dynamodb.boto import Access, BotocoreTransport
from zae_limiter.backends.dynamodb.table import create_table_request
from zae_limiter.backends.dynamodb.transport import NoReply, ServiceError
from zae_limiter.exceptions import (
    IncompatibleSchemaError,
    InfrastructureNotFoundError,
    NamespaceNotFoundError,
    RateLimiterUnavailable,
    ValidationError,
)
from zae_limiter.repository_protocol import Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

BOTH = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
STATES = ("CREATING", "ACTIVE")
TRANSPORTS = pytest.mark.parametrize("transport", ["lean", "boto"])


@pytest.mark.parametrize(
    ("url", "table", "options"),
    [
        ("dynamodb://limits", "limits", {}),
        ("dynamodb://My_Table.1-x/", "My_Table.1-x", {}),
        (
            "dynamodb://limits?region=eu-west-1&endpoint_url=http://localhost:8000&timeout_ms=250&pool=8",
            "limits",
            {"region": "eu-west-1", "endpoint_url": "http://localhost:8000", "timeout_ms": 250, "pool": 8},
        ),
        ("dynamodb://limits?transport=boto", "limits", {"transport": "boto"}),
        ("dynamodb://limits?endpoint_url=http%3A%2F%2Fh%3A1", "limits", {"endpoint_url": "http://h:1"}),
    ],
)
def test_a_url_is_understood(url: str, table: str, options: dict[str, Any]) -> None:
    """The table keeps its case; options may be percent-encoded."""
    assert parse_url(url) == (table, options)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("dynamodb://", "3 to 255"),
        ("dynamodb://ab", "3 to 255"),
        ("dynamodb://user:secret@limits", "3 to 255"),
        ("dynamodb://limits/extra", "use dynamodb://TABLE"),
        ("dynamodb://limits#x", "use dynamodb://TABLE"),
        ("dynamodb://limits?regoin=x", "unknown option regoin"),
        ("dynamodb://limits?region=a&region=b", "given twice"),
        ("dynamodb://limits?region=", "give it a value"),
        ("dynamodb://limits?timeout_ms=soon", "whole number"),
        ("dynamodb://limits?timeout_ms=0", "at least 1"),
        ("dynamodb://limits?timeout_ms=-5", "whole number"),
        ("dynamodb://limits?pool=100000", "at most 1000"),
        ("dynamodb://limits?transport=http", "choose one of lean, boto"),
    ],
)
def test_a_bad_url_is_refused(url: str, said: str) -> None:
    """Nothing is guessed and nothing is ignored."""
    with pytest.raises(ValidationError, match=said):
        parse_url(url)


@BOTH
def test_the_store_opens_by_url(sync: bool) -> None:
    """Through the one entrance that all stores share."""

    async def scenario() -> None:
        url = dynamodb_local.url(make_table())
        backend = open_any(url, sync=sync, world=World())
        assert isinstance(backend, DynamoDBBackend)
        assert backend.capabilities.hot_partitions
        await backend.setup()
        assert await backend.batch_get([Key("a", "b")]) == [None]
        await backend.close()

    drive(sync, scenario())


@pytest.mark.parametrize(
    ("sync", "driver", "transport"),
    [
        (True, "botocore", "lean"),
        (False, "botocore", "lean"),
        (True, "botocore", "boto"),
        (False, "aiobotocore", "boto"),
    ],
)
def test_a_missing_driver_is_named_with_its_remedy(sync: bool, driver: str, transport: str) -> None:
    """The base install has no driver. A process of its own finds that out: modules do not load twice."""
    program = (
        f"import sys; sys.modules[{driver!r}] = None; "
        "from zae_limiter.backends import open_backend; from zae_limiter.runtime.world import World; "
        f"url = 'dynamodb://limits?region=eu-west-1&transport={transport}'; "
        f"open_backend(url, sync={sync}, world=World())"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "InfrastructureError" in answer.stderr
    assert "install this package with its extra: dynamodb" in answer.stderr


async def client_of(sync: bool, access: Access) -> Any:
    """The driver's client, as the transport has set it up."""
    if sync:
        return BotocoreTransport(access)._client.get()
    transport = AiobotocoreTransport(access)
    client = await transport._connect()
    await transport.close()
    return client


@BOTH
@pytest.mark.parametrize("mode", ["legacy", "standard", "adaptive"])
def test_no_wish_brings_hidden_retries_back(sync: bool, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's ``Config`` and environment are honoured, except for retries and timeouts."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "7")
    monkeypatch.setenv("AWS_RETRY_MODE", mode)
    wish = Config(
        retries={"max_attempts": 9, "mode": mode},  # type: ignore[typeddict-item]
        read_timeout=60,
        max_pool_connections=3,
        user_agent_extra="mine",
    )

    async def scenario() -> None:
        config = (await client_of(sync, Access("eu-west-1", timeout_ms=250, config=wish))).meta.config
        assert config.retries["total_max_attempts"] == 1
        assert config.retries["mode"] == "standard"
        assert config.read_timeout == 0.25
        assert config.connect_timeout < 0.125
        assert config.max_pool_connections == 3
        assert config.user_agent_extra == "mine"
        assert config.tcp_keepalive

    drive(sync, scenario())


@BOTH
def test_the_pool_is_sized_for_concurrency(sync: bool) -> None:
    """botocore's ten connections would make fifty tasks wait for seconds."""

    async def scenario() -> None:
        assert (await client_of(sync, Access("eu-west-1"))).meta.config.max_pool_connections == 64
        assert (await client_of(sync, Access("eu-west-1", pool=5))).meta.config.max_pool_connections == 5

    drive(sync, scenario())


class Boto3Session:
    """The shell that boto3 puts around a botocore session."""

    def __init__(self, session: Any) -> None:
        self._session = session


@BOTH
@pytest.mark.parametrize("shell", [lambda session: session, Boto3Session], ids=["botocore", "boto3"])
def test_a_session_may_be_given(sync: bool, shell: Any) -> None:
    """Its credentials and its region are used, in both colours."""
    session = botocore.session.Session()
    session.set_credentials("theirs", "secret", "token")
    session.set_config_variable("region", "ap-southeast-2")

    async def scenario() -> None:
        client = await client_of(sync, Access(session=shell(session)))
        assert client.meta.region_name == "ap-southeast-2"
        credentials = client._request_signer._credentials.get_frozen_credentials()
        if not sync:
            credentials = await credentials
        assert (credentials.access_key, credentials.token) == ("theirs", "token")

    drive(sync, scenario())


@BOTH
@pytest.mark.parametrize("shell", [lambda session: session, Boto3Session], ids=["botocore", "boto3"])
def test_a_session_signs_our_own_requests(sync: bool, shell: Any) -> None:
    """Its credentials and its region, as with the driver."""
    session = botocore.session.Session()
    session.set_credentials("theirs", "secret", "token")
    session.set_config_variable("region", "ap-southeast-2")

    async def scenario() -> None:
        with Peer().running() as peer:
            backend = open_backend(
                f"dynamodb://limits?endpoint_url={peer.url}", sync=sync, session=shell(session)
            )
            await backend.calls.send("UpdateItem", {})
            await backend.close()
            (asked,) = peer.asked
            assert asked.access_key == "theirs"
            assert "/ap-southeast-2/dynamodb/aws4_request" in asked.fields["authorization"]
            assert asked.fields["x-amz-security-token"] == "token"

    drive(sync, scenario())


@BOTH
@TRANSPORTS
def test_missing_credentials_are_named_with_the_way_out(
    sync: bool, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent, and nothing is repeated until the deadline."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    async def scenario() -> None:
        backend = open_backend(dynamodb_local.url("limits", transport=transport), sync=sync)
        with pytest.raises(RateLimiterUnavailable, match="AWS_ACCESS_KEY_ID") as raised:
            await backend.setup()
        assert not raised.value.ambiguous
        await backend.close()

    drive(sync, scenario())


@BOTH
@TRANSPORTS
def test_a_missing_region_is_named_with_the_way_out(sync: bool, transport: str) -> None:
    """There is no default region: a table of the same name elsewhere would be another table."""

    async def scenario() -> None:
        backend = open_backend(f"dynamodb://limits?transport={transport}", sync=sync)
        with pytest.raises(RateLimiterUnavailable, match="region=… to the store's URL"):
            await backend.setup()
        await backend.close()

    drive(sync, scenario())


@BOTH
@TRANSPORTS
def test_an_unknown_profile_is_named(sync: bool, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake is in the environment, and the message says so."""
    monkeypatch.setenv("AWS_PROFILE", "nobody")

    async def scenario() -> None:
        backend = open_backend(f"dynamodb://limits?region=eu-west-1&transport={transport}", sync=sync)
        with pytest.raises(RateLimiterUnavailable, match="nobody"):
            await backend.setup()
        await backend.close()

    drive(sync, scenario())


def test_a_repository_takes_a_session_and_a_config() -> None:
    """They reach the client of the table; a store that has no such client says so."""

    async def scenario() -> None:
        url = dynamodb_local.url(make_table(), timeout_ms=10_000)
        agent = Config(user_agent_extra="gateway/7")
        async with await Repository.open(store=url, session=session(False), config=agent) as repository:
            assert (await repository.register_namespace("tenant")).namespace_name == "tenant"
        with pytest.raises(ValidationError, match="session can only be given for dynamodb"):
            await Repository.open(store="memory://", session=session(False))

    asyncio.run(scenario())


def keyed_by(*names: str) -> str:
    """Somebody else's table, which has such a key and no index."""
    table = dynamodb_local.fresh_table()
    driver().create_table(
        TableName=table,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[
            {"AttributeName": name, "KeyType": kind}
            for name, kind in zip(names, ("HASH", "RANGE"), strict=False)
        ],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
    )
    return table


@BOTH
@pytest.mark.parametrize("register", [True, False], ids=["open", "connect"])
@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (dynamodb_local.fresh_table, InfrastructureNotFoundError, "zae-limiter table create --name"),
        (lambda: keyed_by("PK"), IncompatibleSchemaError, "the table is not keyed by PK and SK"),
        (
            lambda: keyed_by("PK", "SK"),
            IncompatibleSchemaError,
            "index GSI1 is missing.*zae-limiter upgrade --name",
        ),
    ],
    ids=["missing", "other keys", "no indexes"],
)
def test_a_table_that_will_not_do_is_told_when_it_is_opened(
    sync: bool, register: bool, make: Callable[[], str], error: type[Exception], said: str
) -> None:
    """It is read first and only then looked at; nothing is written, and what is wrong is said as before."""
    table = make()

    async def scenario() -> None:
        async with opened(sync, table) as store:
            with pytest.raises(error, match=said):
                await Repository.over(store, register=register)

    drive(sync, scenario())
    if make is not dynamodb_local.fresh_table:
        assert driver().scan(TableName=table)["Count"] == 0


def test_a_table_that_is_being_made_is_waited_for() -> None:
    """The read says that there is none, the description that there will be; then it is read again."""
    empty = {"Responses": {"table": []}, "UnprocessedKeys": {}}
    missing = ServiceError("ResourceNotFoundException", "no such table")
    making, made = ({"Table": create_table_request("table") | {"TableStatus": s}} for s in STATES)
    wire = Script(missing, making, making, made, empty)
    with pytest.raises(NamespaceNotFoundError):
        run_sync(Repository.over(wire.backend(), register=False))
    assert wire.operations == ["BatchGetItem", *["DescribeTable"] * 3, "BatchGetItem"]


def test_a_store_that_does_not_answer_is_not_looked_at() -> None:
    """A second question would only take longer to fail."""
    wire = Script(NoReply("gone", ambiguous=True), call_ms=600)
    with pytest.raises(RateLimiterUnavailable, match="BatchGetItem"):
        run_sync(Repository.over(wire.backend(), register=False))
    assert set(wire.operations) == {"BatchGetItem"}
