"""All that is asked of a release before it is one: ``make release-check``, and the workflow of a release.

It builds twice and compares, writes the list of parts beside the distributions, checks licences and asks for
known vulnerabilities. What it leaves behind is in ``dist``.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.release import audit, licences
from tests.release.distributions import ROOT, build, differences
from tests.release.parts import parts_list


def main() -> int:
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    built = build(dist)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        different = differences(built, build(place / "again"))
        (wheel,) = (path for path in built if path.suffix == ".whl")
        parts = parts_list(wheel, place)
    (dist / "sbom.cdx.json").write_text(json.dumps(parts, indent=2) + "\n", encoding="utf-8")
    print(f"built twice: {', '.join(different) + ' differ' if different else 'the same bytes'}")
    print(f"parts: {len(parts['components'])}, in dist/sbom.cdx.json")
    refused = licences.complaints()
    print(
        "\n".join(
            ["licences that nobody has agreed to:", *refused] if refused else ["licences: all agreed to"]
        )
    )
    audited = audit.main([])
    return 1 if different or refused else audited


if __name__ == "__main__":
    sys.exit(main())
