"""Planes: outlines that separate high from low, drawings that hold whatever a file may say."""

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import FormatError
from dovetail.core.views import Plane, at_most, read_view, write_view
from dovetail.report import draw_plane
from dovetail.report.blocks import draw_block
from dovetail.report.contours import outlines
from dovetail.report.levels import levels_of, shaded_rows
from dovetail.report.sections import bounded

words = st.text(st.sampled_from("<>&\"'é漢\0 ab"), max_size=8)
ends = st.tuples(st.floats(-1e308, 1e308), st.floats(-1e308, 1e308)).filter(lambda e: e[0] < e[1])
UNIT = (0.0, 1.0)


@st.composite
def planes(draw):
    rows, columns = draw(st.integers(2, 5)), draw(st.integers(2, 5))
    names = tuple(draw(st.lists(words, max_size=3)))
    cell = st.integers(0, len(names) - 1) if names else st.floats()
    row = st.tuples(*[st.none() | cell] * columns)
    mark = st.floats()
    return Plane(
        draw(words), draw(ends), draw(ends), draw(st.tuples(*[row] * rows)), draw(words),
        draw(words), draw(words), draw(st.sampled_from(["", ".1%", "bad"])),
        draw(st.booleans()), draw(st.booleans()), names,
        tuple(draw(st.lists(st.tuples(mark, mark, mark, mark), max_size=3))),
        tuple(draw(st.lists(st.tuples(mark, mark, st.integers(0, 9)), max_size=3))),
    )  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(planes())
def test_any_plane_is_drawn_well_formed_with_finite_places(plane):
    for drawing in (draw_plane(plane), draw_block(plane)):
        root = ET.fromstring(drawing)
        places = [value for e in root.iter() for key, value in e.items() if key in ("d", "x", "y")]
        assert not any("nan" in place or "inf" in place for place in places)
    assert len(shaded_rows(plane).rows) == len(plane.values)


@settings(max_examples=50, deadline=None)
@given(planes())
def test_a_plane_is_read_back_as_it_was_written(plane):
    written = write_view((plane,))
    assert write_view(read_view(written)) == written


def inside(loops, x, y):
    """The even-odd rule read aloud: count the edges that a ray to the right crosses."""
    crossed = 0
    for loop in loops:
        for (ax, ay), (bx, by) in zip(loop, [*loop[1:], loop[0]], strict=True):
            if (ay > y) != (by > y):
                crossed += ax + (y - ay) / (by - ay) * (bx - ax) > x
    return crossed % 2 == 1


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), min_size=5, max_size=5),
    st.floats(0.05, 0.95),
)
def test_what_is_inside_an_outline_is_above_the_level(grid, level):
    loops = outlines(grid, level)
    for i in range(1, 4):  # not on the frame, where a node is its own outline
        for j in range(1, 4):
            if abs(grid[i][j] - level) > 1e-6:
                assert inside(loops, float(j), float(i)) == (grid[i][j] > level)


def test_the_outline_of_a_bowl_is_its_circle():
    side = [i / 20 - 1 for i in range(41)]
    bowl = [[(2 - x * x - y * y) / 2 for x in side] for y in side]
    (loop,) = outlines(bowl, (2 - 0.25) / 2)
    assert all(math.hypot(x / 20 - 1, y / 20 - 1) == pytest.approx(0.5, abs=0.01) for x, y in loop)


def test_a_saddle_joins_what_its_middle_joins():
    assert len(outlines([[1.0, 0.0], [0.0, 1.0]], 0.6)) == 2
    assert len(outlines([[1.0, 0.4], [0.4, 1.0]], 0.6)) == 1


def test_colours_by_logarithm_have_equal_steps_for_equal_ratios():
    levels = levels_of(Plane("", UNIT, UNIT, ((0.01, 0.1), (1.0, 100.0)), log=True))
    shares = [share for row in levels.shares for share in row]
    assert shares == pytest.approx([0.0, 0.25, 0.5, 1.0])
    assert levels.colours.sides == "one"


def test_the_longest_of_many_arrows_stay_apart():
    side = [i / 9 for i in range(10)]
    arrows = tuple((x, y, 5.0, 0.0) for x in side for y in side)
    plane = Plane("", UNIT, UNIT, ((0.0, 1.0), (0.0, 1.0)), arrows=arrows)
    (path,) = [
        e.get("d") for e in ET.fromstring(draw_plane(plane)).iter() if e.get("class") == "arrow"
    ]
    starts = [piece.split("L")[0].split() for piece in path.split("M")[1::2]]
    ends = [piece.split("L")[1].split() for piece in path.split("M")[1::2]]
    lengths = [float(b[0]) - float(a[0]) for a, b in zip(starts, ends, strict=True)]
    xs = sorted({float(a[0]) for a in starts})
    assert max(lengths) < xs[1] - xs[0]


def test_each_class_has_its_region_and_an_unknown_node_none():
    plane = Plane("", UNIT, UNIT, ((0, 1), (None, 1)), classes=("ant", "bee"))
    root = ET.fromstring(draw_plane(plane))
    regions = [e.get("d") for e in root.iter() if e.get("class") == "region"]
    assert [path.count("z") for path in regions] == [1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"x": [1.0, 0.0]},
        {"y": ["inf", 0.0]},
        {"values": [[1.0, 2.0]]},
        {"values": [[1.0, 2.0], [1.0]]},
        {"values": [[1.0], [1.0]]},
        {"classes": ["a"], "values": [[0, 1], [0, 0]]},
        {"classes": ["a", "b"], "values": [[0, 0.5], [0, 0]]},
        {"points": [[0.0, 0.0, -1]]},
        {"arrows": [[0.0, 0.0, 1.0]]},
    ],
)
def test_a_file_that_makes_no_sense_is_refused(wrong):
    honest = {"title": "", "x": [0.0, 1.0], "y": [0.0, 1.0], "values": [[0.0, 1.0], [2.0, 3.0]]}
    assert read_view([{"plane": honest}])
    with pytest.raises(FormatError):
        read_view([{"plane": honest | wrong}])


def test_a_plane_counts_towards_what_a_view_may_hold():
    with at_most(5):
        Plane("", UNIT, UNIT, ((0.0, 1.0), (0.0, 1.0)))
        with pytest.raises(ValueError, match="larger than"):
            Plane("", UNIT, UNIT, ((0.0, 1.0), (0.0, 1.0)))


def test_a_large_plane_is_thinned_and_that_is_said():
    side = 300
    values = tuple(tuple(float(i + j) for j in range(side)) for i in range(side))
    marks = tuple((0.5, 0.5, 0) for _ in range(5000))
    plane, note = bounded((Plane("t" * 1000, UNIT, UNIT, values, points=marks),))
    assert (len(plane.values), len(plane.values[0]), len(plane.points)) == (200, 200, 2000)
    assert plane.values[0][0] == 0.0
    assert plane.values[-1][-1] == 2.0 * (side - 1)
    assert "values between these" in note.text
    assert "3,000 more points" in note.text
