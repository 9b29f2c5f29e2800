import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import SettingsError
from dovetail.core.seeds import generator
from dovetail.tasks.augment import Augment
from dovetail.train.supervision import Batches

IMAGES = torch.rand(23, 1, 6, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(23)


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 3), st.integers(0, 5))
def test_resuming_gives_the_batches_of_an_unbroken_epoch(count, size, epoch, start):
    x = torch.rand(count, 1, 4, 4)
    batches = Batches(x, torch.arange(count), size, seed=2, augment=Augment.parse("shift:1,flip"))
    whole = list(batches.epoch(epoch))
    rest = list(batches.epoch(epoch, start))
    assert len(whole) == len(batches)
    assert len(rest) == max(0, len(whole) - start)
    for (x1, y1), (x2, y2) in zip(whole[start:], rest, strict=True):
        assert torch.equal(x1, x2)
        assert torch.equal(y1, y2)


@given(st.integers(1, 40), st.integers(1, 12))
def test_an_epoch_visits_every_example_once_but_for_a_lone_last_one(count, size):
    batches = Batches(torch.zeros(count, 1), torch.arange(count), size)
    sizes, seen = [], []
    for _, targets in batches.epoch(0):
        sizes.append(len(targets))
        seen += targets.tolist()
    dropped = count > size > 1 and count % size == 1
    assert len(set(seen)) == len(seen) == count - dropped
    assert all(length == size for length in sizes[:-1])
    if count > 1 and size > 1:
        assert min(sizes) > 1


@pytest.mark.parametrize("size", [1, 4])
def test_a_single_example_is_not_dropped(size):
    batches = Batches(torch.zeros(1, 1), torch.zeros(1), size)
    assert [len(targets) for _, targets in batches.epoch(0)] == [1]


def test_a_batch_is_the_rows_of_the_permutation():
    batches = Batches(IMAGES, LABELS, 5, seed=7)
    order = torch.randperm(23, generator=generator(7, "order", 3))
    for number, (x, y) in enumerate(batches.epoch(3)):
        index = order[5 * number : 5 * number + 5]
        assert torch.equal(x, IMAGES[index])
        assert torch.equal(y, LABELS[index])


def test_epochs_and_seeds_differ():
    def order(seed, epoch):
        batches = Batches(IMAGES, LABELS, 23, seed=seed)
        return tuple(next(batches.epoch(epoch))[1].tolist())

    assert len({order(0, 0), order(0, 1), order(1, 0), order(1, 1)}) == 4


def test_augmentation_differs_by_batch_and_by_epoch():
    x = torch.rand(1, 1, 9, 9).expand(8, 1, 9, 9)
    batches = Batches(x, torch.zeros(8), 4, augment=Augment.parse("rotate:90"))
    seen = [x for epoch in (0, 1) for x, _ in batches.epoch(epoch)]
    assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])


def test_rows_are_chosen_without_a_copy_of_the_data():
    rows = torch.tensor([2, 3, 5, 7, 11])
    chosen = Batches(IMAGES, LABELS, 2, seed=4, rows=rows)
    copied = Batches(IMAGES[rows], LABELS[rows], 2, seed=4)
    for (x1, y1), (x2, y2) in zip(chosen.epoch(0), copied.epoch(0), strict=True):
        assert torch.equal(x1, x2)
        assert torch.equal(y1, y2)


def test_bytes_become_floats_on_the_batch():
    x = torch.arange(256, dtype=torch.uint8)[:, None]
    ((inputs, targets),) = Batches(x, torch.arange(256), 256).epoch(0)
    assert torch.equal(inputs[:, 0], targets / 255)


def test_writing_to_a_batch_leaves_the_data_alone():
    before = IMAGES.clone()
    for inputs, _ in Batches(IMAGES, LABELS, 23).epoch(0):
        inputs.zero_()
    assert torch.equal(IMAGES, before)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((IMAGES, LABELS, 0), "batch_size must be at least 1"),
        ((IMAGES, LABELS[1:], 4), "23 inputs but 22 targets"),
        ((IMAGES[:0], LABELS[:0], 4), "nothing to make batches of"),
    ],
)
def test_batches_that_are_refused(arguments, words):
    with pytest.raises(SettingsError, match=words):
        Batches(*arguments)
