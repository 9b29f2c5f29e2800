"""What does adapting a real network cost, in units of one pass of features?

EfficientNet-Lite0 with released weights, CIFAR-10, 5 labels a class: one pass of the 50 labelled
images through the network, a probe, the linearised classifier and fine-tuning, each with default
arguments.  Processor seconds of one process, the least of some rounds, at two sizes of image, with
one thread and with two; the first fit, which loads what a process needs once, is not counted.

Claim: the linearised classifier takes at most five times as long as extracting the features.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait are not at work

import torch

import dovetail as dt
from dovetail.adapt import FineTuned, LinearizedClassifier, Probe
from dovetail.adapt.networks import front_of
from dovetail.core.evidence import Evidence, environment
from dovetail.tasks.derive import few

MOST = 5.0


def seconds(do: Callable[[], Any], rounds: int) -> float:
    """The least processor time of some rounds."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        do()
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 224])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/adapt_real.json"))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    inputs, codes = few(dt.load_task("cifar10", data=args.data), 5).subset("train")
    labels = codes.numpy()
    rows = []
    for size, threads in itertools.product(args.sizes, args.threads):
        torch.set_num_threads(threads)
        part = dt.adopt("efficientnet-lite0", args={"size": size})
        front = front_of(part)
        chosen = LinearizedClassifier(part).fit(inputs, labels).chosen_
        row: dict[str, Any] = {
            **{"size": size, "threads": threads, "linearized took": chosen},
            "features, s": seconds(partial(front.rows, inputs), args.rounds + 1),
        }
        for name, make in {"probe": Probe, "linearized": LinearizedClassifier}.items():
            fit = partial(_fit, make, part, inputs, labels)
            row |= in_passes(name, seconds(fit, args.rounds), row)
        rows.append(row)
        print(row, flush=True)
        record(rows, args)
    torch.set_num_threads(args.threads[0])
    part = dt.adopt("efficientnet-lite0", args={"size": args.sizes[0]})
    spent = seconds(partial(_fit, FineTuned, part, inputs, labels), 1)
    rows[0] |= in_passes("finetune", spent, rows[0])  # elsewhere it takes minutes
    record(rows, args)


def _fit(make: Any, part: dt.Part, inputs: torch.Tensor, labels: Any) -> None:
    make(part).fit(inputs, labels)


def in_passes(name: str, spent: float, row: dict[str, Any]) -> dict[str, float]:
    """Seconds, and how many passes of the features they are."""
    return {f"{name}, s": spent, f"{name}, passes": spent / row["features, s"]}


def record(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Of the rows there are so far."""
    Evidence(
        claim="with 50 labels on EfficientNet-Lite0 the linearised classifier takes at most five "
        "times as long as extracting the features",
        command="python benchmarks/adapt_real.py",
        holds=all(row["linearized, passes"] <= MOST for row in rows),
        rows=tuple(rows),
        settings=environment(threads=args.threads, rounds=args.rounds, labels=50),
    ).save(args.output)


if __name__ == "__main__":
    main()
