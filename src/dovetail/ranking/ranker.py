"""Rank parts, cut points and checkpoints for a task, or several, without training anything."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from torch import Tensor

from dovetail.core.activations import KernelRange, kernel_range
from dovetail.core.errors import DovetailError, SettingsError, argument
from dovetail.core.progress import progress
from dovetail.dist.group import gathered
from dovetail.measure.features import Pooling
from dovetail.measure.forward import outputs_of
from dovetail.parts.cutting import CutPoint
from dovetail.parts.part import Part
from dovetail.ranking.anytime import rank_anytime
from dovetail.ranking.candidates import (
    Candidate,
    Parts,
    candidate,
    fronts_of,
    named,
    refuse_unknown_points,
    rows_at,
    sampled,
    share_of,
    without_repeats,
)
from dovetail.ranking.measuring import Measured, Yardstick, yardstick
from dovetail.ranking.ntk import tangent_kernel
from dovetail.ranking.placing import best_first, placed, ranking_of
from dovetail.ranking.records import LeftOut, Ranked, Ranking, RankingOver, Served
from dovetail.ranking.scores import RANGED, By, as_score, needs_network
from dovetail.settings.rank import Rank
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task


def rank(
    parts: Parts,
    task: Task,
    *,
    by: By | None = Rank.by,
    at: str | CutPoint | Sequence[str | CutPoint] | None = Rank.at,
    samples: int | None = Rank.samples,
    anytime: bool = Rank.anytime,
    seconds: float | None = Rank.seconds,
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
        anytime: Look at a growing share of the examples, and let candidates fall that can no
            longer be the best (:mod:`dovetail.ranking.elimination`): a fraction of the passes.
            By expected accuracy only.
        seconds: With ``anytime``, the time after which it says what is known so far.
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
    Rank.check({"seconds": seconds})
    by = None if by is None else as_score(by)
    refuse_unknown_points(several, at)
    if anytime:
        return rank_anytime(
            several,
            task,
            by=by,
            at=at,
            samples=samples,
            split=split,
            pooling=pooling,
            groups=groups,
            permutations=permutations,
            confidence=confidence,
            seed=seed,
            batch_size=batch_size,
            cache=cache,
            seconds=seconds,
            show=show,
        )
    if seconds is not None:
        raise SettingsError(f"{argument('seconds', ...)} is for {argument('anytime', True)}")
    limit = samples
    if needs_network(by):
        limit = network_samples if samples is None else min(samples, network_samples)
    small = sampled(task, limit, split, seed)
    stick = yardstick(
        small, by, groups=groups, permutations=permutations, confidence=confidence, seed=seed
    )
    measured: list[_Found] = []
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
                measured += _at_points(chosen, small, stick, pooling, batch_size, cache)
            except DovetailError as error:
                left_out.append(LeftOut(name, str(error)))
            tick(name)
    notes = []
    if len({one.kernel for one in measured if one.kernel is not None}) > 1:
        measured = [one.in_common or one for one in measured]
        notes.append(
            "Some kernels have both signs and some have not: all were held against zeros and ones, "
            f"so that their {stick.name} compares."
        )
    if limit != samples and task.size(split) > stick.n:
        notes.append(
            f"{stick.name} takes the gradients of each example, so that {stick.n} examples were "
            "looked at and not more; network_samples= says how many."
        )
    return ranking_of(
        task,
        stick,
        best_first([(one.ranked, one.measured) for one in measured], stick) if measured else (),
        left_out=left_out,
        notes=notes,
        trained_here=trained_here,
        points=points,
        split=split,
        pooling=pooling,
        permutations=permutations,
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
    if options.get("anytime"):
        raise SettingsError(
            "one part for several tasks is chosen by means over all candidates and examples; rank "
            f"without {argument('anytime', True)}, or task by task"
        )
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


@dataclass(frozen=True, eq=False)
class _Found:
    """A candidate that was measured.

    ``kernel`` is the range of its kernel, where the score holds kernels against their range;
    candidates of several ranges compare ``in_common`` only, against zeros and ones.
    """

    ranked: Ranked
    measured: Measured
    kernel: KernelRange | None = None
    in_common: _Found | None = None


def _at_points(
    chosen: Candidate,
    task: Task,
    stick: Yardstick,
    pooling: Pooling,
    batch_size: int,
    cache: Any,
) -> Iterator[_Found]:
    """Measure a candidate at its points."""
    part = chosen.part
    fronts = fronts_of(chosen)
    began = time.perf_counter()
    probs = None
    if stick.needs_probs:
        probs = gathered(_source_probabilities(part, share_of(task), batch_size), stick.n)
    rows_of = rows_at(part, fronts, task, pooling=pooling, batch_size=batch_size, cache=cache)
    seconds = time.perf_counter() - began
    for at, rows in without_repeats(rows_of).items():
        front, began = fronts[at], time.perf_counter()
        kernel = None
        if stick.needs_network:  # of all pairs, hence not shared between processes
            inputs, _ = task.subset("train")
            kernel = tangent_kernel(front, inputs, pooling=pooling, seed=stick.seed)
        activation = front.contract.gives[0].activation
        spans = kernel_range(activation) if stick.name in RANGED else None
        both = {activation} if spans is None or spans.beta == 0 else {activation, "relu"}
        by_range = {
            each: _Found(
                placed(
                    chosen.name,
                    at,
                    chosen.epoch,
                    measured := stick.measure(rows, each, probs, kernel),
                    stick,
                    width=rows.shape[1],
                    weights=sum(p.numel() for p in front.module.parameters()),
                    seconds=seconds,
                    scoring_seconds=time.perf_counter() - began,
                ),
                measured,
            )
            for each in sorted(both)
        }
        common = by_range["relu"] if len(both) > 1 else None
        yield replace(by_range[activation], kernel=spans, in_common=common)


def _source_probabilities(part: Part, task: Task, batch_size: int) -> Tensor:
    if part.contract.classes is None:
        raise SettingsError("it has no head of its own, and this score needs its predictions")
    inputs, _ = task.subset("train")
    outputs = outputs_of(part, inputs, batch_size=batch_size).double()
    return outputs if part.contract.gives[0].activation == "softmax" else outputs.softmax(1)
