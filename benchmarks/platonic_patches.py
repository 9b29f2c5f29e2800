"""How accurate on MNIST is a closed-form network behind filters, in at most two minutes?

The estimator as anybody would call it, ``PlatonicClassifier(widths, filters=...)``, which is what
``dovetail train mnist --how closed-form --filters ... --set hidden=[...]`` fits.  Filters are
patches of the images, whitened, in both signs; behind them a hidden layer by random projections,
penalties by generalised cross-validation, the temperature of the scores by rows left out.  No
gradient, no augmentation.

A few networks are fitted to 54 000 images and compared on 6 000 others (the validation split); the
most accurate there is fitted to all 60 000, and the test images are looked at with that one alone.
The first, without filters, is the dense network of the defaults but for its width.

The claim is 98.5 % on the test images in at most two minutes, from images in memory to a calibrated
network: of processor time, which is more than the time it takes on two cores that nobody else uses,
and says the same on a machine that others use.  The time that passed and the load are noted.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch

from dovetail.closed_form import PlatonicClassifier
from dovetail.core.evidence import Evidence, environment
from dovetail.measure.calibration import nll, overconfidence
from dovetail.tasks.load import load_task
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

CANDIDATES: dict[str, tuple[dict[str, Any], ...]] = {
    "tiny": ({"hidden_layer_sizes": (20,)}, {"hidden_layer_sizes": (40,), "filters": 4}),
    "small": (
        {"hidden_layer_sizes": (1000,)},
        {"hidden_layer_sizes": (1000,), "filters": 32, "projection": "sorted-pca"},
        {"hidden_layer_sizes": (1000,), "filters": 32},
        {"hidden_layer_sizes": (2000,), "filters": 32},
        {"hidden_layer_sizes": (2000,), "filters": 64},
    ),
}
ACCURACY, SECONDS = 0.985, 120.0


def measured(
    task: Task, fitted: tuple[Split, ...], judged: Split, asked: dict[str, Any]
) -> dict[str, Any]:
    """A network for some splits, what it took, and what it says of another."""
    order = torch.cat([task.indices(split) for split in fitted])
    x, y = task.inputs[order], task.targets[order].numpy()
    began, busy = time.perf_counter(), time.process_time()
    net = PlatonicClassifier(n_tries=1, **asked).fit(x, y)
    took = {
        "seconds": time.perf_counter() - began,
        "processor seconds": time.process_time() - busy,
        "load": os.getloadavg()[0],
    }
    inputs, labels = task.subset(judged)
    said = net.predict_proba(inputs)
    found = {
        "filters": asked.get("filters", 0),
        "hidden": "-".join(map(str, asked["hidden_layer_sizes"])),
        "projection": net.record_.settings["projection"][0],
        f"{judged} accuracy": float((said.argmax(1) == labels.numpy()).mean()),
        "nll": nll(said, labels),
        "confidence less accuracy": overconfidence(said, labels),
        **took,
    }
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=tuple(CANDIDATES), default="small")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/platonic_patches.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    task = load_task("digits" if args.scale == "tiny" else "mnist")
    several = CANDIDATES[args.scale]
    compared = [measured(task, ("train",), "validation", asked) for asked in several]
    best = max(range(len(several)), key=lambda i: compared[i]["validation accuracy"])
    found = measured(task, ("train", "validation"), "test", several[best])
    Evidence(
        claim="closed form behind filters reaches 98.5 % on the test images of MNIST in at most "
        "two minutes of processor time",
        holds=found["test accuracy"] >= ACCURACY and found["processor seconds"] <= SECONDS,
        rows=(found, *compared),
        command=f"python benchmarks/platonic_patches.py --threads {args.threads}",
        settings=environment(threads=args.threads, scale=args.scale),
    ).save(args.output)


if __name__ == "__main__":
    main()
