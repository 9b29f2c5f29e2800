"""Training a whole network on one task: the plain way, and the yardstick for all others."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor, nn

from dovetail.core.amounts import read_budget
from dovetail.core.errors import CutError, SettingsError, TaskError, argument
from dovetail.core.seeds import derived_seed
from dovetail.dist.averaging import AS_USUAL, Averaging
from dovetail.dist.group import my_share, rank_and_size
from dovetail.dist.wire import Packing
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import cut, output_point
from dovetail.parts.part import Part, as_part
from dovetail.settings.train import EndToEnd
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Task
from dovetail.train.around import AT_ONCE, bytes_in, run_within
from dovetail.train.budget import Budget
from dovetail.train.features import NOWHERE, Keeping
from dovetail.train.filtering import Filter
from dovetail.train.fit import Fit, Training
from dovetail.train.frame import Course, Step, try_once
from dovetail.train.link_costs import Network
from dovetail.train.options import LoopOptions, named
from dovetail.train.sifting import Sight
from dovetail.train.supervision import (
    NATURAL,
    Batches,
    Loss,
    Prepared,
    labelled_batches,
    loss_for,
    loss_words,
    target_scale,
    validation,
)
from dovetail.train.together import Together


def end_to_end(
    model: Part | nn.Module,
    task: Task,
    *,
    loss: str | Loss | None = None,
    augment: str | Augment | None = None,
    filter: str | Filter | None = None,
    preprocess: Preprocess | None = None,
    seed: int = 0,
    memory_budget: Budget | None = EndToEnd.memory_budget,
    average_every: int | None = None,
    packing: Packing = AS_USUAL,
    error_feedback: bool = True,
    **options: Unpack[LoopOptions],
) -> Fit:
    """Train a copy of ``model`` on the training split of ``task``.

    Args:
        model: Its weights are the starting point; it is left as it is.
        task: Of kind classes (cross-entropy), multilabel (binary cross-entropy) or regression
            (squared error).
        loss: Another loss of ``(outputs, targets)``, lower is better; or the name of one for
            classes: ``"cross-entropy"``, ``"mse"``, ``"hinge"``, ``"sparse-cross-entropy"``,
            ``"negative-correlation"``, ``"squared-error"``.
        augment: Such as ``"flip,shift:2"``.
        filter: Which rows to learn from, such as ``"features:10"``; see
            :class:`~dovetail.train.filtering.Filter`.
        preprocess: Default: the part's own, else standardisation by the training split.
        seed: Order of batches, augmentation, dropout.
        memory_budget: The most that the training may hold (see :mod:`dovetail.train.memory`): a
            float up to 1.0 is a share of what a step takes without a budget, a whole number or
            ``"400MB"`` is bytes.  As many activations as need be are computed twice instead of
            kept; the trained weights are the same to the last bit.
        average_every: Under ``torchrun``, with a process group: each process trains on its share of
            the rows, and after so many steps (and each epoch) all go on from the mean of their
            weights, exchanged as packed bytes.  One process alone trains as always.
        packing: How the weights are packed for that: arguments of ``pack.compress``, or ``None``
            to exchange them as they are.
        error_feedback: Send what rounding lost the next time.
        options: See :class:`Options`.

    Returns:
        The trained part, with the classes by name in its contract, and the record.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> fit = end_to_end(build("mlp", hidden=(32,)), load_task("digits"), epochs=5)
    >>> fit.record.final["validation accuracy"] > 0.9
    True
    """
    course = Course("end-to-end", task, options, augment=augment, filter=filter, seed=seed)
    if task.kind == "pairs":
        raise TaskError(f"{task.name!r} has pair labels only; end to end needs targets")
    start = as_part(model)
    part = course.twin(start, task, preprocess)
    try_once(part, task)
    task = course.filtered(task)
    own_loss, words = None if loss is None else named(loss), loss_words(loss, task)
    own = loss_for(loss, task)

    # A loss of one's own may be about natural units, such as counts; ours is about distances.
    scale = target_scale(part.module, task) if own_loss is None else NATURAL
    if start.contract.kind == "regression" and start.origin.how == "train":
        scale.unfold()

    course.identity["own_loss"] = own_loss
    course.settings |= {
        "loss": words,
        "start_digest": start.digest,
    }
    together, mine, rows_of_mine = None, seed, task.indices("train")
    if average_every is not None:
        _refuse_uneven(course)
        together = Together(Averaging(part.module, average_every, packing, error_feedback))
        mine, rows_of_mine = _own_seed(seed), _own_rows(rows_of_mine)
        course.settings |= {
            "processes": together.size,
            "average_every": average_every,
            "packing": together.averaging.record().settings["packing"],
            "error_feedback": error_feedback,
        }

    def batches_kept(keeping: Keeping | None) -> Batches | Prepared:
        size = course.options.batch_size
        return labelled_batches(
            part.contract, task, course.augment, size, mine, rows_of_mine, keeping
        )

    def descended(outputs: Tensor, targets: Tensor) -> Tensor:
        return own(outputs, scale.standard(targets))

    def step_with(network: Network) -> Step:
        return course.descent(network, descended)

    front = _front(part) if course.filter is not None else None
    sight = Sight(part.module, descended, front, flat=front is None)

    within = None
    if memory_budget is not None:
        course.settings["memory_budget"] = read_budget(memory_budget)
        beside = 0 if together is None else bytes_in(together.averaging.state_dict())
        within = run_within(
            part.module,
            step_with,
            batches_kept(NOWHERE),
            task,
            own,
            course.options,
            memory_budget,
            beside,
        )
    keeping = None if within is None else Keeping(limit=within.room)
    segments = None if within is None else within.segments
    rows = course.run(
        part.module,
        course.sifted(batches_kept(keeping), task.targets.index_select(0, rows_of_mine), sight),
        step_with(part.module if segments is None else segments.network(part.module)),
        validate=validation(
            part, task, own, scale, at_once=AT_ONCE if within is None else within.at_once
        ),
        seed=mine,
        together=together,
    )
    scale.fold()
    course.settings |= {} if segments is None else segments.facts
    record = Training(part=part.described, task=task.name, rows=rows, settings=course.settings)
    return Fit((course.finished(part, [start], record.final),), record)


def _front(part: Part) -> nn.Module | None:
    """What comes before the output layer; nothing where that is the whole network."""
    try:
        return cut(part, at=output_point(part.module))[0].module
    except CutError:
        return None


def _refuse_uneven(course: Course) -> None:
    """Refuse epochs that would not be equally long in all processes."""
    several = rank_and_size()[1] > 1
    if several and course.filter is not None and course.filter.by != "inputs":
        raise SettingsError(
            f"processes that average take equally many steps, and {argument('filter', ...)} "
            f"chooses rows while they train; {argument('filter', 'inputs:10')} chooses them before"
        )


def _own_rows(rows: Tensor) -> Tensor:
    """This process's share, as long as everybody's: all must take the same number of steps.

    Up to one row less than there are processes is left out.

    >>> import torch
    >>> _own_rows(torch.arange(5))
    tensor([0, 1, 2, 3, 4])
    """
    _, size = rank_and_size()
    if len(rows) < size:
        raise TaskError(f"{len(rows)} examples cannot be dealt to {size} processes; start fewer")
    return my_share(rows[: len(rows) // size * size])


def _own_seed(seed: int) -> int:
    """For what this process draws: dropout and augmentation differ between processes.

    >>> _own_seed(3)
    3
    """
    rank, _ = rank_and_size()
    return seed if rank == 0 else derived_seed(seed, "process", rank)
