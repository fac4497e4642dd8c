"""The package of the aggregator: those of our own sources that its handler can come to import.

The runtime of Lambda has botocore, so no wheel is needed. The same sources make the same bytes, wherever
and whenever they are packed: the order is that of the names, and every file has the oldest time that a
zip file knows. So the hash tells whether a function runs the code of this installation.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from typing import NamedTuple

from ..version import client_version

HANDLER = "zae_limiter_aggregator.handler.handler"
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
    found: dict[str, bytes] = {}
    owed, seen = [module], {module}
    while owed:
        name = owed.pop()
        place = _place(name)
        if place is None:
            continue
        path, source = place
        found[path] = source
        package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
        for imported in (name.rpartition(".")[0], *_imports(ast.parse(source), package)):
            if imported not in seen and not f"{imported}.".startswith(f"{LEFT_OUT}."):
                seen.add(imported)
                owed.append(imported)
    return found


def _place(module: str) -> tuple[str, bytes] | None:
    """The path and the source of one of our modules; ``None`` if it is something else."""
    path = module.replace(".", "/")
    top, _, rest = path.partition("/")
    for end in (".py", "/__init__.py") if top in PACKAGES else ():
        file = files(top).joinpath(f"{rest}{end}".lstrip("/"))
        if file.is_file():
            return f"{path}{end}", file.read_bytes()
    return None


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """The modules that a source may import; a name that is imported from a package may be one, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)
