"""Dots and whiskers lie in their rows, where the axis says; names can be told apart."""

import json
import math
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.views import Figure, Series
from dovetail.report import draw_figure
from dovetail.report.axes import HALF, NARROW, WIDTH
from dovetail.report.blocks import figure_data
from dovetail.report.text import clip, clip_apart, text_width

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ("first", "second", "third")
ONE = Series("one", NAMES, (0.9, 0.8, 0.2), (0.85, 0.5, 0.1), (0.95, 0.9, 0.4))


def of_class(root, name):
    return [e for e in root.iter() if name in e.get("class", "").split()]


def drawn(*series, width=WIDTH, **fields):
    return ET.fromstring(draw_figure(Figure("interval", "t", series, **fields), width=width))


def points_of(root):
    return [json.loads(group.get("data-points")) for group in of_class(root, "plot")[0]]


def rows_of(root):
    """The height of each named row, from its guide."""
    return [float(row.find(SVG + "line").get("y1")) for row in of_class(root, "row")]


def along(root, log=False):
    """From a value to its pixel, as the tick marks of the drawing say."""
    scale = math.log10 if log else float
    ticks = [
        (float(t.get("data-at")), float(t.find(SVG + "line").get("x1")))
        for t in of_class(root, "tick-x")
    ]
    (v0, p0), *_, (v1, p1) = ticks
    return lambda v: p0 + (scale(v) - scale(v0)) / (scale(v1) - scale(v0)) * (p1 - p0)


@pytest.mark.parametrize("log", [False, True], ids=["linear", "log"])
@pytest.mark.parametrize("width", [WIDTH, HALF, NARROW])
def test_dots_and_whiskers_agree_with_the_ticks(width, log):
    root = drawn(ONE, width=width, log_y=log)
    at = along(root, log)
    assert [p[0] for p in points_of(root)[0]] == pytest.approx([at(y) for y in ONE.y], abs=0.06)
    whiskers = [path.get("d") for path in of_class(root, "whisker")]
    for d, y, low, high in zip(whiskers, rows_of(root), ONE.low, ONE.high, strict=True):
        start, end = d.split("M")[1].split("H")
        assert [float(v) for v in start.split()] == pytest.approx([at(low), y], abs=0.02)
        assert float(end) == pytest.approx(at(high), abs=0.02)


def test_the_first_name_is_on_top_whatever_its_value():
    rising = Series("s", NAMES, (0.1, 0.2, 0.3))
    root = drawn(rising)
    heights = [y for _, y, _, _ in points_of(root)[0]]
    assert heights == sorted(heights) == pytest.approx(rows_of(root), abs=0.06)
    shown = [row.find(SVG + "text").text for row in of_class(root, "row")]
    assert shown == list(NAMES)


def test_series_of_a_row_lie_side_by_side_and_nearer_than_the_next_row():
    other = Series("other", NAMES[::-1], (0.2, 0.8, 0.9))
    root = drawn(ONE, other, Series("third", NAMES, (0.5, None, 0.5)))
    by_name = {name: [] for name in NAMES}
    for points in points_of(root):
        for _, y, name, _ in points:
            by_name[name].append(y)
    assert [len(ys) for ys in by_name.values()] == [3, 2, 3]
    assert all(b - a >= 6 for ys in by_name.values() for a, b in pairwise(ys))
    for upper, lower in pairwise(by_name.values()):
        assert min(lower) - max(upper) > max(b - a for a, b in pairwise(upper))


def test_the_words_under_the_pointer_say_the_interval():
    root = drawn(ONE, Series("bare", NAMES, (0.5,) * 3), y_format=".0%")
    first, bare = (points[0][3] for points in points_of(root))
    assert (first, bare) == ("90% (85% to 95%)", "50%")


def test_a_whisker_without_an_end_runs_to_the_edge_and_has_no_cap_there():
    open_below = Series("s", ("a", "b"), (1.0, 2.0), (-math.inf, 1.5), (1.25, math.nan))
    root = drawn(open_below)
    at = along(root)
    first, second = (path.get("d") for path in of_class(root, "whisker"))
    frame = of_class(root, "axis")[0].get("d")
    assert float(first[1:].split()[0]) == pytest.approx(float(frame[1:].split()[0]), abs=0.06)
    assert first.count("v") == second.count("v") == 1
    assert float(second.split("H")[1].split("M")[0]) == pytest.approx(at(2.0), abs=0.02)


@pytest.mark.parametrize("count", [1, 60, 2000])
def test_the_height_grows_with_the_rows_up_to_a_limit(count):
    names = tuple(f"part {i}" for i in range(count))
    root = drawn(Series("s", names, tuple(float(i) for i in range(count))))
    assert 22 * min(count, 60) < float(root.get("height")) < 22 * 60 + 120
    rows = rows_of(root)
    assert len(rows) == count or count > 60
    assert all(b - a >= 14 for a, b in pairwise(rows))


def test_many_rows_have_their_axis_on_both_sides():
    for count, texts in ((10, 1), (40, 2)):
        names = tuple(f"part {i}" for i in range(count))
        root = drawn(Series("s", names, tuple(float(i) for i in range(count))))
        assert {len(list(t.iter(SVG + "text"))) for t in of_class(root, "tick-x")} == {texts}


@pytest.mark.parametrize("width", [WIDTH, HALF, NARROW])
def test_names_that_differ_anywhere_stay_apart_and_whole_in_a_title(width):
    names = tuple(f"{'a' * 60}-{i}-{'b' * 60}" for i in range(5))
    root = drawn(Series("s", names, (1.0, 2.0, 3.0, 4.0, 5.0)), width=width)
    texts = [row.find(SVG + "text") for row in of_class(root, "row")]
    assert [text.find(SVG + "title").text for text in texts] == list(names)
    cut = [text.find(SVG + "title").tail for text in texts]
    assert len(set(cut)) == 5
    assert max(text_width(words) for words in cut) <= width
    left = float(texts[0].get("x"))
    assert left <= 0.45 * width


def test_on_a_phone_long_names_leave_the_values_their_width():
    names = ("a part with a name of forty letters or so", "b")
    root = drawn(Series("s", names, (1.0, 2.0)), width=NARROW)
    start, end = of_class(root, "axis")[0].get("d")[1:].split("H")
    assert float(end) - float(start.split()[0]) > 0.9 * NARROW
    (text, _) = (row.find(SVG + "text") for row in of_class(root, "row"))
    assert text.text == names[0]
    assert float(text.get("y")) < rows_of(root)[0] - 4


def test_what_has_no_place_is_said():
    root = drawn(Series("s", ("a", "b", "c", "d"), (math.inf, 0.0, 1.0, None)), log_y=True)
    words = ["".join(e.itertext()) for e in root.iter(SVG + "text")]
    assert any(w.startswith("2 values are not shown: not finite, or not positive") for w in words)


def test_the_data_are_a_table_of_names_and_values():
    table = figure_data(Figure("interval", "t", (ONE,), y_format=".0%"))
    assert table.columns == ("series", "name", "value", "low", "high")
    assert table.rows[0] == ("one", "first", 0.9, 0.85, 0.95)


names = st.lists(
    st.text(st.sampled_from("ab.m…漢 "), max_size=40), min_size=1, max_size=6, unique=True
)


@settings(max_examples=60, deadline=None)
@given(names, st.floats(60, 200))
def test_cut_names_fit_and_those_that_fit_are_left_alone(names, width):
    for name, cut in zip(names, clip_apart(names, width), strict=True):
        assert text_width(cut) <= width + 0.01
        if text_width(name) <= width and clip(name, width) not in (
            clip(other, width, middle=True) for other in names if other != name
        ):
            assert cut == name


@given(st.text("xyz", max_size=60), st.text("xyz", max_size=60), st.integers(2, 12))
def test_names_that_differ_in_one_number_are_never_cut_alike(head, tail, count):
    cut = clip_apart([f"{head}.{i}.{tail}" for i in range(count)], 90.0)
    assert len(set(cut)) == count
