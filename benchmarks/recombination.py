"""How fast is every front with every head, beside joining and running each pair by itself?

``dt.recombine`` runs each front once and hands its features to all heads.  The peer is what one
writes without it: join each pair, evaluate it, k² times.  Both use batch statistics and the same
images, in one process, in turns; the ratio of processor times is reported beside its limit,
(k fronts + k² heads) / (k² fronts + k² heads), from the time of a front and of a head alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.measure.forward import outputs_of

SLACK = 1.25
"""At most so many times the limit."""


def timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/recombination.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    for net, at, count, k in (("resnet8", "layer2", 512, 4), ("lenet5", "conv2", 1024, 6)):
        extra = {"norm": "batch", "channels": 1, "size": 28}
        halves = [dt.cut(dt.build(net, seed=seed, **extra), at=at) for seed in range(k)]
        everything = torch.arange(count + 10)
        split = {"train": everything[:10], "validation": [], "test": everything[10:]}
        task = dt.Task(torch.rand(count + 10, 1, 28, 28), everything % 10, split=split)
        fronts, heads = (list(side) for side in zip(*halves, strict=True))
        inputs = task.inputs

        def together() -> None:
            dt.recombine(fronts, heads, task, batch_size=512, correlation=False)  # noqa: B023

        def pair_by_pair() -> None:
            for front in fronts:  # noqa: B023
                for head in heads:  # noqa: B023
                    joined = dt.join(front, head, norms="batch", force=True)
                    dt.evaluate(joined, task, batch_size=512)  # noqa: B023

        times: dict[str, list[float]] = {
            "together": [],
            "pair by pair": [],
            "front": [],
            "head": [],
        }
        features = outputs_of(fronts[0], inputs)
        for _ in range(args.rounds):
            times["together"].append(timed(together))
            times["pair by pair"].append(timed(pair_by_pair))
            times["front"].append(timed(lambda: outputs_of(fronts[0], inputs)))  # noqa: B023
            times["head"].append(timed(lambda: outputs_of(heads[0], features)))  # noqa: B023
        middle = {name: statistics.median(values) for name, values in times.items()}
        limit = (middle["front"] + k * middle["head"]) / (k * (middle["front"] + middle["head"]))
        rows.append(
            {
                "network": f"{net} at {at}, {k} fronts and {k} heads",
                "ratio to pair by pair": middle["together"] / middle["pair by pair"],
                "limit": limit,
                "seconds": middle["together"],
            }
        )
        print(rows[-1])
    Evidence(
        claim="recombining runs each front once: near the limit of fronts and heads alone",
        holds=all(row["ratio to pair by pair"] <= SLACK * row["limit"] for row in rows),
        rows=tuple(rows),
        command=f"python benchmarks/recombination.py --threads {args.threads}",
        settings=environment(threads=args.threads, rounds=args.rounds),
    ).save(args.output)


if __name__ == "__main__":
    main()
