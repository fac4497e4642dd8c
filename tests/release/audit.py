"""Ask for known vulnerabilities of what is locked, and never take "nobody answered" for "there are none".

``make audit``, a workflow every week and ``make release-check`` run it. It ends with 0 when everybody was
asked about and nothing is known, with 1 when something is, and with 3 when nobody could be asked: then it
says so in capital letters.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / ".engines" / "release" / "bin" / "pip-audit"
REQUIREMENTS = ROOT / "requirements"
LEFT_OUT = {
    "older-0.10.lock": "a release of long ago, which fills tables that `upgrade` is tested with",
    "older-0.17.lock": "likewise, and it answers the script of the contract",
}
"""Locks that nobody is asked about, for nothing in them may change; all others are."""
CLEAN, VULNERABLE, NOT_ASKED = 0, 1, 3

LOUD = """
****************************************************************
*  NOT AUDITED: NOBODY COULD BE ASKED FOR KNOWN VULNERABILITIES *
*  THIS IS NOT A PASS. RUN IT AGAIN WHERE THERE IS A NETWORK.   *
****************************************************************
"""


def audit(lock: Path, service: str | None = None, timeout_seconds: int = 15) -> tuple[int, str]:
    """The verdict on one lock file, and what is to be told."""
    flags = ["--require-hashes", "--disable-pip", "--progress-spinner=off", "--format=json"]
    flags += ["--timeout", str(timeout_seconds), "--vulnerability-service=osv", "--requirement", str(lock)]
    if service is not None:
        flags += ["--osv-url", service]
    try:
        ran = subprocess.run([PROGRAM, *flags], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return NOT_ASKED, f"{lock.name}: pip-audit is not installed; run: make engines"
    try:
        parts = json.loads(ran.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = (ran.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return NOT_ASKED, f"{lock.name}: {reason}"
    unasked = [part["name"] for part in parts if "vulns" not in part]
    if unasked or not parts:
        return NOT_ASKED, f"{lock.name}: not asked about: {', '.join(unasked) or 'anything'}"
    wrong = [f"{part['name']} {part['version']}: {one['id']}" for part in parts for one in part["vulns"]]
    if wrong:
        return VULNERABLE, "\n".join([f"{lock.name}: known vulnerabilities", *wrong])
    if ran.returncode:
        return NOT_ASKED, f"{lock.name}: ended with {ran.returncode}: {ran.stderr.strip()}"
    return CLEAN, f"{lock.name}: {len(parts)} packages, nothing is known"


def locks(folder: Path = REQUIREMENTS) -> list[Path]:
    """All that is asked about: what users may have, and what tests, pages and releases are made with."""
    return sorted(path for path in folder.glob("*.lock") if path.name not in LEFT_OUT)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("locks", nargs="*", type=Path)
    parser.add_argument("--service", help="another OSV database than the public one")
    given = parser.parse_args(arguments)
    verdicts = []
    for lock in given.locks or locks():
        verdict, told = audit(lock, given.service)
        verdicts.append(verdict)
        print(told)
    if NOT_ASKED in verdicts:
        print(LOUD, file=sys.stderr)
        if "GITHUB_ACTIONS" in os.environ:
            print("::error title=Not audited::Nobody could be asked for known vulnerabilities.")
    return VULNERABLE if VULNERABLE in verdicts else max(verdicts)


if __name__ == "__main__":
    sys.exit(main())
