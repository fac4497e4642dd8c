"""The files of the page: what is in the package, with its type and a name that changes with its content.

All files but the document itself stand in a folder that is called after what is in all of them, so that
browsers keep them for ever and never mix those of two versions. Modules name one another by relative paths,
so nothing is rewritten but the one name in the document. Nothing here knows requests.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

FOLDER = Path(__file__).with_name("static")
DOCUMENT = "index.html"
PLACEHOLDER = b"{assets}"

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
"""What is served at all; a licence, for instance, is only kept beside what it is about."""

COMPRESSED_ALREADY = frozenset({".woff2"})


@dataclass(frozen=True)
class PageFile:
    """One file as it is sent."""

    path: str
    body: bytes

    @property
    def suffix(self) -> str:
        return Path(self.path).suffix

    @property
    def media_type(self) -> str:
        return TYPES[self.suffix]

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'

    @cached_property
    def gzipped(self) -> bytes | None:
        """The same in fewer bytes, where that helps."""
        if self.suffix in COMPRESSED_ALREADY:
            return None
        return gzip.compress(self.body, mtime=0)


@dataclass(frozen=True)
class PageFiles:
    """The document, and all else by its path below ``digest``."""

    document: PageFile
    digest: str
    assets: dict[str, PageFile]


@cache
def page_files(folder: Path = FOLDER) -> PageFiles:
    """What is in the package."""
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in TYPES
    }
    html = found.pop(DOCUMENT)
    hashed = hashlib.sha256()
    for path, body in found.items():
        hashed.update(f"{path}\0{len(body)}\0".encode())
        hashed.update(body)
    digest = hashed.hexdigest()[:16]
    document = html.replace(PLACEHOLDER, f"assets/{digest}".encode())
    assets = {path: PageFile(path, body) for path, body in found.items()}
    return PageFiles(PageFile(DOCUMENT, document), digest, assets)
