"""Namespaces that are deleted, and come back."""

import pytest

from tests.cli.conftest import Run
from tests.cli.test_commands import data_of, done

READING = (
    "audit list --system",
    "config get --level system",
    "entity buckets a",
    "entity delete a --yes",
    "entity list",
    "entity set-cascade a on",
    "entity show a",
    "explain a gpt-4",
    "limits diff",
    "limits export",
    "limits plan",
    "namespace show default",
    "resource list",
    "system get-defaults",
    "usage summary -e a",
)


@pytest.fixture
def deleted(run: Run) -> str:
    """The id of a default namespace that has an entity and was deleted."""
    done(run, "entity", "create", "a")
    (made,) = data_of(run, "namespace", "list")
    done(run, "namespace", "delete", "default", "--yes")
    return str(made["namespace_id"])


def test_what_only_reads_takes_no_name(run: Run, deleted: str) -> None:
    """The hint of a deletion holds, whatever is looked at in between."""
    with open("limits.yaml", "w") as file:
        file.write("{}")
    hint = (
        f"hint: what was deleted is still there: zae-limiter namespace recover -- {deleted}; "
        "an empty one: zae-limiter namespace register default"
    )
    for words in READING:
        result = run(*words.split())
        planned = words in {"limits plan", "limits diff"}
        assert (words, result.exit_code) == (words, 0 if planned else 4)
        assert (hint in result.stderr) is not planned
    assert data_of(run, "namespace", "list") == []
    done(run, "namespace", "recover", "--", deleted)
    assert run("entity", "show", "a").exit_code == 0


def test_a_default_namespace_that_nobody_made_reads_as_empty(run: Run) -> None:
    """And is not made by that."""
    data_of(run, "namespace", "register", "acme")
    assert data_of(run, "entity", "list") == {"entities": [], "switches": [], "cursor": None}
    assert run("entity", "delete", "a", "--yes").exit_code == 4
    assert [one["namespace_name"] for one in data_of(run, "namespace", "list")] == ["acme"]
    done(run, "entity", "create", "a")
    assert len(data_of(run, "namespace", "list")) == 2


def test_a_name_that_is_taken_is_told_with_the_command_that_frees_it(run: Run, deleted: str) -> None:
    """It is a command line that does it."""
    done(run, "entity", "create", "b")
    result = run("namespace", "recover", "--", deleted)
    assert result.exit_code == 1
    assert result.stderr.endswith("delete that one first\nhint: zae-limiter namespace delete default\n")


def test_a_named_namespace_that_was_deleted_can_come_back(run: Run) -> None:
    """Whoever asks for it is told how; where several had the name, where to look."""
    for hint in ("namespace recover -- ", "namespace orphans; "):
        data_of(run, "namespace", "register", "team-a")
        done(run, "namespace", "delete", "team-a", "--yes")
        for words in ("entity list -N team-a", "entity create a -N team-a", "namespace show team-a"):
            result = run(*words.split())
            assert result.exit_code == 4
            assert f"what was deleted is still there: zae-limiter {hint}" in result.stderr
    assert run("entity", "list", "-N", "acme").stderr.endswith("hint: zae-limiter namespace register acme\n")
