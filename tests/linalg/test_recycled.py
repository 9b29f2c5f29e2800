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

    def solve(right, error=0.0):
        asked.append(right.shape[1])
        drawn = torch.randn(right.shape, generator=source, dtype=torch.float64)
        off = error * right.norm(dim=0) * drawn / drawn.norm(dim=0)
        solution = torch.linalg.solve(matrix, right + off)
        return Refined(solution, matrix @ solution, error, 1)

    return matrix, root, solve, asked


@given(
    seed=st.integers(0, 99),
    tolerance=st.sampled_from([1e-8, 0.03, 0.3]),
    room=st.sampled_from([3, 512]),
)
@settings(max_examples=15, deadline=None)
def test_forms_are_never_too_large_and_hardly_too_small(seed, tolerance, room):
    matrix, root, solve, _ = system(seed=seed)
    kept = Recycled(lambda right: solve(right, tolerance / 2), 30, tolerance, room=room)
    source = torch.Generator().manual_seed(seed)
    for count in (5, 1, 20):
        columns = root @ torch.randn(12, count, generator=source, dtype=torch.float64)
        exact = columns.T @ torch.linalg.solve(matrix, columns)
        found = kept.root(columns)
        short = exact - found.T @ found
        assert float(torch.linalg.eigvalsh(short).min()) > -1e-9 * float(exact.diagonal().max())
        allowed = tolerance**2 * columns.square().sum(0) + 1e-9 * exact.diagonal()
        assert bool((short.diagonal() <= allowed).all())
        assert kept.rank <= room


def test_what_was_solved_is_not_solved_again():
    _, root, solve, asked = system()
    kept = Recycled(solve, 30, 1e-6)
    source = torch.Generator().manual_seed(1)
    first = root @ torch.randn(12, 40, generator=source, dtype=torch.float64)
    kept.root(first)
    assert sum(asked) <= 16  # of 40 columns in a space of 12
    before = len(asked)
    kept.root(root @ torch.randn(12, 100, generator=source, dtype=torch.float64))
    assert len(asked) == before
    kept.root(torch.randn(30, 1, generator=source, dtype=torch.float64))  # out of that space
    assert len(asked) == before + 1


def test_columns_alike_and_of_zero():
    matrix, root, solve, asked = system()
    kept = Recycled(solve, 30, 1e-6)
    columns = torch.cat([root[:, :1], root[:, :1], 0 * root[:, :1]], 1)
    found = kept.root(columns)
    exact = columns.T @ torch.linalg.solve(matrix, columns)
    torch.testing.assert_close(found.T @ found, exact)
    assert kept.rank == 1
    assert kept.root(0 * columns).abs().sum() == 0
    assert len(asked) == 1
