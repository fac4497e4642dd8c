"""Every valid name is an argument of every command, and comes out as it went in."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import STORE, Run
from tests.names import PEOPLE
from zae_limiter import SyncRateLimiter
from zae_limiter_aggregator.runner import aggregate

ENTITIES = [name for name in PEOPLE if name[0] != "$"]
PAIRS = [(entity, PEOPLE[-1 - n]) for n, entity in enumerate(ENTITIES)]


@pytest.mark.parametrize(("entity_id", "resource"), PAIRS, ids=[f"n{n}" for n in range(len(PAIRS))])
def test_a_name_goes_through_every_command(run: Run, entity_id: str, resource: str) -> None:
    """As a parameter behind ``--``, as the value of an option, in a manifest, and in what is printed."""

    def said(*words: str) -> dict[str, object]:
        result = run(*words[:2], "--output", "json", *words[2:])
        assert result.exit_code == 0, result.output
        found: dict[str, object] = json.loads(result.stdout)
        return found

    assert run("entity", "create", "--principal", "a|b/c", "--", entity_id).exit_code == 0
    assert said("entity", "show", "--", entity_id)["entity_id"] == entity_id
    assert run("resource", "set-defaults", "-l", "rpm:5", "--", resource).exit_code == 0
    assert run("entity", "set-limits", "-l", "rpm:9", "--resource", resource, "--", entity_id).exit_code == 0
    with SyncRateLimiter.open(STORE) as limiter:
        with limiter.acquire(entity_id, resource, {"rpm": 2}):
            pass
        aggregate(STORE, until_idle=True)
    for name, *words in (
        (entity_id, "usage", "list", "--entity-id", entity_id),
        (entity_id, "usage", "list", "--resource", resource),
        (entity_id, "audit", "list", "--entity-id", entity_id),
        (resource, "entity", "buckets", "--", entity_id),
    ):
        assert json.dumps(name) in json.dumps(said(*words)), words
        assert run(*words).exit_code == 0
    assert run("usage", "list", "--plot", "--resource", resource).exit_code == 0
    exported = run("limits", "export")
    Path("limits.yaml").write_text(exported.stdout, encoding="utf-8")
    assert "nothing to change; 2 levels" in run("limits", "plan", "-f", "limits.yaml").output
    template = run("limits", "cfn-template", "-f", "limits.yaml")
    assert template.exit_code == 0, template.output
    assert template.stdout.isascii(), "CloudFormation makes question marks of other letters"
    assert run("entity", "delete", "--yes", "--", entity_id).exit_code == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_goes_on_behind_any_name(shell: str) -> None:
    """What stands on the line already is no reason to fall over."""
    for name in ("auth0|abc", "-x", 'it\'s "quoted"', "日本語"):
        environment = {
            **os.environ,
            "_ZAE_LIMITER_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": f"zae-limiter entity show {shlex.quote(name)} --out",
            "COMP_CWORD": "--out" if shell == "fish" else "4",
        }
        done = subprocess.run(
            [sys.executable, "-m", "zae_limiter.cli"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "--output" in done.stdout
