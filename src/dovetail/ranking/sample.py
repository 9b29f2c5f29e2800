"""The labelled examples that a ranking looks at."""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.tasks.task import Split, Task

__all__ = ["sampled"]


def sampled(task: Task, samples: int | None, split: Split, seed: int) -> Task:
    """The task with at most so many examples of a split, each class with its share, and no others.

    >>> task = Task(torch.rand(100, 4), [0, 1, 1, 1] * 25)
    >>> few = sampled(task, 40, "train", seed=0)
    >>> few.size("train"), few.targets[few.indices("train")].bincount().tolist(), few.size("test")
    (40, [10, 30], 0)
    """
    if samples is not None and samples < 2:
        raise SettingsError(f"a ranking needs at least 2 examples, samples={samples}")
    if split == "test":
        raise SettingsError(
            "parts are not ranked on the test split: it is there to measure the one you choose"
        )
    rows = task.indices(split)
    if len(rows) < 2:
        raise TaskError(f"{task.name!r} has {len(rows)} examples to rank on in its {split} split")
    if samples is not None and samples < len(rows):
        if task.kind == "pairs":
            rows = _ends_of_pairs(task, split, samples, seed)
        else:
            rows = rows[_chosen(task, rows, samples, seed)].sort().values
    none = rows[:0]
    return task.derived(task.name, indices={"train": rows, "validation": none, "test": none})


def _ends_of_pairs(task: Task, split: Split, samples: int, seed: int) -> Tensor:
    """The ends of random pairs, about so many: of random rows hardly two would be a pair."""
    pairs = task.pairs(split)
    order = torch.randperm(len(pairs), generator=generator(seed, "rank"))
    ends = torch.stack([pairs.first[order], pairs.second[order]], dim=1).flatten()
    _, codes = torch.unique(ends, return_inverse=True)
    first_seen = torch.full((int(codes.max()) + 1,), len(ends))
    first_seen.scatter_reduce_(0, codes, torch.arange(len(ends)), "amin")
    new = torch.zeros(len(ends), dtype=torch.int64)
    new[first_seen] = 1
    enough = int((new.cumsum(0) <= samples).sum()) // 2 * 2
    rows: Tensor = torch.unique(ends[: max(enough, 2)])
    return rows


def _chosen(task: Task, rows: Tensor, samples: int, seed: int) -> Tensor:
    order = torch.randperm(len(rows), generator=generator(seed, "rank"))
    if task.kind != "classes":
        return order[:samples]
    # Every class in turn gives its next example until there are enough in proportion: sort by the
    # share of its class that an example completes.
    labels = task.targets[rows][order]
    counts = labels.bincount(minlength=len(task.classes))
    grouped = torch.argsort(labels, stable=True)
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(grouped)
    place[grouped] = torch.arange(len(grouped)) - starts[labels[grouped]]
    share = (place + 0.5) / counts[labels]
    return order[torch.argsort(share, stable=True)[:samples]]
