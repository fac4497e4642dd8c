"""The site and the page in the browser look like one product."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOOK = ROOT / "src/zae_limiter/server/page/static/look.css"
PAIR = r"light-dark\((#\w+), (#\w+)\)"


def colours(path: str, value: str) -> dict[str, list[str]]:
    """The colours of a sheet by the part of their name that all sheets share, light ones first."""
    found: dict[str, list[str]] = {}
    for name, *them in re.findall(rf"--(?:site-|law-)?([a-z-]+): {value};", (ROOT / path).read_text()):
        found.setdefault(name, []).extend(them)
    return found


def test_there_is_one_palette() -> None:
    """Every colour of the site is that of the page by this name; the violet is that of code alone."""
    page = colours(str(LOOK), PAIR)
    site = colours("docs/site/assets/site.css", "(#[0-9a-f]+)")
    law = colours("docs/assets/law.css", PAIR)
    assert site.pop("violet")
    assert (len(site), len(law)) == (11, 7)
    assert site == {name: page[name] for name in site}
    assert law == {name: page[name] for name in law}
