"""Of which page the pictures and the film were taken: a digest of its files, kept beside the pictures."""

from __future__ import annotations

import hashlib

from tests.page.browser import ROOT
from zae_limiter.server.page.files import page_files

PLACE = ROOT / "docs" / "pictures"
HOW = {"pictures": "python -m tests.page.pictures", "film": "python -m tests.page.film"}


def digest() -> str:
    """Of the page as it is now: all its files, the document too."""
    files = page_files()
    return hashlib.sha256(files.document.body + files.digest.encode()).hexdigest()[:32]


def note(kind: str) -> None:
    """Remember that they were taken of the page as it is."""
    (PLACE / f"{kind}.digest").write_text(f"{digest()}\n", encoding="ascii")


def older(kind: str) -> str:
    """What to do if the page has changed since; nothing if it has not."""
    if (PLACE / f"{kind}.digest").read_text(encoding="ascii").strip() == digest():
        return ""
    return f"the page has changed since; take the {kind} again, and look at what came out: {HOW[kind]}"
