"""Scores beside truths: what the judge is given."""

from __future__ import annotations

import json
from statistics import mean

from dovetail.core.errors import TaskError
from dovetail.core.files import write_whole

from .parts import candidates
from .protocol import Workplace
from .scoring import scores_of
from .targets import TARGETS
from .truths import can_be_tuned, fine_tuned, frozen

__all__ = [
    "ELSEWHERE",
    "Scores",
    "Truths",
    "kept_scores",
    "keep_scores",
    "truths",
    "with_elsewhere",
]

Truths = dict[str, dict[str, float]]
"""target -> part -> accuracy"""

Scores = dict[str, dict[str, dict[str, float]]]
"""score -> target -> part -> value"""

ELSEWHERE = "truth elsewhere"
"""The part's mean accuracy on the *other* targets: the best that a static ranking could know."""


def keep_scores(place: Workplace, labels: int) -> None:
    """Compute every score and write the table."""
    table: dict[str, dict[str, dict[str, float | None]]] = {}
    for target in TARGETS:
        table[target] = {
            part.name: scores_of(part, target, place, labels) for part in candidates(place.protocol)
        }
        print(f"scored {target} from {labels} labels", flush=True)
    write_whole(place.file("scores", f"{labels}.json"), json.dumps(table, indent=1) + "\n")


def kept_scores(place: Workplace, labels: int) -> Scores:
    """The table, turned to score -> target -> part; values that are not there are left out."""
    file = place.file("scores", f"{labels}.json")
    if not file.is_file():
        raise TaskError(f"{file} is not there; run --stage scores first")
    found: Scores = {}
    for target, parts in json.loads(file.read_text()).items():
        for part, values in parts.items():
            for name, value in values.items():
                if value is not None:
                    found.setdefault(name, {}).setdefault(target, {})[part] = value
    return found


def truths(place: Workplace, which: str, measure: str = "accuracy") -> Truths:
    """The truth ``"frozen"`` or ``"fine-tuned"``; ``measure`` may be ``"first half"`` of test."""
    parts = candidates(place.protocol)
    if which == "frozen":
        return {t: {p.name: frozen(p, t, place)[measure] for p in parts} for t in TARGETS}
    tunable = [part for part in parts if can_be_tuned(part, place)]
    return {t: {p.name: fine_tuned(p, t, place)[measure] for p in tunable} for t in TARGETS}


def with_elsewhere(scores: Scores, truth: Truths) -> Scores:
    """The scores on the parts that have a truth, and the strongest static ranking beside them.

    >>> truth = {"a": {"p": 0.5, "q": 0.4}, "b": {"p": 0.9, "q": 1.0}}
    >>> with_elsewhere({}, truth)["truth elsewhere"]["a"]
    {'p': 0.9, 'q': 1.0}
    """
    known = {
        name: {
            target: {part: value for part, value in parts.items() if part in truth[target]}
            for target, parts in table.items()
        }
        for name, table in scores.items()
    }
    elsewhere = {
        target: {
            part: mean(truth[other][part] for other in truth if other != target)
            for part in truth[target]
        }
        for target in truth
    }
    return known | {ELSEWHERE: elsewhere}
