"""Which measure of the lens foretells transfer best, beside the scores made for ranking?

Fixed before running.  **Parts and targets** are those of ``rank_anytime.py``: 31 candidates of the
ranking shelf, ten targets, the examples of each in its order.  **Measured** are 500 labelled
examples of every target, the same number of each class.

**Truths**, both test accuracies (2000 images, of digits 359): "logistic", a logistic head (C =
0.01) on standardised features of the 500, the primary one, since nothing here is made of it; and
"ridge", the head of expected accuracy on all labelled examples (2000, of digits fewer).

**Measures of the lens**, each in the direction in which it is said to speak for a part: the
least-squares distance (less), the same minus what it is by chance, and divided by it (less),
k-redundancy with k = 10 (more), pure entropy (less), mean selection entropy (less), class scatter
(more), stable rank of the centred features (more), share of dead features (less).  A part of which
examples of two classes coincide has no pure entropy, one that selects nothing no selection entropy.

**Scores** beside them: LogME, NLEEP, PARC, H-score (Ledoit-Wolf), GBC, TransRate (scaled), centred
alignment, 3 nearest neighbours, ridge left one out, expected accuracy.  And the width.

**Told**: weighted Kendall correlation of each with the truth, and regret, the accuracy lost by
taking the part that it puts first, with 90 % intervals over targets; what a measure of the lens
loses when it is chosen on the other nine targets.  **Claim**, against the logistic truth: the
measure of the lens with the greatest mean weighted tau reaches at least LogME's, and the chosen
one's regret is at most LogME's.

Features come from the shelf, which is built where it is not there (see ``rank_parts.py``).  Needs
``make data`` and ``pip install "dovetail[efficientnet]"``.
"""

from __future__ import annotations

import argparse
import warnings
from math import sqrt
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rank_anytime import SHELF, shelf, truth_of
from ranking_shelf.features import Rows, labelled, unseen
from ranking_shelf.keeping import Facts, kept_facts
from ranking_shelf.parts import Candidate
from ranking_shelf.protocol import Workplace
from ranking_shelf.scoring import budgeted
from ranking_shelf.targets import TARGETS
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dovetail.core.errors import TaskError
from dovetail.core.evidence import Evidence, environment
from dovetail.lens import (
    class_scatter,
    dead_features,
    k_redundancy,
    pure_entropy,
    selection_entropy,
    stable_rank,
)
from dovetail.measure.separation import linear_fit
from dovetail.ranking.judge import judge
from dovetail.ranking.scores import score

LABELS, K, STRENGTH = 500, 10, 0.01
SCORES = (
    *("logme", "nleep", "parc", "hscore-lw", "gbc", "transrate-scaled", "cka", "knn-3"),
    *("ridge-loo", "expected-accuracy"),
)
LENS = (
    *("least-squares distance", "the same minus chance", "the same by chance", "k-redundancy"),
    *("pure entropy", "selection entropy", "class scatter", "stable rank", "dead features"),
)
TRUTHS = ("logistic", "ridge")


def measured(rows: Rows) -> dict[str, float | None]:
    """Every measure and score, more for the better part."""
    x, y = rows.features, rows.labels
    fit = linear_fit(x, y)
    selected = selection_entropy(x, y)
    try:
        pure: float | None = -pure_entropy(x, y)
    except TaskError:  # examples of two classes coincide
        pure = None
    found = {
        "least-squares distance": -fit.distance,
        "the same minus chance": fit.by_chance - fit.distance,
        "the same by chance": -fit.distance / fit.by_chance if fit.by_chance > 0 else None,
        "k-redundancy": k_redundancy(x, y, K),
        "pure entropy": pure,
        "selection entropy": None if selected.isnan().all() else -float(selected.nanmean()),
        "class scatter": class_scatter(x, y),
        "stable rank": stable_rank((x - x.mean(0)).double()),
        "dead features": -float(dead_features(x).double().mean()),
        "width": float(x.shape[1]),
    }
    return found | {name: float(score(x, y, by=name)) for name in SCORES}


def logistic(train: Rows, test: Rows) -> float:
    """The test accuracy of the logistic head."""
    head = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, max_iter=500))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        head.fit(train.features.double().numpy(), train.labels.numpy())
    said = torch.from_numpy(head.predict(test.features.double().numpy()))
    return float((said == test.labels).double().mean())


def looked(candidate: Candidate, target: str, place: Workplace, kept: Path) -> Facts:
    """What is known of a part on a target: measures, scores and both truths."""

    def found() -> Facts:
        train, test = labelled(candidate, target, place), unseen(candidate, target, place)
        chosen = budgeted(train.labels, LABELS)
        rows = Rows(train.features[chosen], train.labels[chosen])
        return {
            "measures": measured(rows),
            "logistic": logistic(rows, test),
            "ridge": truth_of(candidate, target, place),
            "test": len(test.labels),
        }

    return kept_facts(kept / target / f"{candidate.name}.json", found)


def judged(facts: dict[str, dict[str, Facts]], which: str) -> tuple[list[dict[str, Any]], float]:
    """A row for each measure and score against one truth, and the chosen lens measure's regret."""
    truth = {t: {p: one[which] for p, one in parts.items()} for t, parts in facts.items()}
    names = next(iter(next(iter(facts.values())).values()))["measures"]
    scores = {
        name: {
            t: {p: one["measures"][name] for p, one in parts.items()} for t, parts in facts.items()
        }
        for name in names
    }
    noise = {}
    for target, parts in facts.items():
        share, count = mean(truth[target].values()), next(iter(parts.values()))["test"]
        noise[target] = 2 * sqrt(2 * share * (1 - share) / count)
    found = judge(scores, truth, truth=which, noise=noise)
    lens = judge({name: scores[name] for name in LENS}, truth, truth=which, noise=noise)
    rows = []
    for one in found.scores:
        row: dict[str, Any] = {
            "truth": which,
            "measure": one.score,
            "of": "lens" if one.score in LENS else "ranking" if one.score in SCORES else "facts",
            "scored parts": one.parts,
        }
        for name, value in (("weighted tau", one.weighted_tau), ("regret", one.regret_1)):
            row |= {name: value.value, f"{name} low": value.low, f"{name} high": value.high}
        row |= {"tau": one.tau.value, "wins": one.wins.value}
        rows.append({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    rows.sort(key=lambda row: -(row["weighted tau"] or 0.0))
    return rows, lens.chosen_regret or 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--results", type=Path, default=Path("reproduce/results"))
    parser.add_argument("--only", nargs="*", help="targets to run, without writing a record")
    args = parser.parse_args()
    torch.set_num_threads(1)
    place = Workplace(args.data, SHELF)
    kept = place.file("lens")
    facts: dict[str, dict[str, Facts]] = {}
    for target in args.only or TARGETS:
        facts[target] = {c.name: looked(c, target, place, kept) for c in shelf()}
        print(f"looked at {len(facts[target])} parts on {target}", flush=True)
    rows: list[dict[str, Any]] = []
    chosen = {}
    for which in TRUTHS:
        found, chosen[which] = judged(facts, which)
        rows += found
    for row in rows:
        print(row["truth"], row["measure"], row["weighted tau"], row["regret"], flush=True)
    print("chosen on other targets:", chosen)
    if args.only:
        return
    primary = {row["measure"]: row for row in rows if row["truth"] == TRUTHS[0]}
    best = max(LENS, key=lambda name: primary[name]["weighted tau"])
    logme = primary["logme"]
    evidence = Evidence(
        claim="the best measure of the lens orders parts at least as well as LogME, and the one "
        "chosen on other targets loses no more",
        holds=primary[best]["weighted tau"] >= logme["weighted tau"]
        and chosen[TRUTHS[0]] <= logme["regret"],
        rows=tuple(rows),
        command="python reproduce/lens_ranking.py",
        settings=environment(
            threads=1,
            protocol=SHELF.digest,
            labels=LABELS,
            k=K,
            strength=STRENGTH,
            best_of_the_lens=best,
            chosen_regret=chosen,
            parts=len(shelf()),
            targets=list(facts),
        ),
    )
    evidence.save(args.results / "lens_ranking.json")
    print(evidence.verdict)


if __name__ == "__main__":
    main()
