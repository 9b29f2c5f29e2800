"""Released ImageNet weights are worth at least 30 points over random ones on 1000 images.

EfficientNet-Lite0 is adopted, cut before its head, and its 1280 features of CIFAR-10 images feed a
ridge classifier.  The twin is the same network with random weights; because a random network's
stored batch-norm statistics are meaningless, it is also measured with statistics recalibrated on
the training images, and the better of the two counts.

Protocol, fixed before running: images scaled to 96 pixels; 1000 training images (100 a class) and
500 for choosing the ridge penalty among 1e-2 ... 1e6, drawn from the training images; 2000 test
images, measured once.  Three seeds for the draw and for the twin.  Every seed must show 30 points.

Needs ``make data`` and ``pip install "dovetail[efficientnet]"``.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.measure.forward import prepare
from dovetail.parts.norms import recalibrate

POINTS, SIZE = 0.30, 96


def drawn(task: dt.Task, seed: int) -> dt.Task:
    """1000 training, 500 validation and 2000 test images, the same number of each class."""
    chosen = {}
    for split, source, skip, count in (
        ("train", "train", 0, 100),
        ("validation", "train", 100, 50),
        ("test", "test", 0, 200),
    ):
        rows = task.indices(source)
        order = rows[torch.randperm(len(rows), generator=generator(seed, "draw", source))]
        labels = task.targets[order]
        picked = [order[labels == label][skip : skip + count] for label in range(10)]
        chosen[split] = torch.cat(picked).sort().values
    return task.derived(f"{task.name}-1000", indices=chosen)


def head_accuracy(front: dt.Part, task: dt.Task) -> float:
    """Test accuracy of a ridge head whose penalty is chosen on validation."""
    sets = {}
    for split in ("train", "validation", "test"):
        found = dt.features(front, task, split=split, batch_size=100)
        sets[split] = (found.values.double().numpy(), found.targets.numpy())
    heads = [
        make_pipeline(StandardScaler(), RidgeClassifier(10.0**power)).fit(*sets["train"])
        for power in range(-2, 7)
    ]
    best = max(heads, key=lambda head: head.score(*sets["validation"]))
    return float(best.score(*sets["test"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/efficientnet_features.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cifar = dt.load_task("cifar10", data=args.data)
    released = dt.adopt("efficientnet-lite0", args={"size": SIZE})
    rows = []
    for seed in range(args.seeds):
        task = drawn(cifar, seed)
        twin = dt.build("efficientnet-lite0", size=SIZE, seed=seed).changed(
            contract=released.contract
        )
        pixels = prepare(task.subset("train")[0], released.contract)
        calibrated = twin.changed(
            module=recalibrate(twin.module, [pixels[i : i + 100] for i in range(0, 1000, 100)])
        )
        row = {"seed": seed}
        for name, net in (
            ("released", released),
            ("random", twin),
            ("random, recalibrated", calibrated),
        ):
            front, _ = dt.cut(net, at="flatten")
            row[name] = head_accuracy(front, task)
        row["gain"] = row["released"] - max(row["random"], row["random, recalibrated"])
        rows.append(row)
        print(", ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    print(f"mean gain {statistics.mean(row['gain'] for row in rows):.3f}")
    evidence = Evidence(
        claim=f"released EfficientNet-Lite0 features beat random ones by {100 * POINTS:.0f} points",
        holds=min(row["gain"] for row in rows) >= POINTS,
        rows=tuple(rows),
        command=f"python reproduce/efficientnet_features.py --threads {args.threads}",
        settings=environment(threads=args.threads, size=SIZE),
    )
    evidence.save(args.output)
    if not evidence.holds:
        raise SystemExit("the claim does not hold")


if __name__ == "__main__":
    main()
