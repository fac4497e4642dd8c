"""Builds the site, `python -m docs.site`.

The pages are staged, the generator makes HTML of them, and the HTML is checked.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from docs.site import checks, contents, staging

ROOT = contents.ROOT
HERE = ROOT / "docs" / "site"
GENERATOR = ROOT / ".engines" / "site" / "bin" / "mkdocs"
PAGE = ROOT / "src" / "zae_limiter" / "server" / "page" / "static"
TAKEN = {
    "inter.woff2": PAGE / "vendor/inter-5.3.0/inter-latin-wght-normal.woff2",
    "icon.svg": PAGE / "icon.svg",
}
"""What the site shares with the page of a server."""


def build(target: Path, work: Path) -> None:
    """The whole site; raises `SystemExit` if the generator has a warning."""
    shutil.rmtree(work, ignore_errors=True)
    pages = work / "pages"
    staging.Staging(pages).run()
    shutil.copytree(HERE / "assets", pages / "assets", dirs_exist_ok=True)
    for name, path in TAKEN.items():
        staging.copy(path, pages / "assets" / name)
    config = {
        "INHERIT": str(HERE / "mkdocs.yml"),
        "docs_dir": str(pages),
        "site_dir": str(target),
        "nav": staging.menu(),
    }
    file = work / "mkdocs.yml"
    file.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    # Quiet, it would not count its warnings.
    command = [str(GENERATOR), "build", "--strict", "--config-file", str(file)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    made = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if made.returncode:
        said = [line for line in made.stderr.splitlines() if not line.startswith("INFO ")]
        raise SystemExit("\n".join(["error: the site is not built:", *said]))
    if wrong := checks.complaints(target):
        raise SystemExit("\n".join(["error: links of the site are wrong:", *wrong]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.site", description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "site", help="the folder of the site")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "site", help="the folder of the staged pages"
    )
    given = parser.parse_args()
    build(given.to.resolve(), given.work.resolve())
    print(f"the site is in {given.to}", file=sys.stderr)


if __name__ == "__main__":
    main()
