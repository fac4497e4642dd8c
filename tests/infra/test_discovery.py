"""Finding what is deployed: by tag, on every page, with the versions of the tables."""

import asyncio

from tests.infra.emulated import deployed, place
from tests.infra.scripted_aws import DENIED, NO_ANSWER, NO_TABLE, ScriptedAws, stacks
from tests.stores import drive
from zae_limiter import RateLimiter, StackOptions, SyncRateLimiter, SyncRepository
from zae_limiter.infra.discovery import list_deployed
from zae_limiter.version import SCHEMA_VERSION, client_version


def named(*names: str, ours: bool = True) -> list[dict[str, object]]:
    return [stacks("CREATE_COMPLETE", ours=ours, StackName=name)["Stacks"][0] for name in names]


def test_every_page_is_read_and_strangers_are_left_out() -> None:
    """Whatever their state, in the order of their names."""
    pages = [
        {"Stacks": named("b", "stranger"), "NextToken": "2"},
        {"Stacks": named("other", ours=False), "NextToken": "3"},
        {"Stacks": named("a")},
    ]
    pages[0]["Stacks"][1]["Tags"] = []  # type: ignore[index]
    aws = ScriptedAws(DescribeStacks=list(pages))
    found = drive(True, list_deployed(aws))
    assert [one.stack_name for one in found] == ["a", "b"]
    assert [request.get("NextToken") for request in aws.requests("DescribeStacks")] == [None, "2", "3"]
    assert {one.region for one in found} == {"eu-west-1"}


def test_a_table_that_cannot_be_read_is_listed_by_its_tags() -> None:
    """Whoever may list stacks may not be allowed to read tables, and a table may be gone."""
    for trouble in (DENIED, NO_ANSWER, NO_TABLE):
        aws = ScriptedAws(DescribeStacks={"Stacks": named("a")}, GetItem=trouble)
        (found,) = drive(True, list_deployed(aws))
        assert (found.schema_version, found.lambda_version) == (SCHEMA_VERSION, client_version())


def test_many_stacks_are_all_listed() -> None:
    """Some at a time."""
    names = [f"stack-{number:02}" for number in range(40)]
    aws = ScriptedAws(DescribeStacks={"Stacks": named(*names)})
    assert [one.stack_name for one in drive(True, list_deployed(aws))] == names


def test_a_region_without_stacks_is_an_empty_list() -> None:
    """Not an error."""
    aws = ScriptedAws(DescribeStacks={"Stacks": []})
    assert drive(True, list_deployed(aws)) == []


def test_limiters_find_what_is_deployed() -> None:
    """Both colours find the same, with the versions that the table states."""
    with deployed(StackOptions(enable_aggregator=False)) as name:
        with SyncRepository.open(stack=name, **place()) as repository:
            repository.set_version_record(lambda_version="0.0.7")
        found = {one.stack_name: one for one in SyncRateLimiter.list_deployed(**place())}
        assert found == {one.stack_name: one for one in asyncio.run(RateLimiter.list_deployed(**place()))}
        assert found[name].lambda_version == "0.0.7"
        assert found[name].stack_status == "CREATE_COMPLETE"
        assert found[name].version == client_version()
    assert name not in {one.stack_name for one in SyncRateLimiter.list_deployed(**place())}
