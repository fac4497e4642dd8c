"""Demands are checked when they are made, and those of one entity on one resource are one."""

from typing import Any

import pytest

from zae_limiter import InvalidNameError, Limit, ValidationError
from zae_limiter.exceptions import InvalidIdentifierError
from zae_limiter.models.demand import DEMANDS_MAX, Demand, check_demands
from zae_limiter.repository_protocol import TRANSACT_WRITES_MAX

LIMITS = [Limit.per_minute("rpm", 5)]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("", "api", {}), InvalidIdentifierError),
        (("key", "a#b", {}), InvalidNameError),
        (("key", "api", ["rpm"]), ValidationError),
        (("key", "api", {"rpm": -1}), ValidationError),
        (("key", "api", {"rpm": 1.5}), ValidationError),
        (("key", "api", {"rpm": 1}, []), ValidationError),
        (("key", "api", {"rpm": 1}, "rpm"), ValidationError),
    ],
)
def test_what_is_no_demand(given: tuple[Any, ...], problem: type[Exception]) -> None:
    with pytest.raises(problem):
        Demand(*given)


def test_a_demand_keeps_what_it_was_made_of() -> None:
    amounts, limits = {"rpm": 1}, list(LIMITS)
    demand = Demand("key", "api", amounts, limits)
    amounts["rpm"] = 2
    limits.clear()
    assert (demand.consume, demand.limits) == ({"rpm": 1}, tuple(LIMITS))


def test_demands_of_one_entity_on_one_resource_are_their_sum_in_the_place_of_the_first() -> None:
    one, two = Demand("key", "api", {"rpm": 1, "tpm": 5}, LIMITS), Demand("key", "api", {"rpm": 2}, LIMITS)
    other = Demand("key", "search", {"rpm": 4})
    assert check_demands([one, other, two]) == [Demand("key", "api", {"rpm": 3, "tpm": 5}, LIMITS), other]
    assert check_demands((one,)) == [one]


def test_as_many_as_a_store_can_change_at_once_with_a_parent_for_each() -> None:
    many = [Demand(f"key-{n}", "api", {"rpm": 1}) for n in range(DEMANDS_MAX)]
    assert check_demands(many) == many
    assert 2 * DEMANDS_MAX <= TRANSACT_WRITES_MAX
    with pytest.raises(ValidationError, match=f"{DEMANDS_MAX + 1}.*at most {DEMANDS_MAX}"):
        check_demands([*many, many[0]])
