"""One pass over features, then every score that is a function of sums: exact, and mergeable."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dovetail.core.activations import is_activation, kernel_range
from dovetail.core.errors import FormatError, SettingsError, TaskError
from dovetail.measure.inputs import float_rows, lengths_of, plain_targets
from dovetail.ranking.folding import class_gaussians, fold
from dovetail.ranking.scores_from_sums import ScoresFromSums, known_kind
from dovetail.ranking.sums import Sums

_FEWEST_KEPT = 256
"""So many rows are kept before they are folded even if they have few features: folding a batch
of a few rows at a time would cost more than it sums."""


class PairStatistics:
    r"""The sums of rows of features and their targets, and the scores these sums give.

    AL, UTAL, NMSE and their ``-neo`` forms look at the kernel of *unit* rows (rows of zeros stay
    zeros); centred AL (linear CKA), LogME, the H-scores and GBC at the rows as they are, and
    ``centred-al-unit`` at unit rows again; everything in float64.  Higher is better.

    With n rows, d features and C classes the cost is :math:`O(n d^2 + d^3)` and the memory
    :math:`O(\min(n, d) d)`, or :math:`O(C d^2)` with ``per_class``: while rows are fewer than
    features they are kept themselves, and from then on only sums are.

    Targets are one integer a row (any integers: only equality counts, classes that do not occur
    are not there), or numbers ``[n]`` or ``[n, k]`` (regression, zeros and ones of many labels),
    which have centred AL and LogME only; a column that is all zeros is left out.

    What is undefined, and what it gives:

    =================  ============================================================================
    features all zero  AL, UTAL and AL-NEO are 0, LogME its null value, the H-scores 0;
                       centred AL a TaskError, as for rows that are all alike
    one class          AL, NMSE, LogME as defined; the H-scores 0; ``-neo``, centred AL and GBC
                       a TaskError
    one row a class    UTAL a TaskError after a non-negative activation, as no pair is alike
    a perfect fit      has no bound on its LogME; noise is taken to be at least 1e-12 of a target
    =================  ============================================================================

    Args:
        activation: What the features went through, hence the least value of their kernel.
        per_class: Keep the second moment of each class, which the ``-neo`` forms need.  Where
            these would be more than a gibibyte, a class must come in one update to have them.

    >>> sums = PairStatistics("relu").update(torch.eye(2)[[0, 0, 1, 1]], [3, 3, 8, 8])
    >>> sums
    PairStatistics('relu', 4 rows of 2 features, 2 classes)
    >>> print(f"{sums.score('al'):.3f} {sums.score('cka'):.3f} {sums.score('hscore'):.3f}")
    1.000 1.000 1.000
    """

    def __init__(self, activation: str = "relu", per_class: bool = True) -> None:
        self.range = kernel_range(activation)
        self.activation, self.per_class = activation, bool(per_class)
        self._sums: Sums | None = None
        self._kept = _KeptRows()

    @property
    def n(self) -> int:
        """How many rows were added, less those taken away."""
        return len(self._kept) + (self._sums.n if self._sums is not None else 0)

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes seen, sorted; none where targets are numbers.

        >>> PairStatistics().update(torch.rand(3, 2), [9, -4, 9]).classes
        (-4, 9)
        """
        seen = [targets for _, targets in self._kept.pieces if not targets.is_floating_point()]
        if self._sums is not None and self._sums.classes is not None:
            seen.append(self._sums.classes.ids)
        return tuple(torch.unique(torch.cat(seen)).tolist()) if seen else ()

    def update(self, features: Any, targets: Any) -> PairStatistics:
        """Add rows ``[n, d]`` and their targets; nothing is added if anything is refused.

        Args:
            features: A tensor, an array or nested lists, as the activation left them.
            targets: Integers ``[n]``, or numbers ``[n]`` or ``[n, k]``.
        """
        rows = float_rows(features)
        values = plain_targets(targets, len(rows))
        if not len(rows):
            return self
        self._refuse_other_kind(rows.shape[1], values)
        if len(rows) >= self._most_kept(rows.shape[1]):
            self._absorb(fold(rows, values, per_class=self.per_class))
        else:
            lengths_of(rows)  # refuses what is not finite
            self._kept.add(rows.double(), values)
            self._fold_if_many()
        return self

    def merge(self, other: PairStatistics) -> PairStatistics:
        """Add the rows of another, which stays as it is.

        >>> one = PairStatistics().update([[1.0, 0.0]], [0])
        >>> one.merge(PairStatistics().update([[0.0, 1.0]], [1])).n
        2
        """
        self._refuse_other(other)
        self.per_class = self.per_class and other.per_class
        if other._sums is not None:
            shared = self._sums is None or other is self
            self._absorb(copy.deepcopy(other._sums) if shared else other._sums)
        self._kept.pieces += other._kept.pieces
        self._fold_if_many()
        return self

    def subtract(self, other: PairStatistics) -> PairStatistics:
        """Take away the rows of another, which were added before.

        While rows themselves are kept, rows that are not there are noticed.  Of sums, only counts
        that would become negative are: do not take away what was never added.

        >>> whole = PairStatistics().update([[1.0, 0.0], [0.0, 1.0]], [0, 1])
        >>> whole.subtract(PairStatistics().update([[0.0, 1.0]], [1])).classes
        (0,)
        """
        self._refuse_other(other)
        if other.n > self.n:
            raise TaskError(f"cannot take {other.n} rows from {self.n}")
        if not other.n:
            return self
        if self._sums is None and other._sums is None:
            self._kept.remove(other._kept)
            return self
        mine, theirs = self._whole(keep=True), other._whole()
        mine.refuse_taking(theirs)
        if mine.n == theirs.n:
            self._sums = None
        else:
            mine.merge(theirs, -1)
        return self

    def score(self, kind: str) -> float:
        """One score, by name; see :data:`~dovetail.ranking.scores_from_sums.KINDS`."""
        return self.scores([kind])[kind]

    def scores(self, kinds: Iterable[str]) -> dict[str, float]:
        """Several scores at once, which share their decompositions.

        >>> PairStatistics("tanh").update(torch.eye(2), [0, 1]).scores(["utal", "nmse-neo"])
        {'utal': 0.0, 'nmse-neo': -1.0}
        """
        named = {kind: known_kind(kind) for kind in kinds}
        if not self.n:
            raise TaskError("there are no rows to score; update with some first")
        width, _ = self._kind()
        if self._sums is None and self.n < width:
            rows, targets = self._kept.all()
            # Lengths and angles are the same in the n coordinates of the rows' own span.
            turned = torch.linalg.qr(rows.T, mode="r").R.T
            sums = fold(turned, targets, per_class=self.per_class, mergeable=False)
            made = ScoresFromSums(sums, self.range, width, lambda: class_gaussians(rows, targets))
        else:
            made = ScoresFromSums(self._whole(keep=True), self.range, width)
        return {kind: float(made.value(name)) for kind, name in named.items()}

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors by name, for a file or another process.

        >>> sorted(PairStatistics().update([[1.0, 2.0]], [0]).state())
        ['activation', 'kept.rows', 'kept.targets', 'per_class']
        """
        state = {
            "activation": torch.tensor(list(self.activation.encode()), dtype=torch.uint8),
            "per_class": torch.tensor(self.per_class),
        }
        if len(self._kept):
            state["kept.rows"], state["kept.targets"] = self._kept.all()
        if self._sums is not None:
            state |= {f"sums.{name}": value for name, value in self._sums.state().items()}
        return {name: value.clone() for name, value in state.items()}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> PairStatistics:
        """What :meth:`state` gave.

        >>> PairStatistics.from_state(PairStatistics("tanh").state())
        PairStatistics('tanh', no rows)
        """
        if "activation" not in state or "per_class" not in state:
            raise FormatError("kept statistics: 'activation' or 'per_class' is missing")
        name = bytes(state["activation"].tolist()).decode("ascii", "replace")
        if not is_activation(name):
            raise FormatError(f"kept statistics: unknown activation {name!r}")
        made = cls(name, bool(state["per_class"]))
        of_sums = {key[5:]: value for key, value in state.items() if key.startswith("sums.")}
        if of_sums:
            made._sums = Sums.from_state(of_sums)
        if "kept.rows" in state and "kept.targets" in state:
            made.update(state["kept.rows"], state["kept.targets"])
        return made

    def __repr__(self) -> str:
        if not self.n:
            return f"PairStatistics({self.activation!r}, no rows)"
        width, columns = self._kind()
        what = f"{len(self.classes)} classes" if columns is None else f"{columns} numbers"
        return f"PairStatistics({self.activation!r}, {self.n} rows of {width} features, {what})"

    def _whole(self, *, keep: bool = False) -> Sums:
        """The sums of all rows, those kept included; with ``keep`` from now on as sums."""
        if len(self._kept):
            rows, targets = self._kept.all()
            piece = fold(rows, targets, per_class=self.per_class)
            if self._sums is None and not keep:
                return piece
            self._absorb(piece)
            self._kept = _KeptRows()
        assert self._sums is not None
        return self._sums

    def _absorb(self, piece: Sums) -> None:
        if self._sums is None:
            self._sums = piece
        else:
            self._sums.merge(piece)

    def _fold_if_many(self) -> None:
        if len(self._kept) and len(self._kept) >= self._most_kept(self._kind()[0]):
            self._whole(keep=True)

    @staticmethod
    def _most_kept(width: int) -> int:
        return max(width, _FEWEST_KEPT)

    def _kind(self) -> tuple[int, int | None]:
        """How many features, and how many numbers a target has; None for classes."""
        if self._sums is not None:
            return self._sums.raw.d, self._sums.raw.k if self._sums.classes is None else None
        rows, values = self._kept.all()
        return rows.shape[1], values.shape[1] if values.ndim == 2 else None

    def _refuse_other(self, other: PairStatistics) -> None:
        if other.activation != self.activation:
            raise SettingsError(
                f"statistics after {other.activation!r} do not fit those after {self.activation!r}"
            )
        if self.n and other.n and self._kind() != other._kind():
            raise TaskError(f"{other} does not fit {self}: other features, or other targets")

    def _refuse_other_kind(self, width: int, values: Tensor) -> None:
        shape = (width, values.shape[1] if values.ndim == 2 else None)
        if self.n and shape != self._kind():
            what = "integer labels" if shape[1] is None else f"{shape[1]} numbers a row"
            raise TaskError(f"{width} features with {what} cannot be added to {self}")


class _KeptRows:
    """Rows ``float64 [n, d]`` as they are, while they are fewer than features.

    With them their labels ``int64 [n]``, or numbers ``float64 [n, k]``.

    >>> kept = _KeptRows()
    >>> kept.add(torch.eye(2).double(), torch.tensor([0, 1]))
    >>> len(kept), kept.all()[1]
    (2, tensor([0, 1]))
    """

    def __init__(self) -> None:
        self.pieces: list[tuple[Tensor, Tensor]] = []

    def __len__(self) -> int:
        return sum(len(rows) for rows, _ in self.pieces)

    def add(self, rows: Tensor, targets: Tensor) -> None:
        """Keep copies of more rows."""
        self.pieces.append((rows.clone(), targets.clone()))

    def all(self) -> tuple[Tensor, Tensor]:
        """Every row and target, in the order they came; at least one."""
        if len(self.pieces) > 1:
            rows, targets = zip(*self.pieces, strict=True)
            self.pieces = [(torch.cat(rows), torch.cat(targets))]
        return self.pieces[0]

    def remove(self, other: _KeptRows) -> None:
        """Forget the rows of another; each must be here, to the last bit."""
        gone = Counter(other._names())
        stays = []
        for name in self._names():
            stays.append(not gone[name])
            if gone[name]:
                gone[name] -= 1
        missing = sum(gone.values())
        if missing:
            raise TaskError(
                f"{missing} of the {len(other)} rows to take away are not among the {len(self)} "
                "kept: only what was added before can be taken away"
            )
        rows, targets = self.all()
        mask = torch.tensor(stays)
        self.pieces = [(rows[mask], targets[mask])] if mask.any() else []

    def _names(self) -> list[bytes]:
        return [
            row.tobytes() + target.tobytes()
            for rows, targets in self.pieces
            for row, target in zip(rows.numpy(), targets.numpy(), strict=True)
        ]
