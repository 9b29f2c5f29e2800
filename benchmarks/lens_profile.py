"""What does a profile of a network cost beside one pass of features and the measures themselves?

EfficientNet-Lite0 with released weights and images of CIFAR-10 at 96 pixels: ``lens.profile`` at
every stage, beside one pass of the same images through the whole network (``dt.features``) and the
same measures on arrays that are there already.  The median over rounds must be at most 1.3 times
their sum: in processor time, and on the clock, which all threads share.  Also: the pure entropy of
20 000 images of MNIST as 784 pixels, which must take less than a minute, and of 5 000 with random
labels, the worst case, where hardly two examples share a cell.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.lens.profile import _measured, layer_weights
from dovetail.measure.features import features_through, pieces_along
from dovetail.ranking.candidates import only, points_of

PASSES, MINUTE = 1.3, 60.0
RESULT = Path(__file__).parent / "results" / "lens_profile.json"


CLOCKS = {"processor": time.process_time, "clock": time.perf_counter}


def seconds(run: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What it gives, and its seconds by either clock."""
    began = {name: clock() for name, clock in CLOCKS.items()}
    found = run()
    return found, {name: clock() - began[name] for name, clock in CLOCKS.items()}


def profiled(images: int, size: int, rounds: int, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    part = dt.adopt("efficientnet-lite0", args={"size": size})
    task = dt.load_task("cifar10")
    task = only(task, task.indices("train")[:images])
    targets = task.subset("train")[1]
    points = points_of(part)
    pieces, rest = pieces_along(part, points)
    taken = features_through(part, {**pieces, "output": rest.module}, task)
    rows: list[dict[str, dict[str, float]]] = []
    for _ in range(rounds):
        _, one = seconds(lambda: dt.features(part, task))

        def measure() -> None:
            layer_weights({**pieces, "output": rest.module})
            for name, each in taken.items():
                _measured(name, each.values, targets, 10, "auto", 0)

        _, measures = seconds(measure)
        found, whole = seconds(lambda: dt.lens.profile(part, task, limit=None))
        rows.append({"pass": one, "measures": measures, "profile": whole})
    found_by = {}
    for name in CLOCKS:
        for key in ("pass", "measures", "profile"):
            found_by[f"{key}, s of {name}"] = statistics.median(row[key][name] for row in rows)
        found_by[f"profile / (pass + measures), {name}"] = statistics.median(
            row["profile"][name] / (row["pass"][name] + row["measures"][name]) for row in rows
        )
    ratios = [found_by[f"profile / (pass + measures), {name}"] for name in CLOCKS]
    return {
        "what": f"profile of EfficientNet-Lite0, {images} images of {size} pixels",
        "points": len(found.points),
        "threads": threads,
        **found_by,
        "limit": PASSES,
        "holds": max(ratios) <= PASSES,
    }


def pure(n: int, random_labels: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    task = dt.load_task("mnist")
    x, y = task.inputs[:n].flatten(1).float() / 255, task.targets[:n]
    if random_labels:
        y = y[torch.randperm(n, generator=torch.Generator().manual_seed(0))]
    found, took = seconds(lambda: dt.lens.pure_voronoi_map(x, y))
    return {
        "what": f"pure entropy of {n} MNIST images" + (", random labels" * random_labels),
        "threads": 1,
        "pure entropy, s of processor": took["processor"],
        "pure entropy, s of clock": took["clock"],
        "cells": len(found.labels),
        "bits": found.entropy,
        "limit": MINUTE,
        "holds": took["processor"] <= MINUTE,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    rows = [profiled(args.images, args.size, args.rounds, threads) for threads in args.threads]
    rows += [pure(20_000, False), pure(5_000, True)]
    for row in rows:
        for key, value in row.items():
            print(f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}")
    Evidence(
        claim="a profile costs at most 1.3 times one pass of features and its measures, and the "
        "pure entropy of 20 000 images less than a minute",
        holds=all(row["holds"] for row in rows),
        rows=tuple(rows),
        command="python benchmarks/lens_profile.py",
        settings=environment(),
    ).save(RESULT)


if __name__ == "__main__":
    main()
