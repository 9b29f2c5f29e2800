r"""Training a network in partitions that do not wait for each other's gradients.

A network :math:`\psi_P \circ \dots \circ \psi_1` is cut into a few partitions, each trained under a
decision block of its own; the last has the network's head.  Activations go up, nothing comes down.
The partitions are trained one after the other, in rounds, or all at once: then each takes its step
on what the one below hands on for the same batch (:mod:`dovetail.train.pipeline`), in a process
each or all in one, with the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from torch import Tensor, nn

from dovetail.core.amounts import read_speed
from dovetail.core.errors import CutError, SettingsError, TaskError, argument
from dovetail.dist.wire import HALVES, PACKED, Packing, check_packing, plainly
from dovetail.measure.forward import prepare
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import CutPoint
from dovetail.parts.part import Part, as_part
from dovetail.settings.train import Partitioned
from dovetail.tasks.arrays import as_float
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Task
from dovetail.train.at_once import history_of, in_processes, in_this_process
from dovetail.train.balance import TWO, enough_layers, layer_costs
from dovetail.train.checkpoint import Checkpoint, load_checkpoint
from dovetail.train.crew import Crew, crew_of, place_of
from dovetail.train.decision import Decision
from dovetail.train.features import Keeping
from dovetail.train.filtering import Filter
from dovetail.train.fit import Fit
from dovetail.train.frame import Course, Stages, stage_file, try_once
from dovetail.train.layers import turns_of
from dovetail.train.layerwise import Factors, Work, turn
from dovetail.train.options import LoopOptions, Options, named
from dovetail.train.partition_record import PartitionedTraining, PartitionHistory
from dovetail.train.stages import Stage
from dovetail.train.supervision import (
    NATURAL,
    Loss,
    loss_for,
    loss_words,
    target_scale,
)

AT_ONCE = "at-once"


def partitioned(
    model: Part | nn.Module,
    task: Task,
    *,
    partitions: int | None = None,
    parallel: bool = Partitioned.parallel,
    order: str = Partitioned.order,
    rounds: int | None = None,
    at: str | CutPoint | Sequence[str | CutPoint] | None = None,
    queue: int = Partitioned.queue,
    replicas: int = Partitioned.replicas,
    timeout: float = Partitioned.timeout,
    link: str | float | None = None,
    loss: str | Loss | None = None,
    lr_by_depth: float = Partitioned.lr_by_depth,
    decay_by_depth: float = Partitioned.decay_by_depth,
    decision_convs: int | None = None,
    decision_channels: int | None = None,
    decision_pool: int | None = None,
    packing: str | Packing = None,
    augment: str | Augment | None = None,
    filter: str | Filter | None = None,
    preprocess: Preprocess | None = None,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> Fit:
    r"""Train a copy of ``model`` in partitions, each under a decision block of its own.

    Args:
        model: Its weights are the starting point; it is left as it is.
        task: Of kind classes, multilabel or regression.
        partitions: How many; by default 2, or as many as ``at`` makes.
        parallel: Each in a process of its own, which ``torchrun`` started: as many processes as
            ``partitions`` times ``replicas``.  In one process the weights are the same.
        order: ``"at-once"``, each step on what the partition below hands on for the same batch;
            ``"up"``, each partition to its end before the next; ``"round-robin"``, in rounds.
        rounds: How many; each partition's epochs are shared out among them.
        at: Where partitions end, a point for each but the last; by default where the slowest
            partition takes least, by timing every layer.
        queue: How many batches wait at most to be sent, and as many to be used.
        replicas: Processes that share the rows of each batch in every partition.
        timeout: Seconds that a process waits for a sign of life of another.
        link: How fast processes reach each other, such as ``"100Mbit"``: cuts allow for it.
        loss: As of :func:`end_to_end`.
        lr_by_depth: Partition :math:`i`, from 0, has this factor's :math:`i`-th power on its rate.
        decay_by_depth: Likewise on the weight decay.
        decision_convs: Of the decision blocks, see :class:`~dovetail.train.decision.Decision`.
        decision_channels: Likewise.
        decision_pool: Likewise.
        packing: How activations are handed on: as they are; ``"float16"``; ``"packed"``, or
            arguments of ``pack.compress``.
        augment: Such as ``"flip,shift:2"``.
        filter: Which rows are handed on, such as ``"loss:0.25"``; see
            :class:`~dovetail.train.filtering.Filter`.  One by inputs chooses them before training.
        preprocess: Default: the part's own, else standardisation by the training split.
        seed: Order of batches, decision blocks, augmentation, dropout.
        options: See :class:`Options`; ``epochs`` are those of every partition.

    Returns:
        The trained network, the same in every process, and the record, a row a partition.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> fit = partitioned(build("mlp", hidden=(64, 64)), load_task("digits"), epochs=5)
    >>> [each.name for each in fit.record.partitions]
    ['partition1', 'partition2']
    >>> fit.record.final["validation accuracy"] > 0.9
    True
    """
    said = dict(locals())
    Partitioned.check({name: said[name] for name in said if name in Partitioned.declared})
    speed = None if link is None else read_speed(link)
    course = Course("partitioned", task, options, augment=augment, filter=filter, seed=seed)
    count = _count(partitions, at)
    _refuse(course.options, order, rounds, parallel, packing)
    if task.kind == "pairs":
        raise TaskError(f"{task.name!r} has pair labels only; partitions need targets")
    if replicas > 1 and course.filter is not None and course.filter.by != "inputs":
        raise SettingsError(
            f"replicas take equally many steps, and {argument('filter', ...)} chooses rows while "
            f"they train; {argument('filter', 'inputs:10')} chooses them before"
        )
    place = place_of(count, replicas, parallel=parallel)
    start = as_part(model)
    whole = course.twin(start, task, preprocess)
    whole.module.eval()
    try_once(whole, task)
    task = course.filtered(task)
    own, sizes = (
        loss_for(loss, task),
        {
            "convs": decision_convs,
            "channels": decision_channels,
            "pool": decision_pool,
        },
    )
    course.identity["own_loss"] = None if loss is None else named(loss)
    sent = {} if packing == PACKED else packing
    course.settings |= {
        "loss": loss_words(loss, task),
        "order": order,
        "rounds": rounds,
        "replicas": replicas,
        "by_depth": {"lr": lr_by_depth, "decay": decay_by_depth},
        "decision": sizes,
        "packing": plainly(sent),
        "start_digest": start.digest,
    }
    if loss is None and start.contract.kind == "regression" and start.origin.how == "train":
        target_scale(whole.module, task).unfold()
    with crew_of(place, timeout, parallel=parallel) as crew:
        points = _points(whole, task, own, course, count, at, sizes, speed, crew)
        course.settings["at"] = list(points)
        stages = Stages(course, whole, points)
        factors = Factors(lr_by_depth, decay_by_depth, 1.0).of(course.options, count)
        work = [
            _work(stages, number, whole, task, sizes, own_options, scaled=loss is None)
            for number, own_options in enumerate(factors)
        ]
        if order != AT_ONCE:
            histories = _in_turn(course, stages, work, whole, task, own, order, rounds)
        elif crew is None:
            histories = in_this_process(course, stages, work, whole, task, own, sent)
        else:
            histories = in_processes(course, stages, work, whole, task, own, sent, queue, crew)
    ends = (*points, "head")
    record = PartitionedTraining(
        part=whole.described,
        task=task.name,
        order=order,
        partitions=tuple(
            replace(each, layers=(end,)) for each, end in zip(histories, ends, strict=True)
        ),
        processes=place.partitions * place.replicas if parallel else 1,
        settings=course.settings,
    )
    work[-1].scale.fold()
    return Fit((course.finished(whole, [start], record.final),), record)


def _count(partitions: int | None, at: Any) -> int:
    """How many partitions."""
    if at is None:
        return partitions or TWO
    made = 1 + (1 if isinstance(at, str | CutPoint) else len(at))
    if partitions not in (None, made):
        raise SettingsError(
            f"{argument('at')} names {made - 1} point{'s' * (made > 2)}, which makes {made} "
            f"partitions, not {partitions}; leave out {argument('partitions')}"
        )
    return made


def _refuse(
    options: Options, order: str, rounds: int | None, parallel: bool, packing: str | Packing
) -> None:
    """What contradicts itself."""
    if rounds is not None and order != "round-robin":
        raise SettingsError(f"{argument('rounds')} goes with {argument('order', 'round-robin')}")
    if parallel and order != AT_ONCE:
        raise SettingsError(
            f"{argument('parallel', True)} trains all partitions at once; leave out "
            f"{argument('order', order)}, or train in one process"
        )
    if options.patience is not None and order != "up":
        raise SettingsError(
            f"{argument('patience')} goes with {argument('order', 'up')} alone: elsewhere what "
            "enters a partition changes under it, and its best epoch is not another's"
        )
    if packing is not None and order != AT_ONCE:
        raise SettingsError(
            f"{argument('packing')} is about what partitions hand on while they are trained at "
            f"once; leave it out with {argument('order', order)}"
        )
    if isinstance(packing, str):
        if packing not in (HALVES, PACKED):
            raise SettingsError(
                f"{argument('packing')} is {HALVES}, {PACKED}, or arguments of pack.compress by "
                f"name; got {packing!r}"
            )
    else:
        check_packing(packing)
        if packing and packing.get("gradients") is not None:
            raise SettingsError("activations have no gradients to choose bits by")


def _points(
    whole: Part,
    task: Task,
    loss: Loss,
    course: Course,
    count: int,
    at: Any,
    sizes: dict[str, int | None],
    link: float | None,
    crew: Crew | None,
) -> tuple[str, ...]:
    """Where partitions end: as said, as the checkpoint has it, or as process 0 finds best."""
    if at is not None:
        return tuple(map(str, (at,) if isinstance(at, str | CutPoint) else at))
    ends = enough_layers(whole, count)
    points: list[str] = []
    if crew is None or crew.rank == 0:
        file = stage_file(course.options.checkpoint, "cuts")
        identity = {**course.identity, **course.settings, "partitions": count, "link": link}
        kept = load_checkpoint(file, identity) if file and course.options.resume else None
        if kept is not None:
            points = [str(point) for point in kept.facts.get("points", ())]
        if len(points) != count - 1 or not set(points) <= set(ends):
            batch = _first_batch(whole, task, course)
            costs = layer_costs(whole, ends, batch, task.outputs, loss, course.options, sizes)
            points = [ends[below - 1] for below in costs.cut(count, link)]
            if file is not None:  # the clock may say another thing the next time
                Checkpoint(identity, {"points": points}, {}).save(file)
    return tuple(points if crew is None else crew.council.told(points)[0])


def _first_batch(whole: Part, task: Task, course: Course) -> tuple[Tensor, Tensor]:
    rows = task.indices("train")[: course.options.batch_size]
    inputs = prepare(as_float(task.inputs.index_select(0, rows)), whole.contract)
    return inputs.to(whole.device), task.targets.index_select(0, rows).to(whole.device)


def _work(
    stages: Stages,
    number: int,
    whole: Part,
    task: Task,
    sizes: dict[str, int | None],
    options: Options,
    *,
    scaled: bool,
) -> Work:
    """A partition before it is trained."""
    name, last = f"partition{number + 1}", number == len(stages.points)
    shape = stages.modules[number].contract.gives[0].shape
    if not last and (shape is None or None in shape):
        raise CutError(
            f"the shape of what {stages.points[number]!r} gives is not known; give the network a "
            "contract, as dt.adopt(module, example=x)"
        )
    known = tuple(axis for axis in shape or () if axis is not None)
    stage = Stage(
        name,
        stages.modules[number].module,
        stages.before(number),
        known,
        task.outputs,
        None if last else Decision.for_shape(known, **sizes),
        seed=stages.seed_of(name),
    )
    network = stage.build()
    trained = whole.module if last else network.decision
    return Work(stage, options, network, target_scale(trained, task) if scaled else NATURAL, None)


# One after the other ------------------------------------------------------------------------------


def _in_turn(
    course: Course,
    stages: Stages,
    work: Sequence[Work],
    whole: Part,
    task: Task,
    loss: Loss,
    order: str,
    rounds: int | None,
) -> list[PartitionHistory]:
    """Partition after partition, or in rounds, each above the ones below as they are."""
    for number, until in turns_of([w.options.epochs for w in work], order, rounds, course.seed):
        turn(course, stages, work[number], whole, task, loss, Keeping(), until, alone=False)
    made = []
    for each in work:
        assert each.history is not None
        rows = each.history.rows
        seen = len(rows) * task.size("train")
        made.append(
            history_of(
                each, rows, each.history.seconds + each.history.feeding, seen, each.history.kept
            )
        )
    return made
