r"""Everything that the scores from sums need to know of any number of rows, mergeable.

Of the raw rows and of the unit rows :math:`\phi` (scaled to length one; rows of zeros stay zeros)
the moments of :mod:`dovetail.linalg.moments` are kept, where targets are numbers together with
theirs.  Where targets are classes, a class with :math:`n_c` rows keeps the mean of its raw rows and
the squared deviations :math:`\sum (x - m_c)^2` of each coordinate, the mean of its unit rows and,
for the forms that need only pairs of two classes, either the *second moment* :math:`M_c = \sum \phi
\phi^\top` or, where :math:`C d^2` numbers would be too many, only its *energy* :math:`|M_c|_F^2 =
\sum_{ij} k_{ij}^2`, which does not add up: a class that comes in two pieces then loses it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.core.errors import FormatError, TaskError
from dovetail.linalg.moments import HigherMoments, Moments, pooled_share

MOST_CELLS = 1 << 27
"""Second moments of all classes together may hold this many numbers: one gibibyte."""


@dataclass
class ClassSums:
    """The sums of ``C`` classes; ``ids [C]`` are sorted, as the user named them.

    ``counts [C]``, ``raw_mean``, ``raw_square`` and ``unit_mean [C, d]``, and at most one of
    ``second [C, d, d]`` and ``energy [C]`` (nan where lost).

    >>> def one(label):
    ...     return ClassSums(torch.tensor([label]), torch.ones(1, dtype=torch.int64),
    ...                      *torch.ones(3, 1, 2), second=None, energy=torch.ones(1))
    >>> seven = one(7)
    >>> seven.merge(one(3))
    >>> seven.ids, seven.energy
    (tensor([3, 7]), tensor([1., 1.]))
    >>> seven.merge(one(3)); seven.counts, seven.energy
    (tensor([2, 1]), tensor([nan, 1.]))
    """

    ids: Tensor
    counts: Tensor
    raw_mean: Tensor
    raw_square: Tensor
    unit_mean: Tensor
    second: Tensor | None
    energy: Tensor | None

    def merge(self, other: ClassSums, sign: int = 1) -> None:
        """Add the rows of another, or with ``sign=-1`` take them away, if they can be."""
        ids = torch.unique(torch.cat([self.ids, other.ids]))
        self._spread_over(ids)
        at = torch.searchsorted(ids, other.ids)
        self._merge_second(other, at, sign)
        share, between = pooled_share(self.counts[at, None].double(), other.counts[:, None], sign)
        gap = other.raw_mean - self.raw_mean[at]
        self.raw_square[at] += sign * other.raw_square + between * gap.square()
        self.raw_mean[at] += share * gap
        self.unit_mean[at] += share * (other.unit_mean - self.unit_mean[at])
        self.counts[at] += sign * other.counts
        present = self.counts > 0
        if not present.all():
            self._set({name: values[present] for name, values in self.arrays().items()})

    def refuse_taking(self, other: ClassSums) -> None:
        """Refuse to take away more rows of a class than there are."""
        at = torch.searchsorted(self.ids, other.ids).clamp(max=max(len(self.ids) - 1, 0))
        had = torch.where(self.ids[at] == other.ids, self.counts[at], 0)
        short = (had < other.counts).nonzero()
        if len(short):
            first = int(short[0])
            raise TaskError(
                f"cannot take {int(other.counts[first])} rows of class {int(other.ids[first])} "
                f"from {int(had[first])}: only what was added before can be taken away"
            )

    def energies(self) -> Tensor | None:
        """The squared size of each class's second moment, ``[C]``; nan where lost."""
        if self.second is None:
            return self.energy
        return self.second.flatten(1).square().sum(1)

    def arrays(self) -> dict[str, Tensor]:
        """What is kept of each class, by name."""
        return {name: values for name, values in vars(self).items() if values is not None}

    def _merge_second(self, other: ClassSums, at: Tensor, sign: int) -> None:
        if self.second is not None and other.second is not None:
            if len(at) == len(self.second):  # the same classes: no copies
                self.second.add_(other.second, alpha=sign)
            else:
                self.second.index_add_(0, at, other.second, alpha=sign)
            return
        mine, theirs = self.energies(), other.energies()
        self.second = None
        if mine is None or theirs is None:
            self.energy = None
            return
        # The energy of a class known from one side only; a class in two pieces has lost it.
        self.energy = mine.clone()
        self.energy[at] = torch.where(self.counts[at] == 0, theirs, torch.nan)

    def _spread_over(self, ids: Tensor) -> None:
        """Room for more classes, zero until something is added."""
        if len(ids) == len(self.ids):
            return
        if self.second is not None and len(ids) * self.second[0].numel() > MOST_CELLS:
            self.energy, self.second = self.energies(), None
        at = torch.searchsorted(ids, self.ids)
        wide = {}
        for name, values in self.arrays().items():
            wide[name] = values.new_zeros(len(ids), *values.shape[1:])
            wide[name][at] = values
        self._set(wide | {"ids": ids})

    def _set(self, arrays: dict[str, Tensor]) -> None:
        for name, values in arrays.items():
            setattr(self, name, values)


@dataclass
class Sums:
    """Moments of raw and of unit rows, how many rows are ``lit`` (not zero), and the classes' sums.

    Where targets are numbers there are no classes, and both moments are of the targets too.
    """

    raw: HigherMoments
    unit: Moments
    lit: int
    classes: ClassSums | None = None

    @property
    def n(self) -> int:
        """How many rows."""
        return self.raw.rows

    def merge(self, other: Sums, sign: int = 1) -> None:
        """Add the rows of another, or with ``sign=-1`` take them away, but never all of them."""
        if self.classes is not None and other.classes is not None:
            self.classes.merge(other.classes, sign)
        self.lit += sign * other.lit
        self.raw.merge(other.raw, sign)
        self.unit.merge(other.unit, sign)

    def refuse_taking(self, other: Sums) -> None:
        """Refuse to take away what cannot have been added."""
        if self.classes is not None and other.classes is not None:
            self.classes.refuse_taking(other.classes)
        if other.n > self.n or other.lit > self.lit or other.n - other.lit > self.n - self.lit:
            raise TaskError(
                f"cannot take {other.n} rows, {other.lit} of them not zero, from {self.n}, "
                f"{self.lit} of them not zero: only what was added before can be taken away"
            )

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors by name."""
        classes = {} if self.classes is None else self.classes.arrays()
        rooms = {"raw": self.raw.state(), "unit": self.unit.state(), "classes": classes}
        named = {f"{room}.{name}": each for room in rooms for name, each in rooms[room].items()}
        return named | {"lit": torch.tensor(self.lit)}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Sums:
        """What :meth:`state` gave, checked."""
        _refuse_misfits(state)
        rooms: dict[str, dict[str, Tensor]] = {"raw": {}, "unit": {}, "classes": {}}
        for name, value in state.items():
            room, _, own = name.partition(".")
            rooms.get(room, {})[own] = value.clone()
        sums = cls(
            HigherMoments.from_state(rooms["raw"]),
            Moments.from_state(rooms["unit"]),
            int(state["lit"]),
        )
        n = sums.n
        if n < 1 or not n == sums.raw.weight == sums.unit.rows == sums.unit.weight:
            raise FormatError("kept sums: the numbers of rows do not agree")
        if rooms["classes"]:
            arrays = {"second": None, "energy": None} | rooms["classes"]
            sums.classes = ClassSums(**{name: arrays[name] for name in _OF_CLASSES})  # type: ignore[arg-type]
            counts = sums.classes.counts
            if int(counts.sum()) != n or not bool((counts > 0).all()):
                raise FormatError("kept sums: the classes' counts do not add up to the rows'")
        return sums


_OF_MOMENTS = {
    "rows": "",
    "weight": "",
    "mean": "w",
    "features": "dd",
    "cross": "dk",
    "targets": "kk",
}
_OF_CLASSES = {
    "ids": "c",
    "counts": "c",
    "raw_mean": "cd",
    "raw_square": "cd",
    "unit_mean": "cd",
    "second": "cdd",
    "energy": "c",
}
_SHAPES = {
    "lit": "",
    **{f"{room}.{name}": axes for room in ("raw", "unit") for name, axes in _OF_MOMENTS.items()},
    "raw.third": "d",
    "raw.fourth": "",
    **{f"classes.{name}": axes for name, axes in _OF_CLASSES.items()},
}
"""The axes of each tensor: c classes, d features, k targets that are numbers, w = d + k."""


def _refuse_misfits(state: dict[str, Tensor]) -> None:
    classes = any(name.startswith("classes.") for name in state)
    sizes: dict[str, int] = {}
    for name, axes in _SHAPES.items():
        if name not in state:
            if (classes or not name.startswith("classes.")) and not name.endswith(_OPTIONAL):
                raise FormatError(f"kept sums: {name!r} is missing")
            continue
        shape = tuple(state[name].shape)
        known = [sizes.setdefault(axis, size) for axis, size in zip(axes, shape, strict=False)]
        if len(shape) != len(axes) or known != list(shape):
            raise FormatError("kept sums: the shapes of the tensors do not fit each other")
    if sizes["w"] != sizes["d"] + sizes["k"] or not (classes or sizes["k"]):
        raise FormatError("kept sums: the shapes of the tensors do not fit each other")


_OPTIONAL = (".second", ".energy")
