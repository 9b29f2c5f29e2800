"""CIFAR-10, fewer and smaller, drawn once and for all; prepared as the networks take it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import dovetail as dt
from dovetail.core.seeds import generator
from dovetail.measure.forward import prepare, preprocess_for
from dovetail.parts.contract import Contract
from dovetail.tasks.derive import resized

Split = tuple[Tensor, Tensor]


def cifar10(
    data: Path | None, *, train: int | None, validation: int | None, test: int | None, size: int
) -> dt.Task:
    """So many images of each split, ``size`` pixels wide; ``None`` takes all."""
    task = dt.load_task("cifar10", data=data)
    indices = {}
    for split, most in (("train", train), ("validation", validation), ("test", test)):
        rows = task.indices(split)
        order = torch.randperm(len(rows), generator=generator(0, "linearized", split))
        indices[split] = rows[order[:most].sort().values]
    task = task.derived(task.name, indices=indices)
    return task if size == task.input_shape[1] else resized(task, size)


def prepared(task: dt.Task) -> dict[str, Split]:
    """Standardised inputs and labels of each split."""
    contract = Contract(preprocess=preprocess_for(task))
    splits = {name: task.subset(name) for name in ("train", "validation", "test")}
    return {name: (prepare(x, contract), y) for name, (x, y) in splits.items()}
