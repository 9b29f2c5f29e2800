import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.least_squares import best_map, explained

from dovetail.core.errors import SettingsError, TaskError
from dovetail.linalg import least_squares
from dovetail.linalg.least_squares import LeastSquares
from dovetail.linalg.ridge_sums import RidgeSums


def drawn(n, d, k, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(n, k))


def streamed(x, y, *ends):
    rows = LeastSquares()
    for start, end in zip((0, *ends), (*ends, len(x)), strict=True):
        if end > start:
            rows.update(x[start:end], y[start:end])
    return rows


def agrees(x, y, rows, ridge=0.0, tolerance=1e-8):
    weights, intercept = best_map(x, y, ridge)
    found = rows.solve(ridge)
    scale = max(1.0, abs(weights).max())
    np.testing.assert_allclose(found.weights.numpy(), weights, atol=tolerance * scale, rtol=0)
    offset = max(1.0, abs(intercept).max(), scale * abs(x).max())
    np.testing.assert_allclose(found.intercept.numpy(), intercept, atol=tolerance * offset, rtol=0)


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(2, 40),
    d=st.integers(1, 12),
    k=st.integers(1, 4),
    ends=st.lists(st.integers(1, 40), max_size=4),
    dead=st.booleans(),
    doubled=st.booleans(),
    constant=st.booleans(),
    ridge=st.sampled_from([0.0, 1e-6, 0.3, 100.0]),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_any_rows_in_any_pieces_give_what_numpy_gives(
    n, d, k, ends, dead, doubled, constant, ridge, scale
):
    x, y = drawn(n, d, k, seed=n * 100 + d)
    x *= scale
    if dead:
        x[:, 0] = 0.0
    if doubled:
        x[:, -1] = x[:, 0]
    if constant:
        x[:, d // 2] = 5.0 * scale
    agrees(x, y, streamed(x, y, *sorted(min(end, n) for end in ends)), ridge * scale**2)


@pytest.mark.parametrize("blocks", [1, 7])
def test_nearly_equal_channels_keep_their_digits(blocks):
    """Sums of products, with the condition squared, have lost them all."""
    x, _ = drawn(400, 6, 1)
    x[:, 5] = x[:, 0] + 1e-6 * x[:, 5]
    y = x @ np.arange(12.0).reshape(6, 2) + 3.0
    rows = streamed(x, y, *(400 * i // blocks for i in range(1, blocks)))
    truth, _ = best_map(x, y)
    assert abs(rows.solve().weights.numpy() - truth).max() < 1e-8
    assert abs(RidgeSums().update(x, y).fit(1e-12).weights.numpy() - truth).max() > 1e-6


def test_a_large_offset_costs_no_more_digits_than_it_must():
    x, y = drawn(300, 4, 2)
    agrees(x + 1e6, y, LeastSquares().update(x + 1e6, y), tolerance=1e-7)


def test_the_residual_is_the_least():
    x, y = drawn(60, 5, 3)
    rows = LeastSquares().update(x, y)
    best = rows.solve()

    def squared(weights, intercept):
        return np.square(x @ weights + intercept - y).sum()

    least = squared(best.weights.numpy(), best.intercept.numpy())
    assert abs(least - squared(*best_map(x, y))) < 1e-8
    rng = np.random.default_rng(1)
    for _ in range(20):
        moved = best.weights.numpy() + 1e-3 * rng.normal(size=(5, 3))
        assert squared(moved, best.intercept.numpy()) > least


def test_r2_is_the_slow_one_on_these_rows_and_on_others():
    (x, y), (u, v) = drawn(50, 4, 2), drawn(20, 4, 2, seed=5)
    y, v = y + x[:, :2], v + u[:, :2]
    rows, others = LeastSquares().update(x, y), LeastSquares().update(u, v)
    best = rows.solve()
    facts = best.weights.numpy(), best.intercept.numpy()
    assert abs(rows.r2(best) - explained(x, y, *facts)) < 1e-10
    assert abs(others.r2(best) - explained(u, v, *facts)) < 1e-10
    assert others.r2(best) < others.r2(others.solve())


def test_targets_that_do_not_vary_are_explained_or_not():
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    rows = LeastSquares().update(x, torch.full((30, 1), 0.7))
    other = LeastSquares().update(x, x[:, :1]).solve()
    assert (rows.r2(rows.solve()), rows.r2(other)) == (1.0, 0.0)


def test_many_small_blocks_are_one_large_one(monkeypatch):
    x, y = drawn(500, 3, 2)
    monkeypatch.setattr(least_squares, "_MOST_CELLS", 60)
    agrees(x, y, LeastSquares().update(x, y), tolerance=1e-10)
    assert LeastSquares().update(x, y).rank == 3


def test_one_row_is_met_by_the_intercept():
    found = LeastSquares().update([[1.0, 2.0]], [[3.0]])
    assert found.solve().weights.abs().max() < 1e-12
    assert found.rank == 0
    assert found.r2(found.solve()) == 1.0


@pytest.mark.parametrize(
    ("features", "targets", "told"),
    [
        ([[float("nan")]], [1.0], "not finite"),
        ([[1.0]], [float("inf")], "not finite"),
        ([[1.0], [2.0]], [1.0], "2 rows of features but 1 targets"),
        (torch.zeros(0, 3), torch.zeros(0, 1), "nothing to learn from"),
    ],
)
def test_rows_that_are_none_are_refused(features, targets, told):
    with pytest.raises(TaskError, match=told):
        LeastSquares().update(features, targets)


def test_other_mistakes_are_told():
    with pytest.raises(TaskError, match="at least one row"):
        LeastSquares().solve()
    rows = LeastSquares().update([[1.0], [2.0]], [1.0, 2.0])
    with pytest.raises(TaskError, match="2 features and 1 targets"):
        rows.update([[1.0, 2.0]], [1.0])
    for ridge in (-1.0, float("nan"), float("inf"), "auto"):
        with pytest.raises(SettingsError, match="at least 0"):
            rows.solve(ridge)
