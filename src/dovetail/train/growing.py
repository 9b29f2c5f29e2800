"""A network that grows layer by layer: when it has stopped, and the network where it was best."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dovetail.core.errors import SettingsError, argument
from dovetail.parts.cutting import cut
from dovetail.parts.joining import join
from dovetail.parts.part import Part
from dovetail.train.layerwise_record import StageHistory
from dovetail.train.stages import Stage


class Growth:
    """Whether to go on growing, and the state of the network where it was best.

    Args:
        patience: How many stages may bring nothing better; without, it never stops.
        overlaps: Whether later stages train layers of earlier ones again.
    """

    def __init__(self, patience: int | None, *, overlaps: bool = False) -> None:
        self.patience, self.number, self._overlaps = patience, -1, overlaps
        self.value: float | None = None
        self.decision: nn.Module | None = None
        self._state: dict[str, Any] = {}
        self.stopped = False

    def stops(
        self, number: int, history: StageHistory | None, decision: nn.Module, whole: Part
    ) -> bool:
        """Look at a stage that has been trained; whether it was one too many."""
        if self.patience is None or history is None:
            return False
        reached = history.reached
        if reached is None:
            raise SettingsError(
                f"{argument('grow')} needs a validation split to see whether a layer helped"
            )
        if self.value is None or reached > self.value:
            self.value, self.number, self.decision = reached, number, decision
            if self._overlaps:
                self._state = {}  # gone before the next is there
                self._state = copy.deepcopy(whole.module.state_dict())
        self.stopped = number - self.number >= self.patience
        return self.stopped

    def shallower(self, whole: Part, place: str, stage: Stage) -> Part:
        """The layers up to a point, and the decision block that they were trained under."""
        if self._state:
            whole.module.load_state_dict(self._state)
        front, back = cut(whole, at=place)
        if stage.decision is None or self.decision is None:
            raise AssertionError("only the last stage has none")
        made = stage.decision.part(stage.shape, stage.outputs)
        contract = replace(back.contract, gives=whole.contract.gives)
        head = made.changed(module=self.decision, contract=contract)
        with torch.no_grad():
            joined = join(front, head, norms="stored")
        return joined.changed(contract=replace(whole.contract, gives=joined.contract.gives))

    def note(self, histories: Sequence[StageHistory], taken: int, place: str) -> str:
        """What became of it, in words."""
        after = len(histories) - taken
        return (
            f"Growth ended with {histories[taken - 1].name} (up to {place!r}): the {after} "
            f"stage{'s' * (after > 1)} after it brought nothing better on validation than "
            f"{self.value:.4g}. The network is the shallower one, with its decision block as the "
            "head."
        )
