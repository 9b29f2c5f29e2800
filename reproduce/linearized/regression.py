"""What the scripts about predicting numbers share: networks, training, measures, pictures."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.records import StoredRecord
from dovetail.core.seeds import generator, seeded
from dovetail.core.views import Figure, Series, View
from dovetail.measure.intervals import coverage, gaussian_nll
from linearized.keeping import Found

LEVEL = 0.9
Loss = Callable[[Tensor, Tensor], Tensor]


def arguments(description: str | None, name: str) -> argparse.Namespace:
    """The scale, the threads, and where the record goes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--scale", choices=("tiny", "small", "paper"), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kept", type=Path, default=Path("data") / name)
    parser.add_argument("--output", type=Path, default=Path(f"reproduce/results/{name}.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    return args


def network(*widths: int, activation: type[nn.Module], seed: int) -> nn.Sequential:
    """Linear layers of torch's own initial weights, and an activation between any two."""
    layers: list[nn.Module] = []
    with seeded(seed, "network", *widths):
        for takes, gives in pairwise(widths):
            layers += [nn.Linear(takes, gives), activation()]
    return nn.Sequential(*layers[:-1])


def squared(said: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error of ``[n, 1]`` outputs for ``[n]`` targets."""
    return (said[:, 0] - targets).square().mean()


def trained(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    rate: float,
    batch_size: int | None = None,
    loss: Loss = squared,
    params: Sequence[str] | None = None,
    decays: bool = True,
    seed: int = 0,
) -> nn.Module:
    """A copy of a network after some epochs of Adam, its rate falling to zero as half a cosine.

    ``params`` picks, by their names in the network, those that move.
    """
    net = copy.deepcopy(net).train()
    moving = [p for name, p in net.named_parameters() if params is None or name in params]
    size = len(x) if batch_size is None else min(batch_size, len(x))
    steps = epochs * -(-len(x) // size)
    optimiser = torch.optim.Adam(moving, lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    draw = generator(seed, "batches")
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=draw) if size < len(x) else torch.arange(len(x))
        for rows in order.split(size):
            optimiser.zero_grad(set_to_none=True)
            loss(net(x[rows]), y[rows]).backward()
            optimiser.step()
            if decays:
                schedule.step()
    return net.eval()


@torch.no_grad()
def outputs(net: nn.Module, x: Tensor) -> Tensor:
    """The first of the numbers that a network gives, ``[n]``, float64."""
    said: Tensor = net(x)
    return said[:, 0].double()


def spread_of(values: Sequence[float], name: str) -> dict[str, float]:
    """The mean, its standard deviation over runs, and the median."""
    return {
        name: mean(values),
        f"{name}, deviation": stdev(values) if len(values) > 1 else 0.0,
        f"{name}, median": median(values),
    }


def honest(means: Any, deviations: Any, observed: Any) -> dict[str, float]:
    """The likelihood of observations and how many the 90 % intervals hold."""
    return {
        "nll": gaussian_nll(means, deviations, observed),
        "coverage": coverage(means, deviations, observed, LEVEL),
    }


def rmse(means: Any, truth: Any) -> float:
    """The root of the mean squared difference."""
    return float((torch.as_tensor(means) - torch.as_tensor(truth)).double().square().mean().sqrt())


def rows_by_points(runs: Sequence[Found]) -> list[dict[str, Any]]:
    """What was found under ``method/points/measure``, over the runs; a row for each two."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for key in runs[0]:
        method, points, measure = key.split("/")
        values = spread_of([found[key] for found in runs], measure)
        values.pop(f"{measure}, median")
        row = rows.setdefault((method, int(points)), {"method": method, "points": int(points)})
        row.update(values)
    return [rows[key] for key in sorted(rows)]


def curves_by_points(
    runs: Sequence[Found], methods: Sequence[str], measure: str, title: str, label: str
) -> Figure:
    """A line for each method over the points given; of few methods, with the range of the runs."""
    series = []
    for method in methods:
        keys = [key for key in runs[0] if key.startswith(f"{method}/") and key.endswith(measure)]
        values = [[found[key] for found in runs] for key in keys]
        few = len(methods) <= 5
        series.append(
            Series(
                method,
                tuple(key.split("/")[1] for key in keys),
                tuple(mean(each) for each in values),
                tuple(min(each) for each in values if few),
                tuple(max(each) for each in values if few),
            )
        )
    return Figure("line", title, tuple(series), label, measure, log_y=measure == "rmse")


def save_pictures(beside: Path, title: str, blocks: View, settings: dict[str, Any]) -> Path:
    """Keep drawings as a record, in the folder ``pictures`` beside that of the numbers."""
    folder = beside.parent / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    record = StoredRecord(
        of_kind="pictures", of_title=title, data={"settings": settings}, blocks=blocks
    )
    return record.save(folder / beside.name)
