"""Measured candidates in their order: how sure it is, and what the first of them is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from dovetail.core.errors import TaskError
from dovetail.measure.features import Pooling
from dovetail.ranking.course import Course
from dovetail.ranking.expected import Expected
from dovetail.ranking.measuring import BY_EXAMPLE, Measured, Yardstick, probably_better, z_score
from dovetail.ranking.ntk import OUTPUTS
from dovetail.ranking.records import LeftOut, Ranked, Ranking
from dovetail.ranking.winner import honest_intervals, honest_winner
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

MEASURES = {"classes": "accuracy", "multilabel": "label accuracy", "regression": "R²"}
"""What a head is expected to reach, by the task's kind."""


def placed(
    name: str,
    at: str | None,
    epoch: int | None,
    measured: Measured,
    stick: Yardstick,
    *,
    width: int,
    weights: int,
    seconds: float,
    scoring_seconds: float,
) -> Ranked:
    """What a ranking says of a candidate at one of its points, before it is compared."""
    expected = measured.expected
    low, high = measured.interval(stick.confidence)
    if stick.name == BY_EXAMPLE and expected is not None:
        low, high = expected.low, expected.high
    return Ranked(
        part=name,
        at=at,
        epoch=epoch,
        score=measured.score,
        low=low,
        high=high,
        z=z_score(measured.score, measured.null),
        expected=None if expected is None else expected.value,
        expected_low=None if expected is None else expected.low,
        expected_high=None if expected is None else expected.high,
        width=width,
        weights=weights,
        seconds=seconds,
        scoring_seconds=scoring_seconds,
    )


def ranking_of(
    task: Task,
    stick: Yardstick,
    places: tuple[Ranked, ...],
    *,
    left_out: Sequence[LeftOut],
    notes: Sequence[str] = (),
    trained_here: Sequence[str],
    points: Mapping[str, Sequence[str]],
    split: Split,
    pooling: Pooling,
    permutations: int,
    course: Course | None = None,
) -> Ranking:
    """The record: the places, and what a reader must know of them; refuses to be without any."""
    if not places:
        why = "; ".join(f"{out.part}: {out.why}" for out in left_out[:3])
        raise TaskError(f"no part can be ranked for {task.name!r} ({why})")
    notes = list(notes)
    if trained_here and split == "train":
        names = ", ".join(trained_here[:5]) + (" and others" if len(trained_here) > 5 else "")
        notes.append(
            f"Trained on these very examples: {names}. What a head is expected to reach there is "
            "too high; rank on the validation split."
        )
    return Ranking(
        task=task.name,
        by=stick.name,
        n=stick.n,
        measure=MEASURES.get(task.kind, ""),
        places=places,
        left_out=tuple(left_out),
        notes=tuple(notes),
        confidence=stick.confidence,
        course=course,
        settings={
            "split": split,
            "samples": stick.n,
            "pooling": pooling,
            "groups": stick.groups,
            "permutations": permutations,
            "seed": stick.seed,
            "task_fingerprint": task.fingerprint,
            "points": {name: list(at) for name, at in points.items() if at},
            **({"tangent_outputs": OUTPUTS} if stick.needs_network else {}),
        },
    )


def best_first(
    measured_parts: list[tuple[Ranked, Measured]], stick: Yardstick
) -> tuple[Ranked, ...]:
    """In order of their scores, each compared with the next, the first corrected for its choice."""
    measured_parts = sorted(measured_parts, key=lambda one: -one[0].score)
    ranked = [one for one, _ in measured_parts]
    for i, ((_, one), (_, two)) in enumerate(pairwise(measured_parts)):
        apart = one.replicates - two.replicates
        if bool(apart.isfinite().all()):
            better = probably_better(one.score - two.score, apart)
            ranked[i] = replace(ranked[i], beats_next=better)
    every = [measured.expected for _, measured in measured_parts if measured.expected is not None]
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
