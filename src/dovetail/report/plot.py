"""What every kind of figure hands to the picture around it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.core.views import Figure
from dovetail.report.cells import place_name

__all__ = ["Plot", "names_of"]


@dataclass(frozen=True)
class Plot:
    """Axes and names as ``frame``, one group of marks a series, and where the drawing ends.

    ``lost`` counts the values that have no place in the plot for the reason ``why``.

    >>> Plot("", (), 100.0).lost
    0
    """

    frame: str
    series: tuple[str, ...]
    foot: float
    lost: int = 0
    why: str = "not finite"

    @property
    def is_empty(self) -> bool:
        """Whether no series shows anything."""
        return all('data-points="[]"' in group for group in self.series)


def names_of(figure: Figure) -> tuple[str, ...]:
    """Every x of a figure as a name, once, in the order they come.

    >>> from dovetail.core.views import Series
    >>> names_of(Figure("polar", "", (Series("a", ("x", 2.0), (1.0, 1.0)),)))
    ('x', '2')
    """
    return tuple(dict.fromkeys(_names(figure)))


def _names(figure: Figure) -> Iterable[str]:
    return (place_name(x) for series in figure.series for x in series.x)
