"""The ten targets: a few labelled examples each, and test examples for the truths."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

import dovetail as dt
from dovetail.core.seeds import generator
from dovetail.tasks.derive import inverted, only_classes, rotated

from .protocol import Workplace
from .sources import loaded, pieces

__all__ = ["TARGETS", "halves", "target_task"]

_TOPS = ("T-shirt/top", "Pullover", "Coat", "Shirt")
_REST = ("Trouser", "Dress", "Sandal", "Sneaker", "Bag", "Ankle boot")
_ANIMALS = ("bird", "cat", "deer", "dog", "frog", "horse")
_VEHICLES = ("airplane", "automobile", "ship", "truck")

_Change = Callable[[dt.Task], dt.Task]
_TARGETS: dict[str, tuple[str, _Change]] = {
    "digits": ("digits", lambda task: task),
    "mnist": ("mnist", lambda task: task),
    "mnist-rotated": ("mnist", lambda task: rotated(task, 90)),
    "mnist-inverted": ("mnist", inverted),
    "fashion": ("fashion-mnist", lambda task: task),
    "fashion-tops": ("fashion-mnist", lambda task: only_classes(task, _TOPS)),
    "fashion-rest": ("fashion-mnist", lambda task: only_classes(task, _REST)),
    "cifar10": ("cifar10", lambda task: task),
    "cifar10-animals": ("cifar10", lambda task: only_classes(task, _ANIMALS)),
    "cifar10-vehicles": ("cifar10", lambda task: only_classes(task, _VEHICLES)),
}
"""Each target's data set, and what is done to it."""

TARGETS = tuple(_TARGETS)


@cache
def target_task(name: str, place: Workplace) -> dt.Task:
    """A target with the labelled examples as its training split and the truth's as its test."""
    origin, change = _TARGETS[name]
    whole = loaded(origin, place.data)
    _, free = pieces(whole, place)
    # classes are chosen before the draw and pixels changed after it, so that little is changed
    chosen = whole.derived(name, indices={**_splits(whole), "train": free})
    chosen = change(chosen) if name.startswith(("fashion", "cifar10")) else chosen
    protocol = place.protocol
    drawn = chosen.derived(
        name,
        indices={
            "train": _balanced(chosen, protocol.labels, protocol.seed),
            "validation": chosen.indices("validation")[:0],
            "test": _some(chosen.indices("test"), protocol.test_examples, protocol.seed, name),
        },
    )
    task = drawn if name.startswith(("fashion", "cifar10")) else change(drawn)
    return task.derived(name)


def halves(count: int, place: Workplace) -> tuple[Tensor, Tensor]:
    """Two random halves of ``count`` test examples."""
    order = torch.randperm(count, generator=generator(place.protocol.seed, "halves"))
    return order[: count // 2], order[count // 2 :]


def _splits(task: dt.Task) -> dict[str, Tensor]:
    return {split: task.indices(split) for split in ("train", "validation", "test")}


def _balanced(task: dt.Task, count: int, seed: int) -> Tensor:
    """Rows of the training split, of each class the same number (the first have one more)."""
    rows = task.indices("train")
    order = rows[torch.randperm(len(rows), generator=generator(seed, "labels", task.name))]
    classes = len(task.classes)
    picked = []
    for label in range(classes):
        share = count // classes + (label < count % classes)
        picked.append(order[task.targets[order] == label][:share])
    return torch.cat(picked).sort().values


def _some(rows: Tensor, count: int, seed: int, name: str) -> Tensor:
    order = torch.randperm(len(rows), generator=generator(seed, "test", name))
    return rows[order[:count]].sort().values
