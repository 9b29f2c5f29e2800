import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.correlation import best_by_trying_all, one_by_one

from dovetail.core.errors import TaskError
from dovetail.measure.correlation import (
    best_permutation,
    channel_correlation,
    channel_moments,
    correlations,
)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(9, 4), (5, 3, 2, 3)], ids=["vectors", "maps"])
def test_each_channel_with_its_namesake(shape):
    a, b = drawn(*shape), drawn(*shape, seed=1)
    b[:, 1] += 2 * a[:, 1]
    table = one_by_one(a, b)
    found = channel_correlation(a, b)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, np.diag(table), atol=1e-12)
    np.testing.assert_allclose(correlations(channel_moments(a, b)), table, atol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 4, 6])
def test_no_permutation_is_better(d):
    a, b = drawn(20, d), drawn(20, d, seed=1)
    partner, found = best_permutation(a, b)
    table = one_by_one(a, b)
    assert sorted(partner.tolist()) == list(range(d))
    np.testing.assert_allclose(found, table[range(d), partner], atol=1e-12)
    assert found.sum().item() == pytest.approx(best_by_trying_all(table))
    assert found.sum() >= channel_correlation(a, b).sum() - 1e-12


def test_the_same_features_in_another_order_match_again():
    a = drawn(30, 7)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    partner, found = best_permutation(a[:, order], a)
    assert partner.tolist() == order.tolist()
    np.testing.assert_allclose(found, np.ones(7), atol=1e-12)


def test_opposite_channels_are_no_match():
    a = drawn(40, 2)
    b = 0.3 * a - a.flip(1)  # strongly against the other channel, weakly with its namesake
    assert best_permutation(a, b)[0].tolist() == [0, 1]


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(1, 19), offset=st.sampled_from([0.0, 1e3, -1e6]))
def test_pieces_give_what_the_whole_gives(cut, offset):
    a, b = drawn(20, 3, 2, 2).double() + offset, drawn(20, 3, 2, 2, seed=1).double() - offset
    pieces = channel_moments(a[:cut], b[:cut]).merge(channel_moments(a[cut:], b[cut:]))
    assert pieces.rows == 80
    np.testing.assert_allclose(correlations(pieces), one_by_one(a, b), atol=1e-7)


@settings(max_examples=20, deadline=None)
@given(scale=st.floats(1e-3, 1e3), shift=st.floats(-10, 10))
def test_scale_and_shift_of_a_channel_do_not_matter(scale, shift):
    a, b = drawn(12, 3).double(), drawn(12, 3, seed=1).double()
    np.testing.assert_allclose(
        channel_correlation(a * scale + shift, b), channel_correlation(a, b), atol=1e-9
    )


@pytest.mark.parametrize("value", [0.0, 0.1, -3e7])
def test_a_constant_channel_correlates_with_nothing(value):
    a, b = drawn(1001, 2), drawn(1001, 2, seed=1)
    a[:, 0] = value
    moments = channel_moments(a[:400], b[:400]).merge(channel_moments(a[400:], b[400:]))
    assert correlations(moments)[0].tolist() == [0.0, 0.0]
    assert channel_correlation(a, a)[0] == 0.0
    assert channel_correlation(a, b)[1] != 0.0


def test_one_sample_correlates_with_nothing():
    assert channel_correlation(drawn(1, 3), drawn(1, 3, seed=1)).tolist() == [0.0] * 3


def test_tiny_features_still_correlate():
    a = drawn(50, 2) * 1e-20
    np.testing.assert_allclose(channel_correlation(a, 2 * a), [1.0, 1.0], atol=1e-6)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (drawn(4, 3), drawn(4, 2), "of one shape"),
        (drawn(4, 3), drawn(5, 3), "of one shape"),
        (drawn(4), drawn(4), "of one shape"),
        (drawn(0, 3), drawn(0, 3), "no features"),
        (drawn(4, 0), drawn(4, 0), "no features"),
        (drawn(4, 3), torch.full((4, 3), torch.nan), "NaN"),
        (torch.full((4, 3), torch.inf), drawn(4, 3), "NaN or infinite"),
    ],
    ids=["channels", "rows", "no-channels", "empty", "no-channel", "nan", "inf"],
)
def test_what_cannot_be_correlated(a, b, words):
    with pytest.raises(TaskError, match=words):
        channel_correlation(a, b)


def test_other_channels_do_not_merge():
    with pytest.raises(TaskError, match="2 features and 2 targets do not add to those of 3"):
        channel_moments(drawn(4, 3), drawn(4, 3)).merge(channel_moments(drawn(4, 2), drawn(4, 2)))
