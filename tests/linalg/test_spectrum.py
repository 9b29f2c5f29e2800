"""Lanczos against the dense eigendecomposition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.jacobian import dense_hessian
from torch import nn

from dovetail.core.errors import SettingsError
from dovetail.linalg.conjugate_gradients import ConvergenceError
from dovetail.linalg.curvature import LossHessian
from dovetail.linalg.spectrum import spectral_density, top_eigenpairs, trace_of


def symmetric(values, seed=0):
    """A dense matrix with these eigenvalues and random vectors."""
    values = torch.as_tensor(values, dtype=torch.float64)
    source = torch.Generator().manual_seed(seed)
    drawn = torch.randn(len(values), len(values), generator=source, dtype=torch.float64)
    basis = torch.linalg.qr(drawn).Q
    return basis @ (values[:, None] * basis.T)


@pytest.mark.parametrize("by", ["value", "magnitude"])
@pytest.mark.parametrize("k", [1, 4, 9])
def test_the_largest_are_those_of_eigh(by, k):
    matrix = symmetric(torch.linspace(-1.2, 1, 80).pow(3))
    values, vectors = torch.linalg.eigh(matrix)
    order = (values.abs() if by == "magnitude" else values).argsort(descending=True)[:k]
    found = top_eigenpairs(lambda v: matrix @ v, 80, k, by=by, tolerance=1e-8)
    torch.testing.assert_close(found.values, values[order])
    overlap = (found.vectors * vectors[:, order]).sum(0).abs()
    torch.testing.assert_close(overlap, torch.ones(k).double(), atol=1e-6, rtol=0)
    gap = matrix @ found.vectors - found.vectors * found.values
    torch.testing.assert_close(gap.norm(dim=0), found.residuals, atol=1e-10, rtol=1e-2)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(0, 1000),
)
def test_multiplicities_are_counted(values, k, seed):
    k = min(k, len(values))
    matrix = symmetric(values, seed)
    found = top_eigenpairs(lambda v: matrix @ v, len(values), k, seed=seed)
    truth = torch.tensor(sorted(values, reverse=True)[:k], dtype=torch.float64)
    torch.testing.assert_close(found.values, truth, atol=1e-5, rtol=0)
    one = found.vectors.T @ found.vectors
    torch.testing.assert_close(one, torch.eye(k).double(), atol=1e-8, rtol=0)


def test_repeated_eigenvalues_in_a_large_space():
    values = torch.cat([torch.full((4,), 10.0), torch.full((3,), 7.0), torch.linspace(0, 5, 193)])
    found = top_eigenpairs(lambda v: values * v, 200, 6)
    expected = torch.tensor([10.0, 10, 10, 10, 7, 7]).double()
    torch.testing.assert_close(found.values, expected, atol=1e-4, rtol=0)


def test_operators_of_nothing_and_of_one():
    assert torch.equal(top_eigenpairs(lambda v: 0 * v, 5, 2).values, torch.zeros(2).double())
    assert top_eigenpairs(lambda v: 3 * v, 1).values.tolist() == [3.0]


def test_the_hessian_of_a_network():
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    x, y = torch.randn(20, 3).double(), torch.randn(20, 2).double()
    loss = lambda outputs: (outputs - y).square().mean()  # noqa: E731
    truth = torch.linalg.eigvalsh(dense_hessian(net, x, loss)).flip(0)
    hessian = LossHessian(net, x, loss)
    found = top_eigenpairs(hessian.product, hessian.size, 5)
    torch.testing.assert_close(found.values, truth[:5], rtol=1e-6, atol=1e-6)


def test_the_seed_repeats_it():
    matrix = symmetric(torch.linspace(0, 1, 40))
    once, again = (top_eigenpairs(lambda v: matrix @ v, 40, 3, seed=5) for _ in range(2))
    assert torch.equal(once.vectors, again.vectors)


def test_too_few_products_fail_loudly():
    values = torch.linspace(0, 1, 500)
    with pytest.raises(ConvergenceError, match="after 10 products"):
        top_eigenpairs(lambda v: values * v, 500, 3, tolerance=1e-9, max_products=10)


def test_the_density_integrates_like_the_spectrum():
    values = torch.cat([torch.zeros(300), torch.linspace(1, 2, 90), torch.full((10,), 8.0)])
    density = spectral_density(lambda v: values * v, 400, steps=40, draws=20)
    assert float(density.weights.sum()) == pytest.approx(1)
    assert density.mean(lambda v: v) == pytest.approx(float(values.mean()), rel=0.15)
    assert density.mean(lambda v: (v > 4).double()) == pytest.approx(10 / 400, rel=0.3)
    assert density.mean(lambda v: (v.abs() < 0.5).double()) == pytest.approx(0.75, abs=0.03)
    at = torch.linspace(-3, 11, 1401, dtype=torch.float64)
    assert float(torch.trapezoid(density.smoothed(at, 0.2), at)) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_a_log_determinant_within_its_error(seed):
    matrix = symmetric(torch.linspace(0.5, 20, 200), seed)
    found = trace_of(torch.log, lambda v: matrix @ v, 200, steps=40, draws=16, seed=seed)
    exact = float(torch.linalg.slogdet(matrix).logabsdet)
    assert abs(found.value - exact) < 4 * found.error
    assert found.value == pytest.approx(exact, rel=0.05)
    more = trace_of(torch.log, lambda v: matrix @ v, 200, steps=40, draws=160, seed=seed)
    assert more.error < 0.6 * found.error
    assert abs(more.value - exact) < 4 * more.error


def test_one_draw_has_no_error_to_tell():
    assert trace_of(torch.log, lambda v: 2 * v, 3, draws=1).error == float("inf")


def test_a_density_of_a_space_that_closes():
    density = spectral_density(lambda v: 2 * v, 7, steps=50, draws=3)
    torch.testing.assert_close(density.nodes, torch.full((3,), 2.0).double())


@pytest.mark.parametrize(
    "settings",
    [{"k": 0}, {"k": 6}, {"by": "size"}, {"tolerance": 0.0}, {"k": 3, "max_products": 2}],
)
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(SettingsError):
        top_eigenpairs(lambda v: v, 5, **settings)


def test_operators_that_answer_nonsense_are_refused():
    with pytest.raises(ConvergenceError, match="nan"):
        top_eigenpairs(lambda v: v * torch.nan, 5)
    with pytest.raises(SettingsError, match="keep the shape"):
        top_eigenpairs(lambda v: v[:2], 5)
    with pytest.raises(SettingsError, match="whole numbers"):
        spectral_density(lambda v: v, 5, draws=0)
    with pytest.raises(SettingsError, match="width"):
        spectral_density(lambda v: v, 5).smoothed(torch.zeros(1), 0.0)
