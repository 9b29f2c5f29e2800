"""Images as rows in the units a source may have meant, and the labels beside them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dovetail.tasks.load import load_task

UNITS = ("pixels", "centred pixels", "0 to 1", "0 to 1, centred", "standardised")
"""Centred and standardised is each pixel for itself; a pixel that never changes is zero."""


@dataclass(frozen=True, eq=False)
class Images:
    """Rows ``x [n, d]``, one-hot ``y [n, k]`` and ``labels [n]``; the last ones are for testing."""

    x: Tensor
    y: Tensor
    labels: Tensor
    fitted: int
    """How many rows, from the first, are for fitting."""

    def scores(self, said: Tensor) -> dict[str, float]:
        """The percentage of outputs ``[n, k]`` with the right class the largest; squared errors."""
        right = (said.argmax(1) == self.labels).double()
        errors = (self.y - said).square().mean(1)
        found = {}
        for split, part in (("train", slice(self.fitted)), ("test", slice(self.fitted, None))):
            found[split] = 100 * float(right[part].mean())
            found[f"{split} error"] = float(errors[part].mean())
        return found


def images(name: str, units: str, *, choosing: bool = False, data: Path | None = None) -> Images:
    """A task's images; ``choosing`` fits on the training split and tests on the validation split.

    Otherwise both are fitted, as the source does, and the test split tests.
    """
    task = load_task(name, data=data)
    fitted = task.indices("train")
    tested = task.indices("validation" if choosing else "test")
    if not choosing:
        fitted = torch.cat([fitted, task.indices("validation")]).sort().values
    order = torch.cat([fitted, tested])
    x = _in_units(task.inputs[order].flatten(1).double(), len(fitted), units)
    labels = task.targets[order]
    return Images(x, one_hot(labels, task.outputs).double(), labels, len(fitted))


def _in_units(x: Tensor, fitted: int, units: str) -> Tensor:
    if units not in UNITS:
        raise ValueError(f"units are one of {', '.join(UNITS)}, not {units}")
    if units.startswith("0 to 1"):
        x = x / x.max()
    if units.endswith(("centred", "standardised")) or units.startswith("centred"):
        x = x - x[:fitted].mean(0)
    if units == "standardised":
        deviation = x[:fitted].std(0)
        x = x / torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    return x
