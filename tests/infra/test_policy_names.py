"""Names as a way around a policy: a pattern of keys takes none of them for something else."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests import names
from tests.infra.permissions import Request, is_allowed
from tests.infra.test_policies import ACTIONS, AGGREGATOR, PLACES, POLICIES, TAG
from zae_limiter import schema
from zae_limiter.records.reports import report_key

KINDS_OF_KEYS = (
    (schema.pk_resource, "r"),
    (schema.pk_entity, "e"),
    (lambda *names: schema.pk_bucket(*names, 3), "er"),
    (lambda *names: schema.pk_bucket(*names, 0), "er"),
    (schema.pk_audit, "e"),
    (lambda ns, resource: schema.pk_audit(ns, f"$RESOURCE:{resource}"), "r"),
    (lambda ns: schema.estimate_key(ns, 7, 0).partition, ""),
    (lambda ns: report_key(ns, 7).partition, ""),
    (schema.gsi1_pk_parent, "e"),
    (schema.gsi3_pk_entity_config, "r"),
)
"""How keys are made, and of which names: of an entity, of a resource."""


@given(
    policy=st.sampled_from([*POLICIES, "aggr"]),
    action=st.sampled_from(ACTIONS),
    place=st.sampled_from(("table", *schema.INDEXES)),
    kind=st.sampled_from(KINDS_OF_KEYS),
    named=st.fixed_dictionaries({"e": names.entities, "r": names.resources}),
)
def test_no_name_widens_a_pattern(
    policy: str, action: str, place: str, kind: tuple[Any, str], named: dict[str, str]
) -> None:
    """What a policy says of a kind of record it says of every name: none reads like a key of another kind."""
    statements = AGGREGATOR if policy == "aggr" else POLICIES[policy]
    make, parts = kind
    verdicts = [
        is_allowed(
            statements,
            Request(
                f"dynamodb:{action}", PLACES[place], (make("a", *(of[p] for p in parts)),), ((TAG, "a"),)
            ),
        )
        for of in (named, {"e": "u", "r": "r"})
    ]
    assert verdicts[0] is verdicts[1]
