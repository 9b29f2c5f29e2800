"""A stage of a training layer by layer: what is trained, above what, and under which decision.

A stage knows everything that its memory depends on, so that the peak of one step can be measured
before the training, and the stage made smaller: a smaller decision block, smaller pieces of a
batch, or activations that are computed twice instead of kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.parts.part import Part
from dovetail.parts.splitting import is_chain
from dovetail.train.checkpointing import recomputed
from dovetail.train.decision import Decision
from dovetail.train.dropouts import GradientDropout, InputDropout
from dovetail.train.supervision import Loss


@dataclass(frozen=True)
class Stage:
    """Some layers, the frozen ones below them, and what they are trained under.

    Attributes:
        name: Of the stage; checkpoints are called after it.
        layers: What is trained and stays, on its device: a chain, a link a layer, whose storage is
            shared with the network.
        below: The frozen layers, with the preprocessing: :meth:`feed` runs them.
        shape: What the layers give for one example.
        outputs: How many numbers the decision is.
        decision: The size of the block that decides; ``None`` in the last stage.
        head: The network's own, which the last stage trains and keeps.
        forward_dropout: Of what enters the layers, in the first epoch.
        forward_fade: The factor on it from epoch to epoch.
        backward_dropout: Of the gradient that comes back from the decision.
        micro: In how many pieces a batch goes through, one after the other.
        checkpoint: Compute activations again on the way back instead of keeping them.
        seed: For the weights of the decision block.

    >>> from dovetail.parts.part import build
    >>> from dovetail.train.supervision import below
    >>> net = build("mlp", shape=(4,), hidden=(8,), classes=3)
    >>> stage = Stage("layer1", net.module[1], below(net, "flatten"), (8,), 3, Decision())
    >>> network = stage.build()
    >>> loss = stage.loss(network, torch.zeros(5, 4), torch.zeros(5).long(), nn.CrossEntropyLoss())
    >>> loss.shape
    torch.Size([])
    """

    name: str
    layers: nn.Module
    below: Part
    shape: tuple[int, ...]
    outputs: int
    decision: Decision | None = None
    head: nn.Module | None = None
    forward_dropout: float = 0.0
    forward_fade: float = 1.0
    backward_dropout: float = 0.0
    micro: int = 1
    checkpoint: bool = False
    seed: int = 0

    def build(self) -> StageNetwork:
        """The module to train; a decision block is drawn from the seed, the same every time."""
        decision = self.head
        if self.decision is not None:
            made = self.decision.part(self.shape, self.outputs, seed=self.seed).module
            one = next(self.layers.parameters(), torch.zeros(()))
            decision = made.to(one.device, one.dtype)
        return StageNetwork(
            InputDropout(self.forward_dropout, self.forward_fade),
            self.layers,
            GradientDropout(self.backward_dropout),
            decision or nn.Identity(),
            recomputes=self.checkpoint,
        )

    def feed(self, inputs: Tensor) -> Tensor:
        """What enters the layers, for prepared inputs of the network; nothing is kept of it."""
        return self.through(self.below.module, inputs)

    def through(self, frozen: nn.Module, inputs: Tensor) -> Tensor:
        """The frozen layers on a batch, in as many pieces as it is trained in."""
        with torch.no_grad():
            if self.micro <= 1 or isinstance(frozen, nn.Identity):
                fed: Tensor = frozen(inputs)
                return fed
            return torch.cat([frozen(x) for x in inputs.tensor_split(self.micro) if len(x)])

    def loss(self, network: nn.Module, x: Tensor, targets: Tensor, loss: Loss) -> Tensor:
        """The loss of a batch ``x`` that was fed; call ``backward()`` on it for the gradients.

        In pieces, the gradients are computed here, piece by piece, and handed over by the
        backward pass: no two pieces are in memory at once.
        """
        if self.micro <= 1:
            return loss(network(x), targets)
        weights = [p for p in network.parameters() if p.requires_grad]
        total, gradients = x.new_zeros(()), [torch.zeros_like(p) for p in weights]
        pieces = zip(x.tensor_split(self.micro), targets.tensor_split(self.micro), strict=True)
        for piece, wanted in pieces:
            if len(piece) == 0:
                continue
            part = loss(network(piece), wanted) * (len(piece) / len(x))
            for sum_, new in zip(
                gradients, torch.autograd.grad(part, weights, allow_unused=True), strict=True
            ):
                if new is not None:
                    sum_ += new
            total = total + part.detach()
        handed: Tensor = _HandedOver.apply(  # type: ignore[no-untyped-call]
            total, gradients, *weights
        )
        return handed

    def train_once(self, network: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
        """Feed, forward, backward: all of a step but the optimiser's; the loss."""
        network.train()
        value = self.loss(network, self.feed(inputs), targets, loss)
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()


class StageNetwork(nn.Module):
    """Input dropout, the layers, gradient dropout, the decision: ``[n, ...]`` to ``[n, outputs]``.

    With ``recomputes`` every layer, and every layer of the decision, keeps its input alone.
    """

    def __init__(
        self,
        dropout: InputDropout,
        layers: nn.Module,
        back: GradientDropout,
        decision: nn.Module,
        *,
        recomputes: bool = False,
    ) -> None:
        super().__init__()
        self.dropout, self.layers, self.back, self.decision = dropout, layers, back, decision
        self.recomputes = recomputes
        self.hand_over: Callable[[Tensor], None] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The decision on ``[n, ...]``; ``hand_over`` is told first what the layers gave."""
        made = self.features(x)
        if self.hand_over is not None:
            self.hand_over(made.detach())
        return self.decided(made)

    def features(self, x: Tensor) -> Tensor:
        """What the layers give."""
        x = self.dropout(x)
        for block in _pieces(self.layers):
            x = self._through(block, x)
        return x

    def decided(self, x: Tensor) -> Tensor:
        """The decision on what the layers gave."""
        x = self.back(x)
        for block in _pieces(self.decision):
            x = self._through(block, x)
        return x

    def _through(self, block: nn.Module, x: Tensor) -> Tensor:
        if not (self.recomputes and self.training and torch.is_grad_enabled()):
            out: Tensor = block(x)
            return out
        return recomputed(block, x, block)


def _pieces(module: nn.Module) -> Iterator[nn.Module]:
    """The links of a chain, else the module."""
    if is_chain(module):
        yield from module.children()
    else:
        yield module


class _HandedOver(torch.autograd.Function):
    """A value whose gradients are known already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *weights: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, *(each.mul_(upstream[0]) for each in gradients)
