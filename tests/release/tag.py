"""``python -m tests.release.tag v1.2.3`` ends well if the package says that this is its version.

It needs the standard library alone, for it runs before anything is installed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def version(root: Path = ROOT) -> str:
    """What the build would call the package, by the same file and the same pattern."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    where = project["tool"]["hatch"]["version"]
    found = re.search(where["pattern"], (root / where["path"]).read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f"error: {where['path']} has no version")
    return found["version"]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    tags = sys.argv[1:] if arguments is None else list(arguments)
    wanted = f"v{version(root)}"
    if tags == [wanted]:
        print(f"{wanted} is the version of the package")
        return 0
    print(f"error: the tag is {' '.join(tags)!r}, and the package is {wanted!r}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
