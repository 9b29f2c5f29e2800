"""What a training holds beside its steps: the order of the rows, the next batch, validation.

A budget is kept by the whole run.  So what is there all the time is counted in every step, and how
many examples go forwards at a time between steps (for validation, or for features that are kept) is
chosen so that these moments hold no more than a step does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dovetail.measure.evaluate import measure
from dovetail.tasks.task import Task
from dovetail.train.budget import Budget, Segments, StepWith, bytes_of, segments_within
from dovetail.train.link_costs import link_seconds
from dovetail.train.loop import EpochSource
from dovetail.train.memory import (
    Live,
    Moments,
    Peak,
    Results,
    Step,
    Work,
    forward_bytes,
    optimiser_needs,
)
from dovetail.train.options import Options
from dovetail.train.supervision import Loss

AT_ONCE = 512
"""Examples that go forwards at a time where nothing is said about memory."""

FEWEST = 2
"""Of them, where memory is short."""


@dataclass(frozen=True)
class Around:
    """What a run holds beside its steps, in bytes.

    Attributes:
        batch: The first one, drawn as they all are.
        order: Of the rows of an epoch, all through it.
        draw: The most while a batch is drawn, that batch included.
        told: The outputs for the validation split, their loss and measures.
    """

    batch: tuple[Tensor, Tensor]
    order: int
    draw: int
    told: int

    @classmethod
    def of(cls, batches: EpochSource, task: Task, loss: Loss) -> Around:
        """Draw two batches and judge a validation split of zeros, and look."""
        live = Live()
        with Results(live):
            drawing = batches.epoch(0)
            batch = next(drawing)
            held = live.now
            size = sum(t.nbytes for t in batch)
            live.lap()
            again: Any = next(drawing, None)
            draw = max(live.lap() - held, 0) if again is not None else live.peak - held
            del again
        order = max(0, held - size) + 4 * len(batches) + 1024  # losses, and a few numbers more
        return cls((batch[0], batch[1]), order, size + draw, _judging(task, loss))

    @property
    def of_an_example(self) -> int:
        """What drawing takes, an example."""
        return -(-self.draw // len(self.batch[0]))

    def passing(self, forward: Forward, examples: int) -> int:
        """Validation, if so many examples go forwards at a time."""
        return self.told + examples * self.of_an_example + forward.of(examples)

    def moments(self, forward: Forward, saved: int = 0) -> Moments:
        """What comes beside steps, all that stays apart; of validation the least."""
        return Moments(self.draw, max(self.passing(forward, FEWEST), saved))


def _judging(task: Task, loss: Loss) -> int:
    rows = task.indices("validation")
    if len(rows) == 0:
        return 0
    live = Live()
    with torch.no_grad(), Results(live):
        outputs = torch.zeros(len(rows), task.outputs)
        targets = task.targets.index_select(0, rows)
        loss(outputs, targets)
        measure(outputs, targets, task)
    return live.peak


@dataclass(frozen=True)
class Forward:
    """The bytes that a network passes through without gradients, a straight line in the examples.

    >>> Forward(100, 10).of(5)
    140
    """

    one: int
    more: int

    @classmethod
    def of_module(cls, module: nn.Module, x: Tensor) -> Forward:
        """By a forward pass of a batch, and of two examples of it."""
        few = forward_bytes(module, x[:2])
        if len(x) <= 2:
            return cls(few, few)
        more = -(-max(0, forward_bytes(module, x) - few) // (len(x) - 2))
        return cls(max(0, few - more), more)

    def of(self, examples: int) -> int:
        """For so many examples."""
        return self.one + (examples - 1) * self.more


def at_once(peak: Peak, around: Around, forward: Forward) -> int:
    """How many examples may go forwards at a time, so that it takes no more than a step."""
    held, examples = peak.parameters + peak.optimiser + peak.gradients, AT_ONCE
    while examples > FEWEST and held + around.passing(forward, examples) > peak.bytes:
        examples //= 2
    return examples


@dataclass(frozen=True)
class Within:
    """Plain training within a budget.

    Attributes:
        segments: What is run again.
        at_once: How many examples go forwards at a time between steps.
        room: Bytes that are left for the prepared copy of the data set.
    """

    segments: Segments
    at_once: int
    room: int


def run_within(
    module: nn.Module,
    step_with: StepWith,
    batches: EpochSource,
    task: Task,
    loss: Loss,
    options: Options,
    budget: Budget,
    beside: int = 0,
) -> Within:
    """The cheapest segments to run again such that a whole run stays within the budget.

    Args:
        module: What is trained.
        step_with: Makes a step of a network, which is called in the module's place.
        batches: Of which nothing is kept.
        task: Whose validation split is judged.
        loss: By which it is.
        options: Which optimiser, whether weights are remembered or saved.
        budget: As of :func:`~dovetail.train.budget.segments_within`.
        beside: Bytes that others hold all the time.
    """
    around = Around.of(batches, task, loss)
    x = around.batch[0].to(next(module.parameters()).device)
    work, forward = plain_work(module, step_with, around, options, beside)
    segments = segments_within(work, step_with, budget, link_seconds(module, x))
    room = bytes_of(budget, segments.full.bytes) - segments.peak.bytes
    return Within(segments, at_once(segments.peak, around, forward), room)


def plain_work(
    module: nn.Module,
    step_of: Callable[[nn.Module], Step],
    around: Around,
    options: Options,
    beside: int = 0,
) -> tuple[Work, Forward]:
    """A step of a whole network with what a run holds around it, and its passing forwards."""
    device = next(module.parameters()).device
    batch = tuple(tensor.to(device) for tensor in around.batch)
    forward = Forward.of_module(module, batch[0])
    moments = around.moments(forward, saved(options, module))
    beside += around.order + best_so_far(options, module)
    work = Work(module, step_of, batch, options, None, beside, *moments)
    return work, forward


def held(*modules: nn.Module | None) -> int:
    """Bytes of the parameters and buffers of modules, each once.

    >>> held(nn.Linear(3, 2), None)
    32
    """
    found = {
        id(tensor): tensor.nbytes
        for module in modules
        if module is not None
        for tensor in (*module.parameters(), *module.buffers())
    }
    return sum(found.values())


def best_so_far(options: Options, *modules: nn.Module | None) -> int:
    """What early stopping holds: the weights of the best epoch."""
    return 0 if options.patience is None else held(*modules)


def saved(options: Options, *modules: nn.Module | None) -> int:
    """What saving and resuming take: a copy of all that a checkpoint has."""
    if options.checkpoint is None:
        return 0
    weights = [p for m in modules if m is not None for p in m.parameters() if p.requires_grad]
    state, _ = optimiser_needs(options, weights)
    return held(*modules) + state + best_so_far(options, *modules)


def bytes_in(values: Any) -> int:
    """Of the tensors in any nesting."""
    return sum(t.nbytes for t in tree_leaves(values) if isinstance(t, Tensor))


def rows_bytes(shape: Sequence[int], rows: int, element: int = 4) -> int:
    """Of kept features of this shape, with a target for each row.

    >>> rows_bytes((2, 3), 10)
    320
    """
    size = element
    for axis in shape:
        size *= axis
    return rows * (size + 8)
