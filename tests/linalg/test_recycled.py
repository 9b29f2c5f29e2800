"""Forms of an inverse from solutions that are kept, against dense matrices."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.linalg.conjugate_gradients import Refined
from dovetail.linalg.recycled import Recycled


def system(size=30, rank=12, seed=0):
    """A dense matrix of at least the identity, and a solver that counts what it is asked."""
    source = torch.Generator().manual_seed(seed)
    root = torch.randn(size, rank, generator=source, dtype=torch.float64)
    matrix = torch.eye(size, dtype=torch.float64) + root @ root.T
    asked = []

    def solve(right, near):
        asked.append(right.shape[1])
        error = near / 2
        drawn = torch.randn(right.shape, generator=source, dtype=torch.float64)
        off = error * right.norm(dim=0) * drawn / drawn.norm(dim=0)
        solution = torch.linalg.solve(matrix, right + off)
        return Refined(solution, matrix @ solution, error, 1)

    return matrix, root, solve, asked


def wholes_of(matrix, columns):
    return 1.1 * (columns * torch.linalg.solve(matrix, columns)).sum(0)


def squares(left):
    """At least the form of any inverse of more than the identity."""
    return left.square().sum(0)


@given(
    seed=st.integers(0, 99),
    tolerance=st.sampled_from([1e-6, 0.03, 0.3]),
    room=st.sampled_from([3, 512]),
)
@settings(max_examples=15, deadline=None)
def test_forms_are_never_too_large_and_hardly_too_small(seed, tolerance, room):
    matrix, root, solve, _ = system(seed=seed)
    kept = Recycled(solve, squares, 30, tolerance, room=room)
    source = torch.Generator().manual_seed(seed)
    for count in (5, 1, 20):
        columns = root @ torch.randn(12, count, generator=source, dtype=torch.float64)
        exact = columns.T @ torch.linalg.solve(matrix, columns)
        wholes = 1.1 * exact.diagonal()
        found = kept.root(columns, wholes)
        short = exact - found.T @ found
        assert float(torch.linalg.eigvalsh(short).min()) > -1e-9 * float(exact.diagonal().max())
        left = wholes - found.square().sum(0)
        allowed = tolerance * left + 1e-9 * exact.diagonal()
        assert bool((short.diagonal() <= allowed).all())
        assert kept.rank <= room


def test_what_was_solved_is_not_solved_again():
    matrix, root, solve, asked = system()
    kept = Recycled(solve, squares, 30, 1e-3)
    source = torch.Generator().manual_seed(1)
    first = root @ torch.randn(12, 40, generator=source, dtype=torch.float64)
    kept.root(first, wholes_of(matrix, first))
    assert sum(asked) <= 24  # of 40 columns in a space of 12
    before = len(asked)
    later = root @ torch.randn(12, 100, generator=source, dtype=torch.float64)
    kept.root(later, wholes_of(matrix, later))
    assert sum(asked[before:]) <= 8  # of 100 columns
    before = len(asked)
    kept.root(later, wholes_of(matrix, later))
    assert len(asked) == before
    beyond = torch.randn(30, 1, generator=source, dtype=torch.float64)  # out of that space
    kept.root(beyond, wholes_of(matrix, beyond))
    assert len(asked) > before


def test_columns_alike_and_of_zero():
    matrix, root, solve, asked = system()
    kept = Recycled(solve, squares, 30, 1e-3)
    columns = torch.cat([root[:, :1], root[:, :1], 0 * root[:, :1]], 1)
    found = kept.root(columns, torch.ones(3).double())
    exact = columns.T @ torch.linalg.solve(matrix, columns)
    torch.testing.assert_close(found.T @ found, exact, rtol=1e-3, atol=1e-3)
    assert kept.rank <= 2
    before = len(asked)
    assert kept.root(0 * columns, torch.ones(3).double()).abs().sum() == 0
    assert len(asked) == before
