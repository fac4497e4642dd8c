"""A server that gives leases administers its namespace; who may only acquire has none, and finds none."""

import pytest

from tests.infra.permissions import Request, is_allowed
from tests.infra.test_policies import PLACES, POLICIES, TAG

# The policy, the action, where, the caller's namespace, the partition keys, the verdict.
TABLE = """
ns-full  PutItem     table  a  a/LEASE#7 a/BUCKET#u#r#0  yes
ns-full  UpdateItem  table  a  b/LEASE#7                 no
ns-full  DeleteItem  table  a  a/LEASE#7                 yes
ns-full  DeleteItem  table  a  b/LEASE#7                 no
ns-full  Query       GSI2   a  a/LEASES#1                yes
ns-full  Query       GSI2   a  b/LEASES#1                no
full     PutItem     table  -  a/LEASE#7                 yes
full     DeleteItem  table  -  a/LEASE#7                 yes
acq      PutItem     table  -  a/LEASE#7                 no
ns-acq   PutItem     table  a  a/LEASE#7                 no
read     PutItem     table  -  a/LEASE#7                 no
"""


@pytest.mark.parametrize("row", TABLE.strip().splitlines(), ids=lambda row: " ".join(row.split()))
def test_leases(row: str) -> None:
    policy, action, where, mine, *keys, verdict = row.split()
    tags = () if mine == "-" else ((TAG, mine),)
    request = Request(f"dynamodb:{action}", PLACES[where], tuple(keys), tags)
    assert is_allowed(POLICIES[policy], request) is (verdict == "yes")
