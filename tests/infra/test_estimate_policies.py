"""Who may acquire may read estimates and add to them and to reports, in its namespace, and not delete."""

import pytest

from tests.infra.permissions import Request, is_allowed
from tests.infra.test_policies import PLACES, POLICIES, TAG

# The policy, the action, the caller's namespace, the partition keys, the verdict.
TABLE = """
acq      BatchGetItem  -  a/ESTIMATE#7 a/BUCKET#u#r#0  yes
acq      UpdateItem    -  a/ESTIMATE#7                 yes
acq      PutItem       -  a/ESTIMATE#7                 no
acq      DeleteItem    -  a/ESTIMATE#7                 no
acq      UpdateItem    -  a/RESOURCE#x/ESTIMATE        no
ns-acq   BatchGetItem  a  a/ESTIMATE#7                 yes
ns-acq   UpdateItem    a  a/ESTIMATE#7                 yes
ns-acq   UpdateItem    a  b/ESTIMATE#7                 no
ns-acq   UpdateItem    _  _/ESTIMATE#7                 no
ns-acq   UpdateItem    -  a/ESTIMATE#7                 no
ns-acq   PutItem       a  a/ESTIMATE#7                 no
ns-full  UpdateItem    a  a/ESTIMATE#7                 yes
ns-full  UpdateItem    a  b/ESTIMATE#7                 no
read     BatchGetItem  -  a/ESTIMATE#7                 yes
read     UpdateItem    -  a/ESTIMATE#7                 no
acq      UpdateItem    -  a/REPORT#                    yes
acq      PutItem       -  a/REPORT#                    no
acq      DeleteItem    -  a/REPORT#                    no
acq      UpdateItem    -  a/RESOURCE#x/REPORT          no
ns-acq   UpdateItem    a  a/REPORT#                    yes
ns-acq   UpdateItem    a  b/REPORT#                    no
ns-acq   UpdateItem    _  _/REPORT#                    no
ns-full  UpdateItem    a  a/REPORT#                    yes
ns-full  UpdateItem    a  b/REPORT#                    no
read     Query         -  a/REPORT#                    yes
ns-read  Query         a  a/REPORT#                    yes
ns-read  Query         a  b/REPORT#                    no
"""


@pytest.mark.parametrize("row", TABLE.strip().splitlines(), ids=lambda row: " ".join(row.split()))
def test_estimates(row: str) -> None:
    policy, action, mine, *keys, verdict = row.split()
    tags = () if mine == "-" else ((TAG, mine),)
    request = Request(f"dynamodb:{action}", PLACES["table"], tuple(keys), tags)
    assert is_allowed(POLICIES[policy], request) is (verdict == "yes")
