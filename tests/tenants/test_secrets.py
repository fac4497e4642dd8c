"""Secrets stay secret: no error, log line, output or ``repr`` of ours shows a credential.

Every flow runs against DynamoDB with credentials that can be recognised, in both colours and over both
transports; everything that was said meanwhile is searched for them.
"""

import asyncio
import logging
import ssl
import subprocess
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from click.testing import CliRunner

from tests.dynamodb.peer import Peer
from tests.dynamodb.tables import make_table
from tests.engines import dynamodb_local
from tests.engines.proxy import THROTTLE, Answer, Delay, DropReply, DropRequest, Proxy
from zae_limiter import Limit, RateLimiter, Repository, SyncRateLimiter, SyncRepository, ZAELimiterError
from zae_limiter.backends.dynamodb.transport import DENIED_CODES, UNKNOWN_CALLER_CODES
from zae_limiter.cli.app import program

KEY_ID, SECRET, TOKEN = "AKIAMARKED0KEY0ID000", "marked/secret+key/0123456789", "marked//token=="
USER, PASSWORD = "marked-user", "marked-password"
MARKS = (KEY_ID, SECRET, TOKEN, PASSWORD, quote(SECRET, safe=""), quote(TOKEN, safe=""), "AWS4-HMAC-SHA256")

ECHO = (
    "The request signature we calculated does not match the signature you provided. "
    "The Canonical String for this request should have been\n"
    f"'POST\n/\n\nhost:dynamodb\nx-amz-security-token:{TOKEN}\n' "
    f"Authorization=AWS4-HMAC-SHA256 Credential={KEY_ID}/20260101/eu-west-1/dynamodb/aws4_request, "
    "Signature=abc"
)
"""How AWS answers a signature that does not fit: with all that it was made of."""

FLOWS = ["async", "sync"]
TRANSPORTS = ["lean", "boto"]


class Said:
    """Everything that came out while something was done."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.texts: list[str] = []

    def note(self, *things: object) -> None:
        for thing in things:
            self.texts += [str(thing), repr(thing)]
            if isinstance(thing, BaseException):
                self.texts += traceback.format_exception(thing)
                self.note(*thing.args)

    @property
    def all(self) -> str:
        # Other packages log as they please.
        ours = [record for record in self._caplog.records if record.name.startswith("zae_limiter")]
        lines = [f"{record.getMessage()} {vars(record)}" for record in ours]
        return "\n".join([*self.texts, *lines])

    def check(self) -> None:
        assert self.texts, "nothing was said at all"
        for mark in MARKS:
            at = self.all.find(mark)
            assert at < 0, f"{mark!r} was told: …{self.all[max(0, at - 200) : at + 60]}…"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Said]:
    """With marked credentials in the environment; what was said is checked in the end."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    it = Said(caplog)
    yield it
    it.check()


@pytest.fixture(scope="module")
def table() -> str:
    return make_table()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(dynamodb_local.endpoint()).running() as it:
        yield it


def work(colour: str, url: str, said: Said) -> None:
    """One of everything; whatever is raised is noted."""
    try:
        if colour == "sync":
            with SyncRepository.open(store=url) as repository:
                said.note(repository, SyncRateLimiter(repository), *parts_of(repository))
                use(repository, said)
        else:
            asyncio.run(work_async(url, said))
    except ZAELimiterError as error:
        said.note(error)


def use(repository: SyncRepository, said: Said) -> None:
    limiter, entity_id = SyncRateLimiter(repository), uuid4().hex
    repository.set_system_defaults([Limit.per_minute("rpm", 60)])
    with limiter.acquire(entity_id, "gpt-4", {"rpm": 1}) as lease:
        said.note(lease)
        lease.adjust(rpm=1)
    said.note(limiter.available(entity_id, "gpt-4"), repository.list_entities(), repository.capabilities)


async def work_async(url: str, said: Said) -> None:
    async with await Repository.open(store=url) as repository:
        limiter, entity_id = RateLimiter(repository), uuid4().hex
        said.note(repository, limiter, *parts_of(repository))
        await repository.set_system_defaults([Limit.per_minute("rpm", 60)])
        async with limiter.acquire(entity_id, "gpt-4", {"rpm": 1}) as lease:
            said.note(lease)
            await lease.adjust(rpm=1)
        said.note(await limiter.available(entity_id, "gpt-4"), await repository.list_entities())


def parts_of(thing: object, depth: int = 6) -> list[object]:
    """A thing of ours and all that it is made of, as far as that is ours too."""
    if depth == 0 or not type(thing).__module__.startswith("zae_limiter"):
        return []
    inner: list[object] = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
    inner += [getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ())]
    return [thing, *(part for one in inner for part in parts_of(one, depth - 1))]


def url_of(table: str, transport: str, endpoint: str | None = None, timeout_ms: int = 10_000) -> str:
    return dynamodb_local.url(table, endpoint, timeout_ms=timeout_ms, transport=transport)


each_flow = pytest.mark.parametrize("colour", FLOWS)
each_transport = pytest.mark.parametrize("transport", TRANSPORTS)


@each_flow
@each_transport
def test_when_all_goes_well(colour: str, transport: str, table: str, said: Said) -> None:
    """Objects, results and debug lines."""
    work(colour, url_of(table, transport), said)
    assert any("'rpm': 58" in text for text in said.texts)


@each_flow
@each_transport
def test_when_the_signature_does_not_fit(
    colour: str, transport: str, table: str, said: Said, proxy: Proxy
) -> None:
    """AWS shows what it has calculated with; we do not pass that on."""
    for code in sorted(UNKNOWN_CALLER_CODES | DENIED_CODES):
        for operation in ("DescribeTable", "BatchGetItem", "UpdateItem", "PutItem"):
            proxy.fault(operation, Answer(400, code, ECHO))
        work(colour, url_of(table, transport, proxy.url, 2_000), said)
    assert "does not match" in said.all


@each_flow
@each_transport
@pytest.mark.parametrize(
    "fault",
    [THROTTLE, Answer(500, "InternalServerError", ECHO), Delay(0.6), DropReply(), DropRequest()],
    ids=repr,
)
def test_when_the_table_is_in_trouble(
    colour: str, transport: str, fault: Any, table: str, said: Said, proxy: Proxy
) -> None:
    """Throttles, breakdowns, silence, lost requests and lost replies."""
    for operation in ("BatchGetItem", "UpdateItem", "PutItem", "TransactWriteItems", "Query"):
        proxy.fault(operation, *[fault] * 20)
    work(colour, url_of(table, transport, proxy.url, 300), said)


@each_flow
@each_transport
def test_when_there_is_nobody(colour: str, transport: str, table: str, said: Said) -> None:
    """A port where nobody listens, a host that does not exist, and TLS where none is spoken."""
    plain = dynamodb_local.endpoint().removeprefix("http://")
    for endpoint in ("http://127.0.0.1:9", "http://nowhere.invalid", f"https://{plain}"):
        work(colour, url_of(table, transport, endpoint, 500), said)
    assert len(said.texts) >= 6


@each_flow
@each_transport
def test_when_the_certificate_is_not_trusted(
    colour: str, transport: str, table: str, said: Said, tmp_path: Path
) -> None:
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-days",
        "1",
    ]
    subprocess.run(
        [*command, "-keyout", "key", "-out", "cert"], cwd=tmp_path, check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    peer = Peer(tls=context)
    with peer.running():
        work(colour, url_of(table, transport, f"https://localhost:{peer.port}", 1_000), said)


@each_flow
@pytest.mark.parametrize("scheme", ["http", "https", "ftp"])
def test_an_endpoint_with_a_password_is_refused(colour: str, scheme: str, table: str, said: Said) -> None:
    """DynamoDB has no use for one, and it would end up in messages; this one does not show it."""
    endpoint = f"{scheme}://{USER}:{PASSWORD}@127.0.0.1:9"
    for url in (
        f"dynamodb://{table}?region=eu-west-1&endpoint_url={endpoint}",
        f"dynamodb://{table}?region=eu-west-1&endpoint_url={quote(endpoint, safe='')}",
        f"dynamodb://{USER}:{PASSWORD}@{table}",
        f"dynamodb://{table}?password={PASSWORD}",
    ):
        work(colour, url, said)
    with suppress(ZAELimiterError):
        SyncRepository.open(stack=table, region="eu-west-1", endpoint_url=endpoint)
        pytest.fail("it was opened")
    assert "…@" in said.all


COMMANDS = [
    *(["entity", "list"], ["entity", "create", "user-9"], ["entity", "show", "nobody"]),
    *(["namespace", "list"], ["system", "get-defaults"], ["audit", "list", "--system"]),
]
ABOUT_THE_STACK = [["status"], ["check"], ["version"]]


@pytest.mark.parametrize("form", ["table", "json"])
def test_on_the_command_line(form: str, table: str, said: Said, proxy: Proxy) -> None:
    """Standard output and standard error, for people and for programs, when it works and when it does not."""

    def run(url: str, *commands: list[str]) -> None:
        for command in commands:
            result = CliRunner().invoke(program, [*command, "--store", url, "--output", form])
            assert isinstance(result.exception, SystemExit | None), repr(result.exception)
            said.note(result.stdout, result.stderr)

    run(url_of(table, "lean"), *COMMANDS, *ABOUT_THE_STACK)
    assert "user-9" in said.all
    for command in (*COMMANDS, *ABOUT_THE_STACK):
        for operation in ("DescribeTable", "BatchGetItem", "Query"):
            proxy.fault(operation, Answer(400, "InvalidSignatureException", ECHO))
        run(url_of(table, "lean", proxy.url, 2_000), command)
    assert "InvalidSignatureException" in said.all
    password = f"dynamodb://{table}?region=eu-west-1&endpoint_url=http://{USER}:{PASSWORD}@127.0.0.1:9"
    run(password, *COMMANDS, *ABOUT_THE_STACK)
    # What is asked about a stack waits for its own time.
    run(url_of(table, "lean", "http://127.0.0.1:9", 300), *COMMANDS, ["status"])


@each_flow
@pytest.mark.parametrize(("scheme", "transport"), [("http", "lean"), ("http", "boto"), ("ftp", "lean")])
def test_an_endpoint_of_the_environment(
    colour: str, transport: str, scheme: str, table: str, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is botocore's to read and to use; what it says of it is told without the password."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{scheme}://{USER}:{PASSWORD}@127.0.0.1:9")
    work(colour, f"dynamodb://{table}?region=eu-west-1&timeout_ms=500&transport={transport}", said)
    if colour == "sync":  # the other driver says something else of it
        assert f"{scheme}://…@127.0.0.1:9" in said.all


URL = f"redis://{USER}:{PASSWORD}@host/0"
ENDPOINT = f"http://{USER}:{PASSWORD}@127.0.0.1:9"
MISPLACED = [
    ["table", "create", "--store", URL],
    ["table", "delete", "--yes", "--store", URL],
    ["entity", "list", "--namespace", URL],
    ["entity", "list", "--namespace", f"{URL}?{'x' * 100}"],
    ["limits", "plan", "-f", "limits.yaml", "--namespace", URL],
    ["namespace", "register", URL],
    ["status", "--name", URL],
    ["deploy", "--name", URL],
    ["status", URL],
    ["config", "set", URL],
    ["list", "--region", "eu-west-1", "--endpoint-url", ENDPOINT],
    ["deploy", "--name", "limits", "--region", "eu-west-1", "--endpoint-url", ENDPOINT],
]


@pytest.mark.parametrize("words", MISPLACED, ids=lambda words: " ".join(words[:3]))
def test_a_url_in_the_wrong_place(
    words: list[str], said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, and shown without its password."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZAE_LIMITER_STORE", "sqlite:///limits.db")
    Path("limits.yaml").write_text("namespace: team\nsystem: {limits: {rpm: {capacity: 60}}}\n")
    result = CliRunner().invoke(program, words)
    said.note(result.stdout, result.stderr)
    assert (result.exit_code, "://…@" in result.stderr) == (2, True)
