"""The model that was chosen: calibrated, packed, and measured once on the test split."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dovetail.core.seeds import generator
from dovetail.core.views import Picture
from dovetail.measure.calibration import fit_temperature
from dovetail.measure.evaluate import confusion, measure
from dovetail.measure.intervals import share_interval
from dovetail.parts.heads import with_temperature
from dovetail.parts.part import Part
from dovetail.reuse.fitting_attempts import Done, outputs_for
from dovetail.reuse.fitting_record import ClassScore, Fitting
from dovetail.reuse.pack_agreement import ExpectedPoints
from dovetail.reuse.packing import pack_part
from dovetail.tasks.arrays import as_float
from dovetail.tasks.task import Task

PACKINGS = (3, 4, 6)
"""Bits beyond the entropy rule's, the fewest first."""

RESAMPLES = 1000
"""Of the test examples, for the interval of R²."""

THUMBNAILS, THUMB = 12, 96
"""Mistakes that are shown, and their longer side in pixels."""


def log_loss(done: Done, task: Task) -> float:
    """Of labels held out, with the temperature that suits them best."""
    targets = task.targets[done.rows]
    temperature = fit_temperature(done.outputs, targets, unknown=1.0)
    return measure(done.outputs / temperature, targets, task)["nll"]


def calibrated(chosen: Done, task: Task) -> tuple[Part, float | None]:
    """The model with the temperature of the least log loss on labels held out, where it has one."""
    if task.kind != "classes" or not len(chosen.rows):
        return chosen.part, None
    temperature = fit_temperature(chosen.outputs, task.targets[chosen.rows], unknown=1.0)
    return with_temperature(chosen.part, temperature), temperature


class Packed(NamedTuple):
    """A part, its bytes, and why it is not packed if it is not."""

    part: Part
    size: int
    why_not: str = ""


def packed(part: Part, task: Task, points: float) -> Packed:
    """The smallest of a few packings that costs no more than it may on validation.

    Of classes it is what packing is *expected* to cost (:mod:`dovetail.reuse.pack_agreement`):
    half a point cannot be counted on a hundred examples.
    """
    plain = plain_bytes(part)
    if points == 0:
        return Packed(part, plain, "nothing may be lost by it")
    if not task.size("validation"):
        return Packed(part, plain, "no validation split says what it would cost")
    lost, costs = _lost_points(part, task), 0.0
    for extra_bits in PACKINGS:
        smaller = pack_part(part, extra_bits=extra_bits)
        costs = lost(smaller.part)
        if costs <= points:
            return Packed(smaller.part, smaller.record.size)
    return Packed(
        part,
        plain,
        f"the gentlest packing would cost {costs:.2g} points of the {points:g} that it may",
    )


def _lost_points(part: Part, task: Task) -> Callable[[Part], float]:
    """How many points other weights cost on the validation split; of numbers, hundredths of R²."""
    if task.kind == "classes":
        expected = ExpectedPoints(part, task)
        return lambda other: float((expected(other.module.state_dict()) - expected.given).mean())
    rows = task.indices("validation")

    def r2(one: Part) -> float:
        return measure(outputs_for(one, task, rows), task.targets[rows], task)["r2"]

    before = r2(part)
    return lambda other: 100 * (before - r2(other))


def plain_bytes(part: Part) -> int:
    """Of its tensors as they are in memory."""
    return sum(tensor.nbytes for tensor in part.module.state_dict().values())


def measured(part: Part, task: Task, confidence: float, seed: int) -> Fitting:
    """The test split, looked at once."""
    rows = task.indices("test")
    outputs, targets = outputs_for(part, task, rows).double(), task.targets[rows]
    measures = measure(outputs, targets, task)
    about: dict[str, Any] = {"task": task.name, "network": "", "how": "", "n": len(rows)}
    about |= {"measures": measures, "confidence": confidence}
    if task.kind == "regression":
        low, high = _r2_interval(outputs, targets, confidence, seed)
        return Fitting(measure="r2", value=measures["r2"], low=low, high=high, **about)
    right = outputs.argmax(1) == targets
    low, high = share_interval(int(right.sum()), len(rows), confidence=confidence)
    counts = confusion(outputs.argmax(1), targets, len(task.classes))
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    return Fitting(
        measure="accuracy",
        value=measures["accuracy"],
        low=low,
        high=high,
        chance=1 / len(task.classes),
        classes=task.classes,
        confusion=tuple(tuple(row) for row in shares.tolist()),
        per_class=tuple(_class_scores(counts, task.classes)),
        mistakes=tuple(_mistakes(outputs, targets, rows, task)),
        **about,
    )


def _class_scores(counts: Tensor, classes: tuple[str, ...]) -> list[ClassScore]:
    scores = []
    for i, name in enumerate(classes):
        row = counts[i].clone()
        n, right = int(row.sum()), int(row[i])
        row[i] = 0
        taken_for = classes[int(row.argmax())] if int(row.max()) else ""
        scores.append(ClassScore(name, n, right / max(n, 1), taken_for))
    return scores


def _r2_interval(
    outputs: Tensor, targets: Tensor, confidence: float, seed: int
) -> tuple[float, float]:
    """Quantiles of R² over resamples of the examples."""
    y = targets.double().reshape(len(targets), -1)
    z = outputs.reshape(y.shape)
    picked = torch.randint(len(y), (RESAMPLES, len(y)), generator=generator(seed, "interval"))
    errors = (z - y).square().sum(1)[picked].mean(1)
    spread = torch.stack([(y[one] - y[one].mean(0)).square().sum(1).mean() for one in picked])
    values = 1 - errors / spread.clamp(min=1e-12)
    tail = (1 - confidence) / 2
    low, high = (float(values.quantile(share)) for share in (tail, 1 - tail))
    return low, high


def _mistakes(outputs: Tensor, targets: Tensor, rows: Tensor, task: Task) -> list[Picture]:
    """The images whose wrong class was given the most probability, small enough for a page."""
    if len(task.input_shape) != 3:
        return []
    shares = outputs.softmax(1)
    sure, said = shares.max(1)
    wrong = (said != targets).nonzero()[:, 0]
    worst = wrong[sure[wrong].argsort(descending=True, stable=True)][:THUMBNAILS]
    return [
        Picture(
            _thumbnail(task.inputs[rows[i]]),
            f"{task.classes[int(targets[i])]}, taken for {task.classes[int(said[i])]} "
            f"({float(sure[i]):.0%})",
        )
        for i in worst
    ]


def _thumbnail(image: Tensor) -> str:
    pixels = (as_float(image[None])[0].clamp(0, 1) * 255).round().byte().movedim(0, -1).numpy()
    shown = Image.fromarray(
        np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    )
    shown.thumbnail((THUMB, THUMB))
    file = io.BytesIO()
    shown.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()
