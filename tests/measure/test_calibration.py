"""Measures of calibration against loops that read the definitions aloud."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import calibration as slow
from sklearn import metrics

from dovetail.core.errors import SettingsError, TaskError
from dovetail.measure.calibration import (
    Bin,
    brier,
    ece_by_luck,
    expected_calibration_error,
    nll,
    overconfidence,
    reliability,
)

seeds = st.integers(0, 2**31)
MEASURES = [nll, brier, overconfidence, reliability, expected_calibration_error]


def classifier(seed, n, classes, sharpness=1.0):
    """Probabilities, and labels drawn from them: calibrated when the sharpness is one."""
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=draw, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    return (sharpness * logits).softmax(1), labels


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(1, 40), st.integers(2, 6), st.integers(1, 20))
def test_they_are_the_loops_over_examples(seed, n, classes, bins):
    probs, labels = classifier(seed, n, classes)
    rows, truth = probs.tolist(), labels.tolist()
    assert nll(probs, labels) == pytest.approx(slow.nll(rows, truth), rel=1e-12)
    assert brier(probs, labels) == pytest.approx(slow.brier(rows, truth), rel=1e-12)
    answers = slow.answers(rows, truth)
    expected = np.mean([q for q, _ in answers]) - np.mean([r for _, r in answers])
    assert overconfidence(probs, labels) == pytest.approx(expected, abs=1e-12)
    for scheme, groups in (
        ("width", [members for _, _, members in slow.equal_width(rows, truth, bins)]),
        ("mass", slow.equal_mass(rows, truth, bins)),
    ):
        found = expected_calibration_error(probs, labels, bins, scheme=scheme)
        assert found == pytest.approx(slow.error(groups), abs=1e-12)


def test_each_bin_is_the_loop_over_its_members():
    probs, labels = classifier(3, 200, 4)
    found = reliability(probs, labels, bins=10)
    assert len(found) == 10
    for got, (low, high, members) in zip(
        found, slow.equal_width(probs.tolist(), labels.tolist(), 10), strict=True
    ):
        assert (got.low, got.high) == pytest.approx((low, high))
        assert got.count == len(members)
        if members:
            assert got.confidence == pytest.approx(np.mean([q for q, _ in members]))
            assert got.accuracy == pytest.approx(np.mean([r for _, r in members]))
        else:
            assert (got.confidence, got.accuracy, got.gap) == (None, None, 0.0)


def test_scikit_learn_agrees():
    probs, labels = classifier(0, 300, 5, sharpness=1.7)
    assert nll(probs, labels) == pytest.approx(metrics.log_loss(labels, probs, labels=range(5)))
    two, binary = classifier(1, 300, 2)
    theirs = metrics.brier_score_loss(binary, two[:, 1])
    assert brier(two, binary) == pytest.approx(2 * theirs)


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(1, 60), st.integers(2, 8), st.floats(0.0, 50.0))
def test_bounds(seed, n, classes, sharpness):
    probs, labels = classifier(seed, n, classes, sharpness)
    assert 0 <= brier(probs, labels) <= 2
    assert nll(probs, labels) >= 0
    for scheme in ("width", "mass"):
        error = expected_calibration_error(probs, labels, scheme=scheme)
        assert abs(overconfidence(probs, labels)) - 1e-12 <= error <= 1
    assert sum(each.count for each in reliability(probs, labels)) == n


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(2, 50), st.sampled_from(["width", "mass"]))
def test_the_order_of_the_examples_does_not_matter(seed, n, scheme):
    probs, labels = classifier(seed, n, 3)
    probs = probs.round(decimals=1)  # many equal confidences
    probs[:, -1] = 1 - probs[:, :-1].sum(1)
    probs = probs.abs()
    probs /= probs.sum(1, keepdim=True)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    there = reliability(probs, labels, 5, scheme=scheme)
    back = reliability(probs[order], labels[order], 5, scheme=scheme)
    assert [b.count for b in there] == [b.count for b in back]
    assert [b.gap for b in there] == pytest.approx([b.gap for b in back])


def test_equal_mass_holds_equally_many():
    probs, labels = classifier(5, 1000, 4)
    counts = [each.count for each in reliability(probs, labels, 7, scheme="mass")]
    assert len(counts) == 7
    assert max(counts) - min(counts) <= 1


def test_one_confidence_is_one_bin_of_mass():
    found = reliability([[0.2, 0.8]] * 9, [1] * 9, 4, scheme="mass")
    assert found == (Bin(0.0, 1.0, 9, pytest.approx(0.8), 1.0),)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_uniform_guess(classes):
    probs, labels = torch.full((60, classes), 1 / classes), torch.arange(60) % classes
    assert nll(probs, labels) == pytest.approx(math.log(classes), rel=1e-6)
    assert brier(probs, labels) == pytest.approx(1 - 1 / classes, rel=1e-6)
    assert overconfidence(probs, labels) == pytest.approx(0, abs=1e-6)


def test_all_right_and_all_wrong():
    sure = torch.eye(3).repeat(4, 1)
    right, wrong = torch.arange(12) % 3, (torch.arange(12) + 1) % 3
    assert [f(sure, right) for f in (nll, brier, expected_calibration_error)] == [0, 0, 0]
    assert [f(sure, wrong) for f in (brier, expected_calibration_error)] == [2, 1]
    assert nll(sure, wrong) == math.inf


def test_a_calibrated_classifier_has_no_error_left_as_examples_grow():
    errors = [expected_calibration_error(*classifier(0, n, 5)) for n in (100, 2000, 40_000)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.01
    assert expected_calibration_error(*classifier(0, 40_000, 5, sharpness=2.0)) > 0.1


def test_luck_is_what_calibrated_classifiers_show():
    mean, high = ece_by_luck(classifier(0, 200, 5)[0])
    shown = [expected_calibration_error(*classifier(seed, 200, 5)) for seed in range(200)]
    assert mean == pytest.approx(np.mean(shown), rel=0.1)
    assert np.mean(np.array(shown) <= high) == pytest.approx(0.95, abs=0.05)
    probs, labels = classifier(0, 200, 5, sharpness=3.0)
    assert expected_calibration_error(probs, labels) > ece_by_luck(probs)[1]


def test_luck_is_the_same_for_the_same_seed():
    probs, _ = classifier(0, 50, 3)
    assert ece_by_luck(probs, seed=1) == ece_by_luck(probs, seed=1)
    assert ece_by_luck(probs, seed=1) != ece_by_luck(probs, seed=2)


def test_lists_arrays_and_tensors_are_alike():
    probs, labels = classifier(2, 20, 3)
    for measure in MEASURES:
        expected = measure(probs, labels)
        assert measure(probs.numpy(), labels.numpy()) == expected
        assert measure(probs.tolist(), labels.tolist()) == expected
        assert measure(probs.clone().requires_grad_(), labels.int()) == expected


def test_half_precision_is_close_enough_to_probabilities():
    logits = torch.randn(50, 100, generator=torch.Generator().manual_seed(0))
    probs, labels = logits.softmax(1), torch.arange(50)
    assert nll(probs.half(), labels) == pytest.approx(nll(probs, labels), rel=1e-3)


def test_one_example():
    assert expected_calibration_error([[0.25, 0.75]], [0]) == 0.75
    assert len(reliability([[0.25, 0.75]], [0], 4, scheme="mass")) == 1


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("probs", "labels", "said"),
    [
        ([[0.5, 0.6]], [0], "sum to one"),
        ([[2.0, -1.0]], [0], "nonnegative"),
        ([[math.nan, 1.0]], [0], "NaN"),
        ([[math.inf, 0.0]], [0], "NaN or infinite"),
        (torch.ones(0, 3), torch.ones(0).long(), "no examples"),
        (torch.ones(3, 1), [0, 0, 0], "at least two classes"),
        ([0.5, 0.5], [0, 1], "at least two classes"),
        ([["a", "b"]], [0], "numbers"),
        ([[0.5, 0.5], [1.0]], [0, 1], "numbers"),
        ([[0.5, 0.5]], [2], "between 0 and 1"),
        ([[0.5, 0.5]], [-1], "between 0 and 1"),
        ([[0.5, 0.5]], [0.0], "integers"),
        ([[0.5, 0.5]], ["cat"], "classes_"),
        ([[0.5, 0.5]], [0, 1], "integers"),
        ([[0.5, 0.5]], [[0]], "integers"),
    ],
)
def test_what_is_no_probability_or_label(measure, probs, labels, said):
    with pytest.raises(TaskError, match=said):
        measure(probs, labels)


def test_settings_that_cannot_be():
    probs, labels = classifier(0, 5, 2)
    with pytest.raises(SettingsError, match="bins"):
        reliability(probs, labels, 0)
    with pytest.raises(SettingsError, match="scheme"):
        expected_calibration_error(probs, labels, scheme="quantile")
    with pytest.raises(SettingsError, match="draws"):
        ece_by_luck(probs, draws=0)
