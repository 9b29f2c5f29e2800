"""How wide is a closed-form network to be if nobody says?  A rule for few rows, chosen on tables.

Where a layer has about as many units as there are rows, it fits them by heart and predicts worst.
``hidden_layer_sizes="auto"`` therefore looks at the rows; this is what its rule was chosen on.

**Protocol.**  40, 80, 160 and 320 rows (as many as there are) of iris, wine, breast cancer, digits
and diabetes, drawn by three seeds; five folds; a ``StandardScaler`` in front; defaults but for the
width: 100 units; half, a third or a fifth of the rows that are fitted (10 to 100 units); 100 units,
but half of the rows from 50 to 200, where 100 would be about as many; and, the other way out, twice
as many as rows below 200.  Reported is the accuracy (diabetes: r2) on the folds left out, the mean
over all data, sizes and seeds, and for each data set.

**Claim.**  100 units, but half of 50 to 200 rows, are as good as 100 units on average, and three
points better on all of iris, of which 120 rows are fitted: the worst case.  The rule was taken
because it is: this is a choice, and no test of it on other data.  (A first one, half of the rows
always, lost on average.)

``--scale small`` is this; ``tiny`` a smoke test on iris.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from statistics import mean
from typing import Any

from linearized.keeping import Found, found_once
from linearized.regression import arguments
from sklearn import datasets
from sklearn.base import BaseEstimator
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import shuffle

from dovetail.closed_form import PlatonicClassifier, PlatonicRegressor
from dovetail.core.evidence import Evidence, environment

DATA = {
    "tiny": ("iris",),
    "small": ("iris", "wine", "breast_cancer", "digits", "diabetes"),
}
ROWS, SEEDS = {"tiny": (40,), "small": (40, 80, 160, 320)}, {"tiny": 1, "small": 3}
DATA["paper"], ROWS["paper"], SEEDS["paper"] = DATA["small"], ROWS["small"], 10
FOLDS, LEAST, MOST = 5, 10, 100
RULES: dict[str, Callable[[int], int]] = {
    "100 units": lambda rows: MOST,
    "rows / 2": lambda rows: min(MOST, max(LEAST, rows // 2)),
    "rows / 3": lambda rows: min(MOST, max(LEAST, rows // 3)),
    "rows / 5": lambda rows: min(MOST, max(LEAST, rows // 5)),
    "100, half of 50 to 200 rows": lambda rows: rows // 2 if MOST < 2 * rows < 4 * MOST else MOST,
    "100, twice up to 200 rows": lambda rows: max(MOST, 2 * rows) if rows < 2 * MOST else MOST,
}
CHOSEN, BEFORE = "100, half of 50 to 200 rows", "100 units"
WORST, GAIN = "iris", 0.03


def network(name: str, width: int, seed: int) -> BaseEstimator:
    of = PlatonicRegressor if name == "diabetes" else PlatonicClassifier
    return make_pipeline(StandardScaler(), of((width,), random_state=seed))


def scored(name: str, rows: int, seed: int) -> Found:
    """The mean score over the folds under each rule."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    x, y = shuffle(x, y, random_state=seed)
    folds = (KFold if name == "diabetes" else StratifiedKFold)(FOLDS)
    found = {}
    for rule, width in RULES.items():
        net = network(name, width(rows * (FOLDS - 1) // FOLDS), seed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The least populated class")
            found[rule] = float(cross_val_score(net, x[:rows], y[:rows], cv=folds).mean())
    return found


def main() -> None:
    args = arguments(__doc__, "platonic_widths")
    found: dict[tuple[str, int], list[Found]] = {}
    for name in DATA[args.scale]:
        there = len(getattr(datasets, f"load_{name}")().target)
        for rows in sorted({min(rows, there) for rows in ROWS[args.scale]}):
            found[name, rows] = [
                found_once(
                    args.kept / args.scale,
                    f"{name} {rows} seed {seed}",
                    {"folds": FOLDS, "rules": list(RULES)},
                    partial(scored, name, rows, seed),
                )
                for seed in range(SEEDS[args.scale])
            ]
    rows_: list[dict[str, Any]] = []
    for name in ("all", *DATA[args.scale]):
        some = [run for (data, _), runs in found.items() if name in ("all", data) for run in runs]
        rows_.append({"data": name, **{rule: mean(run[rule] for run in some) for rule in RULES}})
        print({key: round(v, 3) if isinstance(v, float) else v for key, v in rows_[-1].items()})
    for (name, rows), runs in found.items():
        cell = {rule: mean(run[rule] for run in runs) for rule in RULES}
        rows_.append({"data": name, "rows": rows, **cell})
    worst = [row for row in rows_ if row["data"] == WORST][-1]  # the most rows of it
    Evidence(
        claim="a hundred units, but half as many as rows where those are 50 to 200, are as good as "
        "a hundred on average over small tables, and three points better on iris",
        holds=rows_[0][CHOSEN] >= rows_[0][BEFORE] and worst[CHOSEN] >= worst[BEFORE] + GAIN,
        rows=tuple(rows_),
        command=f"python reproduce/platonic_widths.py --threads {args.threads}",
        settings=environment(threads=args.threads, scale=args.scale, seeds=SEEDS[args.scale]),
    ).save(args.output)


if __name__ == "__main__":
    main()
