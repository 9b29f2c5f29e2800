import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.calibration import best_temperature, likelihood_at

from dovetail.core.errors import SettingsError, TaskError
from dovetail.measure.calibration import (
    expected_calibration_error,
    fit_temperature,
    log_probabilities,
    nll,
    tempered,
)

seeds = st.integers(0, 2**31)


def drawn(seed, n, classes, temperature=1.0):
    """Logits, and labels drawn from their softmax at a temperature."""
    draw = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, classes, generator=draw, dtype=torch.float64)
    labels = torch.multinomial((logits / temperature).softmax(1), 1, generator=draw)[:, 0]
    return logits, labels


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_the_best_of_a_grid(seed):
    logits, labels = drawn(seed, 40, 4, temperature=1.5)
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(best_temperature(logits.tolist(), labels.tolist()), rel=1e-4)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 7.0])
def test_it_finds_the_temperature_that_drew_the_labels(temperature):
    """Off by no more than chance: in standard errors, 1 / T scatters as a standard normal."""
    scores = []
    for seed in range(20):
        logits, labels = drawn(seed, 4000, 5, temperature)
        probs = (logits / temperature).softmax(1)
        spread = (probs * logits.square()).sum(1) - (probs * logits).sum(1).square()
        inverse = 1 / fit_temperature(logits, labels)
        scores.append(float((inverse - 1 / temperature) * spread.sum().sqrt()))
    assert abs(sum(scores)) / 20**0.5 < 3.5
    assert 0.3 < sum(score**2 for score in scores) / 20 < 2.5


def test_it_takes_the_calibration_error_away():
    logits, labels = drawn(0, 20_000, 5, temperature=2.5)
    before, after = logits.softmax(1), tempered(logits, fit_temperature(logits, labels))
    assert expected_calibration_error(before, labels) > 0.1
    assert expected_calibration_error(after, labels) < 0.015


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(1, 30), st.integers(2, 5))
def test_no_other_temperature_is_better(seed, n, classes):
    logits, labels = drawn(seed, n, classes, temperature=2.0)
    found = fit_temperature(logits, labels)
    assert 0.05 <= found <= 20.0
    rows, truth = logits.tolist(), labels.tolist()
    best = likelihood_at(rows, truth, found)
    for other in (0.05, 0.5 * found, 0.99 * found, 1.01 * found, 2 * found, 20.0):
        if 0.05 <= other <= 20.0:
            assert best <= likelihood_at(rows, truth, other) + 1e-12


def test_scaled_logits_need_a_scaled_temperature_and_shifted_ones_the_same():
    logits, labels = drawn(0, 200, 3)
    once = fit_temperature(logits, labels)
    assert fit_temperature(3 * logits, labels) == pytest.approx(3 * once, rel=1e-9)
    shifted = logits + 1e3 * torch.randn(200, 1, dtype=torch.float64)
    assert fit_temperature(shifted, labels) == pytest.approx(once, rel=1e-9)


def test_it_leaves_every_answer_as_it_is():
    logits, _ = drawn(0, 100, 6)
    assert torch.equal(tempered(logits, 7.0).argmax(1), logits.argmax(1))
    assert tempered(logits, 7.0).sum(1) == pytest.approx(torch.ones(100).numpy())


def test_all_right_goes_to_the_least_and_all_wrong_to_the_most():
    logits = 4 * torch.eye(3).repeat(5, 1)
    right, wrong = logits.argmax(1), (logits.argmax(1) + 1) % 3
    assert fit_temperature(logits, right) == 0.05
    assert fit_temperature(logits, right, least=0.5) == 0.5
    assert fit_temperature(logits, wrong) == 20.0
    assert fit_temperature(1e6 * logits, right) == 0.05


def test_logits_that_say_nothing_stay():
    assert fit_temperature(torch.zeros(6, 3), [0, 1, 2, 0, 1, 2]) == 1.0


def test_one_example_and_one_class_of_labels():
    assert fit_temperature([[0.0, 1.0]], [1]) == 0.05
    logits, _ = drawn(1, 50, 3)
    assert 0.05 <= fit_temperature(logits, [2] * 50) <= 20.0


def test_probabilities_serve_as_logits():
    logits, labels = drawn(3, 300, 4, temperature=2.0)
    probs = logits.softmax(1)
    assert tempered(log_probabilities(probs), 1.0).numpy() == pytest.approx(probs.numpy())
    found = fit_temperature(log_probabilities(probs), labels)
    assert found == pytest.approx(fit_temperature(logits, labels), rel=1e-9)


def test_a_probability_of_zero_does_not_stop_it():
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 1, 1])
    assert nll(probs, labels) == math.inf
    found = fit_temperature(log_probabilities(probs), labels, most=1e4)
    assert tempered(log_probabilities(probs), found)[0, 0] == pytest.approx(2 / 3, abs=1e-6)


@pytest.mark.parametrize(
    ("logits", "labels", "said"),
    [
        ([[math.nan, 0.0]], [0], "NaN"),
        ([[-math.inf, 0.0]], [1], "masked"),
        (torch.ones(0, 3), torch.ones(0).long(), "at least one"),
        ([[1.0]], [0], "two classes"),
        ([1.0, 2.0], [0, 1], "two classes"),
        ([[1.0, 2.0]], [2], "between 0 and 1"),
        ([[1.0, 2.0]], [0, 1], "integers"),
    ],
)
def test_what_no_temperature_is_fitted_to(logits, labels, said):
    with pytest.raises(TaskError, match=said):
        fit_temperature(logits, labels)


def test_settings_that_cannot_be():
    for bounds in ({"least": 0.0}, {"least": 2.0, "most": 1.0}, {"most": math.inf}):
        with pytest.raises(SettingsError, match="bounds"):
            fit_temperature([[1.0, 0.0]], [0], **bounds)
    for temperature in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(SettingsError, match="above zero"):
            tempered([[1.0, 0.0]], temperature)
    with pytest.raises(TaskError, match="sum to one"):
        log_probabilities([[1.0, 1.0]])
