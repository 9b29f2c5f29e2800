"""Several workers that average their weights once an epoch, simulated in one process.

The setting of "Efficient deep learning", chapter 3, as far as it is told: MNIST, 784-392-50-10,
tanh everywhere, squared error (to +1 for the class and -1 for the others), gradient descent, each
worker on its share of the rows.  Not told, and chosen here before anything was compared: the
weights are averaged once an epoch; batches of 20; pixels standardised by one mean and one
deviation; torch's usual initial weights, the same for all workers; and the learning rate 0.5: in
pilots with seed 100, which is in no row, the plain average levelled off within 40 epochs at rates
from 0.3 to 0.6, and began to break down at 1.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.seeds import generator, seeded
from dovetail.dist.packed_mean import averaged
from dovetail.dist.wire import Packing
from dovetail.tasks.arrays import as_float
from dovetail.tasks.load import load_task

BATCH, CLASSES = 20, 10
RATE = 0.5


@dataclass(frozen=True, eq=False)
class Digits:
    """Standardised rows ``[n, 784]`` and their classes ``[n]``, of three splits."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def digits(rows: int | None, *, tiny: bool = False) -> Digits:
    """MNIST with so many training rows (all if ``None``), the same for every seed."""
    task = load_task("digits" if tiny else "mnist")
    found = []
    for split, most in (("train", rows), ("validation", 5000), ("test", None)):
        inputs, targets = task.subset(split)
        order = torch.randperm(len(inputs), generator=generator(0, "packing", split))[:most]
        found.append((as_float(inputs[order]).flatten(1), targets[order]))
    mean, deviation = found[0][0].mean(), found[0][0].std()
    train, validation, test = (((x - mean) / deviation, y) for x, y in found)
    return Digits(train, validation, test)


def network(inputs: int, seed: int) -> nn.Sequential:
    """784-392-50-10 (64-32-16-10 for the smoke test), a tanh after every layer."""
    widths = (784, 392, 50, CLASSES) if inputs == 784 else (inputs, 32, 16, CLASSES)
    with seeded(seed, "weights"):
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.Tanh())]
        return nn.Sequential(*layers)


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """To +1 for the class and -1 for the others."""
    targets = torch.full_like(outputs, -1.0)
    targets[torch.arange(len(labels)), labels] = 1.0
    return (outputs - targets).square().mean()


def accuracy(net: nn.Module, split: tuple[Tensor, Tensor]) -> float:
    """In percent."""
    inputs, labels = split
    with torch.no_grad():
        said = torch.cat([net(x).argmax(1) for x in inputs.split(2000)])
    return 100 * float((said == labels).double().mean())


@dataclass(frozen=True, eq=False)
class Epoch:
    """What is known after an epoch: the common network, and the bits that each worker sent."""

    number: int
    net: nn.Module
    bits: tuple[int, ...]


def training(
    data: Digits,
    *,
    workers: int,
    seed: int,
    epochs: int,
    packing: Packing,
    error_feedback: bool = False,
    differences: bool = False,
    rate: float = RATE,
) -> Iterator[Epoch]:
    """The common network after each epoch; what is yielded is changed by the next one.

    Sent are the weights, or their ``differences`` to the last common ones.
    """
    inputs, labels = data.train
    nets = [network(inputs.shape[1], seed) for _ in range(workers)]
    shares = [
        torch.arange(len(inputs))[: len(inputs) // workers * workers][worker::workers]
        for worker in range(workers)
    ]
    residuals: Any = None
    common = copy.deepcopy(nets[0].state_dict())
    for number in range(1, epochs + 1):
        for worker, (net, share) in enumerate(zip(nets, shares, strict=True)):
            draw = generator(seed, "order", worker, number)
            order = share[torch.randperm(len(share), generator=draw)]
            _descend(net, inputs, labels, order, rate)
        chosen = packing
        if packing is not None and packing.get("gradients") is True:
            chosen = {**packing, "gradients": whole_gradient(nets[0], data.train)}
        states = [net.state_dict() for net in nets]
        mean = averaged(states, residuals, chosen, common if differences else None)
        residuals, common = mean.residuals if error_feedback else None, mean.state
        for net in nets:
            net.load_state_dict(mean.state)
        yield Epoch(number, nets[0], mean.bits)


def _descend(net: nn.Module, inputs: Tensor, labels: Tensor, order: Tensor, rate: float) -> None:
    weights = list(net.parameters())
    for rows in order.split(BATCH):
        loss = squared_error(net(inputs[rows]), labels[rows])
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=rate)


def whole_gradient(net: nn.Module, split: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Of the mean squared error on all rows, by the parameters' names."""
    net = copy.deepcopy(net)
    squared_error(net(split[0]), split[1]).backward()
    return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
