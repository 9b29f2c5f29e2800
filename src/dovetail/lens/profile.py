"""What each layer of a network learned of a task's classes, at every cut point, from one pass."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.errors import TaskError
from dovetail.core.progress import progress
from dovetail.core.seeds import generator
from dovetail.core.settings import need_least
from dovetail.lens.profile_record import LayerWeights, PointProfile, Profile, ProfileOver
from dovetail.measure.entropy import pure_voronoi_map, selection_entropy
from dovetail.measure.features import Pooling, features_through, pieces_along
from dovetail.measure.neighbours import Engine, equal_rows, k_redundancy
from dovetail.measure.separation import class_scatter, dead_features, linear_fit
from dovetail.measure.weights import stable_rank, weight_entropy
from dovetail.parts.cutting import CutPoint
from dovetail.parts.part import Part, as_part
from dovetail.ranking.candidates import candidate, named, only, points_of, without_repeats
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

INPUT, OUTPUT = "input", "output"

_SHOWN = 200
"""Examples of a picture of classes, drawn along two principal components."""


def profile(
    part: Part | nn.Module,
    task: Task,
    *,
    at: str | CutPoint | Sequence[str | CutPoint] = "every",
    split: Split = "train",
    limit: int | None = 2000,
    k: int = 10,
    pooling: Pooling = "average",
    by: Engine = "auto",
    seed: int = 0,
    batch_size: int = 512,
    show: bool | None = None,
) -> Profile:
    """Measure what the features at every point of a network say of a task's classes.

    One pass of the examples through the network gives the features of all points; each gets the
    measures of :mod:`dovetail.measure.neighbours`, :mod:`~dovetail.measure.separation` and
    :mod:`~dovetail.measure.entropy`, and the weights before it those of
    :mod:`~dovetail.measure.weights`.  A point whose features are those of the one before is left
    out.  The input is the first point where its rows are whole: vectors, or flattened images.
    The network's output is the last.

    Args:
        part: A network that takes the task's inputs.
        task: Of kind classes.
        at: Cut points, or ``"every"``: whole layers or blocks.
        split: Where the examples come from.
        limit: How many at most, drawn at random; ``None`` for all.  Measures depend on it.
        k: How many neighbours make an example redundant.
        pooling: How feature maps become rows: their mean over positions, or ``"flatten"``.
        by: Who searches for neighbours.
        seed: Of the draw and of the pure map.
        batch_size: Inputs a batch.
        show: Show progress; by default on a terminal.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> found = profile(build("lenet5", size=8, classes=10), load_task("digits"), limit=200)
    >>> [point.at for point in found.points]
    ['conv1', 'conv2', 'flatten', 'fc1', 'fc2', 'output']
    """
    part = as_part(part)
    sample = _drawn(task, split, limit, seed)
    refuse_few(sample.size("train"), k)
    points = points_of(part) if at == "every" else candidate("the network", part, at).at or ()
    along = along_points(part, points, sample, pooling=pooling, batch_size=batch_size)
    seen = profile_of(along, part, sample, k=k, by=by, seed=seed, show=show)
    settings = {"limit": limit, "pooling": pooling, "seed": seed, "batch_size": batch_size}
    return replace(seen, split=split, settings=settings)


def refuse_few(n: int, k: int) -> None:
    """Refuse so many examples whose neighbours are fewer than are looked at."""
    need_least("k", k, 1)
    if n <= k:
        raise TaskError(f"{n} examples have fewer than k={k} neighbours; give more, or a smaller k")


@dataclass(frozen=True)
class Along:
    """Pieces of a network by the point behind each, the rows ``[n, d]`` each gives, and the time.

    Those of the input, where they are whole, and of the output are among them.
    """

    pieces: Mapping[str, nn.Module]
    rows: Mapping[str, Tensor]
    seconds: float


def along_points(
    part: Part,
    points: Sequence[str],
    sample: Task,
    *,
    pooling: Pooling = "average",
    batch_size: int = 512,
) -> Along:
    """One pass of the training examples through a network, and the features at all points."""
    began = time.perf_counter()
    pieces, rest = pieces_along(part, points) if points else ({}, part)
    whole = {INPUT: nn.Identity(), **pieces, OUTPUT: rest.module}
    if len(sample.input_shape) > 1 and pooling != "flatten":
        del whole[INPUT]
    along = features_through(part, whole, sample, pooling=pooling, batch_size=batch_size)
    rows = {name: taken.values for name, taken in along.items()}
    return Along(whole, rows, time.perf_counter() - began)


def profile_of(
    along: Along,
    part: Part,
    sample: Task,
    *,
    k: int = 10,
    by: Engine = "auto",
    seed: int = 0,
    show: bool | None = None,
) -> Profile:
    """The profile of features that are there already, of a sample's training examples."""
    n = sample.size("train")
    each: dict[str | None, Tensor] = dict(along.rows.items())
    rows = without_repeats(each)
    began = time.perf_counter()
    codes = torch.unique(sample.subset("train")[1], return_inverse=True)[1]
    weights = layer_weights(along.pieces)
    with progress("measuring", len(rows), show=show) as step:
        measured = []
        for name, values in rows.items():
            try:
                row = _measured(str(name), values, codes, k, by, seed)
            except TaskError as error:
                raise TaskError(f"at {name}: {error}") from None
            own = [w for w in weights if w.at == name]
            measured.append(_with_weights(row, own))
            step(str(name))
    share = codes.bincount().double() / n
    present = torch.unique(sample.subset("train")[1]).tolist()
    epoch = part.origin.settings.get("kept_epoch")
    return Profile(
        part=part.described,
        task=sample.name,
        split="train",
        n=n,
        k=k,
        classes=tuple(sample.classes[code] for code in present),
        label_entropy=float(-(share * share.log2()).sum()) + 0.0,
        nothing=1 - float(share.square().sum()),
        chance_redundancy=float((share ** (k + 1)).sum()),
        points=tuple(measured),
        weights=tuple(weights),
        planes=_planes(rows, codes, seed),
        epoch=epoch if isinstance(epoch, int) else None,
        feature_seconds=along.seconds,
        measure_seconds=time.perf_counter() - began,
        settings={"seed": seed},
    )


def profile_over(
    parts: Sequence[Part | nn.Module] | Mapping[str, Part | nn.Module], task: Task, **options: Any
) -> ProfileOver:
    """Profiles of several networks on the same examples, such as the epochs of one training.

    Args:
        parts: Several, or several by name; ``Snapshots.parts`` gives those of a training.
        task: As for :func:`profile`, whose other arguments are the ``options``.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> nets = {f"seed {seed}": build("mlp", seed=seed) for seed in (0, 1)}
    >>> profile_over(nets, load_task("digits"), limit=100).names
    ('seed 0', 'seed 1')
    """
    several = named(parts)
    profiles = tuple(
        replace(profile(part, task, **options), planes=None) for part in several.values()
    )
    return ProfileOver(
        task=task.name,
        names=tuple(several),
        profiles=profiles,
        settings=profiles[0].settings,
    )


def _drawn(task: Task, split: Split, limit: int | None, seed: int) -> Task:
    """The examples that are looked at, as the training split of a task."""
    if task.kind != "classes":
        raise TaskError(f"{task.name!r} is of kind {task.kind}; a profile tells classes apart")
    rows = task.indices(split)
    if limit is not None:
        need_least("limit", limit, 2)
        if limit < len(rows):
            order = torch.randperm(len(rows), generator=generator(seed, "profile"))
            rows = rows[order[:limit].sort().values]
    if len(rows) < 2:
        raise TaskError(f"{task.name!r} has {len(rows)} examples in its {split} split")
    return only(task, rows)


def _measured(
    at: str, values: Tensor, codes: Tensor, k: int, by: Engine, seed: int
) -> PointProfile:
    fit = linear_fit(values, codes)
    equal = equal_rows(values.double(), codes)
    coincide = int((equal.label[equal.of] < 0).sum())
    cells = None if coincide else pure_voronoi_map(values, codes, seed)
    selected = selection_entropy(values, codes)
    some = bool((~selected.isnan()).any())
    return PointProfile(
        at=at,
        width=values.shape[1],
        rank=fit.rank,
        least_squares_distance=fit.distance,
        by_chance=fit.by_chance,
        k_redundancy=k_redundancy(values, codes, k, by=by),
        pure_entropy=None if cells is None else cells.entropy,
        cells=None if cells is None else len(cells.labels),
        coincide=coincide,
        selection_entropy=float(selected.nanmean()) if some else None,
        class_scatter=class_scatter(values, codes),
        dead=float(dead_features(values).double().mean()),
    )


def layer_weights(pieces: Mapping[str, nn.Module]) -> list[LayerWeights]:
    """The matrices of every piece, under the names that the whole network has for them."""
    return [
        LayerWeights(
            name=name,
            at=at,
            shape=(weight.shape[0], weight[0].numel()),
            stable_rank=stable_rank(weight),
            entropy=weight_entropy(weight),
        )
        for at, piece in pieces.items()
        for name, weight in piece.named_parameters()
        if weight.ndim >= 2 and weight.numel()
    ]


def _with_weights(row: PointProfile, own: list[LayerWeights]) -> PointProfile:
    if not own:
        return row
    sizes = [weight.shape[0] * weight.shape[1] for weight in own]
    bits = sum(size * weight.entropy for size, weight in zip(sizes, own, strict=True))
    mean = sum(weight.stable_rank for weight in own) / len(own)
    return replace(row, stable_rank=mean, weight_entropy=bits / sum(sizes))


def _planes(
    rows: Mapping[str | None, Tensor], codes: Tensor, seed: int
) -> dict[str, tuple[tuple[float, float, int], ...]]:
    """Some examples at the first, a middle and the last point, along two principal components."""
    names = [name for name, values in rows.items() if values.shape[1] > 1]
    chosen = dict.fromkeys(names[i] for i in {0, len(names) // 2, len(names) - 1} if names)
    order = torch.randperm(len(codes), generator=generator(seed, "profile planes"))[:_SHOWN]
    found = {}
    for name in sorted(chosen, key=names.index):
        some = rows[name][order].double()
        _, s, axes = torch.linalg.svd(some - some.mean(0), full_matrices=False)
        if float(s[0]) > 0:
            axes = axes[:2]
            # The sign of an axis is free: its largest weight is positive, everywhere.
            axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
            xy = (some - some.mean(0)) @ axes.T
            found[str(name)] = tuple(
                (round(x, 6), round(y, 6), c)
                for (x, y), c in zip(xy.tolist(), codes[order].tolist(), strict=True)
            )
    return found
