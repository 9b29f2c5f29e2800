"""How alike the Jacobians of parts are: the matrix, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from dovetail.core.errors import SettingsError, nearest
from dovetail.core.records import Record
from dovetail.core.views import Heatmap, Text, View

__all__ = ["JacobianSimilarity"]


@dataclass(frozen=True, kw_only=True)
class JacobianSimilarity(Record, kind="jacobian-similarity"):
    """Similarities in [0, 1] of parts with each other, from their Jacobians on ``n`` inputs.

    ``reading`` is ``"parameters"`` (do the same weights matter to both, in the same way?) or
    ``"functions"`` (do both learn the same examples together?).  ``matrix[i][j]`` belongs to
    ``names[i]`` and ``names[j]``.

    >>> rows = ((1.0, 0.25), (0.25, 1.0))
    >>> found = JacobianSimilarity(names=("a", "b"), matrix=rows, reading="functions", n=100)
    >>> found["a", "b"]
    0.25
    """

    names: tuple[str, ...]
    matrix: tuple[tuple[float, ...], ...]
    reading: str
    n: int

    def __post_init__(self) -> None:
        shape = [len(self.names)] * len(self.names)
        if [len(row) for row in self.matrix] != shape:
            raise ValueError("similarities need a row and a column for each part")

    def __getitem__(self, pair: tuple[str, str]) -> float:
        """The similarity of two parts, by name."""
        for name in pair:
            if name not in self.names:
                raise SettingsError(f"no part {name!r} was compared{nearest(name, self.names)}")
        one, other = (self.names.index(name) for name in pair)
        return self.matrix[one][other]

    def __repr__(self) -> str:
        return f"JacobianSimilarity({len(self.names)} parts by their {self.reading}, n={self.n})"

    @property
    def title(self) -> str:
        """What was compared."""
        return f"Similarity of Jacobians ({self.reading})"

    def view(self) -> View:
        """The most and the least alike, and the matrix as a heat map."""
        pairs = sorted(combinations(range(len(self.names)), 2), key=lambda ij: -self._at(*ij))
        most, least = pairs[0], pairs[-1]
        words = f"{len(self.names)} parts on {self.n} inputs. {self._said(most)}"
        if len(pairs) > 1:
            words = (
                f"{len(self.names)} parts on {self.n} inputs. Most alike: {self._said(most)} "
                f"Least: {self._said(least)}"
            )
        return (
            Text(words),
            Heatmap(
                self.title,
                self.names,
                self.names,
                self.matrix,
                "part",
                "part",
                ".3f",
                low=0.0,
                high=1.0,
            ),
        )

    def _at(self, i: int, j: int) -> float:
        return self.matrix[i][j]

    def _said(self, pair: tuple[int, int]) -> str:
        one, other = (self.names[i] for i in pair)
        return f"{one} and {other}, {self._at(*pair):.3f}."
