"""What is served of the page: the right files and headers, and libraries that are what they say."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.documents.wheel import ROOT, build
from zae_limiter.server import ServerConfig
from zae_limiter.server.app import application
from zae_limiter.server.page import POLICY, accepts_gzip
from zae_limiter.server.page.files import FOLDER, page_files

LINES_MAX = 300
OWN = sorted([*FOLDER.glob("*.js"), *FOLDER.glob("*.css"), *FOLDER.glob("*.html")])


@asynccontextmanager
async def client(**more: object) -> AsyncIterator[httpx.AsyncClient]:
    config = ServerConfig(**{"store": "memory://", "ui": True, **more})  # type: ignore[arg-type]
    app = application(config)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8400") as asking,
    ):
        yield asking


async def test_the_document_and_all_that_it_names() -> None:
    """Each address in the document is served, with its type and the policy, to be kept for ever."""
    async with client() as asking:
        document = await asking.get("/ui/")
        assert (document.status_code, document.headers["cache-control"]) == (200, "no-cache")
        assert document.headers["content-type"] == "text/html; charset=utf-8"
        named = re.findall(r'(?:src|href)="([^"]+)"', document.text)
        assert len(named) > 10
        for name in named:
            answer = await asking.get(f"/ui/{name}")
            assert answer.status_code == 200, name
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert answer.headers["x-content-type-options"] == "nosniff"
            if name.endswith(".js"):
                assert answer.headers["content-type"] == "text/javascript; charset=utf-8"


async def test_modules_that_modules_name_are_loaded_ahead() -> None:
    """What any module imports is there, and is in the document, so that no module waits for another."""
    files = page_files()
    for path, file in files.assets.items():
        if "/" in path or not path.endswith(".js"):
            continue
        for imported in re.findall(r'from "\./([^"]+)"', file.body.decode()):
            assert imported in files.assets, f"{path} imports {imported}"
            assert f"/{imported}".encode() in files.document.body, f"{imported} is not preloaded"


async def test_what_a_browser_has_is_not_sent_again() -> None:
    """By its tag, compressed or not; another content has another address."""
    async with client() as asking:
        packed = await asking.get("/ui/", headers={"accept-encoding": "gzip"})
        plain = await asking.get("/ui/", headers={"accept-encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        assert packed.text == plain.text
        for answer in (packed, plain):
            again = await asking.get("/ui/", headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["content-security-policy"] == POLICY
        other = await asking.get("/ui/", headers={"if-none-match": '"another"'})
        assert other.status_code == 200


async def test_files_of_another_version_are_not_mixed_in() -> None:
    """Neither another digest nor a way out of the folder is answered with a file."""
    digest = page_files().digest
    async with client() as asking:
        for path in (
            "/ui/assets/0000000000000000/app.js",
            f"/ui/assets/{digest}/../../__init__.py",
            f"/ui/assets/{digest}/%2e%2e/%2e%2e/__init__.py",
            f"/ui/assets/{digest}/vendor/hashes.txt",
            f"/ui/assets/{digest}/index.html",
            f"/ui/assets/{digest}/",
        ):
            answer = await asking.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (
                404,
                "application/problem+json",
            ), path


async def test_shorter_addresses_lead_to_it() -> None:
    """Whoever leaves out a slash or the path is led on, also below a prefix; without the page nobody is."""
    async with client() as asking:
        for path in ("/", "/ui"):
            answer = await asking.get(path)
            assert (answer.status_code, answer.headers["location"]) == (307, "ui/")
    async with client(ui=False) as asking:
        for path in ("/", "/ui", "/ui/"):
            assert (await asking.get(path)).status_code == 404


def test_a_change_of_any_file_changes_the_address(tmp_path: Path) -> None:
    """So that nothing that is kept for ever is ever stale."""
    digests = set()
    for text in ("one", "two"):
        folder = tmp_path / text
        (folder / "vendor").mkdir(parents=True)
        (folder / "index.html").write_text("<script src={assets}/app.js>")
        (folder / "app.js").write_text("same")
        (folder / "vendor" / "library.js").write_text(text)
        found = page_files(folder)
        digests.add(found.digest)
        assert found.document.body.decode() == f"<script src=assets/{found.digest}/app.js>"
        packed = found.assets["vendor/library.js"].gzipped
        assert packed is not None
        assert gzip.decompress(packed) == text.encode()
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("said", "takes"),
    [("gzip", True), ("br, GZIP;q=0.5", True), ("gzip;q=0", False), ("br", False), ("", False)],
)
def test_who_takes_what_is_compressed(said: str, takes: bool) -> None:
    """A client that forbids it is not sent it."""
    assert accepts_gzip(said) is takes


def test_nothing_is_in_line() -> None:
    """No script or style stands in the document, no code or markup is made from text, all files are small."""
    document = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:|https?:", document) == []
    for path in OWN:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= LINES_MAX, path.name
        if path.suffix == ".js":
            made = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?:"
            assert re.findall(made, text) == [], path.name
        assert "@import" not in text


def test_libraries_are_what_was_checked_in() -> None:
    """Each file of a library has the hash that is written down, and none is there that is not."""
    vendor = FOLDER / "vendor"
    written = {}
    for line in (vendor / "hashes.txt").read_text(encoding="utf-8").splitlines():
        digest, name = line.split("  ")
        written[name] = digest
    found = {
        path.relative_to(vendor).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in vendor.rglob("*")
        if path.is_file() and path.name != "hashes.txt"
    }
    assert found == written
    for folder in vendor.iterdir():
        assert folder.is_file() or (folder / "LICENSE").is_file(), folder.name
    decision = (ROOT / "docs/adr/0143-libraries-of-the-page.md").read_text(encoding="utf-8")
    for folder in {name.split("/")[0] for name in written}:
        name, _, version = folder.rpartition("-")
        assert f"{name} {version}" in decision.lower(), f"{folder} is not in the decision"


def test_the_wheel_has_all_files(tmp_path: Path) -> None:
    """Whoever installs the package has the page, with the licences of what it is made of."""
    import zipfile

    with zipfile.ZipFile(build(tmp_path)) as wheel:
        prefix = "zae_limiter/server/page/static/"
        inside = {name.removeprefix(prefix) for name in wheel.namelist() if name.startswith(prefix)}
    here = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert inside == here
    assert "vendor/uplot-1.6.32/LICENSE" in inside
