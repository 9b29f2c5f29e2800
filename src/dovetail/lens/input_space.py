r"""A network as it looks from its inputs: regions, error gradients, and discriminative intervals.

Regions and gradients are of networks on two numbers.  The **gradient field** is
:math:`\partial \ell(f(x_i), y_i) / \partial x_i` of every example's own cross-entropy: where two
neighbours' gradients point at each other, what the weights would learn from one they unlearn from
the other, as on the diagonals of a checkerboard.

A **discriminative interval** of a feature :math:`z` is a stretch of its values in which classes are
more certain than among all examples.  The one with the largest gain is given,

.. math::
    \max_{a < b}\ p\,\bigl(H(Y) - H(Y \mid a \le z \le b)\bigr), \qquad
    p = \#\{i : a \le z_i \le b\} / n ,

in bits: certainty times size, since a single example would be the most certain of all.  Equal
values are never divided; with more distinct values than ``edges`` the ends are sought among so many
of them, evenly spaced by rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.core.settings import need_least
from dovetail.lens.input_records import (
    DecisionRegions,
    DiscriminativeIntervals,
    GradientField,
    Interval,
)
from dovetail.measure.entropy import selection_entropy
from dovetail.measure.evaluate import columns_of
from dovetail.measure.features import Pooling, features, features_along
from dovetail.measure.forward import outputs_of, prepare
from dovetail.measure.inputs import rows_and_codes
from dovetail.measure.neighbours import Search
from dovetail.parts.cutting import CutPoint
from dovetail.parts.modules import evaluating
from dovetail.parts.part import Part, as_part
from dovetail.ranking.candidates import only
from dovetail.tasks.arrays import as_float
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

_MARGIN = 0.05
"""How far a region reaches beyond its examples, in shares of their range."""

_POINTS = 400
"""Examples that are drawn over a region at most."""

Region = tuple[tuple[float, float], tuple[float, float]]


def decision_regions(
    part: Part | nn.Module,
    task: Task,
    *,
    split: Split = "train",
    resolution: int = 80,
    region: Region | None = None,
    seed: int = 0,
) -> DecisionRegions:
    """The class that a network of two inputs gives at every node of a grid.

    Args:
        part: A network that takes two numbers and gives a value for every class.
        task: Its examples are drawn over the regions, and say where to look.
        split: Which of them.
        resolution: Nodes along each axis.
        region: ``((left, right), (low, high))``; by default that of the examples.
        seed: Of which examples are drawn where there are many.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(60, 2), [0, 1] * 30)
    >>> found = decision_regions(build("mlp", shape=(2,), hidden=(8,), classes=2), task)
    >>> len(found.values), round(sum(found.areas), 9)
    (80, 1.0)
    """
    part, columns = _of_two_inputs(part, task)
    need_least("resolution", resolution, 2)
    x, y = task.subset(split)
    x = as_float(x)
    across, up = _region(x, region)
    xs, ys = (torch.linspace(*ends, resolution, dtype=x.dtype) for ends in (across, up))
    nodes = torch.cartesian_prod(ys, xs).flip(1)
    classes = outputs_of(part, nodes)[:, columns].argmax(1)
    some = _some(len(x), _POINTS, seed)
    right = outputs_of(part, x)[:, columns].argmax(1) == y
    areas = classes.bincount(minlength=len(task.classes)).double() / len(classes)
    return DecisionRegions(
        part=part.described,
        task=task.name,
        classes=task.classes,
        x=across,
        y=up,
        values=tuple(map(tuple, classes.reshape(resolution, resolution).tolist())),
        points=_points(x[some], y[some]),
        areas=tuple(areas.tolist()),
        accuracy=float(right.double().mean()),
        n=len(x),
        settings={"split": split, "resolution": resolution, "seed": seed},
    )


def gradient_field(
    part: Part | nn.Module,
    task: Task,
    *,
    split: Split = "train",
    limit: int | None = _POINTS,
    region: Region | None = None,
    seed: int = 0,
) -> GradientField:
    """The gradient of every example's cross-entropy with respect to its two inputs.

    Args:
        part: A network that takes two numbers and gives a logit for every class.
        task: Of kind classes.
        split: Where the examples come from.
        limit: How many at most, drawn at random after a ``region`` chose among them.
        region: Only examples within ``((left, right), (low, high))``: to look closely.
        seed: Of the draw.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(60, 2), [0, 1] * 30)
    >>> field = gradient_field(build("mlp", shape=(2,), hidden=(8,), classes=2), task, limit=20)
    >>> len(field.arrows), 0 <= field.opposed <= 1
    (20, True)
    """
    part, columns = _of_two_inputs(part, task)
    x, y = task.subset(split)
    x = as_float(x)
    across, up = _region(x, region)
    inside = (x[:, 0] >= across[0]) & (x[:, 0] <= across[1])
    inside &= (x[:, 1] >= up[0]) & (x[:, 1] <= up[1])
    x, y = x[inside], y[inside]
    if limit is not None:
        need_least("limit", limit, 2)
    if len(x) < 2:
        raise TaskError(f"{len(x)} examples lie in this region; a field needs two or more")
    some = _some(len(x), limit or len(x), seed)
    x, y = x[some].clone().requires_grad_(), y[some]
    with evaluating(part.module), torch.enable_grad():
        outputs = part(prepare(x, part.contract).to(part.device))[:, columns]
        loss = nn.functional.cross_entropy(outputs, y.to(outputs.device), reduction="sum")
        (gradient,) = torch.autograd.grad(loss, x)
    x = x.detach()
    if not bool(gradient.isfinite().all()):
        raise TaskError("the gradients hold NaN or infinity; look at the network's weights")
    search = Search(x.double())
    near = search.rough(torch.arange(len(x))).argmin(1)
    cosine = torch.cosine_similarity(gradient, gradient[near], dim=1, eps=1e-300)
    lengths = gradient.norm(dim=1)
    return GradientField(
        part=part.described,
        task=task.name,
        classes=task.classes,
        x=across,
        y=up,
        arrows=tuple(
            (*point, *way)
            for point, way in zip(x.double().tolist(), gradient.double().tolist(), strict=True)
        ),
        labels=tuple(y.tolist()),
        opposed=float((cosine < -0.5).double().mean()),
        mean_length=float(lengths.double().mean()),
        loss=float(loss.detach()) / len(x),
        settings={"split": split, "limit": limit, "seed": seed},
    )


def discriminative_intervals(
    part: Part | nn.Module,
    task: Task,
    at: str | CutPoint | None = None,
    *,
    split: Split = "train",
    limit: int | None = 2000,
    edges: int = 128,
    pooling: Pooling = "average",
    seed: int = 0,
) -> DiscriminativeIntervals:
    """The interval of every feature at a point in which classes are most certain for its size.

    Args:
        part: A network.
        task: Of kind classes.
        at: A cut point; the network's output if there is none.  Before an activation an interval
            may lie on either side of zero, behind a ReLU only where it lets through.
        split: Where the examples come from.
        limit: How many at most.
        edges: Distinct values among which an interval's ends are sought.
        pooling: How feature maps become rows.
        seed: Of the draw.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(60, 2), [0, 1] * 30)
    >>> net = build("mlp", shape=(2,), hidden=(8,), classes=2)
    >>> len(discriminative_intervals(net, task, "hidden1").intervals)
    8
    """
    if task.kind != "classes":
        raise TaskError(f"{task.name!r} is of kind {task.kind}; intervals tell classes apart")
    rows = task.indices(split)
    if limit is not None:
        need_least("limit", limit, 2)
        rows = rows[_some(len(rows), limit, seed)]
    sample = only(task, rows)
    if at is None:
        taken = features(as_part(part), sample, pooling=pooling)
    else:
        taken = features_along(part, [str(at)], sample, pooling=pooling)[str(at)]
    intervals = best_intervals(taken.values, taken.targets, edges)
    best = max(range(len(intervals)), key=lambda i: intervals[i].gain)
    some = _some(len(rows), _POINTS, seed)
    share = taken.targets.bincount().double() / len(rows)
    line = zip(
        taken.values[some, best].double().tolist(), taken.targets[some].tolist(), strict=True
    )
    return DiscriminativeIntervals(
        part=as_part(part).described,
        task=task.name,
        at="output" if at is None else str(at),
        classes=task.classes,
        intervals=intervals,
        label_entropy=float(torch.special.entr(share).sum() / torch.log(torch.tensor(2.0))),
        line=tuple(line),
        n=len(rows),
        settings={"split": split, "limit": limit, "edges": edges, "pooling": pooling, "seed": seed},
    )


def best_intervals(values: Any, labels: Any, edges: int = 128) -> tuple[Interval, ...]:
    """The most discriminative interval of each column of ``[n, d]``.

    >>> (found,) = best_intervals([[-1.0], [0.0], [1.0], [2.0]], [0, 1, 1, 0])
    >>> found.low, found.high, found.share, found.entropy, found.gain
    (0.0, 1.0, 0.5, 0.0, 0.5)
    """
    rows, codes, count = rows_and_codes(values, labels, least=1)
    need_least("edges", edges, 2)
    selected = selection_entropy(rows, codes).tolist()
    kinds = nn.functional.one_hot(codes, count).double()
    everywhere = _bits(kinds.sum(0)[None])[0]
    return tuple(
        _interval(rows[:, j], kinds, float(everywhere), edges, selected[j], j)
        for j in range(rows.shape[1])
    )


def _interval(
    line: Tensor, kinds: Tensor, everywhere: float, edges: int, selected: float, unit: int
) -> Interval:
    order = line.argsort(stable=True)
    ordered = line[order]
    # Places between examples where an interval may begin or end: never between equal values.
    starts = torch.cat([torch.tensor([0]), (ordered.diff() > 0).nonzero()[:, 0] + 1])
    if len(starts) > edges:
        chosen = torch.linspace(0, len(starts) - 1, edges).round().long()
        starts = starts[chosen]
    places = torch.cat([starts, torch.tensor([len(line)])])
    zero = kinds.new_zeros(1, kinds.shape[1])
    sums = torch.cat([zero, kinds[order].cumsum(0)])[places]
    counts = sums[None, :] - sums[:, None]  # from the row's place to the column's
    size = counts.sum(2)
    gain = torch.where(size > 0, size / len(line) * (everywhere - _bits(counts)), -torch.inf)
    # Of equal gains the longest interval, then the first.
    best = (gain >= gain.max() - 1e-12) * size
    first, last = divmod(int(best.argmax()), len(places))
    return Interval(
        unit=unit,
        low=float(ordered[places[first]]),
        high=float(ordered[places[last] - 1]),
        share=float(size[first, last]) / len(line),
        entropy=float(_bits(counts[first, last][None])[0]),
        gain=max(0.0, float(gain[first, last])),
        selected=None if selected != selected else selected,
    )


def _bits(counts: Tensor) -> Tensor:
    """The entropy of counts along the last axis; zero of none."""
    share = counts.clamp(min=0) / counts.sum(-1, keepdim=True).clamp(min=1)
    bits: Tensor = torch.special.entr(share).sum(-1) / torch.log(torch.tensor(2.0).double())
    return bits


def _of_two_inputs(part: Part | nn.Module, task: Task) -> tuple[Part, Tensor]:
    part = as_part(part)
    if task.kind != "classes":
        raise TaskError(f"{task.name!r} is of kind {task.kind}; regions are of classes")
    if task.input_shape != (2,):
        raise TaskError(
            f"this looks at a plane, and {task.name!r} has inputs of shape "
            f"{list(task.input_shape)}; give a task of two numbers an example"
        )
    columns = columns_of(part, task)
    assert columns is not None  # of classes there are
    outputs = outputs_of(part, task.subset("train")[0][:2])
    if outputs.ndim != 2 or outputs.shape[1] <= int(columns.max()):
        raise ContractError(
            f"{part.described!r} gives {list(outputs.shape[1:])} for an example, not a value for "
            f"each of the {len(task.classes)} classes"
        )
    return part, columns


def _region(x: Tensor, region: Region | None) -> Region:
    """Its ends along both axes."""
    if region is None:
        ends = []
        for low, high in zip(x.amin(0).tolist(), x.amax(0).tolist(), strict=True):
            margin = _MARGIN * (high - low) or 0.5  # of a column that does not vary
            ends.append((low - margin, high + margin))
        return ends[0], ends[1]
    (left, right), (low, high) = region
    if not (left < right and low < high):
        raise SettingsError(f"a region is ((left, right), (low, high)), got {region!r}")
    return (float(left), float(right)), (float(low), float(high))


def _some(count: int, most: int, seed: int) -> Tensor:
    """Places of at most so many of the examples, in order."""
    order = torch.randperm(count, generator=generator(seed, "input space"))
    return order[:most].sort().values


def _points(x: Tensor, y: Tensor) -> tuple[tuple[float, float, int], ...]:
    pairs: Sequence[tuple[float, float]] = x.double().tolist()
    return tuple((a, b, code) for (a, b), code in zip(pairs, y.tolist(), strict=True))
