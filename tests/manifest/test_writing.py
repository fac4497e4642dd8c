"""What is written is read back as the same manifest, by us and by everybody."""

import json

import yaml
from hypothesis import given

from tests.manifest.wishes import manifests
from zae_limiter import Limit, LimiterConfig, OnUnavailable
from zae_limiter.operate.manifest import LevelAddress, Manifest, parse, parse_json, to_data, to_json, to_yaml

WRITTEN = """\
namespace: team-a
system:
  on_unavailable: block
resources:
  gpt-4:
    on_unavailable: allow
    limits:
      rpm: {capacity: 60, refill_amount: 60, refill_period: 60}
      tpm: {capacity: 100, refill_amount: 5, refill_period: 1}
entities:
  "007":
    resources:
      _default_:
        limits:
          rpm: {capacity: 1, refill_amount: 1, refill_period: 3600}
"""


def test_a_manifest_for_people() -> None:
    """General levels first, then names by the alphabet; one line for a limit."""
    tpm, rpm = Limit.per_second("tpm", 5, 100), Limit.per_minute("rpm", 60)
    manifest = Manifest(
        {
            LevelAddress("entity", "007", "_default_"): LimiterConfig((Limit.per_hour("rpm", 1),)),
            LevelAddress("resource", None, "gpt-4"): LimiterConfig((tpm, rpm), OnUnavailable.ALLOW),
            LevelAddress("system"): LimiterConfig((), OnUnavailable.BLOCK),
        },
        "team-a",
    )
    assert to_yaml(manifest) == WRITTEN


@given(manifests)
def test_what_is_written_is_read_back(manifest: Manifest) -> None:
    """As YAML and as JSON, whatever the names."""
    assert parse(to_yaml(manifest)) == manifest
    assert parse_json(to_json(manifest)) == manifest
    assert parse(to_json(manifest)) == manifest


@given(manifests)
def test_every_reader_of_yaml_sees_the_same(manifest: Manifest) -> None:
    """No name turns into a number, a date or a truth value elsewhere."""
    assert yaml.safe_load(to_yaml(manifest)) == to_data(manifest) == json.loads(to_json(manifest))
