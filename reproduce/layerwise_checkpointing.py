"""At equal memory, layer by layer or checkpointing: what is more accurate, and what is faster?

Checkpointing computes activations twice and gives the weights of plain training; layer by layer
holds less and gives others.  Protocol, fixed before running:

- Fashion-MNIST, 2000 training and 1000 validation images, drawn once; the full test split.  Six
  convolutions with batch norm (8 to 32 channels).  SGD with Nesterov momentum 0.9, one-cycle, batch
  128, weight decay 5e-4.
- *Plain* training, and with ``memory_budget`` 0.6, 0.4 and 0.3 by checkpointing, 8 epochs; layer by
  layer with the same budgets, 8 epochs a layer, and 3 epochs a layer, which costs about as much as
  plain training: ``grow=6``, forward dropout 0.2, backward dropout 0.3, one rate for all layers,
  features on disk.
- The rate of plain training (which is that of checkpointing) and of each of the two numbers of
  epochs layer by layer (at 0.4) is the best of 0.03, 0.1 and 0.3 on validation with seed 40; then
  seeds 41 to 43.
- Time is process CPU time in one thread of the whole call, with the search for what fits; measured
  on a machine with other work, so ratios of means count.
- Where checkpointing cannot keep a budget, the floor that its error names is the result.

Claims: (1) where checkpointing keeps the budget its test accuracies are those of plain training;
(2) there it takes less time than layer by layer with as many epochs a layer; (3) layer by layer
keeps every budget, also where checkpointing cannot.  Accuracy layer by layer is reported.

Finished runs are kept.  ``--scale tiny`` is a smoke test.  Needs ``make data``.
"""

from __future__ import annotations

import argparse
import re
import time
from functools import partial
from pathlib import Path

import torch
from layerwise.runs import Row, Runs, mean, spread, subset

import dovetail as dt
from dovetail.core.errors import TrainingError
from dovetail.core.evidence import Evidence, environment

BUDGETS, RATES = (0.6, 0.4, 0.3), (0.03, 0.1, 0.3)
TUNED, SEEDS = 40, (41, 42, 43)
SCALES: dict[str, Row] = {
    "tiny": {"images": (200, 100, 200), "epochs": 2, "few": 1},
    "small": {"images": (2000, 1000, None), "epochs": 8, "few": 3},
}


def run(
    task: dt.Task, layers: bool, budget: float | None, epochs: int, lr: float, seed: int
) -> Row:
    """One training: accuracies, CPU seconds, the peak that was measured."""
    net = dt.build("reproduce/vgg-six", seed=seed)
    options: Row = {"epochs": epochs, "batch_size": 128, "lr": lr, "seed": seed, "show": False}
    if budget is not None:
        options["memory_budget"] = budget
    began = time.process_time()
    try:
        if layers:
            more: Row = {"grow": 6, "forward_dropout": 0.2, "backward_dropout": 0.3}
            more |= {"lr_by_depth": 1.0, "keep": "disk"}
            fit = dt.train.layerwise(net, task, **options, **more)
        else:
            fit = dt.train.end_to_end(net, task, **options)
    except TrainingError as error:
        found = re.search(r"\(([\d.]+) of plain", str(error))
        return {"floor": float(found.group(1)) if found else str(error)}
    seconds = time.process_time() - began
    peak = 1.0
    if layers:
        peak = max(stage.peak_bytes for stage in fit.record.stages) / fit.record.full_bytes
    elif budget is not None:
        peak = fit.record.settings["peak_bytes"] / fit.record.settings["full_bytes"]
    return {
        "validation accuracy": fit.record.final["validation accuracy"],
        "test accuracy": dt.evaluate(fit.part, task).accuracy,
        "training, CPU seconds": seconds,
        "peak": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--kept", type=Path, default=Path("data/layerwise"))
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/layerwise_checkpointing.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    scale = SCALES[args.scale]
    runs = Runs(args.kept / f"checkpointing-{args.scale}", {**scale, "rates": RATES})
    task = subset("fashion-mnist", *scale["images"], args.data)
    many, few = scale["epochs"], scale["few"]
    rates = {}
    for layers, epochs in ((False, many), (True, many), (True, few)):
        tried = {
            lr: runs.once(
                f"{layers}, {epochs}, {lr}, tuned",
                partial(run, task, layers, 0.4 if layers else None, epochs, lr, TUNED),
            )["validation accuracy"]
            for lr in RATES
        }
        rates[layers, epochs] = max(tried, key=lambda lr: tried[lr])
    rows, of_way = [], {}
    for layers, epochs, budget in (
        (False, many, None),
        *((False, many, budget) for budget in BUDGETS),
        *((True, many, budget) for budget in BUDGETS),
        *((True, few, budget) for budget in BUDGETS),
    ):
        lr = rates[layers, epochs]
        each = [
            runs.once(
                f"{layers}, {epochs}, {budget}, {seed}",
                partial(run, task, layers, budget, epochs, lr, seed),
            )
            for seed in SEEDS
        ]
        of_way[layers, epochs, budget] = each
        way = "layer by layer" if layers else "plain" if budget is None else "checkpointing"
        row = {"way": way, "epochs": epochs, "budget": budget or 1.0, "rate": lr}
        if "floor" in each[0]:
            row["floor"] = each[0]["floor"]
        else:
            accuracies = [100 * one["test accuracy"] for one in each]
            row |= {
                "test accuracy, %": mean(accuracies),
                "deviation": spread(accuracies),
                "peak": max(one["peak"] for one in each),
                "CPU seconds by plain training": mean(one["training, CPU seconds"] for one in each)
                / mean(one["training, CPU seconds"] for one in of_way[False, many, None]),
            }
        rows.append(row)
    plain = of_way[False, many, None]
    kept = [b for b in BUDGETS if "floor" not in of_way[False, many, b][0]]

    def seconds(way: tuple[bool, int, float | None]) -> float:
        return mean(one["training, CPU seconds"] for one in of_way[way])

    held = {
        "1 checkpointing gives the accuracies of plain training": all(
            one["test accuracy"] == other["test accuracy"]
            for b in kept
            for one, other in zip(of_way[False, many, b], plain, strict=True)
        ),
        "2 checkpointing is faster where it fits": all(
            seconds((False, many, b)) < seconds((True, many, b)) for b in kept
        ),
        "3 layer by layer keeps every budget": all(
            one.get("peak", 2.0) <= b for b in BUDGETS for one in of_way[True, many, b]
        ),
    }
    names = ", ".join(str(b) for b in kept) or "no budget"
    Evidence(
        claim="at equal memory checkpointing is to be taken where it fits (here within "
        f"{names}), layer by layer below ({', '.join(f'{n}: {v}' for n, v in held.items())})",
        holds=all(held.values()),
        rows=tuple(rows),
        command="python reproduce/layerwise_checkpointing.py",
        settings=environment(threads=args.threads, seeds=len(SEEDS)) | {"held": held},
    ).save(args.output)
    print(held)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
