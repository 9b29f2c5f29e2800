r"""Moving the weights of a network under a linear head that stays, from few labels.

A head fitted to few rows of many features tells them apart already: its loss is near zero and has
no gradient to speak of.  So its logits are divided by a temperature first, such that it
costs at least a share :data:`LEAST` of what guessing costs,

.. math::
    T \ge 1 : \quad -\frac1n \sum_i \log \operatorname{softmax}\!\big(h(\phi(x_i)) / T\big)_{y_i}
    \ge \tfrac45 \log C ,

and what lowers the loss is to move features :math:`\phi` of a class towards what the head takes for
that class.  The head does not move (it would fit the rows by itself), normalisation and dropout are
as in evaluation, and the rate of AdamW rises over the first steps and falls to zero: its first
steps have the same size whatever the gradient, and would undo what the network knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.adapt.networks import Front
from dovetail.core.errors import ContractError
from dovetail.core.seeds import generator
from dovetail.linalg.ridge_sums import Linear
from dovetail.measure.features import pooled
from dovetail.measure.forward import prepare

__all__ = ["Moves", "hot_temperature", "moved"]

LEAST = 0.8
"""The loss to begin with is at least so much of what guessing costs."""

RISE = 4
"""So many steps, or a quarter of them, until the rate is at its peak."""


@dataclass(frozen=True)
class Moves:
    """How far and how fast: steps of AdamW, labels a step, the rate at its peak, its decay.

    >>> Moves(steps=16, batch_size=32, rate=1e-3).at(3), Moves(16, 32, 1e-3).at(15) < 1e-4
    (0.001, True)
    """

    steps: int
    batch_size: int
    rate: float
    decay: float = 0.0

    def at(self, step: int) -> float:
        """The rate of a step, counted from 0: up in a line, down in half a cosine."""
        rise = min(RISE, max(1, self.steps // 4))
        if step < rise:
            return self.rate * (step + 1) / rise
        return self.rate * (1 + math.cos(math.pi * (step + 1 - rise) / (self.steps + 1 - rise))) / 2


def hot_temperature(logits: Tensor, codes: Tensor) -> float:
    """The least temperature from 1 that leaves logits ``[n, c]`` something to learn.

    >>> logits = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    >>> hot = hot_temperature(logits, torch.tensor([0, 1]))
    >>> round(float(F.cross_entropy(logits / hot, torch.tensor([0, 1]))) / math.log(2), 2)
    0.8
    """
    enough = LEAST * math.log(logits.shape[1])

    def short(temperature: float) -> bool:
        return float(F.cross_entropy(logits / temperature, codes)) < enough

    low, high = 1.0, 1.0
    while short(high) and high < 1e6:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if short(middle) else (low, middle)
    return high


def moved(
    front: Front,
    head: Linear,
    inputs: Tensor,
    codes: Tensor,
    moves: Moves,
    marks: Sequence[int],
    *,
    seed: int = 0,
) -> Iterator[int]:
    """Train the weights of a front that require gradients; stop at each of the marks on the way.

    Args:
        front: In evaluation mode; its module is changed.
        head: On rows ``[n, d]``, its outputs logits; it stays as it is.
        inputs: Raw ``[n, ...]``.
        codes: Classes ``[n]``.
        moves: See :class:`Moves`.
        marks: After which steps to stop, ascending.
        seed: Of the order of the labels.
    """
    part = front.part
    if part is None:
        raise ContractError("without a network there are no weights to move")
    weights = [each for each in part.module.parameters() if each.requires_grad]
    matrix, intercept = (each.to(weights[0]) for each in (head.weights, head.intercept))
    means, squares = ([torch.zeros_like(each) for each in weights] for _ in range(2))
    batches = _batches(len(inputs), moves.batch_size, seed)
    done = 0
    for mark in marks:
        for step in range(done, mark):
            some = next(batches)
            x = _laid_out(prepare(inputs[some], part.contract).to(weights[0]))
            logits = pooled(part.module(x), front.pooling) @ matrix + intercept
            loss = F.cross_entropy(logits, codes[some].to(logits.device))
            slopes = torch.autograd.grad(loss, weights)
            _adamw(weights, slopes, means, squares, step + 1, moves.at(step), moves.decay)
        done = mark
        yield mark


@torch.no_grad()
def _adamw(
    weights: Sequence[Tensor],
    slopes: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    step: int,
    rate: float,
    decay: float,
    momentum: float = 0.9,
    memory: float = 0.999,
) -> None:
    """One step of AdamW; torch's own imports a compiler first, which takes longer than all steps.

    >>> weight, zero = torch.ones(1), torch.zeros(2, 1).unbind()
    >>> _adamw([weight], [torch.tensor([5.0])], zero[:1], zero[1:], 1, rate=0.1, decay=0.0)
    >>> weight  # the first step has the length of the rate, whatever the slope
    tensor([0.9000])
    """
    for weight, slope, mean, square in zip(weights, slopes, means, squares, strict=True):
        mean.lerp_(slope, 1 - momentum)
        square.lerp_(slope.square(), 1 - memory)
        root = (square / (1 - memory**step)).sqrt_().add_(1e-8)
        weight.mul_(1 - rate * decay).addcdiv_(mean, root, value=-rate / (1 - momentum**step))


def _laid_out(x: Tensor) -> Tensor:
    """Images with their channels last: convolutions then take two thirds of the time."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def _batches(count: int, size: int, seed: int) -> Iterator[Tensor]:
    """Rows of one pass after the other, each in an order of its own, in batches of like size."""
    epoch = 0
    while True:
        order = torch.randperm(count, generator=generator(seed, "order", epoch))
        yield from order.tensor_split(math.ceil(count / size))
        epoch += 1
