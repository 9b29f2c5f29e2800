r"""One candidate's score, how sure it is, and its null, from its features or its kernel.

Every candidate of a ranking is measured by the same :class:`Yardstick`: the same examples in the
same groups, and the same shuffles of the labels, so that candidates can be compared example by
example: what two of them find hard cancels in the difference.

How sure a score is says the delete-a-group jackknife.  The examples are dealt to :math:`G` groups,
alike in every class.  With :math:`\theta_{(g)}` the score without group :math:`g`,

.. math:: \mathrm{se}^2 = \frac{G - 1}{G} \sum_g (\theta_{(g)} - \bar\theta_{(\cdot)})^2 .

A bootstrap would be wrong here: an example drawn twice makes a pair that is perfectly alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.measure.inputs import as_rows
from dovetail.measure.intervals import refuse_no_share
from dovetail.objectives.pairwise import KINDS
from dovetail.ranking.expected import Expected, chance_values, expected_accuracy
from dovetail.ranking.heads import HeadKind
from dovetail.ranking.ntk import ntk_score
from dovetail.ranking.pair_sums import PairSums
from dovetail.ranking.scores import DEFAULT, DEFAULT_OF_PAIRS, SCORES, By, Score, as_score, score
from dovetail.ranking.statistics import PairStatistics
from dovetail.tasks.pairs import Pairs
from dovetail.tasks.task import Task

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

    def interval(self, confidence: float) -> tuple[float | None, float | None]:
        """Where the score lies; unknown where it is undefined without some group."""
        if not bool(self.replicates.isfinite().all()):
            return None, None
        margin = half_width(self.replicates, confidence)
        return self.score - margin, self.score + margin


@dataclass(frozen=True, eq=False)
class Yardstick:
    """What every candidate is measured by.

    ``targets`` are class indices ``[n]`` or numbers ``[n, k]``, or where only ``pairs`` are known
    which example stands where ``[n]``; ``group [n]`` deals the examples to the groups of the
    jackknife; ``shuffles [P, n]`` are permutations of the examples.
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
        by_example, expected = self.name == BY_EXAMPLE, None
        # One example a class, or too many: another score may still say.
        with nullcontext() if by_example else suppress(TaskError):
            if self.pairs is None:
                how: dict[str, Any] = {"confidence": self.confidence, "kind": self.kind}
                expected = expected_accuracy(rows, self.targets, **how)
        if by_example and expected is not None:
            return self._by_example(rows, expected)
        if self.pairs is None and isinstance(self.by, Score) and self._sums_fit(self.by, rows):
            return self._by_sums(self.by, rows, activation, expected)
        everyone = torch.arange(self.n)

        def value(which: Tensor, targets: Tensor = self.targets) -> float:
            """The score of some examples, with these targets in place of theirs."""
            if self.pairs is not None:
                # Other examples at the ends of the same pairs: shuffled marks could contradict
                # each other.  Without a group, all pairs that touch one of its examples are gone.
                of_pairs = self.pairs.within(which)
                sums = PairSums(activation)
                sums.update(rows[targets[which]], of_pairs.first, of_pairs.second, of_pairs.same)
                return sums.score(self.name)
            if kernel is not None:
                return ntk_score(kernel[which][:, which], targets[which], self.name)
            options: dict[str, Any] = {"activation": activation, "seed": self.seed}
            options["source_probs"] = None if probs is None else probs[which]
            return score(rows[which], targets[which], self.by, **options)

        overall = value(everyone)
        without = [_or_nan(value, (self.group != g).nonzero()[:, 0]) for g in range(self.groups)]
        null = [value(everyone, self.targets[order]) for order in self.shuffles]
        return Measured(overall, _float64(without), _float64(null), expected)

    def _by_example(self, rows: Tensor, expected: Expected) -> Measured:
        """A mean over examples: leave groups out of the mean, fit heads to shuffled labels."""
        each = expected.per_example.double()
        member = torch.nn.functional.one_hot(self.group + 1, self.groups + 1)[:, 1:].double()
        without = (each.sum() - each @ member) / (len(each) - member.sum(0))  # [G]
        null = chance_values(rows, self.targets, self.shuffles, expected)
        return Measured(expected.value, without, _float64(null), expected)

    def _sums_fit(self, by: Score, rows: Tensor) -> bool:
        """Whether the score has sums, and those of each group are smaller than rows and memory."""
        n, d = rows.shape
        if not by.from_sums or n <= d:
            return False
        classes = len(torch.unique(self.targets)) if by.per_class else 0
        return (self.groups + 1) * classes * d * d <= _MOST_CELLS

    def _by_sums(
        self, by: Score, rows: Tensor, activation: str, expected: Expected | None
    ) -> Measured:
        """Sums of each group, taken from the sum of all."""

        def sums(rows: Tensor, targets: Tensor) -> PairStatistics:
            return PairStatistics(activation, per_class=by.per_class).update(rows, targets)

        def of_group(g: int) -> PairStatistics:
            return sums(rows[self.group == g], self.targets[self.group == g])

        total, groups = of_group(-1), [of_group(g) for g in range(self.groups)]
        for own in groups:
            total.merge(own)
        value, without = total.score(by.name), []
        for own in groups:
            without.append(_or_nan(total.subtract(own).score, by.name))
            total.merge(own)
        null = [sums(rows, self.targets[order]).score(by.name) for order in self.shuffles]
        return Measured(value, _float64(without), _float64(null), expected)


def yardstick(
    task: Task, by: By | None, *, groups: int, permutations: int, confidence: float, seed: int
) -> Yardstick:
    """What candidates are measured by on the training examples of a task; refuses what cannot be.

    >>> task = Task(torch.rand(8, 3), [0, 1] * 4)
    >>> yardstick(task, "knn-1", groups=4, permutations=2, confidence=0.9, seed=0).shuffles.shape
    torch.Size([2, 4])
    """
    if groups < 3:
        raise SettingsError(f"the jackknife needs at least 3 groups, got {groups}")
    if permutations < 0:
        raise SettingsError(f"permutations must not be negative, got {permutations}")
    refuse_no_share(confidence)
    if by is None:
        by = DEFAULT_OF_PAIRS if task.kind == "pairs" else DEFAULT
    chosen = as_score(by)
    name = getattr(chosen, "name", getattr(chosen, "__name__", type(chosen).__name__))
    if isinstance(chosen, Score) and task.kind not in chosen.fits:
        fitting = ", ".join(each.name for each in SCORES.values() if task.kind in each.fits)
        raise SettingsError(
            f"{name!r} does not rank for a task of kind {task.kind!r}; these do: {fitting}"
        )
    if task.kind == "pairs" and name not in KINDS:
        raise SettingsError(f"{name!r} needs labels; of pairs one can ask {', '.join(KINDS)}")
    rows = task.indices("train")
    targets, n = task.targets[rows], len(rows)
    groups = min(groups, n)
    group = dealt(targets, groups, seed)
    if task.kind == "classes":
        _refuse_few(targets, task.name)
    elif task.kind == "pairs":
        targets = torch.arange(n)
    else:
        targets = targets.reshape(n, -1).double()
    draw = generator(seed, "shuffles")
    shuffles = [torch.randperm(n, generator=draw) for _ in range(permutations)]
    return Yardstick(
        chosen,
        name,
        "classes" if task.kind == "pairs" else task.kind,
        targets,
        group,
        groups,
        torch.stack(shuffles) if shuffles else torch.zeros(0, n, dtype=torch.int64),
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


def _or_nan(value: Callable[..., float], of: Tensor | str) -> float:
    """A replicate; where it is undefined without a group, there is no interval."""
    try:
        return value(of)
    except TaskError:
        return math.nan


def _float64(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def dealt(targets: Tensor, groups: int, seed: int) -> Tensor:
    """A group ``[n]`` for each example, classes spread evenly over the groups.

    The only example of a class is in no group (-1): without it there would be another task.

    >>> dealt(torch.tensor([0] * 4 + [1] * 4), 4, seed=0).bincount()
    tensor([2, 2, 2, 2])
    >>> dealt(torch.tensor([0, 0, 0, 7]), 3, seed=0)[3]
    tensor(-1)
    """
    order = torch.randperm(len(targets), generator=generator(seed, "groups"))
    if not targets.is_floating_point() and targets.ndim == 1:
        order = order[torch.argsort(targets[order], stable=True)]
        _, codes, counts = torch.unique(targets, return_inverse=True, return_counts=True)
        order = order[counts[codes[order]] > 1]
    group = torch.full((len(targets),), -1)
    group[order] = torch.arange(len(order)) % groups
    return group


def standard_error(replicates: Tensor) -> float:
    """The jackknife's standard error from the scores ``[G]`` without each group.

    >>> values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    >>> without = (values.sum() - values) / 3
    >>> math.isclose(standard_error(without), values.std().item() / 2)
    True
    """
    count = len(replicates)
    spread = (replicates - replicates.mean()).square().sum()
    return math.sqrt((count - 1) / count * float(spread))


def half_width(replicates: Tensor, confidence: float) -> float:
    """Half the width of the score's interval, by Student's t with ``G - 1`` degrees of freedom.

    >>> half_width(torch.tensor([0.5, 0.5, 0.5]), 0.9)
    0.0
    """
    quantile = float(stats.t.ppf((1 + confidence) / 2, len(replicates) - 1))
    return quantile * standard_error(replicates)


def probably_better(difference: float, replicates: Tensor) -> float:
    """The probability that a difference of two scores is truly positive.

    Args:
        difference: The one score less the other.
        replicates: The same difference without each group ``[G]``.

    >>> probably_better(0.0, torch.tensor([0.1, -0.1, 0.0]))
    0.5
    """
    error = standard_error(replicates)
    if error == 0:
        return 0.5 if difference == 0 else float(difference > 0)
    return float(stats.t.cdf(difference / error, len(replicates) - 1))


def z_score(score: float, null: Tensor) -> float | None:
    """How many deviations the score lies above the scores ``[P]`` of shuffled labels, if any.

    >>> z_score(3.0, torch.tensor([-1.0, 0.0, 1.0]))
    3.0
    """
    deviation = float(null.double().std()) if len(null) > 1 else 0.0
    if not deviation > 0:
        return None
    return (score - float(null.double().mean())) / deviation
