"""The networks, the data and the keeping of finished runs."""

from __future__ import annotations

import copy
import json
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dovetail as dt
from dovetail.core.files import write_whole
from dovetail.core.seeds import generator, seeded

Row = dict[str, Any]
Fit = Callable[..., Any]


@dataclass(frozen=True)
class Runs:
    """A folder that keeps what was found, so that a script that was stopped goes on."""

    folder: Path
    protocol: Row

    def once(self, key: str, make: Callable[[], Row]) -> Row:
        """What ``make`` finds, or found before under the same protocol."""
        file = self.folder / (key.replace(" ", "_").replace("/", "-") + ".json")
        protocol = json.loads(json.dumps(self.protocol))
        if not file.exists():
            began = time.process_time()
            found = make() | {"CPU seconds": time.process_time() - began}
            file.parent.mkdir(parents=True, exist_ok=True)
            kept = {"protocol": protocol, "found": found}
            write_whole(file, json.dumps(kept, indent=1).encode())
            print(key, found, flush=True)
        kept = json.loads(file.read_text())
        if kept["protocol"] != protocol:
            raise SystemExit(f"{file} was found under another protocol; delete it to run it again")
        found = kept["found"]
        assert isinstance(found, dict)
        return found


def subset(name: str, train: int, validation: int, test: int | None, data: Path | None) -> dt.Task:
    """A task with so many images: drawn for training and validation, the first for testing."""
    task = dt.load_task(name, data=data)
    rows = {"test": task.indices("test")[:test]}
    for split, count in (("train", train), ("validation", validation)):
        own = task.indices(split)
        rows[split] = own[torch.randperm(len(own), generator=generator(0, split))[:count]]
    return task.derived(f"{name}, {train} images", indices=rows)


def compact(task: dt.Task) -> dt.Task:
    """The images that are used and no others, so that only these go through the layers."""
    splits = ("train", "validation", "test")
    rows = [task.indices(split) for split in splits]
    starts = torch.tensor([0, *(len(each) for each in rows)]).cumsum(0)
    every = torch.cat(rows)
    return task.derived(
        task.name,
        inputs=task.inputs[every],
        targets=task.targets[every],
        indices={split: torch.arange(starts[i], starts[i + 1]) for i, split in enumerate(splits)},
    )


@dt.builder("reproduce/vgg-six", takes=lambda channels: (channels, *(28 + 4 * (channels > 1),) * 2))
def vgg_six(channels: int = 1, times: int = 1, classes: int = 10) -> nn.Module:
    """Six 3×3 convolutions with batch norm, halved behind the second and the fourth."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width = channels
    for i, own in enumerate((8, 8, 16, 16, 32, 32), start=1):
        out = times * own
        steps = [nn.Conv2d(width, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        layers[f"conv{i}"] = nn.Sequential(*steps, *[nn.MaxPool2d(2)] * (i in (2, 4)))
        width = out
    layers["pool"], layers["flatten"] = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    layers["head"] = nn.Linear(width, classes)
    return nn.Sequential(layers)


def drawn_anew(part: dt.Part, seed: int) -> dt.Part:
    """The same network with fresh weights."""
    module = copy.deepcopy(part.module)
    with seeded(seed, "anew"):
        for child in module.modules():
            if hasattr(child, "reset_parameters"):
                child.reset_parameters()
    return part.changed(module=module)


def epoch_seconds(train: Fit, *args: Any, **options: Any) -> list[float]:
    """CPU seconds of an epoch of every stage: the median of all but its first epoch.

    For a task without validation images, so that nothing but training lies between two calls.
    """
    stamps: list[tuple[str, float]] = []

    def stamp(moment: Any) -> None:
        stamps.append((moment.stage, time.process_time()))

    train(*args, callbacks=(stamp,), **options)
    stages: dict[str, list[float]] = {}
    for (before, began), (stage, ended) in pairwise(stamps):
        if stage == before:
            stages.setdefault(stage, []).append(ended - began)
    return [statistics.median(each) for each in stages.values()]


def shares_of(groups: list[nn.Module], x: torch.Tensor, repeats: int = 15) -> list[float]:
    """Of a step of the whole network, what forward and backward of each group of layers take."""
    seconds = []
    for i, group in enumerate(groups):
        group.train()
        entered = x.detach().requires_grad_(i > 0)
        taken = []
        for _ in range(repeats):
            began = time.process_time()
            y = group(entered)
            y.backward(torch.ones_like(y))
            taken.append(time.process_time() - began)
        seconds.append(statistics.median(taken))
        x = y
    return [each / sum(seconds) for each in seconds]


def mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def spread(values: Iterable[float]) -> float:
    """The standard deviation over the seeds; nothing of one."""
    all_ = list(values)
    return statistics.stdev(all_) if len(all_) > 1 else 0.0
