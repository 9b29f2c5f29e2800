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

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from dovetail.core.amounts import read_budget
from dovetail.core.errors import CutError, SettingsError, TaskError, argument
from dovetail.measure.weights import stable_rank
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import CutPoint, cut
from dovetail.parts.joining import join
from dovetail.parts.part import Part, as_part
from dovetail.parts.splitting import Chain
from dovetail.settings.train import Layerwise
from dovetail.tasks.augment import Augment
from dovetail.tasks.task import Task
from dovetail.train.budget import Budget
from dovetail.train.decision import Decision
from dovetail.train.dropouts import Fading
from dovetail.train.features import GIB, Keeping
from dovetail.train.filtering import Filter
from dovetail.train.fit import Fit, kept_epoch
from dovetail.train.frame import Course, Stages, chosen_points, trainable, try_once
from dovetail.train.layers import layer_points, turns_of, windows, with_weights
from dovetail.train.layerwise_record import LayerwiseTraining, StageHistory
from dovetail.train.options import LoopOptions, Options, named
from dovetail.train.sifting import Sight
from dovetail.train.stage_sizes import InPieces, sized, words_of
from dovetail.train.stages import Stage, StageNetwork
from dovetail.train.supervision import (
    NATURAL,
    Loss,
    TargetScale,
    batches_behind,
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
    points, joined = (
        (layer_points(whole), ()) if at is None else with_weights(whole, chosen_points(whole, at))
    )
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
    dropouts = (forward_dropout, forward_fade, backward_dropout)
    plan = [stage_of(stages, span, len(points), task, sizes, dropouts) for span in spans]
    own, scaled = loss_for(loss, task), loss is None
    options_of = factors.of(course.options, len(plan))
    plan, peaks, full = sized(plan, whole, task, own, options_of, memory_budget)
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
        "decisions": [words_of(stage) for stage in plan],
        "start_digest": start.digest,
    }
    limit = int((keep_gib or (16 if keep == "disk" else 1)) * GIB)
    file = course.options.checkpoint
    keeping = Keeping(keep, limit, None if file is None else Path(file).parent)
    if scaled and start.contract.kind == "regression" and start.origin.how == "train":
        target_scale(whole.module, task).unfold()
    work = [
        Work(stage, own_options, stage.build(), NATURAL, peak)
        for stage, own_options, peak in zip(plan, options_of, peaks, strict=True)
    ]
    for each in work if scaled else ():
        module = whole.module if each.stage.decision is None else each.network.decision
        each.scale = target_scale(module, task)

    best = _Best(grow)
    for number, until in turns_of([w.options.epochs for w in work], order, rounds, seed):
        each = work[number]
        if not trainable(each.stage.layers) and each.stage.decision is not None:
            continue
        turn(course, stages, each, whole, task, own, keeping, until, alone=len(work) == 1)
        if best.stops(number, each, whole):
            break
    return _result(course, start, whole, work, best, spans, points, notes, full)


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


def stage_of(
    stages: Stages,
    span: tuple[int, int],
    layers: int,
    task: Task,
    sizes: dict[str, int | None],
    dropouts: tuple[float, float, float],
) -> Stage:
    """The stage that trains the layers of a span."""
    first, end = span
    name = f"layer{end}" if end - first == 1 else f"layers{first + 1}-{end}"
    last = end == layers
    shape = stages.modules[end - 1].contract.gives[0].shape
    if shape is None or None in shape:
        raise CutError(
            f"the shape of what {stages.points[end - 1]!r} gives is not known; give the network a "
            "contract, as dt.adopt(module, example=x)"
        )
    known = tuple(axis for axis in shape if axis is not None)
    forward, fade, backward = dropouts
    return Stage(
        name,
        Chain(*(module.module for module in stages.modules[first:end])),
        stages.before(first),
        known,
        task.outputs,
        None if last else Decision.for_shape(known, **sizes),
        stages.modules[-1].module if last else None,
        forward,
        fade,
        backward,
        seed=stages.seed_of(name),
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
    validate = validation_behind(
        stage.below, Part(network), through, task, loss, scale, keeping=keeping
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
    work.history = StageHistory(
        stage.name,
        (),
        words_of(stage),
        told.rows,
        kept_epoch(told.rows, work.options.patience),
        work.feeding,
        _mean_rank(stage.layers),
        work.peak,
    )


def _mean_rank(layers: nn.Module) -> float | None:
    ranks = [stable_rank(p.detach()) for p in layers.parameters() if p.ndim > 1]
    return fmean(ranks) if ranks else None


class _Best:
    """Whether to go on growing, and the state of the network where it was best."""

    def __init__(self, patience: int | None) -> None:
        self.patience, self.number = patience, -1
        self.value: float | None = None
        self.state: dict[str, Any] = {}
        self.stopped = False

    def stops(self, number: int, work: Work, whole: Part) -> bool:
        """Look at a stage that has been trained; whether it was one too many."""
        if self.patience is None or work.history is None:
            return False
        reached = work.history.reached
        if reached is None:
            raise SettingsError(
                f"{argument('grow')} needs a validation split to see whether a layer helped"
            )
        if self.value is None or reached > self.value:
            self.value, self.number = reached, number
            # A later segment may overlap these layers.
            self.state = copy.deepcopy(whole.module.state_dict())
        self.stopped = number - self.number >= self.patience
        return self.stopped


def _result(
    course: Course,
    start: Part,
    whole: Part,
    work: Sequence[Work],
    best: _Best,
    spans: Sequence[tuple[int, int]],
    points: Sequence[str],
    notes: tuple[str, ...],
    full: int | None,
) -> Fit:
    """The network that was trained, whole or as far as it grew, and the record."""
    histories = []
    for each, (first, end) in zip(work, spans, strict=True):
        ends = (*points[first:end], *(("head",) if each.stage.decision is None else ()))
        if each.history is not None:
            histories.append(replace(each.history, layers=ends))
        elif not best.stopped:
            histories.append(StageHistory(each.stage.name, ends, "frozen"))
    taken = len(work) if best.number < 0 else best.number + 1
    chosen = work[taken - 1]
    part = whole
    if taken < len(work):
        whole.module.load_state_dict(best.state)
        place = points[spans[taken - 1][1] - 1]
        notes += (_grown(best, histories, taken, place),)
        part = _with_decision(whole, place, chosen)
    chosen.scale.fold()
    record = LayerwiseTraining(
        part=part.described,
        task=course.tasks[0].name,
        stages=tuple(histories),
        taken=min(taken, len(histories)),
        full_bytes=full,
        notes=notes,
        settings=course.settings,
    )
    return Fit((course.finished(part, [start], record.final),), record)


def _grown(best: _Best, histories: Sequence[StageHistory], taken: int, place: str) -> str:
    after = len(histories) - taken
    return (
        f"Growth ended with {histories[taken - 1].name} (up to {place!r}): the {after} "
        f"stage{'s' * (after > 1)} after it brought nothing better on validation than "
        f"{best.value:.4g}. The network is the shallower one, with its decision block as the head."
    )


def _with_decision(whole: Part, place: str, work: Work) -> Part:
    """The layers up to a point, and the decision block that they were trained under."""
    front, back = cut(whole, at=place)
    decision = work.stage.decision
    if decision is None:
        raise AssertionError("only the last stage has none")
    made = decision.part(work.stage.shape, work.stage.outputs)
    contract = replace(back.contract, gives=whole.contract.gives)
    head = made.changed(module=work.network.decision, contract=contract)
    with torch.no_grad():
        joined = join(front, head, norms="stored")
    return joined.changed(contract=replace(whole.contract, gives=joined.contract.gives))
