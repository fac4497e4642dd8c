"""What the site has, in the order of its menu: a page that is in no group fails the build.

A line names a page of the repository; its title is the page's own first heading. `GENERATED` are made when
the site is built, from the code. Decisions are listed by themselves, in the order of their numbers.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

GENERATED = "generated/"
"""Before the name of a page that is made from the code."""

GROUPS: dict[str, tuple[str, ...]] = {
    "Start": (
        "docs/start.md",
        "docs/install.md",
        "docs/use.md",
        "README.md",
        "docs/contents.md",
        "docs/watch.md",
        "docs/glossary.md",
    ),
    "Guides": (
        "docs/gateway.md",
        "docs/streaming.md",
        "docs/decorator.md",
        "docs/several.md",
        "docs/families.md",
        "docs/job-fleet.md",
        "docs/concurrency.md",
        "docs/quotas.md",
        "docs/schedules.md",
        "docs/soft-limits.md",
        "docs/switches.md",
        "docs/limits-file.md",
        "docs/testing.md",
        "examples/README.md",
    ),
    "Concepts": (
        "docs/law.md",
        "docs/promises.md",
        "SECURITY.md",
        "docs/threat-model.md",
        "docs/compatibility.md",
        "docs/dependencies.md",
        "THIRD-PARTY.md",
        "docs/changes.md",
        "docs/time.md",
        "docs/costs.md",
        "docs/input.md",
    ),
    "Web and LLMs": (
        "docs/web.md",
        "docs/frameworks.md",
        "docs/headers.md",
        "docs/server.md",
        "docs/envoy.md",
        "docs/llm.md",
        "docs/estimates.md",
        "docs/outbound.md",
    ),
    "Stores": (
        "docs/stores.md",
        "docs/redis.md",
        "docs/postgresql.md",
        "docs/stack.md",
        "docs/aggregator.md",
        "docs/local.md",
        "docs/moving.md",
    ),
    "Operating": (
        "docs/cli.md",
        "docs/page.md",
        "docs/views.md",
        "docs/telemetry.md",
        "docs/operators.md",
        "docs/operating.md",
        "docs/upgrade.md",
    ),
    "Reference": (
        "docs/settings.md",
        f"{GENERATED}commands.md",
        f"{GENERATED}api.md",
        "docs/records.md",
        "docs/contract.md",
        "CHANGELOG.md",
    ),
    "Comparison and migration": (
        "docs/comparison.md",
        "docs/from-limits.md",
        "docs/from-slowapi.md",
        "docs/from-pyrate.md",
        "docs/benchmarks.md",
        "docs/migrating.md",
    ),
    "Decisions": (f"{GENERATED}decisions.md", "docs/adr/[0-9]*.md"),
    "Contributing": (
        "CONTRIBUTING.md",
        "docs/add-a-store.md",
        "examples/store/README.md",
        "docs/add-a-kind-of-limit.md",
        "docs/add-a-framework.md",
        "docs/mutation.md",
    ),
}

HOME = "docs/index.md"
"""The first page; it is in no group."""


def pages() -> dict[str, tuple[str, ...]]:
    """The groups, with the pages that a pattern stands for."""
    return {
        group: tuple(
            found
            for name in names
            for found in (
                sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(name))
                if "*" in name
                else (name,)
            )
        )
        for group, names in GROUPS.items()
    }


def written() -> list[str]:
    """Every page that somebody wrote and that belongs on the site."""
    roots = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "THIRD-PARTY.md")
    examples = ("examples/README.md", "examples/store/README.md")
    return [
        *roots,
        *examples,
        *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")),
    ]


def missing() -> list[str]:
    """Pages that are in no group, in two, or named and not there."""
    named = [page for group in pages().values() for page in group if not page.startswith(GENERATED)]
    return [
        *(
            f"{page} is in no group of docs/site/contents.py"
            for page in written()
            if page not in {*named, HOME}
        ),
        *(f"{page} is in docs/site/contents.py and not there" for page in named if page not in written()),
        *(
            f"{page} is twice in docs/site/contents.py"
            for page in sorted(set(named))
            if named.count(page) > 1
        ),
    ]


def place(page: str) -> str:
    """Where a page of the repository is on the site, as Markdown."""
    if page == "README.md":
        return "readme.md"
    if page.startswith(GENERATED):
        return f"reference/{page.removeprefix(GENERATED)}"
    if page.endswith("/README.md"):
        return f"{page.removesuffix('/README.md')}.md"
    return page.removeprefix("docs/") if page.startswith("docs/") else page.lower()
