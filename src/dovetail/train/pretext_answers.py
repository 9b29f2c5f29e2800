"""Images without their labels, and how well a network answers a pretext's questions about them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dovetail.core.errors import ContractError, SettingsError, TaskError, first_line
from dovetail.core.seeds import generator
from dovetail.measure.joined import random_batches
from dovetail.measure.preprocess import prepare
from dovetail.objectives.contrast import Views
from dovetail.objectives.pretexts import Pretext
from dovetail.parts.modes import evaluating
from dovetail.parts.part import Part
from dovetail.tasks.task import Task
from dovetail.train.pretext_record import SOLVED

__all__ = [
    "chance_of",
    "pretext_validation",
    "refuse_other_answers",
    "refuse_unanswerable",
    "without_labels",
]


def without_labels(task: Task | Tensor) -> Task:
    """The same images in the same splits, with a target of zero each; the targets are not read.

    Of a tensor a tenth validates.

    >>> without_labels(torch.rand(20, 1, 8, 8))
    Task('images', regression to 1, 20 images 1×8×8, train 18 / validation 2 / test 0)
    """
    if isinstance(task, Task):
        blank = torch.zeros(len(task.inputs))
        return task.derived(task.name, kind="regression", targets=blank, classes=())
    if not isinstance(task, Tensor) or task.ndim == 0:
        raise SettingsError(f"expected a Task or a tensor of images, got {type(task).__name__}")
    blank = torch.zeros(len(task))
    return Task(task, blank, kind="regression", name="images", split=(0.9, 0.1, 0.0))


def refuse_other_answers(pretext: Pretext, head: Part) -> None:
    """Refuse a head that says, by its outputs' names or its origin, that it answers another."""
    told, asked = head.contract.classes, pretext.answers
    before = head.origin.settings.get("pretext")
    another = isinstance(before, dict) and before.get("name") != pretext.name
    if another or (told is not None and told != asked):
        raise ContractError(
            f"the head {head.described!r} answers {_listed(told)}, {pretext.name} asks for "
            f"{_listed(asked)}; give the pretext that it was trained for"
        )


def _listed(answers: tuple[str, ...] | None) -> str:
    if answers is None:
        return "with an embedding"
    return ", ".join(answers[:6]) + (f" and {len(answers) - 6} more" if len(answers) > 6 else "")


def refuse_unanswerable(pretext: Pretext, asked: Part, images: Task, batch_size: int) -> None:
    """Fail before the first epoch when network, pretext and images do not go together."""
    rows = images.indices("train")
    few = prepare(images.inputs[rows[:2]], asked.contract).to(asked.device)
    pretext.check(tuple(few.shape[1:]))
    if isinstance(pretext, Views) and min(batch_size, len(rows)) < 2:
        raise TaskError(
            "views of one image alone have nothing to be told from; give at least two images, and "
            "batch_size=2 or more"
        )
    views, targets = pretext.views(few, generator(0, "try once"))
    try:
        with evaluating(asked.module):
            outputs = asked(views)
    except (RuntimeError, ValueError) as error:
        raise ContractError(
            f"views of shape {list(views.shape[1:])} do not go through the network: "
            f"{first_line(error)}"
        ) from None
    if outputs.shape != (len(targets), pretext.outputs):
        raise ContractError(
            f"the head gives {list(outputs.shape[1:])} numbers a view, {pretext.name} needs "
            f"{pretext.outputs}; give the pretext that the head was trained for"
        )


def pretext_validation(
    pretext: Pretext, asked: Part, images: Task, batch_size: int, seed: int
) -> Callable[[], dict[str, float]] | None:
    """Loss and share of right answers on the validation split, each time on the same views.

    All views of an image are in one batch, as in training: batch statistics are those of the mix.
    """
    batches = _validation_batches(images, batch_size)
    if not batches:
        return None

    def validate() -> dict[str, float]:
        draw = generator(seed, "validation views")
        loss, solved, count = 0.0, 0.0, 0
        with evaluating(asked.module):
            for rows in batches:
                inputs = prepare(images.inputs[rows], asked.contract).to(asked.device)
                views, targets = pretext.views(inputs, draw)
                outputs = asked(views)
                loss += float(pretext.loss(outputs, targets)) * len(views)
                solved += pretext.solved(outputs, targets) * len(views)
                count += len(views)
        return {"validation loss": loss / count, SOLVED: solved / count}

    return validate


def chance_of(pretext: Pretext, images: Task, batch_size: int) -> float:
    """What guessing reaches on the validation split; of views it depends on their rivals."""
    sizes = [len(rows) for rows in _validation_batches(images, batch_size)]
    if not isinstance(pretext, Views) or not sizes:
        return pretext.chance
    return sum(pretext.chance_among(size) * size for size in sizes) / sum(sizes)


def _validation_batches(images: Task, batch_size: int) -> tuple[Tensor, ...]:
    """The rows of the validation split, mixed, in batches of like size: none is left to itself."""
    rows = images.indices("validation")
    if len(rows) == 0:
        return ()
    return torch.cat(random_batches(rows, 0)).tensor_split(math.ceil(len(rows) / batch_size))
