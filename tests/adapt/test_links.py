"""Probabilities of a Gaussian over logits against plain sampling."""

from __future__ import annotations

import pytest
import torch

from dovetail.adapt.links import probabilities
from dovetail.core.errors import SettingsError


def gaussian(m=3, classes=4, seed=0):
    torch.manual_seed(seed)
    mean = 2 * torch.randn(m, classes).double()
    root = torch.randn(m, classes, classes).double()
    return mean, root @ root.mT


def sampled(mean, covariance, count=200_000):
    lower = torch.linalg.cholesky(covariance)
    draws = torch.randn(count, *mean.shape, generator=torch.Generator().manual_seed(5)).double()
    return (mean + torch.einsum("mij,kmj->kmi", lower, draws)).softmax(2).mean(0)


def test_monte_carlo_is_the_integral():
    mean, covariance = gaussian()
    exact = sampled(mean, covariance)
    assert float((probabilities(mean, covariance, "mc") - exact).abs().max()) < 0.03


def test_probit_is_near_it_and_the_mean_is_not():
    mean, covariance = gaussian(20)
    exact = sampled(mean, covariance, 20_000)
    errors = {
        link: float((probabilities(mean, covariance, link) - exact).abs().mean())
        for link in ("probit", "mean", "mc")
    }
    assert errors["mc"] < errors["probit"] < errors["mean"]


@pytest.mark.parametrize(("gap", "variance"), [(2.0, 4.0), (2.0, 16.0), (4.0, 25.0)])
def test_two_classes_are_the_integral_of_a_sigmoid(gap, variance):
    at = torch.linspace(-60, 60, 20001).double()
    density = torch.exp(-((at - gap) ** 2) / (2 * variance)) / (2 * torch.pi * variance) ** 0.5
    exact = float(torch.trapezoid(density * at.sigmoid(), at))
    mean = torch.tensor([[gap / 2, -gap / 2]]).double()
    covariance = variance / 2 * torch.eye(2).double()[None]
    for link in ("probit", "mc"):
        assert float(probabilities(mean, covariance, link)[0, 0]) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("link", ["mc", "probit", "mean"])
def test_what_all_classes_share_changes_nothing(link):
    mean, covariance = gaussian()
    shared = probabilities(mean + 7, covariance + 50, link)
    torch.testing.assert_close(shared, probabilities(mean, covariance, link), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("link", ["mc", "probit", "mean"])
def test_sure_logits_are_a_softmax_and_a_temperature_flattens_it(link):
    mean, covariance = gaussian()
    zero = 0 * covariance
    torch.testing.assert_close(probabilities(mean, zero, link), mean.softmax(1))
    warm = probabilities(mean, zero, link, temperature=3.0)
    torch.testing.assert_close(warm, (mean / 3).softmax(1))


def test_bad_settings():
    mean, covariance = gaussian()
    with pytest.raises(SettingsError, match="did you mean"):
        probabilities(mean, covariance, "probits")
    with pytest.raises(SettingsError, match="above 0"):
        probabilities(mean, covariance, temperature=0.0)


def test_the_draws_do_not_depend_on_the_signs_of_eigenvectors(monkeypatch):
    """Which are any: another processor's may differ, and so may a part's that was kept."""
    root = torch.randn(4, 3, 3).double()
    mean, covariance = torch.randn(4, 3).double(), root @ root.mT
    expected, decompose = probabilities(mean, covariance), torch.linalg.eigh

    def flipped(matrix):
        values, basis = decompose(matrix)
        return values, basis * torch.tensor([1.0, -1.0, -1.0])

    monkeypatch.setattr(torch.linalg, "eigh", flipped)
    torch.testing.assert_close(probabilities(mean, covariance), expected, rtol=1e-12, atol=1e-12)
