"""Which descriptor is charged to whom: by default, and by rules."""

from __future__ import annotations

import pytest

from zae_limiter import OnUnavailable
from zae_limiter.exceptions import ValidationError
from zae_limiter.server.envoy.rules import DescriptorRule, DescriptorRules
from zae_limiter.web.identity import hashed_id


@pytest.mark.parametrize(
    ("entries", "entity_id"),
    [
        ([("remote_address", "192.0.2.1")], "192.0.2.1"),
        ([("remote_address", "192.0.2.1"), ("api_key", "k")], "k"),
        ([("api_key", "k"), ("entity", "ann")], "ann"),
        ([("generic_key", "slow"), ("path", "/x")], "slow"),
        ([("entity", "ann"), ("entity", "bob")], "ann"),
        ([("entity", "")], hashed_id("")),
        ([("entity", "a#b")], hashed_id("a#b")),
        ([("entity", "$system")], hashed_id("$system")),
        ([("entity", " ann")], hashed_id(" ann")),
        ([("entity", "x" * 257)], hashed_id("x" * 257)),
        ([("entity", "\udcff")], hashed_id("\udcff")),
    ],
)
def test_without_a_file(entries: list[tuple[str, str]], entity_id: str) -> None:
    """The domain is the resource; a known key says who asks, else the first; no value escapes its limit."""
    rule = DescriptorRules().match("edge", entries)
    assert rule is not None
    assert (rule.entity_of(entries), rule.resource, rule.cost) == (entity_id, "edge", {"requests": 1})
    assert rule.on_unavailable is None


def test_a_domain_that_is_no_resource() -> None:
    with pytest.raises(ValidationError, match="resource"):
        DescriptorRules().match("a#b", [("entity", "ann")])


def test_a_rule_is_for_exactly_its_keys(caplog: pytest.LogCaptureFixture) -> None:
    """Other keys, other values and a key that says two things are no rule's; the log tells it once."""
    one = DescriptorRule(when={"plan": frozenset({"free"}), "user": None}, entity="user", resource="free")
    two = DescriptorRule(when={"plan": None, "user": None}, entity="user", resource="rest")
    block = DescriptorRule(
        when={"ip": None}, entity_id="all", resource="rest", on_unavailable=OnUnavailable.BLOCK
    )
    rules = DescriptorRules({"edge": [one, two, block]})
    assert rules.match("edge", [("plan", "free"), ("user", "ann")]) is one
    assert rules.match("edge", [("user", "ann"), ("plan", "gold")]) is two
    assert rules.match("edge", [("ip", "192.0.2.1")]) is block
    for _ in range(2):
        assert rules.match("edge", [("user", "ann")]) is None
        assert rules.match("edge", [("user", "ann"), ("user", "bob"), ("plan", "free")]) is None
        assert rules.match("other", [("ip", "192.0.2.1")]) is None
    assert [record.getMessage() for record in caplog.records] == [
        "no rule is for descriptors of 'edge' with ['user']: they pass",
        "no rule is for descriptors of 'other' with ['ip']: they pass",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"when": {"a": None}, "resource": "edge"},
        {"when": {"a": None}, "resource": "edge", "entity": "b"},
        {"when": {"a": None}, "resource": "edge", "entity": "a", "entity_id": "ann"},
        {"when": {"a": None}, "resource": "edge", "entity_id": "a#b"},
        {"when": {"a": None}, "resource": "_default_", "entity": "a"},
        {"when": {"a": None}, "resource": "edge", "entity": "a", "cost": {}},
        {"when": {"a": None}, "resource": "edge", "entity": "a", "cost": {"requests": 0}},
        {"when": {"a": None}, "resource": "edge", "entity": "a", "cost": {"wcu": 1}},
    ],
)
def test_rules_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DescriptorRule(**wrong)  # type: ignore[arg-type]
