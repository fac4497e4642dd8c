"""The licences of everything that is locked, compared with those that we may use."""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "dev.lock"
PIN = re.compile(r"^([A-Za-z0-9._-]+)==[^ ;\\]+(?: ; (?P<marker>[^\\]*))?", re.MULTILINE)

ALLOWED = frozenset(
    [
        *("MIT", "MIT-0", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "ISC"),
        *("MPL-2.0", "PSF-2.0", "Python-2.0", "CNRI-Python", "Unlicense"),
    ]
)
"""Who uses a package may pass it on with a program of any licence."""

SAID_OTHERWISE = {
    "MIT License": "MIT",
    "3-Clause BSD License": "BSD-3-Clause",  # before the shorter one that is part of it
    "BSD License": "BSD",
    "Apache Software License": "Apache-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "ISC License (ISCL)": "ISC",
    "The Unlicense (Unlicense)": "Unlicense",
    "DFSG approved": "",
}
"""Classifiers and old texts, in today's words; what says nothing is passed over."""

EXCEPTIONS = {
    "psycopg": "LGPL-3.0: the driver of the extra postgres, used as it is, imported and not passed on",
    "psycopg-binary": "LGPL-3.0: the same for development only",
    "psycopg-pool": "LGPL-3.0: a part of the same, with which benchmarks measure another limiter",
}


def licence_of(found: Distribution) -> str:
    """What a distribution says of itself: an expression, or its classifiers, or its old field."""
    said = found.metadata
    if expression := said.get("License-Expression"):
        return str(expression)
    classifiers = [
        one.rpartition(" :: ")[2] for one in said.get_all("Classifier") or [] if one.startswith("License")
    ]
    return " OR ".join(classifiers) or str(said.get("License") or "").partition("\n")[0]


def is_allowed(licence: str) -> bool:
    """Whether every part that binds is one that we may use; of several to choose from, one has to be."""
    words = licence
    for said, word in SAID_OTHERWISE.items():
        words = words.replace(said, word)
    choices = [[part.strip(" ()") for part in choice.split(" AND ")] for choice in words.split(" OR ")]
    known = [choice for choice in choices if any(choice)]
    return bool(known) and any(all(part in ALLOWED for part in choice) for choice in known)


def locked(lock: Path = LOCK) -> list[tuple[str, str]]:
    """Each pin with the systems that need it."""
    return [(found[1], found["marker"] or "") for found in PIN.finditer(lock.read_text(encoding="utf-8"))]


def installed(lock: Path) -> dict[str, Distribution]:
    """What stands for a lock: the environment that the Makefile makes from it, or that of the tests."""
    own = [str(path) for path in ROOT.glob(f".engines/{lock.stem}/lib/python*/site-packages")]
    return {_plain(found.name): found for found in distributions(path=own or sys.path)}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def complaints(lock: Path = LOCK) -> list[str]:
    """What is locked and has a licence that nobody has agreed to, or is not there to be asked."""
    told = []
    there = installed(lock)
    for name, marker in locked(lock):
        found = there.get(_plain(name))
        if found is None:
            told += [] if marker else [f"{name}: not installed, so nobody knows its licence"]
        elif not is_allowed(licence_of(found)) and name not in EXCEPTIONS:
            told.append(f"{name}: {licence_of(found) or 'no licence'}")
    return told
