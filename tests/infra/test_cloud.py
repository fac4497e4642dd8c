"""The way to AWS: sessions, regions, refusals and silence, in both colours."""

import subprocess
import sys
from typing import Any

import botocore.session
import pytest
from botocore.config import Config

from tests.engines import emulator
from tests.infra.scripted_aws import ScriptedAws
from tests.stores import drive
from zae_limiter.backends.dynamodb.transport import ServiceError
from zae_limiter.exceptions import InfrastructureError, StackOperationError
from zae_limiter.infra.cloud import Patience, open_cloud

BOTH = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
UNKNOWN = ServiceError("ExpiredToken", "the token is expired")
LIMITED = ServiceError("LimitExceededException", "too many stacks")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ServiceError("AccessDenied", "no"), "is not permitted: no; allow the caller lambda:GetFunction"),
        (UNKNOWN, "was not accepted from these credentials: .*; renew or correct them"),
        (LIMITED, "Lambda GetFunction was refused: LimitExceededException: too many stacks"),
    ],
)
def test_a_refusal_says_what_to_do(answer: Exception, said: str) -> None:
    """Unless the caller expects it; then it comes as it is."""
    cloud = ScriptedAws(GetFunction=answer)
    with pytest.raises(StackOperationError, match=said):
        drive(True, cloud.ask("lambda", "GetFunction"))
    assert isinstance(answer, ServiceError)
    with pytest.raises(ServiceError):
        drive(True, cloud.ask("lambda", "GetFunction", expected=frozenset({answer.code})))


async def one_call(sync: bool, **access: Any) -> None:
    cloud = open_cloud(sync=sync, **access)
    try:
        await cloud.ask("cloudformation", "DescribeStacks")
    finally:
        await cloud.close()


@BOTH
def test_an_account_that_does_not_answer(sync: bool) -> None:
    """Is no refusal, and says where it was looked for."""
    hasty = Config(retries={"total_max_attempts": 1})
    with pytest.raises(InfrastructureError, match=r"CloudFormation DescribeStacks was not answered: .*:9/"):
        drive(sync, one_call(sync, region="eu-west-1", endpoint_url="http://127.0.0.1:9", config=hasty))


@BOTH
def test_missing_credentials_are_named(sync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the way out."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(InfrastructureError, match="set AWS_ACCESS_KEY_ID"):
        drive(sync, one_call(sync, region="eu-west-1", endpoint_url="http://127.0.0.1:9"))


@BOTH
def test_a_missing_region_is_named(sync: bool) -> None:
    """There is no default: a stack elsewhere is another stack."""
    with pytest.raises(InfrastructureError, match="no AWS region; name one, or set AWS_DEFAULT_REGION"):
        drive(sync, one_call(sync))


@BOTH
def test_the_region_of_the_environment_is_used(sync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As everybody expects of AWS; the one that is named wins."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "ap-southeast-2")

    async def regions() -> list[str | None]:
        return [open_cloud(sync=sync).region, open_cloud(sync=sync, region="eu-north-1").region]

    assert drive(sync, regions()) == ["ap-southeast-2", "eu-north-1"]


@BOTH
def test_a_session_may_be_given(sync: bool) -> None:
    """Its region and its credentials are used."""
    session = botocore.session.Session()
    session.set_credentials("theirs", "secret")
    session.set_config_variable("region", emulator.REGION)

    async def scenario() -> str | None:
        await one_call(sync, session=session, endpoint_url=emulator.endpoint())
        return open_cloud(sync=sync, session=session).region

    assert drive(sync, scenario()) == emulator.REGION


@BOTH
def test_services_are_asked_together(sync: bool) -> None:
    """One client for each service, however many ask for it first."""

    async def scenario() -> int:
        cloud = open_cloud(sync=sync, region=emulator.REGION, endpoint_url=emulator.endpoint())
        asked = [cloud.ask("dynamodb", "ListTables") for _ in range(4)]
        asked += [cloud.ask("lambda", "ListFunctions") for _ in range(4)]
        try:
            return len(await cloud.colour.together(asked))
        finally:
            await cloud.close()

    assert drive(sync, scenario()) == 8


def test_patience_ends_on_time() -> None:
    """However long the pauses have become."""
    aws = ScriptedAws()
    patience = Patience(aws, aws.clock.world, 7)

    async def scenario() -> None:
        while await patience.lasts():
            pass

    drive(True, scenario())
    assert aws.clock.now_ms == pytest.approx(7_000)


def test_a_missing_driver_is_named_with_its_remedy() -> None:
    """The base install has none. A process of its own finds that out."""
    program = (
        "import sys; sys.modules['botocore'] = None; from zae_limiter import SyncStackManager; "
        "SyncStackManager('limits', 'eu-west-1')"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    said = (
        "stacks need botocore.session, which is not installed; install this package with its extra: dynamodb"
    )
    assert said in answer.stderr


def test_a_limiter_loads_nothing_of_this() -> None:
    """Neither the drivers nor the stacks: the function on Lambda has none of them."""
    program = (
        "import sys, zae_limiter; assert not any('infra' in n or 'botocore' in n for n in sys.modules); "
        "assert zae_limiter.StackManager.__module__ == 'zae_limiter.infra.stack_manager'; "
        "zae_limiter.Nobody"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.stderr.splitlines()[-1] == "AttributeError: module 'zae_limiter' has no attribute 'Nobody'"
