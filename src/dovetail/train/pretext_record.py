"""How a training without labels went."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.core.views import Figure, Series, Text, View
from dovetail.train.fit import Training

__all__ = ["SOLVED", "PretextTraining"]

SOLVED = "validation solved"
"""The share of right answers to the pretext on the validation split."""


@dataclass(frozen=True, kw_only=True)
class PretextTraining(Training, kind="pretext-training"):
    """How a training by a pretext went, with what guessing would have reached beside it.

    >>> row = {"epoch": 1, "loss": 0.5, SOLVED: 0.875}
    >>> PretextTraining(part="lenet5", task="digits", rows=(row,), pretext="rotation", chance=0.25)
    PretextTraining(lenet5 on digits by rotation: 1 epochs, solved 0.875, chance 0.25)
    """

    pretext: str
    chance: float

    @property
    def title(self) -> str:
        """What was trained on what, by which pretext."""
        return f"Training {self.part} on {self.task} by {self.pretext}"

    def view(self) -> View:
        """As of any training, with the share of right answers and chance."""
        blocks = super().view()
        if SOLVED not in self.final:
            return blocks
        epochs = tuple(row["epoch"] for row in self.rows)
        said = Text(
            f"Of the questions about validation images {self.final[SOLVED]:.1%} were answered "
            f"rightly; guessing gives {self.chance:.1%}."
        )
        curves = Figure(
            "line",
            "Right answers on the validation split",
            (
                Series("solved", epochs, tuple(row.get(SOLVED) for row in self.rows)),
                Series("chance", epochs, (self.chance,) * len(epochs)),
            ),
            "epoch",
            "share",
        )
        return (blocks[0], said, *blocks[1:], curves)

    def __repr__(self) -> str:
        told = f", solved {self.final[SOLVED]:.4g}" if SOLVED in self.final else ""
        return (
            f"PretextTraining({self.part} on {self.task} by {self.pretext}: {len(self.rows)} "
            f"epochs{told}, chance {self.chance:.4g})"
        )
