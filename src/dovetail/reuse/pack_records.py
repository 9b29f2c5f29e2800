"""What packing made of a part, and how its levels were searched, as records."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace

from dovetail.core.declared import Column, blocks, figure, table, text
from dovetail.core.records import Record
from dovetail.core.views import Figure, View
from dovetail.pack.packed import Packed, PackedTensor
from dovetail.pack.quality import PackSearch
from dovetail.pack.searching import Rise
from dovetail.reuse.pack_losses import POINTS
from dovetail.settings.pack import MARGIN


@dataclass(frozen=True, kw_only=True)
class PartPacking(Record, kind="part-packing", title="Packing {part}"):
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
        smaller = f"{self.part} is {_smaller(self.size, self.full, self.given)}"
        if "accuracy" not in self.after:
            return f"{smaller}."
        return (
            f"{smaller}; its test accuracy on {self.task} was {self.before['accuracy']:.2%} and is "
            f"{self.after['accuracy']:.2%}."
        )

    def _changes(self) -> list[tuple[str, float, float, float]]:
        return [
            (name, self.before[name], value, value - self.before[name])
            for name, value in self.after.items()
        ]

    def _quantised(self) -> list[PackedTensor]:
        """The tensors that have bars; a single one says no more than the table."""
        tensors = [tensor for tensor in self.tensors if tensor.bits]
        return tensors if len(tensors) > 1 else []

    shows = (
        text("{summary}"),
        table(
            _changes,
            Column("test measure", 0),
            Column("before", 1, ".4g"),
            Column("after", 2, ".4g"),
            Column("change", 3, "+.2g"),
            caption="On {task}",
        ),
        figure(
            "bar",
            "Where the bits go",
            _quantised,
            "name",
            {"of a level's number": lambda tensor: float(tensor.bits), "coded": "coded"},
            "tensor",
            "bits a weight",
        ),
        lambda packing: packing.weights.view(),
        text("{note}", "warning"),
    )

    def brief(self) -> View:
        """The finding, what was lost, and the largest tensors; no bars."""
        first, changed, *_, note = self.shows
        return blocks(self, (first, changed, lambda packing: packing.weights.brief(), note))


@dataclass(frozen=True, kw_only=True)
class PartSearch(PackSearch, kind="part-pack-search"):
    """A search for the fewest levels of a part, in the words of the ``loss`` that was measured.

    ``given`` is as in :class:`PartPacking`.  Where points have the budget, ``counted`` are those
    that were lost on the validation split in fact, ``counted_error`` the standard error of that.

    >>> PartSearch(
    ...     budget=1.0, margin=2.0, baseline=3.0, rise=0.2, error=0.1, most=0.4, examples=500,
    ...     calls=20, size=100, full=900, loss=POINTS, counted=0.4, counted_error=0.3,
    ... ).summary
    '9.00 times smaller; the accuracy is expected to fall by 0.2 points (0.4 with its margin, of 1
    allowed), and falls by 0.4 ± 0.3 on 500 validation examples.'
    """

    loss: str
    given: int | None = None
    counted: float | None = None
    counted_error: float | None = None

    @classmethod
    def of(
        cls, search: PackSearch, loss: str, given: int | None = None, counted: Rise | None = None
    ) -> PartSearch:
        """What was searched, by which loss, and what was ``counted`` beside it."""
        known = {field.name: getattr(search, field.name) for field in fields(search)}
        if counted is not None:
            known |= {"counted": counted.mean, "counted_error": counted.error}
        return cls(**known, loss=loss, given=given)

    @property
    def summary(self) -> str:
        """The finding, from the numbers."""
        margin = f"{self.most:.2g} with its margin, of " if self.examples > 1 else "of "
        if self.loss == POINTS:
            cost = f"the accuracy is expected to fall by {self.rise:.2g} points"
        else:
            cost = f"the loss ({self.loss}) rises by {self.rise:.2g}"
        smaller = _smaller(self.size, self.full, self.given)
        counted = ""
        if self.counted is not None and self.counted_error is not None:
            counted = (
                f", and falls by {self.counted:.2g} ± {self.counted_error:.2g} on "
                f"{self.examples:,} validation examples"
            )
        return f"{smaller}; {cost} ({margin}{self.budget:.2g} allowed){counted}."

    @property
    def note(self) -> str:
        """What the examples cannot tell, or why everything is kept exactly; or nothing."""
        if any(tensor.bits is not None for tensor in self.tensors):
            return self._of_points() if self.loss == POINTS else ""
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

    def _of_points(self) -> str:
        """Whether counting contradicts what was expected, or could not tell."""
        counted, error = self.counted or 0.0, self.counted_error or 0.0
        if counted - MARGIN * error > self.budget:
            return (
                f"More is lost than was expected: {counted:.2g} ± {error:.2g} points on the "
                "validation examples. How sure the part is misleads; give a loss budget instead."
            )
        needed = math.ceil(100 * self.margin / self.budget) - 2 if self.budget else 0
        if self.examples >= needed:
            return ""
        return (
            f"{self.budget:g} points cannot be counted on {self.examples:,} validation examples: "
            f"it takes {needed:,} of which none changes. They are told by how sure the part is, "
            "and are right as far as that is."
        )

    def _drawn(self) -> View:
        label = f"rise of {'mistakes, in points' if self.loss == POINTS else self.loss}, and margin"
        drawn = super()._drawn()
        return tuple(replace(b, y_label=label) if isinstance(b, Figure) else b for b in drawn)


def _smaller(size: int, full: int, before: int | None) -> str:
    """How much: than the plain tensors, and first than the container that was given, if it was."""
    plain = f"{full / size:.2f} times smaller"
    if before is None:
        return plain
    most, least = max(before, size), min(before, size)
    how = "smaller" if size <= before else "larger"
    return f"{most / least:.2f} times {how} than it was packed before, {plain} than plain"
