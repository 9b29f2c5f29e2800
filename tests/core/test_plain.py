"""Plain JSON: strict both ways."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import FormatError
from dovetail.core.plain import dumps, from_plain, read_json, to_plain


@dataclass(frozen=True)
class Inner:
    x: float
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    inner: Inner
    many: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (0, "")
    named: dict[str, float] = field(default_factory=dict)
    listed: list[bool] = field(default_factory=list)
    either: int | str | None = None
    anything: Any = None

    def __post_init__(self):
        if len(self.many) > 3:
            raise ValueError("at most three")


floats = st.floats(allow_nan=False)
inners = st.builds(Inner, floats, st.sampled_from("ab"))
outers = st.builds(
    Outer,
    inners,
    st.lists(inners, max_size=3).map(tuple),
    st.tuples(st.integers(), st.text(max_size=5)),
    st.dictionaries(st.text(max_size=5), floats, max_size=3),
    st.lists(st.booleans(), max_size=3),
    st.none() | st.integers() | st.text(max_size=5),
    st.none() | st.text(max_size=5) | st.lists(st.integers(), max_size=2),
)


@given(outers)
def test_there_and_back(value):
    assert from_plain(Outer, to_plain(value)) == value
    assert from_plain(Outer, json.loads(dumps(value))) == value


@given(outers)
def test_the_same_value_gives_the_same_bytes(value):
    assert dumps(value) == dumps(from_plain(Outer, json.loads(dumps(value))))


def test_numbers_that_are_not_finite_survive_where_a_float_is_expected():
    for number in (math.inf, -math.inf, math.nan):
        text = dumps(Inner(number))
        assert "NaN" not in text
        assert "Infinity" not in text
        assert str(from_plain(Inner, json.loads(text)).x) == str(number)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "value: field 'inner' is missing"),
        ({"inner": {}}, "value.inner: field 'x' is missing"),
        ({"inner": {"x": "1"}}, "value.inner.x: expected float, found str '1'"),
        ({"inner": {"x": True}}, "value.inner.x: expected float, found bool True"),
        ({"inner": {"x": None}}, "value.inner.x: expected float, found NoneType None"),
        ({"inner": {"x": 10**310}}, "value.inner.x: expected float, found int 1000"),
        ({"inner": {"x": 1, "y": 2}}, "value.inner: unknown field 'y'"),
        ({"inner": {"x": 1, "kind": "c"}}, "value.inner.kind: expected "),
        ({"inner": {"x": 1, "kind": ["a"]}}, "value.inner.kind: expected"),
        ({"inner": {"x": 1}, "many": [{"x": 1}, 3]}, "value.many[1]: expected Inner, found int 3"),
        ({"inner": {"x": 1}, "pair": [1]}, "value.pair: expected 2 items, found 1"),
        ({"inner": {"x": 1}, "pair": ["1", ""]}, "value.pair[0]: expected int, found str '1'"),
        ({"inner": {"x": 1}, "named": {"a": []}}, "value.named.a: expected float, found list []"),
        ({"inner": {"x": 1}, "listed": [1]}, "value.listed[0]: expected bool, found int 1"),
        (
            {"inner": {"x": 1}, "either": 1.5},
            "value.either: expected int | str | None, found float",
        ),
        ({"inner": {"x": 1}, "many": [{"x": 1}] * 4}, "value: at most three"),
    ],
)
def test_errors_name_the_place(value, message):
    with pytest.raises(FormatError) as caught:
        from_plain(Outer, value)
    assert str(caught.value).startswith(message)


def test_long_values_are_shortened_in_errors():
    with pytest.raises(FormatError) as caught:
        from_plain(int, "x" * 10_000)
    assert len(str(caught.value)) < 120


def test_what_json_has_no_word_for_is_a_type_error():
    with pytest.raises(TypeError, match="cannot write set as JSON"):
        dumps({"a": {1, 2}})
    assert to_plain(Path("a") / "b") == str(Path("a") / "b")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not readable as JSON"),
        (b"{'a': 1}", "not readable as JSON"),
        (b"[NaN]", "NaN is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b"[" * 200_000, "not readable as JSON"),
        (b"\xff\xff", "not readable as JSON"),
        (b"9" * 10_000, "not readable as JSON"),
        (b'"' + b"a" * 200 + b'"', "202 bytes is more than"),
    ],
)
def test_files_that_are_no_json_of_ours(data, reason, tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(data)
    most = 100 if b"a" * 100 in data else 1 << 20
    with pytest.raises(FormatError, match=reason) as caught:
        read_json(file, most_bytes=most)
    assert str(file) in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(FormatError, match="no such file"):
        read_json(tmp_path / "a.json")
    with pytest.raises(FormatError, match="not readable"):
        read_json(tmp_path)


def test_a_file_at_the_limit_is_read(tmp_path):
    (tmp_path / "a.json").write_text("[1, 2]")
    assert read_json(tmp_path / "a.json", most_bytes=6) == [1, 2]


def test_indentation_never_outgrows_what_it_indents():
    deep = [0] * 1000
    for _ in range(100):
        deep = [deep]
    assert len(dumps(deep)) < 10_000
    assert json.loads(dumps(deep)) == deep
