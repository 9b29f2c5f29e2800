import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import TaskError
from dovetail.tasks.splits import SPLITS, carve_validation, given_split, stratified_split

labels = st.lists(st.integers(0, 3), min_size=1, max_size=80).map(torch.tensor)
fractions = st.sampled_from([(0.7, 0.1, 0.2), (0.5, 0.25, 0.25), (0.8, 0.0, 0.2), (1.0, 0.0, 0.0)])


@given(labels, fractions, st.integers(0, 9))
def test_a_stratified_split_deals_out_every_example_once(strata, shares, seed):
    split = stratified_split(strata, shares, seed)
    dealt = [i for name in SPLITS for i in split[name].tolist()]
    assert sorted(dealt) == list(range(len(strata)))
    for name in SPLITS:
        assert split[name].tolist() == sorted(split[name].tolist())


@given(labels, fractions, st.integers(0, 9))
def test_each_class_is_dealt_in_the_fractions_within_one(strata, shares, seed):
    split = stratified_split(strata, shares, seed)
    for label in strata.unique():
        count = int((strata == label).sum())
        for name, share in zip(SPLITS, shares, strict=True):
            found = int((strata[split[name]] == label).sum())
            assert abs(found - share * count) < 2  # one for the remainder, one for "at least one"
            if share == 0:
                assert found == 0
            elif count >= 3 or name == "train":
                assert found >= 1


def test_two_of_a_class_are_one_to_train_and_one_to_test():
    split = stratified_split(torch.zeros(2), (0.7, 0.1, 0.2), 0)
    assert [len(split[name]) for name in SPLITS] == [1, 0, 1]


@given(st.lists(st.integers(20, 60), min_size=1, max_size=12), fractions, st.integers(0, 9))
def test_rounding_does_not_add_up_over_many_classes(sizes, shares, seed):
    strata = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    split = stratified_split(strata, shares, seed)
    for name, share in zip(SPLITS, shares, strict=True):
        assert abs(len(split[name]) - share * len(strata)) < 2
        for label, count in enumerate(sizes):
            assert abs(int((strata[split[name]] == label).sum()) - share * count) <= 1 + 1e-9


def test_large_classes_are_dealt_exactly():
    split = stratified_split(torch.arange(3000) % 3, (0.7, 0.1, 0.2), 0)
    assert [len(split[name]) for name in SPLITS] == [2100, 300, 600]


def test_the_seed_alone_decides():
    strata = torch.arange(60) % 3
    one, again, other = (stratified_split(strata, (0.7, 0.1, 0.2), seed) for seed in (1, 1, 2))
    assert all(torch.equal(one[name], again[name]) for name in SPLITS)
    assert not torch.equal(one["test"], other["test"])


def test_a_split_is_random_within_a_class():
    split = stratified_split(torch.zeros(100), (0.7, 0.1, 0.2), 0)
    assert split["train"].tolist() != list(range(70))


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ((0.5, 0.5), "three fractions"),
        ("abc", "three fractions"),
        (0.5, "three fractions"),
        ((0.9, -0.1, 0.2), "three fractions"),
        ((0.5, 0.1, 0.1), "sum to 0.7"),
        ((0.0, 0.5, 0.5), "train split is empty"),
        ((float("nan"), 0.5, 0.5), "three fractions"),
    ],
)
def test_fractions_that_are_refused(shares, words):
    with pytest.raises(TaskError, match=words):
        stratified_split(torch.zeros(9), shares, 0)


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ({"train": [0], "tset": [1]}, "unknown split 'tset'; did you mean test"),
        ({"train": [0]}, "names no 'test'"),
        ({"test": [0]}, "names no 'train'"),
        ({"train": [], "test": [0]}, "train split is empty"),
        (
            {"train": [0, 1], "validation": [2], "test": [1]},
            "sample 1 is in both 'train' and 'test'",
        ),
        ({"train": [0, 3, 3], "test": [1]}, "sample 3 is twice in the 'train'"),
        ({"train": [0, 9], "test": [1]}, "index 9 of the 'train' split is not below 9"),
        ({"train": [0], "test": [-1]}, "index -1 of the 'test' split"),
        ({"train": [0.5], "test": [1]}, "'train' split must be a list of indices"),
        ({"train": [[0]], "test": [1]}, "'train' split must be a list of indices"),
        ({"train": [True, False], "test": [1]}, "'train' split must be a list of indices"),
    ],
)
def test_given_splits_that_are_refused(split, words):
    with pytest.raises(TaskError, match=words):
        given_split(split, 9, torch.zeros(9), 0)


def test_a_given_split_is_kept_and_sorted():
    given = {"train": [5, 0], "validation": [3], "test": torch.tensor([4, 1])}
    split = given_split(given, 9, torch.zeros(9), 0)
    assert {name: index.tolist() for name, index in split.items()} == {
        "train": [0, 5],
        "validation": [3],
        "test": [1, 4],
    }


def test_a_mask_is_a_list_of_indices():
    mask = torch.arange(9) < 7
    split = given_split({"train": mask, "validation": [], "test": ~mask}, 9, torch.zeros(9), 0)
    assert split["train"].tolist() == list(range(7))
    assert split["test"].tolist() == [7, 8]


@pytest.mark.parametrize("seed", range(8))
def test_carving_takes_a_tenth_of_each_class_from_train_only(seed):
    strata = (torch.arange(100) >= 70).long()
    train = torch.arange(50, 100)
    kept, carved = carve_validation(train, strata, seed)
    assert sorted([*kept.tolist(), *carved.tolist()]) == train.tolist()
    assert torch.bincount(strata[carved]).tolist() == [2, 3]
