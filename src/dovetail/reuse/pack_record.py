"""The records of a part that was packed: where the bits went, and what it cost on a task."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from dovetail.core.records import Record
from dovetail.core.views import Figure, Series, Table, Text, View
from dovetail.pack.packed import Packed, PackedTensor
from dovetail.pack.quality_record import PackSearch
from dovetail.reuse.pack_losses import POINTS

__all__ = ["PartPacking", "PartSearch"]


@dataclass(frozen=True, kw_only=True)
class PartPacking(Record, kind="part-packing"):
    """A part before and after packing.

    ``before`` and ``after`` are measures on the task's test split, empty without a task; ``given``
    the bytes of the container that the part came in, if it was packed already; ``note`` what there
    is to know beside the numbers.

    >>> PartPacking(part="lenet", tensors=(), size=100, side=10, full=850).summary
    'lenet is 8.50 times smaller.'
    >>> PartPacking(part="lenet", tensors=(), size=100, side=10, full=850, given=110).summary
    'lenet is 1.10 times smaller than it was packed before, 8.50 times smaller than plain.'
    """

    part: str
    tensors: tuple[PackedTensor, ...]
    size: int
    side: int
    full: int
    task: str | None = None
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    given: int | None = None
    note: str = ""

    @property
    def title(self) -> str:
        """Which part."""
        return f"Packing {self.part}"

    @property
    def weights(self) -> Packed:
        """The container alone."""
        return Packed(
            tensors=self.tensors,
            size=self.size,
            side=self.side,
            full=self.full,
            settings=self.settings,
        )

    @property
    def ratio(self) -> float:
        """How many times smaller the container is than the tensors in memory."""
        return self.weights.ratio

    @property
    def summary(self) -> str:
        """The finding, from the numbers."""
        said = f"{self.part} is {_smaller(self.size, self.full, self.given)}"
        if "accuracy" not in self.after:
            return f"{said}."
        return (
            f"{said}; its test accuracy on {self.task} was {self.before['accuracy']:.2%} and is "
            f"{self.after['accuracy']:.2%}."
        )

    def view(self) -> View:
        """What it costs, where the bits went, every tensor, and what else there is to know."""
        noted = (Text(self.note, style="warning"),) if self.note else ()
        return (Text(self.summary), *self._measures(), *self._drawn(), *self.weights.view(), *noted)

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


@dataclass(frozen=True, kw_only=True)
class PartSearch(PackSearch, kind="part-pack-search"):
    """A search for the fewest bits of a part, in the words of the ``loss`` that was measured.

    >>> PartSearch(
    ...     budget=1.0, margin=2.0, baseline=3.0, rise=0.2, error=0.1, most=0.4, examples=500,
    ...     calls=20, size=100, full=900, loss=POINTS,
    ... ).summary
    '9.00 times smaller; the accuracy falls by 0.2 points (0.4 with its margin, of 1 allowed).'
    """

    loss: str
    given: int | None = None

    @classmethod
    def of(cls, search: PackSearch, loss: str, given: int | None = None) -> PartSearch:
        """What was searched, and by which loss; ``given`` as in :class:`PartPacking`."""
        known = {field.name: getattr(search, field.name) for field in fields(search)}
        return cls(**known, loss=loss, given=given)

    @property
    def summary(self) -> str:
        """The finding, from the numbers."""
        margin = f"{self.most:.2g} with its margin, of " if self.examples > 1 else "of "
        if self.loss == POINTS:
            cost = f"the accuracy falls by {self.rise:.2g} points"
        else:
            cost = f"the loss ({self.loss}) rises by {self.rise:.2g}"
        smaller = _smaller(self.size, self.full, self.given)
        return f"{smaller}; {cost} ({margin}{self.budget:.2g} allowed)."

    @property
    def note(self) -> str:
        """Why everything is kept exactly, where none of the bits could be spared."""
        if any(tensor.bits is not None for tensor in self.tensors):
            return ""
        if not self.tensors:
            return (
                "Everything is kept exactly: no tensor is large enough to pack (256 floating-point "
                "elements, not all equal, not to be lossless)."
            )
        other = "give a loss budget instead of points, " if self.loss == POINTS else ""
        return (
            f"Everything is kept exactly: {self.examples} validation examples cannot tell a rise "
            f"as small as the budget from chance. Allow more, {other}or a smaller margin."
        )

    def _drawn(self) -> View:
        label = f"rise of {'mistakes, in points' if self.loss == POINTS else self.loss}, and margin"
        drawn = super()._drawn()
        return tuple(replace(b, y_label=label) if isinstance(b, Figure) else b for b in drawn)


def _smaller(size: int, full: int, given: int | None) -> str:
    """How much: than the plain tensors, and first than the container that was given, if it was."""
    plain = f"{full / size:.2f} times smaller"
    if given is None:
        return plain
    most, least = max(given, size), min(given, size)
    how = "smaller" if size <= given else "larger"
    return f"{most / least:.2f} times {how} than it was packed before, {plain} than plain"
