"""Limits as a file: what a namespace is to say, planned, applied, compared and exported.

    manifest = load("limits.yaml")          # text -> what is wanted; mistakes are told with their lines
    stored = StoredLimits(repository)
    plan = await stored.plan(manifest)      # wanted, stored -> what has to change
    await stored.carry_out(plan)            # level by level, each with its audit event

The decisions are pure (``grammar``, ``model``, ``writing``); ``stored_limits`` is the only part that
knows a store. It needs PyYAML to read YAML, and nothing at all to read JSON.
"""

from .grammar import load, parse, parse_json
from .model import Action, LevelAddress, LevelChange, Manifest, ManifestError, ManifestPlan, Problem
from .stored_limits import StoredLimits, SyncStoredLimits
from .writing import to_data, to_json, to_yaml

__all__ = [
    "Action",
    "LevelAddress",
    "LevelChange",
    "Manifest",
    "ManifestError",
    "ManifestPlan",
    "Problem",
    "StoredLimits",
    "SyncStoredLimits",
    "load",
    "parse",
    "parse_json",
    "to_data",
    "to_json",
    "to_yaml",
]
