"""Names as people have them, and any other that is allowed: the alphabet, written down a second time."""

import unicodedata

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

PEOPLE = (
    "ann+x@y.com",
    "auth0|abc",
    "/v1/chat",
    "arn:aws:sts::123456789012:assumed-role/Admin/ann",
    "https://api.example.com/v1/chat?model=gpt-4&n=1",
    "Ann Smith (sales)",
    "user=1,2;3!",
    'it\'s "quoted"',
    "C:\\users\\ann",
    "[bold]x[/bold]",
    "{a}${b}%s",
    "$(id)`id`",
    "*?",
    "~",
    "<<",
    "-x",
    "--",
    "_",
    "..",
    "../../x",
    "null",
    "007",
    "日本語",
    "Zoë\u0301",
    "🦄👩\u200d🔬",
    "العربية",
    "SYSTEM",
    "x/ENTITY",
    "x/BUCKET",
    "/SYSTEM",
    "x" * 256,
    "é" * 250,
    "🦄" * 125,
)
"""Some are no entities, because they begin with ``$``."""

TURNING = "".join(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))))
KEPT = "".join(
    map(chr, (*range(0xFDD0, 0xFDF0), *(p << 16 | low for p in range(17) for low in (0xFFFE, 0xFFFF))))
)
NO_TEXT = ("Cc", "Cs", "Zl", "Zp")


def is_allowed(sign: str) -> bool:
    """Whether a character may stand inside of a name, by the categories of Unicode."""
    return sign not in f"#{TURNING}{KEPT}" and unicodedata.category(sign) not in NO_TEXT


signs = st.characters(exclude_categories=NO_TEXT, exclude_characters=f"#{TURNING}{KEPT}") | st.sampled_from(
    "/:$_-.|+@ \\'\"%*?[]{}ab0"
)
names: SearchStrategy[str] = st.one_of(
    st.sampled_from(PEOPLE),
    st.text(signs, min_size=1, max_size=24).map(str.strip).filter(bool),
)
resources = names.filter(lambda name: name != "_default_")
entities = names.filter(lambda name: name[0] != "$")
