"""The map of tasks, against ranks counted by hand and correlations summed over pairs."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import FormatError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.core.views import Figure, Heatmap, Table
from dovetail.ranking.task_map import TaskMap, task_map
from dovetail.report.page import render_page

ESTIMATED = {
    "a": {"a": 0.9, "b": 0.4, "c": 0.1},
    "b": {"a": 0.5, "b": 0.8, "c": 0.2},
    "c": {"a": 0.3, "b": 0.6, "c": 0.7},
    "d": {"a": 0.1, "b": 0.2, "c": 0.3},
}
TRUE = {
    "a": {"a": 0.99, "b": 0.80, "c": 0.60},
    "b": {"a": 0.90, "b": 0.95, "c": 0.70},
    "c": {"a": 0.93, "b": 0.85, "c": 0.97},
    "d": {"a": 0.55, "b": 0.60, "c": 0.65},
}


def ranks_by_counting(values):
    """The mean of the places that a value and its equals take, the least first."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
        for value in values
    ]


def spearman_by_hand(first, second):
    a, b = ranks_by_counting(first), ranks_by_counting(second)
    mean = (len(a) + 1) / 2
    product = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    return product / math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))


def weighted_kendall_by_pairs(first, second):
    """Each pair counts 1/(r+1) + 1/(s+1) for its places, by the one order and by the other."""
    found = []
    for leading, other in ((first, second), (second, first)):
        order = sorted(range(len(first)), key=lambda i: (leading[i], other[i]), reverse=True)
        place = {item: i for i, item in enumerate(order)}
        agree = total_a = total_b = 0.0
        for i, j in itertools.combinations(range(len(first)), 2):
            weight = 1 / (place[i] + 1) + 1 / (place[j] + 1)
            a, b = (math.copysign(1, v[i] - v[j]) * (v[i] != v[j]) for v in (first, second))
            agree += weight * a * b
            total_a += weight * a * a
            total_b += weight * b * b
        found.append(agree / math.sqrt(total_a * total_b))
    return sum(found) / 2


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("task", ["a", "b", "c"])
def test_agreement_is_what_the_pairs_say(task, own):
    sources = [s for s in ESTIMATED if own or s != task]
    estimates = [ESTIMATED[s][task] for s in sources]
    truths = [TRUE[s][task] for s in sources]
    found = task_map(ESTIMATED, TRUE).agreement(task, own=own)
    assert found.count == len(sources)
    assert found.spearman == pytest.approx(spearman_by_hand(estimates, truths))
    assert found.weighted_kendall == pytest.approx(weighted_kendall_by_pairs(estimates, truths))
    chosen = max(sources, key=lambda s: ESTIMATED[s][task])
    assert found.regret == pytest.approx(max(truths) - TRUE[chosen][task])


def test_a_task_as_source_compares_targets():
    found = task_map(ESTIMATED, TRUE).agreement("b", "source")
    assert found.count == 2
    assert found.spearman == pytest.approx(1.0)  # a before c in both
    assert found.regret is None


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=3, max_size=7),
    st.floats(0.1, 50),
    st.floats(-5, 5),
)
def test_only_the_order_counts(values, scale, shift):
    names = [f"s{i}" for i in range(len(values))]
    estimated = {n: {"t": float(e)} for n, (e, _) in zip(names, values, strict=True)}
    true = {n: {"t": float(t)} for n, (_, t) in zip(names, values, strict=True)}
    moved = {n: {"t": row["t"] * scale + shift} for n, row in estimated.items()}
    plain, other = task_map(estimated, true), task_map(moved, true)
    assert other.agreement("t").spearman == pytest.approx(plain.agreement("t").spearman)
    drawn = [figure.series[0].y for figure in map_figures(plain, "t")]
    again = [figure.series[0].y for figure in map_figures(other, "t")]
    assert again[0] == pytest.approx(drawn[0])
    assert set(drawn[0]) <= {0.0} or (min(drawn[0]) == 0 and max(drawn[0]) == 1)


def map_figures(found, task):
    return [
        block
        for block in found.view()
        if isinstance(block, Figure) and block.title.startswith(f"{task} as")
    ]


def test_the_best_is_at_the_centre_and_the_worst_at_the_rim():
    (as_source, as_target) = map_figures(task_map(ESTIMATED, TRUE, focus="a"), "a")
    estimated, true = as_target.series
    assert as_target.kind == "polar"
    assert estimated.x == true.x == ("a", "b", "c", "d")
    assert estimated.y == pytest.approx((0.0, 0.5, 0.75, 1.0))
    assert true.y == pytest.approx((0.0, 0.09 / 0.44, 0.06 / 0.44, 1.0))
    assert as_source.series[0].x == ("a", "b", "c")


def test_focus_decides_what_is_drawn_and_tabled():
    every = task_map(ESTIMATED, TRUE)
    kinds = [block.kind for block in every.view() if isinstance(block, Figure)]
    assert kinds == ["polar"] * 7  # three tasks in both roles, and a source that is no target
    assert sum(isinstance(block, Table) for block in every.view()) == 1
    one = task_map(ESTIMATED, TRUE, focus="b")
    assert {f.title.split()[0] for f in one.view() if isinstance(f, Figure)} == {"b"}
    table = [block for block in one.view() if isinstance(block, Table)][-1]
    places = {row[0]: (row[2], row[4]) for row in table.rows}
    assert places == {"a": (3, 3), "b": (1, 1), "c": (2, 2), "d": (4, 4)}
    maps = [block for block in one.view() if isinstance(block, Heatmap)]
    assert [block.values[1][2] for block in maps] == [0.2, 0.7]


def test_without_truth_only_the_estimate_is_shown():
    found = task_map(ESTIMATED, focus=["a", "c"])
    assert all(len(figure.series) == 1 for figure in found.view() if isinstance(figure, Figure))
    assert sum(isinstance(block, Heatmap) for block in found.view()) == 1
    assert "rank correlation" not in found.summary
    assert found.agreement("a").spearman is None


def test_what_was_not_measured_is_left_out():
    found = task_map({"a": {"t": 1.0}, "b": {"t": 3.0, "u": 1.0}, "c": {"u": 2.0}}, focus="t")
    (figure,) = map_figures(found, "t")
    assert figure.series[0].x == ("a", "b")
    assert found.estimated == ((1.0, None), (3.0, 1.0), (None, 2.0))


def test_equal_values_have_no_order():
    found = task_map({n: {"t": 0.1 + 0.2} for n in "abc"}, {n: {"t": 1.0} for n in "abc"})
    agreement = found.agreement("t")
    assert agreement.spearman is agreement.weighted_kendall is None
    assert map_figures(found, "t")[0].series[0].y == (0.0, 0.0, 0.0)


def test_a_map_survives_its_file_and_is_drawn(tmp_path):
    made = task_map(ESTIMATED, TRUE, focus="b", by="al", measure="test accuracy")
    assert load_record(made.save(tmp_path / "map.json")) == made
    assert "b as target" in render_page([made], title="maps")
    reordered = task_map({"z": {"y": 1, "x": 2}})
    assert load_record(reordered.save(tmp_path / "other.json")).targets == ("y", "x")


def test_a_file_with_rows_missing_is_refused(tmp_path):
    text = task_map(ESTIMATED).to_json().replace('"d"\n', '"d", "e"\n', 1)
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(FormatError, match="row for each source"):
        load_record(tmp_path / "bad.json")
    with pytest.raises(ValueError, match="cell for each target"):
        TaskMap(sources=("a",), targets=("a", "b"), estimated=((1.0,),))


@pytest.mark.parametrize(
    ("estimated", "true", "focus", "error", "words"),
    [
        ({}, None, None, SettingsError, "at least one source"),
        ({"a": {}}, None, None, SettingsError, "at least one source"),
        (ESTIMATED, {"aa": {"b": 1.0}}, None, SettingsError, "did you mean"),
        (ESTIMATED, {"a": {"x": 1.0}}, None, SettingsError, "target 'x'"),
        (ESTIMATED, TRUE, "bb", SettingsError, "no task of this map"),
        ({"a": {"b": math.nan}}, None, None, TaskError, "leave the pair out"),
        ({"a": {"b": 1.0}}, {"a": {"b": math.inf}}, None, TaskError, "accuracy of 'a' on 'b'"),
    ],
)
def test_nonsense_is_refused(estimated, true, focus, error, words):
    with pytest.raises(error, match=words):
        task_map(estimated, true, focus=focus)


def test_a_role_that_a_task_does_not_have_is_refused():
    with pytest.raises(SettingsError, match="'d' is no target"):
        task_map(ESTIMATED).around("d", "target")
