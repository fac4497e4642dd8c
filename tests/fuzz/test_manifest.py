"""Manifests of limits, given any text and any structure: a manifest, or all that is wrong with it."""

import json
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.damage import damages, values
from tests.fuzz.figures import cases
from tests.fuzz.outcomes import outcome
from tests.fuzz.tenants import contents, in_memory
from tests.fuzz.values import texts
from zae_limiter import ZAELimiterError
from zae_limiter.operate.manifest import (
    Manifest,
    ManifestError,
    SyncStoredLimits,
    parse,
    parse_json,
    to_json,
    to_yaml,
)

GOOD = """
namespace: team-a
system: {on_unavailable: allow, limits: {rpm: {capacity: 60, refill_amount: 60, refill_period: 60}}}
resources: {gpt-4: &level {limits: {tpm: {capacity: 1000}}}, other: *level}
entities: {user-1: {resources: {gpt-4: {limits: {rpm: {capacity: 5}}}, _default_: {on_unavailable: block}}}}
"""

YAML_PIECES = (
    *("namespace: ", "system: ", "resources: ", "entities: ", "limits: ", "rpm: ", "capacity: ", "user-1: "),
    *(
        "{",
        "}",
        "[",
        "]",
        "- ",
        "? ",
        ": ",
        ", ",
        "\n",
        "\n  ",
        "\t",
        "&a ",
        "*a",
        "*b",
        "<<: *a",
        "!!python/object:os.system ",
    ),
    *(
        "!!int ",
        "!tag ",
        "|\n",
        ">\n",
        "'",
        '"',
        "# x",
        "---\n",
        "...\n",
        "%YAML 9.9\n",
        "5",
        "1_000",
        "0x1F",
        "1e3",
        ".inf",
        "~",
    ),
    *("on", "2024-01-01", "\ufeff", "\x00", "\x1b[2J", "\u2028"),
)
yaml_texts = st.one_of(
    texts,
    st.lists(st.sampled_from(YAML_PIECES), max_size=15).map("".join),
    st.tuples(
        st.integers(0, len(GOOD)), st.integers(0, 8), st.one_of(texts, st.sampled_from(YAML_PIECES))
    ).map(lambda cut: GOOD[: cut[0]] + cut[2] + GOOD[cut[0] + cut[1] :]),
)
keys = st.one_of(
    st.sampled_from(
        [
            "namespace",
            "system",
            "resources",
            "entities",
            "limits",
            "on_unavailable",
            "capacity",
            "rpm",
            "disabled",
            "bypass",
        ]
    ),
    st.sampled_from(["refill_amount", "refill_period", "gpt-4", "user-1", "_default_", "wcu", "<<"]),
    texts,
)
trees: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), texts, st.sampled_from(["allow", 60, "60"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=12,
)


def check(result: Any) -> None:
    """A manifest is read back from what is written of it; a refusal names every problem and where it is."""
    if isinstance(result, Manifest):
        assert parse(to_yaml(result)) == result
        assert parse_json(to_json(result)) == result
    else:
        assert isinstance(result, ManifestError)
        assert result.problems
        assert str(result).isprintable() or "\n" in str(result)


@cases("manifest", 300, text=yaml_texts)
def test_any_text(text: str) -> None:
    """As text and, if it can be written down, as bytes."""
    check(outcome(lambda: parse(text)))


@cases("manifest", 150, data=st.binary(max_size=40))
def test_any_bytes(data: bytes) -> None:
    check(outcome(lambda: parse(data)))


@cases("manifest", 400, tree=trees)
def test_any_structure(tree: Any) -> None:
    """The same structure in JSON, which YAML contains."""
    text = json.dumps(tree)
    check(outcome(lambda: parse_json(text)))
    check(outcome(lambda: parse(text)))


@cases(
    "manifest",
    60,
    depth=st.sampled_from([10, 1_000, 50_000]),
    opening=st.sampled_from(["[", "{a: ", "- ", '{"a":']),
)
def test_any_depth(depth: int, opening: str) -> None:
    """Nothing recurses."""
    for read in (parse, parse_json):
        check(outcome(lambda read=read: read(opening * depth)))


@cases("manifest", 100, wrong=st.lists(damages(values), min_size=1, max_size=2), everything=st.booleans())
def test_a_manifest_on_damaged_records(wrong: Any, everything: bool) -> None:
    """It is applied, or says what is in the way; records that it does not name stay as they are."""
    stage, backend = in_memory("sync")
    limits = SyncStoredLimits(stage.repository)
    outcome(lambda: limits.apply(parse(GOOD.replace("namespace: team-a", ""))))
    for key, item in wrong:
        backend._shelf.items[key] = item
    manifest = parse("system: {limits: {rpm: {capacity: 7}}}")
    before = contents(backend)
    planned = outcome(lambda: (limits.difference if everything else limits.plan)(manifest))
    assert contents(backend) == before
    if not isinstance(planned, ZAELimiterError):
        outcome(lambda: limits.carry_out(planned))
    outcome(limits.export)
