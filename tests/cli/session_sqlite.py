"""One long session on a SQLite file, in a process in which no AWS package can be imported.

It is what somebody does who has installed nothing but the command line: entities, limits, a file of
limits, use, usage, the trail, namespaces. ``test_session_sqlite`` runs it in an empty directory.
"""

import json
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

AWS = frozenset({"aiobotocore", "aiohttp", "boto3", "botocore", "s3transfer"})
STORE = "sqlite:///limits.db"
FILE = Path("limits.yaml")

MANIFEST = """\
system: {on_unavailable: block, limits: {rpm: {capacity: 100}}}
resources:
  gpt-4: {limits: {rpm: {capacity: 60}, tpm: {capacity: 10_000}}}
entities:
  user-1: {resources: {gpt-4: {limits: {rpm: {capacity: 5, refill_period: 86400}, tpm: {capacity: 1000}}}}}
"""


class Missing:
    """Finds nothing of AWS."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        del path, target
        if name.partition(".")[0] in AWS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def shell(*words: str, code: int = 0, said: str = "") -> str:
    """The standard output of a command that ends with this code, having said this among other things."""
    from click.testing import CliRunner

    from zae_limiter.cli.app import program

    ran = CliRunner().invoke(program, list(words))
    print("$", *words)
    assert ran.exit_code == code, f"exit code {ran.exit_code}\n{ran.output}\n{ran.exception!r}"
    assert said in ran.stderr, ran.stderr
    assert "\x1b" not in ran.output
    return ran.stdout


def data(noun: str, verb: str, *words: str, code: int = 0) -> Any:
    return json.loads(shell(noun, verb, "--output", "json", *words, code=code))


def use() -> None:
    """What the application does."""
    from zae_limiter import RateLimitExceeded, SyncRateLimiter

    with SyncRateLimiter.open(STORE) as limiter:
        for _ in range(3):
            with limiter.acquire("user-1", "gpt-4", {"rpm": 1, "tpm": 100}) as lease:
                lease.adjust(tpm=50)
        with pytest.raises(RateLimitExceeded) as refused, limiter.acquire("user-1", "gpt-4", {"rpm": 6}):
            pass
        assert refused.value.primary_violation.limit.capacity == 5


def entities() -> None:
    """They are made, listed and shown."""
    shell("entity", "create", "org")
    shell("entity", "create", "user-1", "--parent", "org", "--display-name", "User One", "--principal", "ops")
    assert [one["entity_id"] for one in data("entity", "list")["entities"]] == ["org", "user-1"]
    assert data("entity", "show", "user-1")["name"] == "User One"


def limits() -> None:
    """By hand, then by a file, which leaves alone what was made by hand."""
    shell("resource", "set-defaults", "gpt-3", "-l", "rpm:7")
    FILE.write_text(MANIFEST)
    assert data("limits", "plan")["counts"] == {
        "created": 3,
        "updated": 0,
        "deleted": 0,
        "unchanged": 0,
    }
    assert "create" in shell("limits", "apply", "--principal", "ops")
    assert shell("limits", "apply") == ""
    assert data("limits", "plan", "--exit-code")["changes"] == []
    assert [c["action"] for c in data("limits", "diff", "--exit-code", code=5)["changes"]] == ["leave"]
    assert data("system", "get-defaults")["on_unavailable"] == "block"
    assert [one["capacity"] for one in data("entity", "get-limits", "user-1", "-r", "gpt-4")] == [
        5,
        1000,
    ]


def usage() -> None:
    """It is counted from the first acquire on, whenever somebody does."""
    use()
    assert json.loads(shell("aggregate", "--once", "--output", "json"))["rows_written"] > 0
    rows = data("usage", "list", "-e", "user-1", "--window", "hourly")["snapshots"]
    assert sum(row["counters"]["tpm"] for row in rows) == 450
    assert data("usage", "summary", "--resource", "gpt-4", "--start", "2d")["total"] == {
        "rpm": 3,
        "tpm": 450,
    }
    chart = shell("usage", "list", "-e", "user-1", "--plot")
    assert "rpm: 3 used" in chart
    assert "UTC" in chart
    levels = data("entity", "buckets", "user-1")
    assert [(row["limit"], row["available"]) for row in levels if row["limit"] == "rpm"] == [("rpm", 2)]
    assert "█" in shell("entity", "buckets", "user-1")


def changes() -> None:
    """The file changes; the trail says who did what."""
    FILE.write_text(dedent(MANIFEST).replace("system:", "# system:").replace("capacity: 60", "capacity: 90"))
    shell("limits", "apply", code=1, said="nobody answered, so nothing was changed")
    done = data("limits", "apply", "--yes", "--principal", "ops")
    assert done["counts"] == {"created": 0, "updated": 1, "deleted": 1, "unchanged": 1}
    assert [(e["action"], e["principal"]) for e in data("audit", "list", "--system")] == [
        ("limits_deleted", "ops"),
        ("limits_set", "ops"),
    ]
    assert len(data("audit", "list", "-r", "gpt-4")) == 2
    assert data("audit", "list", "-e", "user-1")[-1]["action"] == "entity_created"


def copies() -> None:
    """What is stored goes into another namespace by way of a file; mistakes change nothing."""
    shell("limits", "export", "-f", "all.yaml")
    everything = (Path() / "all.yaml").read_text()
    shell("namespace", "register", "copy")
    (Path() / "copy.yaml").write_text(everything.replace("namespace: default", "namespace: copy"))
    assert data("limits", "apply", "-f", "copy.yaml")["counts"]["created"] == 3
    assert (
        shell("limits", "export", "-N", "copy").replace("namespace: copy", "namespace: default") == everything
    )

    FILE.write_text("resources: {gpt-4: {limits: {rpm: {capacity: many}}}}\n")
    shell("limits", "apply", "--yes", code=2, said="limits.yaml:1:46: resources.gpt-4.limits.rpm.capacity")
    assert shell("limits", "export") == everything


def ends() -> None:
    """Back to what was made by hand, then to nothing."""
    FILE.write_text("{}\n")
    shell("limits", "apply", "--yes")
    assert data("limits", "export") == {
        "namespace": "default",
        "resources": {"gpt-3": {"limits": {"rpm": {"capacity": 7, "refill_amount": 7, "refill_period": 60}}}},
    }
    shell("entity", "delete", "user-1", "--yes")
    gone = data("namespace", "delete", "copy", "--yes")["namespace_id"]
    assert data("namespace", "purge", "--yes", "--", gone)["items"] > 0
    assert [one["namespace_name"] for one in data("namespace", "list")] == ["default"]


def aws() -> None:
    """A template is text; nothing of AWS is needed to write it. A table is another matter."""
    assert "Custom::ZaeLimiterLimits" in shell("limits", "cfn-template", "--package", "function.zip")
    shell("limits", "plan", "--name", "table", code=1, said="install this package with its extra: dynamodb")
    assert not AWS & {name.partition(".")[0] for name in sys.modules}


def session() -> None:
    """From an empty directory to a chart of usage and back to an empty namespace."""
    for chapter in (entities, limits, usage, changes, copies, ends, aws):
        chapter()


if __name__ == "__main__":
    sys.meta_path.insert(0, Missing())
    session()
    print("done")
