"""What the exchange of weights cost."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.core.records import Record
from dovetail.core.views import Figure, Series, Table, Text, View

__all__ = ["Exchanges"]


@dataclass(frozen=True, kw_only=True)
class Exchanges(Record, kind="exchanges"):
    """One row each time that the processes averaged their weights.

    Attributes:
        processes: How many there are.
        weights: How many numbers each of them sends.
        plain_bits: Bits a weight if they were sent as they are.
        rows: ``"step"``, after how many steps; ``"bits a weight"``, the mean over the processes;
            ``"relative error"``, how far what this process sent is from what it wanted to send.

    >>> row = {"step": 50, "bits a weight": 4.0, "relative error": 0.01}
    >>> Exchanges(processes=2, weights=1000, plain_bits=32.0, rows=(row,))
    Exchanges(2 processes, 1 times 1000 weights at 4.00 bits: 8.0 times fewer)
    """

    processes: int
    weights: int
    plain_bits: float
    rows: tuple[dict[str, float], ...]

    @property
    def title(self) -> str:
        """Who exchanged what."""
        return f"Weights averaged by {self.processes} processes"

    @property
    def bits_a_weight(self) -> float:
        """The mean over all exchanges; NaN when there was none."""
        if not self.rows:
            return float("nan")
        return sum(row["bits a weight"] for row in self.rows) / len(self.rows)

    @property
    def ratio(self) -> float:
        """How many times fewer bits than plain weights have."""
        return self.plain_bits / self.bits_a_weight

    def view(self) -> View:
        """What was sent in all, and bits and error along the way."""
        if not self.rows:
            return (Text("Nothing was exchanged: one process, or fewer steps than an interval."),)
        sent = self.bits_a_weight * self.weights * len(self.rows) / 8e6
        steps = tuple(row["step"] for row in self.rows)
        curves = (
            Figure("line", title, (Series(name, steps, tuple(r[name] for r in self.rows)),), "step")
            for title, name in (("Bits sent", "bits a weight"), ("Lost", "relative error"))
        )
        summary = (
            ("processes", self.processes),
            ("exchanges", len(self.rows)),
            ("weights", self.weights),
            ("bits a weight", self.bits_a_weight),
            ("times fewer than plain", self.ratio),
            ("megabytes sent by a process", sent),
        )
        return (Table(("measure", "value"), summary, ("", ".4g")), *curves)

    def __repr__(self) -> str:
        if not self.rows:
            return f"Exchanges(none yet, {self.processes} process{'es' * (self.processes > 1)})"
        return (
            f"Exchanges({self.processes} processes, {len(self.rows)} times {self.weights} weights "
            f"at {self.bits_a_weight:.2f} bits: {self.ratio:.1f} times fewer)"
        )
