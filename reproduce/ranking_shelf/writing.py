"""The records: each score beside each truth, and how often intervals hold."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from dovetail.core.evidence import Evidence, environment
from dovetail.ranking.judge import judge
from dovetail.ranking.judgement import Judgement, Summary
from dovetail.ranking.scores import SCORES

from .coverage import BUDGETS, covered, summary
from .judging import Scores, Truths, kept_scores, truths, with_elsewhere
from .parts import candidates
from .protocol import Workplace
from .scoring import STATIC
from .targets import TARGETS, target_task

__all__ = ["LEAST_COVERAGE", "write_coverage", "write_judgement"]

LEAST_COVERAGE = 0.85


def write_judgement(place: Workplace, which: str, results: Path, command: str) -> bool:
    """Hold every score against one truth; write the record and say whether the claim holds."""
    truth = truths(place, which)
    halves = [truths(place, which, half) for half in ("first half", "second half")]
    small = {c.name for c in candidates(place.protocol) if c.at == "hidden"}
    rows: list[dict[str, Any]] = []
    for labels, chosen in ((500, "all"), (500, "small networks"), (200, "all"), (50, "all")):
        parts = None if chosen == "all" else small
        judgement = _judged(place, labels, truth, halves, parts)
        rows += [{"labels": labels, "parts": chosen} | row for row in _rows(judgement)]
    scores = kept_scores(place, max(BUDGETS))
    fair = judge(_complete(scores, truth), truth, truth=which)
    everything = _judged(place, max(BUDGETS), truth, halves, None)
    static = {name: everything[name].regret_1.value or 0.0 for name in STATIC}
    lost = fair.chosen_regret or 0.0
    best = min(static, key=lambda name: static[name])
    print(
        f"{which}: least regret by {fair.best.score}; chosen on other targets {lost:.4f}, "
        f"best static fact ({best}) {static[best]:.4f}; {everything.summary}"
    )
    evidence = Evidence(
        claim=f"a score chosen on other targets loses less than any static fact ({which} truth)",
        holds=lost < static[best],
        rows=tuple(rows),
        command=command,
        settings=environment(
            threads=torch.get_num_threads(),
            protocol=place.protocol.digest,
            least_regret=fair.best.score,
            chosen_regret=lost,
            chosen={choice.target: choice.score for choice in fair.chosen_leave_one_out},
            ceiling=_shown(everything.ceiling),
            parts=everything.parts,
        ),
    )
    evidence.save(results / f"rank_parts_{which.replace('-', '')}.json")
    return evidence.holds


def write_coverage(place: Workplace, results: Path, command: str) -> bool:
    """Hold the intervals of expected accuracy against the heads they speak of."""
    found = [
        row
        for target in TARGETS
        for labels, draws in BUDGETS.items()
        for draw in range(draws)
        for row in covered(target, labels, draw, place)
    ]
    rows: list[dict[str, Any]] = []
    for labels in BUDGETS:
        here = [row for row in found if row["labels"] == labels]
        every = [row for row in here if row["part"] != "winner"]
        winners = [row for row in here if row["part"] == "winner"]
        rows += [
            {"labels": labels, "of": "every part"} | summary(every),
            {"labels": labels, "of": "the winner, plain interval"} | summary(winners),
            {"labels": labels, "of": "the winner, honest interval"} | summary(winners, "honest"),
        ]
        for target in TARGETS:
            one = [row for row in every if row["target"] == target]
            rows.append({"labels": labels, "of": f"every part on {target}"} | summary(one))
    whole = [row for row in rows if row["of"] == "every part"]
    for row in rows:
        if not row["of"].startswith("every part on"):
            print({name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()})
    evidence = Evidence(
        claim=f"90 % intervals of expected accuracy hold the head's accuracy in "
        f"{LEAST_COVERAGE:.0%} of cases, the test's own noise allowed for",
        holds=all(row["inside, test noise allowed"] >= LEAST_COVERAGE for row in whole),
        rows=tuple(rows),
        command=command,
        settings=environment(threads=torch.get_num_threads(), protocol=place.protocol.digest),
    )
    evidence.save(results / "expected_coverage.json")
    return evidence.holds


def _judged(
    place: Workplace, labels: int, truth: Truths, halves: list[Truths], parts: set[str] | None
) -> Judgement:
    truth, *halves = (_only(table, parts) for table in (truth, *halves))
    return judge(
        with_elsewhere(kept_scores(place, labels), truth),
        truth,
        ceiling={target: (halves[0][target], halves[1][target]) for target in truth},
        noise={target: _noise(truth[target], target, place) for target in truth},
        seed=place.protocol.seed,
    )


def _only(truth: Truths, parts: set[str] | None) -> Truths:
    if parts is None:
        return truth
    return {t: {p: v for p, v in values.items() if p in parts} for t, values in truth.items()}


def _noise(truth: dict[str, float], target: str, place: Workplace) -> float:
    """Twice the standard error of a difference of two accuracies on this target."""
    share, count = mean(truth.values()), target_task(target, place).size("test")
    return 2 * sqrt(2 * share * (1 - share) / count)


def _complete(scores: Scores, truth: Truths) -> Scores:
    """The scores proper that have a value for every part: those a default can be chosen from."""
    return {
        name: table
        for name, table in scores.items()
        if name in SCORES and all(set(truth[target]) <= set(table[target]) for target in truth)
    }


def _rows(judgement: Judgement) -> list[dict[str, Any]]:
    rows = []
    for one in judgement.scores:
        row: dict[str, Any] = {"score": one.score, "scored parts": one.parts}
        for name, found in (
            ("weighted tau", one.weighted_tau),
            ("regret@1", one.regret_1),
            ("regret@3", one.regret_3),
        ):
            row |= {name: found.value, f"{name} low": found.low, f"{name} high": found.high}
        row |= {"wins": one.wins.value, "tau": one.tau.value}
        rows.append({name: _rounded(value) for name, value in row.items()})
    return rows


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _shown(found: Summary | None) -> dict[str, float | None] | None:
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high}
