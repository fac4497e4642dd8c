"""Limits as a file, on the command line: what is shown, what is changed, how it ends."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.cli.conftest import STORE, Run
from zae_limiter import RateLimiterUnavailable, ResourceDisabled, SyncRateLimiter
from zae_limiter.cli.app import program
from zae_limiter.operate.manifest import StoredLimits, SyncStoredLimits, parse
from zae_limiter.operate.manifest.template import HANDLER

MANIFEST = """\
system: {on_unavailable: block, limits: {rpm: {capacity: 100}}}
resources:
  gpt-4: {limits: {rpm: {capacity: 20}, tpm: {capacity: 5000, refill_period: 1}}}
entities:
  user-1: {resources: {gpt-4: {limits: {rpm: {capacity: 5, refill_amount: 1, refill_period: 30}}}}}
"""
CHANGED = """\
resources:
  gpt-4: {on_unavailable: allow, limits: {rpm: {capacity: 30}}}
  gpt-5: {limits: {rpm: {capacity: 1}}}
entities:
  user-1: {resources: {gpt-4: {limits: {rpm: {capacity: 5, refill_amount: 1, refill_period: 30}}}}}
"""
PLANNED = """\
change   level            limit            stored     file  
────────────────────────────────────────────────────────────
delete   system           on_unavailable   block      -     
                          rpm              100/min    -     
update   resource gpt-4   rpm              20/min     30/min
                          tpm              5000/sec   -     
                          on_unavailable   -          allow 
create   resource gpt-5   rpm              -          1/min 
"""  # noqa: W291 - tables are padded
DIFFERENCE = """\
--- stored in namespace 'default'
+++ limits.yaml
@@ system @@
-on_unavailable: block
-rpm: {capacity: 100, refill_amount: 100, refill_period: 60}
@@ resource gpt-3, which apply leaves alone @@
-rpm: {capacity: 7, refill_amount: 7, refill_period: 60}
@@ resource gpt-4 @@
-rpm: {capacity: 20, refill_amount: 20, refill_period: 60}
-tpm: {capacity: 5000, refill_amount: 5000, refill_period: 1}
+on_unavailable: allow
+rpm: {capacity: 30, refill_amount: 30, refill_period: 60}
@@ resource gpt-5 @@
+rpm: {capacity: 1, refill_amount: 1, refill_period: 60}
"""


@pytest.fixture
def file(run: Run, tmp_path: Path) -> Path:  # noqa: ARG001 - it prepares the directory
    it = tmp_path / "limits.yaml"
    it.write_text(MANIFEST)
    return it


def json_of(run: Run, *words: str, code: int = 0) -> Any:
    result = run("limits", words[0], "--output", "json", *words[1:])
    assert (result.exit_code, result.stderr) == (code, "")
    return json.loads(result.stdout)


def test_a_plan_is_shown_and_changes_nothing(run: Run, file: Path, limiter: SyncRateLimiter) -> None:
    """Old and new values, limit by limit, and how many levels become what."""
    assert run("limits", "apply").exit_code == 0
    file.write_text(CHANGED)
    before = SyncStoredLimits(limiter.repository).export()
    planned = run("limits", "plan")
    assert planned.stdout == PLANNED
    assert planned.stderr == "planned: 1 to create, 1 to update, 1 to delete, 1 unchanged\n"
    data = json_of(run, "plan")
    assert data["counts"] == {"created": 1, "updated": 1, "deleted": 1, "unchanged": 1}
    assert data["namespace"] == "default"
    assert [(c["action"], c["level"], c["entity_id"], c["resource"]) for c in data["changes"]] == [
        ("delete", "system", None, None),
        ("update", "resource", None, "gpt-4"),
        ("create", "resource", None, "gpt-5"),
    ]
    assert data["changes"][1]["before"]["on_unavailable"] is None
    assert data["changes"][1]["after"] == {
        "limits": [{"name": "rpm", "capacity": 30, "refill_amount": 30, "refill_period_seconds": 60}],
        "on_unavailable": "allow",
        "disabled": None,
        "bypass": None,
        "cascade": None,
    }
    assert data["changes"][0]["after"] is None
    assert SyncStoredLimits(limiter.repository).export() == before


def test_an_apply(run: Run, file: Path, limiter: SyncRateLimiter) -> None:
    """It makes what is missing, is audited, and the second one has nothing to do."""
    first = run("limits", "apply", "--principal", "ops")
    assert first.exit_code == 0
    assert first.stderr == "applied: 3 created, 0 updated, 0 deleted, 0 unchanged\n"
    assert first.stdout.count("create") == 3
    (event,) = limiter.get_audit_events("$RESOURCE:gpt-4")
    assert event.principal == "ops"
    again = run("limits", "apply")
    assert (again.exit_code, again.stdout) == (0, "")
    assert again.stderr == "applied: 0 created, 0 updated, 0 deleted, 3 unchanged\n"
    assert len(limiter.get_audit_events("$RESOURCE:gpt-4")) == 1
    nothing = run("limits", "plan", "--exit-code")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert nothing.stderr == "nothing to change; 3 levels are as the file says\n"
    file.write_text(CHANGED)
    done = json_of(run, "apply", "--yes")
    assert done["counts"] == {"created": 1, "updated": 1, "deleted": 1, "unchanged": 1}
    assert [change["action"] for change in done["changes"]] == ["update", "create", "delete"]


def test_deletion_is_confirmed(run: Run, file: Path, limiter: SyncRateLimiter) -> None:
    """The plan is part of the question; no and silence change nothing at all."""
    run("limits", "apply")
    file.write_text(CHANGED)
    for answer in ("n\n", ""):
        refused = run("limits", "apply", answer=answer)
        assert (refused.exit_code, refused.stdout.strip()) == (1, "")
        assert refused.stderr.startswith(PLANNED)
        assert "Delete 1 level that earlier applies have made?" in refused.stderr
        assert "nothing was changed" in refused.stderr
    assert limiter.repository.list_resources_with_defaults() == ["gpt-4"]
    agreed = run("limits", "apply", answer="y\n")
    assert agreed.exit_code == 0
    assert agreed.stderr.endswith("applied: 1 created, 1 updated, 1 deleted, 1 unchanged\n")
    assert limiter.repository.get_config("system") is None


def test_an_emergency_stop_outlives_a_deployment(run: Run, file: Path, limiter: SyncRateLimiter) -> None:
    """A file that does not mention a switch does not lift it; one that does says how it is."""
    run("limits", "apply")
    assert run("disable", "--resource", "gpt-4", "--reason", "leak").exit_code == 0
    for verb in ("plan", "diff"):
        assert run("limits", verb, "--exit-code").exit_code == 0
    file.write_text(CHANGED)
    assert "disabled" not in run("limits", "plan").stdout + run("limits", "diff").stdout
    update = json_of(run, "apply", "--yes")["changes"][0]
    assert (update["before"]["disabled"], update["after"]["disabled"]) == ("leak", "leak")
    with pytest.raises(ResourceDisabled, match="leak"):
        limiter.acquire("user-2", "gpt-4", {"rpm": 1}).open()
    assert "disabled: leak" in run("limits", "export").stdout
    file.write_text(CHANGED.replace("gpt-4: {on", "gpt-4: {disabled: false, on"))
    planned = run("limits", "plan").stdout
    assert planned.splitlines()[2].split()[-3:] == ["disabled", "leak", "false"]
    assert run("limits", "apply").exit_code == 0
    with limiter.acquire("user-2", "gpt-4", {"rpm": 1}):
        pass


def test_a_difference(run: Run, file: Path) -> None:
    """Everything that is stored, like a patch; an exit code for scripts that want one."""
    run("limits", "apply")
    assert run("limits", "diff", "--exit-code").exit_code == 0
    assert run("limits", "diff").stderr == "nothing differs; 3 levels are as the file says\n"
    run("resource", "set-defaults", "gpt-3", "-l", "rpm:7")
    file.write_text(CHANGED)
    shown = run("limits", "diff")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, DIFFERENCE, "")
    assert run("limits", "diff", "--exit-code").exit_code == 5
    assert run("limits", "plan", "--exit-code").exit_code == 5
    data = json_of(run, "diff", "--exit-code", code=5)
    assert [change["action"] for change in data["changes"]] == ["delete", "leave", "update", "create"]


def test_long_lines_of_a_difference_are_not_broken(run: Run, file: Path) -> None:
    """A line of a patch is a line, however narrow the terminal."""
    name = "r" * 64
    file.write_text(f"resources: {{{name}: {{limits: {{{'l' * 64}: {{capacity: 1}}}}}}}}\n")
    assert f"@@ resource {name} @@\n" in run("limits", "diff").stdout
    assert "refill_period: 60}\n" in run("limits", "diff").stdout


def test_an_export(run: Run, file: Path, tmp_path: Path) -> None:
    """To standard output or a file, as YAML or JSON; applying it changes nothing."""
    run("limits", "apply")
    printed = run("limits", "export")
    assert (printed.exit_code, printed.stderr) == (0, "")
    assert parse(printed.stdout).levels == parse(MANIFEST).levels
    assert yaml.safe_load(printed.stdout) == json_of(run, "export")
    written = run("limits", "export", "-f", "other.yaml")
    assert (written.stdout, written.stderr) == ("", "wrote 3 levels to 'other.yaml'\n")
    assert (tmp_path / "other.yaml").read_text() == printed.stdout
    assert run("limits", "plan", "-f", "other.yaml", "--exit-code").exit_code == 0
    assert run("limits", "export", "-f", "other.yaml", answer="n\n").exit_code == 1
    file.write_text("old")
    assert json_of(run, "export", "-f", "limits.yaml", "--force") == {"file": "limits.yaml", "levels": 3}
    assert file.read_text() == printed.stdout


@pytest.mark.usefixtures("limiter")
def test_an_export_to_a_name_that_no_file_can_have(run: Run) -> None:
    """It is told like any file that cannot be written."""
    result = run("limits", "export", "-f", "x" * 300)
    assert result.exit_code == 1
    assert "cannot write" in result.stderr
    assert "File name too long" in result.stderr


def test_a_manifest_on_standard_input(run: Run, tmp_path: Path) -> None:
    """A dash reads it there, and mistakes say so."""
    assert run("limits", "apply", "-f", "-", answer=MANIFEST).exit_code == 0
    wrong = run("limits", "plan", "-f", "-", answer="sytem: {}")
    assert wrong.exit_code == 2
    assert wrong.stderr.startswith("error: standard input:1:1: unknown key 'sytem'")
    piped = CliRunner().invoke(program, ["limits", "export", "-f", "-", "--store", STORE])
    assert parse(piped.stdout).levels == parse(MANIFEST).levels
    assert not (tmp_path / "-").exists()


def test_the_namespace_of_a_file(run: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must exist, it wins over the environment, and an option may only agree with it."""
    file.write_text(f"namespace: acme\n{MANIFEST}")
    assert run("limits", "apply").exit_code == 4
    run("namespace", "register", "acme", "globex")
    monkeypatch.setenv("ZAEL_NAMESPACE", "globex")
    assert json_of(run, "apply")["namespace"] == "acme"
    assert run("limits", "plan", "-N", "acme", "--exit-code").exit_code == 0
    assert run("limits", "plan", "-N", "globex").exit_code == 2
    assert json_of(run, "export", "-N", "acme")["namespace"] == "acme"
    assert json_of(run, "export") == {"namespace": "globex"}


@pytest.mark.usefixtures("file")
def test_an_apply_that_is_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how far it came, and that it can be run again."""
    perform = StoredLimits._perform
    steps: list[object] = []

    async def failing(self: Any, step: Any, principal: str | None) -> bool:
        steps.append(step)
        if len(steps) == 3:
            raise RateLimiterUnavailable("the store did not answer")
        return await perform(self, step, principal)

    monkeypatch.setattr(StoredLimits, "_perform", failing)
    broken = run("limits", "apply")
    assert (broken.exit_code, broken.stdout) == (1, "")
    assert broken.stderr == (
        "error: the store did not answer; 2 of 3 changes were made\n"
        "hint: run it again: it goes on where it stopped\n"
    )
    assert run("limits", "apply").stderr == "applied: 1 created, 0 updated, 0 deleted, 2 unchanged\n"


def test_a_template_for_pipelines(run: Run, file: Path, tmp_path: Path) -> None:
    """It needs no store; the function's package can be written beside it."""
    printed = run("limits", "cfn-template", "--name", "limits")
    assert (printed.exit_code, printed.stderr) == (0, "")
    template = yaml.safe_load(printed.stdout)
    assert template["Parameters"]["TableName"]["Default"] == "limits"
    named = yaml.safe_load(run("limits", "cfn-template", "--namespace-id", "abc").stdout)
    assert named["Parameters"]["NamespaceId"]["Default"] == "abc"
    assert "invalid namespace id '_'" in run("limits", "cfn-template", "--namespace-id", "_").stderr
    assert json.loads(run("limits", "cfn-template", "-n", "limits", "--json").stdout) == template
    written = run("limits", "cfn-template", "-f", str(file), "-o", "stack.yaml", "--package", "function.zip")
    assert written.stdout == ""
    assert yaml.safe_load((tmp_path / "stack.yaml").read_text())["Resources"] == template["Resources"]
    with zipfile.ZipFile(tmp_path / "function.zip") as package:
        assert HANDLER.rpartition(".")[0].replace(".", "/") + ".py" in package.namelist()
    assert not (tmp_path / "limits.db").exists()


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_was_exported_is_read_back_whatever_it_is_called(run: Run, form: list[str]) -> None:
    """Also names beyond 16 bits, which JSON may cut in halves."""
    assert run("entity", "set-limits", "bot-🤖", "-l", "rpm:60").exit_code == 0
    written = run("limits", "export", *form)
    assert written.exit_code == 0
    planned = run("limits", "plan", "-f", "-", answer=written.stdout)
    assert (planned.exit_code, planned.stderr) == (0, "nothing to change; 1 level is as the file says\n")
