"""Expected accuracy: refits for every row and pair, and how often the interval holds the truth."""

import numpy as np
import pytest
import torch
from references.ridge import head, left_out
from sklearn.datasets import load_digits

from dovetail.core.errors import SettingsError, TaskError
from dovetail.linalg import solve
from dovetail.ranking.expected import (
    agreeing_classes,
    agreeing_labels,
    agreeing_numbers,
    chance_values,
    expected_accuracy,
    wilson,
)
from dovetail.ranking.heads import fit_head


def blobs(seed, n, d, classes, apart, more=0):
    """Gaussian classes in equal shares, and more examples of the same to test on."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, d)) * apart
    labels = np.r_[np.arange(n) % classes, np.arange(more) % classes]
    return centres[labels] + rng.normal(size=(n + more, d)), labels


# The value --------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [5, 40])
def test_verdicts_are_those_of_heads_that_did_not_see_the_row(d):
    x, y = blobs(0, 24, d, 3, 0.7)
    found = expected_accuracy(x, y + 4, stratified=False)
    predictions = left_out(x, np.eye(3)[y], found.penalty)
    np.testing.assert_allclose(found.predictions, predictions, atol=1e-9)
    assert found.per_example.tolist() == (predictions.argmax(1) == y).tolist()
    assert found.value == pytest.approx((predictions.argmax(1) == y).mean())


def test_classes_keep_their_shares_whoever_is_left_out():
    """Features that say nothing: left out, a class would look rarer than it is."""
    x, y = np.zeros((30, 4)), np.arange(30) % 3
    assert expected_accuracy(x, y, stratified=False).value == 0
    assert expected_accuracy(x, y).value == pytest.approx(1 / 3)
    off = [expected_accuracy(*blobs(s, 50, 20, 10, 0.5), stratified=False).value for s in range(20)]
    on = [expected_accuracy(*blobs(s, 50, 20, 10, 0.5)).value for s in range(20)]
    truth = [
        fit_head(x[:50], y[:50]).accuracy(x[50:], y[50:])
        for x, y in (blobs(s, 50, 20, 10, 0.5, more=1000) for s in range(20))
    ]
    assert np.mean(off) < np.mean(truth) - 0.08
    assert abs(np.mean(on) - np.mean(truth)) < 0.05


def test_labels_and_numbers():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    labels = (x[:, :2] + 0.5 * rng.normal(size=(200, 2)) > 0).astype(float)
    several = expected_accuracy(x, labels)
    said = left_out(x, labels, several.penalty) > 0.5
    assert several.kind == "multilabel"
    assert several.value == pytest.approx((said == labels).mean())
    y = x[:, 0] + rng.normal(size=200)
    numbers = expected_accuracy(x, y)
    missed = (left_out(x, y[:, None], numbers.penalty)[:, 0] - y) ** 2
    assert numbers.kind == "regression"
    assert numbers.value == pytest.approx(1 - missed.mean() / y.var(ddof=1))
    assert numbers.low < numbers.value < numbers.high < 1
    assert expected_accuracy(x, labels, kind="regression").kind == "regression"
    assert float(numbers.per_example.mean()) == pytest.approx(numbers.value)


def test_scale_and_names_of_classes_do_not_matter():
    x, y = blobs(1, 40, 6, 4, 0.6)
    plain = expected_accuracy(x, y)
    moved = expected_accuracy(x * 1e-3 + 7, torch.tensor([50, -3, 8, 2])[y])
    assert plain.per_example.tolist() == moved.per_example.tolist()
    assert plain.effective_n == pytest.approx(moved.effective_n, rel=1e-4)


def test_targets_in_another_order_show_chance():
    x, y = blobs(2, 100, 6, 4, 1.0)
    found = expected_accuracy(x, y)
    orders = [np.random.default_rng(seed).permutation(100) for seed in range(20)]
    shuffles = torch.tensor(np.stack([np.arange(100), *orders]))
    value, *null = chance_values(x, y, shuffles, found)
    assert value == pytest.approx(found.value)
    assert 0.15 < np.mean(null) < 0.35 < 0.55 < value
    refitted = expected_accuracy(x, np.asarray(y)[orders[0]])
    if refitted.penalty == found.penalty:
        assert null[0] == pytest.approx(refitted.value)


def test_features_without_a_message_have_no_z():
    ones, labels = torch.ones(60, 3), torch.arange(60) % 2
    found = expected_accuracy(ones, labels)
    shuffles = torch.stack([torch.randperm(60) for _ in range(5)])
    assert set(chance_values(ones, labels, shuffles, found)) == {found.value}


# The head ---------------------------------------------------------------------------------------


def test_the_head_is_the_one_whose_accuracy_is_estimated():
    x, y = blobs(3, 60, 6, 3, 0.8, more=300)
    names = np.array(["emu", "cat", "fox"])[y]
    found = fit_head(x[:60], names[:60])
    assert found.penalty == expected_accuracy(x[:60], names[:60]).penalty
    weights, intercept = head(x[:60], np.eye(3)[[1, 0, 2]][y[:60]], found.penalty)
    np.testing.assert_allclose(found.weights, weights, atol=1e-9)
    np.testing.assert_allclose(found.intercept, intercept, atol=1e-9)
    said = np.array(["cat", "emu", "fox"])[(x[60:] @ weights + intercept).argmax(1)]
    assert found.accuracy(x[60:], names[60:]) == pytest.approx((said == names[60:]).mean())
    assert found.accuracy(x[60:], ["owl"] * 300) == 0


def test_heads_for_labels_and_numbers():
    x = np.random.default_rng(0).normal(size=(80, 3))
    labels = (x[:, :2] > 0).astype(int)
    assert fit_head(x, labels).accuracy(x, labels) > 0.9
    assert fit_head(x, x @ [1.0, 2.0, 3.0]).accuracy(x, x @ [1.0, 2.0, 3.0]) > 0.999


# Pairs of rows ----------------------------------------------------------------------------------


def pairs_left_out(x, y, penalty):
    """Predictions ``[i, j]`` of row i by the head of all rows but i and j; ``[i, i]`` but i."""
    n = len(x)
    found = np.empty((n, n, y.shape[1]))
    for i in range(n):
        for j in range(n):
            others = np.delete(np.arange(n), [i, j])
            a, b = head(x[others], y[others], penalty)
            found[i, j] = x[i] @ a + b
    return found


def mean_product(changes):
    n = len(changes)
    return sum(changes[i, j] * changes[j, i] for i in range(n) for j in range(n) if i != j) / (
        n * (n - 1)
    )


@pytest.mark.parametrize("d", [3, 30])
def test_numbers_of_pairs_are_refitted(d):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, d)), rng.normal(size=(12, 2))
    without = pairs_left_out(x, y, 0.8)
    loss = ((without - y[:, None]) ** 2).sum(2)
    solved = solve(x, y)
    residuals = torch.tensor(y) - solved.leave_one_out(0.8).predictions
    found = agreeing_numbers(solved.remainder(0.8, torch.arange(12)), residuals)
    assert found == pytest.approx(mean_product(loss.diagonal()[:, None] - loss), rel=1e-6)


def softened(margin, without):
    spread = min(margin.std(ddof=1), np.subtract(*np.quantile(margin, [0.75, 0.25])) / 1.349)
    width = 0.5 * spread * len(margin) ** -0.2
    ndtr = torch.special.ndtr
    return (
        ndtr(torch.tensor(margin / width))[:, None] - ndtr(torch.tensor(without / width))
    ).numpy()


@pytest.mark.parametrize("d", [3, 30])
@pytest.mark.parametrize("stratified", [False, True])
def test_classes_of_pairs_are_refitted(d, stratified):
    x, y = blobs(0, 15, d, 3, 0.5)
    counts = np.bincount(y)
    without = pairs_left_out(x, np.eye(3)[y], 0.8)
    if stratified:
        for i in range(15):
            for j in range(15):
                for c in range(3):
                    gone = int(y[i] == c) + int(i != j and y[j] == c)
                    without[i, j, c] *= counts[c] / (counts[c] - gone)
    alone = without[np.arange(15), np.arange(15)].copy()
    rivals = np.where(np.eye(3)[y] == 1, -np.inf, alone).argmax(1)
    margins = np.array([without[i, :, y[i]] - without[i, :, rivals[i]] for i in range(15)])
    expected = mean_product(softened(margins.diagonal().copy(), margins))
    solved = solve(x, np.eye(3)[y])
    found = agreeing_classes(
        solved.remainder(0.8, torch.arange(15)),
        solved.leave_one_out(0.8).predictions,
        torch.tensor(y),
        torch.tensor(counts) if stratified else None,
    )
    assert found == pytest.approx(expected, rel=1e-6)


def test_labels_of_pairs_are_refitted():
    x, _ = blobs(0, 14, 4, 2, 0.5)
    y = (x[:, :2] + np.random.default_rng(1).normal(size=(14, 2)) > 0).astype(float)
    sign, without = 2 * y - 1, pairs_left_out(x, y, 0.8)
    margins = [sign[:, None, c] * (without[:, :, c] - 0.5) for c in range(2)]
    expected = mean_product(sum(softened(m.diagonal().copy(), m) for m in margins) / 2)
    solved = solve(x, y)
    predictions = solved.leave_one_out(0.8).predictions
    remainder = solved.remainder(0.8, torch.arange(14))
    assert agreeing_labels(remainder, predictions, torch.tensor(y)) == pytest.approx(expected)


# The interval -----------------------------------------------------------------------------------


def coverage(draws, n, **options):
    """How often the interval holds the accuracy on the rest, whose own noise is allowed for."""
    held, naive = [], []
    for x, y in draws:
        found = expected_accuracy(x[:n], y[:n], **options)
        truth = fit_head(x[:n], y[:n]).accuracy(x[n:], y[n:])
        trials = 1 / (1 / found.effective_n + 1 / (len(x) - n))
        low, high = wilson(found.value, trials, 1.645)
        held.append(low <= truth <= high)
        plain = expected_accuracy(x[:n], y[:n], stratified=False).value
        low, high = wilson(plain, 1 / (1 / n + 1 / (len(x) - n)), 1.645)
        naive.append(low <= truth <= high)
    return np.mean(held), np.mean(naive)


@pytest.mark.parametrize(
    ("n", "d", "classes", "apart", "at_least"),
    [
        (50, 10, 2, 0.8, 0.82),
        (50, 100, 10, 0.25, 0.82),
        (50, 300, 2, 0.1, 0.8),
        (200, 20, 5, 0.5, 0.82),
        pytest.param(200, 300, 10, 0.3, 0.8, marks=pytest.mark.slow),
        pytest.param(500, 100, 10, 0.25, 0.82, marks=pytest.mark.slow),
    ],
)
def test_the_interval_holds_the_truth_of_blobs(n, d, classes, apart, at_least):
    draws = (blobs(s, n, d, classes, apart, more=1500) for s in range(60 if n * d < 10_000 else 40))
    held, _ = coverage(draws, n)
    assert at_least <= held <= 0.99


def shares_of_digits(seed, n, features):
    """Digits with ``n`` examples in equal shares first."""
    rng = np.random.default_rng(seed)
    x, y = load_digits(return_X_y=True)
    order = rng.permutation(len(x))
    place = (np.eye(10)[y[order]].cumsum(0) * np.eye(10)[y[order]]).sum(1)
    order = order[np.argsort(place, kind="stable")]
    x = x[order] / 16
    if features:
        x = np.maximum(x @ rng.normal(size=(64, features)) / 8, 0)
    return x, y[order]


@pytest.mark.parametrize(("n", "features"), [(50, 0), (50, 300), (200, 0)])
def test_the_interval_holds_the_truth_of_digits(n, features):
    held, naive = coverage((shares_of_digits(s, n, features) for s in range(30)), n)
    assert held >= 0.8
    if n == 50:
        assert naive < held  # leave-one-out and independent trials would promise too much


def test_random_samples_have_their_own_estimate():
    def draw(seed):
        x, y = blobs(seed, 2000, 20, 5, 0.5)
        order = np.random.default_rng(seed).permutation(2000)
        return x[order], y[order]

    held, _ = coverage((draw(s) for s in range(60)), 50, stratified=False)
    assert held >= 0.78


def test_numbers_are_held_too():
    held = []
    for seed in range(80):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(2000, 8))
        y = x @ rng.normal(size=8) + 2 * rng.normal(size=2000)
        found = expected_accuracy(x[:60], y[:60])
        held.append(found.low <= fit_head(x[:60], y[:60]).accuracy(x[60:], y[60:]) <= found.high)
    assert 0.8 <= np.mean(held) <= 0.98


def test_certainty_grows_with_examples_and_shrinks_with_confidence():
    x, y = blobs(5, 400, 10, 4, 0.8)
    few, many = expected_accuracy(x[:100], y[:100]), expected_accuracy(x, y)
    assert many.high - many.low < few.high - few.low
    sure = expected_accuracy(x, y, confidence=0.99)
    assert sure.low < many.low < many.high < sure.high
    assert many.effective_n <= 400


def test_all_right_is_not_certainty():
    x, y = blobs(6, 40, 5, 2, 8.0)
    found = expected_accuracy(x, y)
    assert (found.value, found.high) == (1.0, 1.0)
    assert 0.85 < found.low < 0.97


# Hostile ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "targets", "says"),
    [
        (np.ones((3, 2)), [0, 0, 0], "one class"),
        (np.ones((3, 2)), [0, 1], "3 rows of features but 2"),
        (np.eye(3), [0, 1, 2], "every class has one example"),
        (np.full((3, 2), np.nan), [0, 1, 1], "nan or inf"),
        (np.ones((4, 2)), [2.0, 2.0, 2.0, 2.0], "the same number"),
        (np.eye(3), [0, 1, 1], "at least 4"),
        (np.ones((1, 2)), [2.0], "at least 4"),
    ],
)
def test_what_cannot_be_expected(features, targets, says):
    with pytest.raises(TaskError, match=says):
        expected_accuracy(features, targets)


def test_settings_are_judged():
    with pytest.raises(SettingsError, match="confidence"):
        expected_accuracy(np.eye(4), [0, 0, 1, 1], confidence=90)
    with pytest.raises(TaskError, match="zeros and ones"):
        expected_accuracy(np.eye(4), [[0.5], [1], [1], [0]], kind="multilabel")
