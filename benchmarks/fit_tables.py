"""Is ``dt.fit`` on a table as good as gradient boosting, or does it choose it and say so?

Four tables that scikit-learn brings: breast cancer, wine, the digits as 64 numbers (classes), and
diabetes (a number).  Five splits each (70, 10 and 20 % of the rows); ``dt.fit`` with its defaults,
beside ``HistGradientBoosting...`` with its defaults on the same rows that ``fit`` may learn from,
training and validation split together.  Accuracy, or R², on the test rows.

Claim: on the mean over splits ``fit`` is at most 1.5 points below gradient boosting on every table,
or it is what ``fit`` chose.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

import dovetail as dt
from dovetail.core.evidence import Evidence, environment

TABLES = ("breast_cancer", "wine", "digits", "diabetes")
BELOW = 0.015


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/fit_tables.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = [row_of(name, args.splits) for name in TABLES]
    for row in rows:
        print(row, flush=True)
    Evidence(
        claim="fitting a table is at most 1.5 points below gradient boosting, or chooses it",
        holds=all(row["fit less boosting"] >= -BELOW for row in rows),
        rows=tuple(rows),
        command="python benchmarks/fit_tables.py",
        settings=environment(threads=args.threads, splits=args.splits),
    ).save(args.output)


def row_of(name: str, splits: int) -> dict[str, Any]:
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    kind = "regression" if name == "diabetes" else "classes"
    targets = y.astype(np.float32) if kind == "regression" else y
    ours, theirs, chosen, seconds = [], [], [], []
    for seed in range(splits):
        task = dt.Task(x.astype(np.float32), targets, name=name, kind=kind, seed=seed)
        began = time.process_time()
        fitted = dt.fit(task, seed=seed, show=False)
        seconds.append(time.process_time() - began)
        ours.append(fitted.record.value)
        chosen.append(fitted.record.how)
        theirs.append(boosted(task, seed))
    gains = [a - b for a, b in zip(ours, theirs, strict=True)]
    return {
        "table": name,
        "rows": len(x),
        "fit": statistics.mean(ours),
        "boosting": statistics.mean(theirs),
        "fit less boosting": statistics.mean(gains),
        "deviation of the difference": statistics.stdev(gains) if splits > 1 else None,
        "chosen": ", ".join(sorted(f"{how} {chosen.count(how)}" for how in set(chosen))),
        "cpu seconds": statistics.mean(seconds),
    }


def boosted(task: dt.Task, seed: int) -> float:
    kinds = {"classes": HistGradientBoostingClassifier, "regression": HistGradientBoostingRegressor}
    pool = torch.cat([task.indices("train"), task.indices("validation")])
    peer = kinds[task.kind](random_state=seed)
    peer.fit(task.inputs[pool].numpy(), task.targets[pool].numpy())
    x, y = task.subset("test")
    return float(peer.score(x.numpy(), y.numpy()))


if __name__ == "__main__":
    main()
