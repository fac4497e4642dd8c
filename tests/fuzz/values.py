"""Values that nobody should pass, and some that look as if one could.

Everything here has a ``repr`` that says what it is, for it is what a failing example shows.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from zae_limiter import Limit, LimitName, OnUnavailable, UsageWindow
from zae_limiter.repository_protocol import LAST

RPM = Limit.per_minute("rpm", 60)

HOSTILE_TEXTS = (
    *(
        "",
        " ",
        "\0",
        "a\0b",
        "\ud800",
        "a\udfffb",
        "\U0001f984",
        LAST,
        "\ufeff",
        "\u202eabc",
        "\u0663",
        "\uff41",
    ),
    *(
        "#",
        "a#b",
        "#META",
        "#STATE",
        "#CONFIG#_default_",
        "ENTITY#x",
        "BUCKET#a#b#0",
        "$SYSTEM",
        "$RESOURCE:x",
    ),
    *(
        "/",
        "a/b",
        "a/ENTITY#b",
        "../../etc/passwd",
        "..",
        ".",
        "C:\\x",
        "file:///x",
        "_",
        "_/SYSTEM#",
        "_default_",
    ),
    *(
        ":v",
        ":v0",
        "#n0",
        "attribute_exists(PK)",
        "SET a = :v",
        "' OR 1=1 --",
        "a; DROP TABLE items",
        "%s%n%d",
    ),
    *("{}", '{"S":"x"}', "[]", "null", "NaN", "true", "1", "-1", "1e999", "0x10", "{0.__class__}", "${HOME}"),
    *(
        "\x1b[2J",
        "\x1b]0;x\x07",
        "a\nb",
        "a\r\nSet-Cookie: x",
        "a\n",
        "\t",
        "\x7f",
        "-a",
        "--help",
        "@x",
        "~",
    ),
    *("wcu", "rpm", "user-1", "gpt-4", "default", "x" * 65, "x" * 257, "x" * 5_000, "9" * 5_000),
)

texts: SearchStrategy[str] = st.one_of(
    st.sampled_from(HOSTILE_TEXTS),
    st.text(st.characters(codec=None), max_size=20),
    st.text(st.sampled_from("#/:.$_-ab0\0\x1b\n{}\"'%"), max_size=12),
)


class ArrayLike:
    """Compares element by element, as arrays do, and has no truth value."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return self

    def __ne__(self, other: object) -> Any:
        return self

    def __lt__(self, other: object) -> Any:
        return self

    __gt__ = __le__ = __ge__ = __lt__

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    def __repr__(self) -> str:
        return "ArrayLike()"


class IntegerLike:
    """A number that is no ``int``, as libraries of numbers have them."""

    def __index__(self) -> int:
        return 3

    __int__ = __index__

    def __repr__(self) -> str:
        return "IntegerLike()"


class Unshowable:
    """Has no ``repr`` that could be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Shout(str):
    """A text of a class of its own."""


class Liar(Mapping[Any, Any]):
    """A mapping that does not hold what it says."""

    KINDS = ("empty but true", "keys that are missing", "items of three", "no pairs", "grows")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._asked = 0

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        if self.kind == "empty but true":
            return iter(())
        self._asked += 1
        return iter(["rpm"] * self._asked if self.kind == "grows" else ["rpm"])

    def __getitem__(self, key: Any) -> Any:
        if self.kind == "keys that are missing":
            raise KeyError(key)
        return 1

    def items(self) -> Any:
        return {"items of three": [("rpm", 1, 2)], "no pairs": [5]}.get(self.kind) or super().items()

    def __repr__(self) -> str:
        return f"Liar({self.kind!r})"


class Count(IntEnum):
    TWO = 2


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if depth % 2 else [value]
    return value


def cyclic() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


numbers: SearchStrategy[Any] = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -1, 1, 2, 1000, 10**12, 10**12 + 1, 2**31, 2**63, -(2**63), 10**38, 10**400]),
    st.builds(pow, st.just(10), st.just(5000)),  # which Python will not print
    st.sampled_from([0.0, -0.0, 1.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"), True, False]),
    st.sampled_from(
        [Decimal(1), Decimal("NaN"), Decimal("1e999999"), Fraction(1, 3), 1j, IntegerLike(), Count.TWO]
    ),
)

objects: SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, (), b"", b"rpm", ..., object(), int, len, range(3), ArrayLike()]),
    st.builds(Unshowable),
    st.sampled_from([datetime(2024, 1, 1), datetime(1, 1, 1, tzinfo=UTC), date(2024, 1, 1), ValueError("x")]),  # noqa: DTZ001
    st.sampled_from(
        [LimitName.RPM, OnUnavailable.ALLOW, UsageWindow.DAILY, RPM, [RPM], [RPM, RPM], (RPM,), [None]]
    ),
    st.sampled_from([Shout("rpm"), Shout("a#b"), frozenset({"rpm"}), {"rpm"}, [["rpm", 1]], [("rpm", 1)]]),
    st.sampled_from(Liar.KINDS).map(Liar),
    st.builds(iter, st.lists(st.integers(), max_size=2)),
    st.builds(cyclic),
    st.sampled_from([17, 2_000]).map(nested),
)

scalars = st.one_of(st.none(), st.booleans(), texts, numbers)
shapes: SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(texts, st.integers()), inner, max_size=3)
    ),
    max_leaves=6,
)

amounts: SearchStrategy[Any] = st.dictionaries(
    st.one_of(st.sampled_from(["rpm", "tokens.in", "nope", "wcu", Shout("rpm"), LimitName.RPM]), scalars),
    st.one_of(st.integers(-3, 70), numbers, objects),
    max_size=3,
)
"""Something like a demand."""

anything: SearchStrategy[Any] = st.one_of(texts, numbers, objects, shapes, amounts)
