"""Rank parts, cut points and checkpoints for a task, or several, without training anything."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from dovetail.core.errors import DovetailError, SettingsError, TaskError
from dovetail.core.progress import progress
from dovetail.dist.group import gathered, my_share, rank_and_size
from dovetail.measure.features import Pooling, features, features_along
from dovetail.measure.forward import outputs_of
from dovetail.parts.cutting import CutPoint, cut
from dovetail.parts.part import Part
from dovetail.ranking.candidates import Candidate, Parts, candidate, named, sampled
from dovetail.ranking.expected import Expected
from dovetail.ranking.measuring import (
    BY_EXAMPLE,
    By,
    Measured,
    Yardstick,
    probably_better,
    yardstick,
    z_score,
)
from dovetail.ranking.ntk import OUTPUTS, tangent_kernel
from dovetail.ranking.records import LeftOut, Ranked, Ranking, RankingOver, Served
from dovetail.ranking.scores import needs_network
from dovetail.ranking.winner import honest_intervals, honest_winner
from dovetail.settings.rank import Rank
from dovetail.tasks.task import Split, Task

__all__ = ["rank", "rank_over"]

MEASURES = {"classes": "accuracy", "multilabel": "label accuracy", "regression": "R²"}
"""What a head is expected to reach, by the task's kind."""


def rank(
    parts: Parts,
    task: Task,
    *,
    by: By | None = Rank.by,
    at: str | CutPoint | Sequence[str | CutPoint] | None = Rank.at,
    samples: int | None = Rank.samples,
    network_samples: int = 300,
    split: Split = Rank.split,
    pooling: Pooling = Rank.pooling,
    groups: int = 10,
    permutations: int = 20,
    confidence: float = Rank.confidence,
    seed: int = 0,
    batch_size: int = 512,
    cache: Any = Rank.cache,
    show: bool | None = None,
) -> Ranking:
    """Rank candidates for a task by what their features say about its labels, best first.

    Args:
        parts: A part or module, several, or several by name.  A network that ends in a head is
            ranked before its last layer.  Parts kept along a training are ranked as epochs.
        task: Its labelled examples decide; of kind classes, multilabel, regression or pairs.
        by: A score's name, or a function of ``(features, labels)`` to a number, higher is better;
            by default what a head can be expected to reach, of a task of pairs the alignment.
            Scores of the whole network (``"ntk-loo"``, ``"ntk-centred-al"``) ask how fine-tuning
            begins; docs/rank.md says what they are worth.
        at: Cut points to rank inside each network: names, ``"every"``, or ``"output"``.
        samples: How many examples to look at; ``None`` is all of them.
        network_samples: How many at most, by a score of the whole network (ntk-...), whose cost
            grows with the gradients of each example.
        split: Where they come from; never the test split.
        pooling: How feature maps become rows, ``"average"`` or ``"flatten"``.
        groups: Of the jackknife, at least 3.
        permutations: Of the labels, for the z-score; 0 for none.
        confidence: Of the intervals.
        seed: For the sample, the groups, the permutations and the winner's interval.
        batch_size: Inputs a batch.
        cache: A folder that keeps features between calls.
        show: Progress bar: ``None`` on a terminal only.

    Under ``torchrun``, with a process group, each process runs its share of the examples, and all
    of them return the same ranking.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> nets = {f"{width} wide": build("mlp", hidden=(width,)) for width in (2, 64)}
    >>> rank(nets, load_task("digits"), at="hidden1", samples=500)
    Ranking(2 candidates for 'digits' by ...: best '64 wide at hidden1')
    """
    if not isinstance(task, Task):
        raise SettingsError(f"task must be a Task, got {type(task).__name__}; see dt.load_task")
    several = named(parts)
    limit = samples
    if needs_network(by):
        limit = network_samples if samples is None else min(samples, network_samples)
    small = sampled(task, limit, split, seed)
    mine = _share_of(small)
    stick = yardstick(
        small, by, groups=groups, permutations=permutations, confidence=confidence, seed=seed
    )
    found: list[tuple[Ranked, Measured]] = []
    left_out: list[LeftOut] = []
    points: dict[str, list[str]] = {}
    trained_here: list[str] = []
    with progress(f"ranking for {task.name}", len(several), show=show) as tick:
        for name in several:
            try:
                chosen = candidate(name, several[name], at)
                points[name] = list(chosen.at or ())
                if chosen.part.origin.task_fingerprint == task.fingerprint:
                    trained_here.append(name)
                found += _at_points(chosen, mine, small, stick, pooling, batch_size, cache)
            except DovetailError as error:
                left_out.append(LeftOut(name, str(error)))
            tick(name)
    if not found:
        why = "; ".join(f"{out.part}: {out.why}" for out in left_out[:3])
        raise TaskError(f"no part can be ranked for {task.name!r} ({why})")
    notes = []
    if trained_here and split == "train":
        names = ", ".join(trained_here[:5]) + (" and others" if len(trained_here) > 5 else "")
        notes.append(
            f"Trained on these very examples: {names}. What a head is expected to reach there is "
            "too high; rank on the validation split."
        )
    if limit != samples and task.size(split) > stick.n:
        notes.append(
            f"{stick.name} takes the gradients of each example, so that {stick.n} examples were "
            "looked at and not more; network_samples= says how many."
        )
    return Ranking(
        task=task.name,
        by=stick.name,
        n=stick.n,
        measure=MEASURES.get(task.kind, ""),
        places=_best_first(found, stick),
        left_out=tuple(left_out),
        notes=tuple(notes),
        confidence=confidence,
        settings={
            "split": split,
            "samples": stick.n,
            "pooling": pooling,
            "groups": stick.groups,
            "permutations": permutations,
            "seed": seed,
            "task_fingerprint": task.fingerprint,
            "points": {name: at for name, at in points.items() if at},
            **({"tangent_outputs": OUTPUTS} if stick.needs_network else {}),
        },
    )


def rank_over(parts: Parts, tasks: Task | Sequence[Task], **options: Any) -> RankingOver:
    """Rank the same candidates for each task, and for all of them together.

    The best checkpoint to transfer from is rarely the last: transferability rises, then falls,
    while the source accuracy still rises.  ``options`` are those of :func:`rank`.

    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> from dovetail.tasks.derive import only_classes
    >>> digits = load_task("digits")
    >>> halves = [only_classes(digits, classes) for classes in ("01234", "56789")]
    >>> nets = {f"{width} wide": build("mlp", hidden=(width,)) for width in (2, 64)}
    >>> rank_over(nets, halves, at="hidden1", samples=300).best.name
    '64 wide at hidden1'
    """
    tasks = [tasks] if isinstance(tasks, Task) else list(tasks)
    if not tasks:
        raise SettingsError("name at least one task to rank for")
    if len({task.kind for task in tasks}) > 1:
        kinds = ", ".join(f"{task.name} ({task.kind})" for task in tasks)
        raise SettingsError(f"these tasks have no measure in common, rank them one by one: {kinds}")
    rankings = [rank(parts, task, **options) for task in tasks]
    known = [{(p.part, p.at): p for p in ranking.places} for ranking in rankings]
    common = [key for key in known[0] if all(key in places for places in known[1:])]
    if not common:
        raise SettingsError("no candidate could be ranked for every one of the tasks")
    # What a head on frozen features will reach is beside the point if all weights are to move.
    expected = not needs_network(options.get("by")) and all(
        p.expected is not None for places in known for p in places.values()
    )
    values = {key: tuple(_value(places[key], expected) for places in known) for key in common}
    best = fmean(map(max, zip(*values.values(), strict=True)))
    served = [
        Served(*key, known[0][key].epoch, own, fmean(own), best - fmean(own))
        for key, own in values.items()
    ]
    return RankingOver(
        tasks=tuple(task.name for task in tasks),
        by=rankings[0].by,
        measure=rankings[0].measure if expected else "",
        places=tuple(sorted(served, key=lambda place: -place.mean)),
        rankings=tuple(rankings),
        settings=rankings[0].settings,
    )


def _value(place: Ranked, expected: bool) -> float:
    return float(place.plain if expected and place.plain is not None else place.score)


def _at_points(
    chosen: Candidate,
    task: Task,
    whole: Task,
    stick: Yardstick,
    pooling: Pooling,
    batch_size: int,
    cache: Any,
) -> Iterator[tuple[Ranked, Measured]]:
    """Measure a candidate at its points; ``task`` is this process's share of the ``whole``."""
    part = chosen.part
    _refuse_backs(part)
    began = time.perf_counter()
    probs = _source_probabilities(part, task, batch_size) if stick.needs_probs else None
    at_points: tuple[str | None, ...] = chosen.at or (None,)
    fronts = [part if at is None else cut(part, at=at)[0] for at in at_points]
    if chosen.at is not None and len(chosen.at) > 1:
        along = features_along(part, chosen.at, task, pooling=pooling, batch_size=batch_size)
        values = [along[at].values for at in chosen.at]
    else:
        taken = features(fronts[0], task, pooling=pooling, batch_size=batch_size, cache=cache)
        values = [taken.values]
    if probs is not None:
        probs = gathered(probs, stick.n)
    seconds = time.perf_counter() - began
    before: Tensor | None = None
    for at, front, own in zip(at_points, fronts, values, strict=True):
        rows = gathered(own, stick.n)
        if before is not None and rows.shape == before.shape and torch.equal(rows, before):
            continue  # a pooling or flattening layer that adds nothing
        before = rows
        began = time.perf_counter()
        kernel = None
        if stick.needs_network:  # of all pairs, hence not shared between processes
            inputs, _ = whole.subset("train")
            kernel = tangent_kernel(front, inputs, pooling=pooling, seed=stick.seed)
        measured = stick.measure(rows, front.contract.gives[0].activation, probs, kernel)
        expected = measured.expected
        low, high = measured.interval(stick.confidence)
        if stick.name == BY_EXAMPLE and expected is not None:
            low, high = expected.low, expected.high
        ranked = Ranked(
            part=chosen.name,
            at=at,
            epoch=chosen.epoch,
            score=measured.score,
            low=low,
            high=high,
            z=z_score(measured.score, measured.null),
            expected=None if expected is None else expected.value,
            expected_low=None if expected is None else expected.low,
            expected_high=None if expected is None else expected.high,
            width=rows.shape[1],
            weights=sum(p.numel() for p in front.module.parameters()),
            seconds=seconds,
            scoring_seconds=time.perf_counter() - began,
        )
        yield ranked, measured


def _refuse_backs(part: Part) -> None:
    spaces = [port.space for port in part.contract.takes if port.space is not None]
    if spaces or len(part.contract.takes) != 1:
        taken = f"features in {spaces[0]!r}" if spaces else "several tensors"
        raise SettingsError(f"it takes {taken}, not a task's inputs; rank the front of its network")


def _source_probabilities(part: Part, task: Task, batch_size: int) -> Tensor:
    if part.contract.classes is None:
        raise SettingsError("it has no head of its own, and this score needs its predictions")
    inputs, _ = task.subset("train")
    outputs = outputs_of(part, inputs, batch_size=batch_size).double()
    return outputs if part.contract.gives[0].activation == "softmax" else outputs.softmax(1)


def _share_of(task: Task) -> Task:
    """The examples that this process runs; all of them, if it is the only one."""
    rows = task.indices("train")
    if len(rows) < rank_and_size()[1]:
        raise SettingsError("there are more processes than examples to rank on")
    share = my_share(rows)
    none = share[:0]
    return task.derived(task.name, indices={"train": share, "validation": none, "test": none})


def _best_first(found: list[tuple[Ranked, Measured]], stick: Yardstick) -> tuple[Ranked, ...]:
    """In order of their scores, each compared with the next, the first corrected for its choice."""
    found = sorted(found, key=lambda one: -one[0].score)
    ranked = [one for one, _ in found]
    for i, ((_, one), (_, two)) in enumerate(pairwise(found)):
        apart = one.replicates - two.replicates
        if bool(apart.isfinite().all()):
            better = probably_better(one.score - two.score, apart)
            ranked[i] = replace(ranked[i], beats_next=better)
    every = [measured.expected for _, measured in found if measured.expected is not None]
    if ranked[0].expected is not None and len(every) > 1:
        ranked[0] = _corrected(ranked[0], every, stick)
    return tuple(ranked)


def _corrected(first: Ranked, every: list[Expected], stick: Yardstick) -> Ranked:
    """The first candidate's expected accuracy, honest although it was chosen.

    Chosen for that very number, it is too high, and the winner's curse is taken off.  Chosen by
    another score, it gets an interval that holds whichever candidate one picks.
    """
    verdicts = torch.stack([each.per_example for each in every])
    worth, own = [each.effective_n for each in every], every[0]
    if own.value >= max(each.value for each in every):
        bounds = honest_winner(verdicts, stick.confidence, stick.seed, worth=worth)
    else:
        bounds = honest_intervals(verdicts, stick.confidence, stick.seed, worth=worth)[0]
    value, low, high = min(bounds.value, own.value), bounds.low, bounds.high
    if own.kind == "regression":
        # R² has an interval that knows how its two variances go together; it only moves.
        moved = own.value - value
        low, high = own.low - moved, own.high - moved
    return replace(
        first,
        expected=value,
        expected_low=min(low, own.low),
        expected_high=max(high, value),
        chosen_among=len(every),
        before_choice=first.expected,
    )
