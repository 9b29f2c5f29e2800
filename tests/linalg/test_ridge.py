"""Ridge and its leave-one-out against one refit for every row, and against scikit-learn."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.ridge import head, left_out
from sklearn.linear_model import Ridge

from dovetail.core.errors import SettingsError, TaskError
from dovetail.linalg import RidgeSums, fit, leave_one_out, solve

VECTORS = json.loads((Path(__file__).parents[1] / "references/ranking_vectors.json").read_text())
SHAPES = [(12, 4, 3), (30, 29, 2), (20, 20, 1), (21, 20, 2), (9, 25, 2), (5, 300, 4)]


def draw(n, d, k, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * rng.uniform(0.1, 3, d) + offset
    return x, x[:, :1] + rng.normal(size=(n, k))


@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
@pytest.mark.parametrize("penalty", [1e-3, 1.0, 100.0])
def test_left_out_is_refitted(n, d, k, penalty):
    x, y = draw(n, d, k)
    found = leave_one_out(x, y, penalty)
    np.testing.assert_allclose(found.predictions, left_out(x, y, penalty), atol=1e-9)
    assert found.error == pytest.approx(np.mean((left_out(x, y, penalty) - y) ** 2), rel=1e-9)


@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_weights_count_rows(n, d, k):
    x, y = draw(n, d, k)
    weights = np.random.default_rng(1).uniform(0.2, 2, n)
    weights[2] = 0
    found = leave_one_out(x, y, 0.5, weights)
    np.testing.assert_allclose(found.predictions, left_out(x, y, 0.5, weights), atol=1e-9)
    a, b = head(x, y, 0.5, weights)
    fitted = fit(x, y, 0.5, weights)
    np.testing.assert_allclose(fitted.weights, a, atol=1e-9)
    np.testing.assert_allclose(fitted.intercept, b, atol=1e-9)


@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_the_head_is_scikit_learns(n, d, k):
    x, y = draw(n, d, k, offset=5.0)
    theirs = Ridge(alpha=0.7, solver="svd").fit(x, y)
    np.testing.assert_allclose(fit(x, y, 0.7)(x), theirs.predict(x).reshape(n, k), atol=1e-9)


def test_the_vectors():
    x = torch.tensor(VECTORS["inputs"]["F"], dtype=torch.float64)
    labels = torch.tensor(VECTORS["inputs"]["y"])
    ids, codes = labels.unique(return_inverse=True)
    targets = torch.nn.functional.one_hot(codes, len(ids))
    found = leave_one_out(x, targets, penalty=1.0)
    right = (found.predictions.argmax(1) == codes).double().mean()
    assert float(right) == pytest.approx(VECTORS["expected"]["ridge_loo_acc_lambda1"])
    assert found.error == pytest.approx(VECTORS["expected"]["ridge_loo_mse_lambda1"], rel=1e-9)


def test_auto_is_the_best_of_its_grid():
    x, y = draw(25, 6, 2)
    found = leave_one_out(x, y, "auto")
    errors = [np.mean((left_out(x, y, penalty) - y) ** 2) for penalty in found.penalties]
    np.testing.assert_allclose(found.errors, errors, rtol=1e-6)
    assert found.penalty == found.penalties[int(np.argmin(errors))]
    assert fit(x, y).penalty == found.penalty
    among_two = leave_one_out(x, y, (1e6, found.penalty))
    assert among_two.penalty == found.penalty


@given(st.sampled_from([(14, 5), (6, 11)]), st.sampled_from([1e-4, 1e5]), st.floats(-1e3, 1e3))
@settings(deadline=None, max_examples=15)
def test_auto_knows_neither_scale_nor_offset(shape, scale, offset):
    x, y = draw(*shape, 2)
    plain, moved = leave_one_out(x, y, "auto"), leave_one_out(x * scale + offset, y, "auto")
    # An offset of a thousand over features of 1e-4 leaves nine digits of them.
    torch.testing.assert_close(plain.predictions, moved.predictions, rtol=1e-4, atol=1e-4)


def test_a_large_offset_costs_no_digits():
    x, y = draw(40, 5, 1)
    near, far = leave_one_out(x, y, 1.0), leave_one_out(x + 1e6, y, 1.0)
    torch.testing.assert_close(near.predictions, far.predictions, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("columns", [3, 30])
def test_rows_that_alone_decide_their_fit(columns):
    """One feature that a single row has: whatever its weight, that row cannot have taught it."""
    x, y = draw(20, columns, 2)
    x[:, 0] = 0
    x[7, 0] = 1e3
    for penalty in (1e-2, 1e-5, 1e-8):
        np.testing.assert_allclose(
            leave_one_out(x, y, penalty).predictions[7], left_out(x, y, penalty)[7], rtol=1e-3
        )
    assert leave_one_out(x[:, :3], y, 1e-8).leverage[7] == pytest.approx(1)


def test_a_fit_through_every_row_does_not_know_the_row_left_out():
    x, y = draw(10, 40, 1)
    found = leave_one_out(x, y, 1e-6)
    assert float((fit(x, y, 1e-6)(x) - torch.tensor(y)).abs().max()) < 1e-6
    np.testing.assert_allclose(found.predictions, left_out(x, y, 1e-6), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_the_remainder_makes_residuals_and_leaves_pairs_out(n, d, k):
    x, y = draw(n, d, k)
    whole = solve(x, y).remainder(0.7, torch.arange(n)).numpy()
    np.testing.assert_allclose(whole @ y, y - fit(x, y, 0.7)(x).numpy(), atol=1e-9)
    pair = torch.tensor([1, 3])
    a, b = head(np.delete(x, pair, 0), np.delete(y, pair, 0), 0.7)
    block = solve(x, y).remainder(0.7, pair).numpy()
    residuals = np.linalg.solve(block, (whole @ y)[pair])
    np.testing.assert_allclose(y[pair] - residuals, x[pair] @ a + b, atol=1e-8)


def test_features_without_spread_predict_the_mean_of_the_others():
    y = np.array([0.0, 1.0, 5.0])
    for columns in (2, 7):
        found = leave_one_out(np.ones((3, columns)), y, "auto")
        np.testing.assert_allclose(found.predictions[:, 0], [3.0, 2.5, 0.5])


# Sums -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [(5,), (1, 2), (3, 3, 20), ()])
def test_sums_merge_to_the_whole(cuts):
    x, y = draw(24, 6, 2, offset=100.0)
    pieces = list(zip(np.split(x, cuts), np.split(y, cuts), strict=True))
    each = [RidgeSums().update(a, b) if len(a) else RidgeSums() for a, b in pieces]
    merged = RidgeSums()
    for sums in reversed(each):
        merged.merge(sums)
    whole = leave_one_out(x, y, "auto")
    np.testing.assert_allclose(merged.penalties(), whole.penalties, rtol=1e-12)
    errors = sum(merged.squared_errors(a, b, merged.penalties()) for a, b in pieces if len(a))
    np.testing.assert_allclose(errors / 48, whole.errors, rtol=1e-9)
    penalty = merged.penalties()[int(errors.argmin())]
    assert penalty == pytest.approx(whole.penalty)
    parts = [merged.leave_one_out(a, b, penalty).predictions for a, b in pieces if len(a)]
    torch.testing.assert_close(torch.cat(parts), whole.predictions, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(merged.fit(penalty).weights, fit(x, y, penalty).weights)


def test_sums_give_a_row_that_decides_alone_the_mean_of_the_others():
    x, y = draw(20, 3, 1)
    x[:, 0] = 0
    x[7, 0] = 1e9
    found = RidgeSums().update(x, y).leave_one_out(x, y, 1e-8)
    assert float(found.predictions[7]) == pytest.approx(np.delete(y, 7).mean())


def test_an_update_after_a_fit_is_seen():
    x, y = draw(20, 3, 1)
    sums = RidgeSums().update(x[:10], y[:10])
    sums.fit(1.0)
    torch.testing.assert_close(sums.update(x[10:], y[10:]).fit(1.0).weights, fit(x, y, 1.0).weights)


# Hostile ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "targets", "says"),
    [
        ([[1.0], [float("nan")]], [1.0, 2.0], "not finite"),
        ([[1.0], [2.0]], [1.0, float("inf")], "not finite"),
        ([[1.0], [2.0]], [1.0], "2 rows of features but 1 targets"),
        ([[1.0]], [1.0], "at least two rows"),
        (np.zeros((3, 0)), [1.0, 2.0, 3.0], "nothing to learn from"),
        (3.0, [1.0], "must be rows"),
    ],
)
def test_data_that_cannot_be_fitted(features, targets, says):
    with pytest.raises(TaskError, match=says):
        leave_one_out(features, targets)


@pytest.mark.parametrize("penalty", [0.0, -1.0, float("nan"), (), (1.0, 0.0), "best"])
def test_penalties_are_positive(penalty):
    with pytest.raises(SettingsError, match="penalt"):
        leave_one_out(np.eye(3), np.arange(3.0), penalty)


def test_weights_are_not_negative_and_leave_something():
    x, y = draw(4, 2, 1)
    with pytest.raises(TaskError, match="none negative"):
        leave_one_out(x, y, 1.0, [1.0, 1.0, 1.0, -1.0])
    for columns in (x, np.tile(x, 4)):
        with pytest.raises(TaskError, match="at least two rows"):
            leave_one_out(columns, y, 1.0, [0.0, 0.0, 0.0, 1.0])


def test_sums_of_other_shapes_do_not_add():
    with pytest.raises(TaskError, match="do not add"):
        RidgeSums().update(*draw(4, 2, 1)).merge(RidgeSums().update(*draw(4, 3, 1)))
    with pytest.raises(TaskError, match="keep one RidgeSums"):
        RidgeSums().update(*draw(4, 2, 1)).update(*draw(4, 3, 1))


def test_whole_numbers_and_half_precision_are_welcome():
    x, y = draw(20, 3, 1)
    half, y = torch.tensor(x).half(), torch.tensor(y > 0)
    torch.testing.assert_close(
        leave_one_out(half, y).predictions, leave_one_out(half.double(), y.double()).predictions
    )


def test_some_of_many_rows_decide_as_well_as_all_of_them():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(6000, 20, generator=draw, dtype=torch.float64)
    y = x[:, :3] + 3 * torch.randn(6000, 3, generator=draw, dtype=torch.float64)
    found = leave_one_out(x, y, "auto")
    single = [leave_one_out(x, y, penalty) for penalty in found.penalties]
    errors = [each.error for each in single]
    chosen = found.penalties.index(found.penalty)
    assert errors[chosen] < min(errors) * 1.0005
    assert torch.allclose(found.predictions, single[chosen].predictions)
