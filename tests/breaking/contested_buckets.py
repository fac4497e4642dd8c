"""The buckets that clients fight over: hot ones, families, and one for each task alone.

A bucket of one's own has few operations of uncertain cost, so that a single token too much shows. A hot one
has many clients at a time, and a family is charged twice for everything.
"""

from zae_limiter import Limit, RateLimiter

RESOURCE = "api"
OWN = (Limit("rpm", 60, 30, 1), Limit("tpm", 2_000, 600, 1))
SHARED = (Limit("rpm", 150, 60, 1), Limit("tpm", 8_000, 2_000, 1))
PARENTS = (Limit("rpm", 400, 200, 1), Limit("tpm", 20_000, 6_000, 1))

HOT = ("hot-0", "hot-1")
FAMILY = {f"child-{n}": f"parent-{n % 2}" for n in range(6)}


def limits_of(entity_id: str) -> tuple[Limit, ...]:
    if entity_id in HOT:
        return SHARED
    return PARENTS if entity_id in FAMILY.values() else OWN


def payers_of(entity_id: str) -> list[str]:
    return [entity_id, FAMILY[entity_id]] if entity_id in FAMILY else [entity_id]


async def furnish(limiter: RateLimiter) -> None:
    """Store the limits and the families."""
    await limiter.set_resource_defaults(RESOURCE, OWN)
    for entity_id in (*HOT, *sorted(set(FAMILY.values()))):
        await limiter.set_limits(entity_id, limits_of(entity_id), RESOURCE)
    for parent_id in sorted(set(FAMILY.values())):
        await limiter.create_entity(parent_id)
    for entity_id, parent_id in FAMILY.items():
        await limiter.create_entity(entity_id, parent_id=parent_id, cascade=True)
