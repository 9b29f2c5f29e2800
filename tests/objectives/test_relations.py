"""What labels, masks and lists of pairs say, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import SettingsError, TaskError
from dovetail.objectives import relations_of_labels, relations_of_masks, relations_of_pairs


def mask(n, *pairs):
    found = torch.zeros(n, n, dtype=torch.bool)
    for i, j in pairs:
        found[i, j] = True
    return found


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
@settings(deadline=None, max_examples=25)
def test_labels_say_everything(labels):
    relations = relations_of_labels(torch.tensor(labels))
    for i, one in enumerate(labels):
        for j, other in enumerate(labels):
            assert relations.same[i, j] == (i != j and one == other)
            assert relations.different[i, j] == (one != other)
    assert torch.equal(relations.known, ~torch.eye(len(labels), dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_labels_of_any_integer_type(dtype):
    assert relations_of_labels(torch.tensor([0, 1, 1]).to(dtype)).same.sum() == 2


def test_one_triangle_is_enough_and_the_diagonal_is_ignored():
    given = mask(3, (0, 1), (2, 2)), mask(3, (2, 1))
    kept = [each.clone() for each in given]
    relations = relations_of_masks(*given)
    assert torch.equal(relations.same, mask(3, (0, 1), (1, 0)))
    assert torch.equal(relations.different, mask(3, (1, 2), (2, 1)))
    assert all(torch.equal(one, two) for one, two in zip(given, kept, strict=True))


def test_being_alike_need_not_be_transitive():
    relations = relations_of_masks(mask(3, (0, 1), (1, 2)), mask(3, (0, 2)))
    assert repr(relations) == "Relations(3 samples, 2 pairs alike, 1 pair different)"


def test_one_mask_may_be_missing():
    assert not relations_of_masks(None, mask(3, (0, 1))).same.any()
    relations = relations_of_masks(mask(3, (0, 1)), None)
    assert not relations.different.any()
    assert relations.same.sum() == 2


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda pair: pair[0] != pair[1]),
        max_size=12,
    )
)
@settings(deadline=None, max_examples=25)
def test_pairs_are_their_masks(pairs):
    said = [(i, j, (i + j) % 2 == 0) for i, j in pairs]
    first, second = (torch.tensor([p[end] for p in said], dtype=torch.int64) for end in (0, 1))
    same = torch.tensor([p[2] for p in said], dtype=torch.bool)
    relations = relations_of_pairs(7, first, second, same)
    for i in range(7):
        for j in range(7):
            listed = (i, j) in pairs or (j, i) in pairs
            assert relations.same[i, j] == (listed and (i + j) % 2 == 0)
            assert relations.different[i, j] == (listed and (i + j) % 2 == 1)


def test_contradictions_are_named():
    with pytest.raises(TaskError, match="samples 1 and 2 are given both"):
        relations_of_masks(mask(3, (1, 2)), mask(3, (2, 1)))
    ends = torch.tensor([0, 4]), torch.tensor([4, 0])
    with pytest.raises(TaskError, match="samples 0 and 4 are given both"):
        relations_of_pairs(5, *ends, torch.tensor([True, False]))


@pytest.mark.parametrize(
    ("same", "different", "says"),
    [
        (None, mask(3, (1, 1)), "sample 1 is given as different from itself"),
        (mask(3), mask(4), "same is for 3 samples, different for 4"),
        (mask(3).float(), None, r"same must be a boolean tensor \[n, n\], got torch.float32"),
        (None, mask(3)[:2], r"different must be a boolean tensor \[n, n\], got shape \[2, 3\]"),
        (None, [[True]], "got list"),
    ],
)
def test_masks_that_are_none(same, different, says):
    with pytest.raises(TaskError, match=says):
        relations_of_masks(same, different)


def test_no_mask_at_all():
    with pytest.raises(SettingsError, match="give labels, or same= and different="):
        relations_of_masks(None, None)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (torch.zeros(3, 1).long(), r"shape \[n\], one a sample, got \[3, 1\]"),
        ([0, 1], "got list"),
        (torch.zeros(3), "labels must be integers, got torch.float32"),
    ],
)
def test_labels_that_are_none(labels, says):
    with pytest.raises(TaskError, match=says):
        relations_of_labels(labels)


ROWS, YES = torch.tensor([0, 1]), torch.tensor([True, True])


@pytest.mark.parametrize(
    ("first", "second", "same", "says"),
    [
        (ROWS, ROWS + 2, YES, "a pair names sample 3, but there are 3"),
        (ROWS - 1, ROWS + 1, YES, "a pair names sample -1"),
        (ROWS, ROWS, YES, "pair 0 joins sample 0 with itself"),
        (ROWS, ROWS[:1], YES, "three tensors of one length"),
        (ROWS, ROWS.flip(0), YES.long(), "int64 rows"),
    ],
)
def test_pairs_that_are_none(first, second, same, says):
    with pytest.raises(TaskError, match=says):
        relations_of_pairs(3, first, second, same)
