"""Heat maps: every value in its cell, in a colour that orders them and an ink that can be read."""

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.views import Heatmap
from dovetail.report import draw_heatmap
from dovetail.report.colours import STEPS, contrast, inks, ramp
from dovetail.report.heatmaps import colouring

SVG = "{http://www.w3.org/2000/svg}"
words = st.text(st.sampled_from("<>&\"'é漢\0\ud800 ab"), max_size=12)


def of_class(root, name):
    return [e for e in root.iter() if name in e.get("class", "").split()]


@st.composite
def heatmaps(draw):
    rows = draw(st.lists(words, max_size=4))
    columns = draw(st.lists(words, max_size=4))
    cell = st.floats() | st.none()
    values = [tuple(draw(cell) for _ in columns) for _ in rows]
    limit = st.none() | st.floats()
    spec = draw(st.sampled_from(["", ".1%", "d", "bad"]))
    return Heatmap(
        draw(words), tuple(rows), tuple(columns), tuple(values), draw(words), draw(words), spec,
        draw(limit), draw(limit),
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(heatmaps())
def test_any_heat_map_is_well_formed_with_a_cell_for_each_pair(heatmap):
    root = ET.fromstring(draw_heatmap(heatmap))
    assert len(of_class(root, "cell")) == len(heatmap.rows) * len(heatmap.columns)


def test_each_value_is_printed_where_its_row_and_column_meet():
    names = ("a", "b", "c")
    values = tuple(tuple(i + j / 10 for j in range(3)) for i in range(3))
    root = ET.fromstring(draw_heatmap(Heatmap("t", names, names, values, format=".1f")))
    printed = [cell.find(SVG + "text") for cell in of_class(root, "cell")]
    at = {text.text: (text.get("x"), text.get("y")) for text in printed}
    shown = [f"{i}.{j}" for i in range(3) for j in range(3)]
    assert set(shown) <= set(at)
    for i in range(3):
        assert len({at[f"{i}.{j}"][1] for j in range(3)}) == 1
        assert len({at[f"{j}.{i}"][0] for j in range(3)}) == 1
    assert float(at["0.0"][0]) < float(at["0.1"][0])
    assert float(at["0.0"][1]) < float(at["1.0"][1])


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_an_empty_cell_is_shown_as_such(nothing):
    root = ET.fromstring(draw_heatmap(Heatmap("t", ("r",), ("c", "d"), ((1.0, nothing),))))
    full, empty = of_class(root, "cell")
    assert empty.get("data-value") == "empty"
    assert of_class(empty, "empty")
    assert not of_class(full, "empty")


@given(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=6))
def test_a_greater_value_never_gets_a_lower_step(values):
    colours = colouring(Heatmap("t", ("r",), ("c",) * len(values), (tuple(values),)))
    steps = [colours.step(value) for value in sorted(values)]
    assert steps == sorted(steps)
    assert 0 <= steps[0] <= steps[-1] < STEPS


def test_zero_is_in_the_middle_when_both_signs_occur():
    colours = colouring(Heatmap("t", ("r",), ("a", "b"), ((-1.0, 9.0),)))
    assert colours.sides == "two"
    assert colours.step(0.0) == STEPS // 2


def test_given_limits_are_kept_and_values_beyond_them_are_clamped():
    colours = colouring(Heatmap("t", ("r",), ("a", "b"), ((0.4, 7.0),), low=0.0, high=1.0))
    assert (colours.low, colours.high, colours.step(7.0)) == (0.0, 1.0, STEPS - 1)


def test_a_map_too_fine_for_numbers_keeps_them_in_titles():
    n = 120
    values = tuple(tuple(float(i * j) for j in range(n)) for i in range(3))
    heatmap = Heatmap("t", ("a", "b", "c"), tuple(f"c{j}" for j in range(n)), values)
    root = ET.fromstring(draw_heatmap(heatmap))
    cells = of_class(root, "cell")
    assert not any(list(cell.iter(SVG + "text")) for cell in cells)
    assert cells[n + 5].find(SVG + "title").text == "b · c5: 5"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sides", ["one", "two"])
def test_numbers_can_be_read_on_every_colour(theme, sides):
    pairs = zip(ramp(theme, sides), inks(theme, sides), strict=True)
    assert min(contrast(colour, ink) for colour, ink in pairs) >= 4.5  # WCAG AA
    assert len(set(ramp(theme, sides))) == STEPS
