"""A perceptron of 1000 layers: full back-propagation cannot train it, layer by layer can?

The introduction of chapter 6 of the thesis on efficient deep learning says that a perceptron of
1000 layers was trained on MNIST layer by layer, that this is impossible with full back-propagation,
and that with it one of 15 to 25 layers is the most.  Neither width nor accuracy is stated.

Protocol, fixed before running (pilots on one seed, with other rates and 1000 images, showed that
without batch norm neither way gets far):

- MNIST, 2000 training, 500 validation and 2000 test images, drawn once.
- 10, 30, 100, 300 and 1000 hidden layers of 32, each linear, batch norm and ReLU; a linear head.
- *At once*: 10 epochs of batches of 128, one-cycle.  The best of four settings on validation: SGD
  with Nesterov momentum and peak rates 0.1 and 0.01, and AdamW with 0.01 and 0.001, all with
  gradients clipped to length 1, for without that the deep ones end in nan.  A run that ends so all
  the same counts as chance.
- *Layer by layer*: 3 epochs of every layer under a linear decision, SGD at 0.1, the same rate in
  every layer, no dropout, nothing chosen.  1000 layers are trained in 40 calls for 25 layers each,
  which see what the layers below give: the trainer looks at the whole network for every stage, and
  that is quadratic in the layers.  The layers, in order, with the head of the last call, are the
  network; its accuracy is measured on test images for every 25 layers.
- Seed 20.  One seed at 1000 layers; the depths are the repetition.

Claims: (1) at once 1000 layers stay at chance (below 0.2 of test images); (2) layer by layer the
network of all 1000 layers is right for more than half of them; (3) at once no network of 100 layers
or more is.  What depth costs layer by layer is reported.

Finished runs are kept.  ``--scale tiny`` is a smoke test.  Needs ``make data``.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from layerwise.runs import Row, Runs, compact, subset

import dovetail as dt
from dovetail.core.errors import TrainingError
from dovetail.core.evidence import Evidence, environment
from dovetail.measure.forward import outputs_of
from dovetail.parts.contract import Preprocess

SEED, WIDTH, CALL = 20, 32, 25
SETTINGS = (("sgd", 0.1), ("sgd", 0.01), ("adamw", 0.01), ("adamw", 0.001))
SCALES: dict[str, Row] = {
    "tiny": {"images": (200, 50, 50), "depths": (10, 50), "epochs": 1, "layer": 1},
    "small": {"images": (2000, 500, 2000), "depths": (10, 30, 100, 300, 1000), "epochs": 10}
    | {"layer": 3},
}


def network(shape: tuple[int, ...], depth: int, seed: int) -> dt.Part:
    return dt.build(
        "mlp", shape=shape, hidden=(WIDTH,) * depth, norm="batch", classes=10, seed=seed
    )


def at_once(task: dt.Task, depth: int, optimiser: Any, lr: float, epochs: int) -> Row:
    """Full back-propagation with one setting."""
    options: Row = {"epochs": epochs, "batch_size": 128, "clip": 1.0, "seed": SEED, "show": False}
    net = network(task.input_shape, depth, SEED)
    try:
        fit = dt.train.end_to_end(net, task, optimiser=optimiser, lr=lr, **options)
    except TrainingError as error:
        return {"validation accuracy": 0.0, "ended": str(error).split(";")[0]}
    return {
        "validation accuracy": fit.record.final["validation accuracy"],
        "training loss": fit.record.final["loss"],
        "test accuracy": dt.evaluate(fit.part, task).accuracy,
    }


def layer_by_layer(task: dt.Task, depth: int, epochs: int) -> Row:
    """The test accuracy of the network up to every 25th layer."""
    reached: Row = {}
    here = task
    for below in range(0, depth, CALL):
        fit = dt.train.layerwise(
            network(here.input_shape, min(CALL, depth - below), SEED + below),
            here,
            epochs=epochs,
            batch_size=128,
            lr=0.1,
            lr_by_depth=1.0,
            decay_by_depth=1.0,
            preprocess=None if below == 0 else Preprocess(),
            seed=SEED + below,
            show=False,
        )
        layers = below + len(fit.record.stages)
        reached[str(layers)] = dt.evaluate(fit.part, here).accuracy
        print(layers, reached[str(layers)], flush=True)
        front, _ = dt.cut(fit.part, at=f"hidden{len(fit.record.stages)}")
        here = here.derived(here.name, inputs=outputs_of(front, here.inputs))
    return {"test accuracy": reached[str(depth)], "up to": reached}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--kept", type=Path, default=Path("data/layerwise"))
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/layerwise_depth.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    scale = SCALES[args.scale]
    runs = Runs(args.kept / f"depth-{args.scale}", {**scale, "settings": SETTINGS})
    task = compact(subset("mnist", *scale["images"], args.data))
    rows: list[Row] = []
    best: dict[int, float] = {}
    for depth in scale["depths"]:
        found = {
            f"{optimiser}, {lr}": runs.once(
                f"{depth}, {optimiser}, {lr}",
                partial(at_once, task, depth, optimiser, lr, scale["epochs"]),
            )
            for optimiser, lr in SETTINGS
        }
        taken = max(found, key=lambda name: found[name]["validation accuracy"])
        best[depth] = found[taken].get("test accuracy", 0.1)
        rows.append({"way": "at once", "layers": depth, "setting": taken} | found[taken])
        rows[-1].pop("ended", None)
        rows[-1]["ended in nan"] = sum("ended" in each for each in found.values())
    deepest = max(scale["depths"])
    own = runs.once("layer by layer", partial(layer_by_layer, task, deepest, scale["layer"]))
    for layers, accuracy in own["up to"].items():
        if int(layers) % 100 == 0 or int(layers) in (CALL, deepest):
            rows.append({"way": "layer by layer", "layers": int(layers), "test accuracy": accuracy})
    rows[-1]["CPU seconds"] = own["CPU seconds"]
    held = {
        "at once at chance": best[deepest] < 0.2,
        "layer by layer": own["test accuracy"] > 0.5,
        "nothing deep at once": all(each <= 0.5 for d, each in best.items() if d >= 100),
    }
    Evidence(
        claim=f"a perceptron of {deepest} layers cannot be trained at once on MNIST "
        f"({best[deepest]:.3f} right) and can layer by layer ({own['test accuracy']:.3f})",
        holds=all(held.values()),
        rows=tuple(rows),
        command="python reproduce/layerwise_depth.py",
        settings=environment(threads=args.threads, seed=SEED, width=WIDTH) | {"held": held},
    ).save(args.output)
    print(held, best)


if __name__ == "__main__":
    main()
