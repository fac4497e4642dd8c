"""What ``make newcomer`` notices: a step that fails or prints something else, and nobody refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import newcomer
from tests.documents.blocks import Step
from tests.documents.newcomer import KEPT, ROOT, environment, follow, home_in, walk

REFUSED = Step(3, "echo request 3 is refused", "request 3 is refused\n")


def test_a_walk_ends_with_the_first_refusal(tmp_path: Path) -> None:
    """Files and variables of one step are there in the next; what comes after the refusal is not done."""
    steps = [Step(1, "word=3"), Step(2, "echo $word", "3\n"), REFUSED, Step(4, "false")]
    assert follow(steps, tmp_path, tmp_path) >= 0


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([Step(1, "false"), REFUSED], id="a step fails"),
        pytest.param([Step(1, "echo no", "yes\n"), REFUSED], id="it prints something else"),
        pytest.param(
            [Step(1, "echo request 1 is admitted", "request 1 is admitted\n")], id="nobody is refused"
        ),
    ],
)
def test_a_walk_that_leads_nowhere_is_seen(steps: list[Step], tmp_path: Path) -> None:
    """So a step that is missing in the README fails the walk."""
    with pytest.raises(AssertionError):
        follow(steps, tmp_path, tmp_path)


def test_the_readme_has_such_a_walk() -> None:
    """From the clone on, with the demo before it, in an environment without our variables."""
    steps = walk((ROOT / "README.md").read_text(encoding="utf-8"), Path("there"))
    walked = [step.command.splitlines()[0] for step in steps]
    assert walked[: walked.index("python first.py") + 1] == [
        "git clone there zae-limiter",
        "cd zae-limiter",
        "make demo",
        "python3 -m venv venv",
        ". venv/bin/activate",
        'pip install ".[cli]"',
        "cat > first.py <<'END_OF_FILE'",
        "python first.py",
    ]
    assert "PYTHONPATH" not in environment(Path("home"))


def test_a_checkout_of_somebody_else_is_cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, where the checkout belongs to a user outside of it; git refuses it otherwise."""
    home, theirs = home_in(tmp_path), tmp_path / "theirs"
    subprocess.run(["git", "init", "--quiet", str(theirs)], check=True, env=environment(home))
    monkeypatch.setattr(newcomer, "KEPT", KEPT | {"GIT_TEST_ASSUME_DIFFERENT_OWNER"})
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    subprocess.run(
        ["git", "clone", "--quiet", str(theirs), str(tmp_path / "clone")], check=True, env=environment(home)
    )
    assert (tmp_path / "clone" / ".git").is_dir()


def test_the_walk_needs_no_package() -> None:
    """Python alone imports it: what is installed beside it is not looked at."""
    subprocess.run([sys.executable, "-S", "-c", "import tests.documents.newcomer"], cwd=ROOT, check=True)
