"""``zae-limiter demo --ui``: really started, looked at from outside, ended in each way."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.terminal import Terminal
from tests.patience import PATIENCE_SECONDS, wait_until
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.cli import showcase as showcase_module
from zae_limiter.cli.showcase import NAMESPACE
from zae_limiter.cli.tenants import PARENTS


class Running:
    """The demo as a process, and what it has said so far."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.said = ""
        self.process = subprocess.Popen(
            [sys.executable, "-X", "dev", "-m", "zae_limiter.cli", "demo", "--ui", "--no-open", *words],
            env={
                **os.environ,
                "TMPDIR": str(directory),
                "PYTHONUNBUFFERED": "1",
                # A module that is being read when somebody interrupts stays open; no other file may.
                "PYTHONWARNINGS": "error,ignore:unclosed file:ResourceWarning",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line

    def wait_for(self, pattern: str) -> re.Match[str]:
        wait_until(lambda: re.search(pattern, self.said) is not None or self.process.poll() is not None)
        found = re.search(pattern, self.said)
        assert found is not None, self.said
        return found

    def ended(self) -> int:
        code = self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return code


@contextmanager
def running(directory: Path, *words: str) -> Iterator[Running]:
    demo = Running(directory, *words)
    try:
        yield demo
    finally:
        demo.process.kill()
        demo.ended()
        assert demo.process.stdout is not None
        demo.process.stdout.close()


def get(url: str, token: str) -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
        body = response.read()
        return json.loads(body) if response.headers["Content-Type"].startswith("application/json") else body


def test_the_page_shows_tenants_at_work(tmp_path: Path) -> None:
    """It prints where the page is; requests are admitted, refused and made to wait, and usage has a past.

    A limit that somebody changes binds the tenants; Ctrl-C ends all of it, and leaves nothing behind.
    """
    with running(tmp_path) as demo:
        found = demo.wait_for(r"page: (http://127\.0\.0\.1:\d+)/ui/#token=(zae_\w+)")
        where, token = found[1], found[2]
        assert b"<html" in get(f"{where}/ui/", token)
        url = demo.wait_for(r"--store (sqlite:\S+) -N demo")[1]
        with SyncRateLimiter.open(url, namespace=NAMESPACE) as limiter:
            hours, _ = limiter.get_usage_snapshots(resource="gpt-4", window_type="hourly", limit=1000)
            assert len({one.window_start for one in hours}) > 20

            def reports() -> dict[str, Any]:
                return {one.name: one for one in limiter.repository.get_reports()}

            wait_until(lambda: reports().get("gateway") is not None and reports()["gateway"].refused > 0)
            assert {one.entity_id for one in reports()["gateway"].refusals} <= PARENTS.keys()
            wait_until(lambda: "nightly-index" in reports() and reports()["nightly-index"].admitted > 2)
            # Nobody of Initech comes through any more, once there are next to no requests for it.
            limiter.set_limits("initech", [Limit.per_day("rpm", 1), Limit.per_minute("tpm", 10_000)], "gpt-4")
            wait_until(
                lambda: any(one.entity_id == "initech" for one in reports()["gateway"].refusals),
                "a limit that was changed did not bind",
            )
        demo.process.send_signal(signal.SIGINT)
        assert demo.ended() == 0, demo.said
        counts = re.search(r"requests: (.*)", demo.said)
        assert counts is not None
        assert {word for word in ("admitted", "refused", "waited") if word in counts[1]} == {
            "admitted",
            "refused",
            "waited",
        }
        assert "Traceback" not in demo.said
    assert list(tmp_path.iterdir()) == []


BROWSER = """\
#!{python}
import pathlib, sys, urllib.request
where = sys.argv[1]
with urllib.request.urlopen(where.partition("#")[0]) as page:
    pathlib.Path(__file__).with_name("opened").write_text(f"{{page.status}} {{where}}")
"""


def test_the_page_is_opened_for_whoever_sits_there(tmp_path: Path) -> None:
    """On a terminal a browser is started with the address that is told, and is answered while it runs."""
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(BROWSER.format(python=sys.executable), encoding="utf-8")
    browser.chmod(0o700)
    with Terminal(
        "demo", "--ui", columns=160, rows=40, directory=tmp_path, TMPDIR=str(tmp_path), BROWSER=str(browser)
    ) as terminal:
        wait_until(lambda: bool(terminal.read()) and opened.exists() and bool(opened.read_text()))
        screen = terminal.until(lambda text: "change a limit" in text, "it is not served")
        told = re.search(r"page: (\S+)", screen)
        assert told is not None
        assert opened.read_text() == f"200 {told[1]}"
        terminal.press("\x03")
        assert terminal.ended() == 0


@pytest.mark.parametrize("how", ["by itself", "terminated", "interrupted at the start"])
def test_it_ends_and_leaves_nothing(tmp_path: Path, how: str) -> None:
    """After so many seconds, by a TERM signal, and while it is still making up the past."""
    with running(tmp_path, *(["--seconds", "1"] if how == "by itself" else [])) as demo:
        if how == "terminated":
            demo.wait_for("page: ")
            demo.process.send_signal(signal.SIGTERM)
        elif how != "by itself":
            demo.wait_for("making up")
            demo.process.send_signal(signal.SIGINT)
        assert demo.ended() == (130 if "start" in how else 0), demo.said
        assert "Traceback" not in demo.said
        assert "ResourceWarning" not in demo.said
        assert ("the demo is over" in demo.said) == ("start" not in how)
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has not installed the server is told how, before anything is made."""
    monkeypatch.setattr(showcase_module, "NEEDED", ("starlette", "no_such_server"))
    result = run("demo", "--ui")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: the page needs no_such_server, which is not installed\n"
        'hint: install this package with its extras: pip install ".[cli,server]"\n'
    )


def test_a_port_that_is_taken(run: Run) -> None:
    """It is told at once, and not after the past was made up."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run("demo", "--ui", "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 1
    assert "choose another --port" in result.stderr
    assert "making up" not in result.stderr


@pytest.mark.parametrize("word", ["--no-open", "--seconds 3", "--port 8000"])
def test_options_of_the_page_need_it(run: Run, word: str) -> None:
    """They say nothing about the plain demo."""
    result = run("demo", *word.split())
    assert result.exit_code == 2
    assert "go with --ui" in result.stderr
