"""Requests that are filled in: word for word what the compiler of requests says."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zae_limiter.backends.dynamodb import request_templates
from zae_limiter.backends.dynamodb.expressions import fields_of, write_request
from zae_limiter.backends.dynamodb.request_templates import UpdateTemplates
from zae_limiter.exceptions import ValidationError
from zae_limiter.repository_protocol import Absent, AtLeast, AtMost, Equal, Exists, Key, Update

KEY = Key("p", "s")
names = st.sampled_from(["tk", "b_100%_tk", 'quo"te', "back\\slash", "é中", "%s", "%(x)d", "ttl", "{0}"])
texts = st.text(max_size=8) | st.sampled_from(["%s", '"', "\\", "\ud800", "😀", "a%%b"])
integers = st.integers(-(10**38) + 1, 10**38 - 1)
scalars = integers | texts | st.booleans()
values = scalars | st.none() | st.floats(1, 9) | st.lists(integers, max_size=2)
conditions = (
    st.just(Exists())
    | st.just(Absent())
    | st.builds(Equal, names, scalars | st.none())
    | st.builds(AtLeast, names, integers | texts)
    | st.builds(AtMost, names, integers | texts)
)


@st.composite
def updates(draw: st.DrawFn) -> Update:
    set_ = draw(st.dictionaries(names, values, max_size=3))
    free = [name for name in draw(st.lists(names, unique=True, max_size=3)) if name not in set_]
    add = {name: draw(integers) for name in free}
    key = Key(draw(texts.filter(bool)), draw(texts.filter(bool)))
    return Update(key, add, set_, tuple(draw(st.lists(conditions, max_size=4))))


def compiled(update: Update) -> dict[str, Any]:
    return write_request("t", update)[1] | {"ReturnValues": "ALL_NEW"}


@given(st.lists(updates(), min_size=1, max_size=6))
def test_a_filled_request_is_the_compiled_one(writes: list[Update]) -> None:
    """For all kinds of names, values and conditions, and however the shapes follow each other."""
    templates = UpdateTemplates("t")
    for write in [*writes, *writes[::-1]]:
        assert fields_of(templates.request(write)) == compiled(write)


@given(st.lists(st.tuples(integers, integers, texts, st.booleans()), min_size=2, max_size=5))
def test_one_shape_serves_all_values(rows: list[tuple[int, int, str, bool]]) -> None:
    """Only the first write of a shape is compiled."""
    templates = UpdateTemplates("t")
    for amount, floor, text, flag in rows:
        write = Update(KEY, {"n": amount}, {"x": text, "gone": None}, (AtLeast("n", floor), Equal("f", flag)))
        request = templates.request(write)
        assert isinstance(request, str)
        assert fields_of(request) == compiled(write)
    assert len(templates._templates) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Update(KEY, {"n": 1}), Update(KEY, {}, {"n": 1})),
        (Update(KEY, {}, {"n": 1}), Update(KEY, {}, {"n": "1"})),
        (Update(KEY, {}, {"n": 1}), Update(KEY, {}, {"n": True})),
        (Update(KEY, {}, {"n": 1}), Update(KEY, {}, {"n": None})),
        (Update(KEY, when=(AtLeast("n", 1),)), Update(KEY, when=(AtMost("n", 1),))),
        (Update(KEY, when=(Equal("n", None),)), Update(KEY, when=(Equal("n", 1),))),
        (Update(KEY, when=(Exists(), AtLeast("n", 1))), Update(KEY, when=(AtLeast("n", 1), Exists()))),
        (Update(KEY, when=(Exists(),)), Update(KEY, when=(Absent(),))),
        (Update(KEY, {"a": 1, "b": 2}), Update(KEY, {"b": 1, "a": 2})),
        (Update(KEY, {"a": 1}, {"b": 2}), Update(KEY, {"b": 1}, {"a": 2})),
        (Update(KEY, {"a": 1}, when=(AtLeast("b", 2),)), Update(KEY, {"a": 1, "b": 2})),
    ],
)
def test_different_writes_have_different_shapes(one: Update, other: Update) -> None:
    """In either order."""
    for first, second in ((one, other), (other, one)):
        templates = UpdateTemplates("t")
        templates.request(first)
        assert fields_of(templates.request(second)) == compiled(second)


@pytest.mark.parametrize("large", [10**38, -(10**38)])
def test_too_many_digits_are_refused_in_any_place(large: int) -> None:
    """Also where the shape is known already."""
    templates = UpdateTemplates("t")
    for of in (
        lambda n: Update(KEY, {"n": n}),
        lambda n: Update(KEY, {"m": 1}, {"n": n}),
        lambda n: Update(KEY, {"m": 1}, {"x": "text"}, (AtLeast("n", n),)),
    ):
        templates.request(of(1))
        with pytest.raises(ValidationError, match="38 digits"):
            templates.request(of(large))


def test_what_has_no_slot_is_compiled_each_time() -> None:
    """Maps and lists are rare, and as varied as their contents."""
    templates = UpdateTemplates("t")
    write = Update(KEY, {}, {"metadata": {"a": [1, None]}})
    assert templates.request(write) == compiled(write)
    assert templates._templates == {}


def test_shapes_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits may be named anything, for ever anew."""
    monkeypatch.setattr(request_templates, "SHAPES_MAX", 10)
    templates = UpdateTemplates("t")
    for number in range(35):
        templates.request(Update(KEY, {f"b_{number}_tk": 1}))
        assert len(templates._templates) <= 10
