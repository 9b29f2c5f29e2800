"""What does a step of compatibility training cost beside the same step written by hand?

Two LeNet-5 networks with batch norm, a shared head for common classes and one for rotations.  The
peer is a bare PyTorch loop: for each network in turn, one forward of the batch for its own and the
class head, one of the four rotations for the rotation head, one backward, one optimiser step.  Both
run in one process in turns, on the same images; the median ratio of processor times is reported.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.objectives.pretexts import Rotation
from dovetail.parts.heads import head_like
from dovetail.train.group import Alternating, Auxiliary, Group, Member
from dovetail.train.loop import run_loop
from dovetail.train.options import Options
from dovetail.train.supervision import Batches

LIMIT = 1.05
COUNT, BATCH = 1024, 128


def bare(
    halves: list[tuple[dt.Part, dt.Part]], shared: list[dt.Part], sources: list[Batches]
) -> None:
    modules = [part.module for pair in halves for part in pair] + [part.module for part in shared]
    weights = [weight for module in modules for weight in module.parameters()]
    optimiser = torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    classes, turns = (part.module for part in shared)
    for module in modules:
        module.train()
    for batches in zip(*(source.epoch(0) for source in sources), strict=True):
        for (front, head), (x, y) in zip(halves, batches, strict=True):
            features = front.module(x)
            views = torch.cat([torch.rot90(x, k, (2, 3)) for k in range(4)])
            answers = torch.arange(4).repeat_interleave(len(x))
            loss = (
                F.cross_entropy(head.module(features), y)
                + F.cross_entropy(classes(features), y)
                + F.cross_entropy(turns(front.module(views)), answers)
            )
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()


def ours(
    halves: list[tuple[dt.Part, dt.Part]],
    shared: list[dt.Part],
    sources: list[Batches],
    task: dt.Task,
) -> None:
    group = Group(
        [Member(str(i), front, head, task) for i, (front, head) in enumerate(halves)],
        [Auxiliary("dcc", shared[0]), Auxiliary("rp", shared[1], Rotation())],
    )
    options = Options(epochs=1, show=False, schedule="constant")
    run_loop(group, Alternating(sources), group.step, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/compatible_step.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    images, labels = torch.rand(COUNT, 1, 28, 28), torch.arange(COUNT) % 10
    task = dt.Task(images, labels, name="noise")
    nets = [dt.build("lenet5", norm="batch", seed=seed) for seed in (0, 1)]
    start = [dt.cut(net, at="conv2") for net in nets]
    heads = [head_like(start[0][1], task.classes), head_like(start[0][1], 4)]
    ratios, again = [], []
    for _ in range(args.rounds + 1):
        seconds = []
        for work in ("bare", "ours", "bare"):
            halves, shared = copy.deepcopy(start), copy.deepcopy(heads)
            sources = [Batches(images, labels, BATCH, seed=i) for i in range(2)]
            gc.collect()
            began = time.process_time()
            if work == "ours":
                ours(halves, shared, sources, task)
            else:
                bare(halves, shared, sources)
            seconds.append(time.process_time() - began)
        ratios.append(2 * seconds[1] / (seconds[0] + seconds[2]))
        again.append(seconds[2] / seconds[0])
    ratio = statistics.median(ratios[1:])
    row = {"ratio to a bare loop": ratio, "bare to bare": statistics.median(again[1:])}
    print(row)
    Evidence(
        claim="a step of compatibility training costs what its forwards and backward cost",
        holds=ratio <= LIMIT,
        rows=(row,),
        command=f"python benchmarks/compatible_step.py --threads {args.threads}",
        settings=environment(threads=args.threads, rounds=args.rounds, limit=LIMIT),
    ).save(args.output)


if __name__ == "__main__":
    main()
