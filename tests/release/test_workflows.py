"""The public workflows do what `.ci/run` and `make release-check` do, and nothing in them can be swapped."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.release.distributions import ROOT

FOLDER = ROOT / ".github" / "workflows"
PINNED = re.compile(r"^[\w.-]+/[\w.-]+@[0-9a-f]{40}$")


def workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return found


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def unpinned(found: dict[str, Any]) -> list[str]:
    """Actions that somebody else could change without a change here."""
    used = [step["uses"] for job in found["jobs"].values() for step in job["steps"] if "uses" in step]
    return [one for one in used if not PINNED.match(one)]


def test_the_verdict_is_the_script() -> None:
    """One command, which is what runs everywhere else; nothing is left out, added or allowed to fail."""
    job = workflow("ci.yml")["jobs"]["verdict"]
    assert commands(job) == ["bash .ci/run"]
    assert not any("if" in step or "continue-on-error" in step for step in job["steps"])
    assert "continue-on-error" not in job


def test_the_pictures_of_the_page_are_kept() -> None:
    """What the tests of the page have taken; its folder is hidden, and a run without it took none."""
    steps = workflow("ci.yml")["jobs"]["verdict"]["steps"]
    uploads = [one["with"] for one in steps if one.get("uses", "").startswith("actions/upload-artifact@")]
    assert [(one["path"], one["include-hidden-files"], one["if-no-files-found"]) for one in uploads] == [
        (".page-screenshots", True, "error")
    ]


def test_the_script_is_the_whole_verdict() -> None:
    """Lint, types and all tests, as `make test` runs them where nobody chooses some."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    words = [line for line in script.splitlines() if line and not line.startswith("#")]
    cd = 'cd "$(dirname "${BASH_SOURCE[0]}")/.."'
    assert words == ["set -euo pipefail", cd, "export CI=true", "make test"]
    assert (rule("test"), rule("check")) == (
        ("check engines", ["$(BIN)/pytest -n auto $(TESTS)"]),
        ("$(READY)", ["$(BIN)/ruff format --check .", "$(BIN)/ruff check .", "$(BIN)/mypy"]),
    )


def rule(target: str) -> tuple[str, list[str]]:
    """What a target of the Makefile needs, and its commands."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^{target}: (.*?) ## .*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    return found[0], [line.strip() for line in found[1].splitlines()]


def test_only_what_can_be_shown_is_claimed() -> None:
    """Versions of Python that the public workflow tests; and nothing is stable that was never released."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    jobs = workflow("ci.yml")["jobs"]
    (setup,) = (step for step in jobs["verdict"]["steps"] if "setup-python" in step.get("uses", ""))
    tested = {setup["with"]["python-version"], *jobs["quick"]["strategy"]["matrix"]["python"]}
    prefix = "Programming Language :: Python :: "
    claimed = {one.removeprefix(prefix) for one in project["classifiers"] if one.startswith(prefix)}
    assert claimed - {"3"} <= tested
    unreleased = "There is no release yet" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert not (unreleased and any("Production/Stable" in one for one in project["classifiers"]))
    assert project["requires-python"] == f">={setup['with']['python-version']}"


def test_a_release_is_examined_before_it_is_published() -> None:
    """The check is the command that builds; what is published is what it left behind."""
    jobs = workflow("release.yml")["jobs"]
    assert commands(jobs["build"]) == ["make release-check"]
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    uses = [step.get("uses", "").partition("@")[0] for step in jobs["build"]["steps"]]
    assert "actions/attest-build-provenance" in uses
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "release-check: $(READY) $(RELEASE)" in makefile
    assert "\t$(BIN)/python -m tests.release.check\n" in makefile


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.yml")))
def test_actions_are_pinned_and_may_do_little(name: str) -> None:
    """By commit, with a token that may read, and without one left in the checkout."""
    found = workflow(name)
    assert unpinned(found) == []
    assert found["permissions"] == {"contents": "read"}
    checkouts = [
        step
        for job in found["jobs"].values()
        for step in job["steps"]
        if step.get("uses", "").startswith("actions/checkout")
    ]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_an_action_by_its_tag_is_seen() -> None:
    """A tag can be moved."""
    assert unpinned({"jobs": {"a": {"steps": [{"uses": "actions/checkout@v4"}, {"run": "true"}]}}}) == [
        "actions/checkout@v4"
    ]
