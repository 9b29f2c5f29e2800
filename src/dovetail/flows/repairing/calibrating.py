"""The training images that recalibrated norms are estimated on."""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.core.seeds import generator
from dovetail.parts.part import Part
from dovetail.running.preprocess import prepare, refuse_other_inputs
from dovetail.tasks.task import Task

__all__ = ["CALIBRATION", "calibrating_batches"]

CALIBRATION = 2048
"""Examples are plenty for a mean and a variance a channel."""

_BATCH = 256


def calibrating_batches(
    front: Part, task: Task, most: int = CALIBRATION, *, seed: int = 0
) -> list[Tensor]:
    """Random training images as the front wants them, in batches of like size; no label is read.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(400, 4), [0, 1] * 200)
    >>> [len(batch) for batch in calibrating_batches(build("mlp", shape=(4,)), task)]
    [140, 140]
    """
    rows = task.indices("train")
    if len(rows) < 2:
        raise TaskError(f"{task.name!r} has no two training images to recalibrate on")
    refuse_other_inputs(task, front.contract)
    drawn = rows[torch.randperm(len(rows), generator=generator(seed, "calibration"))[:most]]
    ready = prepare(task.inputs.index_select(0, drawn), front.contract).to(front.device)
    # None is left with a single image, which has no variance.
    return list(ready.tensor_split(-(-len(ready) // _BATCH)))
