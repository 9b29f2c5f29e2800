"""Points lie at their distance in their direction; no name lies on another or on the circle."""

import json
import math
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import FormatError
from dovetail.core.views import Figure, Series, read_view, write_view
from dovetail.report import draw_figure
from dovetail.report.axes import HALF, NARROW, WIDTH
from dovetail.report.blocks import figure_data
from dovetail.report.polar import place_names

SVG = "{http://www.w3.org/2000/svg}"
FOUR = ("north", "east", "south", "west")


def of_class(root, name):
    return [e for e in root.iter() if name in e.get("class", "").split()]


def drawn(*series, width=WIDTH, **fields):
    return ET.fromstring(draw_figure(Figure("polar", "t", series, **fields), width=width))


def points_of(root):
    return [json.loads(group.get("data-points")) for group in of_class(root, "plot")[0]]


def rings_of(root):
    """The centre, and pairs of value and radius."""
    rings = of_class(root, "rings")[0].findall(SVG + "circle")
    centre = float(rings[0].get("cx")), float(rings[0].get("cy"))
    return centre, [(float(ring.get("data-at")), float(ring.get("r"))) for ring in rings]


@pytest.mark.parametrize("width", [WIDTH, HALF, NARROW])
def test_a_value_is_the_distance_from_the_centre_and_a_name_its_direction(width):
    values = (0.0, 1.0, 2.5, 4.0)
    root = drawn(Series("s", FOUR, values), width=width)
    (x, y), rings = rings_of(root)
    unit = rings[-1][1] / rings[-1][0]
    expected = [(x, y), (x + unit, y), (x, y + 2.5 * unit), (x - 4 * unit, y)]
    found = [point[:2] for point in points_of(root)[0]]
    assert found == [pytest.approx(place, abs=0.06) for place in expected]
    assert [r / v for v, r in rings] == pytest.approx([unit] * len(rings), rel=1e-3)


def test_one_name_is_one_direction_in_every_series():
    shuffled = Series("b", FOUR[::-1], (1.0, 1.0, 1.0, 1.0))
    one, other = points_of(drawn(Series("a", FOUR, (1.0,) * 4), shuffled))
    assert {p[2]: p[:2] for p in one} == {p[2]: p[:2] for p in other}


def test_the_web_is_closed_and_breaks_where_a_value_is_missing():
    def edges(*ys):
        (path,) = of_class(of_class(drawn(Series("s", FOUR, ys)), "plot")[0], "line")
        return path.get("d").count("L")

    assert edges(1.0, 2.0, 3.0, 4.0) == 4
    assert edges(None, 2.0, 3.0, 4.0) == 2
    assert edges(1.0, None, 3.0, 4.0) == 2
    assert edges(1.0, 2.0, None, None) == 1


def test_series_differ_in_shape_as_well_as_colour():
    root = drawn(*(Series(name, ("a", "b"), (1.0, 2.0)) for name in ("x", "y", "z")))
    groups = list(of_class(root, "plot")[0])
    outlines = [of_class(group, "dot")[0].get("d").split("m")[1] for group in groups]
    assert len(set(outlines)) == 3
    assert len({group.get("class") for group in groups}) == 3


def boxes(names):
    return [(n.left, n.y - 6.5, n.right, n.y + 6.5) for n in names]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("am.", min_size=1, max_size=30), min_size=1, max_size=60))
@pytest.mark.parametrize("radius", [115.0, 170.0])
def test_names_lie_neither_on_each_other_nor_on_the_circle(radius, names):
    placed = boxes(place_names(names, radius))
    assert len(placed) == len(names)
    for a, b in combinations(placed, 2):
        assert min(a[2], b[2]) <= max(a[0], b[0]) or min(a[3], b[3]) <= max(a[1], b[1])
    for left, top, right, bottom in placed:
        assert math.hypot(max(left, -right, 0), max(top, -bottom, 0)) > radius


def test_names_are_in_the_order_of_their_directions():
    placed = place_names([str(i) for i in range(24)], 170.0)
    assert [name.direction for name in placed] == list(range(24))
    right = [name.y for name in placed if name.anchor == "start"]
    assert all(b - a >= 14.99 for a, b in pairwise(right))
    assert placed[0].y < min(name.y for name in placed[1:])


@pytest.mark.parametrize("width", [WIDTH, HALF, NARROW])
def test_names_that_do_not_fit_are_numbered_and_listed_whole(width):
    names = tuple(f"a task with a name of some length, number {i}" for i in range(24))
    root = drawn(Series("s", names, (1.0,) * 24), width=width)
    (key,) = of_class(root, "key")
    listed = [text.text for text in key.iter(SVG + "text")]
    assert dict(zip(listed[::2], listed[1::2], strict=True)) == {
        str(i + 1): name for i, name in enumerate(names)
    }
    assert max(float(t.get("y")) for t in key.iter(SVG + "text")) < float(root.get("height"))
    short = drawn(Series("s", FOUR, (1.0,) * 4), width=width)
    assert of_class(short, "key") == []
    assert set(FOUR) <= {text.text for text in short.iter(SVG + "text")}


def test_a_great_many_names_are_thinned():
    names = tuple(f"task {i}" for i in range(1000))
    root = drawn(Series("s", names, (1.0,) * 1000))
    assert len(points_of(root)[0]) == 1000
    assert len(list(root.iter(SVG + "text"))) < 80


@pytest.mark.parametrize("values", [(0.0, 0.0), (5e-324, 0.0), (1.7e308, 1.0), (1.0, 1.0)])
def test_any_reach_has_rings(values):
    root = drawn(Series("s", ("a", "b"), values))
    (x, y), rings = rings_of(root)
    assert rings
    assert all(math.dist(p[:2], (x, y)) <= 170.1 for p in points_of(root)[0])


@pytest.mark.parametrize("hidden", [-0.1, math.inf])
def test_what_has_no_place_is_said(hidden):
    root = drawn(Series("s", ("a", "b", "c"), (1.0, hidden, math.nan)))
    words = ["".join(e.itertext()) for e in root.iter(SVG + "text")]
    assert "1 value is not shown: not finite, or negative." in words
    assert [p[2] for p in points_of(root)[0]] == ["a"]


def test_bounds_are_left_out():
    bounded = Series("s", ("a", "b"), (1.0, 2.0), (0.5, 1.5), (99.0, 99.0))
    plain = Series("s", ("a", "b"), (1.0, 2.0))
    figures = [Figure("polar", "t", (one,)) for one in (bounded, plain)]
    assert draw_figure(figures[0]) == draw_figure(figures[1])
    assert figure_data(figures[0]) == figure_data(figures[1])
    assert figure_data(figures[0]).columns == ("series", "name", "value")


@pytest.mark.parametrize("kind", ["interval", "polar"])
def test_the_kinds_are_kept_in_files_and_unknown_ones_refused(kind):
    view = (Figure(kind, "t", (Series("s", ("a", "b"), (1.0, None)),)),)
    plain = write_view(view)
    assert read_view(json.loads(json.dumps(plain))) == view
    plain[0]["figure"]["kind"] = "radar"
    with pytest.raises(FormatError, match=r"view\[0\]\.kind: expected one of line, .*'radar'"):
        read_view(plain)
