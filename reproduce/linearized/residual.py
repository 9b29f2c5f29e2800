"""Trained residual networks of several depths, and the protocol of the figure about them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

import dovetail as dt
from linearized.keeping import trained_once


@dataclass(frozen=True)
class Protocol:
    """One scale of the experiment; ``None`` takes all images of a split."""

    scale: str
    train: int | None
    validation: int | None
    test: int | None
    pixels: int
    nets: tuple[str, ...]
    width: int
    epochs: int
    augment: str | None
    steps: int
    batch_size: int = 128
    draws: int = 16


TINY = Protocol("tiny", 100, 50, 50, 8, ("resnet8",), 2, 1, None, 3, 32, 2)
SMALL = Protocol("small", 4000, 500, 2000, 16, ("resnet8", "resnet20"), 8, 20, None, 200, 128, 12)
DEPTHS = ("resnet8", "resnet20", "resnet56")
PAPER = Protocol("paper", None, None, None, 32, DEPTHS, 16, 200, "flip,shift:4", 4000)


def source(net: str, task: dt.Task, seed: int, protocol: Protocol, kept: Path) -> nn.Module:
    """A network trained on the task, now or in an earlier run."""
    start = dt.build(net, size=protocol.pixels, width=protocol.width, seed=seed)

    def train() -> nn.Module:
        return dt.train.end_to_end(
            start,
            task,
            epochs=protocol.epochs,
            batch_size=protocol.batch_size,
            augment=protocol.augment,
            seed=seed,
            show=False,
        ).part.module

    return trained_once(kept, f"{protocol.scale} {net} {seed}", start.module, train)
