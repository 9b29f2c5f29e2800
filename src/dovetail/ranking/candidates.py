"""What is ranked, parts at cut points or epochs, on which labelled examples, and its feature rows.

Rows of a candidate at all its points come from one pass, shared between processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.core.errors import CutError, DovetailError, SettingsError, TaskError, nearest, shown
from dovetail.core.seeds import generator
from dovetail.dist.group import gathered, my_share, rank_and_size
from dovetail.measure.features import Pooling, features, features_along
from dovetail.parts.cutting import CutPoint, cut, cut_points
from dovetail.parts.heads import before_the_head
from dovetail.parts.part import Part, as_part, parts_by_name
from dovetail.parts.splitting import points
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

Parts = Part | nn.Module | Sequence[Part | nn.Module] | Mapping[str, Part | nn.Module]

_WORDS = ("every", "output")
"""What ``at`` may say in the place of names."""

_ENOUGH = 4
"""A network with fewer places to cut at the top level is looked into one level deeper."""


@dataclass(frozen=True)
class Candidate:
    """A network and the points at which its features are taken; ``None`` is its very output."""

    name: str
    part: Part
    at: tuple[str, ...] | None

    @property
    def epoch(self) -> int | None:
        """The epoch of the training that it was kept from."""
        epoch = self.part.origin.settings.get("kept_epoch")
        return epoch if isinstance(epoch, int) else None


def named(parts: Parts) -> Mapping[str, Part | nn.Module]:
    """The parts by name; a mapping stays as it is, so that one may load its parts when asked.

    >>> from dovetail.parts.part import build
    >>> list(named([build("mlp"), build("mlp", seed=1)]))
    ['mlp', 'mlp #2']
    """
    if not isinstance(parts, Mapping):
        parts = parts_by_name([parts] if isinstance(parts, Part | nn.Module) else parts)
    if not parts:
        raise SettingsError("there are no parts to rank")
    return parts


def candidate(
    name: str, part: Part | nn.Module, at: str | CutPoint | Sequence[str | CutPoint] | None = None
) -> Candidate:
    """A part with the points to rank it at.

    A network that ends in a head is of use for another task without that head: unless ``at`` says
    otherwise, its features are taken before the last layer.  It ends in one if it knows classes,
    or if its last layer is linear with no activation behind it and nobody has cut it there.

    Args:
        name: What the ranking calls it.
        part: The part.
        at: ``None``, names of cut points, ``"every"`` (see :func:`points_of`) or ``"output"``.

    >>> from dovetail.parts.part import build
    >>> candidate("net", build("lenet5"), at="every").at
    ('conv1', 'conv2', 'flatten', 'fc1', 'fc2')
    """
    part = as_part(part)
    return Candidate(name, part, _points(part, at))


def refuse_unknown_points(
    parts: Mapping[str, Part | nn.Module],
    at: str | CutPoint | Sequence[str | CutPoint] | None,
) -> None:
    """Refuse a cut point that none of the parts has, before any of them runs.

    Parts are asked one after the other until every point is found, hence mostly the first alone.

    >>> from dovetail.parts.part import build
    >>> refuse_unknown_points({"net": build("lenet5")}, ["conv2", "fc9"])
    Traceback (most recent call last):
    ...
    dovetail.core.errors.CutError: no part has a cut point 'fc9'; did you mean fc2, fc1?
    """
    missing = dict.fromkeys(() if at is None or at in _WORDS else _asked(at))
    known: dict[str, None] = {}
    for part in parts.values() if missing else ():
        try:
            known |= dict.fromkeys(points(as_part(part).module))
        except DovetailError:
            continue  # a ranking says why it cannot be cut
        if missing.keys() <= known.keys():
            return
    unknown = [name for name in missing if name not in known]
    if unknown and known:
        raise CutError(f"no part has a cut point {shown(unknown[0])}{nearest(unknown[0], known)}")


def points_of(part: Part) -> tuple[str, ...]:
    """The cut points worth looking at: whole layers or blocks, not the steps inside of them.

    The top level of the network's names; one level deeper, if that leaves fewer than four.

    >>> from dovetail.parts.part import build
    >>> points_of(build("resnet8"))
    ('stem', 'layer1', 'layer2', 'layer3', 'pool', 'flatten')
    """
    names = [point.name for point in cut_points(part)]
    chosen: tuple[str, ...] = ()
    for depth in sorted({name.count(".") for name in names}):
        if len(chosen) < _ENOUGH:
            chosen = tuple(name for name in names if name.count(".") <= depth)
    return chosen


def _points(
    part: Part, at: str | CutPoint | Sequence[str | CutPoint] | None
) -> tuple[str, ...] | None:
    if at is None:
        before = before_the_head(part)
        return None if before is None else (before,)
    if at == "output":
        return None
    if at == "every":
        every = points_of(part)
        if not every:
            raise CutError("this network has no place to cut; rank it as it is, without 'every'")
        return every
    points = _asked(at)
    known = [point.name for point in cut_points(part)]
    # Of a name that is not known the cut itself will say what is wrong with it.
    return tuple(dict.fromkeys(sorted(points, key=[*known, *points].index)))


def sampled(task: Task, samples: int | None, split: Split, seed: int) -> Task:
    """The task with at most so many examples of a split, each class with its share, and no others.

    >>> task = Task(torch.rand(100, 4), [0, 1, 1, 1] * 25)
    >>> few = sampled(task, 40, "train", seed=0)
    >>> few.size("train"), few.targets[few.indices("train")].bincount().tolist(), few.size("test")
    (40, [10, 30], 0)
    """
    if samples is not None and samples < 2:
        raise SettingsError(f"a ranking needs at least 2 examples, samples={samples}")
    if split == "test":
        raise SettingsError(
            "parts are not ranked on the test split: it is there to measure the one you choose"
        )
    rows = task.indices(split)
    if len(rows) < 2:
        raise TaskError(f"{task.name!r} has {len(rows)} examples to rank on in its {split} split")
    if samples is not None and samples < len(rows):
        if task.kind == "pairs":
            rows = _ends_of_pairs(task, split, samples, seed)
        else:
            rows = rows[_in_turn(task, rows, seed)[:samples]].sort().values
    return only(task, rows)


def _ends_of_pairs(task: Task, split: Split, samples: int, seed: int) -> Tensor:
    """The ends of random pairs, about so many: of random rows hardly two would be a pair."""
    pairs = task.pairs(split)
    order = torch.randperm(len(pairs), generator=generator(seed, "rank"))
    ends = torch.stack([pairs.first[order], pairs.second[order]], dim=1).flatten()
    first_named = np.sort(np.unique(ends.numpy(), return_index=True)[1])
    enough = int(first_named[samples]) if samples < len(first_named) else len(ends)
    rows: Tensor = torch.unique(ends[: max(enough // 2 * 2, 2)])
    return rows


def _asked(at: str | CutPoint | Sequence[str | CutPoint]) -> list[str]:
    return [str(at)] if isinstance(at, str | CutPoint) else [str(name) for name in at]


def nested(task: Task, samples: int | None, split: Split, seed: int) -> Tensor:
    """The examples of :func:`sampled` in an order whose first n are those of a sample of n.

    >>> task = Task(torch.rand(100, 4), [0, 1, 1, 1] * 25)
    >>> order, few = nested(task, None, "train", seed=0), sampled(task, 40, "train", seed=0)
    >>> torch.equal(order[:40].sort().values, few.indices("train"))
    True
    """
    sampled(task, samples, split, seed)  # refuses what cannot be
    rows = task.indices(split)
    return rows[_in_turn(task, rows, seed)[:samples]]


def fewer(task: Task, samples: int, seed: int) -> Task:
    """The task with at most so many examples in each of its splits, classes with their shares.

    >>> few = fewer(Task(torch.rand(100, 4), [0, 1] * 50), 12, seed=0)
    >>> few.size("train"), few.size("validation"), few.size("test")
    (12, 10, 12)
    """
    splits: tuple[Split, ...] = ("train", "validation", "test")
    all_rows = {split: task.indices(split) for split in splits}
    return task.derived(
        task.name,
        indices={
            split: rows[_in_turn(task, rows, seed)[:samples]].sort().values
            for split, rows in all_rows.items()
        },
    )


def only(task: Task, rows: Tensor) -> Task:
    """The task with these rows as its training examples, and no others."""
    none = rows[:0]
    return task.derived(task.name, indices={"train": rows, "validation": none, "test": none})


def _in_turn(task: Task, rows: Tensor, seed: int) -> Tensor:
    """Places of the rows in a random order, in which classes keep their shares all along."""
    order = torch.randperm(len(rows), generator=generator(seed, "rank"))
    if task.kind != "classes":
        return order
    # Every class in turn gives its next example until there are enough in proportion: sort by the
    # share of its class that an example completes.
    labels = task.targets[rows][order]
    counts = labels.bincount(minlength=len(task.classes))
    grouped = torch.argsort(labels, stable=True)
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(grouped)
    place[grouped] = torch.arange(len(grouped)) - starts[labels[grouped]]
    share = (place + 0.5) / counts[labels]
    return order[torch.argsort(share, stable=True)]


def fronts_of(chosen: Candidate) -> dict[str | None, Part]:
    """The candidate's part up to each of its points; ``None`` is its very output."""
    part = chosen.part
    spaces = [port.space for port in part.contract.takes if port.space is not None]
    if spaces or len(part.contract.takes) != 1:
        what = f"features in {spaces[0]!r}" if spaces else "several tensors"
        raise SettingsError(f"it takes {what}, not a task's inputs; rank the front of its network")
    if chosen.at is None:
        return {None: part}
    return {at: cut(part, at=at)[0] for at in chosen.at}


def rows_at(
    part: Part,
    fronts: dict[str | None, Part],
    task: Task,
    *,
    pooling: Pooling,
    batch_size: int,
    cache: Any,
) -> dict[str | None, Tensor]:
    """Rows ``[n, d]`` of a task's training examples at each point, in the order of the network.

    Every process runs its share of them, and all get all rows.
    """
    mine, n = share_of(task), task.size("train")
    if len(fronts) > 1:
        points = [str(at) for at in fronts]
        along = features_along(part, points, mine, pooling=pooling, batch_size=batch_size)
        return {at: gathered(along[at].values, n) for at in points}
    (at, front), *_ = fronts.items()
    own = features(front, mine, pooling=pooling, batch_size=batch_size, cache=cache)
    return {at: gathered(own.values, n)}


def without_repeats(rows_of: dict[str | None, Tensor]) -> dict[str | None, Tensor]:
    """Without points that add nothing to the one before, such as pooling before an average.

    >>> list(without_repeats({"conv": torch.ones(2, 3), "pool": torch.ones(2, 3)}))
    ['conv']
    """
    first: dict[str | None, Tensor] = {}
    before: Tensor | None = None
    for at, rows in rows_of.items():
        if before is None or rows.shape != before.shape or not torch.equal(rows, before):
            first[at] = before = rows
    return first


def share_of(task: Task) -> Task:
    """The examples that this process runs; all of them, if it is the only one."""
    rows = task.indices("train")
    if len(rows) < rank_and_size()[1]:
        raise SettingsError("there are more processes than examples to rank on")
    return only(task, my_share(rows))
