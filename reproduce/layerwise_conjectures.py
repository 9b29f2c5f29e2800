"""Do inputs of upper layers and gradients of lower layers change the most? Section 6.6, small.

The thesis on efficient deep learning conjectures, without a measurement: (1) what enters a layer is
the less consistent during training the higher the layer; (2) the gradient that comes back is the
less consistent the lower the layer, so that the signs of weight updates change the most in the
first layer.

Protocol, fixed before running:

- Fashion-MNIST, 1500 images drawn once, 8 epochs at once, SGD with Nesterov momentum 0.9, peak rate
  0.1, one-cycle, batch 128.  Two networks, seeds 51 to 53: six convolutions with batch norm, and a
  perceptron of eight hidden layers of 64 with batch norm.  Nothing is chosen.
- After every epoch, on 256 fixed training images, batch norm on the statistics of these images:
  *forward inconsistency* of a layer, the mean over images of 1 - cosine between what enters it now
  and an epoch ago (the input itself never changes, so from the second layer on);
  *backward inconsistency*, the same of the gradient of the loss by what the layer gives;
  *sign consistency*, for the weight matrix of each layer, the mean over weights of
  |mean sign of the gradient| over 16 batches of 32 of other training images, weights unchanged.
  Signs at random give about 0.20.
- Of each measure the mean over the epochs, and Spearman's rank correlation of it with depth.

Claims, in every seed of a network: (1) forward inconsistency rises with depth, correlation above
0.5; (2a) backward inconsistency falls with depth, below -0.5; (2b) sign consistency rises with
depth, above 0.5.

``--scale tiny`` is a smoke test.  Needs ``make data``.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from layerwise.runs import Row, Runs, mean, subset
from scipy.stats import spearmanr
from torch import Tensor, nn

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.measure.forward import prepare

SEEDS, BATCHES, EACH, FIXED = (51, 52, 53), 16, 32, 256
NETWORKS: dict[str, tuple[str, Row]] = {
    "six convolutions": ("reproduce/vgg-six", {}),
    "eight hidden layers": (
        "mlp",
        {"shape": (1, 28, 28), "hidden": (64,) * 8, "norm": "batch"},
    ),
}
MEASURES = ("forward inconsistency", "backward inconsistency", "sign consistency")
SCALES: dict[str, Row] = {
    "tiny": {"images": 800, "epochs": 2},
    "small": {"images": 1500, "epochs": 8},
}


class Watch:
    """Measures the layers of a chain after every epoch."""

    def __init__(self, x: Tensor, targets: Tensor) -> None:
        self.x, self.targets = x, targets
        self.before: tuple[list[Tensor], list[Tensor]] | None = None
        self.rows: list[dict[str, list[float]]] = []

    def __call__(self, moment: Any) -> None:
        """As a callback of a training; the network is as before afterwards."""
        module: nn.Module = moment.module
        state = {name: value.clone() for name, value in module.state_dict().items()}
        training = module.training
        module.train()
        fixed = slice(FIXED)
        entered, arrived = gradients(module, self.x[fixed], self.targets[fixed])
        signs = sign_consistency(module, self.x[FIXED:], self.targets[FIXED:])
        if self.before is not None:
            forward = [changed(*pair) for pair in zip(self.before[0], entered, strict=True)]
            backward = [changed(*pair) for pair in zip(self.before[1], arrived, strict=True)]
            self.rows.append(dict(zip(MEASURES, (forward, backward, signs), strict=True)))
        self.before = entered, arrived
        module.load_state_dict(state)
        module.train(training)


def layers(module: nn.Module) -> list[nn.Module]:
    """The links with weights, but for the head."""
    links = [link for link in module.children() if any(p.ndim > 1 for p in link.parameters())]
    return links[:-1]


def gradients(module: nn.Module, x: Tensor, targets: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What enters each layer, and the gradient by what it gives, a row an image."""
    entered, given, own = [], [], set(layers(module))
    for link in module.children():
        if link in own:
            entered.append(x.detach().flatten(1))
        x = link(x)
        if link in own:
            given.append(x)
    arrived = torch.autograd.grad(F.cross_entropy(x, targets), given)
    return entered, [each.flatten(1) for each in arrived]


def changed(before: Tensor, now: Tensor) -> float:
    """The mean of 1 - cosine, over the rows that are not all zero."""
    some = (before.norm(dim=1) > 0) & (now.norm(dim=1) > 0)
    return float((1 - F.cosine_similarity(before[some], now[some], dim=1, eps=1e-30)).mean())


def sign_consistency(module: nn.Module, x: Tensor, targets: Tensor) -> list[float]:
    """A layer's mean over weights of |mean sign of the gradient| over the batches."""
    weights = [next(p for p in link.parameters() if p.ndim > 1) for link in layers(module)]
    signs = [torch.zeros_like(weight) for weight in weights]
    for number in range(BATCHES):
        some = slice(number * EACH, (number + 1) * EACH)
        loss = F.cross_entropy(module(x[some]), targets[some])
        for sum_, grad in zip(signs, torch.autograd.grad(loss, weights), strict=True):
            sum_ += grad.sign()
    return [float((each / BATCHES).abs().mean()) for each in signs]


def watched(task: dt.Task, network: str, epochs: int, seed: int) -> Row:
    """One training, and the mean of each measure over its epochs, a number a layer."""
    name, args = NETWORKS[network]
    net = dt.build(name, seed=seed, **args)
    rows = task.indices("train")[: FIXED + BATCHES * EACH]
    # The same preprocessing as in the training: standardisation by its images.
    part = dt.train.end_to_end(net, task, lr=0.0, epochs=1, batch_size=500, show=False).part
    watch = Watch(prepare(task.inputs[rows], part.contract), task.targets[rows])
    fit = dt.train.end_to_end(
        net,
        task,
        epochs=epochs,
        batch_size=128,
        lr=0.1,
        seed=seed,
        callbacks=(watch,),
        show=False,
    )
    found: Row = {"training loss": fit.record.final["loss"]}
    for measure in MEASURES:
        each = [row[measure] for row in watch.rows]
        found[measure] = [mean(layer) for layer in zip(*each, strict=True)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--kept", type=Path, default=Path("data/layerwise"))
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/layerwise_conjectures.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    scale = SCALES[args.scale]
    runs = Runs(args.kept / f"conjectures-{args.scale}", scale)
    task = subset("fashion-mnist", scale["images"], 100, 100, args.data)
    rows, held = [], {}
    for network in NETWORKS:
        found = [
            runs.once(f"{network}, {seed}", partial(watched, task, network, scale["epochs"], seed))
            for seed in SEEDS
        ]
        depth = len(found[0]["sign consistency"])
        for i in range(depth):
            row: Row = {"network": network, "layer": i + 1}
            rows.append(row | {m: mean(each[m][i] for each in found) for m in MEASURES})
        for measure, sign in zip(MEASURES, (1, -1, 1), strict=True):
            # The input never changes, which would be a rise that says nothing.
            first = int(measure == "forward inconsistency")
            ranks = [
                float(spearmanr(range(first, depth), each[measure][first:]).statistic)
                for each in found
            ]
            rows.append(
                {"network": network, "layer": "rank correlation, least", measure: min(ranks)}
            )
            rows.append(
                {"network": network, "layer": "rank correlation, most", measure: max(ranks)}
            )
            held[f"{network}, {measure}"] = all(sign * rank > 0.5 for rank in ranks)
    Evidence(
        claim="in training, what enters upper layers and what comes back to lower ones changes "
        f"the most ({', '.join(f'{name}: {value}' for name, value in held.items())})",
        holds=all(held.values()),
        rows=tuple(rows),
        command="python reproduce/layerwise_conjectures.py",
        settings=environment(threads=args.threads, seeds=len(SEEDS), **scale) | {"held": held},
    ).save(args.output)
    print(held)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
