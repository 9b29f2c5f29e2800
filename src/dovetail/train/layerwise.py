r"""Training layer by layer: a network whose layers never are in memory all at once.

Of a network :math:`\psi_k \circ \dots \circ \psi_1`, layer :math:`i` is trained on its own, as
:math:`d_i \circ \psi_i` with a temporary decision block :math:`d_i`, on what the frozen layers
below give (the *feednet*):

.. math::
    \min_{\psi_i, d_i} \sum_n \ell\bigl(d_i(\psi_i(z_n)),\, y_n\bigr),
    \qquad z_n = (\psi_{i-1} \circ \dots \circ \psi_1)(x_n)

Then it is frozen, its decision block is dropped, and the next layer's turn comes.  The last stage
has the network's own head in place of a decision block.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

from torch import Tensor, nn

from dovetail.core.amounts import read_budget
from dovetail.core.errors import SettingsError, TaskError, argument
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import CutPoint
from dovetail.parts.part import Part, as_part
from dovetail.settings.train import Layerwise
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Task
from dovetail.train.budget import Budget
from dovetail.train.dropouts import Fading
from dovetail.train.features import GIB, NOWHERE, Keeping
from dovetail.train.filtering import Filter
from dovetail.train.fit import Fit, kept_epoch
from dovetail.train.frame import Course, Stages, trainable, try_once
from dovetail.train.growing import Growth
from dovetail.train.layers import turns_of, windows
from dovetail.train.layerwise_record import LayerwiseTraining, OtherWay, StageHistory
from dovetail.train.options import LoopOptions, Options, named
from dovetail.train.sifting import Sight
from dovetail.train.stage_looks import examples_for, looked_at
from dovetail.train.stage_plan import stage_points, stages_of
from dovetail.train.stage_sizes import Holding, InPieces, Sized, sized, words_of
from dovetail.train.stages import Stage, StageNetwork
from dovetail.train.supervision import (
    NATURAL,
    Loss,
    TargetScale,
    batches_behind,
    labelled_batches,
    loss_for,
    loss_words,
    target_scale,
    validation_behind,
)

_FEW, _STEEP, _GENTLE = 12, 1.2, 1.08
"""Of a transfer: up to so many stages rates and epochs grow by this factor, else by that."""

_TRANSFER: LoopOptions = {"optimiser": "adamw", "lr": 2e-4, "weight_decay": 5e-4, "epochs": 5}
"""What a transfer uses unless said: low rates, few epochs in the first layer."""


def layerwise(
    model: Part | nn.Module,
    task: Task,
    *,
    loss: str | Loss | None = None,
    at: str | CutPoint | Sequence[str | CutPoint] | None = None,
    segment: int = Layerwise.segment,
    overlap: int = Layerwise.overlap,
    order: str = Layerwise.order,
    rounds: int | None = None,
    keep: str = Layerwise.keep,
    keep_gib: float | None = None,
    forward_dropout: float = Layerwise.forward_dropout,
    forward_fade: float = Layerwise.forward_fade,
    backward_dropout: float = Layerwise.backward_dropout,
    lr_by_depth: float | None = None,
    decay_by_depth: float | None = None,
    epochs_by_depth: float | None = None,
    grow: int | None = None,
    decision_convs: int | None = None,
    decision_channels: int | None = None,
    decision_pool: int | None = None,
    memory_budget: Budget | None = None,
    augment: str | Augment | None = None,
    filter: str | Filter | None = None,
    preprocess: Preprocess | None = None,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> Fit:
    r"""Train a copy of ``model`` layer by layer, from the input up.

    Args:
        model: Its weights are the starting point; it is left as it is.
        task: Of kind classes, multilabel or regression.
        loss: As of :func:`end_to_end`.
        at: Where layers end; by default every layer or block with weights is one.  A layer without
            weights is joined to the next.
        segment: How many layers are trained at a time.
        overlap: How many of them were in the segment before as well.
        order: ``"up"``, each stage to its end; ``"round-robin"`` or ``"random-robin"``, in rounds
            that visit all stages, up or shuffled.
        rounds: How many; each stage's epochs are shared out among them.
        keep: What the frozen layers give is kept in ``"memory"``, on ``"disk"``, or is computed
            anew for every batch (``"none"``); ``"auto"``: in memory where it fits.  With
            ``augment`` nothing can be kept.
        keep_gib: The most to keep.
        forward_dropout: Of what enters a stage, :math:`p_0` in its first epoch.
        forward_fade: :math:`d`; epoch :math:`e`, from 0, has :math:`p_0 d^e`.
        backward_dropout: Of the gradient that the decision block sends back.
        lr_by_depth: Stage :math:`i`, from 0, has this factor's :math:`i`-th power on its rate.
        decay_by_depth: Likewise on the weight decay.
        epochs_by_depth: Likewise on the epochs.
        grow: Stop when so many stages brought no better validation accuracy.  The best stage's
            network is the result: its layers, and its decision block as the head.
        decision_convs: Of the decision blocks, see :class:`~dovetail.train.decision.Decision`.
        decision_channels: Likewise.
        decision_pool: Likewise.
        memory_budget: The most that a step of any stage may hold, as of :func:`end_to_end`: smaller
            decision blocks, activations that are computed twice, and batches in pieces are tried
            until what is measured is within it.
        augment: Such as ``"flip,shift:2"``.
        filter: Which rows to learn from, such as ``"features:10"``; see
            :class:`~dovetail.train.filtering.Filter`.
        preprocess: Default: the part's own, else standardisation by the training split.
        seed: Order of batches and turns, decision blocks, augmentation, dropout.
        options: See :class:`Options`; ``epochs`` are those of the first stage, ``patience`` is a
            stage's.  ``schedule="transfer"``: for a network that was trained before.

    Returns:
        The trained network, and the record, a row a stage.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> fit = layerwise(build("mlp", hidden=(64, 64)), load_task("digits"), epochs=5)
    >>> [stage.name for stage in fit.record.stages]
    ['layer1', 'layer2']
    >>> fit.record.final["validation accuracy"] > 0.9
    True
    """
    said = dict(locals())
    Layerwise.check({name: value for name, value in said.items() if name in Layerwise.declared})
    transfer = options.get("schedule") == "transfer"
    if transfer:
        options = {**_TRANSFER, **options, "schedule": "constant"}
    course = Course("layerwise", task, options, augment=augment, filter=filter, seed=seed)
    _refuse(course, order, grow, overlap, rounds, keep)
    if task.kind == "pairs":
        raise TaskError(f"{task.name!r} has pair labels only; layer by layer needs targets")
    start = as_part(model)
    whole = course.twin(start, task, preprocess)
    whole.module.eval()
    try_once(whole, task)
    task = course.filtered(task)
    points, joined = stage_points(whole, at)
    stages = Stages(course, whole, points)
    spans = windows(len(points), segment, overlap)
    notes = tuple(f"{name} has no weights: joined to the layer behind it." for name in joined)
    grows = (_STEEP if len(spans) <= _FEW else _GENTLE) if transfer else None
    factors = Factors(
        lr=lr_by_depth or grows or 0.8,
        decay=decay_by_depth or (1.0 if transfer else 1.15),
        epochs=epochs_by_depth or grows or 1.0,
    )
    sizes = {"convs": decision_convs, "channels": decision_channels, "pool": decision_pool}
    plan = stages_of(
        whole,
        task.outputs,
        points,
        modules=stages.modules,
        segment=segment,
        overlap=overlap,
        sizes=sizes,
        dropouts=(forward_dropout, forward_fade, backward_dropout),
        seed=seed,
    )
    own, scaled = loss_for(loss, task), loss is None
    options_of = factors.of(course.options, len(plan))
    size = course.options.batch_size
    drawn = labelled_batches(whole.contract, task, course.augment, size, seed, keeping=NOWHERE)
    holding = Holding(keep, grow is not None, overlap > 0, order != "up")
    made, others = sized(plan, whole, task, own, options_of, memory_budget, drawn, holding)
    course.identity["own_loss"] = None if loss is None else named(loss)
    course.settings |= {
        "loss": loss_words(loss, task),
        "at": list(points),
        "segment": segment,
        "overlap": overlap,
        "order": order,
        "rounds": rounds,
        "keep": keep,
        "keep_gib": keep_gib,
        "forward_dropout": forward_dropout,
        "forward_fade": forward_fade,
        "backward_dropout": backward_dropout,
        "by_depth": vars(factors),
        "grow": grow,
        "memory_budget": None if memory_budget is None else read_budget(memory_budget),
        "decisions": [words_of(each.stage) for each in made],
        "start_digest": start.digest,
    }
    limit = int((keep_gib or (16 if keep == "disk" else 1)) * GIB)
    file = course.options.checkpoint
    keeping = Keeping(keep, limit, None if file is None else Path(file).parent)
    if scaled and start.contract.kind == "regression" and start.origin.how == "train":
        target_scale(whole.module, task).unfold()

    examples = examples_for([each.stage for each in made], [each.free for each in made], task)
    growth = Growth(grow, overlaps=overlap > 0)
    works: dict[int, Work] = {}
    scales: dict[int, TargetScale] = {}
    histories: dict[int, StageHistory] = {}
    for number, until in turns_of([each.epochs for each in options_of], order, rounds, seed):
        one = made[number]
        if not trainable(one.stage.layers) and one.stage.decision is not None:
            continue
        if number not in works:
            works[number] = _begun(one, options_of[number], whole, task, scaled)
        each = works[number]
        here = replace(keeping, at_once=one.at_once)
        if one.room is not None and keep != "disk":
            here = replace(here, limit=min(limit, one.room))
        turn(course, stages, each, whole, task, own, here, until, alone=len(made) == 1)
        scales[number] = each.scale
        if each.history is not None:
            looks = looked_at(one.stage, task, seed, examples, one.at_once, one.free)
            histories[number] = replace(each.history, **looks.facts)
        stops = growth.stops(number, each.history, each.network.decision, whole)
        if order == "up":  # a decision block is gone before the next is there
            works.clear()
            scales = {n: scale for n, scale in scales.items() if n in (number, growth.number)}
        del each
        if stops:
            break
    sized_stages = [each.stage for each in made]
    return _result(
        course, start, whole, sized_stages, histories, growth, spans, points, notes, others, scales
    )


def _begun(one: Sized, options: Options, whole: Part, task: Task, scaled: bool) -> Work:
    """A stage whose turn comes for the first time."""
    network = one.stage.build()
    scale = NATURAL
    if scaled:
        module = whole.module if one.stage.decision is None else network.decision
        scale = target_scale(module, task)
    peak = None if one.peak is None else one.peak.bytes
    return Work(one.stage, options, network, scale, peak)


@dataclass(frozen=True)
class Factors:
    """What stage ``i`` has on its rate, decay and epochs: these factors' ``i``-th powers.

    >>> Factors(0.5, 2.0, 1.5).of(Options(lr=0.1, weight_decay=0.01, epochs=4), 2)[1].epochs
    6
    """

    lr: float
    decay: float
    epochs: float

    def of(self, options: Options, count: int) -> list[Options]:
        """The options of each stage."""
        return [
            replace(
                options,
                lr=options.lr * self.lr**i,
                weight_decay=options.weight_decay * self.decay**i,
                epochs=max(1, round(options.epochs * self.epochs**i)),
            )
            for i in range(count)
        ]


@dataclass
class Work:
    """A stage on its way: its options, its network, and what became of it so far."""

    stage: Stage
    options: Options
    network: StageNetwork
    scale: TargetScale
    peak: int | None
    history: StageHistory | None = None
    feeding: float = field(default=0.0)


def _refuse(
    course: Course, order: str, grow: int | None, overlap: int, rounds: int | None, keep: str
) -> None:
    """What contradicts itself."""
    robin = order != "up"
    for name, value, why in (
        ("grow", grow, "a stage is done before the next begins"),
        ("overlap", overlap, "no layer is in two segments"),
        ("patience", course.options.patience, "what enters a layer does not change under it"),
    ):
        if robin and value:
            raise SettingsError(
                f"{argument(name)} goes with {argument('order', 'up')} alone, where {why}"
            )
    if rounds is not None and not robin:
        raise SettingsError(f"{argument('rounds')} goes with {argument('order', 'round-robin')}")
    if course.augment is not None and keep in ("memory", "disk"):
        raise SettingsError(
            f"with {argument('augment')} every epoch has its own inputs, so what frozen layers "
            f"give cannot be kept; say {argument('keep', 'none')}"
        )


def turn(
    course: Course,
    stages: Stages,
    work: Work,
    whole: Part,
    task: Task,
    loss: Loss,
    keeping: Keeping,
    until: int,
    *,
    alone: bool,
) -> None:
    """Train a stage until so many of its epochs are done, on what is below it now."""
    stage, network, scale = work.stage, work.network, work.scale
    seed = course.seed if alone else stages.seed_of(stage.name)
    stage.below.module.eval()
    before = stage.below
    if stage.micro > 1:
        before = before.changed(module=InPieces(stage).eval())
    began = time.perf_counter()
    batches = batches_behind(
        before, task, course.augment, work.options.batch_size, seed, keeping=keeping
    )
    through = whole.changed(module=nn.Sequential(stage.below.module, network))
    left = replace(keeping, limit=keeping.limit - batches.kept_bytes)
    validate = validation_behind(
        stage.below, Part(network), through, task, loss, scale, keeping=left
    )
    work.feeding += time.perf_counter() - began

    def step(batch: tuple[Tensor, Tensor]) -> Tensor:
        x, targets = (tensor.to(course.device) for tensor in batch)
        return stage.loss(network, x, scale.standard(targets), loss)

    sight = Sight(
        network,
        lambda y, targets: loss(y, scale.standard(targets)),
        flat=isinstance(stage.below.module, nn.Identity),
    )
    targets = task.targets.index_select(0, task.indices("train"))
    fading = Fading(batches, network.dropout)
    sifted = course.sifted(batches, targets, sight, source=fading, size=work.options.batch_size)
    told = stages.run(
        stage.name,
        course.settings["loss"],
        network,
        sifted,
        step,
        validate,
        work.options,
        seed=seed,
        until=until,
        keep=True,
    )
    kept = 0 if keeping.keep == "disk" else keeping.limit - left.limit
    del batches, fading, sifted, validate  # what was kept is gone before anything is measured
    work.history = StageHistory(
        stage.name,
        (),
        words_of(stage),
        told.rows,
        kept_epoch(told.rows, work.options.patience),
        work.feeding,
        peak_bytes=work.peak,
        kept_bytes=kept,
    )


def _result(
    course: Course,
    start: Part,
    whole: Part,
    plan: Sequence[Stage],
    trained: Mapping[int, StageHistory],
    growth: Growth,
    spans: Sequence[tuple[int, int]],
    points: Sequence[str],
    notes: tuple[str, ...],
    others: tuple[OtherWay, ...],
    scales: Mapping[int, TargetScale],
) -> Fit:
    """The network that was trained, whole or as far as it grew, and the record."""
    histories = []
    for number, (stage, (first, end)) in enumerate(zip(plan, spans, strict=True)):
        ends = (*points[first:end], *(("head",) if stage.decision is None else ()))
        if number in trained:
            histories.append(replace(trained[number], layers=ends))
        elif not growth.stopped:
            histories.append(StageHistory(stage.name, ends, "frozen"))
    taken = len(plan) if growth.number < 0 else growth.number + 1
    part = whole
    if taken < len(plan):
        place = points[spans[taken - 1][1] - 1]
        notes += (growth.note(histories, taken, place),)
        part = growth.shallower(whole, place, plan[taken - 1])
    scales[taken - 1].fold()
    record = LayerwiseTraining(
        part=part.described,
        task=course.tasks[0].name,
        stages=tuple(histories),
        taken=min(taken, len(histories)),
        full_bytes=others[0].peak_bytes if others else None,
        others=others,
        notes=notes,
        settings=course.settings,
    )
    return Fit((course.finished(part, [start], record.final),), record)
