"""Solutions by coarse products and exact residuals, against a dense solve."""

from __future__ import annotations

import pytest
import torch

from dovetail.adapt.refinement import refined
from dovetail.linalg.cg import ConvergenceError


def problem(most=1e6, size=40):
    """A matrix of eigenvalues from 1 to ``most``, and columns."""
    draw = torch.Generator().manual_seed(0)
    q, _ = torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=torch.float64))
    sizes = torch.logspace(0, torch.tensor(most).log10().item(), size, dtype=torch.float64)
    right = torch.randn(size, 3, generator=draw, dtype=torch.float64)
    right[:, 2] = 0
    return q * sizes @ q.T, right, (q / (sizes * 1.5)) @ q.T


def products(matrix, counts):
    def system(dtype):
        def product(columns):
            counts[dtype] = counts.get(dtype, 0) + 1
            return (matrix.to(dtype) @ columns.to(dtype)).double()

        return product

    return system


@pytest.mark.parametrize("most", [10.0, 1e4, 1e6])
def test_float32_products_reach_float64_residuals(most):
    matrix, right, nearly = problem(most)
    counts = {}
    found = refined(
        products(matrix, counts),
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
    matrix, right, nearly = problem(1e3)

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
    matrix, right, nearly = problem(1e3)
    exact = torch.linalg.solve(matrix, right)
    found = refined(
        products(matrix, {}),
        right,
        preconditioner=lambda columns: nearly @ columns,
        tolerance=1e-8,
        max_iterations=200,
        begun=exact,
    )
    assert found.iterations == 0
    assert torch.equal(found.solution, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_does_not_get_there_is_an_error(dtype):
    matrix, right, _ = problem(1e6)
    with pytest.raises(ConvergenceError, match="relative residual"):
        refined(
            products(matrix, {}),
            right,
            preconditioner=lambda columns: columns,
            tolerance=1e-9,
            max_iterations=5,
            dtype=dtype,
        )
