"""A file of rules: what it can say, and how its mistakes are told."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zae_limiter.operate.manifest.model import ManifestError
from zae_limiter.server.envoy.rules_file import load_descriptor_rules, parse_descriptor_rules
from zae_limiter.web.identity import hashed_id

WHOLE = """
domains:
  edge:
    - when: {api_key: , plan: [free, trial]}
      entity: {key: api_key, hashed: true}
      resource: api
      cost: {requests: 1, tokens: 500}
      on_unavailable: block
    - {when: {generic_key: slow}, entity: {id: everybody}, afterwards: true, overrides: false}
  empty: []
"""


def test_all_that_a_rule_can_say(tmp_path: Path) -> None:
    """Each field is what the rule has; a domain is the resource where none is named."""
    (tmp_path / "rules.yaml").write_text(WHOLE)
    rules = load_descriptor_rules(tmp_path / "rules.yaml")
    entries = [("plan", "free"), ("api_key", "k")]
    one = rules.match("edge", entries)
    assert one is not None
    assert (one.resource, dict(one.cost), one.afterwards) == ("api", {"requests": 1, "tokens": 500}, False)
    assert (one.entity_of(entries), one.on_unavailable, one.overrides) == (hashed_id("k"), "block", True)
    two = rules.match("edge", [("generic_key", "slow")])
    assert two is not None
    assert (two.resource, two.entity_id, two.afterwards, two.overrides) == ("edge", "everybody", True, False)
    assert rules.match("edge", [("plan", "gold"), ("api_key", "k")]) is None
    assert rules.match("empty", entries) is None
    assert parse_descriptor_rules(b"domains: {}").match("edge", entries) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rules: []", "1:1: unknown key 'rules'"),
        ("domains: [a]", "1:10: domains: expected a mapping from domains"),
        ("domains: {edge: {}}", "1:17: domains.edge: expected a list of rules"),
        ("domains: {edge: [{entity: a}]}", "1:18: domains.edge.0: say for which descriptors"),
        ("domains: {edge: [{when: {a: }}]}", "1:18: domains.edge.0: say which key names"),
        ("domains: {edge: [{when: {}, entity: a}]}", "1:25: domains.edge.0.when: a descriptor has one key"),
        ("domains: {edge: [{when: {a: []}, entity: a}]}", "it has no values; write nothing for any value"),
        ("domains: {edge: [{when: {a: }, entity: b}]}", "1:40: domains.edge.0: entity 'b'"),
        ("domains: {edge: [{when: {a: }, entity: {id: 'a#b'}}]}", "invalid entity_id 'a#b'"),
        ("domains: {edge: [{when: {a: }, entity: {name: a}}]}", "unknown key 'name'; use key, id or hashed"),
        ("domains: {edge: [{when: {a: }, entity: a, cost: {requests: 0}}]}", "requests: "),
        ("domains: {edge: [{when: {a: }, entity: a, costs: 1}]}", "did you mean 'cost'?"),
        ("domains: {edge: [{when: {a: }, entity: a, afterwards: 1}]}", "write true or false, not '1'"),
        ("domains: {edge: [{when: {a: }, entity: a, on_unavailable: deny}]}", "use allow or block"),
        ("domains:\n  edge:\n    - {when: {a: }, entity: a}\n    - {when: {a: x}, entity: a}", "4:7: "),
        ("domains: {'a#b': [{when: {a: }, entity: a}]}", "resource 'a#b'"),
        ("domains: {edge: [{when: {a: *b}, entity: a}]}", "nothing before it is called &b"),
    ],
)
def test_mistakes_have_a_place(text: str, told: str) -> None:
    """Every mistake is told with its line and column, and the way out."""
    with pytest.raises(ManifestError) as caught:
        parse_descriptor_rules(text.encode(), "envoy.yaml")
    assert told in str(caught.value)
    assert "envoy.yaml" in str(caught.value)


WORDS = st.sampled_from(["domains", "edge", "when", "entity", "id", "key", "cost", "a", "1", "~", "- ", "["])


@given(
    st.lists(st.tuples(WORDS, st.sampled_from([": ", "\n", "\n  ", ", ", "{", "}", "]", " "])), max_size=20)
)
def test_any_text_is_rules_or_mistakes(pieces: list[tuple[str, str]]) -> None:
    """No text makes anything but rules, or mistakes that are told."""
    text = "".join(word + between for word, between in pieces)
    with contextlib.suppress(ManifestError):
        parse_descriptor_rules(text.encode())
