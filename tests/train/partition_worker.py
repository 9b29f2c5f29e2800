"""What a process of the tests of partitions does, and what they compare it with."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from forked import start
from torch import nn

import dovetail as dt
from dovetail.core.errors import DovetailError
from dovetail.tasks.task import Task

EPOCHS = 3


def task():
    """Three blobs of small images, with a last batch that is short."""
    draw = torch.Generator().manual_seed(4)
    targets = torch.arange(130) % 3
    inputs = 0.3 * torch.rand(130, 1, 8, 8, generator=draw)
    inputs[torch.arange(130), 0, targets, targets] += 0.5
    return Task(inputs, targets, name="blobs")


def dense():
    return dt.build("mlp", shape=(1, 8, 8), hidden=(16, 16, 16), classes=3, norm="batch")


def conv():
    """With batch statistics, dropout, and operations in place on what is handed on."""
    torch.manual_seed(3)
    net = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        *(nn.Dropout(0.2), nn.Conv2d(4, 6, 3, stride=2), nn.BatchNorm2d(6)),
        *(nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Flatten(), nn.Linear(54, 16)),
        *(nn.ReLU(inplace=True), nn.Dropout(0.4), nn.Linear(16, 3)),
    )
    return dt.adopt(net, example=torch.zeros(2, 1, 8, 8))


TWO = {
    "dense": (dense, {"at": "hidden1"}),
    "conv": (conv, {"at": "5", "queue": 1}),
    "augmented": (conv, {"at": "3", "augment": "flip,shift:1", "queue": 4}),
    "halves": (conv, {"at": "3", "packing": "float16"}),
    "packed": (conv, {"at": "3", "packing": {"bits": 6}}),
    "adam": (dense, {"at": "hidden2", "optimiser": "adam", "lr": 0.01, "clip": 1.0}),
}
BY_LOSS = {"at": ("3", "8"), "filter": "loss:0.3,after:1"}
BY_FEATURES = {"at": ("3", "8"), "filter": "features:2,after:1,pool:40", "packing": "float16"}
THREE = {
    "three": (conv, {"at": ("3", "8"), "queue": 1}),
    "by loss": (conv, BY_LOSS),
    "by features": (conv, BY_FEATURES),
}
CASES = TWO | THREE


def trained(name, **more):
    """A training of the name, and what of it must be the same everywhere."""
    make, settings = CASES[name]
    fit = dt.train.partitioned(
        make(), task(), **{"epochs": EPOCHS, "batch_size": 16, "seed": 5, **settings, **more}
    )
    return facts(fit)


def facts(fit):
    rows = [{k: v for k, v in row.items() if "seconds" not in k} for row in fit.record.rows]
    seen = [each.examples for each in fit.record.partitions]
    return {"digest": fit.part.digest, "rows": rows, "seen": seen}


def meet(work, size, folder, *args):
    """Run ``work(rank, size, folder, ...)`` in processes; they are not waited for."""
    return [start(work, rank, size, str(folder), *args) for rank in range(size)]


def join(rank, size, folder):
    """Be one of a group."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size
    )


def told(folder, rank, what):
    Path(folder, f"{rank}.json").write_text(json.dumps(what))


def every(rank, size, folder, names):
    """Train them one after the other."""
    join(rank, size, folder)
    found = {name: trained(name, parallel=True) for name in names}
    if size == 2:
        found["balanced"] = _balanced()
    told(folder, rank, found)
    dist.destroy_process_group()


def _balanced():
    fit = dt.train.partitioned(conv(), task(), parallel=True, epochs=1, batch_size=16, seed=5)
    return facts(fit) | {"at": list(fit.record.settings["at"])}


def replicas(rank, size, folder):
    join(rank, size, folder)
    fit = dt.train.partitioned(
        dense(), task(), parallel=True, replicas=2, epochs=20, batch_size=16, seed=5, at="hidden1"
    )
    told(folder, rank, facts(fit) | {"accuracy": fit.record.final["validation accuracy"]})


def killed(rank, size, folder, who, how):
    """One process is killed or stopped in an epoch; what the others say."""
    join(rank, size, folder)

    def hit(moment):
        if moment.epoch == 2 and rank == who:
            os.kill(os.getpid(), getattr(signal, how))

    began = time.monotonic()
    try:
        kept = {"checkpoint": f"{folder}/run.safetensors", "checkpoint_seconds": 0}
        trained("three", parallel=True, callbacks=(hit,), timeout=3, **kept)
        said = "nothing"
    except DovetailError as error:
        said = str(error)
    told(folder, rank, {"said": said, "seconds": time.monotonic() - began})
    os._exit(0)


def delayed(rank, size, folder, runs):
    """Random delays and queues of 1 to 4."""
    join(rank, size, folder)
    draw = torch.Generator().manual_seed(rank)

    class Slow(nn.Module):
        def forward(self, x):
            time.sleep(float(torch.rand((), generator=draw)) ** 4 * 0.02)
            return x

    found = []
    for run in range(runs):
        net = nn.Sequential(
            *(nn.Flatten(), nn.Linear(64, 8), Slow(), nn.Linear(8, 8), Slow()), nn.Linear(8, 3)
        )
        torch.manual_seed(run)
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=0.1)
        fit = dt.train.partitioned(
            dt.adopt(net, example=torch.zeros(2, 1, 8, 8)),
            task(),
            parallel=True,
            at=("2", "4"),
            queue=1 + run % 4,
            **{"epochs": 2, "batch_size": 8, "seed": run, "timeout": 30},
        )
        found.append(fit.part.digest)
    told(folder, rank, found)
    dist.destroy_process_group()


def mistakes(rank, size, folder):
    """What is said where there are too many processes or too few."""
    join(rank, size, folder)
    said = []
    for settings in (
        {"at": ("3", "8"), "parallel": True},
        {"at": "3", "parallel": True, "replicas": 2},
        {"at": "3"},
    ):
        try:
            dt.train.partitioned(conv(), task(), epochs=1, **settings)
        except DovetailError as error:
            said.append(str(error))
    told(folder, rank, said)
    dist.destroy_process_group()
