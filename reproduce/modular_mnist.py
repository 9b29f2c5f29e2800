"""LeNet-5 trained on MNIST in two modules is as good as end to end, and needs ten labels.

Table II and the label efficiency of "Modularizing deep learning via pairwise learning with
kernels", in 5 epochs a module instead of 600.  Protocol, fixed before running:

- LeNet-5 whose 84 features are scaled to unit length before the head, as in the paper, in every
  run but one ("no unit length": the plain network, end to end).  The body is all but the head.
- SGD with Nesterov momentum 0.9, one-cycle rate with peak 0.1, batch 128, weight decay 5e-4, no
  augmentation, a tenth of the training images set aside for validation; 5 epochs for the whole
  network, or 5 for the body and 5 for the head.  No setting was chosen on the test images, which
  are measured once at the end.  Three seeds: weights, order, pairs and labelled examples.
- Modules are trained with gradients clipped to length 1, the trainer's default; end to end there is
  no clipping.  This is a second protocol.  The first had no clipping and was given up when one of
  two bodies trained by AL had collapsed (validation proxy 0.33, all features alike: 11.35 % on the
  test images, the other 99.07 %).  Its trainings end to end with unit length were kept.
- "10 labels": a fresh head on the same frozen body, trained for 300 steps on one labelled image a
  class.  Ten draws of the ten images for each body.
- "pairs only": the body sees as many random pairs as there are training images, half of them alike.
- AL-NEO and UTAL-NEO are one objective (see docs/pairwise.md) and are trained once.  After a ReLU,
  the objectives of different pairs alone have a trivial optimum at features of zero.  The paper
  has no such row; they are here to see it.

The claim: AL in modules is within 0.3 points of the better of the two trainings end to end (ReLU),
and with one label a class within 0.2 points of all labels.

Needs ``make data``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.parts.contract import Preprocess
from dovetail.tasks.derive import few

CLOSE, CLOSE_WITH_TEN = 0.003, 0.002
DRAWS = 10


@dataclass(frozen=True)
class Case:
    """A row of the table; the paper's accuracy in per cent, where it has one."""

    activation: str
    objective: str | None = None
    supervision: str = "labels"
    unit: bool = True
    paper: float | None = None

    @property
    def name(self) -> str:
        """The row's name."""
        how = "end to end" if self.objective is None else f"modular {self.objective}"
        told = ", pairs only" if self.supervision == "pairs" else ""
        return f"{how} ({self.activation}{'' if self.unit else ', no unit length'}){told}"


CASES = (
    Case("relu", paper=99.33),
    Case("relu", "al", paper=99.35),
    Case("relu", unit=False),
    Case("relu", "al", "pairs"),
    Case("relu", "utal", paper=99.42),
    Case("relu", "nmse", paper=99.36),
    Case("tanh", paper=99.32),
    Case("tanh", "al-neo", paper=99.11),
    Case("tanh", "nmse-neo", paper=99.27),
    Case("tanh", "cts-neo", paper=99.16),
    Case("relu", "cts"),
    Case("relu", "nmse-neo"),
    Case("relu", "cts-neo"),
)


def feature_task(body: dt.Part, task: dt.Task) -> dt.Task:
    """What a frozen body gives for the training and the test images, as a task of vectors."""
    train, test = (dt.features(body, task, split=s, pooling="flatten") for s in ("train", "test"))
    n, m = len(train.targets), len(test.targets)
    return dt.Task(
        torch.cat([train.values, test.values]),
        torch.cat([train.targets, test.targets]),
        split={"train": torch.arange(n), "validation": [], "test": torch.arange(n, n + m)},
        name="features",
    )


def accuracy_of_head(head: dt.Part, labelled: dt.Task, seed: int) -> float:
    """A fresh head on features, trained for 300 steps or 5 epochs, whichever is more."""
    steps = max(labelled.size("train") // 128, 1)
    fit = dt.train.end_to_end(
        head,
        labelled,
        preprocess=Preprocess(),
        epochs=max(5, -(-300 // steps)),
        batch_size=128,
        lr=0.1,
        seed=seed,
    )
    return dt.evaluate(fit.part, labelled).accuracy


def run(case: Case, task: dt.Task, seed: int, epochs: int) -> dict[str, float]:
    """One training, and for a modular one the heads on ten labels."""
    began = time.perf_counter()
    net = dt.build("lenet5", activation=case.activation, unit=case.unit, seed=seed)
    options = {"epochs": epochs, "batch_size": 128, "lr": 0.1, "seed": seed}
    if case.objective is None:
        fit = dt.train.end_to_end(net, task, **options)
        return {
            "accuracy": dt.evaluate(fit.part, task).accuracy,
            "seconds": time.perf_counter() - began,
        }
    fit = dt.train.modular(
        net, task, objective=case.objective, supervision=case.supervision, **options
    )
    found = {
        "accuracy": dt.evaluate(fit.part, task).accuracy,
        "seconds": time.perf_counter() - began,
        **{
            name: fit.record.modules[0].final[name]
            for name in ("validation proxy", "validation k same", "validation k different")
        },
    }
    features = feature_task(fit.parts[0], task)
    _, head = dt.cut(net, at="unit")
    ten = [accuracy_of_head(head, few(features, 1, draw), draw) for draw in range(DRAWS)]
    return found | {"10 labels": statistics.mean(ten), "worst 10 labels": min(ten)}


def summary(case: Case, runs: list[dict[str, float]]) -> dict[str, object]:
    """Means over the seeds, and their spread."""
    values = [r["accuracy"] for r in runs]
    row: dict[str, object] = {
        "training": case.name,
        "accuracy": statistics.mean(values),
        "spread": statistics.stdev(values) if len(values) > 1 else 0.0,
        "paper (600 epochs)": None if case.paper is None else case.paper / 100,
    }
    for name in ("10 labels", "worst 10 labels", "validation k same", "validation k different"):
        if name in runs[0]:
            pick = min if name.startswith("worst") else statistics.mean
            row[name] = pick([r[name] for r in runs])
    return row | {"seeds": len(runs), "seconds": statistics.mean(r["seconds"] for r in runs)}


def verdict(rows: list[dict[str, object]]) -> bool:
    found = {str(row["training"]): row for row in rows}
    ends = ("end to end (relu)", "end to end (relu, no unit length)")
    if not {*ends, "modular al (relu)"} <= set(found):
        return False
    best = max(float(str(found[name]["accuracy"])) for name in ends)
    al = found["modular al (relu)"]
    every, ten = float(str(al["accuracy"])), float(str(al["10 labels"]))
    return every >= best - CLOSE and ten >= every - CLOSE_WITH_TEN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=("small", "paper"), default="small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path, help="a file that keeps finished trainings")
    parser.add_argument("--output", type=Path, default=Path("reproduce/results/modular_mnist.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    epochs = 5 if args.scale == "small" else 600
    task = dt.load_task("mnist", data=args.data)
    kept: dict[str, dict[str, float]] = {}
    if args.cache is not None and args.cache.exists():
        kept = json.loads(args.cache.read_text())
    rows: list[dict[str, object]] = []
    for case in CASES:
        runs = []
        for seed in range(args.seeds):
            key = f"{case.name}, seed {seed}, {epochs} epochs"
            if key not in kept:
                kept[key] = run(case, task, seed, epochs)
                if args.cache is not None:
                    args.cache.write_text(json.dumps(kept, indent=1))
            runs.append(kept[key])
            print(key, {k: round(v, 4) for k, v in kept[key].items()}, flush=True)
        rows.append(summary(case, runs))
        evidence = Evidence(
            claim=f"LeNet-5 on MNIST in two modules is as good as end to end ({epochs} epochs), "
            "and ten labels are enough for its output layer",
            holds=verdict(rows),
            rows=tuple(rows),
            command=f"python reproduce/modular_mnist.py --threads {args.threads}",
            settings=environment(threads=args.threads, scale=args.scale, draws=DRAWS),
        )
        if len(rows) >= 3:
            evidence.save(args.output)
    if not evidence.holds:
        raise SystemExit("the claim does not hold")


if __name__ == "__main__":
    main()
