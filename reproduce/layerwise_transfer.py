"""Fine-tuning layer by layer: is it near full fine-tuning? Tables 6.4 and 6.5, small.

The thesis on efficient deep learning fine-tunes pretrained networks layer by layer with rates and
epochs that grow from layer to layer; over five data sets it is 0.2 points above to 2.2 below full
fine-tuning, with the epochs of both chosen by hand.  Protocol, fixed before running:

- Source: CIFAR-10, classes 0 to 4, 4000 images, six convolutions with batch norm (8 to 32
  channels), 10 epochs at once, SGD, peak rate 0.1.  Target: classes 5 to 9, 200 training images a
  class, 1000 validation images, all 5000 test images.  The last layer is drawn anew.
- Ways, all with AdamW, weight decay 5e-4, batch 128: *scratch* and *full*, all weights at once, 20
  epochs, one-cycle; *probe*, the last layer alone, 20 epochs, one-cycle; *layer by layer* with
  ``schedule="transfer"`` (constant rate and 5 epochs in the first layer, both times 1.2 a layer,
  about 50 epochs of single layers in all); *falling*, layer by layer as from scratch (one-cycle,
  rate × 0.8 a layer, 8 epochs each).
- The rate of every way is the best of 2e-4, 1e-3 and 5e-3 (the first layer's, where it grows) on
  validation with seed 60; then seeds 61 to 63, each with a source network of its own.  The test
  split is looked at once.

Claims on means over the seeds: (1) layer by layer with the transfer schedule is at most 2.2 points
below full fine-tuning, as in the source; (2) it is above the probe; (3) above *falling*.

Finished runs are kept.  ``--scale tiny`` is a smoke test.  Needs ``make data``.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from layerwise.runs import Row, Runs, compact, mean, spread

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.measure.forward import outputs_of
from dovetail.parts.contract import Preprocess
from dovetail.tasks.derive import few, only_classes

RATES, TUNED, SEEDS = (2e-4, 1e-3, 5e-3), 60, (61, 62, 63)
WAYS = ("scratch", "full", "probe", "layer by layer", "falling")
NET = "reproduce/vgg-six"
SCALES: dict[str, Row] = {
    "tiny": {"source": 200, "labels": 20, "held": 200, "epochs": (1, 2, 1, 1)},
    "small": {"source": 4000, "labels": 200, "held": None, "epochs": (10, 20, 5, 8)},
}


def halves(scale: Row, data: Path | None) -> tuple[dt.Task, dt.Task]:
    """The source task, of the first classes, and the target, of the others."""
    whole = dt.load_task("cifar10", data=data)
    source, target = (only_classes(whole, whole.classes[s]) for s in (slice(5), slice(5, 10)))
    rows = source.indices("train")
    drawn = torch.randperm(len(rows), generator=generator(0, "source"))[: scale["source"]]
    kept = {"train": rows[drawn], "validation": source.indices("validation")[:500]}
    target = few(target, scale["labels"], seed=0)
    held = {"validation": 1000, "test": scale["held"]}
    return (
        source.derived("source", indices={**kept, "test": source.indices("test")[:1]}),
        target.derived(
            "target",
            indices={
                "train": target.indices("train"),
                **{split: target.indices(split)[:count] for split, count in held.items()},
            },
        ),
    )


def pretrained(source: dt.Task, folder: Path, epochs: int, seed: int) -> dt.Part:
    """A network that knows the source, with its last layer drawn anew."""
    kept = folder / f"source-{seed}"
    if not kept.exists():
        net = dt.build(NET, channels=3, classes=5, seed=seed)
        fit = dt.train.end_to_end(
            net, source, epochs=epochs, batch_size=128, lr=0.1, seed=seed, show=False
        )
        fit.part.save_pretrained(kept)
    learnt = dt.from_pretrained(str(kept))
    fresh = dt.build(NET, channels=3, classes=5, seed=seed + 100)
    state = dict(learnt.module.state_dict())
    state |= {k: v for k, v in fresh.module.state_dict().items() if k.startswith("head")}
    fresh.module.load_state_dict(state)
    return fresh.changed(contract=learnt.contract)


def run(
    tasks: tuple[dt.Task, dt.Task], folder: Path, way: str, lr: float, seed: int, scale: Row
) -> Row:
    """One way with one rate, a seed."""
    source, target = tasks
    at_source, at_once, first, falling = scale["epochs"]
    start = pretrained(source, folder, at_source, seed)
    own: Row = {"optimiser": "adamw", "lr": lr, "weight_decay": 5e-4, "batch_size": 128}
    own |= {"seed": seed, "show": False}
    if way == "layer by layer":
        fit = dt.train.layerwise(start, target, schedule="transfer", **own | {"epochs": first})
    elif way == "falling":
        fit = dt.train.layerwise(start, target, **own | {"epochs": falling})
    elif way == "probe":
        return probed(start, target, own | {"epochs": at_once})
    else:
        if way == "scratch":
            fresh = dt.build(NET, channels=3, classes=5, seed=seed)
            start = fresh.changed(contract=start.contract)
        fit = dt.train.end_to_end(start, target, **own | {"epochs": at_once})
    return {
        "validation accuracy": fit.record.final["validation accuracy"],
        "test accuracy": dt.evaluate(fit.part, target).accuracy,
    }


def probed(start: dt.Part, target: dt.Task, options: Row) -> Row:
    """The last layer alone, on what the frozen ones give."""
    front, back = dt.cut(start, at="flatten")
    used = compact(target)
    features = used.derived("features", inputs=outputs_of(front, used.inputs))
    fit = dt.train.end_to_end(back, features, preprocess=Preprocess(), **options)
    return {
        "validation accuracy": fit.record.final["validation accuracy"],
        "test accuracy": dt.evaluate(fit.part, features).accuracy,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--kept", type=Path, default=Path("data/layerwise"))
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/layerwise_transfer.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    scale = SCALES[args.scale]
    runs = Runs(args.kept / f"transfer-{args.scale}", {**scale, "rates": RATES})
    tasks = halves(scale, args.data)
    rows, means = [], {}
    for way in WAYS:
        tried = {
            lr: runs.once(
                f"{way}, {lr}, tuned", partial(run, tasks, runs.folder, way, lr, TUNED, scale)
            )["validation accuracy"]
            for lr in RATES
        }
        lr = max(tried, key=lambda lr: tried[lr])
        each = [
            runs.once(f"{way}, {s}", partial(run, tasks, runs.folder, way, lr, s, scale))
            for s in SEEDS
        ]
        accuracies = [100 * one["test accuracy"] for one in each]
        means[way] = mean(accuracies)
        rows.append(
            {
                "way": way,
                "rate": lr,
                "validation accuracy, %": 100 * mean(one["validation accuracy"] for one in each),
                "test accuracy, %": means[way],
                "deviation": spread(accuracies),
                **{f"seed {s}": a for s, a in zip(SEEDS, accuracies, strict=True)},
            }
        )
    own = means["layer by layer"]
    held = {
        "1 at most 2.2 points below full": own >= means["full"] - 2.2,
        "2 above the probe": own > means["probe"],
        "3 above falling rates": own > means["falling"],
    }
    Evidence(
        claim="fine-tuning layer by layer with rates and epochs that grow is "
        f"{own - means['full']:+.1f} points from full fine-tuning, {own - means['probe']:+.1f} "
        f"from a probe ({', '.join(f'{name}: {value}' for name, value in held.items())})",
        holds=all(held.values()),
        rows=tuple(rows),
        command="python reproduce/layerwise_transfer.py",
        settings=environment(threads=args.threads, seeds=len(SEEDS)) | {"held": held},
    ).save(args.output)
    print(held)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
