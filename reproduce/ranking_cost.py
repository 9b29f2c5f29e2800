"""Ranking by AL costs time linear in the number of examples, and no training.

After the first table of "Modularizing deep learning via pairwise learning with kernels", which
counts operations; here seconds are measured.  One part (LeNet-5, cut before its last layer, 84
features), n = 500 to 20 000 examples of MNIST.  CPU time in one thread, the least of several runs,
beyond the pass that computes features or source predictions, which every method needs; that pass is
the first row.

- *AL as counted*: the n×n kernel of unit features against that of the labels, in blocks of rows.
- *AL in one pass*: the same number from sums (:class:`dovetail.ranking.PairStatistics`).
- *LEEP*, *NCE*: from the source network's predictions.
- *Task2Vec*: a head is trained on the target, then a gradient taken for each example and class.

Exponents are least-squares slopes of log seconds on log n, over n of at least 2000; one below 1 is
a fixed cost that still shows.  Task2Vec is measured up to 4000 examples, over all of which its
slope is taken.

**Holds** if the exponent of AL in one pass is at most 1.15 and both ways give the same AL to nine
digits.  Whether NCE and LEEP grow as the paper counts them (n³ and n²) is in the rows.

Needs ``make data``.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.measure.forward import outputs_of
from dovetail.objectives import unit_rows
from dovetail.ranking.scores import score
from dovetail.ranking.statistics import PairStatistics
from dovetail.ranking.task2vec import task_embedding

SIZES = (500, 1000, 2000, 5000, 10_000, 20_000)
TASK2VEC_SIZES = (500, 1000, 2000, 4000)
BLOCK = 500
LINEAR = 1.15


def al_by_pairs(features: Tensor, labels: Tensor) -> float:
    """AL over all n² pairs, after a ReLU: the ideal kernel is one for a pair of one class, else 0.

    A block of rows at a time, so that 20 000 examples need no 3 GB.
    """
    rows = unit_rows(features.double())
    product = size = ideal_size = 0.0
    for start in range(0, len(rows), BLOCK):
        kernel = rows[start : start + BLOCK] @ rows.T
        ideal = (labels[start : start + BLOCK, None] == labels).double()
        product += float((kernel * ideal).sum())
        size += float(kernel.square().sum())
        ideal_size += float(ideal.sum())
    return product / math.sqrt(size * ideal_size)


def al_in_one_pass(features: Tensor, labels: Tensor) -> float:
    return PairStatistics("relu", per_class=False).update(features, labels).score("al")


def cpu_seconds(run: Callable[[], object], *, enough: float = 0.5, most: int = 7) -> float:
    """The least CPU time of several runs, as many as fit into about half a second."""
    found: list[float] = []
    while not found or (sum(found) < enough and len(found) < most):
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    return min(found)


def exponent(seconds: dict[int, float], least: int) -> float:
    """The slope of log seconds on log n."""
    points = [(math.log(n), math.log(s)) for n, s in seconds.items() if n >= least]
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    rise = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return rise / sum((x - mean_x) ** 2 for x, _ in points)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("reproduce/results/ranking_cost.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    task = dt.load_task("mnist", data=args.data)
    net = dt.build("lenet5", classes=10, seed=0)
    front, _ = dt.cut(net, at="fc2")
    inputs, labels = task.subset("train")
    inputs, labels = inputs[: max(SIZES)], labels[: max(SIZES)]
    features = outputs_of(front, inputs)
    probs = torch.softmax(outputs_of(net, inputs), 1)

    methods: dict[str, Callable[[int], object]] = {
        "features of the part": lambda n: outputs_of(front, inputs[:n]),
        "AL in one pass": lambda n: al_in_one_pass(features[:n], labels[:n]),
        "AL as counted": lambda n: al_by_pairs(features[:n], labels[:n]),
        "LEEP": lambda n: score(features[:n], labels[:n], by="leep", source_probs=probs[:n]),
        "NCE": lambda n: score(features[:n], labels[:n], by="nce", source_probs=probs[:n]),
        "Task2Vec": lambda n: task_embedding(front, task, limit=n),
    }
    needs = {"Task2Vec": "training on the target", "LEEP": "source predictions"}
    needs["NCE"] = needs["LEEP"]
    counted = {"AL in one pass": "n²", "AL as counted": "n²", "LEEP": "n²", "NCE": "n³"}
    rows: list[dict[str, Any]] = []
    for name, run in methods.items():
        run(SIZES[0])  # the first call loads and compiles what it needs
        trained = name == "Task2Vec"
        sizes = TASK2VEC_SIZES if trained else SIZES
        seconds = {n: cpu_seconds(lambda n=n, run=run: run(n)) for n in sizes}
        rows.append(
            {
                "method": name,
                "needs": needs.get(name, "features" if "AL" in name else ""),
                "the paper counts": counted.get(name, "training" if trained else ""),
                "exponent": exponent(seconds, 500 if trained else 2000),
                **{f"n={n}": seconds.get(n) for n in sorted({*SIZES, *TASK2VEC_SIZES})},
            }
        )
        print(rows[-1], flush=True)
    both = al_by_pairs(features, labels), al_in_one_pass(features, labels)
    same = abs(both[0] - both[1]) <= 1e-9 * abs(both[0])
    ours = rows[1]["exponent"]
    evidence = Evidence(
        claim="ranking by AL costs time linear in the number of examples, and no training",
        holds=same and ours <= LINEAR,
        rows=tuple(rows),
        command="python reproduce/ranking_cost.py",
        settings=environment(threads=1, al_both_ways=f"{both[0]:.12f} and {both[1]:.12f}"),
    )
    evidence.save(args.output)
    print(f"{evidence.claim}: {'holds' if evidence.holds else 'does not hold'}")


if __name__ == "__main__":
    main()
