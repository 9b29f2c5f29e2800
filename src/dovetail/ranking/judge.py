"""Which score to trust: scores of parts against what the parts turned out to be worth.

The units are targets, not parts: parts of one target share its luck, so that the intervals come
from resampling the targets, and a score is chosen for a target by what it did on the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import derived_seed
from dovetail.ranking.agreement import kendall, regret, weighted_tau, wins
from dovetail.ranking.judgement import Choice, Judged, Judgement, OnTarget, Summary

__all__ = ["Judgement", "judge"]

Values = Mapping[str, float | None]

MEASURES = ("weighted_tau", "tau", "regret_1", "regret_3", "wins")


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
    _refuse(scores, truths, noise, confidence, resamples)
    known = {target: _finite(values) for target, values in truths.items()}
    draws = np.random.default_rng(derived_seed(seed, "judge"))
    picks = draws.integers(len(known), size=(resamples, len(known)))
    judged = []
    for name, by_target in scores.items():
        tables = {
            target: _matched(by_target.get(target, {}), known[target])
            for target in known
            if len(_matched(by_target.get(target, {}), known[target])) > 1
        }
        if tables:
            beyond = {
                target: max(known[target].values()) - float(pairs[:, 1].max())
                for target, pairs in tables.items()
            }
            boots = _part_boots(tables, beyond, noise, picks, draws) if resample_parts else None
            judged.append(
                _judged(name, tables, beyond, tuple(known), noise, picks, confidence, boots)
            )
    if not judged:
        raise TaskError("no score has values for two parts of any target: nothing to judge")
    judged.sort(key=_order)
    return Judgement(
        truth=truth,
        targets=tuple(known),
        parts={target: len(values) for target, values in known.items()},
        scores=tuple(judged),
        chosen_leave_one_out=_chosen(judged, tuple(known)),
        ceiling=_ceiling(ceiling, tuple(known), picks, confidence),
        confidence=confidence,
        settings={
            "seed": seed,
            "resamples": resamples,
            "resample_parts": resample_parts,
            "noise": dict(noise) if isinstance(noise, Mapping) else noise,
        },
    )


Pairs = np.ndarray[Any, np.dtype[np.float64]]
"""Scores and truths of the parts that have both ``[m, 2]``."""


def _refuse(
    scores: Mapping[str, Any], truths: Mapping[str, Any], noise: Any, confidence: float, count: int
) -> None:
    if not scores or not truths:
        raise TaskError("judge needs at least one score and the truth of at least one target")
    if not 0 < confidence < 1:
        raise SettingsError(f"confidence lies between 0 and 1, got {confidence}")
    if count < 2:
        raise SettingsError(f"resamples must be at least 2, got {count}")
    if isinstance(noise, Mapping) and (missing := set(truths) - set(noise)):
        raise SettingsError(f"noise names no value for the target {min(missing)!r}")


def _finite(values: Values) -> dict[str, float]:
    return {part: float(v) for part, v in values.items() if v is not None and math.isfinite(v)}


def _matched(values: Values, truths: Mapping[str, float]) -> Pairs:
    # A score may be infinitely sure, but not undefined.
    there = {part: v for part, v in values.items() if v is not None and not math.isnan(v)}
    return np.array([(there[p], truths[p]) for p in truths if p in there]).reshape(-1, 2)


def _measured(pairs: Pairs, beyond: float, noise: float) -> tuple[float, ...]:
    """All measures; ``beyond`` is how much better the best part is that the score cannot see."""
    a, b = pairs.T
    lost = (regret(a, b, 1) + beyond, regret(a, b, 3) + beyond)
    return weighted_tau(a, b), kendall(a, b), *lost, wins(a, b, noise)


def _noise(noise: float | Mapping[str, float], target: str) -> float:
    return noise[target] if isinstance(noise, Mapping) else noise


def _judged(
    name: str,
    tables: Mapping[str, Pairs],
    beyond: Mapping[str, float],
    targets: tuple[str, ...],
    noise: float | Mapping[str, float],
    picks: np.ndarray[Any, Any],
    confidence: float,
    boots: np.ndarray[Any, Any] | None,
) -> Judged:
    grid = np.full((len(targets), len(MEASURES)), np.nan)
    on = []
    for row, target in enumerate(targets):
        if target in tables:
            grid[row] = _measured(tables[target], beyond[target], _noise(noise, target))
            weighted, plain, first, third, share = grid[row].tolist()
            on.append(
                OnTarget(
                    target,
                    len(tables[target]),
                    _or_none(weighted),
                    _or_none(plain),
                    first,
                    third,
                    _or_none(share),
                )
            )
    means = _mean(grid[picks]) if boots is None else boots
    several = len(on) > 1 or boots is not None
    tau_w, tau, one, three, won = (
        _summary(grid[:, i], means[:, i], confidence, several) for i in range(len(MEASURES))
    )
    return Judged(name, min(each.parts for each in on), tau_w, tau, one, three, won, tuple(on))


def _part_boots(
    tables: Mapping[str, Pairs],
    beyond: Mapping[str, float],
    noise: float | Mapping[str, float],
    picks: np.ndarray[Any, Any],
    draws: np.random.Generator,
) -> np.ndarray[Any, Any]:
    """Means ``[B, measures]`` with targets and their parts drawn anew."""
    names, found = list(tables), np.full((len(picks), len(MEASURES)), np.nan)
    for b in range(len(picks)):
        rows = []
        for target in draws.choice(names, size=len(names)):
            pairs = tables[str(target)]
            drawn = pairs[draws.integers(len(pairs), size=len(pairs))]
            rows.append(_measured(drawn, beyond[str(target)], _noise(noise, str(target))))
        found[b] = _mean(np.array(rows)[None])[0]
    return found


def _mean(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Means over targets ``[B, targets, measures]``, of what is known."""
    known = np.isfinite(values)
    count = known.sum(1)
    total = np.where(known, values, 0.0).sum(1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _summary(
    values: np.ndarray[Any, Any], means: np.ndarray[Any, Any], confidence: float, several: bool
) -> Summary:
    known, means = values[np.isfinite(values)], means[np.isfinite(means)]
    if not len(known):
        return Summary(None)
    if not several or not len(means):
        return Summary(float(known.mean()))
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Summary(float(known.mean()), float(low), float(high))


def _order(judged: Judged) -> tuple[float, float, str]:
    tau, lost = judged.weighted_tau.value, judged.regret_1.value
    return (
        math.inf if lost is None else round(lost, 12),
        math.inf if tau is None else -tau,
        judged.score,
    )


def _chosen(judged: list[Judged], targets: tuple[str, ...]) -> tuple[Choice, ...]:
    """For each target the score that has the least regret on the others."""
    found = []
    for target in targets:
        best: tuple[tuple[float, float, str], OnTarget] | None = None
        for one in judged:
            here = next((each for each in one.on if each.target == target), None)
            others = [each for each in one.on if each.target != target]
            if here is None or not others:
                continue
            taus = [each.weighted_tau for each in others if each.weighted_tau is not None]
            lost = round(float(np.mean([each.regret_1 for each in others])), 12)
            key = (lost, -float(np.mean(taus)) if taus else math.inf, one.score)
            if best is None or key < best[0]:
                best = key, here
        if best is not None:
            (_, _, name), here = best
            found.append(Choice(target, name, here.regret_1, here.weighted_tau))
    return tuple(found)


def _ceiling(
    halves: Mapping[str, tuple[Values, Values]] | None,
    targets: tuple[str, ...],
    picks: np.ndarray[Any, Any],
    confidence: float,
) -> Summary | None:
    if halves is None:
        return None
    grid = np.full((len(targets), 1), np.nan)
    for row, target in enumerate(targets):
        if target in halves:
            pairs = _matched(halves[target][0], _finite(halves[target][1]))
            grid[row] = weighted_tau(*pairs.T) if len(pairs) > 1 else np.nan
    several = int(np.isfinite(grid).sum()) > 1
    return _summary(grid[:, 0], _mean(grid[picks])[:, 0], confidence, several)


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
