"""What a body is told: which two rows are alike, which differ, and nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import TaskError
from dovetail.parts.part import build
from dovetail.tasks.augment import Augment
from dovetail.tasks.pairs import Pairs
from dovetail.train.pair_batches import FromLabels, FromPairs, WithViews
from dovetail.train.supervision import Supply, below

ENTRANCE = below(build("mlp", shape=(1,)), None)


def numbered(count, **more):
    """Rows that carry their own number, so that a batch tells which rows it holds."""
    return Supply(ENTRANCE, torch.arange(float(count))[:, None], torch.arange(count), **more)


def rows_of(batch):
    return batch.inputs[:, 0].long().tolist()


def test_labels_say_everything_about_a_batch():
    labels = torch.arange(20) % 3
    seen = []
    for batch in FromLabels(numbered(20), labels, 6, seed=1).epoch(0):
        rows = rows_of(batch)
        seen += rows
        for i, a in enumerate(rows):
            for j, b in enumerate(rows):
                assert bool(batch.relations.same[i, j]) == (i != j and a % 3 == b % 3)
                assert bool(batch.relations.different[i, j]) == (a % 3 != b % 3)
    assert len(seen) == len(set(seen)) == 18  # two rows fill no batch


def test_batches_hold_no_labels():
    batch = next(iter(FromLabels(numbered(20), torch.arange(20) % 3, 6, seed=1).epoch(0)))
    assert batch._fields == ("inputs", "relations")
    assert batch.relations.same.dtype == batch.relations.different.dtype == torch.bool


def test_names_of_the_classes_change_no_batch():
    names = torch.tensor([7, -3, 40])
    one = FromLabels(numbered(20), torch.arange(20) % 3, 6, seed=1)
    other = FromLabels(numbered(20), names[torch.arange(20) % 3], 6, seed=1)
    for a, b in zip(one.epoch(2), other.epoch(2), strict=True):
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.relations.same, b.relations.same)
        assert torch.equal(a.relations.different, b.relations.different)


@st.composite
def some_pairs(draw):
    """Pairs among few rows, each said once or more, never both ways."""
    count = draw(st.integers(2, 12))
    everyone = [(i, j) for i in range(count) for j in range(i)]
    chosen = draw(st.lists(st.sampled_from(everyone), min_size=1, max_size=20))
    flags = {pair: draw(st.booleans()) for pair in set(chosen)}
    turned = [pair[::-1] if draw(st.booleans()) else pair for pair in chosen]
    first, second = (torch.tensor(end) for end in zip(*turned, strict=True))
    return count, Pairs(first, second, torch.tensor([flags[pair] for pair in chosen])), flags


@settings(max_examples=40, deadline=None)
@given(some_pairs(), st.integers(2, 16))
def test_only_what_the_pairs_say_is_known(made, batch_size):
    count, pairs, flags = made
    source = FromPairs(numbered(count), pairs, batch_size, seed=3)
    batches = list(source.epoch(0))
    assert len(batches) == len(source) >= 1
    for batch in batches:
        rows = rows_of(batch)
        assert len(set(rows)) == len(rows) <= 2 * max(batch_size // 2, 1)
        assert (batch.relations.same | batch.relations.different).any(1).all()
        for i, a in enumerate(rows):
            for j, b in enumerate(rows):
                said = flags.get((max(a, b), min(a, b)))
                assert bool(batch.relations.same[i, j]) == (said is True)
                assert bool(batch.relations.different[i, j]) == (said is False)


def test_every_batch_has_both_sorts_of_pairs():
    first = torch.arange(0, 200, 2)
    pairs = Pairs(first, first + 1, torch.arange(100) < 20)
    for batch in FromPairs(numbered(200), pairs, 20, seed=0).epoch(4):
        assert int(batch.relations.same.sum()) // 2 == 2
        assert int(batch.relations.different.sum()) // 2 == 8


def test_a_contradiction_names_the_samples():
    supply = Supply(ENTRANCE, torch.rand(50, 1), torch.arange(30, 50))
    one, other = torch.tensor([3, 5, 4]), torch.tensor([4, 6, 3])
    pairs = Pairs(one, other, torch.tensor([True, True, False]))
    with pytest.raises(TaskError, match="samples 34 and 33 are given both as alike and as diff"):
        FromPairs(supply, pairs, 4, seed=0)


def test_from_any_batch_of_an_epoch():
    first = torch.arange(0, 40, 2)
    sources = (
        FromLabels(numbered(40), torch.arange(40) % 3, 6, seed=1),
        FromPairs(numbered(40), Pairs(first, first + 1, first % 3 == 0), 8, seed=1),
    )
    for source in sources:
        whole = [rows_of(batch) for batch in source.epoch(3)]
        assert [rows_of(batch) for batch in source.epoch(3, start=2)] == whole[2:]
        assert [rows_of(batch) for batch in source.epoch(4)] != whole


def test_views_of_unlabelled_images_are_alike_and_the_rest_is_unknown():
    images, labels = torch.rand(20, 1, 4, 4), torch.arange(20) % 2
    entrance = below(build("mlp", shape=(1, 4, 4)), None)
    augment = Augment.parse("shift:1")
    supply = Supply(entrance, images, torch.arange(20), augment=augment)
    source = FromLabels(supply, labels, 8, seed=0)
    batches = WithViews(source, supply, torch.rand(9, 1, 4, 4), augment, count=3, seed=0)
    assert len(batches) == len(source) == 2
    for plain, wide in zip(source.epoch(1), batches.epoch(1), strict=True):
        assert wide.inputs.shape == (8 + 6, 1, 4, 4)
        assert torch.equal(wide.inputs[:8], plain.inputs)
        assert torch.equal(wide.relations.same[:8, :8], plain.relations.same)
        assert torch.equal(wide.relations.different[:8, :8], plain.relations.different)
        assert not wide.relations.different[8:].any()
        expected = {(i, i + 3) for i in (8, 9, 10)} | {(i + 3, i) for i in (8, 9, 10)}
        same = wide.relations.same.clone()
        same[:8, :8] = False
        assert {tuple(pair) for pair in same.nonzero().tolist()} == expected
        assert not torch.equal(wide.inputs[8:11], wide.inputs[11:14])
    again = list(batches.epoch(1, start=1))
    assert torch.equal(again[0].inputs, wide.inputs)
