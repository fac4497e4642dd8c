"""The package of the aggregator: those of our own sources that its handler can come to import.

The runtime of Lambda has botocore, so no wheel is needed. The same sources make the same bytes, wherever
and whenever they are packed: the order is that of the names, and every file has the oldest time that a
zip file knows. So the hash tells whether a function runs the code of this installation.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any, NamedTuple

from ..version import client_version

HANDLER = "zae_limiter_aggregator.handler.handler"
ROOT = Path(__file__).parents[2]
PACKAGES = ("zae_limiter", "zae_limiter_aggregator")
LEFT_OUT = "zae_limiter.infra"
"""A repository can deploy a stack; a function in one has no business to."""


class PackageInfo(NamedTuple):
    """What a package is, in the words in which Lambda tells it of a function."""

    size: int
    code_sha256: str
    version: str | None
    handler: str
    files: tuple[str, ...]


def build(handler: str = HANDLER) -> bytes:
    """The package of a function as a zip file."""
    version = client_version()
    content = needed_sources(handler.rpartition(".")[0])
    # With this the function can tell its own version.
    metadata = f"Metadata-Version: 2.1\nName: zae-limiter\nVersion: {version}\n"
    content[f"zae_limiter-{version}.dist-info/METADATA"] = metadata.encode()
    package = io.BytesIO()
    with zipfile.ZipFile(package, "w") as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o100644 << 16  # a file of Unix, for all to read
            archive.writestr(entry, content[name], zipfile.ZIP_DEFLATED, compresslevel=9)
    return package.getvalue()


def describe(package: bytes) -> PackageInfo:
    """Size, hash, version and files of a package."""
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        names = tuple(archive.namelist())
    metadata = (re.fullmatch(r"zae_limiter-(.*)\.dist-info/METADATA", name) for name in names)
    version = next((found[1] for found in metadata if found), None)
    return PackageInfo(len(package), code_sha256(package), version, HANDLER, names)


def code_sha256(package: bytes) -> str:
    """The hash by which Lambda knows the code of a function."""
    return base64.b64encode(hashlib.sha256(package).digest()).decode()


def needed_sources(module: str) -> dict[str, bytes]:
    """Our sources that a module imports, at any depth and in any branch, by their paths."""
    finder = _Finder([str(ROOT)], excludes=[LEFT_OUT])
    finder.import_hook(module)
    found = [Path(vars(one)["__file__"]) for one in finder.modules.values()]
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in found}


class _Finder(ModuleFinder):
    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        """Only what is ours: others may be installed beside us."""
        if path is None and name not in PACKAGES:
            raise ImportError(name)
        return super().find_module(name, path, parent)
