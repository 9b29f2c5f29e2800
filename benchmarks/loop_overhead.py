"""What does our training loop cost beside the same steps in a bare PyTorch loop?

Both train LeNet-5 copies from one start on the same batches in the same order, with the same
optimiser and schedule, in one process.  Each round runs the bare loop twice and ours once, in
random order; the median over rounds of the ratio to the mean of the two is reported (processor
time), and the ratio of the two bare ones shows what noise alone does.
The bare loop does nothing but index, set the rate, forward, backward and step.  Ours also keeps the
running loss, the history, the clock of its checkpoints and (silent) progress.  The weights
must come out bit-identical, or the comparison would be between different work.
"""

from __future__ import annotations

import argparse
import copy
import gc
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.train.loop import run_loop
from dovetail.train.options import Options, one_cycle
from dovetail.train.supervision import Batches

LIMIT = 1.05
EPOCHS = 2


def bare(module: nn.Module, batches: Batches, epochs: int) -> None:
    optimiser = torch.optim.SGD(
        module.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    total, step = epochs * len(batches), 0
    module.train()
    for epoch in range(epochs):
        for inputs, targets in batches.epoch(epoch):
            for group in optimiser.param_groups:
                group["lr"] = 0.1 * one_cycle(step / total)
            loss = F.cross_entropy(module(inputs), targets)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            step += 1


def ours(module: nn.Module, batches: Batches, epochs: int, checkpoint: Path) -> None:
    run_loop(
        module,
        batches,
        lambda batch: F.cross_entropy(module(batch[0]), batch[1]),
        Options(epochs=epochs, checkpoint=checkpoint, resume=False, show=False),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/loop_overhead.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    rows = []
    cases = {
        "lenet5 on 28x28, batch 128": (("lenet5", {"size": 28}), (1, 28, 28), 128, 512),
        "mlp 64-64-64-10, batch 64": (("mlp", {}), (1, 8, 8), 64, 2048),
    }
    for name, ((net, extra), shape, batch, count) in cases.items():
        start = dt.build(net, **extra).module
        batches = Batches(torch.rand(count, *shape), torch.randint(10, (count,)), batch)
        times: dict[str, list[float]] = {"bare": [], "bare again": [], "ours": []}
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(args.rounds + 1):
                trained = {}
                for who in random.sample(list(times), k=3):
                    module = trained[who] = copy.deepcopy(start)
                    gc.collect()  # as timeit does: a collection in one turn is nobody's cost
                    gc.disable()
                    began = time.process_time()
                    if who == "ours":
                        ours(module, batches, EPOCHS, Path(folder) / "checkpoint")
                    else:
                        bare(module, batches, EPOCHS)
                    seconds = time.process_time() - began
                    gc.enable()
                    if turn:  # the first turn warms up
                        times[who].append(seconds)
                a, b = (trained[who].state_dict().values() for who in ("bare", "ours"))
                assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True)), "different work"
        turns = list(zip(times["bare"], times["bare again"], times["ours"], strict=True))
        ratio = statistics.median(2 * c / (a + b) for a, b, c in turns)
        null = statistics.median(b / a for a, b, _ in turns)
        step = 1000 * statistics.median(times["bare"]) / (EPOCHS * len(batches))
        rows.append(
            {"case": name, "ours / bare": ratio, "bare / bare": null, "bare ms a step": step}
        )
        print(f"{name}: ours / bare = {ratio:.3f} (limit {LIMIT}; bare / bare = {null:.3f})")
    evidence = Evidence(
        claim=f"the training loop costs at most {LIMIT - 1:.0%} more than a bare PyTorch loop",
        holds=max(row["ours / bare"] for row in rows) <= LIMIT,
        rows=tuple(rows),
        command="python benchmarks/loop_overhead.py",
        settings=environment(threads=args.threads, rounds=args.rounds),
    )
    evidence.save(args.output)
    if not evidence.holds:
        raise SystemExit("the loop costs more than that")


if __name__ == "__main__":
    main()
