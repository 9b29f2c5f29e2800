"""Least-squares distance against numpy, class scatter against sums by hand, dead features."""

import numpy as np
import pytest
import torch

from dovetail.core.errors import DovetailError
from dovetail.measure.separation import (
    class_scatter,
    dead_features,
    least_squares_distance,
    linear_fit,
)


def distance_by_numpy(rows, labels):
    z = np.column_stack([np.ones(len(rows)), np.asarray(rows, dtype=np.float64)])
    y = np.eye(int(max(labels)) + 1)[np.asarray(labels)]
    return float(((y - z @ np.linalg.lstsq(z, y, rcond=None)[0]) ** 2).sum() / len(y))


def rows_of(kind, n=60):
    rows = torch.randn(n, 8, dtype=torch.float64)
    if kind == "doubled":
        rows = torch.cat([rows, rows[:, :3], rows[:, :1] - rows[:, 1:2]], 1)
    elif kind == "dead":
        rows[:, 2:5] = 7.0
    elif kind == "constant":
        rows[:] = 3.0
    elif kind == "offset":
        rows += 1e5
    elif kind == "scaled":
        rows *= torch.logspace(-4, 4, 8, dtype=torch.float64)
    elif kind == "wide":
        rows = torch.randn(n, 3 * n, dtype=torch.float64)
    elif kind == "wide and of low rank":
        rows = rows @ torch.randn(8, 3 * n, dtype=torch.float64)
    elif kind == "a rank less than square":
        rows = torch.randn(n, n // 2, dtype=torch.float64) @ torch.randn(n // 2, n).double()
    return rows


@pytest.mark.parametrize(
    "kind",
    [
        "plain",
        "doubled",
        "dead",
        "constant",
        "offset",
        "scaled",
        "wide",
        "wide and of low rank",
        "a rank less than square",
    ],
)
def test_distance_is_the_residual_of_numpys_least_squares(kind):
    rows, labels = rows_of(kind), (torch.arange(60) * 7) % 4
    found = least_squares_distance(rows, labels)
    assert found == pytest.approx(distance_by_numpy(rows, labels), abs=1e-8)


def test_float32_and_names_of_classes():
    rows, labels = torch.randn(50, 6), torch.arange(50) % 3
    expected = distance_by_numpy(rows, labels)
    assert least_squares_distance(rows, labels) == pytest.approx(expected, abs=1e-8)
    names = [("emu", "cat", "ox")[int(y)] for y in labels]
    assert least_squares_distance(rows.numpy(), names) == pytest.approx(expected, abs=1e-8)


def test_chance_is_what_features_without_meaning_leave():
    """The mean over orders of the labels is exact, so that many orders come near it."""
    rows, labels = torch.randn(40, 12), torch.arange(40) % 4
    fit = linear_fit(rows, labels)
    assert fit.rank == 12
    orders = [torch.randperm(40) for _ in range(300)]
    mean = np.mean([least_squares_distance(rows, labels[order]) for order in orders])
    assert mean == pytest.approx(fit.by_chance, rel=0.02)
    assert linear_fit(torch.randn(40, 39), labels).by_chance == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("rows", [torch.randn(9, 3), torch.ones(9, 3)])
def test_one_class_leaves_nothing(rows):
    assert least_squares_distance(rows, [5] * 9) == pytest.approx(0.0, abs=1e-15)
    assert class_scatter(rows, [5] * 9) == pytest.approx(0.0, abs=1e-15)


def test_constant_features_leave_all():
    assert least_squares_distance(torch.ones(8, 2), [0, 1] * 4) == pytest.approx(0.5)
    assert class_scatter(torch.ones(8, 2), [0, 1] * 4) == 0.0


def test_class_scatter_is_a_share_of_sums_of_squares():
    rows, labels = torch.randn(60, 5, dtype=torch.float64) + 1e3, torch.arange(60) % 3
    means = torch.stack([rows[labels == c].mean(0) for c in range(3)])
    between = (means[labels] - rows.mean(0)).square().sum()
    within = (rows - means[labels]).square().sum()
    assert class_scatter(rows, labels) == pytest.approx(float(between / (between + within)))
    assert class_scatter(1e-90 * rows, labels) == pytest.approx(class_scatter(rows, labels))


def test_dead_features_do_not_vary():
    rows = torch.rand(20, 4)
    rows[:, 1] = 0.0
    rows[:, 3] = 0.3 + 1e-8 * torch.rand(20)
    assert dead_features(rows).tolist() == [False, True, False, True]
    assert dead_features(rows.double() * 1.0).tolist()[:3] == [False, True, False]


@pytest.mark.parametrize("measure", [least_squares_distance, class_scatter])
@pytest.mark.parametrize(
    ("rows", "labels", "words"),
    [
        ([[1.0], [float("nan")]], [0, 1], "nan"),
        ([[1.0], [2.0]], [0.5, 1.0], "one class a row"),
        ([[1.0], [2.0]], [0], "2 rows"),
    ],
)
def test_refuses_in_a_sentence(measure, rows, labels, words):
    with pytest.raises(DovetailError, match=words):
        measure(rows, labels)
