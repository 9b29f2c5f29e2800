"""Selection and pure entropy against loops over examples, and what the map guarantees."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.pure_map import bits, pure_entropy_by_hand, selection_entropy_by_hand

from dovetail.core.errors import DovetailError
from dovetail.measure.entropy import pure_entropy, pure_voronoi_map, selection_entropy


def blobs(n, d, classes, apart, seed=0):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    rows = torch.randn(n, d, generator=draw, dtype=torch.float64)
    return rows + apart * torch.randn(classes, d, generator=draw, dtype=torch.float64)[
        labels
    ], labels


@pytest.mark.parametrize("apart", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("d", [1, 2, 6])
def test_selection_entropy_equals_counting(d, apart):
    rows, labels = blobs(60, d, 3, apart)
    rows[:, 0] = rows[:, 0].clamp(max=0)  # selects nothing
    expected = selection_entropy_by_hand(rows.numpy(), labels.tolist())
    np.testing.assert_allclose(selection_entropy(rows, labels), expected, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("apart", [0.0, 1.0, 8.0])
@pytest.mark.parametrize(("d", "classes"), [(1, 2), (2, 2), (2, 4), (5, 3)])
def test_pure_entropy_equals_the_slow_map(d, classes, apart, seed):
    rows, labels = blobs(70, d, classes, apart, seed)
    expected = pure_entropy_by_hand(rows.numpy(), labels.tolist(), seed)
    assert pure_entropy(rows, labels, seed) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("apart", [0.0, 0.7])
def test_small_blocks_give_the_same_map(apart, monkeypatch):
    rows, labels = blobs(120, 3, 3, apart)
    whole = pure_voronoi_map(rows, labels)
    monkeypatch.setattr("dovetail.measure.entropy._BLOCK", 200)
    parts = pure_voronoi_map(rows, labels)
    assert torch.equal(whole.of, parts.of)
    torch.testing.assert_close(whole.centroids, parts.centroids)


@given(
    cells=st.lists(
        st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=2, max_size=40, unique=True
    ),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_the_map_is_pure_and_no_cell_is_needless(cells, data):
    """On a grid, where means of classes coincide and distances tie."""
    labels = data.draw(st.lists(st.integers(0, 2), min_size=len(cells), max_size=len(cells)))
    rows = torch.tensor(cells, dtype=torch.float64)
    codes = torch.unique(torch.tensor(labels), return_inverse=True)[1]
    found = pure_voronoi_map(rows, labels)
    distance = torch.cdist(rows, found.centroids, compute_mode="donot_use_mm_for_euclid_dist")
    assert torch.equal(found.labels[found.of], codes)
    assert (distance.gather(1, found.of[:, None])[:, 0] <= distance.amin(1) + 1e-9).all()
    assert found.of.bincount(minlength=len(found.labels)).min() > 0
    low, high = bits(codes.bincount().tolist()), math.log2(len(cells))
    assert low - 1e-9 <= found.entropy <= high + 1e-9
    for cell in range(len(found.labels)):
        left = distance[found.of == cell].clone()
        left[:, cell] = torch.inf
        own = found.labels == found.labels[cell]
        near, other = left[:, own].amin(1), left[:, ~own]
        alone = own.sum() == 1  # nowhere to go
        assert alone or (near > other.amin(1) - 1e-9).any()


def test_separate_blobs_need_a_cell_a_class():
    rows, labels = blobs(300, 4, 3, 100.0)
    assert len(pure_voronoi_map(rows, labels).labels) == 3
    assert pure_entropy(rows, labels) == pytest.approx(math.log2(3))


def test_one_class_is_one_cell():
    assert pure_entropy(torch.randn(20, 3), [4] * 20) == 0.0
    assert pure_entropy(torch.ones(20, 3), [4] * 20) == 0.0
    assert selection_entropy(torch.ones(20, 2), [4] * 20).tolist() == [0.0, 0.0]


def test_equal_rows_of_two_classes_have_no_pure_map():
    with pytest.raises(DovetailError, match="2 of 3 rows equal a row of another class"):
        pure_entropy([[1.0], [1.0], [2.0]], [0, 1, 1])
    assert pure_entropy([[1.0], [1.0], [2.0]], [0, 0, 1]) == pytest.approx(bits([2, 1]))


def test_rows_a_hair_apart_end_too():
    """Beyond what a product can tell, every example may become a centroid: but no more."""
    rows = 1e6 + 1e-9 * torch.arange(40, dtype=torch.float64)[:, None] * torch.ones(1, 3)
    rows = torch.unique(rows, dim=0)
    labels = torch.arange(len(rows)) % 2
    assert 1 <= pure_entropy(rows, labels) <= math.log2(len(rows))


@pytest.mark.parametrize("measure", [pure_entropy, selection_entropy])
def test_refuses_what_is_not_finite(measure):
    with pytest.raises(DovetailError, match="nan"):
        measure([[1.0], [math.nan]], [0, 1])
