"""The data sets the shelf is made of, each in three pieces that never meet.

Of the training split of a data set the first rows of one random order train the sources, and the
rest is where the labelled examples of targets are drawn from.  The test split is for truths.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

import dovetail as dt
from dovetail.core.seeds import generator

from .protocol import Workplace

__all__ = ["SOURCES", "loaded", "pieces", "source_task"]

SOURCES = ("mnist", "fashion-mnist", "cifar10")


@cache
def loaded(name: str, data: Path) -> dt.Task:
    """The whole data set."""
    return dt.load_task(name, data=data)


def pieces(task: dt.Task, place: Workplace) -> tuple[Tensor, Tensor]:
    """Training rows for a source, and the others for targets; all of digits is for targets."""
    rows = task.indices("train")
    order = rows[torch.randperm(len(rows), generator=generator(place.protocol.seed, "pieces"))]
    taken = place.protocol.source_images if task.name in SOURCES else 0
    return order[:taken], order[taken:]


def source_task(name: str, place: Workplace, noise: float = 0.0) -> dt.Task:
    """What a source network is trained on; of a share ``noise`` the labels are drawn anew."""
    protocol = place.protocol
    task = loaded(name, place.data)
    train, _ = pieces(task, place)
    validation = task.indices("validation")[: protocol.source_validation]
    targets = task.targets
    if noise > 0:
        draw = generator(protocol.seed, "label noise", name)
        hit = train[torch.rand(len(train), generator=draw) < noise]
        targets = targets.clone()
        targets[hit] = torch.randint(len(task.classes), hit.shape, generator=draw)
    indices = {"train": train, "validation": validation, "test": task.indices("test")[:0]}
    return task.derived(f"{name}~noise{noise:g}", targets=targets, indices=indices)
