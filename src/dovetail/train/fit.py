"""What a trainer returns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dovetail.core.declared import Shown, curves, measures, text
from dovetail.core.records import Record
from dovetail.parts.part import Part

__all__ = ["Fit", "Training", "WATCHED", "best_epoch", "kept_epoch", "seconds_of"]

Row = dict[str, float]

WATCHED = "validation loss"
"""The measure that decides which epoch is the best."""

_MEASURES = ("validation accuracy", "validation r2")


@dataclass(frozen=True, kw_only=True)
class Training(Record, kind="training", title="Training {part} on {task}"):
    """How a training went: one row of measures an epoch.

    >>> Training(part="mlp", task="digits", rows=({"epoch": 1, "loss": 0.5},))
    Training(mlp on digits: 1 epochs, loss 0.5)
    """

    part: str
    task: str
    rows: tuple[Row, ...]

    @property
    def final(self) -> Row:
        """The row of the epoch whose weights were kept."""
        return self.rows[kept_epoch(self.rows, self.settings.get("patience")) - 1]

    @property
    def seconds(self) -> float:
        """The time spent in training steps."""
        return seconds_of(self.rows)

    def _measures(self) -> Row:
        return {name: v for name, v in self.final.items() if name not in ("epoch", "seconds")}

    shows: ClassVar[tuple[Shown, ...]] = (
        text(
            "{rows!n} epochs in {seconds:.1f} s; the weights of epoch {final[epoch]:.0f} were kept."
        ),
        measures(_measures),
        curves("Loss", ("loss", WATCHED), log_y=True),
        curves("On the validation split", _MEASURES),
        curves("Sent to the other processes", ("bits a weight",)),
    )

    def __repr__(self) -> str:
        shown = ("loss", "validation loss", "validation accuracy", "validation r2")
        said = ", ".join(f"{name} {self.final[name]:.4g}" for name in shown if name in self.final)
        return f"Training({self.part} on {self.task}: {len(self.rows)} epochs, {said})"


def best_epoch(rows: Sequence[Row]) -> int:
    """Where the validation loss is lowest: the first of equals, and never a NaN.

    >>> best_epoch([{WATCHED: 0.5}, {WATCHED: 0.3}, {WATCHED: float("nan")}, {WATCHED: 0.3}])
    1
    """
    losses = [row.get(WATCHED, math.nan) for row in rows]
    return min(range(len(losses)), key=lambda i: (math.isnan(losses[i]), losses[i]))


def kept_epoch(rows: Sequence[Row], patience: int | None) -> int:
    """Which epoch's weights were kept, counted from 1: with patience the best, else the last.

    >>> rows = [{WATCHED: 0.3}, {WATCHED: 0.5}]
    >>> kept_epoch(rows, patience=3), kept_epoch(rows, patience=None)
    (1, 2)
    """
    watched = patience is not None and WATCHED in rows[-1]
    return best_epoch(rows) + 1 if watched else len(rows)


def seconds_of(rows: Iterable[Row]) -> float:
    """The time spent in training steps."""
    return sum(row.get("seconds", 0.0) for row in rows)


@dataclass(frozen=True)
class Fit:
    """New parts, and the record of how they came about.

    A training in modules gives the modules, front first; ``whole`` is the network that they make,
    and ``names`` what each is called behind the name of the network.
    """

    parts: tuple[Part, ...]
    record: Record
    whole: Part | None = None
    names: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def part(self) -> Part:
        """The whole network; else the only part, or the first."""
        return self.parts[0] if self.whole is None else self.whole

    @property
    def pieces(self) -> dict[str, Part]:
        """The parts of a network by name: ``module1``, ..., ``head``."""
        return dict(zip(self.names, self.parts, strict=True)) if self.names else {}
