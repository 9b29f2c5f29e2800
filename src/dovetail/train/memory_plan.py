"""What a training step would take in memory and in time, each way, before anything is trained."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from dovetail.core.amounts import amount
from dovetail.core.declared import Column, figure, table, text
from dovetail.core.errors import CutError, TrainingError
from dovetail.core.records import Record
from dovetail.parts.cutting import CutPoint
from dovetail.parts.part import Part, as_part
from dovetail.settings.train import EndToEnd, Layerwise
from dovetail.tasks.task import Task
from dovetail.train.around import Around, plain_work
from dovetail.train.budget import (
    Budget,
    StepWith,
    bytes_of,
    layer_words,
    segments_within,
    stage_work,
)
from dovetail.train.checkpointing import Checkpointed, a_block_at_a_time, links_of
from dovetail.train.features import NOWHERE
from dovetail.train.frame import Course, try_once
from dovetail.train.layers import windows
from dovetail.train.link_costs import Network, link_seconds
from dovetail.train.loop import train_mode
from dovetail.train.memory import Work, peak_by_operations
from dovetail.train.options import LoopOptions, Options
from dovetail.train.stage_plan import stage_points, stages_of
from dovetail.train.stage_sizes import Holding, Sized, sized, words_of
from dovetail.train.supervision import Loss, labelled_batches, loss_for, loss_words

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
        ends: Of a stage, the point that its layers end at.
    """

    name: str
    bytes: int
    seconds: float
    where: str = ""
    how: str = ""
    ends: str = ""


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
        by_layers: Whether it is asked for, and what else there is only stands beside.

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
    by_layers: bool = False

    @property
    def take(self) -> PlannedWay | None:
        """The way to take: of those that fit, the quickest with exact gradients, else by layers.

        Where a training layer by layer is asked for, that alone.
        """
        asked = [way for way in self.ways if not self.by_layers or way.name == LAYERS]
        fits = [way for way in asked if self.budget is None or way.bytes <= self.budget]
        exact = [way for way in fits if way.name != LAYERS]
        return min(exact or fits, key=lambda way: way.seconds, default=None)

    @property
    def verdict(self) -> str:
        """Which way to take, in words."""
        way = self.take
        if way is not None:
            return f"take {way.name}: {amount(way.bytes)}, {way.seconds:.2f} s a step"
        asked = [each for each in self.ways if not self.by_layers or each.name == LAYERS]
        least = min(asked, key=lambda each: each.bytes)
        if self.by_layers:
            return (
                f"it does not fit into {amount(self.budget or 0)}: {amount(least.bytes)} is the "
                f"least, which {least.where!r} sets"
            )
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
            Column("ends at", "ends"),
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
    loss: str | Loss | None = None,
    by_layers: bool = False,
    at: str | CutPoint | Sequence[str | CutPoint] | None = None,
    segment: int = Layerwise.segment,
    overlap: int = Layerwise.overlap,
    order: str = Layerwise.order,
    keep: str = Layerwise.keep,
    grow: int | None = None,
    forward_dropout: float = Layerwise.forward_dropout,
    backward_dropout: float = Layerwise.backward_dropout,
    decision_convs: int | None = None,
    decision_channels: int | None = None,
    decision_pool: int | None = None,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> MemoryPlan:
    """Measure a step of each way to train ``model`` on ``task``, without training it.

    Bytes are measured on fake tensors, seconds on up to 32 examples, from which a batch's follow.

    Args:
        model: It is left as it is.
        task: Of kind classes, multilabel or regression.
        memory_budget: As of :func:`~dovetail.train.end_to_end`.
        loss: As of :func:`~dovetail.train.end_to_end`.
        by_layers: Whether a training layer by layer is asked for; else it is taken only where no
            other way fits.
        at: Of its stages, as all that follows: see :func:`~dovetail.train.layerwise`.
        segment: Likewise.
        overlap: Likewise.
        order: Likewise.
        keep: Likewise.
        grow: Likewise.
        forward_dropout: Likewise.
        backward_dropout: Likewise.
        decision_convs: Likewise.
        decision_channels: Likewise.
        decision_pool: Likewise.
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
    own = loss_for(loss, task)
    size = course.options.batch_size
    batches = labelled_batches(part.contract, task, None, size, seed, keeping=NOWHERE)
    around = Around.of(batches, task, own)

    def step_with(network: Network) -> Callable[[Any], Tensor]:
        return course.descent(network, own)

    work, _ = plain_work(part.module, step_with, around, course.options)
    batch = work.batch
    ways = list(_of_the_whole(work, step_with, memory_budget))
    budget = None if memory_budget is None else bytes_of(memory_budget, ways[0].bytes)
    stages: tuple[PlannedWay, ...] = ()
    try:
        points, _ = stage_points(part, at)
    except CutError:
        if by_layers:
            raise
    else:
        made = stages_of(
            part,
            task.outputs,
            points,
            segment=segment,
            overlap=overlap,
            sizes={"convs": decision_convs, "channels": decision_channels, "pool": decision_pool},
            dropouts=(forward_dropout, 1.0, backward_dropout),
            seed=seed,
        )
        spans = windows(len(points), segment, overlap)
        of_stages = [course.options] * len(made)
        holding = Holding(keep, grow is not None, overlap > 0, order != "up")
        fitted, _ = sized(made, part, task, own, of_stages, budget, batches, holding, strict=False)
        ends = [(*points, "head")[end if end == len(points) else end - 1] for _, end in spans]
        stages = tuple(_of_stages(fitted, ends, batch, own, course.options))
    if stages:
        largest = max(stages, key=lambda stage: stage.bytes)
        together = sum(stage.seconds for stage in stages)
        ways.append(PlannedWay(LAYERS, largest.bytes, together, largest.where))
    settings = {"how": "layerwise", "at": at, "segment": segment, "overlap": overlap}
    return MemoryPlan(
        part=part.described,
        task=task.name,
        batch=len(batch[0]),
        ways=tuple(ways),
        budget=budget,
        stages=stages,
        by_layers=by_layers,
        settings=course.settings
        | {"loss": loss_words(loss, task)}
        | (settings if by_layers else {}),
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
    fitted: Sequence[Sized],
    ends: Sequence[str],
    batch: tuple[Tensor, ...],
    loss: Loss,
    options: Options,
) -> Iterator[PlannedWay]:
    few = _few(batch)
    for one, end in zip(fitted, ends, strict=True):
        if one.peak is None:
            return
        work = stage_work(one.stage, (batch[0], batch[1]), loss, options)
        seconds = _step_seconds(work, few) * len(batch[0]) / len(few[0])
        where = layer_words(one.peak, one.stage)
        yield PlannedWay(one.stage.name, one.peak.bytes, seconds, where, words_of(one.stage), end)


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
