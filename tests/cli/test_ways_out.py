"""Whoever writes a limit or an entity nearly right is shown how it is written."""

from shlex import split

import pytest

from tests.cli.conftest import Run
from tests.cli.test_commands import done

SETTING = ("entity set-limits u", "resource set-defaults gpt-4", "system set-defaults")


@pytest.mark.parametrize("words", SETTING)
def test_help_shows_the_whole_grammar_of_limits(run: Run, words: str) -> None:
    """Every example of it is one that the command takes."""
    *_, examples = run(*words.split()[:2], "--help").stdout.partition("How a limit is written")
    written = [
        split(line.strip().partition("  ")[0])[0] for line in examples.splitlines()[1:] if line.strip()
    ]
    kinds = ("/sec", "/day@", "/month@", "/cron(", "/session(", "/concurrent(", "USD/", ":soft")
    assert [kind for kind in kinds if not any(kind in one for one in written)] == []
    for one in written:
        assert run(*words.split(), "-l", one).exit_code == 0, one


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("p:5/concurrent", "'concurrent' wants to know more; write it as concurrent(5m)"),
        ("p:5/session", "write it as session(5h)"),
        ("p:5/cron", "write it as cron(0 6 * * 1)"),
        ("p:5/concurrent(0)", "hold '0': it is at least 1 second; write it as concurrent(5m)"),
        ("p:5/session(0h)", "window '0h': it is at least 1 second; write it as session(5h)"),
        ("p:5/concurrent(300)", "hold '300': say of what; seconds are concurrent(300s)"),
        (
            "usd:99.50/month",
            "'99.50' is no whole number; write it as 60, 10_000, 10k or 1.5M, and money as 99.50USD",
        ),
    ],
)
def test_a_limit_that_is_nearly_right_is_told_how_it_is_written(run: Run, written: str, told: str) -> None:
    """The way out is in the message, and all of it in the help that the hint names."""
    result = run("system", "set-defaults", "-l", written)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"invalid limit {written!r}: " in result.stderr
    assert told in result.stderr
    assert result.stderr.endswith("hint: zae-limiter system set-defaults --help\n")


@pytest.mark.parametrize("option", ["-e", "--entity", "--entity-id"])
def test_an_entity_is_named_in_the_same_way_everywhere(run: Run, option: str) -> None:
    """Whichever of the two options somebody has learned first."""
    done(run, "system", "set-defaults", "-l", "rpm:60")
    for words in ("disable --reason x", "bypass", "enable", "audit list", "usage list", "usage summary"):
        assert run(*words.split(), option, "key-1").exit_code == 0, words
