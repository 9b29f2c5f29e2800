"""Measuring joined parts, and keeping what was measured on the shelf they come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dovetail.core.seeds import generator
from dovetail.parts.norms import uses_batch_statistics
from dovetail.parts.part import Part
from dovetail.running.evaluate import Evaluation, evaluate
from dovetail.shelf.fits import MeasuredFit
from dovetail.shelf.store import Shelf
from dovetail.tasks.task import SPLITS, Split, Task

__all__ = ["evaluated", "keep_measured"]

_BATCH = 512


def evaluated(joined: Part, task: Task, *, seed: int = 0) -> Evaluation:
    """The measures on the test split; in random order where a batch's own statistics decide.

    Data often lie class by class, and the statistics of one class are not those of the data.
    """
    rows = task.indices("test")
    if not uses_batch_statistics(joined.module) or len(rows) == 0:
        return evaluate(joined, task)
    drawn = torch.randperm(len(rows), generator=generator(seed, "judging"))
    indices: dict[Split, Tensor] = {split: task.indices(split) for split in SPLITS}
    mixed = task.derived(task.name, indices=indices | {"test": rows[drawn]})
    even = math.ceil(len(rows) / math.ceil(len(rows) / _BATCH))
    found = evaluate(joined, mixed, batch_size=even)
    settings = {"task_fingerprint": task.fingerprint, "order": "random"}
    return replace(found, settings=found.settings | settings)


def keep_measured(
    store: Shelf, chain: Sequence[Part], found: Evaluation, task: Task, norms: str
) -> bool:
    """Keep an accuracy of parts that were joined, front first, if all are on the shelf."""
    known = {entry.digest for entry in store.entries()}
    digests = [part.digest for part in chain]
    if task.kind != "classes" or found.chance is None or not known.issuperset(digests):
        return False
    store.keep_fit(
        MeasuredFit(
            front=digests[0],
            head=digests[-1],
            through=tuple(digests[1:-1]),
            task=task.name,
            task_fingerprint=task.fingerprint,
            split=found.split,
            norms=norms,
            accuracy=found.accuracy,
            chance=found.chance,
            n=found.n,
        )
    )
    return True
