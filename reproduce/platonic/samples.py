"""Images drawn by a seed, as they are and scaled, and how often outputs for them are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from linearized.keeping import Found
from torch import Tensor

from dovetail.core.seeds import generator
from dovetail.tasks.arrays import as_float
from dovetail.tasks.load import load_task
from dovetail.tasks.splits import Split

VALIDATION, BLOCK = 2000, 2000


@dataclass(frozen=True, eq=False)
class Images:
    """Of one seed: images ``[n, h, w]`` from 0 to 1 and labels ``[n]`` of each split."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def splits(self) -> dict[str, tuple[Tensor, Tensor]]:
        """By name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}


def images(name: str, rows: int | None, seed: int) -> Images:
    task = load_task(name)
    found = []
    sizes: dict[Split, int | None] = {"train": rows, "validation": VALIDATION, "test": None}
    for split, most in sizes.items():
        inputs, labels = task.subset(split)
        draw = generator(seed if split == "train" else 0, "beyond", split)
        chosen = torch.randperm(len(labels), generator=draw)[:most]
        found.append((as_float(inputs[chosen, 0]).double(), labels[chosen]))
    return Images(*found)


@dataclass(frozen=True, eq=False)
class Scale:
    """Inputs as the estimators scale them: each centred, all divided by one number."""

    centre: Tensor
    deviation: float

    @classmethod
    def of(cls, x: Tensor) -> Scale:
        """From training rows ``[n, d]``."""
        centre = x.mean(0)
        return cls(centre, float((x - centre).square().mean().sqrt()))

    def __call__(self, x: Tensor) -> Tensor:
        """Rows, or images that become rows."""
        return (x.flatten(1) - self.centre) / self.deviation


def accuracies(given: Images, outputs: Callable[[Tensor], Tensor]) -> Found:
    """Of outputs for what the splits hold."""
    found = {}
    for split, (x, labels) in given.splits().items():
        if split != "train":
            right = torch.cat([outputs(part).argmax(1) for part in x.split(BLOCK)]) == labels
            found[split] = 100 * float(right.double().mean())
    return found
