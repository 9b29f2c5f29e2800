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
from collections.abc import Callable, Iterator, Sequence
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
    step: Callable[[str], None] = lambda words: None,
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
        step: Called after each step with a few words.
        seed: Of the order of the labels.
    """
    part = front.part
    if part is None:
        raise ContractError("without a network there are no weights to move")
    weights = [each for each in part.module.parameters() if each.requires_grad]
    matrix, intercept = (each.to(weights[0]) for each in (head.weights, head.intercept))
    adamw = _AdamW(weights, moves.decay)
    batches = _batches(len(inputs), moves.batch_size, seed)
    done = 0
    for mark in marks:
        for number in range(done, mark):
            some = next(batches)
            x = _laid_out(prepare(inputs[some], part.contract).to(weights[0]))
            logits = pooled(part.module(x), front.pooling) @ matrix + intercept
            loss = F.cross_entropy(logits, codes[some].to(logits.device))
            adamw(torch.autograd.grad(loss, weights), moves.at(number))
            step(f"loss {float(loss.detach()):.2f}")
        done = mark
        yield mark


class _AdamW:
    """AdamW; torch's own imports a compiler first, which takes longer than all steps.

    >>> weight = torch.ones(1)
    >>> _AdamW([weight], decay=0.0)([torch.tensor([5.0])], rate=0.1)
    >>> weight  # the first step has the length of the rate, whatever the slope
    tensor([0.9000])
    """

    def __init__(self, weights: Sequence[Tensor], decay: float) -> None:
        self.weights, self.decay, self.done = weights, decay, 0
        blank = [torch.zeros_like(each) for each in weights]
        self.means, self.squares = ([each.clone() for each in blank] for _ in range(2))
        self.roots = blank  # to write to: memory that is new at every step takes longest

    @torch.no_grad()
    def __call__(
        self, slopes: Sequence[Tensor], rate: float, momentum: float = 0.9, memory: float = 0.999
    ) -> None:
        """One step."""
        self.done += 1
        young = math.sqrt(1 - memory**self.done)
        length = rate * young / (1 - momentum**self.done)
        every = zip(self.weights, slopes, self.means, self.squares, self.roots, strict=True)
        for weight, slope, mean, square, root in every:
            mean.lerp_(slope, 1 - momentum)
            square.mul_(memory).addcmul_(slope, slope, value=1 - memory)
            torch.sqrt(square, out=root).add_(1e-8 * young)
            weight.mul_(1 - rate * self.decay).addcdiv_(mean, root, value=-length)


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
