"""The evaluator of policies itself: the rules of IAM that our policies rest on."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.infra.permissions import LEADING_KEYS, Request, is_allowed
from tests.infra.rendering import TABLE_ARN

TAG = "zae-limiter-namespace-id"
ALLOW: Mapping[str, Any] = {"Effect": "Allow", "Action": "dynamodb:Get*", "Resource": "*"}


@pytest.mark.parametrize(
    ("condition", "keys", "tag", "expected"),
    [
        ({}, (), None, True),
        ({"ForAllValues:StringLike": {LEADING_KEYS: "a/*"}}, (), None, True),
        ({"Null": {LEADING_KEYS: "false"}}, (), None, False),
        ({"Null": {LEADING_KEYS: "true"}}, (), None, True),
        ({"ForAllValues:StringLike": {LEADING_KEYS: "a/*"}}, ("a/1", "b/1"), None, False),
        ({"ForAllValues:StringLike": {LEADING_KEYS: ["a/*", "b/?"]}}, ("a/1", "b/1"), None, True),
        (
            {"ForAllValues:StringLike": {LEADING_KEYS: f"${{aws:PrincipalTag/{TAG}}}/*"}},
            ("a/1",),
            None,
            False,
        ),
        ({"ForAllValues:StringLike": {LEADING_KEYS: f"${{aws:PrincipalTag/{TAG}}}/*"}}, ("a/1",), "*", False),
        ({"ForAllValues:StringLike": {LEADING_KEYS: f"${{aws:PrincipalTag/{TAG}}}/*"}}, ("a/1",), "a", True),
        ({"StringEquals": {f"aws:PrincipalTag/{TAG}": "a"}}, (), "a", True),
        ({"StringEquals": {f"aws:PrincipalTag/{TAG}": "a"}}, (), None, False),
        ({"StringNotEquals": {f"aws:PrincipalTag/{TAG}": "a"}}, (), "a", False),
        ({"StringNotEquals": {f"aws:PrincipalTag/{TAG}": "a"}}, (), None, True),
    ],
)
def test_the_evaluator_knows_the_rules(
    condition: dict[str, Any], keys: tuple[str, ...], tag: str | None, expected: bool
) -> None:
    """Those of IAM, its pitfalls included."""
    request = Request("dynamodb:GetItem", TABLE_ARN, keys, () if tag is None else ((TAG, tag),))
    assert is_allowed([{**ALLOW, "Condition": condition}], request) == expected


def test_a_denial_wins_and_silence_denies() -> None:
    """However many statements allow."""
    request = Request("dynamodb:GetItem", TABLE_ARN)
    assert is_allowed([ALLOW], request)
    assert not is_allowed([ALLOW, {**ALLOW, "Effect": "Deny"}], request)
    assert not is_allowed([], request)
    assert not is_allowed([{**ALLOW, "Resource": f"{TABLE_ARN}/index/*"}], request)


def test_the_evaluator_refuses_what_it_does_not_know() -> None:
    """So a policy cannot come to rest on something that is not evaluated."""
    request = Request("dynamodb:GetItem", TABLE_ARN)
    with pytest.raises(AssertionError, match="operator"):
        is_allowed([{**ALLOW, "Condition": {"ArnLike": {LEADING_KEYS: "x"}}}], request)
    with pytest.raises(AssertionError, match="NotAction"):
        is_allowed([{**ALLOW, "NotAction": "x"}], request)
