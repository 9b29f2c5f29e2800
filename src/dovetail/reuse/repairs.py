"""Repairs between a front and a head: each is an attempt, tried and judged on one task.

Without training: recalibrated norms, an adapter, least squares, a chain of the shelf.  They look at
images alone; labels serve to judge the outcome.

By training: a map between front and head, or the front itself.  What is fitted is fitted on the
training split.  Where nothing is trained to the end, a few steps are timed, and what follows from
them is called expected.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from dovetail.closed_form.stitch import stitch as solve_stitch
from dovetail.core.errors import ContractError, DovetailError, ShelfError, TaskError
from dovetail.measure.forward import outputs_of
from dovetail.measure.joined import calibrating_batches
from dovetail.parts.contract import shown_shape
from dovetail.parts.joining import adapter, join, seam
from dovetail.parts.norms import Statistics, has_batch_norm
from dovetail.parts.part import Part
from dovetail.reuse.fit_report import Repair, best_norms
from dovetail.reuse.question import NORMS, Question, common_classes, in_one_line, learnable
from dovetail.reuse.replacement import replace_front
from dovetail.shelf.names import stem_of
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task
from dovetail.train.fit import Fit
from dovetail.train.group_parts import why_stuck
from dovetail.train.options import Options
from dovetail.train.stitch import stitch as train_stitch

T = TypeVar("T")

TIMED = 4
"""So many steps an epoch are timed, twice: the first ones pay for warming up."""

BATCH = 64
"""Examples a step, as trainers take by default."""

NO_SHELF = "no shelf was given to look for parts between the two"


@dataclass(frozen=True)
class Attempt:
    """A repair without figures, and how to get them with a task."""

    repair: Repair
    price: Callable[[Task], Repair]


def outcome_of(attempt: Attempt, question: Question) -> Repair:
    """The repair with its figures; whatever of ours refuses says why it does not apply."""
    repair = attempt.repair
    if repair.why_not is not None:
        return replace(repair, applies=False)
    if question.priced is None:
        return repair
    try:
        return attempt.price(question.priced)
    except DovetailError as error:
        return replace(repair, applies=False, why_not=in_one_line(error))


def _judged(
    question: Question,
    repair: Repair,
    tail: Part,
    seconds: float,
    policies: tuple[Statistics, ...] = NORMS,
) -> Repair:
    """The repair with the accuracy of the front and ``tail``, under the best policy of norms."""
    reached = question.accuracies(question.front, tail, policies)
    norms = best_norms(reached)
    return replace(repair, kind="measured", accuracy=reached[norms], seconds=seconds, norms=norms)


def _why_not(attempt: Callable[[], object]) -> str | None:
    """What refuses an attempt, if anything does.

    >>> _why_not(lambda: 1) is None
    True
    """
    try:
        attempt()
    except ContractError as error:
        return in_one_line(error)
    return None


def _command_for(
    question: Question,
    options: str = "",
    *,
    through: Sequence[str] = (),
    reference: str | None = None,
    task: bool = True,
) -> str:
    """The repair on the command line; what has no name there is in capitals."""
    called = question.names.get
    words = ["dovetail", "join", called("front", "FRONT"), *through, called("head", "HEAD")]
    words += ["--task", called("task", "TASK")] if task else []
    words += options.split()
    words += [] if reference is None else ["--reference", reference]
    return shlex.join([*words, "--name", "NAME"])


class Price(NamedTuple):
    """Seconds, and how they were guessed."""

    seconds: float
    guessed_by: str


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """What some work gives, and how long it took.

    >>> value, seconds = _timed(lambda: sum(range(1000)))
    >>> value, seconds > 0
    (499500, True)
    """
    began = time.perf_counter()
    value = work()
    return value, time.perf_counter() - began


def price_of_training(
    train: Callable[[Task], Fit], task: Task, epochs: int, *, once: Part | None = None
) -> Price:
    """Train on a few batches, two epochs; then so long for every step that ``epochs`` take.

    Args:
        train: Two epochs on a task, whose record has rows with seconds.
        task: Its training split is what would be trained on.
        epochs: Of the training that is priced.
        once: A part that all training images pass through once before.
    """
    rows = task.indices("train")
    if len(rows) < 2:
        raise TaskError(f"{task.name!r} has no two training examples")
    some = rows[torch.linspace(0, len(rows) - 1, min(len(rows), TIMED * BATCH)).long()]
    fit = train(_only_these(task, some))
    a_step = min(row["seconds"] for row in fit.record.rows) / math.ceil(len(some) / BATCH)  # type: ignore[attr-defined]
    steps = epochs * math.ceil(len(rows) / BATCH)
    seconds = steps * a_step
    if once is not None:
        _, passing = _timed(lambda: outputs_of(once, task.inputs.index_select(0, some)))
        seconds += passing * len(rows) / len(some)
    said = f"{steps} steps ({epochs} epochs of {len(rows)} images) of {a_step:.2g} s each, as timed"
    return Price(seconds, said)


def _only_these(task: Task, rows: Tensor) -> Task:
    """A task with these rows to train on, and nothing that costs time beside."""
    none = rows[:0]
    indices: dict[Split, Tensor] = {"train": rows, "validation": none, "test": none}
    return task.derived(task.name, indices=indices)


def recalibration(question: Question) -> Attempt:
    """The batch norms' statistics, estimated behind this front."""
    front, head = question.front, question.head
    repair = Repair(
        "recalibrate",
        "Estimates what the batch norms store anew, behind this front.",
        "images without labels",
        why_not=_stored_statistics(question),
        norms="recalibrated",
        python='dt.join(front, head, norms="recalibrated", data=batches, force=True)',
        command=_command_for(question, "--repair recalibrate"),
    )

    def measured(task: Task) -> Repair:
        batches = calibrating_batches(front, task, question.limit, seed=question.seed)
        _, seconds = _timed(
            lambda: join(front, head, norms="recalibrated", data=batches, force=True)
        )
        if "recalibrated" not in question.as_it_is:
            raise ContractError(question.problem or "the outcome could not be measured")
        accuracy = question.as_it_is["recalibrated"]
        return replace(repair, kind="measured", accuracy=accuracy, seconds=seconds)

    return Attempt(repair, measured)


def adaptation(question: Question) -> Attempt:
    """An untrained map between other channel counts."""
    front, head = question.front, question.head
    repair = Repair(
        "adapter",
        "Joins other channel counts by an untrained 1×1 map: chance accuracy, and the start of a "
        "trained stitch.",
        "nothing; then training",
        why_not=_why_not(lambda: _refuse_needless(front, head)),
        python="dt.join(front, head, adapters=True)",
        command=_command_for(question, "--adapters", task=False),
    )

    def measured(task: Task) -> Repair:
        made, seconds = _timed(lambda: adapter(front, head, seed=question.seed))
        return _judged(question, repair, join(made, head, norms="stored"), seconds)

    return Attempt(repair, measured)


def solved_stitch(question: Question) -> Attempt:
    """The map from the front's space to the head's, by least squares."""
    front, head, reference = question.front, question.head, question.reference
    repair = Repair(
        "stitch",
        "Maps the front's space to the head's by least squares, onto a front that gives it.",
        "images without labels, and a reference: a front of the head's space",
        why_not=_why_not(lambda: seam(front.contract.gives, head.contract.takes))
        or (_no_reference(question) if reference is None else None),
        python="dt.join(front, dt.closed_form.stitch(front, reference, task), head)",
        command=_command_for(
            question, "--repair stitch", reference=question.names.get("reference", "REFERENCE")
        ),
    )

    def measured(task: Task) -> Repair:
        assert reference is not None
        made, seconds = _timed(
            lambda: solve_stitch(front, reference, task, limit=question.limit, seed=question.seed)
        )
        judged = _judged(question, repair, join(made, head, norms="stored"), seconds)
        explained, images = made.origin.measured["held-out r2"], made.origin.settings["images"]
        return replace(
            judged,
            known_by=f"It explains {explained:.1%} of the variance on the images that it was not "
            f"fitted to, one in five of {images}; no label was read.",
            command=f"{repair.command} --norms {judged.norms}",
        )

    return Attempt(repair, measured)


def chain(question: Question) -> Attempt:
    """The best way over parts that are on the shelf."""
    head, store = question.head, question.store
    between, obstacle = _way_between(question)
    repair = Repair(
        "chain",
        f"Joins the two through {' and '.join(between) or 'parts of the shelf'}.",
        "nothing: the parts are on the shelf" if between else "parts on the shelf",
        why_not=obstacle,
        python="dt.join(front, *map(shelf.get, shelf.path(front, head).between), head)",
        command=_command_for(question, through=between) if between else None,
    )

    def measured(task: Task) -> Repair:
        assert store is not None
        tail, seconds = _timed(lambda: join(*map(store.get, between), head, norms="stored"))
        return _judged(question, repair, tail, seconds)

    return Attempt(repair, measured)


def _way_between(question: Question) -> tuple[tuple[str, ...], str | None]:
    """References of the parts to put between, or why there are none."""
    if question.store is None:
        return (), NO_SHELF
    try:
        return question.store.path(question.front, question.head).between, None
    except ShelfError as error:
        return (), in_one_line(error).partition(" Make a stitch")[0]


def _stored_statistics(question: Question) -> str | None:
    if not any(has_batch_norm(part.module) for part in (question.front, question.head)):
        return "neither front nor head has a batch norm"
    return None if question.flows else "what the front gives cannot enter the head"


def _refuse_needless(front: Part, head: Part) -> None:
    if not front.contract.obstacles(head.contract):
        raise ContractError("the tensors fit as they are")
    adapter(front, head)


def _no_reference(question: Question) -> str:
    where = "no shelf was given" if question.store is None else "the shelf has none"
    return (
        "it needs a front of the space that the head takes, such as the head's own other half; "
        f"give that as the reference ({where})"
    )


def trained_stitch(question: Question) -> Attempt:
    """The map between front and head, trained; or a few of its steps, timed."""
    front, head, reference = question.front, question.head, question.reference
    onto = question.names.get("reference", "REFERENCE") if reference is not None else None
    begins = "" if onto is None else "start=dt.closed_form.stitch(front, reference, task), "
    repair = Repair(
        "trained-stitch",
        "Trains the map between front and head by the task's loss; both stay as they are."
        + ("" if onto is None else " It begins with the stitch of least squares."),
        "images with labels",
        why_not=_why_not(lambda: seam(front.contract.gives, head.contract.takes)),
        python=f"dt.train.stitch(front, head, {question.learns_from}, {begins}"
        f"epochs={question.epochs})",
        command=_command_for(
            question, f"--repair trained-stitch --epochs {question.epochs}", reference=onto
        ),
    )

    def begun(task: Task) -> Part | None:
        if reference is None:
            return None
        return solve_stitch(front, reference, task, limit=question.limit, seed=question.seed)

    def measured(task: Task) -> Repair:
        learnt = learnable(head, task, question.limit, seed=question.seed)
        if not question.measure:
            price = price_of_training(
                lambda some: train_stitch(front, head, some, epochs=2, show=False),
                learnt,
                question.epochs,
                once=front,
            )
            said = f"Seconds expected: {price.guessed_by}; the accuracy is not known."
            return replace(repair, seconds=price.seconds, known_by=said)
        fit, seconds = _timed(
            lambda: train_stitch(
                front, head, learnt, start=begun(task), epochs=question.epochs, seed=question.seed
            )
        )
        images = f"{learnt.size('train')} of {task.size('train')}"
        # What it was trained for, and no other: the head's norms as chosen, the front's stored.
        norms = fit.record.settings["norms"]
        tail = join(fit.parts[0], head, norms=norms)
        return replace(
            _judged(question, repair, tail, seconds, ("stored",)),
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
        why_not=_why_not(lambda: _refuse_unlearnable(front, head)),
        python=f"dt.reuse.replace_front(front, head, {question.learns_from})",
        command=_replacing(question),
    )

    def measured(task: Task) -> Repair:
        learnt = learnable(head, task)
        price = price_of_training(
            lambda some: replace_front(front, head, some, epochs=2, show=False), learnt, epochs
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


def _refuse_unlearnable(front: Part, head: Part) -> None:
    """Refuse what no training of a front could make fit; the rest its trainer refuses."""
    gives, takes = front.contract.gives, head.contract.takes
    if len(gives) != 1 or len(takes) != 1:
        raise ContractError("a front is trained where exactly one tensor crosses")
    if head.contract.classes is None:
        raise ContractError("the head does not name its classes: dt.adopt(module, classes=(...))")
    before, after = gives[0].shape, takes[0].shape
    if before is None or after is None or None in before:
        return
    if len(before) != len(after):
        raise ContractError(f"{shown_shape(before)} cannot become {shown_shape(after)}")
    shape = (after[0] or before[0], *before[1:])
    if why_stuck(head, shape) is not None:
        raise ContractError(
            f"the head cannot take maps of {shown_shape(before[1:])}; cut where they have its size"
        )
