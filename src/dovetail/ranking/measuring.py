"""One candidate's score, its replicates and its null, from its features or its kernel.

Every candidate of a ranking is measured by the same :class:`Plan`: the same examples in the same
groups, and the same shuffles of the labels, so that candidates can be compared example by example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.objectives.pairwise import KINDS
from dovetail.ranking.expected import Expected, chance_values, expected_accuracy
from dovetail.ranking.heads import HeadKind
from dovetail.ranking.inputs import as_rows
from dovetail.ranking.jackknife import dealt
from dovetail.ranking.ntk import ntk_score
from dovetail.ranking.pair_sums import PairSums
from dovetail.ranking.scores import (
    DEFAULT,
    DEFAULT_OF_PAIRS,
    SCORES,
    By,
    Score,
    find_score,
    score,
)
from dovetail.ranking.statistics import PairStatistics
from dovetail.tasks.pairs import Pairs
from dovetail.tasks.task import Task

__all__ = ["By", "Measured", "Plan", "plan_for"]

_MOST_CELLS = 1 << 27
"""Second moments of all classes in all groups may hold this many numbers: a gibibyte."""

BY_EXAMPLE = "expected-accuracy"
"""The score that is a mean over examples: leaving some out needs no new fit."""


@dataclass(frozen=True, eq=False)
class Measured:
    """A candidate's score, the scores ``[G]`` without each group and ``[P]`` of shuffled labels."""

    score: float
    replicates: Tensor
    null: Tensor
    expected: Expected | None = None


@dataclass(frozen=True, eq=False)
class Plan:
    """How every candidate is measured.

    ``targets`` are class indices ``[n]`` or numbers ``[n, k]``; ``group [n]`` deals the examples
    to the groups of the jackknife; ``shuffles [P, n]`` are permutations of the examples.
    """

    by: Score | Callable[[Tensor, Tensor], float]
    name: str
    kind: HeadKind
    targets: Tensor
    group: Tensor
    groups: int
    shuffles: Tensor
    confidence: float
    seed: int
    pairs: Pairs | None = None

    @property
    def n(self) -> int:
        """The number of labelled examples."""
        return len(self.group)

    @property
    def needs_probs(self) -> bool:
        """Whether the score needs the predictions of the candidate's own head."""
        return isinstance(self.by, Score) and self.by.needs_probs

    @property
    def needs_network(self) -> bool:
        """Whether the score is of the tangent kernel."""
        return isinstance(self.by, Score) and self.by.needs_network

    def measure(
        self,
        features: Tensor,
        activation: str,
        probs: Tensor | None = None,
        kernel: Tensor | None = None,
    ) -> Measured:
        """Measure a candidate by its features ``[n, d]``, or by its tangent kernel ``[n, n]``."""
        rows = as_rows(features)
        if self.pairs is not None:
            return _by_pairs(self, self.pairs, rows, activation)
        if self.name == BY_EXAMPLE:
            return _by_example(self, rows, self._expected(rows))
        try:
            expected = self._expected(rows)
        except TaskError:  # one example a class, or too many classes: the score may still say
            expected = None
        if kernel is not None:
            return _by_kernel(self, kernel, expected)
        if isinstance(self.by, Score) and self.by.from_sums and self._sums_fit(self.by, rows):
            return _by_sums(self, self.by, rows, activation, expected)
        return _by_rows(self, rows, activation, probs, expected)

    def _sums_fit(self, by: Score, rows: Tensor) -> bool:
        """Whether sums of each group are smaller than the rows, or than what memory holds."""
        n, d = rows.shape
        if by.per_class:
            classes = len(torch.unique(self.targets))
            return n > d and (self.groups + 1) * classes * d * d <= _MOST_CELLS
        return n > d

    def _expected(self, rows: Tensor) -> Expected:
        return expected_accuracy(rows, self.targets, confidence=self.confidence, kind=self.kind)


def plan_for(
    task: Task,
    by: By | None,
    *,
    groups: int,
    permutations: int,
    confidence: float,
    seed: int,
) -> Plan:
    """The plan for the training examples of a task; refuses what cannot be scored."""
    if groups < 3:
        raise SettingsError(f"the jackknife needs at least 3 groups, got {groups}")
    if permutations < 0:
        raise SettingsError(f"permutations must not be negative, got {permutations}")
    if not 0 < confidence < 1:
        raise SettingsError(f"confidence lies between 0 and 1, got {confidence}")
    if by is None:
        by = DEFAULT_OF_PAIRS if task.kind == "pairs" else DEFAULT
    by = by.name if isinstance(by, Score) else by
    chosen = find_score(by) if isinstance(by, str) else by
    name = by if isinstance(by, str) else getattr(by, "__name__", type(by).__name__)
    if isinstance(chosen, Score) and task.kind not in chosen.fits:
        fitting = ", ".join(each.name for each in SCORES.values() if task.kind in each.fits)
        raise SettingsError(
            f"{name!r} does not rank for a task of kind {task.kind!r}; these do: {fitting}"
        )
    rows = task.indices("train")
    targets = task.targets[rows]
    if task.kind == "classes":
        _refuse_few(targets, task.name)
    elif task.kind != "pairs":
        targets = targets.reshape(len(targets), -1).double()
    groups = min(groups, len(rows))
    draw = generator(seed, "shuffles")
    shuffles = [torch.randperm(len(rows), generator=draw) for _ in range(permutations)]
    return Plan(
        chosen,
        name,
        "classes" if task.kind == "pairs" else task.kind,
        targets,
        dealt(targets, groups, seed),
        groups,
        torch.stack(shuffles) if shuffles else torch.zeros(0, len(rows), dtype=torch.int64),
        confidence,
        seed,
        task.pairs("train").within(rows) if task.kind == "pairs" else None,
    )


def _refuse_few(labels: Tensor, name: str) -> None:
    counts = labels.bincount()
    if int((counts > 0).sum()) < 2:
        raise TaskError(f"{name!r} shows one class only among the examples; a ranking needs two")
    if len(labels) < 4:
        raise TaskError(f"{name!r} has {len(labels)} examples to rank on; give at least 4")


def _by_example(plan: Plan, rows: Tensor, expected: Expected) -> Measured:
    """A mean over examples: leave groups out of the mean, fit heads to shuffled labels."""
    each = expected.per_example.double()
    member = torch.nn.functional.one_hot(plan.group + 1, plan.groups + 1)[:, 1:].double()  # [n, G]
    replicates = (each.sum() - each @ member) / (len(each) - member.sum(0))
    null = chance_values(rows, plan.targets, plan.shuffles, expected)
    return Measured(expected.value, replicates, torch.tensor(null, dtype=torch.float64), expected)


def _by_sums(
    plan: Plan, by: Score, rows: Tensor, activation: str, expected: Expected | None
) -> Measured:
    """Sums of each group, taken from the sum of all."""

    def sums(which: Tensor, targets: Tensor) -> PairStatistics:
        found = PairStatistics(activation, per_class=by.per_class)
        return found.update(rows[which], targets[which])

    shards = [sums(plan.group == g, plan.targets) for g in range(plan.groups)]
    total = sums(plan.group < 0, plan.targets)
    for shard in shards:
        total.merge(shard)
    value = total.score(by.name)
    replicates = []
    for shard in shards:
        total.subtract(shard)
        replicates.append(_or_nan(partial(total.score, by.name)))
        total.merge(shard)
    everything = torch.ones(len(rows), dtype=torch.bool)
    null = [sums(everything, plan.targets[order]).score(by.name) for order in plan.shuffles]
    return Measured(value, *_tensors(replicates, null), expected)


def _by_rows(
    plan: Plan, rows: Tensor, activation: str, probs: Tensor | None, expected: Expected | None
) -> Measured:
    """The whole score again without each group, and under each shuffle."""

    def value(which: Tensor, targets: Tensor) -> float:
        if not isinstance(plan.by, Score):
            return score(rows[which], targets[which], by=plan.by)
        return score(
            rows[which],
            targets[which],
            by=plan.name,
            activation=activation,
            source_probs=None if probs is None else probs[which],
            seed=plan.seed,
        )

    everything = torch.ones(len(rows), dtype=torch.bool)
    replicates = []
    for g in range(plan.groups):
        replicates.append(_or_nan(partial(value, plan.group != g, plan.targets)))
    null = [value(everything, plan.targets[order]) for order in plan.shuffles]
    return Measured(value(everything, plan.targets), *_tensors(replicates, null), expected)


def _by_kernel(plan: Plan, kernel: Tensor, expected: Expected | None) -> Measured:
    """The kernel once; without a group, what is left of it."""

    def value(which: Tensor, targets: Tensor) -> float:
        return ntk_score(kernel[which][:, which], targets[which], plan.name)

    everything = torch.ones(len(kernel), dtype=torch.bool)
    replicates = [
        _or_nan(partial(value, plan.group != g, plan.targets)) for g in range(plan.groups)
    ]
    null = [value(everything, plan.targets[order]) for order in plan.shuffles]
    return Measured(value(everything, plan.targets), *_tensors(replicates, null), expected)


def _by_pairs(plan: Plan, pairs: Pairs, rows: Tensor, activation: str) -> Measured:
    """Pair labels only: without a group, all the pairs that touch one of its examples are gone."""
    if plan.name not in KINDS:
        raise SettingsError(f"{plan.name!r} needs labels; of pairs one can ask {', '.join(KINDS)}")

    def value(examples: Tensor, kept: Pairs) -> float:
        sums = PairSums(activation)
        return sums.update(rows[examples], kept.first, kept.second, kept.same).score(plan.name)

    everyone = torch.arange(len(rows))
    replicates = []
    for g in range(plan.groups):
        left = (plan.group != g).nonzero()[:, 0]
        replicates.append(_or_nan(partial(value, left, pairs.within(left))))
    # Other examples at the ends of the same pairs: shuffled marks could contradict each other.
    null = [value(order, pairs) for order in plan.shuffles]
    return Measured(value(everyone, pairs), *_tensors(replicates, null))


def _or_nan(value: Callable[[], float]) -> float:
    """A replicate; where it is undefined without a group, there is no interval."""
    try:
        return value()
    except TaskError:
        return float("nan")


def _tensors(replicates: list[float], null: list[float]) -> tuple[Tensor, Tensor]:
    return (
        torch.tensor(replicates, dtype=torch.float64),
        torch.tensor(null, dtype=torch.float64),
    )
