import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import TaskError
from dovetail.tasks.pairs import Pairs, draw_pairs


def make(*triples):
    first, second, same = zip(*triples, strict=True)
    return Pairs(torch.tensor(first), torch.tensor(second), torch.tensor(same))


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=30).map(torch.tensor),
    st.integers(1, 40),
    st.integers(0, 5),
)
def test_drawn_pairs_are_what_they_say(labels, count, seed):
    pairs = draw_pairs(labels, count, seed)
    assert len(pairs) == count
    for i, j, same in zip(pairs.first, pairs.second, pairs.same, strict=True):
        assert i != j
        assert (labels[i] == labels[j]) == same
    sizes = torch.bincount(labels)
    if sizes.max() == 1:
        assert not pairs.same.any()
    elif sizes.max() == len(labels):
        assert pairs.same.all()
    else:
        assert int(pairs.same.sum()) == count // 2


def test_every_possible_pair_is_drawn():
    labels = torch.tensor([0, 1, 0, 2, 1, 0])
    pairs = draw_pairs(labels, 2000, seed=3)
    drawn = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    # the only sample of class 2 has no partner of its own class, but partners of others
    assert drawn == {(i, j) for i in range(6) for j in range(6) if i != j}


def test_the_first_ends_are_even():
    labels = torch.tensor([0] * 8 + [1] * 2)
    pairs = draw_pairs(labels, 40_000, seed=0)
    share = torch.bincount(pairs.first[~pairs.same], minlength=10) / 20_000
    assert (share - 0.1).abs().max() < 0.01  # four standard deviations


@pytest.mark.parametrize("count", [0, -1])
def test_counts_that_are_refused(count):
    with pytest.raises(TaskError, match="at least 1"):
        draw_pairs(torch.tensor([0, 1]), count, 0)


def test_one_sample_makes_no_pair():
    with pytest.raises(TaskError, match="one sample makes no pair"):
        draw_pairs(torch.tensor([4]), 1, 0)


def test_within_renumbers_to_positions():
    pairs = make((0, 3, True), (3, 7, False), (7, 9, True))
    local = pairs.within(torch.tensor([3, 7, 9]))
    assert local.first.tolist() == [0, 1]
    assert local.second.tolist() == [1, 2]
    assert local.same.tolist() == [False, True]


@pytest.mark.parametrize(
    ("first", "second", "same", "words"),
    [
        ([0, 1], [1], [True, False], r"shapes \[2\], \[1\], \[2\]"),
        ([0.0], [1.0], [True], "int64 rows"),
        ([0], [1], [1], "booleans"),
        ([0, 2], [1, 2], [True, True], "pair 1 joins a sample with itself"),
    ],
)
def test_pairs_that_are_refused(first, second, same, words):
    with pytest.raises(TaskError, match=words):
        Pairs(torch.tensor(first), torch.tensor(second), torch.tensor(same))


def test_lists_are_refused():
    with pytest.raises(TaskError, match="three tensors"):
        Pairs([0], [1], [True])
