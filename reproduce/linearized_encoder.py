"""Which layers of a label-free encoder are worth linearising?  (Table 1, LIN.)

An encoder of five convolutions learns to tell rotations of CIFAR-10 images and never sees a label
(the source has a BiGAN's encoder).  A fixed random projection of its outputs gives ten numbers.
With some labels, the finite tangent kernel (prior mean zero) of the last layer, the last two, the
last three or all is fitted to the most probable weights (MAP), of all layers also by variational
inference (VI).  Beside them: a logistic regression on the encoder's outputs (activations), and the
same layers fine-tuned with a head that starts as that regression.

Scale small: images of 16x16, 10 000 without labels, 2000 of them with, 500 to validate, 2000 to
test; 3 seeds (encoder, projection, order).  The prior gives every weight one variance, such that
outputs have a prior variance of 1, 10 or 100 on average: the one with the best validation accuracy
of all layers on the first seed, one for MAP and one for VI.  Fine-tuning keeps the epoch with the
best validation accuracy, the regression the best of four penalties.  Kernels and fine-tuning take
200 steps of 128 images each: MAP is as far as those go, short of the maximum.

The claims of the source, fixed beforehand, for mean test accuracies: (layers) the kernel of all
layers is at least that of the top layer; (activations) it is above the regression; (ahead)
fine-tuning all layers is ahead of it.  Needs ``make data``.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from compatibility.protocol import mean, spread
from linearized.encoder import LAYERS, PAPER, SMALL, TINY, Protocol, pretrained, projected, top
from linearized.finetuning import finetuned, regression
from linearized.images import Split, cifar10, prepared
from linearized.inference import Linearized, linear_model, measured
from linearized.keeping import Found, found_once
from torch import nn

from dovetail.core.evidence import Evidence, environment

VARIANCES = (1.0, 10.0, 100.0)
DEPTHS = (1, 2, 3, LAYERS)
SHOWN = ("accuracy", "nll", "ece")


def by_kernel(
    features: nn.Sequential,
    splits: dict[str, Split],
    layers: int,
    way: str,
    variance: float,
    seed: int,
    protocol: Protocol,
) -> Found:
    model = linear_model(projected(features, seed), top(layers))
    zeros = {name: torch.zeros(len(x), 10) for name, (x, _) in splits.items()}
    fitted = Linearized(model, variance, splits["train"][0]).fit(
        splits["train"],
        zeros["train"],
        by=way,
        steps=protocol.steps,
        batch_size=protocol.batch_size,
        seed=seed,
    )
    validation, test = (
        fitted.probabilities(splits[name][0], zeros[name], protocol.draws)
        for name in ("validation", "test")
    )
    return measured(validation, test, {name: y for name, (_, y) in splits.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=("tiny", "small", "paper"), default="small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--kept", type=Path, default=Path("data/linearized"))
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/linearized_encoder.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    protocol = {"tiny": TINY, "small": SMALL, "paper": PAPER}[args.scale]
    found = _found(protocol, args.seeds, args.data, args.kept)
    accuracy = {where: mean([run["accuracy"] for run in runs]) for where, runs in found.items()}
    whole = accuracy["tangent kernel, MAP", LAYERS]
    claims = {
        "layers": whole >= accuracy["tangent kernel, MAP", 1],
        "activations": whole > accuracy["activations", 0],
        "ahead": accuracy["fine-tuning", LAYERS] > whole,
    }
    Evidence(
        claim="of a label-free encoder, all layers linearised beat the top layer and the "
        "activations; fine-tuning is ahead",
        holds=all(claims.values()),
        rows=tuple(_row(method, layers, runs) for (method, layers), runs in found.items()),
        command=f"python reproduce/linearized_encoder.py --scale {args.scale}",
        settings=environment(
            threads=args.threads, scale=args.scale, claims=claims, protocol=asdict(protocol)
        ),
    ).save(args.output)


def _found(
    protocol: Protocol, seeds: int, data: Path | None, kept: Path
) -> dict[tuple[str, int], list[Found]]:
    """All runs by method and number of layers, over the seeds."""
    task = cifar10(
        data,
        train=protocol.unlabelled,
        validation=protocol.validation,
        test=protocol.test,
        size=protocol.pixels,
    )
    splits = prepared(task)
    images = splits["train"][0]
    splits["train"] = (images[: protocol.labels], splits["train"][1][: protocol.labels])
    facts = asdict(protocol)
    chosen: dict[str, float] = {}
    found: dict[tuple[str, int], list[Found]] = {}
    for seed in range(seeds):
        features = pretrained(task, images, seed, protocol, kept)
        start = f"{protocol.scale} encoder {seed}"

        def kernel(
            layers: int, way: str, variance: float, seed=seed, features=features, start=start
        ) -> Found:
            return found_once(
                kept,
                f"{start} kernel {layers} {way} {variance}",
                facts,
                lambda: by_kernel(features, splits, layers, way, variance, seed, protocol),
            )

        def keep(method: str, layers: int, run: Found) -> None:
            found.setdefault((method, layers), []).append(run)

        for way in ("MAP", "VI"):
            if way not in chosen:
                chosen[way] = max(
                    VARIANCES, key=lambda v: kernel(LAYERS, way, v)["validation accuracy"]
                )
        head, run = regression(features, splits)
        keep("activations", 0, found_once(kept, f"{start} activations", facts, lambda r=run: r))
        for layers in DEPTHS:
            keep("tangent kernel, MAP", layers, kernel(layers, "MAP", chosen["MAP"]))
        keep("tangent kernel, VI", LAYERS, kernel(LAYERS, "VI", chosen["VI"]))
        for layers in DEPTHS:
            tune = partial(finetuned, features, head, splits, top(layers), seed, protocol)
            keep("fine-tuning", layers, found_once(kept, f"{start} tuned {layers}", facts, tune))
    return found


def _row(method: str, layers: int, runs: list[Found]) -> dict[str, object]:
    row: dict[str, object] = {"method": method, "layers": layers}
    for name in SHOWN:
        values = [run[name] for run in runs]
        row[name], row[f"{name}, spread"] = mean(values), spread(values)
    row["runs"] = len(runs)
    return row


if __name__ == "__main__":
    main()
