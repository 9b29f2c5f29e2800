"""Pairs of tasks with the same classes and other images, and networks for them."""

from __future__ import annotations

from functools import lru_cache

import torch

import dovetail as dt
from compatibility.protocol import Protocol, Workplace
from dovetail.tasks.derive import blurred, few, grey, inverted, noisy, resized

PAIRS = ("mnist, changed", "mnist, digits", "fashion, changed", "cifar10, grey")
"""Changed: the negative, blurred by a pixel, with noise of 0.2."""


def changed(task: dt.Task) -> dt.Task:
    return noisy(blurred(inverted(task), 1.0), 0.2)


@lru_cache(maxsize=4)
def tasks_of(pair: str, place: Workplace) -> tuple[dt.Task, dt.Task]:
    """The two tasks of a pair, as large as the protocol says."""
    left, right = pair.split(", ")
    source = {"fashion": "fashion-mnist"}.get(left, left)
    first = dt.load_task(source, data=place.data)
    if right == "digits":
        second = resized(dt.load_task("digits"), 28)
    elif right == "itself":
        second = first
    else:
        second = grey(first) if right == "grey" else changed(first)
    return limited(first, place.protocol), limited(second, place.protocol)


def limited(task: dt.Task, protocol: Protocol) -> dt.Task:
    """The task with fewer examples of each split, drawn once and for all."""
    counts = {"validation": protocol.validation, "test": protocol.test}
    indices = {split: task.indices(split) for split in ("train", "validation", "test")}
    for split, most in counts.items():
        if most is not None and len(indices[split]) > most:
            order = torch.randperm(len(indices[split]), generator=torch.Generator().manual_seed(0))
            indices[split] = indices[split][order[:most].sort().values]
    task = task.derived(task.name, indices=indices)
    train = task.targets[task.indices("train")]
    rarest = int(train.bincount().min())
    wanted = protocol.per_class
    return task if wanted is None or wanted >= rarest else few(task, wanted, 0)


def net_for(task: dt.Task, protocol: Protocol, seed: int, **args: object) -> dt.Part:
    """A fresh network of the protocol's architecture."""
    channels, size, _ = task.input_shape
    given = {"norm": "batch", **args}
    return dt.build(
        protocol.net,
        channels=channels,
        size=size,
        classes=len(task.classes),
        seed=seed,
        **given,
    )
