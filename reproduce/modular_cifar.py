"""A residual network trained on CIFAR-10 in two modules is as good as end to end.

The third table of "Modularizing deep learning via pairwise learning with kernels", small: ResNet-8
on 10 000 training images for ten epochs, where the paper has ResNet-18 on 50 000 for 600 (94.93 %
in modules, 94.91 % end to end).  Protocol, fixed before running:

- The first 10 000 rows of the training split (of 45 000, the rest of the official training images
  being validation), flips and shifts by up to 4 pixels, the full test split.
- ResNet-8 whose 64 pooled features are scaled to unit length before the head, as in the paper.
- SGD with Nesterov momentum 0.9, one-cycle rate with peak 0.1, batch 128, weight decay 5e-4.  Ten
  epochs end to end; ten for the body by AL, and five for the head (no gradient flows to the body).
- Three seeds; nothing is chosen on the test images, which are measured once at the end.

The claim: the mean over the seeds in modules is at most two points below end to end.  Modules are
trained with gradients clipped to length 1, the trainer's default; end to end there is no clipping.

Needs ``make data``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

import dovetail as dt
from dovetail.core.evidence import Evidence, environment

CLOSE = 0.02


def subset(task: dt.Task, count: int) -> dt.Task:
    """The task with the first so many training images, and fewer validation images."""
    kept = {
        "train": task.indices("train")[:count],
        "validation": task.indices("validation")[:1000],
        "test": task.indices("test"),
    }
    return task.derived(f"{task.name}, {count} images", indices=kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=("small", "paper"), default="small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("reproduce/results/modular_cifar.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    small = args.scale == "small"
    task = dt.load_task("cifar10", data=args.data)
    task = subset(task, 10_000) if small else task
    epochs, name = (10, "resnet8") if small else (600, "resnet20")
    rows = []
    for seed in range(args.seeds):
        net = dt.build(name, unit=True, seed=seed)
        options = {"epochs": epochs, "batch_size": 128, "lr": 0.1, "seed": seed}
        for how in ("end to end", "modular"):
            began = time.perf_counter()
            if how == "modular":
                fit = dt.train.modular(
                    net, task, augment="flip,shift:4", head_epochs=epochs // 2, **options
                )
            else:
                fit = dt.train.end_to_end(net, task, augment="flip,shift:4", **options)
            rows.append(
                {
                    "seed": seed,
                    "training": how,
                    "test accuracy": dt.evaluate(fit.part, task).accuracy,
                    "seconds": time.perf_counter() - began,
                }
            )
            print(rows[-1], flush=True)
    means = {
        how: statistics.mean(r["test accuracy"] for r in rows if r["training"] == how)
        for how in ("end to end", "modular")
    }
    paper = {"end to end": 0.9491, "modular": 0.9493}
    rows += [
        {
            "seed": "mean",
            "training": how,
            "test accuracy": mean,
            "paper (ResNet-18, 600 epochs)": paper[how],
        }
        for how, mean in means.items()
    ]
    evidence = Evidence(
        claim=f"{name} on CIFAR-10 in two modules is at most two points below end to end "
        f"({task.size('train')} images, {epochs} epochs)",
        holds=means["modular"] >= means["end to end"] - CLOSE,
        rows=tuple(rows),
        command=f"python reproduce/modular_cifar.py --threads {args.threads}",
        settings=environment(threads=args.threads, scale=args.scale),
    )
    evidence.save(args.output)
    if not evidence.holds:
        raise SystemExit("the claim does not hold")


if __name__ == "__main__":
    main()
