"""Segments, dropouts and random robin: what do they bring? Figures 6.2, 6.3 and Table 6.3, small.

The thesis on efficient deep learning says that accuracy rises with the number of layers trained at
a time (Figure 6.2: overlap k - 1, a MobileNetV2 on CIFAR-10, from a pretrained one); that the
stable rank of the weights after random robin is nearer to that of full back-propagation than after
training from the bottom up (Figure 6.3: VGG-13); and that dropout on the input and on the gradient
from the decision block makes layer by layer match it (no ablation is shown).

Protocol, fixed before running:

- CIFAR-10, 1500 training and 1000 validation images, drawn once; 3000 test images.  Six
  convolutions with batch norm (8 to 32 channels).  SGD with Nesterov momentum 0.9, one-cycle, peak
  rate 0.1 in every layer, batch 128, weight decay 5e-4, 8 epochs a segment, no augmentation.  Seeds
  71 to 73.  Nothing is chosen: the last stage's network counts, with the network's own head.
- *Segments* of 1, 2, 3 and 4 layers with overlap k - 1, and all six, which is training at once.
- *Dropouts*, one layer at a time: forward 0.2, backward 0.3, both; and 0.8 with 0.6 as the source.
- *Orders*, one layer at a time: round robin and random robin, a round an epoch.
- *Stable rank* of each layer's weights.

Claims on means over the seeds: (1) test accuracy rises from segments of 1 to 2 to 3 to 4; (2) both
dropouts together are above none; (3) the mean over layers of |stable rank - that of training at
once| is smaller for random robin than from the bottom up; (4) so is the loss of accuracy.

Finished runs are kept.  ``--scale tiny`` is a smoke test.  Needs ``make data``.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from layerwise.runs import Row, Runs, mean, spread, subset

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.measure.weights import stable_rank

SEEDS = (71, 72, 73)
WAYS: dict[str, Row] = {
    "segments of 1": {},
    "segments of 2": {"segment": 2, "overlap": 1},
    "segments of 3": {"segment": 3, "overlap": 2},
    "segments of 4": {"segment": 4, "overlap": 3},
    "at once": {"segment": 6},
    "forward dropout 0.2": {"forward_dropout": 0.2},
    "backward dropout 0.3": {"backward_dropout": 0.3},
    "dropouts 0.2 and 0.3": {"forward_dropout": 0.2, "backward_dropout": 0.3},
    "dropouts 0.8 and 0.6": {"forward_dropout": 0.8, "backward_dropout": 0.6},
    "round robin": {"order": "round-robin"},
    "random robin": {"order": "random-robin"},
}
SCALES: dict[str, Row] = {
    "tiny": {"images": (200, 100, 100), "epochs": 1},
    "small": {"images": (1500, 1000, 3000), "epochs": 8},
}


def run(task: dt.Task, way: str, epochs: int, seed: int) -> Row:
    """One training: accuracies and the stable rank of each layer."""
    options: Row = {"epochs": epochs, "batch_size": 128, "lr": 0.1, "seed": seed, "show": False}
    net = dt.build("reproduce/vgg-six", channels=3, seed=seed)
    fit = dt.train.layerwise(net, task, lr_by_depth=1.0, **options, **WAYS[way])
    ranks = [
        stable_rank(link[0].weight.detach())
        for name, link in fit.part.module.named_children()
        if name.startswith("conv")
    ]
    return {
        "validation accuracy": fit.record.final["validation accuracy"],
        "test accuracy": dt.evaluate(fit.part, task).accuracy,
        "ranks": ranks,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--kept", type=Path, default=Path("data/layerwise"))
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/layerwise_segments.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    scale = SCALES[args.scale]
    runs = Runs(args.kept / f"segments-{args.scale}", scale)
    task = subset("cifar10", *scale["images"], args.data)
    found = {
        way: [
            runs.once(f"{way}, {seed}", partial(run, task, way, scale["epochs"], seed))
            for seed in SEEDS
        ]
        for way in WAYS
    }
    rows = []
    for way, each in found.items():
        accuracies = [100 * one["test accuracy"] for one in each]
        ranks = [mean(layer) for layer in zip(*(one["ranks"] for one in each), strict=True)]
        gaps = [
            mean(abs(a - b) for a, b in zip(one["ranks"], whole["ranks"], strict=True))
            for one, whole in zip(each, found["at once"], strict=True)
        ]
        rows.append(
            {
                "way": way,
                "test accuracy, %": mean(accuracies),
                "deviation": spread(accuracies),
                "stable rank from at once": mean(gaps),
                **{f"rank {i}": rank for i, rank in enumerate(ranks, start=1)},
            }
        )
    by_way = {row["way"]: row for row in rows}
    reached = {way: row["test accuracy, %"] for way, row in by_way.items()}
    apart = {way: row["stable rank from at once"] for way, row in by_way.items()}
    held = {
        "1 longer segments are better": all(
            reached[f"segments of {b}"] > reached[f"segments of {a}"]
            for a, b in pairwise((1, 2, 3, 4))
        ),
        "2 both dropouts help": reached["dropouts 0.2 and 0.3"] > reached["segments of 1"],
        "3 ranks after random robin are nearer": apart["random robin"] < apart["segments of 1"],
        "4 accuracy is nearer": reached["random robin"] > reached["segments of 1"],
    }
    Evidence(
        claim="longer segments, dropouts and random robin bring layer by layer nearer to training "
        f"at once ({', '.join(f'{name}: {value}' for name, value in held.items())})",
        holds=all(held.values()),
        rows=tuple(rows),
        command="python reproduce/layerwise_segments.py",
        settings=environment(threads=args.threads, seeds=len(SEEDS)) | {"held": held},
    ).save(args.output)
    print(held)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
