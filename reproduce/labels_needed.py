"""A body trained in a module of its own leaves its output layer a task of ten labels.

The fifth figure of "Modularizing deep learning via pairwise learning with kernels", with LeNet-5 on
MNIST instead of ResNet-18 on CIFAR-10.  Protocol, fixed before running:

- Bodies, as in ``modular_mnist.py``: AL, 5 epochs, batch 128, all but the head of a LeNet-5 with
  unit-length features, told of the 54 000 training images only which are alike within a batch.
- Output layers on 10, 20, 30, 50, 100, 1000 and all labelled images, drawn at random (then classes
  may be missing) or as many of each class: a fresh head on the frozen body, 300 steps or 5 epochs,
  whichever is more.  Five draws a body.
- End to end on the same images (the first draw): the same network, the same number of steps, batch
  128 or as many as there are, the same preprocessing.
- Three seeds; the test images are measured once at the end of each training.

The claim: one label a class is within 0.2 points of all of them, and end to end on the same ten
images is at least ten points worse.

Needs ``make data``.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch
from modular_mnist import accuracy_of_head, feature_task

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.measure.forward import preprocess_for
from dovetail.tasks.derive import few

COUNTS = (10, 20, 30, 50, 100, 1000)
CLOSE, FAR = 0.002, 0.1
DRAWS = 5


def labelled(task: dt.Task, count: int, balanced: bool, seed: int) -> dt.Task:
    """The task with so many training images, and no validation images to spend time on."""
    if balanced:
        task = few(task, count // len(task.classes), seed)
        rows = task.indices("train")
    else:
        rows = task.indices("train")
        order = torch.randperm(len(rows), generator=generator(seed, "labels"))
        rows = rows[order[:count]].sort().values
    none = torch.empty(0, dtype=torch.int64)
    kept = {"train": rows, "validation": none, "test": task.indices("test")}
    return task.derived(f"{task.name}, {count} labels", indices=kept)


def end_to_end(task: dt.Task, how: object, seed: int) -> float:
    """The whole network on the same few images."""
    steps = max(task.size("train") // 128, 1)
    fit = dt.train.end_to_end(
        dt.build("lenet5", unit=True, seed=seed),
        task,
        preprocess=how,
        epochs=max(5, -(-300 // steps)),
        batch_size=128,
        lr=0.1,
        seed=seed,
    )
    return dt.evaluate(fit.part, task).accuracy


def choices() -> Iterator[tuple[int, bool]]:
    """How many labels, and whether balanced."""
    return ((count, balanced) for balanced in (True, False) for count in COUNTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=("small", "paper"), default="small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("reproduce/results/labels_needed.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    epochs = 5 if args.scale == "small" else 600
    task = dt.load_task("mnist", data=args.data)
    how = preprocess_for(task)
    heads: dict[tuple[int, bool], list[float]] = {choice: [] for choice in choices()}
    wholes: dict[tuple[int, bool], list[float]] = {choice: [] for choice in choices()}
    every, every_end_to_end = [], []
    for seed in range(args.seeds):
        net = dt.build("lenet5", unit=True, seed=seed)
        fit = dt.train.modular(net, task, epochs=epochs, batch_size=128, lr=0.1, seed=seed)
        every.append(dt.evaluate(fit.part, task).accuracy)
        every_end_to_end.append(end_to_end(task, how, seed))
        print(
            f"seed {seed}, all: {every[-1]:.4f}, end to end {every_end_to_end[-1]:.4f}", flush=True
        )
        features, (_, head) = feature_task(fit.parts[0], task), dt.cut(net, at="unit")
        for choice in choices():
            count, balanced = choice
            draws = [labelled(features, count, balanced, draw) for draw in range(DRAWS)]
            heads[choice] += [accuracy_of_head(head, few_, i) for i, few_ in enumerate(draws)]
            wholes[choice].append(end_to_end(labelled(task, count, balanced, 0), how, seed))
            words = f"seed {seed}, {count} {'balanced' if balanced else 'random'}"
            print(words, [round(x[choice][-1], 4) for x in (heads, wholes)], flush=True)
    rows = [
        {
            "labels": count,
            "drawn": "as many a class" if balanced else "at random",
            "modular": statistics.mean(heads[count, balanced]),
            "worst draw": min(heads[count, balanced]),
            "end to end": statistics.mean(wholes[count, balanced]),
        }
        for count, balanced in choices()
    ]
    rows.append(
        {
            "labels": task.size("train"),
            "drawn": "all",
            "modular": statistics.mean(every),
            "worst draw": min(every),
            "end to end": statistics.mean(every_end_to_end),
        }
    )
    ten = rows[0]
    close = ten["modular"] >= rows[-1]["modular"] - CLOSE
    evidence = Evidence(
        claim="one label a class is enough for the output layer on a body trained as a module",
        holds=close and ten["end to end"] <= ten["modular"] - FAR,
        rows=tuple(rows),
        command=f"python reproduce/labels_needed.py --threads {args.threads}",
        settings=environment(threads=args.threads, scale=args.scale, draws=DRAWS, seeds=args.seeds),
    )
    evidence.save(args.output)
    if not evidence.holds:
        raise SystemExit("the claim does not hold")


if __name__ == "__main__":
    main()
