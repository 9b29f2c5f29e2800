"""The tour's chapter about closed form: a network that is solved for, without a single step."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch

from dovetail.closed_form.classifier import PlatonicClassifier
from dovetail.closed_form.fit_record import PlatonicFit
from dovetail.core.views import Table, Text, View
from dovetail.parts.part import Part
from dovetail.running.evaluate import evaluate
from dovetail.tasks.task import Task

__all__ = ["Solved", "solved_for"]

HIDDEN = (256, 64)


class Solved(NamedTuple):
    """A network, how it was fitted, what it reached and how long that took."""

    part: Part
    record: PlatonicFit
    accuracy: float
    seconds: float

    def view(self, trained: float, trained_seconds: float) -> View:
        """Beside a network that was trained by steps."""
        return (
            Table(
                ("network", "made by", "seconds", "test accuracy"),
                (
                    ("perceptron", "least squares, layer by layer", self.seconds, self.accuracy),
                    ("lenet5", "gradient steps", trained_seconds, trained),
                ),
                ("", "", ".2f", ".1%"),
            ),
            Text("No rate, no epochs: each layer is one least-squares problem.", style="note"),
        )


def solved_for(task: Task, *, seed: int) -> Solved:
    """Solve for a perceptron on a task's classes, and measure it."""
    inputs, targets = task.subset("train")
    names = np.asarray(task.classes, dtype=object)[targets.numpy()]
    began = time.perf_counter()
    estimator = PlatonicClassifier(HIDDEN, random_state=seed).fit(inputs, names)
    seconds = time.perf_counter() - began
    part = estimator.to_part(dtype=torch.float32)
    return Solved(part, estimator.record_, evaluate(part, task).accuracy, seconds)
