r"""What a training in partitions would take, before anything is trained.

A step of the pipeline takes as long as its slowest partition computes, or as the largest hand-over
takes on the link, whichever is more:

.. math::
    T = \max_k \max\Bigl(t_k,\ \frac{b_k}{v}\Bigr), \qquad
    T_{\mathrm{DDP}} = \frac{t}{P} + \frac{2 (P - 1)}{P} \frac{g}{v},

with :math:`t_k` the seconds and :math:`b_k` the bytes handed on of partition :math:`k`, and beside
it data parallelism (DDP): :math:`P` processes that share the batch and reduce gradients of
:math:`g` bytes in a ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Unpack

from torch import nn

from dovetail.core.amounts import amount, read_speed
from dovetail.core.declared import Column, table, text, when
from dovetail.core.errors import CutError
from dovetail.core.records import Record
from dovetail.dist.wire import HALVES, Packing
from dovetail.parts.cutting import CutPoint
from dovetail.parts.part import Part, as_part
from dovetail.tasks.task import Task
from dovetail.train.balance import TWO, Costs, enough_layers, layer_costs
from dovetail.train.frame import Course, try_once
from dovetail.train.layers import with_weights
from dovetail.train.options import LoopOptions
from dovetail.train.supervision import labelled_batches, loss_for


@dataclass(frozen=True)
class PlannedPartition:
    """A partition as it would be: its layers, the seconds of a step, the bytes handed on.

    >>> PlannedPartition("partition1", ("conv1",), 0.01, 4096, 800).handed
    4096
    """

    name: str
    layers: tuple[str, ...]
    seconds: float
    handed: int
    weights: int


@dataclass(frozen=True, kw_only=True)
class PartitionPlan(
    Record,
    kind="partition-plan",
    title="A step of {part} on {task} in {partitions!n} partitions",
    brief="{part} on {task}: {verdict}",
):
    """How a training in partitions would be balanced, and how fast it would be.

    Attributes:
        part: What is trained.
        task: On what.
        batch: Examples a step.
        partitions: From the input up.
        whole: Seconds of a step of the whole network in one process.
        link: Bytes a second between processes, if that was said.

    >>> two = (PlannedPartition("partition1", ("a",), 0.03, 1000, 100),
    ...     PlannedPartition("partition2", ("b",), 0.02, 0, 10**6))
    >>> made = PartitionPlan(part="net", task="t", batch=60, partitions=two, whole=0.04, link=1e6)
    >>> made.examples_a_second, round(made.against_ddp, 1)
    (2000.0, 34.0)
    """

    part: str
    task: str
    batch: int
    partitions: tuple[PlannedPartition, ...]
    whole: float
    link: float | None = None

    @property
    def seconds(self) -> float:
        """Of a step of the pipeline."""
        sent = 0.0 if self.link is None else max(p.handed for p in self.partitions) / self.link
        return max(sent, *(each.seconds for each in self.partitions))

    @property
    def ddp_seconds(self) -> float:
        """Of a step of data parallelism in as many processes."""
        count = len(self.partitions)
        gradients = sum(each.weights for each in self.partitions)
        sent = 0.0 if self.link is None else 2 * (count - 1) / count * gradients / self.link
        return self.whole / count + sent

    @property
    def examples_a_second(self) -> float:
        """Of the pipeline."""
        return self.batch / self.seconds

    @property
    def against_ddp(self) -> float:
        """How many times as fast as data parallelism."""
        return self.ddp_seconds / self.seconds

    @property
    def against_one(self) -> float:
        """How many times as fast as the whole network in one process."""
        return self.whole / self.seconds

    @property
    def verdict(self) -> str:
        """The speed, in words."""
        on = "without a limit of the link" if self.link is None else f"on {self._speed}"
        return (
            f"about {self.examples_a_second:.3g} examples a second {on}: {self.against_one:.2f} "
            f"times one process, {self.against_ddp:.2f} times data parallelism (DDP)"
        )

    @property
    def _speed(self) -> str:
        return f"{8 * (self.link or 0) / 1e6:g} Mbit/s"

    @property
    def _bound(self) -> str:
        if self.link is None:
            return ""
        slowest = max(each.seconds for each in self.partitions)
        return "The link is what limits it." if self.seconds > slowest else ""

    shows = (
        text(
            "A step of {batch} examples, forward, backward and the optimiser; expected from "
            "timing each layer in this process, nothing was trained."
        ),
        table(
            "partitions",
            Column("partition", "name"),
            Column("ends at", lambda each: each.layers[-1]),
            Column("layers", lambda each: len(each.layers)),
            Column("ms a step", lambda each: 1000 * each.seconds, ".3g"),
            Column("hands on a step", lambda each: amount(each.handed) if each.handed else ""),
            Column("weights", lambda each: amount(each.weights)),
        ),
        when("_bound", text("{_bound}", "note")),
        text("{verdict}", "heading"),
    )


def plan_partitions(
    model: Part | nn.Module,
    task: Task,
    *,
    partitions: int | None = None,
    at: str | CutPoint | Sequence[str | CutPoint] | None = None,
    link: str | float | None = None,
    loss: str | None = None,
    packing: str | Packing = None,
    decision_convs: int | None = None,
    decision_channels: int | None = None,
    decision_pool: int | None = None,
    seed: int = 0,
    **options: Unpack[LoopOptions],
) -> PartitionPlan:
    """Time every layer of ``model`` on a batch of ``task``, balance, and say what to expect.

    Args:
        model: It is left as it is.
        task: Of kind classes, multilabel or regression.
        partitions: As of :func:`~dovetail.train.partitioned`.
        at: Likewise.
        link: How fast processes reach each other: ``"100Mbit"``, ``"1 Gbit"``, ``"10MB"`` (bytes),
            or bytes a second.
        loss: As of :func:`~dovetail.train.partitioned`.
        packing: Likewise; what ``"packed"`` saves depends on the numbers and is not foretold.
        decision_convs: Likewise.
        decision_channels: Likewise.
        decision_pool: Likewise.
        seed: Which batch.
        options: See :class:`Options`; the batch size and the optimiser matter.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> made = plan_partitions(build("lenet5", size=8), load_task("digits"), link="100Mbit")
    >>> len(made.partitions), made.link
    (2, 12500000.0)
    """
    speed = None if link is None else read_speed(link)
    course = Course("partitioned", task, options, seed=seed)
    part = course.twin(as_part(model), task)
    try_once(part, task)
    count = (partitions or TWO) if at is None else 0
    ends = enough_layers(part, max(count, 2))
    said: tuple[str, ...] = ()
    if at is not None:
        said = (str(at),) if isinstance(at, str | CutPoint) else tuple(map(str, at))
        ends = _with(part, ends, said)
    batches = labelled_batches(part.contract, task, None, course.options.batch_size, seed)
    x, y = next(iter(batches.epoch(0)))
    sizes = {"convs": decision_convs, "channels": decision_channels, "pool": decision_pool}
    costs = layer_costs(
        part,
        ends,
        (x.to(course.device), y.to(course.device)),
        task.outputs,
        loss_for(loss, task),
        course.options,
        sizes,
    )
    cuts = tuple(ends.index(place) + 1 for place in said) if said else costs.cut(count, speed)
    return PartitionPlan(
        part=part.described,
        task=task.name,
        batch=costs.batch,
        partitions=tuple(_planned(costs, cuts, packing)),
        whole=costs.whole,
        link=speed,
        settings=course.settings,
    )


def _with(part: Part, ends: Sequence[str], said: Sequence[str]) -> tuple[str, ...]:
    """The ends of layers, and the points that were said, in the order of the network."""
    with_weights(part, said)  # refuses what is none, or out of order
    if not set(said) <= set(ends):
        return tuple(said)  # layers as large as the partitions
    return tuple(ends)


def _planned(costs: Costs, cuts: Sequence[int], packing: str | Packing) -> list[PlannedPartition]:
    names = (*costs.points, "head")
    edges = [0, *cuts, len(costs.layers)]
    if len(set(edges)) != len(edges):
        raise CutError("each point ends a partition, so none can be named twice")
    made = []
    for number, ((a, b), seconds) in enumerate(
        zip(pairwise(edges), costs.seconds(cuts), strict=True), start=1
    ):
        handed = 0 if b == len(costs.layers) else costs.handed[b - 1]
        handed = handed // 2 if packing == HALVES else handed
        weights = sum(costs.weights[a:b])
        made.append(PlannedPartition(f"partition{number}", names[a:b], seconds, handed, weights))
    return made
