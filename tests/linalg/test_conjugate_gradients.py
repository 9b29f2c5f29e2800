"""Conjugate gradients against direct solution, and loud failure."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dovetail.core.errors import DovetailError, SettingsError, TaskError
from dovetail.linalg.conjugate_gradients import (
    ConvergenceError,
    Nystrom,
    columnwise,
    conjugate_gradients,
    nystrom_preconditioner,
    refined,
)
from dovetail.linalg.jacobian import Jacobian

NOISE = 1e-5


@pytest.fixture(scope="module")
def kernel():
    """A smooth kernel of 300 points: with its noise of condition 2e7, like a tangent kernel."""
    points = torch.linspace(-3, 3, 300, dtype=torch.float64)[:, None]
    points = torch.cat([points, (2 * points).sin()], dim=1)
    return torch.exp(-torch.cdist(points, points).square())


@pytest.fixture(scope="module")
def right():
    return torch.randn(300, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def noisy(kernel):
    return lambda columns: kernel @ columns + NOISE * columns


def test_without_a_preconditioner_it_fails_loudly(kernel, right):
    with pytest.raises(ConvergenceError, match=r"relative residual of .* in 50 iterations") as why:
        conjugate_gradients(noisy(kernel), right, tolerance=1e-8, max_iterations=50)
    assert isinstance(why.value, DovetailError)
    assert "preconditioner" in str(why.value)


def test_with_one_it_is_the_direct_solution(kernel, right):
    inverse = nystrom_preconditioner(lambda c: kernel @ c, 300, rank=100, noise=NOISE)
    found = conjugate_gradients(
        noisy(kernel), right, preconditioner=inverse, tolerance=1e-8, max_iterations=50
    )
    matrix = kernel + NOISE * torch.eye(300, dtype=torch.float64)
    truth = torch.linalg.solve(matrix, right)
    torch.testing.assert_close(found.solution, truth, rtol=1e-5, atol=1e-7 * truth.abs().max())
    assert found.residual <= 1e-8
    assert found.iterations <= 50


def test_the_residual_is_the_true_one(kernel, right):
    inverse = nystrom_preconditioner(lambda c: kernel @ c, 300, rank=30, noise=NOISE)
    found = conjugate_gradients(noisy(kernel), right, preconditioner=inverse, tolerance=1e-4)
    matrix = kernel + NOISE * torch.eye(300, dtype=torch.float64)
    left = (matrix @ found.solution - right).norm(dim=0) / right.norm(dim=0)
    assert float(left.max()) == pytest.approx(found.residual, rel=1e-3, abs=1e-9)
    assert 1e-8 < found.residual <= 1e-4  # well above rounding, so that the comparison says much


def test_columns_do_not_disturb_each_other(kernel):
    source = torch.Generator().manual_seed(2)
    matrix = kernel + torch.eye(300)
    right = torch.randn(300, 4, generator=source, dtype=torch.float64)
    right[:, 1] = 0
    right[:, 2] *= 1e12
    right[:, 3] = torch.linalg.eigh(matrix)[1][:, -1] * 1e-12  # done after one step
    found = conjugate_gradients(lambda c: matrix @ c, right, tolerance=1e-10).solution
    truth = torch.linalg.solve(matrix, right)
    assert torch.equal(found[:, 1], right[:, 1])
    assert bool(((found - truth).norm(dim=0) <= 1e-8 * truth.norm(dim=0)).all())
    for i in range(4):
        alone = conjugate_gradients(lambda c: matrix @ c, right[:, i], tolerance=1e-10)
        assert alone.solution.shape == (300,)
        torch.testing.assert_close(alone.solution, found[:, i], rtol=1e-7, atol=0)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(0, 4), st.integers(1, 14))
def test_any_positive_system(seed, size, columns, rank):
    source = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=source, dtype=torch.float64)
    matrix = root @ root.T
    right = torch.randn(size, columns, generator=source, dtype=torch.float64)
    inverse = nystrom_preconditioner(lambda c: matrix @ c, size, rank, 0.1, seed=seed)
    noisy = matrix + 0.1 * torch.eye(size)
    for way in (None, inverse):
        found = conjugate_gradients(lambda c: noisy @ c, right, preconditioner=way)
        assert found.solution.shape == right.shape
        assert bool(
            ((noisy @ found.solution - right).norm(dim=0) <= 2e-6 * right.norm(dim=0)).all()
        )


def test_a_system_of_a_network_without_its_kernel():
    net = nn.Sequential(nn.Linear(3, 40), nn.ELU(), nn.Linear(40, 1)).double()
    around = Jacobian(net, torch.randn(60, 3))
    gram = columnwise(around.gram_product)
    dense = gram(torch.eye(60).double())
    right = torch.randn(60)
    inverse = nystrom_preconditioner(gram, 60, rank=30, noise=0.01)
    found = conjugate_gradients(lambda c: gram(c) + 0.01 * c, right, preconditioner=inverse)
    truth = torch.linalg.solve(dense + 0.01 * torch.eye(60), right.double())
    torch.testing.assert_close(found.solution, truth, rtol=1e-3, atol=1e-4)


def test_an_operator_in_float32_is_not_believed_beyond_its_digits(kernel, right):
    single = kernel.float()
    with pytest.raises(ConvergenceError):
        conjugate_gradients(
            lambda c: (single @ c.float()) + 1e-7 * c.float(), right, tolerance=1e-10
        )


# The preconditioner -----------------------------------------------------------------------------


def test_all_columns_are_the_inverse(kernel):
    some = kernel[::10, ::10]
    inverse = Nystrom(some, torch.arange(30), noise=0.1)
    one = inverse(some + 0.1 * torch.eye(30))
    torch.testing.assert_close(one, torch.eye(30).double(), atol=1e-8, rtol=0)


def test_columns_that_repeat_each_other_and_columns_of_nothing():
    double = torch.ones(6, 6, dtype=torch.float64)
    inverse = Nystrom(double[:, :3], torch.arange(3), noise=1.0)
    assert inverse.rank == 1
    empty = Nystrom(torch.zeros(6, 2), torch.arange(2), noise=0.5)
    assert empty.rank == 0
    torch.testing.assert_close(empty(torch.ones(6, 1).double()), 2 * torch.ones(6, 1).double())


def test_it_is_symmetric_and_positive_even_in_float32(kernel):
    inverse = Nystrom(kernel[:, ::3].float(), torch.arange(0, 300, 3), noise=NOISE)
    dense = inverse(torch.eye(300).double())
    torch.testing.assert_close(dense, dense.T)
    assert float(torch.linalg.eigvalsh(dense)[0]) > 0
    assert inverse.rank < 100


def test_the_seed_chooses():
    kernel = torch.diag(torch.arange(1.0, 51.0).double())
    once, again, other = (
        nystrom_preconditioner(lambda c: kernel @ c, 50, 5, 0.1, seed=seed)(
            torch.ones(50, 1).double()
        )
        for seed in (0, 0, 1)
    )
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.ones(4, 2), torch.arange(3), 1.0),
        (torch.ones(4), torch.arange(4), 1.0),
        (torch.ones(4, 2), torch.tensor([1, 1]), 1.0),
        (torch.ones(4, 2), torch.arange(2), 0.0),
        (torch.full((4, 2), torch.nan), torch.arange(2), 1.0),
    ],
)
def test_columns_that_make_no_preconditioner_are_refused(arguments):
    with pytest.raises((SettingsError, TaskError)):
        Nystrom(*arguments)


# What cannot be ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [0.0, -1.0])
def test_an_operator_that_is_not_positive_is_named(sign):
    diagonal = torch.tensor([[1.0], [2.0], [sign]], dtype=torch.float64)
    with pytest.raises(ConvergenceError, match=r"not positive|singular|residual"):
        conjugate_gradients(lambda c: diagonal * c, torch.tensor([0.1, 0.1, 1.0]))


def test_a_preconditioner_that_is_not_positive_is_named():
    with pytest.raises(ConvergenceError, match="preconditioner is not positive"):
        conjugate_gradients(lambda c: 2 * c, torch.ones(3), preconditioner=lambda c: -c)


def test_operators_that_answer_nonsense_are_refused():
    with pytest.raises(ConvergenceError, match="nan"):
        conjugate_gradients(lambda c: c * torch.nan, torch.ones(3))
    with pytest.raises(SettingsError, match="columnwise"):
        conjugate_gradients(lambda c: c[:, 0], torch.ones(3, 2))
    with pytest.raises(SettingsError, match="tolerance"):
        conjugate_gradients(lambda c: c, torch.ones(3), tolerance=0.0)
    with pytest.raises(SettingsError, match="max_iterations"):
        conjugate_gradients(lambda c: c, torch.ones(3), max_iterations=0)
    with pytest.raises(SettingsError, match=r"\[m, k\]"):
        conjugate_gradients(lambda c: c, torch.ones(3, 2, 2))
    with pytest.raises(TaskError, match="nan"):
        conjugate_gradients(lambda c: c, torch.tensor([1.0, torch.nan]))
    with pytest.raises(SettingsError, match="whole numbers"):
        nystrom_preconditioner(lambda c: c, 3, 0, 1.0)


# Coarse products and exact residuals, against a dense solve


def conditioned_system(most=1e6, size=40):
    """A matrix of eigenvalues from 1 to ``most``, and columns."""
    draw = torch.Generator().manual_seed(0)
    q, _ = torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=torch.float64))
    sizes = torch.logspace(0, torch.tensor(most).log10().item(), size, dtype=torch.float64)
    right = torch.randn(size, 3, generator=draw, dtype=torch.float64)
    right[:, 2] = 0
    return q * sizes @ q.T, right, (q / (sizes * 1.5)) @ q.T


def counted_products(matrix, counts):
    def system(dtype):
        def product(columns):
            counts[dtype] = counts.get(dtype, 0) + 1
            return (matrix.to(dtype) @ columns.to(dtype)).double()

        return product

    return system


@pytest.mark.parametrize("most", [10.0, 1e4, 1e6])
def test_float32_products_reach_float64_residuals(most):
    matrix, right, nearly = conditioned_system(most)
    counts = {}
    found = refined(
        counted_products(matrix, counts),
        right,
        preconditioner=lambda columns: nearly @ columns,
        tolerance=1e-9,
        max_iterations=500,
    )
    left = (right - matrix @ found.solution).norm(dim=0)
    assert bool((left <= 1e-9 * right.norm(dim=0) + 1e-15).all())
    assert found.residual <= 1e-9
    torch.testing.assert_close(found.image, matrix @ found.solution, rtol=1e-12, atol=1e-12)
    assert not found.solution[:, 2].any()
    if most == 10.0:
        assert counts[torch.float32] > counts[torch.float64]


def test_where_float32_fails_float64_takes_over():
    matrix, right, nearly = conditioned_system(1e3)

    def system(dtype):
        sign = 1 if dtype == torch.float64 else -1  # not positive in float32
        return lambda columns: sign * (matrix @ columns)

    found = refined(
        system,
        right,
        preconditioner=lambda columns: nearly @ columns,
        tolerance=1e-8,
        max_iterations=200,
    )
    torch.testing.assert_close(found.solution, torch.linalg.solve(matrix, right), atol=1e-7, rtol=0)


def test_a_solution_begun_is_gone_on_with():
    matrix, right, nearly = conditioned_system(1e3)
    exact = torch.linalg.solve(matrix, right)
    found = refined(
        counted_products(matrix, {}),
        right,
        preconditioner=lambda columns: nearly @ columns,
        tolerance=1e-8,
        max_iterations=200,
        begun=exact,
    )
    assert found.iterations == 0
    assert torch.equal(found.solution, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_refinement_that_does_not_get_there_is_an_error(dtype):
    matrix, right, _ = conditioned_system(1e6)
    with pytest.raises(ConvergenceError, match="relative residual"):
        refined(
            counted_products(matrix, {}),
            right,
            preconditioner=lambda columns: columns,
            tolerance=1e-9,
            max_iterations=5,
            dtype=dtype,
        )


def test_roots_determinants_and_bounds_of_a_preconditioner():
    source = torch.Generator().manual_seed(3)
    root = torch.randn(20, 8, generator=source, dtype=torch.float64)
    kernel, rows = root @ root.T, torch.tensor([1, 4, 7, 11])
    made = Nystrom(kernel[:, rows], rows, 0.5)
    eye = torch.eye(20, dtype=torch.float64)
    torch.testing.assert_close(made.half(made.half(eye)), made(eye))
    inverse = torch.linalg.slogdet(made(eye)).logabsdet
    assert made.log_determinant == pytest.approx(-float(inverse), rel=1e-9)
    columns = torch.randn(20, 6, generator=source, dtype=torch.float64)
    exact = (columns * torch.linalg.solve(kernel + 0.5 * eye, columns)).sum(0)
    assert bool((made.bound(columns) >= exact - 1e-9).all())
    every = Nystrom(kernel, torch.arange(20), 0.5)
    torch.testing.assert_close(every.bound(columns), exact, rtol=1e-6, atol=1e-8)
