import pytest
import torch

from dovetail.parts.part import build
from dovetail.tasks.pairs import Pairs
from dovetail.tasks.task import Task


@pytest.fixture(scope="session")
def task():
    """Three blobs of small images: learnable, and small enough for hundreds of trainings."""
    draw = torch.Generator().manual_seed(4)
    targets = torch.arange(90) % 3
    inputs = 0.3 * torch.rand(90, 1, 4, 4, generator=draw)
    inputs[torch.arange(90), 0, targets, targets] += 0.5
    return Task(inputs, targets, name="blobs")


@pytest.fixture(scope="session")
def net():
    return build("mlp", shape=(1, 4, 4), hidden=(16,), classes=3, seed=1)


@pytest.fixture(scope="session")
def of_pairs(task):
    """The blobs with every class forgotten: a few hundred pairs are left."""
    drawn = [task.pairs(split, count=200, seed=1) for split in ("train", "validation")]
    first, second, alike = (
        torch.cat([getattr(pairs, field) for pairs in drawn])
        for field in ("first", "second", "same")
    )
    return Task(
        task.inputs,
        kind="pairs",
        pairs=Pairs(first, second, alike),
        split={s: task.indices(s) for s in ("train", "validation", "test")},
        name="told in pairs",
    )
