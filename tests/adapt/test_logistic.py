from __future__ import annotations

import numpy as np
import pytest
import torch
from references import logistic as reference
from sklearn.linear_model import LogisticRegression

from dovetail.adapt.logistic import fit_logistic


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
        return reference.penalised_loss(
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
