"""Repairs by training: a map between front and head, or the front itself.

What is fitted is fitted on the training split.  Where nothing is trained to the end, a few steps
are timed, and what follows from them is called expected.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

import torch

from dovetail.core.errors import ContractError
from dovetail.parts.contract import shown_shape
from dovetail.parts.joining import join
from dovetail.parts.modes import evaluating
from dovetail.parts.norms import has_batch_norm
from dovetail.parts.part import Part
from dovetail.parts.stitching import seam
from dovetail.reuse.attempts import (
    Attempt,
    command_for,
    judged,
    price_of_training,
    seconds_of,
    why_not,
)
from dovetail.reuse.fit_report import Repair
from dovetail.reuse.question import Question, learnable
from dovetail.reuse.reasons import common_classes
from dovetail.reuse.replacement import replace_front
from dovetail.shelf.places import stem_of
from dovetail.tasks.task import Task
from dovetail.train.options import Options
from dovetail.train.stitch import HeadNorms, stitch

__all__ = ["head_norms", "retraining", "trained_stitch"]


def trained_stitch(question: Question) -> Attempt:
    """The map between front and head, trained; or a few of its steps, timed."""
    front, head = question.front, question.head
    norms = head_norms(head)
    repair = Repair(
        "trained-stitch",
        "Trains the map between front and head by the task's loss; both stay as they are.",
        "images with labels",
        why_not=why_not(lambda: seam(front.contract.gives, head.contract.takes)),
        norms=norms,
        python=f"dt.train.stitch(front, head, {question.learns_from}, "
        f'norms="{norms}", epochs={question.epochs})',
        command=command_for(question, f"--repair trained-stitch --epochs {question.epochs}"),
    )

    def measured(task: Task) -> Repair:
        kept = learnable(head, task, question.limit, seed=question.seed)
        if not question.measure:
            price = price_of_training(
                lambda some: stitch(front, head, some, norms=norms, epochs=2, show=False),
                kept,
                question.epochs,
                once=front,
            )
            said = f"Seconds expected: {price.guessed_by}; the accuracy is not known."
            return replace(repair, seconds=price.seconds, known_by=said)
        fit, seconds = seconds_of(
            lambda: stitch(
                front, head, kept, norms=norms, epochs=question.epochs, seed=question.seed
            )
        )
        images = f"{kept.size('train')} of {task.size('train')}"
        # What it was trained for, and no other: the head's norms as asked for, the front's stored.
        tail = join(fit.parts[0], head, norms=norms)
        return replace(
            judged(question, repair, tail, seconds, ("stored",)),
            norms=norms,
            known_by=f"Trained for {question.epochs} epochs on {images} training images.",
        )

    return Attempt(repair, measured)


def retraining(question: Question, trained: Repair) -> Attempt:
    """The front itself against the frozen head: never trained here, only priced.

    Its accuracy is a guess between what the trained stitch reaches, since a front can learn that
    map too, and what the reference reaches, for which the head was made.
    """
    front, head, epochs = question.front, question.head, Options().epochs
    repair = Repair(
        "retrain",
        "Trains a copy of the front against the frozen head, which stays as it is.",
        "images with labels, and time",
        why_not=why_not(lambda: _refuse_unlearnable(front, head)),
        python=f"dt.reuse.replace_front(front, head, {question.learns_from})",
        command=_replacing(question),
    )

    def measured(task: Task) -> Repair:
        kept = learnable(head, task)
        price = price_of_training(
            lambda some: replace_front(front, head, some, epochs=2, show=False), kept, epochs
        )
        said = f"Seconds expected: {price.guessed_by}; the accuracy "
        known = trained.accuracy if trained.applies else None
        bound = max(question.bound.values(), default=None)
        priced = replace(repair, seconds=price.seconds)
        if known is None:
            return replace(priced, known_by=f"{said}is not known.")
        if bound is None:
            said += f"is guessed to be no less than that of the trained stitch, {known:.1%}."
            return replace(priced, low=known, known_by=said)
        low, high = min(known, bound), max(known, bound)
        said += (
            f"is guessed, not measured: the middle between the trained stitch ({known:.1%}) and "
            f"the reference with its own head ({bound:.1%})."
        )
        return replace(priced, accuracy=(low + high) / 2, low=low, high=high, known_by=said)

    return Attempt(repair, measured)


def _replacing(question: Question) -> str:
    """The command for a head that has a network's name; nothing for another."""
    front, head = question.names.get("front", "FRONT"), question.names.get("head", "HEAD")
    if stem_of(head) == head:
        return ""
    task = question.names.get("task", "TASK")
    if question.task is not None and question.learns_from != "task":
        task += f"[{','.join(common_classes(question.head, question.task))}]"
    return shlex.join(["dovetail", "reuse", "replace", stem_of(head), task, "--from", front])


def head_norms(head: Part) -> HeadNorms:
    """What a stitch is trained with: a head's own statistics are those of another front."""
    return "batch" if has_batch_norm(head.module) else "stored"


def _refuse_unlearnable(front: Part, head: Part) -> None:
    """Refuse what no training of a front could make fit; the rest its trainer refuses."""
    gives, takes = front.contract.gives, head.contract.takes
    if len(gives) != 1 or len(takes) != 1:
        raise ContractError("a front is trained where exactly one tensor crosses")
    if head.contract.classes is None:
        raise ContractError("the head does not name its classes: dt.adopt(module, classes=(...))")
    given, taken = gives[0].shape, takes[0].shape
    if given is None or taken is None or None in given:
        return
    if len(given) != len(taken):
        raise ContractError(f"{shown_shape(given)} cannot become {shown_shape(taken)}")
    shape = (taken[0] or given[0], *given[1:])
    try:
        with evaluating(head.module):
            head(torch.zeros(2, *(side or 1 for side in shape), device=head.device))
    except (RuntimeError, ValueError):
        raise ContractError(
            f"the head cannot take maps of {shown_shape(given[1:])}; cut where they have its size"
        ) from None
