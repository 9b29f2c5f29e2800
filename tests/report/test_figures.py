"""Every figure is well-formed XML, and its marks lie where the data say."""

import json
import math
import random
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.views import Figure, Series
from dovetail.report import draw_figure, standalone
from dovetail.report.axes import HALF, NARROW, WIDTH, lay_out
from dovetail.report.marks import Point, placed, sifted, thinned
from dovetail.report.text import text_width

SVG = "{http://www.w3.org/2000/svg}"
KINDS = ["line", "scatter", "bar"]
EVERY = [*KINDS, "interval", "polar"]


def parse(drawing):
    return ET.fromstring(drawing)


def of_class(root, name):
    return [e for e in root.iter() if name in e.get("class", "").split()]


def points_of(root):
    groups = [e for plot in of_class(root, "plot") for e in plot]
    return [json.loads(group.get("data-points")) for group in groups]


def words_of(root):
    return ["".join(t for t in e.itertext()) for e in root.iter(SVG + "text")]


words = st.text(st.sampled_from("<>&\"'é漢\0\ud800\u202e ab]]>-"), max_size=12)
value = st.floats() | st.none() | st.sampled_from([0.0, 1.0, 5e-324, -1.7e308, 1.7e308])


@st.composite
def series(draw):
    n = draw(st.integers(0, 6))
    xs = draw(st.lists(st.floats() | words, min_size=n, max_size=n))
    if draw(st.booleans()):
        xs = [x if isinstance(x, float) else 0.5 for x in xs]
    ys = draw(st.lists(value, min_size=n, max_size=n))
    bounds = [
        tuple(draw(st.lists(st.floats(), min_size=n, max_size=n))) if draw(st.booleans()) else ()
        for _ in range(2)
    ]
    return Series(draw(words), tuple(xs), tuple(ys), *bounds)


figures = st.builds(
    Figure,
    st.sampled_from(EVERY),
    words,
    st.lists(series(), max_size=4).map(tuple),
    words,
    words,
    st.sampled_from(["", ".1%", ".3f", "d", "bad spec", ">999999999"]),
    st.booleans(),
)


@settings(max_examples=100, deadline=None)
@given(figures, st.sampled_from([WIDTH, HALF, NARROW]))
def test_any_figure_is_well_formed_and_within_its_picture(figure, width):
    root = parse(draw_figure(figure, width=width))
    assert float(root.get("width")) == width
    _, _, width, height = (float(v) for v in root.get("viewBox").split())
    assert len(points_of(root)) == len(figure.series)
    for x, y, _, _ in (point for points in points_of(root) for point in points):
        assert -0.1 <= x <= width + 0.1
        assert -0.1 <= y <= height + 0.1


def y_axis(root):
    """Pairs of value and pixel, as the tick marks of the drawing say."""
    ticks = of_class(root, "tick-y")
    return [(float(t.get("data-at")), float(t.find(SVG + "line").get("y1"))) for t in ticks]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("log", [False, True], ids=["linear", "log"])
def test_heights_agree_with_the_ticks(kind, log):
    ys = (0.2, 3.0, 0.7, 11.0)
    root = parse(draw_figure(Figure(kind, "t", (Series("s", (0, 1, 2, 4), ys),), log_y=log)))
    (v0, p0), *_, (v1, p1) = y_axis(root)
    along = math.log10 if log else float
    for y, (_, pixel, _, _) in zip(ys, points_of(root)[0], strict=True):
        share = (along(y) - along(v0)) / (along(v1) - along(v0))
        assert pixel == pytest.approx(p0 + share * (p1 - p0), abs=0.06)


@pytest.mark.parametrize("kind", ["line", "scatter"])
def test_places_along_x_agree_with_the_ticks(kind):
    xs = (-3.0, 0.0, 1.5, 7.0)
    root = parse(draw_figure(Figure(kind, "t", (Series("s", xs, (1.0, 2.0, 3.0, 4.0)),))))
    ticks = [
        (float(t.find(SVG + "text").text.replace("−", "-")), float(t.find(SVG + "text").get("x")))
        for t in of_class(root, "tick-x")
    ]
    (v0, p0), *_, (v1, p1) = ticks
    for x, (pixel, _, _, _) in zip(xs, points_of(root)[0], strict=True):
        assert pixel == pytest.approx(p0 + (x - v0) / (v1 - v0) * (p1 - p0), abs=0.08)


@pytest.mark.parametrize("kind", ["line", "scatter"])
@pytest.mark.parametrize("xs", [(1.0, 3.0, 10.0, 30.0), (0.013, 0.2, 4.5, 71.0)])
def test_places_along_a_logarithmic_x_agree_with_the_ticks(kind, xs):
    figure = Figure(kind, "t", (Series("s", xs, (1.0, 2.0, 3.0, 4.0)),), log_x=True)
    root = parse(draw_figure(figure))
    texts = [t.find(SVG + "text") for t in of_class(root, "tick-x")]
    ticks = [(math.log10(float(t.text)), float(t.get("x"))) for t in texts]
    (v0, p0), *_, (v1, p1) = ticks
    for x, (pixel, _, _, _) in zip(xs, points_of(root)[0], strict=True):
        assert pixel == pytest.approx(p0 + (math.log10(x) - v0) / (v1 - v0) * (p1 - p0), abs=0.2)
    if xs[0] == 1.0:  # a few whole numbers are named themselves
        assert [t.text for t in texts] == ["1", "3", "10", "30"]


@pytest.mark.parametrize("xs", [(5.0,), (0.0, -1.0), (1e-300, 1e300), (math.inf, 1.0), ()])
def test_a_logarithmic_x_takes_any_numbers(xs):
    figure = Figure("line", "t", (Series("s", xs, (1.0,) * len(xs)),), log_x=True)
    words = words_of(parse(draw_figure(figure)))
    lost = sum(not (0 < x < math.inf) for x in xs)
    assert any(f"{lost} value" in word for word in words) == (lost > 0)


def test_points_beside_a_line_are_marks_alone():
    xs, ys = (0.0, 1.0, 2.0), (1.0, 2.0, 0.5)
    curve, data = Series("curve", xs, ys), Series("data", xs, ys, points=True)
    root = parse(draw_figure(Figure("line", "t", (curve, data))))
    plot = [g for g in of_class(root, "series") if g.get("data-points")]
    kinds = [[mark.get("class") for mark in group] for group in plot]
    assert kinds == [["line", "dot", "dot", "dot"], ["dot"] * 3]
    signs = [[mark.get("class") for mark in entry] for entry in of_class(root, "entry")]
    assert ["line" in signs[0], "dot" in signs[1]] == [True, True]


def test_the_line_passes_through_its_points():
    one = Series("s", (0, 1, 2), (5.0, 1.0, 3.0))
    root = parse(draw_figure(Figure("line", "t", (one,))))
    (path,) = of_class(of_class(root, "plot")[0], "line")
    drawn = [tuple(float(v) for v in pair.split()) for pair in path.get("d")[1:].split("L")]
    assert drawn == [pytest.approx(p[:2], abs=0.06) for p in points_of(root)[0]]


@pytest.mark.parametrize("gap", [None, math.nan, math.inf])
def test_a_missing_value_breaks_the_line(gap):
    one = Series("s", (0, 1, 2, 3, 4), (1.0, 2.0, gap, 2.0, 1.0))
    plot = of_class(parse(draw_figure(Figure("line", "t", (one,)))), "plot")[0]
    assert [e.get("d").count("L") for e in of_class(plot, "line")] == [1, 1]


def test_a_point_between_gaps_is_still_seen():
    one = Series("s", (0, 1, 2), (None, 2.0, None))
    others = tuple(Series(f"o{i}", (0, 2), (1.0, 3.0)) for i in range(8))
    plot = of_class(parse(draw_figure(Figure("line", "t", (one, *others)))), "plot")[0]
    assert len(of_class(plot[0], "dot")) == 1
    assert len(of_class(plot[1], "dot")) == 0


def test_bars_of_a_place_stand_side_by_side_on_zero():
    groups = (Series("a", ("x", "y"), (2.0, -1.0)), Series("b", ("x", "y"), (1.0, 3.0)))
    root = parse(draw_figure(Figure("bar", "t", groups)))
    zero = dict(y_axis(root))[0.0]
    bars = [
        tuple(float(bar.get(k)) for k in ("x", "y", "width", "height"))
        for bar in of_class(of_class(root, "plot")[0], "bar")
    ]
    up, down = bars[0], bars[1]
    assert up[1] + up[3] == pytest.approx(zero, abs=0.02)
    assert down[1] == pytest.approx(zero, abs=0.02)
    spans = sorted((x, x + w) for x, _, w, _ in bars)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_bars_at_numbers_come_in_order_of_size():
    root = parse(draw_figure(Figure("bar", "t", (Series("a", (10, 2, 1), (1.0, 2.0, 3.0)),))))
    assert ["".join(t.itertext()) for t in of_class(root, "tick-x")] == ["1", "2", "10"]


def test_the_band_has_the_bounds_as_its_edges():
    one = Series("s", (0, 1), (2.0, 3.0), (1.0, 2.0), (4.0, 5.0))
    figure = Figure("line", "t", (one,))
    root = parse(draw_figure(figure))
    axis = y_axis(root)
    (v0, p0), (v1, p1) = axis[0], axis[-1]
    (band,) = of_class(root, "band")
    heights = [float(pair.split()[1]) for pair in band.get("d")[1:-1].split("L")]
    expected = [p0 + (v - v0) / (v1 - v0) * (p1 - p0) for v in (4.0, 5.0, 2.0, 1.0)]
    assert heights == pytest.approx(expected, abs=0.02)


def test_what_a_logarithmic_axis_cannot_show_is_said():
    one = Series("s", (0, 1, 2, 3), (0.0, -1.0, 1.0, None))
    drawn = words_of(parse(draw_figure(Figure("line", "t", (one,), log_y=True))))
    assert any(text.startswith("2 values are not shown") for text in drawn)


def test_long_names_are_cut_and_kept_whole_in_a_title():
    name = "a name " * 30
    root = parse(draw_figure(Figure("bar", "t", (Series(name, (name, "b"), (1.0, 2.0)),))))
    titles = [e.text for e in root.iter(SVG + "title")]
    assert titles == [name, name]
    assert all(
        len(e.find(SVG + "title").tail) < 60 for e in of_class(root, "entry")[0].iter(SVG + "text")
    )


def test_the_legend_wraps_within_the_picture():
    many = tuple(Series(f"a rather long series name {i}", (0, 1), (0.0, 1.0)) for i in range(30))
    root = parse(draw_figure(Figure("line", "t", many)))
    targets = of_class(root, "target")
    assert len(targets) == 30
    assert all(float(t.get("x")) + float(t.get("width")) <= WIDTH for t in targets)
    rows = {float(t.get("y")) for t in targets}
    bottom = max(rows) + 17
    assert len(rows) > 5
    assert bottom < min(pixel for _, pixel in y_axis(root))


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("all_series", [(), (Series("s", (), ()),), (Series("s", (1,), (None,)),)])
def test_nothing_to_show_is_said(kind, all_series):
    assert "no data" in words_of(parse(draw_figure(Figure(kind, "t", all_series))))


def test_thinning_keeps_every_extreme_and_the_ends():
    run = [Point(i / 50, math.sin(i) * i, i, 0.0) for i in range(10000)]
    kept = thinned(run)
    assert len(kept) < 1000
    assert kept[0] == run[0]
    assert kept[-1] == run[-1]
    for column in (0, 57, 199):
        inside = [p.y for p in run if int(p.x) == column]
        left = [p.y for p in kept if int(p.x) == column]
        assert (min(left), max(left)) == (min(inside), max(inside))


def test_placed_keeps_the_count_of_the_data():
    one = Series("s", ("a", "b", "a"), (1.0, None, 2.0))
    points = placed(one, lay_out(Figure("line", "t", (one,)), top=0.0))
    assert points[1] is None
    assert points[0].x == points[2].x < WIDTH


def test_a_drawing_of_its_own_carries_its_style():
    root = parse(standalone(draw_figure(Figure("line", "t", (Series("s", (0, 1), (1.0, 2.0)),)))))
    assert "prefers-color-scheme: dark" in root.find(SVG + "style").text


def test_a_dense_cloud_keeps_its_outline_in_few_bytes():
    draw = random.Random(0)
    xs = tuple(draw.gauss(0, 1) for _ in range(20_000))
    ys = tuple(draw.gauss(0, 1) for _ in range(20_000))
    drawing = draw_figure(Figure("scatter", "t", (Series("s", xs, ys),)))
    root = parse(drawing)
    (path,) = of_class(root, "dust")
    kept = points_of(root)[0]
    assert path.get("d").count("M") == len(kept) < 15_000
    assert len(drawing) < 1_000_000
    cloud = Series("s", xs, ys)
    every = placed(cloud, lay_out(Figure("scatter", "", (cloud,)), top=32.0))
    for edge in (min, max):
        assert edge(p.x for p in every) == pytest.approx(edge(x for x, *_ in kept), abs=2)
    cells = {(int(p.x / 2), int(p.y / 2)) for p in every}
    assert len(cells) == len(sifted(every))


def test_a_narrow_figure_shows_the_same_data():
    one = Series("s", (0, 1, 2), (5.0, 1.0, 3.0))
    wide, narrow = (
        parse(draw_figure(Figure("line", "t", (one,)), width=width)) for width in (WIDTH, NARROW)
    )
    assert float(narrow.get("width")) == NARROW
    assert [p[2:] for p in points_of(narrow)[0]] == [p[2:] for p in points_of(wide)[0]]
    assert max(p[0] for p in points_of(narrow)[0]) <= NARROW


def test_slanted_names_stay_within_the_picture_and_apart():
    names = ("a", *(f"features.block{i}.conv.norm2.weight" for i in range(19)))
    root = parse(draw_figure(Figure("line", "t", (Series("s", names, (1.0,) * 20),))))
    texts = [tick.find(SVG + "text") for tick in of_class(root, "tick-x")]
    shown = [
        "".join(text.itertext()).replace(text.findtext(SVG + "title", ""), "") for text in texts
    ]
    assert len(set(shown)) == len(names)
    reach = [text_width(cut) * math.cos(math.radians(35)) for cut in shown]
    assert all(float(t.get("x")) >= wide for t, wide in zip(texts, reach, strict=True))
