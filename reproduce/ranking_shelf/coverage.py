r"""Do the intervals of expected accuracy hold what they promise?

For every part and target, draws of the labelled examples (disjoint where there are several): the
interval of :func:`expected_accuracy` at 90 %, the accuracy of the very ridge head on the test
examples, and whether it lies inside.  The interval is for unlimited new examples, and at most 2000
are there: an honest interval misses what these show more often than one time in ten.  So coverage
is also reported with the interval widened by the noise of the test, :math:`z \sqrt{p(1-p)/m}`.

For the winner, the part of greatest expected accuracy among all, the plain interval is beside the
one of :func:`honest_winner`.
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist, mean
from typing import Any

import torch

from dovetail.ranking.expected import Expected, expected_accuracy
from dovetail.ranking.heads import fit_head
from dovetail.ranking.winner import honest_winner

from .features import labelled, unseen
from .parts import Candidate, candidates
from .protocol import Workplace
from .scoring import budgeted
from .truths import frozen

__all__ = ["BUDGETS", "covered", "summary"]

CONFIDENCE = 0.9
BUDGETS = {50: 5, 200: 2, 500: 1}
"""Labels at hand, and how many disjoint draws of so many."""


def covered(target: str, labels: int, draw: int, place: Workplace) -> list[dict[str, Any]]:
    """A row for every part, and one more for the winner."""
    parts = candidates(place.protocol)
    found = [_one(part, target, labels, draw, place) for part in parts]
    rows = [row for row, _ in found]
    best = max(range(len(parts)), key=lambda i: found[i][1].value)
    verdicts = torch.stack([expected.per_example for _, expected in found])
    worth = [expected.effective_n for _, expected in found]
    value, low, high = honest_winner(verdicts, CONFIDENCE, place.protocol.seed, worth=worth)
    winner = rows[best] | {
        "part": "winner",
        "honest": value,
        "honest low": low,
        "honest high": high,
    }
    return [*rows, winner]


def summary(rows: list[dict[str, Any]], kind: str = "plain") -> dict[str, Any]:
    """Shares of intervals that hold the accuracy of the head, their mean width, the mean error."""
    bounds = [_bounds(row, kind) for row in rows]
    pairs = list(zip(rows, bounds, strict=True))
    full = all(row["labels"] == max(BUDGETS) for row in rows)  # as the logistic head
    return {
        "intervals": len(rows),
        "inside": mean(low <= row["ridge"] <= high for row, (_, low, high) in pairs),
        "inside, test noise allowed": mean(_held(row, *bound) for row, bound in pairs),
        "logistic head inside": mean(
            low <= row["logistic"] <= high for row, (_, low, high) in pairs
        )
        if full
        else None,
        "mean width": mean(high - low for _, low, high in bounds),
        "mean error": mean(value - row["ridge"] for row, (value, _, _) in pairs),
    }


def _bounds(row: dict[str, Any], kind: str) -> tuple[float, float, float]:
    names = ("expected", "low", "high")
    if kind == "honest":
        names = ("honest", "honest low", "honest high")
    value, low, high = (row[name] for name in names)
    return value, low, high


def _held(row: dict[str, Any], value: float, low: float, high: float) -> bool:
    """Whether the accuracy lies in the interval, both sides widened by the test's own noise."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    found = row["ridge"]
    noise = z * z * found * (1 - found) / row["test examples"]
    below, above = max(0.0, value - low), max(0.0, high - value)
    return bool(value - sqrt(below**2 + noise) <= found <= value + sqrt(above**2 + noise))


def _one(
    part: Candidate, target: str, labels: int, draw: int, place: Workplace
) -> tuple[dict[str, Any], Expected]:
    train, test = labelled(part, target, place), unseen(part, target, place)
    chosen = budgeted(train.labels, labels, draw)
    rows, codes = train.features[chosen], train.labels[chosen]
    expected = expected_accuracy(rows, codes, confidence=CONFIDENCE)
    head = fit_head(rows, codes)
    row = {
        "part": part.name,
        "target": target,
        "labels": labels,
        "draw": draw,
        "expected": expected.value,
        "low": expected.low,
        "high": expected.high,
        "ridge": head.accuracy(test.features, test.labels),
        "test examples": len(test.labels),
        "logistic": frozen(part, target, place)["accuracy"],
    }
    return row, expected
