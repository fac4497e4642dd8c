"""A process with several resources and a family, and demands on several of them at once."""

from collections.abc import Sequence

import pytest

from tests.flow.clients import RESOURCE, Client, Store, rpm, tpm
from zae_limiter import Demand, RateLimitExceeded

SEARCH = "search"
MODES = pytest.mark.parametrize("speculative_writes", [True, False], ids=["speculative", "transacted"])


class Failed(Exception):
    """The work's own failure."""


async def client_of(store: Store, *, speculative_writes: bool = True) -> Client:
    """A process with a resource of two limits, one of a single one, and two children of a parent."""
    client = await store.client(speculative_writes=speculative_writes)
    repository = client.repository
    await repository.set_resource_defaults(RESOURCE, [rpm(10), tpm(1_000)])
    await repository.set_resource_defaults(SEARCH, [rpm(3)])
    await repository.create_entity("parent")
    for child in ("child-1", "child-2"):
        await repository.create_entity(child, parent_id="parent", cascade=True)
    return client


def both(calls: int = 1, tokens: int = 500, searches: int = 1, entity_id: str = "key") -> list[Demand]:
    return [
        Demand(entity_id, RESOURCE, {"rpm": calls, "tpm": tokens}),
        Demand(entity_id, SEARCH, {"rpm": searches}),
    ]


async def left(store: Store, resource: str = RESOURCE, entity_id: str = "key") -> dict[str, int]:
    """What a bucket holds, as a process sees it that only just came."""
    late = await store.client()
    return await late.limiter.available(entity_id, resource)


async def refused(client: Client, demands: Sequence[Demand]) -> RateLimitExceeded:
    with pytest.raises(RateLimitExceeded) as caught:
        async with client.limiter.acquire(demands):
            pass
    return caught.value
