"""Reading manifests: what they want, and every mistake with its line, its key and the way out."""

import json
import os
import pickle
from pathlib import Path
from textwrap import dedent

import pytest

from zae_limiter import Limit, LimiterConfig, OnUnavailable, ValidationError
from zae_limiter.operate.manifest import LevelAddress, ManifestError, load, parse, parse_json
from zae_limiter.operate.manifest import grammar as grammar_module
from zae_limiter.operate.manifest import tree as tree_module

WHOLE = """
    namespace: team-a
    system:
      on_unavailable: block
      limits:
        rpm: {capacity: 100, refill_amount: 50, refill_period: 1}
    resources:
      gpt-4:
        limits: {tpm: {capacity: 10_000}, rpm: {capacity: 60}}
      openai/o1:mini: {on_unavailable: allow}
    entities:
      user-1:
        resources:
          gpt-4: {limits: {rpm: {capacity: 5, refill_period: 3600}}, on_unavailable: allow}
          _default_: {limits: {rpm: {capacity: 7}}}
"""


def problems_in(text: str) -> list[str]:
    """What is said about a manifest that is wrong."""
    with pytest.raises(ManifestError) as caught:
        parse(dedent(text).lstrip("\n"), "limits.yaml")
    return str(caught.value).splitlines()


def level(*limits: Limit, policy: OnUnavailable | None = None) -> LimiterConfig:
    return LimiterConfig(limits, policy)


def test_a_whole_manifest() -> None:
    """All four levels, the defaults of a refill, a policy at any level."""
    manifest = parse(dedent(WHOLE))
    assert manifest.namespace == "team-a"
    assert manifest.levels == {
        LevelAddress("system"): level(Limit.per_second("rpm", 50, 100), policy=OnUnavailable.BLOCK),
        LevelAddress("resource", None, "gpt-4"): level(
            Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 10_000)
        ),
        LevelAddress("resource", None, "openai/o1:mini"): level(policy=OnUnavailable.ALLOW),
        LevelAddress("entity", "user-1", "gpt-4"): level(
            Limit("rpm", 5, 5, 3600), policy=OnUnavailable.ALLOW
        ),
        LevelAddress("entity", "user-1", "_default_"): level(Limit.per_minute("rpm", 7)),
    }


@pytest.mark.parametrize("text", ["{}", "resources:", "entities: {}", "resources: ~\nentities: null\n"])
def test_a_manifest_may_want_nothing(text: str) -> None:
    """If it says so; a file that is empty says nothing."""
    assert parse(text).levels == {}


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "\ufeff"])
def test_an_empty_file_is_a_mistake(text: str) -> None:
    """A file that was cut off must not delete everything."""
    (said,) = problems_in(text)
    assert said == "limits.yaml: the file is empty; a manifest that wants nothing says so: {}"


@pytest.mark.parametrize("name", ["007", "on", "null", "2024-01-01", "1e3", "yes", "0x10", "a@b.c:d"])
def test_names_are_what_is_written(name: str) -> None:
    """Nothing is taken for a number, a date or a truth value, with quotes or without."""
    for written in (name, f'"{name}"'):
        manifest = parse(f"entities: {{{written}: {{resources: {{r: {{on_unavailable: allow}}}}}}}}")
        assert list(manifest.levels) == [LevelAddress("entity", name, "r")]


def test_aliases_repeat_what_was_anchored() -> None:
    """A set of limits may be written once and used often."""
    manifest = parse(
        dedent(
            """
            resources:
              gpt-3: {limits: &free {rpm: {capacity: 3}}}
              gpt-4: {limits: *free}
            """
        )
    )
    assert len(set(manifest.levels.values())) == 1


MISTAKES = Path(__file__).parent / "mistakes"


@pytest.mark.parametrize("name", sorted(file.stem for file in MISTAKES.glob("*.yaml")))
def test_mistakes_are_told(name: str) -> None:
    """All of them at once, in the order of the text; ``UPDATE_SNAPSHOTS=1`` writes what is said anew."""
    said = problems_in((MISTAKES / f"{name}.yaml").read_text(encoding="utf-8"))
    expected = MISTAKES / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        expected.write_text("".join(f"{line}\n" for line in said), encoding="utf-8")
    assert said == expected.read_text(encoding="utf-8").splitlines()


def test_a_character_that_no_text_has() -> None:
    """YAML knows where it is, though not as a line and a column."""
    assert problems_in("system: {}\n# \x00\n") == [
        "limits.yaml:2:3: it is not YAML: special characters are not allowed"
    ]


def test_a_long_list_of_mistakes_is_cut() -> None:
    """Nobody reads thousands."""
    said = problems_in("".join(f"key{n}: 1\n" for n in range(25)))
    assert len(said) == 21
    assert said[-1] == "and 5 more"


def test_deep_nesting_does_not_bring_the_reader_down() -> None:
    """Nor keep it busy: it stops where no manifest goes."""
    assert problems_in("[" * 50_000) == ["limits.yaml:1:65: it is nested more than 64 levels deep"]
    assert "expected a mapping" in problems_in("[" * 64 + "]" * 64)[0]


def test_a_text_that_names_too_many_levels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aliases multiply; reading stops instead of filling the memory."""
    monkeypatch.setattr(grammar_module, "LEVELS_MAX", 20)
    resources = ", ".join(f"r{n}: {{on_unavailable: allow}}" for n in range(10))
    entities = ", ".join(f"e{n}: *all" for n in range(10))
    said = problems_in(f"entities: {{e: &all {{resources: {{{resources}}}}}, {entities}}}")
    assert len(said) == 1
    assert "a manifest has at most 20 levels" in said[0]


def test_a_level_has_as_many_limits_as_a_bucket_holds() -> None:
    """One more is told with its line."""
    limits = ", ".join(f"l{n}: {{capacity: 1}}" for n in range(33))
    assert problems_in(f"system: {{limits: {{{limits}}}}}") == [
        "limits.yaml:1:18: system.limits: one level has at most 32 limits"
    ]


def test_large_and_undecodable_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are refused before they are parsed."""
    with pytest.raises(ManifestError, match="it is not UTF-8"):
        parse(b"system: \xff", "limits.yaml")
    monkeypatch.setattr(tree_module, "TEXT_BYTES_MAX", 10)
    with pytest.raises(ManifestError, match="it has 12 bytes; at most 10 are read"):
        parse("resources: {", "limits.yaml")


def test_a_file_is_read(tmp_path: Path) -> None:
    """Mistakes in it bear its name."""
    file = tmp_path / "limits.yaml"
    file.write_text("system: {on_unavailable: allow}\n", encoding="utf-8-sig")
    assert load(file).levels == {LevelAddress("system"): level(policy=OnUnavailable.ALLOW)}
    file.write_text("sytem: {}\n")
    with pytest.raises(ManifestError) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}:1:1: unknown key 'sytem'")
    assert isinstance(caught.value, ValidationError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_json_needs_no_package() -> None:
    """The same grammar, with keys but without lines."""
    data = {"resources": {"gpt-4": {"limits": {"rpm": {"capacity": 60}}}}}
    assert parse_json(json.dumps(data)) == parse(json.dumps(data))
    wrong = '{"system": {"limits": {"a": {"capacity": "60"}}, "x": 1, "x": null}, "resources": []}'
    with pytest.raises(ManifestError) as caught:
        parse_json(wrong, "Manifest")
    assert str(caught.value).splitlines() == [
        "Manifest: resources: expected a mapping from names, found a list",
        "Manifest: system: 'x' is given twice",
        "Manifest: system: unknown key 'x'; use limits, on_unavailable, disabled, bypass or cascade",
        "Manifest: system.limits.a.capacity: write a whole number such as 1000, not '60' in quotes",
    ]
    with pytest.raises(ManifestError, match="Manifest: it is not JSON"):
        parse_json("{", "Manifest")
    with pytest.raises(ManifestError, match="Manifest: it is not JSON"):
        parse_json("[" * 100_000, "Manifest")
