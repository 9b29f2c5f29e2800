"""What a training step would take in memory and in time, each way, before anything is trained."""

from __future__ import annotations

import copy
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from dovetail.core.amounts import amount
from dovetail.core.declared import Column, figure, table, text
from dovetail.core.errors import CutError, TrainingError
from dovetail.core.records import Record
from dovetail.parts.modules import evaluating
from dovetail.parts.part import Part, as_part
from dovetail.settings.train import EndToEnd
from dovetail.tasks.task import Task
from dovetail.train.budget import (
    Budget,
    StepWith,
    bytes_of,
    segments_within,
    stage_within,
    stage_work,
)
from dovetail.train.checkpointing import Checkpointed, a_block_at_a_time, links_of
from dovetail.train.decision import Decision
from dovetail.train.frame import Course, try_once
from dovetail.train.link_costs import Network, link_seconds
from dovetail.train.loop import train_mode
from dovetail.train.memory import Peak, Work, peak_by_operations
from dovetail.train.options import LoopOptions, Options
from dovetail.train.stages import Stage
from dovetail.train.supervision import LOSSES, Loss, below, labelled_batches

TIMED = 32
"""Examples of a batch for which a step is timed; the rest would take as long each."""

FULL, BLOCKS, BEST, LAYERS = (
    "all layers at once",
    "a block at a time run again",
    "the best segments run again",
    "layer by layer",
)


@dataclass(frozen=True)
class PlannedWay:
    """One way to train, or a stage of one.

    Attributes:
        name: Of the way, or of the stage.
        bytes: The peak of a step.
        seconds: Of a step.
        where: The layer that sets the peak.
        how: What is done to need no more.
    """

    name: str
    bytes: int
    seconds: float
    where: str = ""
    how: str = ""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan(
    Record,
    kind="memory-plan",
    title="Memory and time of a training step of {part} on {task}",
    brief="{part} on {task}: {verdict}",
):
    """What a step takes, each way, and which way to take.

    Attributes:
        part: What is trained.
        task: On what.
        batch: Examples a step.
        budget: Bytes, if one was said.
        ways: The peak of each; layer by layer that of the largest stage, and the seconds of all.
        stages: Of the training layer by layer.

    >>> ways = PlannedWay(FULL, 4000, 1.0), PlannedWay(BEST, 2000, 1.3)
    >>> MemoryPlan(part="mlp", task="digits", batch=64, budget=3000, ways=ways)
    MemoryPlan(mlp on digits: take the best segments run again: 2.0 KiB, 1.30 s a step)
    """

    part: str
    task: str
    batch: int
    ways: tuple[PlannedWay, ...]
    budget: int | None = None
    stages: tuple[PlannedWay, ...] = ()

    @property
    def take(self) -> PlannedWay | None:
        """The way to take: of those that fit, the quickest with exact gradients, else by layers."""
        fits = [way for way in self.ways if self.budget is None or way.bytes <= self.budget]
        exact = [way for way in fits if way.name != LAYERS]
        return min(exact or fits, key=lambda way: way.seconds, default=None)

    @property
    def verdict(self) -> str:
        """Which way to take, in words."""
        way = self.take
        if way is not None:
            return f"take {way.name}: {amount(way.bytes)}, {way.seconds:.2f} s a step"
        least = min(self.ways, key=lambda each: each.bytes)
        return (
            f"none fits into {amount(self.budget or 0)}; {least.name} takes least, "
            f"{amount(least.bytes)}, which {least.where!r} sets"
        )

    @property
    def _budgeted(self) -> str:
        return "" if self.budget is None else f" The budget is {amount(self.budget)}."

    def _share(self, way: PlannedWay) -> float:
        return way.bytes / self.ways[0].bytes

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                **vars(way),
                "memory": amount(way.bytes),
                "share": self._share(way),
                "fits": "" if self.budget is None else "yes" if way.bytes <= self.budget else "no",
            }
            for way in self.ways
        ]

    def _stage_rows(self) -> list[dict[str, Any]]:
        return [
            {**vars(way), "memory": amount(way.bytes), "share": self._share(way)}
            for way in self.stages
        ]

    shows = (
        text("A step of {batch} examples.{_budgeted}"),
        table(
            _rows,
            Column("way", "name"),
            Column("memory"),
            Column("share", spec=".2f"),
            Column("seconds", spec=".3g"),
            Column("set by", "where"),
            Column("fits", when="budget"),
        ),
        table(
            _stage_rows,
            Column("stage", "name"),
            Column("memory"),
            Column("share", spec=".2f"),
            Column("seconds", spec=".3g"),
            Column("set by", "where"),
            Column("under", "how"),
            caption="Layer by layer, a stage",
        ),
        figure("bar", "Peak memory of a step", _rows, "name", {"share": "share"}, "", "share"),
        text("{verdict}", "heading"),
    )


def plan(
    model: Part | nn.Module,
    task: Task,
    *,
    memory_budget: Budget | None = EndToEnd.memory_budget,
    loss: Loss | None = None,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> MemoryPlan:
    """Measure a step of each way to train ``model`` on ``task``, without training it.

    Bytes are measured on fake tensors, seconds on up to 32 examples, from which a batch's follow.

    Args:
        model: It is left as it is.
        task: Of kind classes, multilabel or regression.
        memory_budget: As of :func:`~dovetail.train.end_to_end`.
        loss: Of outputs and targets, if not the usual one.
        seed: Which batch.
        options: See :class:`Options`; the batch size and the optimiser matter.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> made = plan(build("lenet5", size=8), load_task("digits"), memory_budget=0.95)
    >>> [way.name for way in made.ways][:2], made.take.bytes <= made.budget
    (['all layers at once', 'a block at a time run again'], True)
    """
    course = Course("end-to-end", task, options, seed=seed)
    part = course.twin(as_part(model), task)
    try_once(part, task)
    loss = loss or LOSSES[task.kind]
    batches = labelled_batches(part.contract, task, None, course.options.batch_size, seed)
    batch = tuple(tensor.to(course.device) for tensor in next(iter(batches.epoch(0))))

    def step_with(network: Network) -> Callable[[Any], Tensor]:
        return course.descent(network, loss)

    work = Work(part.module, step_with, batch, course.options)
    ways = list(_of_the_whole(work, step_with, memory_budget))
    budget = None if memory_budget is None else bytes_of(memory_budget, ways[0].bytes)
    stages = tuple(_of_stages(part, task.outputs, batch, loss, course.options, budget))
    if stages:
        largest = max(stages, key=lambda stage: stage.bytes)
        together = sum(stage.seconds for stage in stages)
        ways.append(PlannedWay(LAYERS, largest.bytes, together, largest.where))
    return MemoryPlan(
        part=part.described,
        task=task.name,
        batch=len(batch[0]),
        ways=tuple(ways),
        budget=budget,
        stages=stages,
        settings=course.settings,
    )


def _of_the_whole(work: Work, step_with: StepWith, budget: Budget | None) -> Iterator[PlannedWay]:
    """All layers at once: plainly, with each block run again, and with the best segments."""
    few = _few(work.batch)
    scale = len(work.batch[0]) / len(few[0])
    seconds = [scale * each for each in link_seconds(work.module, few[0])]
    once = scale * _step_seconds(work, few)
    try:
        best = segments_within(work, step_with, budget, seconds)
    except TrainingError:
        best = segments_within(work, step_with, None, seconds)
    yield PlannedWay(FULL, best.full.bytes, once, best.full.where)
    spans = a_block_at_a_time(links_of(work.module))
    blocks = peak_by_operations(
        replace(work, step_of=lambda module: step_with(Checkpointed(module, spans)))
    )
    yield PlannedWay(BLOCKS, blocks.bytes, once + sum(seconds), blocks.where)
    again = ", ".join(best.facts["recomputed"])
    yield PlannedWay(BEST, best.peak.bytes, once + best.again, best.peak.where, again)


def _of_stages(
    part: Part,
    outputs: int,
    batch: tuple[Tensor, ...],
    loss: Loss,
    options: Options,
    budget: int | None,
) -> Iterator[PlannedWay]:
    whole = sum(p.nbytes for p in part.module.parameters())
    few = _few(batch)
    for stage in stages_of(part, outputs):
        held = (*stage.below.module.parameters(), *stage.layers.parameters())
        if stage.head is not None:
            held = (*held, *stage.head.parameters())
        beside = whole - sum(p.nbytes for p in held)
        work = stage_work(stage, (batch[0], batch[1]), loss, options, beside)
        peak = peak_by_operations(work)
        if budget is not None and peak.bytes > budget:
            with suppress(TrainingError):  # it is shown what the stage takes as it is
                stage, peak = stage_within(
                    stage, budget, (batch[0], batch[1]), loss, options, beside=beside
                )
            work = stage_work(stage, (batch[0], batch[1]), loss, options, beside)
        seconds = _step_seconds(work, few) * len(batch[0]) / len(few[0])
        yield PlannedWay(stage.name, peak.bytes, seconds, _layer(peak), _how(stage))


def stages_of(part: Part, outputs: int) -> Iterator[Stage]:
    """A stage for each layer with weights and what follows it, the last with the network's head.

    >>> from dovetail.parts.part import build
    >>> [stage.name for stage in stages_of(build("lenet5", size=8), 10)]
    ['conv1.conv', 'conv2.conv', 'fc1.linear', 'fc2.linear', 'head']
    """
    links = links_of(part.module)
    spans = a_block_at_a_time(links)
    port = part.contract.takes[0]
    if len(spans) < 2 or port.shape is None or None in port.shape:
        return
    x = torch.zeros(2, *(size or 1 for size in port.shape), device=part.device)
    for number, (start, stop) in enumerate(spans):
        named = ((name.replace(".", "/"), link) for name, link in links[start:stop])
        layers = nn.Sequential(OrderedDict(named))
        try:
            front = below(part, links[start - 1][0] if start else None)
        except CutError:
            return
        x = _shape_through(layers, x)
        last = number == len(spans) - 1
        shape = tuple(x.shape[1:])
        decision = None if last or len(shape) > 3 else Decision.for_shape(shape)
        yield Stage(links[start][0], layers, front, shape, outputs, decision)


def _shape_through(layers: nn.Module, x: Tensor) -> Tensor:
    with evaluating(layers):
        made: Tensor = layers(x)
    return made


def _few(batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    return batch[0][:TIMED], batch[1][:TIMED]


def _step_seconds(work: Work, batch: tuple[Tensor, Tensor]) -> float:
    """The quicker of two steps, forward and backward, of a copy."""
    module = copy.deepcopy(work.module)
    train_mode(module)
    step = work.step_of(module)
    taken = []
    with torch.random.fork_rng(devices=[]):
        for _ in range(2):
            began = time.perf_counter()
            step(batch).backward()  # type: ignore[no-untyped-call]
            taken.append(time.perf_counter() - began)
            module.zero_grad(set_to_none=True)
    return min(taken)


def _layer(peak: Peak) -> str:
    where = peak.where.removeprefix("network.").removeprefix("below.")
    return where.removeprefix("layers.").replace("/", ".")


def _how(stage: Stage) -> str:
    words = [] if stage.decision is None else [str(stage.decision)]
    words += [f"batches in {stage.micro} pieces"] * (stage.micro > 1)
    words += ["activations run again"] * stage.checkpoint
    return "; ".join(words)
