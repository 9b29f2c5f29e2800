"""k-filtering against every pair compared by hand, ties included, with and without faiss."""

import importlib.util

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.neighbours import keep_by_hand

from dovetail.core.errors import DovetailError, MissingExtraError
from dovetail.measure import neighbours
from dovetail.measure.neighbours import Search, k_filter, k_redundancy

ENGINES = [
    "torch",
    pytest.param(
        "faiss",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("faiss") is None, reason="faiss is not installed"
        ),
    ),
]


@pytest.mark.parametrize("by", ENGINES)
@pytest.mark.parametrize("k", [1, 3, 10])
def test_equals_every_pair_compared(by, k):
    rows, labels = torch.randn(70, 5), torch.arange(70) % 3
    rows += 2.0 * labels[:, None]
    expected = keep_by_hand(rows.tolist(), labels.tolist(), k)
    assert k_filter(rows, labels, k, by=by).tolist() == expected
    assert k_redundancy(rows, labels, k, by=by) == 1 - sum(expected) / 70


@pytest.mark.parametrize("by", ENGINES)
@given(
    cells=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 1)), min_size=8, max_size=40
    ),
    k=st.integers(1, 7),
)
@settings(max_examples=40, deadline=None)
def test_ties_and_equal_rows_on_a_grid(by, cells, k):
    """A small grid has nothing but ties."""
    rows, labels = [[float(a), float(b)] for a, b, _ in cells], [c for *_, c in cells]
    assert k_filter(rows, labels, k, by=by).tolist() == keep_by_hand(rows, labels, k)


@pytest.mark.parametrize("by", ENGINES)
def test_many_rows_at_one_distance(by):
    """Unit vectors are all as far from each other: more and more are asked for, at last all."""
    rows, labels = torch.eye(200), torch.zeros(200, dtype=torch.long)
    assert not k_filter(rows, labels, 3, by=by).any()
    labels[7] = 1
    assert k_filter(rows, labels, 3, by=by).all()
    # one centre to which all others are near, and nearer than to each other
    rows = torch.cat([rows, torch.zeros(1, 200)])
    labels = torch.cat([labels, torch.tensor([2])])
    assert k_filter(rows, labels, 1, by=by).all()


@pytest.mark.parametrize("by", ENGINES)
def test_differences_below_float32(by):
    """Where rough distances cannot tell, exact ones do."""
    offsets = torch.arange(60, dtype=torch.float64)[:, None] ** 1.01
    rows = 1e4 + 1e-7 * offsets * torch.ones(1, 4, dtype=torch.float64)
    rows = torch.cat([rows, torch.full((1, 4), -1e4, dtype=torch.float64)])
    labels = (torch.arange(61) // 7) % 2
    assert k_filter(rows, labels, 3, by=by).tolist() == keep_by_hand(
        rows.tolist(), labels.tolist(), 3
    )


@given(order=st.permutations(range(30)))
@settings(max_examples=20, deadline=None)
def test_the_order_of_rows_and_their_scale_do_not_matter(order):
    rows = (torch.arange(30) % 6)[:, None].double()
    labels = (torch.arange(30) % 6) // 3
    mask = k_filter(rows, labels, 4)
    assert torch.equal(k_filter(rows[order], labels[order], 4), mask[order])
    assert torch.equal(k_filter(1e-9 * rows, labels, 4), mask)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("far", [0.0, 1e3, 1e12])
def test_rough_distances_are_within_their_bounds(precision, far):
    rows = torch.randn(40, 300, dtype=torch.float64) + 5
    rows[3] += far
    search = Search(rows, precision)
    who = torch.arange(40)
    exact, rough = search.between(who[:, None], who), search.rough(who)
    apart = ~torch.eye(40, dtype=torch.bool)
    assert (search.at_least(rough, who) <= exact)[apart].all()
    assert (search.at_most(rough, who) >= exact)[apart].all()
    assert torch.equal(search.at_least(rough[7], who[7]), search.at_least(rough, who)[7])


def counted(monkeypatch):
    """How many exact distances are asked for."""
    seen, between = [], Search.between

    def count(search, one, other):
        found = between(search, one, other)
        seen.append(found.numel())
        return found

    monkeypatch.setattr(Search, "between", count)
    return seen


@pytest.mark.parametrize("by", ENGINES)
@pytest.mark.parametrize("far", [1e3, 1e8, 1e14])
def test_a_far_row_costs_the_others_nothing(by, far, monkeypatch):
    """Work, not time: exact distances with one row far off, beside those without."""
    rows, labels = torch.randn(90, 4, dtype=torch.float64), torch.arange(90) % 2
    rows[:, 0] += 2.0 * labels
    seen = counted(monkeypatch)
    k_filter(rows[1:], labels[1:], 5, by=by)
    without = sum(seen)
    rows[0] = far
    seen.clear()
    mask = k_filter(rows, labels, 5, by=by)
    assert mask.tolist() == keep_by_hand(rows.tolist(), labels.tolist(), 5)
    assert sum(seen) <= without + 4 * len(rows)


@pytest.mark.parametrize("by", ENGINES)
def test_groups_far_apart_take_products_in_float64(by, monkeypatch):
    """In float32 no neighbour can be told within a group so far from the middle."""
    rows, labels = torch.randn(90, 4, dtype=torch.float64), torch.arange(90) % 2
    rows[:, 0] += 2.0 * labels
    rows[45:] += 1e5
    seen = counted(monkeypatch)
    mask = k_filter(rows, labels, 5, by=by)
    assert mask.tolist() == keep_by_hand(rows.tolist(), labels.tolist(), 5)
    assert sum(seen) <= 30 * len(rows)


def test_constant_features_one_class_and_their_mixture():
    assert k_redundancy(torch.ones(12, 3), [0] * 12, 10) == 1.0
    assert k_redundancy(torch.ones(12, 3), [0, 1] * 6, 10) == 0.0
    assert k_redundancy(torch.randn(12, 3), ["a"] * 12, 10) == 1.0
    assert k_redundancy([[0.0], [-0.0], [5.0]], [0, 0, 1], 1) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("rows", "labels", "k", "words"),
    [
        (torch.ones(5, 2), [0] * 5, 5, "fewer than k=5"),
        (torch.full((5, 2), torch.nan), [0] * 5, 2, "nan"),
        (torch.ones(5, 2), [0.5] * 5, 2, "one class a row"),
        (torch.ones(5, 2), [0] * 4, 2, "5 rows of features but 4 labels"),
        (torch.ones(5, 2), [0] * 5, 0, "at least 1"),
        (torch.ones(5, 2), [0] * 5, True, "whole number"),
        (torch.ones(5), [0] * 5, 1, r"rows \[n, d\]"),
    ],
)
def test_refuses_in_a_sentence(rows, labels, k, words):
    with pytest.raises(DovetailError, match=words):
        k_filter(rows, labels, k)


def test_without_faiss_torch_searches(monkeypatch):
    def missing(*_, **__):
        raise MissingExtraError("no faiss")

    monkeypatch.setattr(neighbours, "need", missing)
    monkeypatch.setattr(neighbours, "_MANY", 1)
    rows, labels = torch.randn(30, 4), torch.arange(30) % 2
    assert torch.equal(k_filter(rows, labels, 2), k_filter(rows, labels, 2, by="torch"))
    with pytest.raises(MissingExtraError):
        k_filter(rows, labels, 2, by="faiss")
    with pytest.raises(DovetailError, match="auto"):
        k_filter(rows, labels, 2, by="annoy")
