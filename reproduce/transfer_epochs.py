"""Is the last epoch of a source the best one to transfer from?  (Figure 9.)

The source trains a ResNet-50 on Food-101 and fine-tunes its checkpoints on CUB-200: the accuracy on
the own task keeps rising, while that on the target rises during the first epochs and then falls.
Fixed before running:

**Source.**  LeNet-5 on 2 000 images of Fashion-MNIST at 8×8, 64 epochs of SGD at a constant rate of
0.02, weight decay 0: long enough to fit it by heart.  Checkpoints after 1, 2, 4, 8, 16, 32, 64
epochs; three seeds.

**Targets.**  scikit-learn's digits and MNIST at 8×8, ten training images a class; test splits of at
most 1000 images.  ``dt.lens.transfer_study``, frozen and fine-tuned, its defaults; scratch beside.

**Claim**, for each target and way, on the mean test accuracy over seeds: the best checkpoint is
neither the first nor the last, and beats the last by more than the standard error of their
difference over seeds; while the source's accuracy on its own validation images at its last epoch is
within half a point of its best, or above.  All four curves must do it for the claim to hold; each
is reported.

``--scale small`` is this; ``tiny`` a smoke test.  Needs ``make data``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.lens.study_record import FINE_TUNED, FROZEN, SCRATCH
from dovetail.tasks.derive import few, resized

SIDE, PER_CLASS = 8, 10


@dataclass(frozen=True)
class Scale:
    """How much is trained."""

    seeds: int
    images: int
    epochs: tuple[int, ...]
    steps: dict[str, int]


SCALES = {
    "tiny": Scale(2, 300, (1, 2, 3), {"epochs": 2}),
    "small": Scale(3, 2_000, (1, 2, 4, 8, 16, 32, 64), {}),
}


def small(name: str, data: Path | None, images: int) -> dt.Task:
    """Some images of a data set at 8×8."""
    task = dt.load_task(name, data=data)

    def some(split: str, count: int) -> torch.Tensor:
        rows = task.indices(split)
        order = torch.randperm(len(rows), generator=generator(0, "epochs", name, split))
        return rows[order[:count]].sort().values

    counts = {"train": images, "validation": 1000, "test": 1000}
    indices = {split: some(split, count) for split, count in counts.items()}
    return resized(task.derived(name, indices=indices), SIDE)


def checkpoints(
    task: dt.Task, scale: Scale, seed: int
) -> tuple[dict[str, dt.Part], dict[int, float]]:
    """The network after some epochs, and its accuracy on its own validation images then."""
    kept = dt.train.Snapshots()
    net = dt.build("lenet5", channels=1, size=SIDE, classes=10, seed=seed)
    fit = dt.train.end_to_end(
        net,
        task,
        epochs=scale.epochs[-1],
        lr=0.02,
        schedule="constant",
        weight_decay=0.0,
        seed=seed,
        callbacks=(kept,),
    )
    parts = kept.parts(fit.part)
    own = {epoch: fit.record.rows[epoch - 1]["validation accuracy"] for epoch in scale.epochs}
    return {f"epoch {epoch}": parts[f"epoch {epoch}"] for epoch in scale.epochs}, own


def verdict(curves: list[list[float]]) -> tuple[int, float, float]:
    """Which checkpoint is best on average, by how much it beats the last, and the error of that."""
    means = [fmean(each) for each in zip(*curves, strict=True)]
    best = max(range(len(means)), key=lambda i: means[i])
    ahead = [curve[best] - curve[-1] for curve in curves]
    error = stdev(ahead) / len(ahead) ** 0.5 if len(ahead) > 1 else 0.0
    return best, fmean(ahead), error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--kept", type=Path, default=Path("data/transfer-epochs"))
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/transfer_epochs.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    scale = SCALES[args.scale]
    source = small("fashion-mnist", args.data, scale.images)
    targets = {
        "digits": few(dt.load_task("digits"), PER_CLASS),
        "mnist": few(small("mnist", args.data, 5000), PER_CLASS),
    }
    own: list[list[float]] = []
    reached: dict[tuple[str, str], list[list[float]]] = {}
    scratch: dict[str, list[float]] = {name: [] for name in targets}
    for seed in range(scale.seeds):
        parts, accuracy = checkpoints(source, scale, seed)
        own.append(list(accuracy.values()))
        for name, target in targets.items():
            study = dt.lens.transfer_study(
                parts, target, seeds=[seed], folder=args.kept / args.scale, **scale.steps
            )
            scratch[name].append(1 - study.row("", SCRATCH).test_error)
            for way in (FROZEN, FINE_TUNED):
                curve = [1 - study.row(part, way).test_error for part in parts]
                reached.setdefault((name, way), []).append(curve)
                print(seed, name, way, [round(value, 3) for value in curve], flush=True)
    means = [fmean(each) for each in zip(*own, strict=True)]
    rows: list[dict[str, Any]] = [
        {"epoch": epoch, "own task": means[i]}
        | {
            f"{name}, {way}": fmean(curve[i] for curve in curves)
            for (name, way), curves in reached.items()
        }
        for i, epoch in enumerate(scale.epochs)
    ]
    still_rising = means[-1] >= max(means) - 0.005
    falls = []
    for (name, way), curves in reached.items():
        best, ahead, error = verdict(curves)
        inside = 0 < best < len(scale.epochs) - 1
        falls.append(inside and ahead > error)
        rows.append(
            {
                "target": name,
                "way": way,
                "best epoch": scale.epochs[best],
                "ahead of the last": ahead,
                "standard error": error,
                "rises, then falls": falls[-1],
                "from scratch": fmean(scratch[name]),
            }
        )
    for row in rows:
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    evidence = Evidence(
        claim="checkpoints of a source first transfer better, then worse, while its own accuracy "
        f"keeps rising ({sum(falls)} of {len(falls)} curves)",
        holds=all(falls) and still_rising,
        rows=tuple(rows),
        command=f"python reproduce/transfer_epochs.py --threads {args.threads}",
        settings=environment(
            threads=args.threads,
            scale=args.scale,
            seeds=scale.seeds,
            own_accuracy_keeps_rising=still_rising,
        ),
    )
    evidence.save(args.output)
    print("holds" if evidence.holds else "does not hold")


if __name__ == "__main__":
    main()
