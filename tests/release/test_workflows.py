"""The public workflows do what `.ci/run` and `make release-check` do, and nothing in them can be swapped."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.release import tag
from tests.release.distributions import ROOT
from zae_limiter.version import CLIENT_VERSION

FOLDER = ROOT / ".github" / "workflows"
INSTALLS = re.compile(r"\b(?:pip|pipx|uv|uvx|poetry|conda)\b")
LOCKED = re.compile(r"pip install --require-hashes -r requirements/[\w.-]+\.lock")
PINNED = re.compile(r"^[\w.-]+/[\w.-]+@[0-9a-f]{40}$")


def workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return found


def events(found: dict[str, Any]) -> dict[str, Any]:
    """When it runs; YAML reads the word `on` as true."""
    said: dict[str, Any] = {str(key): value for key, value in found.items()}["True"]
    return said


def steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of a job of its own; one that calls another workflow has none."""
    return list(job.get("steps", []))


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in steps(job) if "run" in step]


def actions(job: dict[str, Any]) -> list[str]:
    return [step["uses"].partition("@")[0] for step in steps(job) if "uses" in step]


def unpinned(found: dict[str, Any]) -> list[str]:
    """Actions that somebody else could change without a change here; what is in this repository is ours."""
    used = [one["uses"] for job in found["jobs"].values() for one in (job, *steps(job)) if "uses" in one]
    return [one for one in used if not PINNED.match(one) and not one.startswith("./")]


def loose(found: dict[str, Any]) -> list[str]:
    """Commands by which a job would get packages of Python that no lock has with their hashes."""
    said = [command for job in found["jobs"].values() for command in commands(job)]
    return [one for one in said if INSTALLS.search(one) and not LOCKED.fullmatch(one)]


def may_pass_over(job: dict[str, Any]) -> bool:
    """Whether it, or a step of it, can be left out or fail without a word."""
    return any("if" in one or "continue-on-error" in one for one in (job, *steps(job)))


def test_the_verdict_is_the_script() -> None:
    """One command, which is what runs everywhere else; nothing is left out, added or allowed to fail."""
    job = workflow("ci.yml")["jobs"]["verdict"]
    assert commands(job) == ["bash .ci/run"]
    assert not may_pass_over(job)


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
    (found,) = re.findall(rf"^{target}: (.*?) ?## .*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    return found[0], [line.strip() for line in found[1].splitlines()]


def test_only_what_can_be_shown_is_claimed() -> None:
    """Versions of Python that the public workflow tests; and nothing is stable that was never released."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    jobs = workflow("ci.yml")["jobs"]
    (setup,) = (step for step in jobs["verdict"]["steps"] if "setup-python" in step.get("uses", ""))
    tested = {setup["with"]["python-version"], *jobs["interpreters"]["strategy"]["matrix"]["python"]}
    prefix = "Programming Language :: Python :: "
    claimed = {one.removeprefix(prefix) for one in project["classifiers"] if one.startswith(prefix)}
    assert claimed - {"3"} <= tested
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    told = set(re.findall(r"\b3\.\d+\b(?!\.)", page.partition("| version | is shown by |")[2]))
    assert told == {version.removesuffix("t") for version in tested}
    unreleased = "There is no release yet" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert not (unreleased and any("Production/Stable" in one for one in project["classifiers"]))
    assert project["requires-python"] == f">={setup['with']['python-version']}"


def test_a_release_goes_through_all_of_it() -> None:
    """Its tag is the version, the verdict is good, and it is examined: each waits for the one before."""
    jobs = workflow("release.yml")["jobs"]
    order = ["tag", "verdict", "build", "publish", "attach"]
    assert list(jobs) == order
    assert [job.get("needs") for job in jobs.values()] == [None, *order[:-1]]
    assert not any(may_pass_over(job) for job in jobs.values())
    assert commands(jobs["tag"]) == ['python3 -m tests.release.tag "$GITHUB_REF_NAME"']
    assert jobs["verdict"]["uses"] == "./.github/workflows/ci.yml"
    assert "workflow_call" in events(workflow("ci.yml"))
    assert commands(jobs["build"])[0] == "make release-check"
    assert rule("release-check") == ("$(READY) $(RELEASE)", ["$(BIN)/python -m tests.release.check"])


def test_what_a_release_made_reaches_whoever_installs_it() -> None:
    """The distributions go to the index, and to the release with their parts and where they were built."""
    jobs = workflow("release.yml")["jobs"]
    (attested,) = (step for step in steps(jobs["build"]) if "attest-build-provenance" in step.get("uses", ""))
    assert attested["with"]["subject-path"] == "dist/*"
    beside = steps(jobs["build"])[steps(jobs["build"]).index(attested) + 1]
    assert beside["env"] == {"BUNDLE": f"${{{{ steps.{attested['id']}.outputs.bundle-path }}}}"}
    moved = 'mkdir beside && mv dist/sbom.cdx.json beside/ && cp "$BUNDLE" beside/provenance.sigstore.json'
    assert beside["run"] == moved
    kept = {
        step["with"]["name"]: step["with"]["path"]
        for step in steps(jobs["build"])
        if "upload-artifact" in step.get("uses", "")
    }
    assert kept == {"dist": "dist/", "beside": "beside/"}
    assert steps(jobs["publish"])[0]["with"] == {"name": "dist", "path": "dist/"}
    assert steps(jobs["attach"])[0]["with"] == {"path": "files/", "merge-multiple": True}
    (command,) = commands(jobs["attach"])
    assert command.startswith('gh release create "$GITHUB_REF_NAME" ')
    assert "--verify-tag" in command
    assert command.endswith(" files/*")


def test_who_may_write_runs_nothing_of_ours() -> None:
    """No job with a right has a checkout but the one that builds, and each has the rights that it needs."""
    jobs = workflow("release.yml")["jobs"]
    rights = {name: job["permissions"] for name, job in jobs.items() if "permissions" in job}
    assert rights == {
        "build": {"contents": "read", "id-token": "write", "attestations": "write"},
        "publish": {"id-token": "write"},
        "attach": {"contents": "write"},
    }
    assert actions(jobs["publish"]) == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
    assert actions(jobs["attach"]) == ["actions/download-artifact"]


def test_a_tag_is_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """That of the wheel, to the letter; anything else ends badly, and nothing is built."""
    assert tag.version() == CLIENT_VERSION
    assert tag.main([f"v{CLIENT_VERSION}"]) == 0
    capsys.readouterr()
    for wrong in ([CLIENT_VERSION], [f"v{CLIENT_VERSION}.1"], ["v0.0.0"], ["main"], []):
        assert tag.main(wrong) == 1
        assert f"the package is 'v{CLIENT_VERSION}'" in capsys.readouterr().err


def test_a_version_that_nobody_finds_is_told(tmp_path: Path) -> None:
    """A file of another form is no reason to let any tag pass."""
    (tmp_path / "pyproject.toml").write_text(
        "[tool.hatch.version]\npath = 'v.py'\npattern = 'V = \"(?P<version>[^\"]+)\"'\n", encoding="utf-8"
    )
    (tmp_path / "v.py").write_text("", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"v\.py has no version"):
        tag.main(["v1.0.0"], tmp_path)


def test_vulnerabilities_are_asked_for_every_week() -> None:
    """Without a commit, for they become known without one; an answer that is missing fails the run."""
    found = workflow("audit.yml")
    (when,) = events(found)["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* [0-6]", when["cron"])
    (job,) = found["jobs"].values()
    assert commands(job) == ["make audit"]
    assert not may_pass_over(job)
    assert rule("audit") == ("$(RELEASE)", ["$(PYTHON) -m tests.release.audit"])


def test_a_newcomer_has_what_the_readme_says_and_nothing_else() -> None:
    """A container with Python, git and make; no environment of ours, and no tool of the machine around it."""
    job = workflow("ci.yml")["jobs"]["newcomer"]
    assert re.fullmatch(r"python:3\.11-slim-\w+", job["container"])
    install, walk = commands(job)
    assert install.endswith("install -y -qq --no-install-recommends git make")
    assert walk == "make newcomer"
    assert actions(job) == ["actions/checkout"]
    assert not may_pass_over(job)
    assert "$(READY)" not in rule("newcomer")[0]


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.yml")))
def test_actions_are_pinned_and_may_do_little(name: str) -> None:
    """By commit, with a token that may read, and without one left in the checkout."""
    found = workflow(name)
    assert unpinned(found) == []
    assert found["permissions"] == {"contents": "read"}
    checkouts = [
        step
        for job in found["jobs"].values()
        for step in steps(job)
        if step.get("uses", "").startswith("actions/checkout")
    ]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.yml")))
def test_what_is_installed_is_locked(name: str) -> None:
    """A job that installs packages of Python does it from a lock that is there, by hashes."""
    found = workflow(name)
    assert loose(found) == []
    said = "\n".join(command for job in found["jobs"].values() for command in commands(job))
    assert [lock for lock in re.findall(r"requirements/\S+", said) if not (ROOT / lock).is_file()] == []


def test_a_loose_package_is_seen() -> None:
    """By its name, from a list without hashes, beside a lock, by another tool."""
    wrong = [
        "pip install click",
        "python -m pip install -r requirements/dev.lock",
        "pip install --require-hashes -r requirements/dev.lock\npip install click",
        "uvx pytest",
    ]
    jobs = {"a": {"steps": [{"run": one} for one in (*wrong, "make test")]}}
    assert loose({"jobs": jobs}) == wrong
    right = "pip install --require-hashes -r requirements/dev.lock"
    assert loose({"jobs": {"a": {"steps": [{"run": right}]}}}) == []


def test_an_action_by_its_tag_is_seen() -> None:
    """A tag can be moved, of an action as of a workflow that is called."""
    jobs = {"a": {"steps": [{"uses": "actions/checkout@v4"}, {"run": "true"}]}, "b": {"uses": "a/b/c.yml@v1"}}
    assert unpinned({"jobs": jobs}) == ["actions/checkout@v4", "a/b/c.yml@v1"]
