"""What enters a module: prepared inputs, through the frozen modules below it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

import dovetail.train.supervision as supervision
from dovetail.core.errors import SettingsError
from dovetail.measure.forward import outputs_of
from dovetail.measure.preprocess import prepare
from dovetail.parts.contract import Contract
from dovetail.parts.cutting import cut
from dovetail.parts.part import Part
from dovetail.tasks.task import as_float

__all__ = ["Supply", "below"]


def below(whole: Part, at: str | None) -> Part:
    """All that comes before a module: the front up to ``at``, or nothing but the preprocessing.

    >>> from dovetail.parts.part import build
    >>> below(build("mlp", shape=(4,), hidden=(8,)), "hidden1")
    Part(front of mlp at hidden1: 4 -> 8 after relu in ..., 40 weights)
    """
    if at is not None:
        front, _ = cut(whole, at=at)
        front.module.eval()
        return front
    contract = whole.contract
    entrance = Contract(contract.takes, contract.takes, contract.preprocess, inputs=contract.inputs)
    return Part(nn.Identity(), entrance)


class Supply:
    """What enters a module for some rows of raw inputs: kept in memory, or made as it is asked for.

    Without augmentation the frozen modules give the same for a row every time.  So what they give
    is computed once, if it fits into memory.

    Args:
        before: What comes before the module, from :func:`below`.
        inputs: ``[n, ...]``, as a task stores them.
        rows: Of the inputs, the ones to use.
        augment: Changes of raw images.
        device: Where the module is.

    >>> from dovetail.parts.part import build
    >>> front = below(build("mlp", shape=(4,), hidden=(8,)), "hidden1")
    >>> supply = Supply(front, torch.rand(10, 4), torch.arange(5, 10))
    >>> supply.kept.shape, supply.take(torch.tensor([0, 2])).shape
    (torch.Size([5, 8]), torch.Size([2, 8]))
    """

    def __init__(
        self,
        before: Part,
        inputs: Tensor,
        rows: Tensor,
        *,
        augment: Callable[[Tensor, Generator], Tensor] | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._before, self._inputs, self.rows = before, inputs, rows
        self._augment, self._device = augment, device or before.device
        self.kept: Tensor | None = None
        if augment is None and self._bytes() <= supervision.KEPT_BYTES:
            self.kept = outputs_of(before, inputs.index_select(0, rows))

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, which: Tensor, draw: Generator | None = None) -> Tensor:
        """What enters for the rows at these places; ``draw`` is for the augmentation."""
        if self.kept is not None:
            return self.kept.index_select(0, which).to(self._device)
        raw = as_float(self._inputs.index_select(0, self.rows.index_select(0, which)))
        if self._augment is not None:
            if draw is None:
                raise SettingsError("augmentation needs a generator to draw from")
            raw = self._augment(raw, draw)
        return self.ready(raw)

    def ready(self, raw: Tensor) -> Tensor:
        """What enters for raw inputs ``[n, ...]``."""
        x = prepare(raw, self._before.contract).to(self._device)
        with torch.no_grad():
            made: Tensor = self._before.module(x)
        return made

    def _bytes(self) -> int:
        one = outputs_of(self._before, self._inputs.index_select(0, self.rows[:1]))
        return one.numel() * one.element_size() * len(self)
