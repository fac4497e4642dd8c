"""The list of parts of a release (SBOM) in CycloneDX: what the extras bring, and what the page loads."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from tests.documents import wheel

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / ".engines" / "release" / "bin" / "cyclonedx-py"
VENDOR = ROOT / "src" / "zae_limiter" / "server" / "page" / "static" / "vendor"
LICENCES = {"htm": "Apache-2.0", "preact": "MIT", "uplot": "MIT", "inter": "OFL-1.1"}


def vendored() -> list[dict[str, Any]]:
    """What the page loads, by the folders that it is in; preact is inside the file of htm."""
    found = [path.name.rpartition("-") for path in sorted(VENDOR.iterdir()) if path.is_dir()]
    parts = [(name, version) for name, _, version in found]
    parts.append(("preact", f"in htm {dict(parts)['htm']}"))
    return [
        {
            "type": "library",
            "bom-ref": f"vendored-{name}",
            "name": name,
            "version": version,
            "licenses": [{"license": {"id": LICENCES[name]}}],
        }
        for name, version in parts
    ]


def parts_list(built: Path, place: Path) -> dict[str, Any]:
    """Made from an environment with the wheel and all extras; the same every time."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    programs = wheel.environment(place / "venv", built, frozenset(project["optional-dependencies"]))
    out = place / "sbom.json"
    flags = ["--output-reproducible", "--output-format", "JSON", "--output-file", str(out)]
    command = [PROGRAM, "environment", *flags, "--pyproject", ROOT / "pyproject.toml", programs / "python"]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    parts: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    parts["components"] += vendored()
    return parts
