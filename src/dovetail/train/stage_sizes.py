"""What stages of a training layer by layer hold: measured, and kept within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dovetail.core.errors import TrainingError
from dovetail.measure.forward import outputs_of
from dovetail.parts.part import Part
from dovetail.tasks.task import Task
from dovetail.train.around import (
    AT_ONCE,
    Around,
    Forward,
    at_once,
    best_so_far,
    held,
    plain_work,
    rows_bytes,
    saved,
)
from dovetail.train.budget import (
    Budget,
    bytes_of,
    floor_words,
    segments_within,
    smaller,
    stage_peak,
)
from dovetail.train.layerwise_record import ALL_AT_ONCE, CHECKPOINTING, OtherWay
from dovetail.train.link_costs import Network
from dovetail.train.loop import EpochSource
from dovetail.train.memory import Peak, optimiser_needs, peak_by_operations
from dovetail.train.options import Options
from dovetail.train.stages import Stage
from dovetail.train.supervision import Loss


@dataclass(frozen=True)
class Sized:
    """A stage as it will be trained.

    Attributes:
        stage: Made smaller where the budget asks for it.
        peak: Of a step; nothing where it could not be measured.
        room: Bytes that are left for features in memory; nothing without a budget.
        free: Bytes that are left once it is trained; nothing without a budget.
        at_once: How many examples go forwards at a time between steps.
        fits: Whether it keeps the budget.
    """

    stage: Stage
    peak: Peak | None = None
    room: int | None = None
    free: int | None = None
    at_once: int = AT_ONCE
    fits: bool = True


@dataclass(frozen=True)
class Holding:
    """What a run holds besides the stage that is trained.

    Attributes:
        keep: Where features are kept, as of the trainer.
        grows: Whether the best network so far is remembered.
        overlaps: Whether later stages train layers of earlier ones.
        robin: Whether all stages take turns, each with an optimiser that stays.
    """

    keep: str = "none"
    grows: bool = False
    overlaps: bool = False
    robin: bool = False


def sized(
    stages: Sequence[Stage],
    whole: Part,
    task: Task,
    loss: Loss,
    options: Sequence[Options],
    budget: Budget | None,
    batches: EpochSource,
    holding: Holding,
    *,
    strict: bool = True,
) -> tuple[list[Sized], tuple[OtherWay, ...]]:
    """Measure every stage, make it smaller where a budget asks for it; and what others would take.

    A step is tried with tensors that have a size and no values.  Without a budget a network that
    cannot be measured is trained all the same.

    Raises:
        TrainingError: Where a stage cannot be small enough, if ``strict``; of several the one with
            the highest floor, and the layer that sets it.
    """
    around = Around.of(batches, task, loss)
    batch = around.batch[0].to(whole.device), around.batch[1].to(whole.device)

    def step_with(network: Network) -> Callable[[Any], Tensor]:
        return lambda batch: loss(network(batch[0]), batch[1])

    try:
        work, _ = plain_work(whole.module, step_with, around, options[0])
        full = peak_by_operations(work).bytes
        allowed = None if budget is None else bytes_of(budget, full)
        made: list[Sized] = []
        others = [_Other.of(*each, holding) for each in zip(stages, options, strict=True)]
        for number, (stage, own) in enumerate(zip(stages, options, strict=True)):
            beside = around.order + _besides(stage, others, whole, number, holding)
            kept = 0
            if budget is not None and holding.keep == "memory":
                kept = _features(stage, task)
            made.append(_fitted(stage, around, batch, loss, own, beside, kept, allowed, holding))
            if made[-1].stage is not stage:
                others[number] = _Other.of(made[-1].stage, own, holding)
    except (RuntimeError, TypeError, AttributeError):
        if budget is not None:
            raise
        return [Sized(stage) for stage in stages], ()
    if strict and allowed is not None:
        _refuse(made, allowed, holding)
    beside_ = [OtherWay(ALL_AT_ONCE, full)]
    if strict and budget is not None:
        least = segments_within(work, step_with, None).peak
        beside_.append(OtherWay(CHECKPOINTING, least.bytes))
    return made, tuple(beside_)


def _fitted(
    stage: Stage,
    around: Around,
    batch: tuple[Tensor, Tensor],
    loss: Loss,
    options: Options,
    beside: int,
    kept: int,
    allowed: int | None,
    holding: Holding,
) -> Sized:
    """One stage within the budget, if there is one, and what is left for features."""
    network = stage.build()
    piece = batch[0][: -(-len(batch[0]) // stage.micro)]
    forward = Forward.of_module(nn.Sequential(stage.below.module, network), piece)
    moments = around.moments(forward, saved(options, network))
    beside += best_so_far(options, network) + kept
    if allowed is None:
        return Sized(stage, stage_peak(stage, batch, loss, options, beside, moments))
    stage, peak = smaller(stage, allowed, batch, loss, options, beside=beside, moments=moments)
    return Sized(
        stage,
        peak,
        room=kept + allowed - peak.bytes,
        free=allowed - peak.parameters + kept - holding.robin * peak.optimiser,
        at_once=at_once(peak, around, forward),
        fits=peak.bytes <= allowed,
    )


def _refuse(made: Sequence[Sized], allowed: int, holding: Holding) -> None:
    above = [each for each in made if not each.fits and each.peak is not None]
    if above:
        worst = max(above, key=lambda each: each.peak.bytes if each.peak else 0)
        assert worst.peak is not None
        raise TrainingError(
            floor_words(worst.stage, worst.peak, allowed, features=holding.keep == "memory")
        )


@dataclass(frozen=True)
class _Other:
    """What a stage leaves behind, or brings, while another is trained."""

    decision: int = 0
    state: int = 0

    @classmethod
    def of(cls, stage: Stage, options: Options, holding: Holding) -> _Other:
        if not (holding.grows or holding.robin):
            return cls()
        network = stage.build()
        weights = [p for p in network.parameters() if p.requires_grad]
        state = optimiser_needs(options, weights)[0] if holding.robin else 0
        return cls(0 if stage.decision is None else held(network.decision), state)


def _besides(
    stage: Stage, others: Sequence[_Other], whole: Part, number: int, holding: Holding
) -> int:
    """What is there of the network above a stage, and of the other stages."""
    beside = held(whole.module) - held(stage.below.module, stage.layers, stage.head)
    rest = [*others[:number], *others[number + 1 :]]
    if holding.grows:
        beside += max((each.decision for each in rest), default=0)
        beside += holding.overlaps * held(whole.module)
    return beside + holding.robin * sum(each.decision + each.state for each in rest)


def _features(stage: Stage, task: Task) -> int:
    """What a stage is fed, kept in memory for all examples that are trained or validated on."""
    one = outputs_of(stage.below, task.inputs, rows=task.indices("train")[:1])
    rows = task.size("train") + task.size("validation")
    return rows_bytes(one.shape[1:], rows, one.element_size())


def words_of(stage: Stage) -> str:
    """What a stage is trained under, and how it is made smaller."""
    words = [str(stage.decision or "own head")]
    words += [f"batches in {stage.micro} pieces"] * (stage.micro > 1)
    words += ["activations run again"] * stage.checkpoint
    return ", ".join(words)


class InPieces(nn.Module):
    """Frozen layers that a batch goes through in as many pieces as its stage trains it in."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.layers, self._stage = stage.below.module, stage

    def forward(self, x: Tensor) -> Tensor:
        """What the layers give for ``[n, ...]``."""
        return self._stage.through(self.layers, x)
