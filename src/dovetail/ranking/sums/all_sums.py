"""Everything that the scores from sums need to know of any number of rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from dovetail.core.errors import FormatError, TaskError
from dovetail.ranking.sums.class_sums import ClassSums
from dovetail.ranking.sums.moments import HigherMoments, Moments
from dovetail.ranking.sums.number_sums import NumberSums

__all__ = ["Sums"]

_T = TypeVar("_T")


@dataclass
class Sums:
    """Moments of the raw and of the unit rows, rows that are not zero, and what targets add.

    Unit rows have length one; ``lit`` of them, as rows of zeros stay zeros.
    """

    raw: HigherMoments
    unit: Moments
    lit: int
    targets: ClassSums | NumberSums

    @property
    def n(self) -> int:
        """How many rows."""
        return self.raw.n

    @property
    def width(self) -> int:
        """How many features."""
        return len(self.raw.mean)

    def absorb(self, other: Sums, sign: int = 1) -> None:
        """Add the rows of another, or with ``sign=-1`` take them away, but never all of them."""
        if isinstance(self.targets, ClassSums):
            assert isinstance(other.targets, ClassSums)
            self.targets.absorb(other.targets, sign)
        else:
            assert isinstance(other.targets, NumberSums)
            self.targets.absorb(
                other.targets,
                sign,
                mine=self.n,
                theirs=other.n,
                raw_gap=other.raw.mean - self.raw.mean,
                unit_gap=other.unit.mean - self.unit.mean,
            )
        self.lit += sign * other.lit
        self.raw.absorb(other.raw, sign)
        self.unit.absorb(other.unit, sign)

    def refuse_taking(self, other: Sums) -> None:
        """Refuse to take away what cannot have been added."""
        if isinstance(self.targets, ClassSums) and isinstance(other.targets, ClassSums):
            self.targets.refuse_taking(other.targets)
        if other.n > self.n or other.lit > self.lit or other.n - other.lit > self.n - self.lit:
            raise TaskError(
                f"cannot take {other.n} rows, {other.lit} of them not zero, from {self.n}, "
                f"{self.lit} of them not zero: only what was added before can be taken away"
            )

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors by name."""
        state = {"lit": torch.tensor(self.lit)}
        for room in ("raw", "unit", "targets"):
            part = getattr(self, room)
            for field in fields(part):
                value = getattr(part, field.name)
                if value is not None:
                    state[f"{room}.{field.name}"] = torch.as_tensor(value)
        return state

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Sums:
        """What :meth:`state` gave, checked."""
        targets: ClassSums | NumberSums
        if "targets.scatter" in state:
            targets = _read(NumberSums, state, "targets")
        else:
            targets = _read(ClassSums, state, "targets")
        sums = cls(
            raw=_read(HigherMoments, state, "raw"),
            unit=_read(Moments, state, "unit"),
            lit=int(_one(state, "lit")),
            targets=targets,
        )
        sums._refuse_misfits()
        return sums

    def _refuse_misfits(self) -> None:
        d, targets = self.width, self.targets
        shapes: list[tuple[Tensor | None, tuple[int, ...]]] = [
            (self.raw.scatter, (d, d)),
            (self.raw.third, (d,)),
            (self.raw.fourth, ()),
            (self.unit.mean, (d,)),
            (self.unit.scatter, (d, d)),
        ]
        if isinstance(targets, NumberSums):
            k = len(targets.mean)
            shapes += [(targets.scatter, (k, k))]
            shapes += [(cross, (k, d)) for cross in (targets.raw_cross, targets.unit_cross)]
        else:
            c = len(targets.ids)
            means = (targets.raw_mean, targets.raw_square, targets.unit_mean)
            shapes += [(targets.counts, (c,)), (targets.energy, (c,)), (targets.second, (c, d, d))]
            shapes += [(mean, (c, d)) for mean in means]
            if int(targets.counts.sum()) != self.n or not bool((targets.counts > 0).all()):
                raise FormatError("kept sums: the classes' counts do not add up to the rows'")
        if any(value is not None and tuple(value.shape) != shape for value, shape in shapes):
            raise FormatError("kept sums: the shapes of the tensors do not fit each other")
        if self.n < 1 or self.unit.n != self.n:
            raise FormatError("kept sums: the numbers of rows do not agree")


def _one(state: dict[str, Tensor], name: str) -> Tensor:
    if name not in state:
        raise FormatError(f"kept sums: {name!r} is missing")
    return state[name]


def _read(kind: type[_T], state: dict[str, Tensor], room: str) -> _T:
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        optional = field.name in ("second", "energy")
        name = f"{room}.{field.name}"
        value = state.get(name) if optional else _one(state, name)
        values[field.name] = value if value is None else value.clone()
    if "n" in values:
        values["n"] = int(values["n"])
    return kind(**values)
