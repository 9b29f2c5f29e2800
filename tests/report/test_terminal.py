"""Views as text: every cell, whatever the width of the pipe."""

import math
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from dovetail.core.views import Figure, Heatmap, Series, Table, Text
from dovetail.report import print_view
from dovetail.report.terminal import sparkline


def printed(*view, wide=None, **options):
    out = StringIO()
    console = Console(file=out, width=80, highlight=False, **options)
    print_view(view, console=console, wide=wide)
    return out.getvalue()


COLUMNS = tuple(f"a column named {i}" for i in range(12))
ROWS = tuple(tuple(f"cell {i} {j} of many" for j in range(12)) for i in range(3))


@pytest.mark.parametrize("terminal", [False, True])
def test_a_row_is_a_line_with_every_cell(terminal):
    lines = printed(Table(COLUMNS, ROWS), wide=True, force_terminal=terminal).splitlines()
    for row in (COLUMNS, *ROWS):
        assert [line for line in lines if all(cell in line for cell in row)]


def test_a_pipe_is_wide_by_itself():
    assert printed(Table(COLUMNS, ROWS)) == printed(Table(COLUMNS, ROWS), wide=True)


def test_a_terminal_folds_but_loses_nothing():
    text = printed(Table(("name",), (("x" * 200,),)), force_terminal=True, color_system=None)
    assert text.count("x") == 200
    assert max(len(line) for line in text.splitlines()) <= 80


def test_columns_are_aligned():
    lines = printed(
        Table(("part", "accuracy"), (("a", 0.5), ("a long one", 1.0)), ("", ".1%"))
    ).splitlines()
    first, second = (line for line in lines if "%" in line)
    assert first.index("%") == second.index("%")


def test_long_text_in_a_pipe_is_one_line():
    words = "word " * 60 + "end"
    assert printed(Text(words)).splitlines()[0] == words


def test_markup_and_control_codes_are_printed_not_obeyed():
    text = printed(Text("[red]plain[/red] \x1b[31m"), Table(("[b]",), (("[/nothing] \x07",),)))
    assert "[red]plain[/red]" in text
    assert "[/nothing]" in text
    assert "[b]" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_a_figure_is_a_row_a_series():
    figure = Figure(
        "line",
        "Loss",
        (Series("train", (1, 2, 3, 4), (0.9, 0.2, None, 0.4)), Series("none", (), ())),
        "epoch",
        "nats",
        ".2f",
    )
    lines = printed(figure).splitlines()
    assert lines[0] == "Loss: nats by epoch"
    (row,) = (line for line in lines if line.startswith("train"))
    assert row.split()[1:5] == ["0.90", "0.40", "0.20", "0.90"]
    (empty,) = (line for line in lines if line.startswith("none"))
    assert empty.split()[1:] == ["–"] * 4


def test_a_heat_map_is_a_table():
    heatmap = Heatmap(
        "Fit", ("r1", "r2"), ("c1", "c2"), ((0.1, None), (0.3, None)), "front", "head", ".0%"
    )
    lines = printed(heatmap).splitlines()
    assert [line.split() for line in lines if line.startswith("r")] == [
        ["r1", "10%", "–"],
        ["r2", "30%", "–"],
    ]
    assert "front \\ head" in lines[1]


def test_captions_and_warnings_are_printed():
    text = printed(Text("careful", "warning"), Table(("a",), (), caption="Nothing here"))
    assert "Warning: careful" in text
    assert "Nothing here" in text


def test_numbers_of_figures_and_maps_are_aligned_to_the_right():
    figure = Figure("line", "", (Series("a", (1,), (1.0,)), Series("b", (1,), (100.0,))))
    heatmap = Heatmap("", ("a", "b"), ("c",), ((1.0,), (100.0,)))
    for block in (figure, heatmap):
        one, hundred = (line for line in printed(block).splitlines() if line[:1] in ("a", "b"))
        assert one.index(" 1") + 2 == hundred.index("100") + 3


def test_the_course_of_points_follows_x_and_that_of_a_log_axis_the_logarithm():
    points = Figure("scatter", "", (Series("a", (3, 1, 2), (9.0, 1.0, 5.0)),))
    assert sparkline([1.0, 5.0, 9.0]) in printed(points)
    decades = Figure("line", "", (Series("a", (1, 2, 3, 4), (1.0, 10.0, 0.0, 100.0)),), log_y=True)
    assert sparkline([0.0, 1.0, None, 2.0]) in printed(decades)


@given(st.lists(st.none() | st.floats(), max_size=60))
def test_a_sparkline_has_the_highest_bar_at_the_highest_value(values):
    line = sparkline(values, width=60)
    assert len(line) == len(values)
    known = [v for v in values if v is not None and math.isfinite(v)]
    if known and min(known) / 2 < max(known) / 2:
        assert line[values.index(max(known))] == "█"
        assert line[values.index(min(known))] == "▁"


def test_a_long_sparkline_averages_neighbours():
    assert sparkline([0.0, 0.0, 1.0, 1.0, 2.0, 2.0], width=3) == sparkline([0.0, 1.0, 2.0])


def test_an_interval_figure_is_a_row_a_value_with_its_whisker():
    figure = Figure(
        "interval",
        "Ranking",
        (
            Series("expected", ("best", "worst"), (0.9, 0.2), (0.8, 0.1), (1.0, 0.3)),
            Series("true", ("worst", "best"), (0.1, None)),
        ),
        "part",
        "accuracy",
        ".0%",
    )
    lines = [line.split() for line in printed(figure).splitlines()]
    assert lines[1] == ["part", "series", "accuracy", "low", "high", "10%", "100%"]
    best, other, worst, true = lines[3:7]
    assert best[:5] == ["best", "expected", "90%", "80%", "100%"]
    assert other == ["best", "true", "–", "–", "–"]
    assert worst[:2] + true[:2] == ["worst", "expected", "worst", "true"]
    assert best[5][0] + best[5][-1] == worst[5][0] + worst[5][-1] == "├┤"
    assert "●" in best[5]
    assert true[5] == "■"


def test_a_polar_figure_is_a_row_a_name_with_the_centre_on_the_left():
    lines = (Series("near", ("a", "b"), (0.0, 1.0)), Series("far", ("b", "a"), (2.0, -1.0)))
    text = printed(Figure("polar", "Map", lines, "task", "distance", ".1f")).splitlines()
    assert text[0] == "Map: distance"
    assert text[1].split() == ["task", "●", "near", "■", "far", "0.0", "2.0"]
    a, b = text[3:5]
    assert a.split() == ["a", "0.0", "-1.0", "●"]
    assert b.split() == ["b", "1.0", "2.0", "●", "■"]
    centre, rim = text[1].index("0.0"), text[1].index("2.0") + 2
    assert (a.index("●"), b.index("■")) == (centre, rim)
    assert b.index("●") == pytest.approx((centre + rim) / 2, abs=1)


@pytest.mark.parametrize("kind", ["interval", "polar"])
def test_on_a_terminal_names_fold_and_pictures_do_not(kind):
    names = tuple(f"a name of quite some length, number {i}" for i in range(3))
    out = Console(file=StringIO(), width=60, force_terminal=True, color_system=None)
    print_view((Figure(kind, "t", (Series("s", names, (1.0, 2.0, 3.0)),)),), console=out)
    lines = out.file.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 60
    assert sum("●" in line for line in lines[3:]) == 3


figure_values = st.none() | st.floats()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["interval", "polar"]),
    st.lists(st.tuples(st.text("ab", max_size=2), figure_values), max_size=5),
    st.lists(st.floats(), max_size=5),
    st.booleans(),
)
def test_any_named_values_can_be_printed(kind, pairs, bounds, log):
    xs, ys = tuple(x for x, _ in pairs), tuple(y for _, y in pairs)
    one = Series("s", xs, ys, tuple(bounds), tuple(bounds[::-1]))
    text = printed(Figure(kind, "t", (one, one), log_y=log))
    assert len(text.splitlines()) >= 2 + len(set(xs))
