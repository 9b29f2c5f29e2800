"""A process of the benchmarks of partitions: examples a second of several ways, one after another.

Run with ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` set, and a JSON description
of what to measure; process 0 prints a row a measurement.  All ways train the same network on the
same random data with SGD and momentum, the same examples a step in all, one thread a process.
A time is from the end of the first epoch (or step) to the end of the last.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dovetail as dt
from dovetail.parts.part import Part

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "vgg13": ("vgg13", {"width": 16}),
    "mlp": ("mlp", {"shape": (784,), "hidden": (1024, 1024, 1024)}),
}
LR = 0.01


def network(name: str) -> Part:
    builder, args = NETWORKS[name]
    return dt.build(builder, **args)


def data(name: str, rows: int, batch: int) -> dt.Task:
    """As many rows to train on, and a few that the trainer validates on."""
    shape = (784,) if name == "mlp" else (3, 32, 32)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(rows + 2 * batch, *shape, generator=draw)
    y = torch.randint(10, (rows + 2 * batch,), generator=draw)
    y[: 2 * 10] = torch.arange(20) % 10
    places = torch.arange(len(x))
    split = {"train": places[:rows], "validation": places[rows:-batch], "test": places[-batch:]}
    return dt.Task(x, y, name="random", split={k: v.tolist() for k, v in split.items()})


def in_partitions(name: str, batch: int, steps: int, epochs: int, **more: Any) -> dict[str, Any]:
    """The trainer as it is, hand-over, record and validation of one batch included."""
    ends: list[float] = []
    fit = dt.train.partitioned(
        network(name),
        data(name, batch * steps, batch),
        parallel=True,
        callbacks=(lambda moment: ends.append(time.perf_counter()),),
        **{"epochs": epochs, "batch_size": batch, "lr": LR, "show": False, **more},
    )
    record = fit.record
    taken = torch.tensor(ends[-1] - ends[0], dtype=torch.float64)
    dist.broadcast(taken, dist.get_world_size() - 1)
    sent = record.partitions[0].megabytes / epochs / steps  # type: ignore[attr-defined]
    return {
        "seconds": float(taken) / (epochs - 1) / steps,
        "MB a step": sent,
        "at": ", ".join(record.settings["at"]),
    }


def batches(name: str, batch: int, steps: int) -> tuple[Tensor, Tensor]:
    task = data(name, batch * steps, batch)
    rows = task.indices("train")
    return task.inputs[rows], task.targets[rows]


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        module.parameters(), lr=LR, momentum=0.9, nesterov=True, weight_decay=5e-4
    )


def timed(step: Any, steps: int) -> float:
    """Seconds a step, the first left out."""
    step(0)
    if dist.get_world_size() > 1:
        dist.barrier()
    began = time.perf_counter()
    for number in range(1, steps):
        step(number)
    return (time.perf_counter() - began) / (steps - 1)


def data_parallel(name: str, batch: int, steps: int) -> dict[str, Any]:
    """DDP: each process takes its share of the rows of every batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x, y = batches(name, batch, steps)
    module = DistributedDataParallel(network(name).module.train())
    optimiser = sgd(module)

    def step(number: int) -> None:
        rows = slice(number * batch + rank, (number + 1) * batch, size)
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(module(x[rows]), y[rows]).backward()
        optimiser.step()

    gradients = sum(p.nbytes for p in module.parameters()) / 1e6
    return {"seconds": timed(step, steps), "MB a step": 2 * (size - 1) / size * gradients}


def alone(name: str, batch: int, steps: int) -> dict[str, Any]:
    """The whole network in process 0, a plain loop; the other has nothing to do."""
    seconds = 0.0
    if dist.get_rank() == 0:
        x, y = batches(name, batch, steps)
        module = network(name).module.train()
        optimiser = sgd(module)
        began = 0.0
        for number in range(steps):
            rows = slice(number * batch, (number + 1) * batch)
            optimiser.zero_grad(set_to_none=True)
            F.cross_entropy(module(x[rows]), y[rows]).backward()
            optimiser.step()
            began = began or time.perf_counter()
        seconds = (time.perf_counter() - began) / (steps - 1)
    dist.barrier()
    return {"seconds": seconds}


def pipelined(name: str, batch: int, steps: int, *, at: str, pieces: int) -> dict[str, Any]:
    """Torch's own pipeline, exact gradients: 1F1B, a batch in pieces, cut at the same point."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    x, y = batches(name, batch, steps)
    module = dt.cut(network(name), at=at)[rank].module.train()
    stage = PipelineStage(module, rank, dist.get_world_size(), torch.device("cpu"))
    schedule = Schedule1F1B(stage, pieces, loss_fn=F.cross_entropy)
    optimiser = sgd(module)

    def step(number: int) -> None:
        rows = slice(number * batch, (number + 1) * batch)
        optimiser.zero_grad(set_to_none=True)
        if rank == 0:
            schedule.step(x[rows])
        else:
            schedule.step(target=y[rows])
        optimiser.step()

    return {"seconds": timed(step, steps)}


WAYS = {"partitions": in_partitions, "DDP": data_parallel, "one": alone, "pipelining": pipelined}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    wanted = json.loads(sys.argv[1])
    chosen = ""
    for repeat in range(wanted["repeats"]):
        for called, (way, settings) in wanted["ways"].items():
            settings = dict(settings)
            if way in ("partitions", "pipelining") and chosen:
                settings["at"] = chosen
            batch = wanted["batch"]
            try:
                found = WAYS[way](wanted["network"], batch, **settings)  # type: ignore[operator]
            except RuntimeError as error:
                found = {"failed": str(error).splitlines()[0][:200]}
            chosen = found.get("at") or chosen
            if found.get("seconds"):
                found["examples a second"] = batch / found["seconds"]
            row = {"way": called, "repeat": repeat, **found}
            if dist.get_rank() == 0:
                print(json.dumps(row), flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
