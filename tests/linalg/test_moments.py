"""Moments against loops: any shares, any weights, any offset."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.platonic import scatter

from dovetail.core.errors import TaskError
from dovetail.linalg.moments import Moments


def rows(n, d, k, seed=0, offset=0.0):
    draw = torch.Generator().manual_seed(seed)
    a = torch.randn(n, d + k, generator=draw, dtype=torch.float64) + offset
    return a[:, :d], a[:, d:], torch.rand(n, generator=draw, dtype=torch.float64) + 0.1


def assert_close(found, wanted, tolerance=1e-12):
    assert float((found - torch.as_tensor(wanted)).abs().max()) <= tolerance * max(
        1.0, float(torch.as_tensor(wanted).abs().max())
    )


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(1, 40),
    d=st.integers(0, 5),
    k=st.integers(1, 3),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    weighted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_shares_of_the_rows_add_up_to_the_loops(n, d, k, cuts, weighted, seed):
    z, y, w = rows(n, d, k, seed)
    edges = sorted({0, n, *(cut for cut in cuts if cut < n)})
    shares = [slice(a, b) for a, b in pairwise(edges)]
    one_by_one = Moments(d, k)
    merged = Moments(d, k)
    for share in shares:
        weights = w[share] if weighted else None
        one_by_one.update(z[share], y[share], weights)
        merged = Moments(d, k).update(z[share], y[share], weights).merge(merged)
    mean, products = scatter(torch.cat([z, y], 1).numpy(), w.numpy() if weighted else np.ones(n))
    for found in (one_by_one, merged):
        assert found.rows == n
        assert found.weight == pytest.approx(float(w.sum()) if weighted else n)
        assert_close(found.mean, mean)
        assert_close(found.scatter, products)


def test_they_are_the_covariance():
    z, y, _ = rows(50, 3, 2)
    found = Moments(3, 2).update(z, y)
    assert_close(found.scatter / 49, np.cov(torch.cat([z, y], 1).numpy(), rowvar=False))
    assert_close(found.features, found.scatter[:3, :3])
    assert_close(found.cross, found.scatter[:3, 3:])
    assert_close(found.targets, found.scatter[3:, 3:])


@settings(deadline=None, max_examples=10)
@given(power=st.integers(0, 9), block=st.integers(1, 60))
def test_a_large_offset_costs_no_digits_but_those_of_the_rows(power, block):
    z, y, _ = rows(60, 2, 1)
    plain = Moments(2, 1).update(z, y)
    moved = Moments(2, 1)
    offset = 10.0**power
    for start in range(0, 60, block):
        part = slice(start, start + block)
        moved.update(z[part] + offset, y[part] - offset)
    # A row is known to eps * offset, and so is what it adds: no more may be lost.
    assert_close(moved.scatter, plain.scatter, 60 * 4e-16 * offset + 1e-14)


def test_weights_are_copies_and_zero_is_none():
    z, y, _ = rows(6, 2, 1)
    counts = torch.tensor([0, 1, 2, 3, 0, 1])
    found = Moments(2, 1).update(z, y, counts)
    copies = Moments(2, 1).update(z.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0))
    assert_close(found.scatter, copies.scatter)
    assert_close(found.mean, copies.mean)
    assert found.weight == copies.weight == 7
    nothing = Moments(2, 1).update(z, y, torch.zeros(6))
    assert (nothing.weight, nothing.rows) == (0.0, 6)
    assert_close(
        nothing.update(z, y).merge(Moments(2, 1)).scatter, Moments(2, 1).update(z, y).scatter
    )


def test_merging_leaves_what_is_merged_alone():
    z, y, _ = rows(8, 2, 1)
    first, second = Moments(2, 1), Moments(2, 1).update(z, y)
    before = second.mean.clone(), second.scatter.clone()
    first.merge(second).update(z + 1, y).merge(second)
    assert torch.equal(second.mean, before[0])
    assert torch.equal(second.scatter, before[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_other_numbers_are_summed_in_float64(dtype):
    z, y, _ = rows(500, 2, 1, offset=30.0)
    z, y = z.to(dtype), y.to(dtype)
    found = Moments(2, 1).update(z, y)
    wanted = Moments(2, 1).update(z.double(), y.double())
    assert_close(found.mean, wanted.mean, 1e-15)
    assert_close(found.scatter, wanted.scatter)


@pytest.mark.parametrize(
    "shapes", [((3, 1), (3, 1)), ((3, 2), (2, 1)), ((3, 2), (3,)), ((2,), (2, 1))]
)
def test_rows_that_do_not_fit_are_refused(shapes):
    with pytest.raises(TaskError, match="2 features and 1 targets"):
        Moments(2, 1).update(*(torch.ones(*shape) for shape in shapes))
    with pytest.raises(TaskError, match="do not add"):
        Moments(2, 1).merge(Moments(1, 2))


def test_negative_weights_are_refused_and_what_is_not_finite_shows():
    with pytest.raises(TaskError, match="negative"):
        Moments(1, 1).update(torch.ones(2, 1), torch.ones(2, 1), torch.tensor([1.0, -1.0]))
    for bad in (torch.nan, torch.inf, 1e200):
        z = torch.tensor([[1.0], [bad]], dtype=torch.float64)
        assert not Moments(1, 1).update(z, torch.ones(2, 1)).is_finite
        assert not Moments(1, 1).update(torch.ones(2, 1), z).is_finite
    assert not Moments(1, 1).update(z * 0, z * 0, torch.tensor([1.0, torch.nan])).is_finite
    assert Moments(2, 1).is_finite


def test_some_targets_and_the_state_come_back():
    z, y, w = rows(9, 2, 3)
    whole = Moments(2, 3).update(z, y, w)
    wanted = Moments(2, 1).update(z, y[:, 1:2], w)
    part = whole.only_targets(1, 2)
    assert_close(part.scatter, wanted.scatter)
    assert_close(part.mean, wanted.mean)
    again = Moments.from_state(whole.state())
    assert (again.d, again.k, again.rows, again.weight) == (2, 3, 9, whole.weight)
    assert torch.equal(again.scatter, whole.scatter)
