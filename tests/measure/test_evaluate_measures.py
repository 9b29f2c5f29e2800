"""Each measure against a loop that reads its definition aloud, and against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from dovetail.measure.evaluate import class_measures, confusion, label_measures, number_measures

seeds = st.integers(0, 2**31)


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classes_of(seed, count, classes):
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))


def accuracy_and_nll_by_rows(logits, targets):
    right, nll = 0, 0.0
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        right += max(range(len(row)), key=row.__getitem__) == target
        nll += math.log(sum(math.exp(z) for z in row)) - row[target]
    return right / len(logits), nll / len(logits)


@given(seeds, st.integers(1, 20), st.integers(2, 6))
@settings(deadline=None, max_examples=30)
def test_accuracy_and_likelihood_are_the_loop_over_rows(seed, count, classes):
    logits, targets = 3 * draw(seed, count, classes), classes_of(seed, count, classes)
    accuracy, nll = accuracy_and_nll_by_rows(logits.double(), targets)
    found = class_measures(logits, targets)
    assert found["accuracy"] == pytest.approx(accuracy)
    assert found["nll"] == pytest.approx(nll, rel=1e-10)


def test_classes_agree_with_scikit_learn():
    logits, targets = 2 * draw(0, 200, 7), classes_of(1, 200, 7)
    found = class_measures(logits, targets)
    probabilities = logits.double().softmax(1).numpy()
    assert found["accuracy"] == metrics.accuracy_score(targets, logits.argmax(1))
    assert found["nll"] == pytest.approx(
        metrics.log_loss(targets, probabilities, labels=range(7)), rel=1e-9
    )


def test_extreme_logits_have_a_finite_likelihood():
    found = class_measures(torch.tensor([[1e4, -1e4]]), torch.tensor([1]))
    assert found["nll"] == pytest.approx(2e4)


@given(seeds, st.integers(1, 15), st.integers(1, 5))
@settings(deadline=None, max_examples=30)
def test_labels_are_the_loop_over_cells(seed, count, labels):
    logits, targets = draw(seed, count, labels), (draw(seed + 1, count, labels) > 0).float()
    cells, rows, loss = [], [], 0.0
    for z, y in zip(logits.double().tolist(), targets.tolist(), strict=True):
        right = [(a > 0) == (b == 1) for a, b in zip(z, y, strict=True)]
        cells += right
        rows.append(all(right))
        for a, b in zip(z, y, strict=True):
            share = 1 / (1 + math.exp(-a))
            loss -= b * math.log(share) + (1 - b) * math.log(1 - share)
    found = label_measures(logits, targets)
    assert found["accuracy"] == pytest.approx(np.mean(cells))
    assert found["exact"] == pytest.approx(np.mean(rows))
    assert found["nll"] == pytest.approx(loss / (count * labels), rel=1e-9)


@pytest.mark.parametrize("columns", [None, 1, 3])
def test_numbers_agree_with_scikit_learn(columns):
    shape = (50,) if columns is None else (50, columns)
    targets = draw(2, *shape)
    outputs = (targets + 0.3 * draw(3, *shape)).reshape(50, -1)
    found = number_measures(outputs, targets)
    truth = targets.reshape(50, -1).double()
    assert found["mse"] == pytest.approx(metrics.mean_squared_error(truth, outputs.double()))
    assert found["rmse"] == pytest.approx(math.sqrt(found["mse"]))
    assert found["r2"] == pytest.approx(
        metrics.r2_score(truth, outputs.double(), multioutput="variance_weighted")
    )


def test_targets_that_do_not_vary_have_no_r2():
    found = number_measures(torch.zeros(4, 1), torch.ones(4))
    assert math.isnan(found["r2"])
    assert found["mse"] == 1.0


@given(seeds, st.integers(0, 40), st.integers(2, 6))
@settings(deadline=None, max_examples=30)
def test_confusion_agrees_with_scikit_learn(seed, count, classes):
    predicted, targets = classes_of(seed, count, classes), classes_of(seed + 1, count, classes)
    expected = np.zeros((classes, classes), dtype=int)
    for said, true in zip(predicted.tolist(), targets.tolist(), strict=True):
        expected[true, said] += 1
    found = confusion(predicted, targets, classes)
    assert found.tolist() == expected.tolist()
    if count:
        theirs = metrics.confusion_matrix(targets, predicted, labels=range(classes))
        assert found.tolist() == theirs.tolist()
