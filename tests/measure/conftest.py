from dataclasses import replace

import pytest
import torch

from dovetail.parts.cutting import cut
from dovetail.parts.part import build
from dovetail.tasks.task import Task
from dovetail.train import end_to_end


def blobs(names, *, each=40, seed=0, offset=0.0, name="blobs"):
    """Images 1×8×8 that show their class as a bright square, in noise, sorted by class."""
    draw = torch.Generator().manual_seed(seed)
    places = {known: i for i, known in enumerate("abcdefghi")}
    images = 0.6 * torch.rand(len(names) * each, 1, 8, 8, generator=draw) + offset
    labels = [label for label in names for _ in range(each)]
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(places[label], 3)
        image[0, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3] += 0.12
    return Task(images, labels, name=name, classes=list(names))


def halves_of(task, *, seed, epochs=3, at="conv2", **args):
    """A small network with batch norms, trained a little, in two."""
    net = build("lenet5", size=8, classes=len(task.classes), norm="batch", seed=seed, **args)
    return cut(end_to_end(net, task, epochs=epochs, batch_size=32, seed=seed).part, at=at)


@pytest.fixture(scope="session")
def tasks():
    return {
        "abcd": blobs("abcd", name="abcd"),
        "cdeb": blobs("cdeb", seed=1, offset=0.1, name="cdeb"),
    }


@pytest.fixture(scope="session")
def halves(tasks):
    return {name: halves_of(task, seed=i) for i, (name, task) in enumerate(tasks.items())}


@pytest.fixture
def fronts(halves):
    return {name: front for name, (front, _) in halves.items()}


@pytest.fixture
def heads(halves):
    return {name: head for name, (_, head) in halves.items()}


@pytest.fixture
def renamed():
    """A head with other names for its outputs."""
    return lambda head, names: head.changed(
        contract=replace(head.contract, classes=None if names is None else tuple(names))
    )
