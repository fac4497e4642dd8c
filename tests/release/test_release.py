"""What is asked of a release: the same bytes twice, nothing foreign, licences, an audit that tells."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.release import audit, licences
from tests.release.distributions import ROOT, build, differences, names_in
from tests.release.parts import parts_list

PLANTED = "click"
SOME = ("click==8.1.8", "rich==13.9.4")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def wheel(built: list[Path]) -> Path:
    return next(path for path in built if path.suffix == ".whl")


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Two pins with hashes, as a lock file has them."""
    path = tmp_path / "some.lock"
    path.write_text("".join(f"{pin} --hash=sha256:{'0' * 64}\n" for pin in SOME), encoding="utf-8")
    return path


class _Database(BaseHTTPRequestHandler):
    """Stands for the database of vulnerabilities: it knows of one, in one package."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = [{"id": "PLANTED-1", "summary": "planted", "affected": []}]
        body = json.dumps(
            {"vulns": found} if asked["package"]["name"] == self.server.planted else {}
        ).encode()  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def database() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Database)
    server.planted = ""  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def url(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}/v1/query"


def test_two_builds_are_the_same_bytes(built: list[Path], tmp_path: Path) -> None:
    """Whoever builds the commit can compare what was published with what they have."""
    assert len(built) == 2
    assert differences(built, build(tmp_path / "again")) == []


def test_a_difference_is_seen(built: list[Path], tmp_path: Path) -> None:
    """Files that are dated otherwise are other bytes; a file that is missing is one too."""
    assert differences(built, build(tmp_path / "later", epoch="1800000000")) == [path.name for path in built]
    assert differences(built, built[1:]) == [built[0].name]


def test_the_wheel_has_what_belongs_and_nothing_else(wheel: Path) -> None:
    """Sources of both packages as they are here, the page with its licences, the marks for type checkers."""
    names = set(names_in(wheel))
    info = {name for name in names if ".dist-info/" in name}
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.is_file()}
    assert names - info == {name for name in sources if "__pycache__" not in name}
    assert {"zae_limiter/py.typed", "zae_limiter_aggregator/py.typed"} <= names
    assert {name.partition("/")[2] for name in info} == {
        *("METADATA", "WHEEL", "RECORD", "entry_points.txt"),
        *("licenses/LICENSE", "licenses/THIRD-PARTY.md"),
    }


def test_what_others_made_is_named() -> None:
    """Each folder of the page's libraries, with its version and the licence that stands in it."""
    page = (ROOT / "THIRD-PARTY.md").read_text(encoding="utf-8")
    vendor = ROOT / "src/zae_limiter/server/page/static/vendor"
    folders = [path for path in vendor.iterdir() if path.is_dir()]
    assert len(folders) == 3
    for folder in folders:
        name, _, version = folder.name.rpartition("-")
        assert re.search(
            rf"^\| \[{name}\]\(\S+\) \| {re.escape(version)}\b", page, re.MULTILINE | re.IGNORECASE
        )
        assert [str(one.relative_to(vendor.parent)) for one in folder.glob("LICENSE*")]
        assert all(f"vendor/{folder.name}/{one.name}" in page for one in folder.glob("LICENSE*"))


def test_the_list_of_parts(wheel: Path, tmp_path: Path) -> None:
    """What the extras bring, with versions, and what the page loads; it is about the package itself."""
    parts = parts_list(wheel, tmp_path)
    names = {part["name"].lower(): part.get("version") for part in parts["components"]}
    assert parts["bomFormat"] == "CycloneDX"
    assert parts["metadata"]["component"]["name"] == "zae-limiter"
    assert {"click", "botocore", "psycopg", "fastapi", "grpcio"} <= set(names)
    assert (names["htm"], names["uplot"], names["inter"]) == ("3.1.1", "1.6.32", "5.3.0")
    assert "pytest" not in names


@pytest.mark.parametrize("lock", sorted(audit.REQUIREMENTS.glob("*.lock")), ids=lambda lock: lock.stem)
def test_licences_of_what_is_locked(lock: Path) -> None:
    """Each is one that somebody has agreed to, as its own environment tells."""
    assert licences.complaints(lock) == []


def test_every_exception_is_needed() -> None:
    """A licence is excepted while something of it is locked."""
    pins = {name for lock in audit.REQUIREMENTS.glob("*.lock") for name, _ in licences.locked(lock)}
    assert set(licences.EXCEPTIONS) <= pins


@pytest.mark.parametrize(
    ("licence", "is_allowed"),
    [
        ("MIT", True),
        ("MIT License OR Apache Software License", True),
        ("3-Clause BSD License", True),
        ("Apache-2.0 AND CNRI-Python", True),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("LGPL-3.0-only", False),
        ("", False),
        ("DFSG approved", False),
    ],
)
def test_which_licences(licence: str, is_allowed: bool) -> None:
    """What binds must all be allowed; of several to choose from, one."""
    assert licences.is_allowed(licence) is is_allowed


def test_an_audit_that_finds_nothing(database: ThreadingHTTPServer, lock: Path) -> None:
    verdict, told = audit.audit(lock, url(database))
    assert (verdict, told) == (audit.CLEAN, "some.lock: 2 packages, nothing is known")


def test_an_audit_that_finds_something(database: ThreadingHTTPServer, lock: Path) -> None:
    """A planted answer fails the audit and is told."""
    database.planted = PLANTED  # type: ignore[attr-defined]
    verdict, told = audit.audit(lock, url(database))
    assert verdict == audit.VULNERABLE, told
    assert "click 8.1.8: PLANTED-1" in told


def test_every_lock_is_asked_about(database: ThreadingHTTPServer, capfd: pytest.CaptureFixture[str]) -> None:
    """By itself, whichever is added; those that are left out are there, and have a reason."""
    there = {path.name for path in audit.REQUIREMENTS.glob("*.lock")}
    assert set(audit.LEFT_OUT) < there
    assert all(audit.LEFT_OUT.values())
    assert audit.main(["--service", url(database)]) == audit.CLEAN
    told = capfd.readouterr().out
    assert {line.partition(":")[0] for line in told.splitlines()} == there - set(audit.LEFT_OUT)


def test_an_audit_that_nobody_answers(
    lock: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with a status of its own, says so in capital letters, and marks the run of a workflow."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert audit.main([str(lock), "--service", "http://127.0.0.1:1/v1/query"]) == audit.NOT_ASKED
    out, error = capfd.readouterr()
    assert "NOT AUDITED" in error
    assert "::error title=Not audited::" in out


def test_an_audit_without_its_program(lock: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not installed is not asked."""
    monkeypatch.setattr(audit, "PROGRAM", tmp_path / "nowhere")
    assert audit.audit(lock)[0] == audit.NOT_ASKED


def test_an_audit_of_nothing(database: ThreadingHTTPServer, tmp_path: Path) -> None:
    """A lock without pins is no pass."""
    empty = tmp_path / "empty.lock"
    empty.touch()
    assert audit.audit(empty, url(database))[0] == audit.NOT_ASKED
