"""The record of a search for the fewest bits: what was tried, and where the bits went."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dovetail.core.records import Record
from dovetail.core.views import Figure, Series, Table, Text, View

__all__ = ["PackSearch", "SearchedTensor", "Tried", "finite"]


@dataclass(frozen=True)
class SearchedTensor:
    """A tensor that may have bins: its ``bits`` (None: exact), and coded bits a weight.

    ``carried`` says whether errors of rounding were carried on.

    ``alone`` are the mean rises of the loss that were measured with only this tensor in so many
    bits (None: the loss was no number).
    """

    name: str
    elements: int
    bits: int | None
    coded: float
    carried: bool = False
    alone: tuple[tuple[int, float | None], ...] = ()


@dataclass(frozen=True)
class Tried:
    """Bits for all tensors together: their bytes, the mean rise, and the rise with its margin."""

    size: int
    rise: float | None
    most: float | None
    within: bool


@dataclass(frozen=True, kw_only=True)
class PackSearch(Record, kind="pack-search"):
    """The smallest container whose loss stays within a budget, and how it was found.

    ``rise`` is the mean rise of the loss over the ``baseline`` of the given weights, ``error`` its
    standard error, ``most`` their sum with ``margin`` standard errors, which is at most ``budget``.

    >>> PackSearch(
    ...     budget=0.01, margin=2.0, baseline=0.2, rise=0.002, error=0.001, most=0.004,
    ...     examples=500, calls=20, size=100, full=900,
    ... ).summary
    '9.00 times smaller; the loss rises by 0.002 (0.004 with its margin, of 0.01 allowed).'
    """

    budget: float
    margin: float
    baseline: float
    rise: float
    error: float
    most: float
    examples: int
    calls: int
    size: int
    full: int
    tensors: tuple[SearchedTensor, ...] = ()
    tried: tuple[Tried, ...] = ()

    @property
    def title(self) -> str:
        """A heading for reports."""
        return "The smallest within a budget"

    @property
    def ratio(self) -> float:
        """How many times smaller the container is than its tensors in memory."""
        return self.full / self.size

    @property
    def summary(self) -> str:
        """The finding, from the numbers."""
        margin = f"{self.most:.2g} with its margin, of " if self.examples > 1 else "of "
        return (
            f"{self.ratio:.2f} times smaller; the loss rises by {self.rise:.2g} "
            f"({margin}{self.budget:.2g} allowed)."
        )

    def view(self) -> View:
        """The finding, every tensor's bits, and bytes against the rise for all that was tried."""
        rows = tuple(
            (
                tensor.name,
                tensor.elements,
                "exact" if tensor.bits is None else str(tensor.bits),
                "carried on" if tensor.carried else "nearest" if tensor.bits else "",
                tensor.coded,
            )
            for tensor in self.tensors
        )
        columns = ("tensor", "elements", "bits", "rounded", "bits a weight")
        said = f" {self.calls} measurements."
        table = Table(columns, rows, ("", ",", "", "", ".2f"))
        return (Text(self.summary + said), *((table,) if rows else ()), *self._drawn())

    def _drawn(self) -> View:
        known = sorted((t.size, t.most) for t in self.tried if t.most is not None)
        if len(known) < 2:
            return ()
        sizes = tuple(float(size) for size, _ in known)
        return (
            Figure(
                "line",
                "What was tried",
                (
                    Series("tried", sizes, tuple(most for _, most in known), points=True),
                    Series("budget", (sizes[0], sizes[-1]), (self.budget, self.budget)),
                ),
                "bytes",
                "rise of the loss, with its margin",
            ),
        )


def finite(value: float) -> float | None:
    """A number that a file of JSON can hold.

    >>> finite(1.5), finite(math.inf)
    (1.5, None)
    """
    return value if math.isfinite(value) else None
