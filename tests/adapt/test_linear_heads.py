"""Bayesian and logistic heads against dense Gaussians, sums read aloud, and peers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import bayes_linear, logistic
from sklearn.linear_model import BayesianRidge, LogisticRegression

from dovetail.adapt.linear_heads import _solve, evidence_of, fit_bayes, fit_logistic
from dovetail.core.errors import SettingsError, TaskError
from dovetail.linalg.ridge import fit as fit_ridge


def line(n, d, k=1, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) + 3.0
    y = x @ rng.normal(size=(d, k)) + 5.0 + noise * rng.normal(size=(n, k))
    return torch.tensor(x), torch.tensor(y)


SIZES = pytest.mark.parametrize(("n", "d"), [(20, 3), (8, 8), (6, 11), (2, 1)])


@SIZES
def test_the_evidence_is_the_integral_over_weights_and_intercept(n, d):
    x, y = line(n, d)
    found = fit_bayes(x, y, penalty=0.7)
    slow = bayes_linear.log_evidence(
        x.numpy(), y[:, 0].numpy(), float(found.scale), float(found.noise)
    )
    assert found.log_evidence == pytest.approx(slow, rel=1e-7)
    assert float(evidence_of(x, y, found.scale, found.noise)) == pytest.approx(slow, rel=1e-7)


@SIZES
def test_predictions_are_those_of_dense_gaussians(n, d):
    x, y = line(n, d)
    new = torch.randn(4, d, dtype=torch.float64) + 2
    found = fit_bayes(x, y, penalty=0.7)
    mean, covariance = bayes_linear.predict(
        x.numpy(), y[:, 0].numpy(), float(found.scale), float(found.noise), new.numpy()
    )
    np.testing.assert_allclose(found.mean(new)[:, 0], mean, rtol=1e-5)
    np.testing.assert_allclose(found.covariance(new)[:, :, 0], covariance, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.variance(new)[:, 0], np.diag(covariance), rtol=1e-4)
    torch.testing.assert_close(found.variance(new) - found.noise, found.variance(new, noisy=False))


def test_its_mean_is_the_ridge_head_of_its_penalty():
    x, y = line(15, 4, k=2)
    found = fit_bayes(x, y)
    for k in range(2):
        head = fit_ridge(x, y[:, k], float(found.penalty[k]))
        torch.testing.assert_close(found.weights[:, k], head.weights[:, 0])


@SIZES
def test_no_other_variances_have_more_evidence(n, d):
    x, y = line(n, d, seed=1)
    found = fit_bayes(x, y)
    for a in (0.5, 0.98, 1.0, 1.02, 2.0):
        for b in (0.5, 0.98, 1.0, 1.02, 2.0):
            other = evidence_of(x, y, found.scale * a, found.noise * b)
            assert float(other) <= found.log_evidence + 1e-4  # noiseless ones end at a bound


def test_it_agrees_with_the_peer_where_the_intercept_is_sure():
    x, y = line(400, 5, noise=1.0)
    found = fit_bayes(x, y)
    # Its gamma hyper-priors are as good as flat, but it spends no freedom on the intercept.
    peer = BayesianRidge(max_iter=10_000, tol=1e-10).fit(x.numpy(), y[:, 0].numpy())
    np.testing.assert_allclose(found.weights[:, 0], peer.coef_, rtol=1e-3)
    assert float(found.noise) == pytest.approx(1 / peer.alpha_, rel=0.01)
    assert float(found.scale) == pytest.approx(1 / peer.lambda_, rel=0.01)
    new = torch.randn(5, 5, dtype=torch.float64)
    peers = peer.predict(new.numpy(), return_std=True)[1]
    np.testing.assert_allclose(found.variance(new)[:, 0].sqrt(), peers, rtol=0.01)


@settings(max_examples=15, deadline=None)
@given(st.floats(-3, 3), st.floats(-100, 100), st.integers(0, 100))
def test_units_and_offsets_of_the_targets_do_not_matter(exponent, offset, seed):
    x, y = line(12, 3, seed=seed)
    unit = 10.0**exponent
    plain, moved = fit_bayes(x, y), fit_bayes(x, unit * (y + offset))
    expected = unit * (plain.mean(x) + offset)
    torch.testing.assert_close(moved.mean(x), expected, rtol=1e-4, atol=1e-4 * unit)
    torch.testing.assert_close(
        moved.variance(x).sqrt(), unit * plain.variance(x).sqrt(), rtol=1e-3, atol=0.0
    )


def test_intervals_cover_what_they_say():
    x, y = line(600, 10, noise=1.0)
    found = fit_bayes(x[:60], y[:60])
    deviation = found.variance(x[60:]).sqrt()
    inside = ((y[60:] - found.mean(x[60:])).abs() < 1.645 * deviation).double().mean()
    assert 0.85 < float(inside) < 0.95


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_targets_that_never_vary_are_predicted(value):
    x, _ = line(5, 2)
    found = fit_bayes(x, torch.full((5, 1), value))
    torch.testing.assert_close(found.mean(x), torch.full((5, 1), value).double())
    assert bool(found.variance(x).isfinite().all())


def test_rows_that_never_vary_give_the_mean():
    y = torch.tensor([[1.0], [2.0], [6.0]])
    found = fit_bayes(torch.ones(3, 2), y)
    torch.testing.assert_close(
        found.mean(torch.ones(1, 2).double()), torch.tensor([[3.0]]).double()
    )


def test_evidence_has_the_slope_of_its_differences():
    x, y = line(7, 3)
    found = fit_bayes(x, y)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda a: evidence_of(a, y, found.scale, found.noise), x)


def test_one_row_and_wrong_penalties_are_refused():
    with pytest.raises(TaskError, match="1 sample"):
        fit_bayes(torch.ones(1, 2), torch.ones(1, 1))
    with pytest.raises(SettingsError, match="penalties"):
        fit_bayes(*line(5, 2), penalty=-1.0)


@pytest.mark.parametrize("offset", [1e7, -1e9])
def test_a_large_offset_of_the_targets_changes_nothing_but_the_mean(offset):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=draw).double()
    y = x[:, :1] * 2 + 0.1 * torch.randn(40, 1, generator=draw).double()
    plain, moved = fit_bayes(x, y), fit_bayes(x, y + offset)
    torch.testing.assert_close(moved.weights, plain.weights, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(moved.mean(x) - offset, plain.mean(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(moved.variance(x), plain.variance(x), rtol=1e-4, atol=0.0)
    assert moved.log_evidence == pytest.approx(plain.log_evidence, rel=1e-4)


def blobs(n, d, classes=3, seed=0, apart=2.0):
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % classes
    x = rng.normal(size=(n, d)) + apart * rng.normal(size=(classes, d))[codes]
    return torch.tensor(x), torch.tensor(codes)


@pytest.mark.parametrize(("n", "d"), [(30, 2), (9, 20), (12, 12)])
@pytest.mark.parametrize("penalty", [0.01, 1.0, 100.0])
def test_it_is_the_peers_solution(n, d, penalty):
    x, codes = blobs(n, d)
    head = fit_logistic(x, codes, 3, penalty).head
    peer = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10_000)
    peer.fit(x.numpy(), codes.numpy())
    np.testing.assert_allclose(head.weights.T, peer.coef_, atol=2e-4, rtol=1e-3)
    new = torch.randn(5, d, dtype=torch.float64)
    np.testing.assert_allclose(
        head(new).softmax(1), peer.predict_proba(new.numpy()), atol=2e-4, rtol=1e-3
    )


def test_no_step_from_it_lowers_the_penalised_loss():
    x, codes = blobs(15, 3)
    head = fit_logistic(x, codes, 3, 0.5).head

    def loss(weights, intercept):
        return logistic.penalised_loss(
            x.tolist(), codes.tolist(), weights.tolist(), intercept.tolist(), 0.5
        )

    least = loss(head.weights, head.intercept)
    for _ in range(20):
        step = 1e-3 * torch.randn(4, 3, dtype=torch.float64)
        assert loss(head.weights + step[:3], head.intercept + step[3]) >= least - 1e-9


def test_the_penalty_of_least_held_out_loss_is_taken():
    x, codes = blobs(60, 4, apart=1.0)
    path = fit_logistic(x, codes, 3, (1e-3, 1.0, 1e4))
    assert path.penalties == (1e4, 1.0, 1e-3)
    assert path.head.penalty == path.penalties[int(np.argmin(path.losses))]
    assert path.loss == min(path.losses)


def test_noise_gets_a_stronger_penalty_than_classes_far_apart():
    x, codes = blobs(60, 4, apart=5.0)
    told = fit_logistic(x, codes, 3).head.penalty
    noise = fit_logistic(torch.randn(60, 4, dtype=torch.float64), codes, 3)
    assert noise.head.penalty > 10 * told
    assert noise.loss == pytest.approx(np.log(3), rel=0.1)


def test_units_of_the_features_do_not_matter():
    x, codes = blobs(40, 3)
    plain, scaled = fit_logistic(x, codes, 3), fit_logistic(1e4 * x + 5, codes, 3)
    torch.testing.assert_close(plain.head(x), scaled.head(1e4 * x + 5), atol=1e-3, rtol=1e-3)


def test_one_row_a_class_has_nothing_to_hold_out():
    x, codes = blobs(3, 5)
    path = fit_logistic(x, codes, 3)
    assert path.loss is None
    assert torch.equal(path.head(x).argmax(1), codes)


def test_heads_solved_at_once_are_those_solved_alone():
    draw = torch.Generator().manual_seed(0)
    z, codes = torch.randn(30, 4, generator=draw).double(), torch.arange(30) % 3
    counts = torch.randint(0, 2, (30, 2), generator=draw).double()
    start = torch.zeros(5, 2, 3, dtype=torch.float64)
    both = _solve(z, codes, 0.3, start, counts)
    for place in range(2):
        some = counts[:, place] > 0
        every = torch.ones(int(some.sum()), 1, dtype=torch.float64)
        alone = _solve(z[some], codes[some], 0.3, start[:, :1], every)[:, 0]
        torch.testing.assert_close(both[:, place], alone, atol=1e-4, rtol=1e-4)


def test_a_class_of_one_row_is_never_held_out():
    x, codes = blobs(20, 2, classes=2)
    x = torch.cat([x, torch.full((1, 2), 50.0).double()])
    codes = torch.cat([codes, torch.tensor([2])])
    path = fit_logistic(x, codes, 3)
    assert path.loss is not None
    assert path.loss < np.log(3)


def test_features_that_never_vary_give_the_shares_of_the_classes():
    head = fit_logistic(torch.ones(4, 2), torch.tensor([0, 0, 0, 1]), 2).head
    shares = head(torch.ones(1, 2)).softmax(1)
    torch.testing.assert_close(shares, torch.tensor([[0.75, 0.25]]).double(), atol=1e-4, rtol=0)
