"""The record of a part that was packed: where the bits went, and what it cost on a task."""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.core.records import Record
from dovetail.core.views import Figure, Series, Table, Text, View
from dovetail.pack.packed import Packed, PackedTensor

__all__ = ["PartPacking"]


@dataclass(frozen=True, kw_only=True)
class PartPacking(Record, kind="part-packing"):
    """A part before and after packing.

    ``before`` and ``after`` are measures on the task's test split, empty without a task.

    >>> PartPacking(part="lenet", tensors=(), size=100, side=10, full=850).summary
    'lenet is 8.50 times smaller.'
    """

    part: str
    tensors: tuple[PackedTensor, ...]
    size: int
    side: int
    full: int
    task: str | None = None
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Which part."""
        return f"Packing {self.part}"

    @property
    def weights(self) -> Packed:
        """The container alone."""
        return Packed(tensors=self.tensors, size=self.size, side=self.side, full=self.full)

    @property
    def ratio(self) -> float:
        """How many times smaller the container is than the tensors in memory."""
        return self.weights.ratio

    @property
    def summary(self) -> str:
        """The finding, from the numbers."""
        said = f"{self.part} is {self.ratio:.2f} times smaller"
        if "accuracy" not in self.after:
            return f"{said}."
        return (
            f"{said}; its test accuracy on {self.task} was {self.before['accuracy']:.2%} and is "
            f"{self.after['accuracy']:.2%}."
        )

    def view(self) -> View:
        """What it costs, where the bits went, and every tensor."""
        return (Text(self.summary), *self._measures(), *self._drawn(), *self.weights.view())

    def _measures(self) -> View:
        rows = tuple(
            (name, self.before[name], value, value - self.before[name])
            for name, value in self.after.items()
        )
        columns, formats = ("test measure", "before", "after", "change"), ("", ".4g", ".4g", "+.2g")
        return (Table(columns, rows, formats, caption=f"On {self.task}"),) if rows else ()

    def _drawn(self) -> View:
        """Bits a weight of the quantised tensors; one bar says no more than the table."""
        tensors = [tensor for tensor in self.tensors if tensor.bits]
        if len(tensors) < 2:
            return ()
        names = tuple(tensor.name for tensor in tensors)
        return (
            Figure(
                "bar",
                "Where the bits go",
                (
                    Series("of a bin's number", names, tuple(float(t.bits or 0) for t in tensors)),
                    Series("coded", names, tuple(t.coded for t in tensors)),
                ),
                "tensor",
                "bits a weight",
            ),
        )
