"""Data, networks and kept runs of the experiments on released networks."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dovetail as dt
from dovetail.core.seeds import generator

Run = dict[str, Any]

VALIDATION, TEST = 400, 800
"""Images of those splits, the same for every draw."""


@functools.cache
def task_of(name: str, train: int, draw: int) -> dt.Task:
    """A set with a draw of training images; draws share none, nor do they change the other splits.

    Of ``draw`` -1 all the draws 0 to 2 together.
    """
    task = dt.load_task(name)
    rows = {split: _mixed(task, split) for split in ("train", "validation", "test")}
    mine = slice(0, 3 * train) if draw < 0 else slice(draw * train, (draw + 1) * train)
    chosen = {
        "train": rows["train"][mine].sort().values,
        "validation": rows["validation"][:VALIDATION].sort().values,
        "test": rows["test"][:TEST].sort().values,
    }
    return task.derived(task.name, indices=chosen)


def _mixed(task: dt.Task, split: Any) -> Tensor:
    rows = task.indices(split)
    return rows[torch.randperm(len(rows), generator=generator(0, "real", split))]


@functools.cache
def released(network: str, size: int) -> dt.Part:
    return dt.adopt(network, args={"size": size})


class Kept:
    """Runs on disk, a line each: what is there is not run again."""

    def __init__(self, file: Path, words: Sequence[str]) -> None:
        self.file, self.words = file, tuple(words)
        lines = file.read_text().splitlines() if file.exists() else []
        self.runs = {self._key(one): one for one in map(json.loads, lines)}

    def _key(self, one: Run) -> tuple[Any, ...]:
        return tuple(one[word] for word in self.words)

    def find(self, *key: Any) -> Run | None:
        """One run, if it is kept."""
        return self.runs.get(key)

    def add(self, one: Run) -> Run:
        """Keep a run, at once."""
        self.runs[self._key(one)] = one
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as file:
            file.write(json.dumps(one) + "\n")
        print(json.dumps(one), flush=True)
        return one


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def spread(values: Sequence[float]) -> float:
    """The standard deviation over draws, 0 of one."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def accuracy(logits: Tensor, targets: Tensor) -> float:
    return float((logits.argmax(1) == targets).double().mean())
