"""What stages of a training layer by layer hold in a step: measured, and kept within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from dovetail.measure.forward import prepare
from dovetail.parts.part import Part
from dovetail.tasks.arrays import as_float
from dovetail.tasks.task import Task
from dovetail.train.budget import Budget, bytes_of, stage_peak, stage_within
from dovetail.train.memory import Work, peak_by_operations
from dovetail.train.options import Options
from dovetail.train.stages import Stage
from dovetail.train.supervision import Loss


class Sizes(NamedTuple):
    """The stages as they will be trained, the peak of each in bytes, and that of plain training."""

    stages: list[Stage]
    peaks: tuple[int | None, ...]
    full: int | None


def sized(
    stages: Sequence[Stage],
    whole: Part,
    task: Task,
    loss: Loss,
    options: Sequence[Options],
    budget: Budget | None,
) -> Sizes:
    """Measure every stage, and make it smaller where a budget asks for it.

    A step is tried with tensors that have a size and no values.  Without a budget a network that
    cannot be measured is trained all the same.

    Raises:
        TrainingError: Where no stage is small enough; it names the floor and the layer that sets
            it.
    """
    rows = task.indices("train")[: options[0].batch_size]
    inputs = prepare(as_float(task.inputs.index_select(0, rows)), whole.contract).to(whole.device)
    batch = inputs, task.targets.index_select(0, rows).to(whole.device)

    def step_of(module: nn.Module) -> Callable[[Any], Tensor]:
        return lambda batch: loss(module(batch[0]), batch[1])

    try:
        full = peak_by_operations(Work(whole.module, step_of, batch, options[0])).bytes
        every = _held(whole.module)
        made, peaks = [], []
        for stage, own in zip(stages, options, strict=True):
            beside = every - sum(map(_held, _parts(stage)))
            if budget is None:
                peak = stage_peak(stage, batch, loss, own, beside)
            else:
                allowed = bytes_of(budget, full)
                stage, peak = stage_within(stage, allowed, batch, loss, own, beside=beside)
            made.append(stage)
            peaks.append(peak.bytes)
    except (RuntimeError, TypeError, AttributeError):
        if budget is not None:
            raise
        return Sizes(list(stages), (None,) * len(stages), None)
    return Sizes(made, tuple(peaks), full)


def _parts(stage: Stage) -> list[nn.Module]:
    own = [stage.below.module, stage.layers]
    return own if stage.head is None else [*own, stage.head]


def _held(module: nn.Module) -> int:
    return sum(t.nbytes for t in (*module.parameters(), *module.buffers()))


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
