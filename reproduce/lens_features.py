"""What layers learn: do classes separate with depth, and does pure entropy know a winding boundary?

Protocol, fixed before the first run.

Depth: the 784-392-196-50-10 network with ReLUs on MNIST, 10 000 training images (the first of the
training split), our end-to-end trainer with its defaults for 5 epochs, three seeds.  Profiles on
the first 4 000 of these images: the input, the three hidden layers behind their activation, and the
output, k = 10.  A claim holds if it does between every two neighbouring layers of every seed:

1. the least-squares distance falls from the input to the last hidden layer;
2. the k-redundancy rises from the input to the last hidden layer;
3. the pure entropy falls from the input to the last hidden layer;
4. the mean selection entropy of the hidden layers falls with depth.

The untrained network is measured beside it, to see what training adds.

Boundary: 2 000 points uniform in the unit square, in two classes by whether the second coordinate
lies above 0.5 + 0.25 sin(2 pi f x) of the first, three draws.

5. the pure entropy rises with f = 1, 2, 4, 8, in every draw;
6. at f = 1 it rises with the number of points, 500, 1000, 2000, 4000, in every draw.

Nothing is chosen on these numbers; the test split is not looked at.
"""

from __future__ import annotations

import argparse
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.ranking.candidates import only

SEEDS = (0, 1, 2)
TRAINED, LOOKED, EPOCHS = 10_000, 4_000, 5
LAYERS = ("hidden1", "hidden2", "hidden3")
RESULT = Path(__file__).parent / "results" / "lens_features.json"


def depth(seed: int) -> list[dict[str, Any]]:
    """Rows of one seed: every point, before and after training."""
    task = dt.load_task("mnist")
    task = only(task, task.indices("train")[:TRAINED])
    few = only(task, task.indices("train")[:LOOKED])
    start = dt.build("mlp", shape=(1, 28, 28), hidden=(392, 196, 50), classes=10, seed=seed)
    fit = dt.train.end_to_end(start, task, epochs=EPOCHS, seed=seed)
    rows = []
    for when, part in (("untrained", start), ("trained", fit.part)):
        found = dt.lens.profile(part, few, at=LAYERS, limit=None, pooling="flatten", seed=seed)
        for point in found.points:
            rows.append(
                {
                    "what": "depth",
                    "seed": seed,
                    "network": when,
                    "at": point.at,
                    "least-squares distance": point.least_squares_distance,
                    "by chance": point.by_chance,
                    "k-redundancy": point.k_redundancy,
                    "pure entropy": point.pure_entropy,
                    "selection entropy": point.selection_entropy,
                }
            )
            print(rows[-1], flush=True)
    return rows


def boundary(seed: int, f: int, points: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(points, 2, generator=draw, dtype=torch.float64)
    y = (x[:, 1] > 0.5 + 0.25 * torch.sin(2 * math.pi * f * x[:, 0])).long()
    found = dt.lens.pure_voronoi_map(x, y, seed)
    row = {
        "what": "boundary",
        "seed": seed,
        "frequency": f,
        "points": points,
        "pure entropy": found.entropy,
        "cells": len(found.labels),
    }
    print(row, flush=True)
    return row


def along(rows: list[dict[str, Any]], seed: int, key: str, places: tuple[str, ...]) -> list[float]:
    """A measure of a trained network at some points, in order."""
    own = {r["at"]: r[key] for r in rows if r["seed"] == seed and r.get("network") == "trained"}
    return [own[at] for at in places]


def rises(values: list[float]) -> bool:
    return all(b > a for a, b in pairwise(values))


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows = [row for seed in SEEDS for row in depth(seed)]
    whole = ("input", *LAYERS)
    claims = {}
    for name, key, places, sign in (
        ("1 least-squares distance falls", "least-squares distance", whole, -1),
        ("2 k-redundancy rises", "k-redundancy", whole, 1),
        ("3 pure entropy falls", "pure entropy", whole, -1),
        ("4 selection entropy falls", "selection entropy", LAYERS, -1),
    ):
        claims[name] = sum(
            rises([sign * v for v in along(rows, seed, key, places)]) for seed in SEEDS
        )
    waves = [[boundary(seed, f, 2000) for f in (1, 2, 4, 8)] for seed in SEEDS]
    sizes = [[boundary(seed, 1, m) for m in (500, 1000, 2000, 4000)] for seed in SEEDS]
    for name, several in (
        ("5 pure entropy rises with frequency", waves),
        ("6 pure entropy rises with points", sizes),
    ):
        claims[name] = sum(rises([row["pure entropy"] for row in each]) for each in several)
        rows += [row for each in several for row in each]
    verdicts = [
        {"what": "claim", "at": name, "seeds it holds for": count, "holds": count == len(SEEDS)}
        for name, count in claims.items()
    ]
    for verdict in verdicts:
        print(verdict)
    Evidence(
        claim="classes separate with depth by every measure, and pure entropy rises with the "
        "frequency of the boundary and with the number of points",
        holds=all(count == len(SEEDS) for count in claims.values()),
        rows=(*verdicts, *rows),
        command="python reproduce/lens_features.py",
        settings=environment(threads=torch.get_num_threads(), k=10, n=LOOKED, epochs=EPOCHS),
    ).save(RESULT)


if __name__ == "__main__":
    main()
