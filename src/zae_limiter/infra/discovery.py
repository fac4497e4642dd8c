"""Which stacks of ours are deployed in an account and region: those that carry our tag.

CloudFormation lists all stacks with their tags, page by page, so one permission is enough. The versions
are those that each table itself states, where it can be read; else those of the tags.
"""

from __future__ import annotations

from typing import Any

from ..models import LimiterInfo
from .cloud import Cloud, open_cloud
from .stack import Stack
from .version_record import readable_version

TOGETHER_MAX = 16
"""How many tables are asked at the same time."""


async def deployed_stacks(cloud: Cloud) -> list[Stack]:
    """Our stacks by name, whatever state they are in."""
    pages = cloud.pages("cloudformation", "DescribeStacks")
    found = [Stack.of(described) async for page in pages for described in page["Stacks"]]
    return sorted((stack for stack in found if stack.is_ours), key=lambda stack: stack.name)


async def list_deployed(cloud: Cloud) -> list[LimiterInfo]:
    """Our stacks with their versions."""
    stacks = await deployed_stacks(cloud)
    infos: list[LimiterInfo] = []
    for start in range(0, len(stacks), TOGETHER_MAX):
        some = stacks[start : start + TOGETHER_MAX]
        records = await cloud.colour.together([readable_version(cloud, stack.name) for stack in some])
        infos += (stack.info(cloud.region, record) for stack, (record, _) in zip(some, records, strict=True))
    return infos


async def discover(
    region: str | None, endpoint_url: str | None, *, sync: bool, **client: Any
) -> list[LimiterInfo]:
    """Our stacks in the account and region that the arguments and the environment name."""
    cloud = open_cloud(sync=sync, region=region, endpoint_url=endpoint_url, **client)
    try:
        return await list_deployed(cloud)
    finally:
        await cloud.close()
