"""Where requests go: the same place as with botocore's own client, or through it."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from aiobotocore.session import AioSession
from botocore import UNSIGNED
from botocore.config import Config

from tests.dynamodb.peer import Peer, answer
from tests.stores import drive
from zae_limiter.backends.dynamodb import open_backend, open_transport
from zae_limiter.backends.dynamodb.boto import Access
from zae_limiter.backends.dynamodb.http.endpoint import DriverNeeded, find_target
from zae_limiter.backends.dynamodb.transport import NotConfigured

BOTH = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
ACCOUNT = "123456789012"


def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))


WISHES: dict[str, tuple[dict[str, str], str, dict[str, Any]]] = {
    "a region": ({}, "", {"region": "eu-west-1"}),
    "a region of the environment": ({"AWS_DEFAULT_REGION": "us-east-2"}, "", {}),
    "a region of a profile": ({}, "[default]\nregion = sa-east-1\n", {}),
    "a region of a Config": ({}, "", {"config": Config(region_name="ca-central-1")}),
    "another partition": ({}, "", {"region": "cn-north-1"}),
    "a government": ({}, "", {"region": "us-gov-west-1"}),
    "the local region": ({}, "", {"region": "local"}),
    "FIPS": ({"AWS_USE_FIPS_ENDPOINT": "true"}, "", {"region": "us-east-1"}),
    "FIPS by Config": ({}, "", {"region": "us-east-1", "config": Config(use_fips_endpoint=True)}),
    "dual stack": ({"AWS_USE_DUALSTACK_ENDPOINT": "true"}, "", {"region": "eu-west-1"}),
    "dual stack by profile": ({}, "[default]\nuse_dualstack_endpoint = true\n", {"region": "eu-west-1"}),
    "an endpoint": ({}, "", {"region": "eu-west-1", "endpoint_url": "http://LocalHost:8000"}),
    "an endpoint of the environment": (
        {"AWS_ENDPOINT_URL": "https://all.example.com:444"},
        "",
        {"region": "eu-west-1"},
    ),
    "an endpoint of the service": (
        {
            "AWS_ENDPOINT_URL": "https://all.example.com",
            "AWS_ENDPOINT_URL_DYNAMODB": "http://ddb.example.com",
        },
        "",
        {"region": "eu-west-1"},
    ),
    "an endpoint of a profile": (
        {},
        "[default]\nservices = mine\n[services mine]\ndynamodb =\n  endpoint_url = http://[::1]:8000\n",
        {"region": "eu-west-1"},
    ),
    "no configured endpoint": (
        {"AWS_ENDPOINT_URL": "https://all.example.com"},
        "",
        {"region": "eu-west-1", "config": Config(ignore_configured_endpoint_urls=True)},
    ),
    "no configured endpoint by environment": (
        {"AWS_ENDPOINT_URL": "https://all.example.com", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
        "",
        {"region": "eu-west-1"},
    ),
    "an account": ({"AWS_ACCOUNT_ID": ACCOUNT}, "", {"region": "eu-west-1"}),
    "an account that is not wanted": (
        {"AWS_ACCOUNT_ID": ACCOUNT, "AWS_ACCOUNT_ID_ENDPOINT_MODE": "disabled"},
        "",
        {"region": "eu-west-1"},
    ),
}


@pytest.mark.parametrize(("environment", "profile", "access"), WISHES.values(), ids=WISHES)
def test_requests_go_where_botocore_would_send_them(
    environment: dict[str, str],
    profile: str,
    access: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """botocore's own client is asked for the URL, the host and the region of its next request."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    configured(tmp_path, monkeypatch, profile)
    ours = Access(**access)
    session = botocore.session.Session()
    account_id = session.get_credentials().get_frozen_credentials().account_id
    target = find_target(ours, session, account_id)

    seen: list[Any] = []

    def stop(request: Any, **_: Any) -> Any:
        seen.append(request)
        raise InterruptedError

    client = botocore.session.Session().create_client(
        "dynamodb",
        region_name=ours.region,
        endpoint_url=ours.endpoint_url,
        config=ours.client_config(Config()),
    )
    client.meta.events.register("before-send.dynamodb", stop)
    with pytest.raises(InterruptedError):
        client.list_tables()
    (request,) = seen
    scheme = "http" if target.tls is None else "https"
    assert f"{scheme}://{target.authority}/".lower() == request.url.lower()
    scope = request.headers["Authorization"].decode().partition("Credential=")[2].split("/")
    assert target.region == scope[2]


def test_missing_and_wrong_places_are_named() -> None:
    """What cannot be repaired by asking botocore is an error at once."""
    session = botocore.session.Session()
    with pytest.raises(Exception, match="region"):
        find_target(Access(), session, None)
    with pytest.raises(Exception, match="eu_west_1!"):
        find_target(Access("eu_west_1!"), session, None)
    with pytest.raises(NotConfigured, match="invalid endpoint 'localhost:8000': use a URL such as"):
        find_target(Access("eu-west-1", "localhost:8000"), session, None)


OBSTACLES: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "a proxy": ({"HTTPS_PROXY": "http://proxy:3128"}, {}, "there is a proxy for https"),
    "a proxy by Config": ({}, {"config": Config(proxies={"https": "http://proxy:3128"})}, "a proxy"),
    "a path": ({}, {"endpoint_url": "http://localhost:8000/stage"}, "more than a host and a port"),
    "a name and password": ({}, {"endpoint_url": "http://me:secret@localhost"}, "'localhost' is more than"),
    "no signature": ({}, {"config": Config(signature_version=UNSIGNED)}, "signature version"),
    "another signature": ({}, {"config": Config(signature_version="v4a")}, "signature version 'v4a'"),
    "several regions": ({}, {"config": Config(sigv4a_signing_region_set="*")}, "several regions"),
    "a pseudo region": ({}, {"region": "fips-us-east-1"}, "stands for something else"),
}


@pytest.mark.parametrize(("environment", "access", "said"), OBSTACLES.values(), ids=OBSTACLES)
def test_what_only_botocore_does_is_left_to_it(
    environment: dict[str, str], access: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The obstacle is named, without what is secret about it."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DriverNeeded, match=said) as raised:
        find_target(Access(**{"region": "eu-west-1"} | access), botocore.session.Session(), None)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("environment", "access"),
    [
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "amazonaws.com"}, {}),
        ({"HTTP_PROXY": "http://proxy:3128"}, {}),
        ({"HTTPS_PROXY": "http://proxy:3128"}, {"config": Config(proxies={})}),
        ({}, {"config": Config(signature_version="v4")}),
    ],
)
def test_what_does_not_concern_us_is_no_obstacle(
    environment: dict[str, str], access: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy for others, or a wish that is fulfilled anyway."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    target = find_target(Access("eu-west-1", **access), botocore.session.Session(), None)
    assert target.host == "dynamodb.eu-west-1.amazonaws.com"


@pytest.mark.parametrize("event", ["before-sign", "before-sign.dynamodb.UpdateItem", "before-send.dynamodb"])
def test_a_handler_of_the_session_is_an_obstacle(event: str) -> None:
    """It wants to be called with botocore's requests; one for another service does not."""
    session = botocore.session.Session()
    session.register("before-send.s3", lambda **_: None)
    session.register("creating-client-class.dynamodb", lambda **_: None)
    find_target(Access("eu-west-1"), session, None)
    session.register(event, lambda **_: None)
    with pytest.raises(DriverNeeded, match="the session has a handler for before-s"):
        find_target(Access("eu-west-1"), session, None)


def test_a_config_is_honoured() -> None:
    """Its pool, its keep-alive and its name for this program; the session's own as well."""
    session = botocore.session.Session()
    target = find_target(Access("eu-west-1", pool=7), session, None)
    assert (target.pool, target.keep_alive) == (7, True)
    assert target.user_agent.startswith("Botocore/")
    wish = Config(
        max_pool_connections=3,
        tcp_keepalive=False,
        user_agent_extra="gateway/7\r\nx: y",
        user_agent_appid="app",
    )
    target = find_target(Access("eu-west-1", config=wish), session, None)
    assert (target.pool, target.keep_alive) == (3, False)
    assert target.user_agent.endswith("app/app gateway/7--x: y")
    assert (
        find_target(Access("eu-west-1", config=Config(user_agent="mine")), session, None).user_agent == "mine"
    )


@BOTH
def test_settings_that_are_not_understood_are_left_to_the_driver(
    sync: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A botocore of another age may have moved its furniture."""
    caplog.set_level(logging.DEBUG, "zae_limiter")
    monkeypatch.setattr("zae_limiter.backends.dynamodb.http.endpoint.ConfiguredEndpointProvider", None)
    monkeypatch.setattr("zae_limiter.backends.dynamodb.http.endpoint.EndpointProvider", None)
    with Peer().running() as peer:
        peer.otherwise = [answer({"Responses": {"table": []}})]
        monkeypatch.setenv("AWS_ENDPOINT_URL", peer.url)

        async def scenario() -> None:
            backend = open_backend("dynamodb://table?region=eu-west-1&timeout_ms=20000", sync=sync)
            await backend.ping()
            await backend.close()

        drive(sync, scenario())
        assert len(peer.asked) == 1
        assert any("botocore are not understood" in record.message for record in caplog.records)


@BOTH
def test_the_driver_takes_over_where_it_is_needed(
    sync: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy is one that speaks for itself; the reason is in the log."""
    caplog.set_level(logging.DEBUG, "zae_limiter")
    with Peer().running() as peer:
        peer.otherwise = [answer({"Responses": {"table": []}})]
        monkeypatch.setenv("HTTP_PROXY", peer.url)
        monkeypatch.setenv("http_proxy", peer.url)

        async def scenario() -> None:
            session = botocore.session.Session() if sync else AioSession()
            url = "dynamodb://table?region=eu-west-1&endpoint_url=http://ddb.invalid:8000&timeout_ms=20000"
            backend = open_backend(url, sync=sync, session=session)
            await backend.ping()
            await backend.ping()
            await backend.close()

        drive(sync, scenario())
        assert [asked.fields["host"] for asked in peer.asked] == ["ddb.invalid:8000"] * 2
        assert [record.message for record in caplog.records].count(
            "requests go through botocore: there is a proxy for http"
        ) == 1


def test_no_driver_is_loaded_without_need() -> None:
    """aiobotocore and its HTTP client take longer to load than a cold acquire needs."""
    with Peer().running() as peer:
        program = (
            "import asyncio, sys\n"
            "from zae_limiter.backends.dynamodb import open_backend\n"
            f"url = 'dynamodb://table?region=eu-west-1&endpoint_url={peer.url}'\n"
            "backend = open_backend(url, sync=False)\n"
            "async def run():\n"
            "    await backend.calls.send('UpdateItem', {})\n"
            "    await backend.close()\n"
            "asyncio.run(run())\n"
            "print(sorted({'aiobotocore', 'aiohttp', 'boto3'} & set(sys.modules)))\n"
        )

        async def run() -> tuple[bytes, bytes]:
            import sys

            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env={**os.environ}
            )
            return await process.communicate()

        printed, _ = asyncio.run(run())
        assert printed == b"[]\n"
        assert len(peer.asked) == 1


@BOTH
def test_a_retry_of_nothing_is_configured(sync: bool) -> None:
    """The transport is ready to be made without any of botocore's clients."""
    transport = open_transport(Access("eu-west-1"), sync=sync)
    assert type(transport).__name__ == "HttpTransport"
