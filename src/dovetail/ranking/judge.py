r"""Which score to trust: scores of parts against what the parts turned out to be worth.

The units are targets, not parts: parts of one target share its luck, so that the intervals come
from resampling the targets, and a score is chosen for a target by what it did on the others.

How well a score orders parts is told by rank correlations, regret and wins, all of scores and
truths of the same parts ``[m]``.  Kendall's :math:`\tau` weighs every pair alike; the weighted one
gives the pair of ranks :math:`r, s` the weight :math:`\frac1{r+1} + \frac1{s+1}`, so that mistakes
among the best parts count most,

.. math::
    \tau_w = \frac{\sum_{i<j} w_{ij}\, \operatorname{sgn}(a_i - a_j)\operatorname{sgn}(b_i - b_j)}
                  {\sqrt{\sum w_{ij} [a_i \ne a_j]}\, \sqrt{\sum w_{ij} [b_i \ne b_j]}} ,

the mean of ranking by :math:`a` and by :math:`b`.  Regret is what following the score costs: the
truth of the best part minus the best truth among the first :math:`k` by the score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import derived_seed
from dovetail.measure.intervals import refuse_no_share
from dovetail.ranking.judgement import Choice, Judged, Judgement, OnTarget, Summary

Values = Mapping[str, float | None]
Numbers = Sequence[float] | NDArray[np.float64]
_Array = NDArray[Any]


def judge(
    scores: Mapping[str, Mapping[str, Values]],
    truths: Mapping[str, Values],
    *,
    truth: str = "accuracy",
    ceiling: Mapping[str, tuple[Values, Values]] | None = None,
    noise: float | Mapping[str, float] = 0.0,
    confidence: float = 0.9,
    resample_parts: bool = False,
    resamples: int = 1000,
    seed: int = 0,
) -> Judgement:
    """Hold scores against the truth, target by target.

    Args:
        scores: Score → target → part → value; a part without a value (absent, ``None`` or nan) is
            left out for that score, and counted; regret is still against the best part of all.
        truths: Target → part → what it turned out to be worth.
        truth: What that is, in words.
        ceiling: Target → the truth on two halves of the test split: their agreement bounds what
            any score can show.
        noise: Wins are counted between parts whose truths differ by more; one, or one a target.
        confidence: Of the intervals.
        resample_parts: Resample the parts too, not the targets only.
        resamples: How many.
        seed: Of the resampling.

    >>> truths = {"digits": {"a": 0.9, "b": 0.8, "c": 0.7}, "wine": {"a": 0.5, "b": 0.6, "c": 0.7}}
    >>> good = {"digits": {"a": 3.0, "b": 2.0, "c": 1.0}, "wine": {"a": 1.0, "b": 2.0, "c": 3.0}}
    >>> size = {"digits": {"a": 1.0, "b": 2.0, "c": 3.0}, "wine": {"a": 1.0, "b": 2.0, "c": 3.0}}
    >>> found = judge({"width": size, "logme": good}, truths)
    >>> found, round(found["width"].regret_1.value, 3)
    (Judgement(2 scores on 2 targets against accuracy: best 'logme'), 0.1)
    """
    if not scores or not truths:
        raise TaskError("judge needs at least one score and the truth of at least one target")
    refuse_no_share(confidence)
    if resamples < 2:
        raise SettingsError(f"resamples must be at least 2, got {resamples}")
    if isinstance(noise, Mapping) and (missing := set(truths) - set(noise)):
        raise SettingsError(f"noise names no value for the target {min(missing)!r}")
    known = {target: _finite(values) for target, values in truths.items()}
    targets = tuple(known)
    draws = np.random.default_rng(derived_seed(seed, "judge"))
    picks = draws.integers(len(known), size=(resamples, len(known)))
    judged = []
    for name, by_target in scores.items():
        on = {}
        for target, truth_of in known.items():
            pairs = _matched(by_target.get(target, {}), truth_of)
            if len(pairs) > 1:
                beyond = max(truth_of.values()) - float(pairs[:, 1].max())
                apart = noise[target] if isinstance(noise, Mapping) else noise
                on[target] = _Scored(pairs, beyond, apart)
        if on:
            boots = _part_boots(list(on.values()), resamples, draws) if resample_parts else None
            judged.append(_judged(name, on, targets, picks, boots, confidence))
    if not judged:
        raise TaskError("no score has values for two parts of any target: nothing to judge")
    judged.sort(key=lambda one: _order(one.score, one.on))
    return Judgement(
        truth=truth,
        targets=targets,
        parts={target: len(values) for target, values in known.items()},
        scores=tuple(judged),
        chosen_leave_one_out=_chosen(judged, targets),
        ceiling=_ceiling(ceiling, targets, picks, confidence),
        confidence=confidence,
        settings={
            "seed": seed,
            "resamples": resamples,
            "resample_parts": resample_parts,
            "noise": dict(noise) if isinstance(noise, Mapping) else noise,
        },
    )


def _finite(values: Values) -> dict[str, float]:
    return {part: float(v) for part, v in values.items() if v is not None and math.isfinite(v)}


def _matched(values: Values, truths: Mapping[str, float]) -> _Array:
    """Scores and truths of the parts that have both ``[m, 2]``."""
    # A score may be infinitely sure, but not undefined.
    there = {part: v for part, v in values.items() if v is not None and not math.isnan(v)}
    return np.array([(there[p], truths[p]) for p in truths if p in there]).reshape(-1, 2)


class _Scored(NamedTuple):
    """A score on one target: ``pairs [m, 2]`` of scores and truths.

    ``beyond`` is how much better the best part is that the score cannot see; parts whose truths
    differ by no more than ``noise`` are not compared.
    """

    pairs: _Array
    beyond: float
    noise: float

    def measures(self) -> tuple[float, ...]:
        """Weighted tau, tau, regret of the first and of the first three, wins."""
        a, b = self.pairs.T
        lost = (regret(a, b, 1) + self.beyond, regret(a, b, 3) + self.beyond)
        return weighted_tau(a, b), kendall(a, b), *lost, wins(a, b, self.noise)

    def drawn(self, draws: np.random.Generator) -> _Scored:
        """With its parts drawn anew."""
        return self._replace(
            pairs=self.pairs[draws.integers(len(self.pairs), size=len(self.pairs))]
        )


def _part_boots(on: list[_Scored], resamples: int, draws: np.random.Generator) -> _Array:
    """Means ``[B, measures]`` with targets and their parts drawn anew."""
    several = [
        [on[i].drawn(draws).measures() for i in draws.integers(len(on), size=len(on))]
        for _ in range(resamples)
    ]
    return _mean(np.array(several))


def _judged(
    name: str,
    on: Mapping[str, _Scored],
    targets: tuple[str, ...],
    picks: _Array,
    boots: _Array | None,
    confidence: float,
) -> Judged:
    each = {target: scored.measures() for target, scored in on.items()}
    grid = np.array([each.get(target, (math.nan,) * 5) for target in targets])
    means = _mean(grid[picks]) if boots is None else boots
    several = len(on) > 1 or boots is not None
    summaries = [
        _summary(values, mean, confidence, several)
        for values, mean in zip(grid.T, means.T, strict=True)
    ]
    by_task = tuple(
        OnTarget(target, len(on[target].pairs), *(_or_none(value) for value in values))  # type: ignore[arg-type]
        for target, values in each.items()
    )
    weighted_tau, tau, regret_1, regret_3, wins = summaries
    least = min(one.parts for one in by_task)
    return Judged(name, least, weighted_tau, tau, regret_1, regret_3, wins, on=by_task)


def _mean(values: _Array) -> _Array:
    """Means over targets ``[B, targets, measures]``, of what is known."""
    known = np.isfinite(values)
    count = known.sum(1)
    total = np.where(known, values, 0.0).sum(1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _summary(values: _Array, means: _Array, confidence: float, several: bool) -> Summary:
    known, means = values[np.isfinite(values)], means[np.isfinite(means)]
    if not len(known):
        return Summary(None)
    if not several or not len(means):
        return Summary(float(known.mean()))
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Summary(float(known.mean()), float(low), float(high))


def _order(score: str, on: Sequence[OnTarget]) -> tuple[float, float, str]:
    """Of scores the one with the least mean regret comes first, then with the greatest tau."""
    taus = [each.weighted_tau for each in on if each.weighted_tau is not None]
    lost = round(fmean(each.regret_1 for each in on), 12)
    return lost, -fmean(taus) if taus else math.inf, score


def _chosen(judged: list[Judged], targets: tuple[str, ...]) -> tuple[Choice, ...]:
    """For each target the score that has the least regret on the others."""
    choices = []
    for target in targets:
        rivals = []
        for one in judged:
            here = [each for each in one.on if each.target == target]
            others = [each for each in one.on if each.target != target]
            if here and others:
                rivals.append((_order(one.score, others), here[0]))
        if rivals:
            (_, _, name), own = min(rivals, key=lambda rival: rival[0])
            choices.append(Choice(target, name, own.regret_1, own.weighted_tau))
    return tuple(choices)


def _ceiling(
    halves: Mapping[str, tuple[Values, Values]] | None,
    targets: tuple[str, ...],
    picks: _Array,
    confidence: float,
) -> Summary | None:
    if halves is None:
        return None
    grid = np.full(len(targets), np.nan)
    for row, target in enumerate(targets):
        if target in halves:
            pairs = _matched(halves[target][0], _finite(halves[target][1]))
            grid[row] = weighted_tau(*pairs.T) if len(pairs) > 1 else np.nan
    several = int(np.isfinite(grid).sum()) > 1
    return _summary(grid, _mean(grid[picks][:, :, None])[:, 0], confidence, several)


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def kendall(scores: Numbers, truths: Numbers) -> float:
    """Kendall's τ-b: 1 for one order, -1 for the reverse; nan when all are tied.

    >>> kendall([1, 2, 3], [10, 20, 30]), kendall([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """
    return float(stats.kendalltau(*_pair(scores, truths)).statistic)


def weighted_tau(scores: Numbers, truths: Numbers) -> float:
    """The weighted τ, hyperbolic and additive; nan when all are tied.

    >>> round(weighted_tau([12, 2, 1, 12, 2], [1, 4, 7, 1, 0]), 5)
    -0.56695
    """
    return float(stats.weightedtau(*_pair(scores, truths)).statistic)


def regret(scores: Numbers, truths: Numbers, first: int = 1) -> float:
    """What choosing the best of the first few by the score loses, ties taken at random.

    >>> regret([3, 2, 1], [0.8, 0.9, 0.7]), regret([3, 2, 1], [0.8, 0.9, 0.7], first=2)
    (0.09999999999999998, 0.0)
    >>> regret([1, 1], [0.8, 0.9])  # a coin decides
    0.04999999999999993
    """
    a, b = _pair(scores, truths)
    first = min(first, len(a))
    edge = np.sort(a)[-first]
    sure, tied = b[a > edge], np.sort(b[a == edge])
    floor = sure.max() if len(sure) else -np.inf
    drawn = first - len(sure)
    # The chance that the best of those drawn is the i-th of the tied ones, in rising order.
    chances = [math.comb(i, drawn - 1) / math.comb(len(tied), drawn) for i in range(len(tied))]
    expected = sum(p * max(floor, t) for p, t in zip(chances, tied.tolist(), strict=True) if p)
    return float(b.max() - expected)


def wins(scores: Numbers, truths: Numbers, noise: float = 0.0) -> float:
    """How often the score knows the better of two parts whose truths differ by more than noise.

    A tie of the score is half a win; nan when no two truths differ.

    >>> wins([1, 2, 2], [0.1, 0.2, 0.3])
    0.8333333333333334
    """
    a, b = _pair(scores, truths)
    apart = b[:, None] - b > noise
    if not apart.any():
        return math.nan
    return float((np.sign(a[:, None] - a)[apart] + 1).mean() / 2)


def _pair(scores: Numbers, truths: Numbers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(scores, dtype=np.float64), np.asarray(truths, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or len(a) < 2:
        raise ValueError(f"scores and truths of two parts or more, got {a.shape} and {b.shape}")
    # Only the order of the scores counts, and infinite ones have one too.
    return np.unique(a, return_inverse=True)[1].astype(np.float64), b
