"""Are minima reached from a pretrained network flatter, and the loss around them smoother?

The source (Figures 4 to 6) compares ResNets trained from scratch with fine-tuned ones: smaller
eigenvalues of the Hessian, smoother landscapes.  Here, fixed before running:

**Networks.**  LeNet-5 (``norm="batch"``), pretrained on 5 000 images of classes 0 to 4 of MNIST and
of Fashion-MNIST, 5 epochs at a peak rate of 0.05.  Targets: classes 5 to 9, 100 training images a
class.  Both the pretrained network (its last layer drawn anew) and one from scratch train on the
target for 20 epochs; the rate of each is chosen among 0.01, 0.03 and 0.1 by validation accuracy.
Three seeds.

**Measured** on the 500 training images, networks as in evaluation: the largest of five eigenvalues
of the Hessian, its trace; on a grid of 21 × 21 points of filter-normalised directions (reach 1, the
same directions for both) how much the mean loss of the grid is above that at the minimum, and the
roughness, the mean absolute second difference along both axes.  At the start as well: the loss on
the grid around the initial weights (a fresh head on both).

**Claim**, for each target on the mean over seeds: of the fine-tuned minimum the eigenvalue, the
trace, the rise and the roughness are all below those from scratch, by more than the standard error
of the paired difference.

``--scale tiny`` is a smoke test.  Needs ``make data``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.tasks.derive import few, only_classes

SCALES = {
    "tiny": {"seeds": 2, "source": 200, "labels": 10, "epochs": 1, "points": 5},
    "small": {"seeds": 3, "source": 5000, "labels": 100, "epochs": 20, "points": 21},
}
RATES = (0.01, 0.03, 0.1)
SETS = ("mnist", "fashion-mnist")
MEASURES = ("largest eigenvalue", "trace", "rise", "roughness")


def halves(name: str, scale: dict[str, int], seed: int) -> tuple[dt.Task, dt.Task]:
    """The source task, of the first classes, and the target, of the others."""
    task = dt.load_task(name)
    source, target = (only_classes(task, task.classes[some]) for some in (slice(5), slice(5, 10)))
    rows = source.indices("train")
    rows = rows[torch.randperm(len(rows), generator=generator(seed, "source"))[: scale["source"]]]
    rest = {"validation": source.indices("validation")[:500], "test": source.indices("test")[:1]}
    target = few(target, scale["labels"], seed=seed)
    kept = {split: target.indices(split)[:1000] for split in ("validation", "test")}
    return (
        source.derived("source", indices={"train": rows, **rest}),
        target.derived(name, indices={"train": target.indices("train"), **kept}),
    )


def reached(start: dt.Part, task: dt.Task, epochs: int, seed: int) -> dt.Part:
    """The best of three rates on validation images."""
    fits = [
        dt.train.end_to_end(start, task, epochs=epochs, lr=rate, seed=seed, show=False).part
        for rate in RATES
    ]
    return max(fits, key=lambda part: dt.evaluate(part, task, split="validation").accuracy)


def around(part: dt.Part, task: dt.Task, points: int, seed: int) -> dict[str, float]:
    """How far the loss rises around the weights, and how rough it is."""
    found = dt.lens.landscape(part, task, points=points, limit=256, seed=seed)
    z = torch.tensor(found.values).double()
    bends = [(z[2:] - 2 * z[1:-1] + z[:-2]).abs().mean() for z in (z, z.T)]
    return {"rise": float(z.mean()) - found.centre, "roughness": float(sum(bends)) / 2}


def measured(part: dt.Part, task: dt.Task, points: int, seed: int) -> dict[str, float]:
    spectrum = dt.lens.hessian_spectrum(part, task, k=5, limit=500, seed=seed)
    return {
        "largest eigenvalue": spectrum.eigenvalues[0],
        "trace": spectrum.trace,
        **around(part, task, points, seed),
        "training accuracy": float(dt.evaluate(part, task, split="train").accuracy),
        "test accuracy": float(dt.evaluate(part, task).accuracy),
    }


def runs_of(name: str, scale: dict[str, int], seed: int) -> list[dict[str, Any]]:
    source, target = halves(name, scale, seed)
    fresh = dt.build("lenet5", norm="batch", classes=5, seed=seed)
    learnt = dt.train.end_to_end(fresh, source, epochs=5, lr=0.05, seed=seed, show=False).part
    other = dt.build("lenet5", norm="batch", classes=5, seed=seed + 100)
    state = {**learnt.module.state_dict()}
    for key, value in other.module.state_dict().items():
        if key.startswith("head"):
            state[key] = value
    other.module.load_state_dict(state)
    starts = {"scratch": fresh, "fine-tuned": other}
    rows = []
    for way, start in starts.items():
        part = reached(start, target, scale["epochs"], seed)
        row = {"target": name, "way": way, "seed": seed}
        row |= measured(part, target, scale["points"], seed)
        begun = start.changed(contract=part.contract)
        before = around(begun, target, scale["points"], seed)
        rows.append(row | {f"{word} at the start": value for word, value in before.items()})
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("reproduce/results/flat_minima.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    scale = SCALES[args.scale]
    runs = [
        row for name in SETS for seed in range(scale["seeds"]) for row in runs_of(name, scale, seed)
    ]
    rows, verdicts = [], {}
    for name in SETS:
        by_way = {
            way: [row for row in runs if row["target"] == name and row["way"] == way]
            for way in ("scratch", "fine-tuned")
        }
        for way, each in by_way.items():
            words = [word for word in each[0] if word not in ("target", "way", "seed")]
            means = {word: fmean(row[word] for row in each) for word in words}
            rows.append({"target": name, "way": way, "seed": "all", **means})
        for word in MEASURES:
            pairs = zip(by_way["scratch"], by_way["fine-tuned"], strict=True)
            gaps = [before[word] - after[word] for before, after in pairs]
            error = stdev(gaps) / len(gaps) ** 0.5
            verdicts[f"{name}: {word} is lower fine-tuned"] = fmean(gaps) > error
    evidence = Evidence(
        claim="minima of fine-tuned networks are flatter and the loss around them smoother",
        holds=all(verdicts.values()),
        rows=tuple(rows + runs),
        command="python reproduce/flat_minima.py",
        settings=environment(threads=args.threads, **scale) | {"verdicts": verdicts},
    )
    evidence.save(args.output)
    print(evidence.verdict, verdicts)


if __name__ == "__main__":
    main()
