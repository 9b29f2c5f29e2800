r"""The eight pairwise scores where only pairs are labelled: alike, or different.

Being alike need not be transitive then, so there are no classes to sum over.  What is summed is
over the labelled pairs themselves: their number, :math:`\sum k`, :math:`\sum k^2` and
:math:`\sum e^k`, for pairs alike and for pairs that differ, and the number of rows and of those
that are not zero, for the diagonal of AL and NMSE.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dovetail.core.activations import is_activation, kernel_range
from dovetail.core.errors import FormatError, SettingsError, TaskError, nearest
from dovetail.measure.inputs import LEAST, float_rows, lengths_of, rows_a_chunk
from dovetail.objectives.pairwise import KINDS, refuse_misplaced
from dovetail.ranking.scores_from_sums import pair_score


class PairSums:
    """Sums over labelled pairs of rows, and the scores they give; higher is better.

    A pair counts in both directions, as often as it is given; AL and NMSE also count every row
    with itself.  Rows are not remembered: the same rows in two updates count twice on the diagonal,
    and a pair that contradicts one of an earlier update is not noticed.

    Args:
        activation: What the features went through, hence the least value of their kernel.

    >>> sums = PairSums("relu").update(torch.eye(3), [0, 1], [1, 2], [False, True])
    >>> sums
    PairSums('relu', 3 rows, 1 pair alike, 1 different)
    >>> sums.score("nmse-neo"), sums.score("cts")
    (-0.0, 0.5)
    """

    def __init__(self, activation: str = "relu") -> None:
        self.beta, self.alpha = kernel_range(activation)
        self.activation = activation
        self._counts = torch.zeros(4, dtype=torch.int64)  # rows, not zero, alike, different
        self._sums = torch.zeros(2, 3, dtype=torch.float64)  # alike, different: k, k^2, exp k

    @property
    def n(self) -> int:
        """How many rows were seen, less those taken away."""
        return int(self._counts[0])

    @property
    def pairs(self) -> tuple[int, int]:
        """How many pairs are alike, and how many differ."""
        return int(self._counts[2]), int(self._counts[3])

    def update(self, features: Any, first: Any, second: Any, same: Any) -> PairSums:
        """Add rows ``[n, d]`` and pairs of them; nothing is added if anything is refused.

        Args:
            features: As the activation left them; scaled to unit length here, zeros stay zeros.
            first: The one row of each pair, ``[m]``.
            second: The other.
            same: Whether they are alike, ``[m]`` booleans.
        """
        rows = float_rows(features)
        one, two, alike = _pairs(first, second, same, len(rows))
        lengths = lengths_of(rows)
        lit = lengths > LEAST
        inverse = torch.where(lit, 1 / lengths, 0.0)
        kernel = torch.empty(len(one), dtype=torch.float64)
        step = rows_a_chunk(rows.shape[1])
        for start in range(0, len(one), step):
            a, b = one[start : start + step], two[start : start + step]
            products = torch.linalg.vecdot(rows[a].double(), rows[b].double())
            kernel[start : start + step] = products * inverse[a] * inverse[b]
        sums = [_summed(kernel[alike]), _summed(kernel[~alike])]
        counts = [len(rows), int(lit.sum()), int(alike.sum()), int((~alike).sum())]
        self._sums = self._sums + torch.stack(sums)
        self._counts = self._counts + torch.tensor(counts)
        return self

    def merge(self, other: PairSums) -> PairSums:
        """Add the rows and pairs of another, which stays as it is.

        >>> one = PairSums().update(torch.eye(2), [0], [1], [False])
        >>> one.merge(one).pairs
        (0, 2)
        """
        self._refuse_other(other)
        self._counts, self._sums = self._counts + other._counts, self._sums + other._sums
        return self

    def subtract(self, other: PairSums) -> PairSums:
        """Take away what was added before; more than there is cannot be taken.

        >>> one = PairSums().update(torch.eye(2), [0], [1], [False])
        >>> one.subtract(one).n
        0
        """
        self._refuse_other(other)
        counts = self._counts - other._counts
        if (counts < 0).any() or counts[0] < counts[1]:
            raise TaskError(f"cannot take {other} from {self}: only what was added before")
        sums = self._sums - other._sums
        self._counts, self._sums = counts, torch.where(counts[2:, None] > 0, sums, 0.0)
        return self

    def score(self, kind: str) -> float:
        """One of :data:`dovetail.objectives.pairwise.KINDS`."""
        if kind not in KINDS:
            raise SettingsError(f"labelled pairs do not give {kind!r}{nearest(kind, KINDS)}")
        form, _, neo = kind.partition("-")
        self._refuse_missing(kind, form, bool(neo))
        alike, different = self.pairs
        k, squares, powers = map(float, self._sums[0])
        k_different, squares_different, powers_different = map(float, self._sums[1])
        a, b, n, lit = self.alpha, self.beta, self.n, int(self._counts[1])
        if form == "cts":
            return -powers_different / different if neo else powers / (powers + powers_different)
        if neo:
            alike, k, squares = 0, 0.0, 0.0
        aligned = 2 * (a * k + b * k_different)
        kernel, ideal = 2 * (squares + squares_different), 2 * (a * a * alike + b * b * different)
        count = 2 * (alike + different)
        if form != "utal" and not neo:  # the diagonal: k is 1, or 0 for a row of zeros
            aligned, kernel, ideal = aligned + a * lit, kernel + lit, ideal + a * a * n
            count += n
        return pair_score(form, aligned, kernel, ideal, count)

    def scores(self, kinds: Iterable[str]) -> dict[str, float]:
        """Several scores by name."""
        return {kind: self.score(kind) for kind in kinds}

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors by name, for a file or another process.

        >>> sorted(PairSums().state())
        ['activation', 'counts', 'sums']
        """
        name = torch.tensor(list(self.activation.encode()), dtype=torch.uint8)
        return {"activation": name, "counts": self._counts.clone(), "sums": self._sums.clone()}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> PairSums:
        """What :meth:`state` gave.

        >>> PairSums.from_state(PairSums("tanh").state())
        PairSums('tanh', 0 rows, 0 pairs alike, 0 different)
        """
        shapes = {name: tuple(value.shape) for name, value in state.items()}
        known = {"counts": (4,), "sums": (2, 3)}
        if "activation" not in state or not known.items() <= shapes.items():
            raise FormatError("kept pair sums: 'activation', 'counts' or 'sums' is wrong")
        name = bytes(state["activation"].tolist()).decode("ascii", "replace")
        if not is_activation(name):
            raise FormatError(f"kept pair sums: unknown activation {name!r}")
        made = cls(name)
        made._counts, made._sums = state["counts"].long().clone(), state["sums"].double().clone()
        return made

    def __repr__(self) -> str:
        alike, different = self.pairs
        pairs = f"{alike} pair{'s' * (alike != 1)} alike, {different} different"
        return f"PairSums({self.activation!r}, {self.n} rows, {pairs})"

    def _refuse_other(self, other: PairSums) -> None:
        if other.activation != self.activation:
            raise SettingsError(
                f"sums after {other.activation!r} do not fit those after {self.activation!r}"
            )

    def _refuse_missing(self, kind: str, form: str, neo: bool) -> None:
        """Refuse sums that leave the score undefined, or the same whatever the features."""
        alike, different = self.pairs
        if kind in ("al-neo", "utal-neo") and self.beta == 0:
            raise SettingsError(
                f"{kind!r} is undefined after {self.activation!r}: features that are never "
                "negative have an ideal kernel of 0, and nothing aligns with zero; "
                "use 'nmse-neo' or 'cts-neo'"
            )
        if not self.n:
            raise TaskError("there are no rows to score; update with some first")
        if (neo or form == "cts") and not different:
            raise TaskError(
                f"no pair is known to differ, and {kind!r} needs one; use 'al' or 'nmse'"
            )
        if not neo and (form == "cts" or (form == "utal" and not self.beta)) and not alike:
            raise TaskError(
                f"no pair is known to be alike, and {kind!r} needs one; use 'nmse-neo' or 'cts-neo'"
            )
        if form == "utal" and not alike + different:
            raise TaskError("no pairs are known, and 'utal' needs one; give pairs, or use 'al'")


def _summed(kernel: Tensor) -> Tensor:
    return torch.stack([kernel.sum(), kernel.square().sum(), kernel.exp().sum()])


def _pairs(first: Any, second: Any, same: Any, count: int) -> tuple[Tensor, Tensor, Tensor]:
    one, two, alike = (torch.as_tensor(end).detach().cpu() for end in (first, second, same))
    if one.numel() and (one.is_floating_point() or two.is_floating_point()):
        raise TaskError("first and second must be integers, the places of rows")
    if alike.dtype != torch.bool and not bool(((alike == 0) | (alike == 1)).all()):
        raise TaskError("same must hold booleans: whether the two rows of a pair are alike")
    one, two, alike = one.long(), two.long(), alike.bool()
    refuse_misplaced(count, one, two, alike, "row")
    _refuse_contradictions(torch.minimum(one, two), torch.maximum(one, two), alike, count)
    return one, two, alike


def _refuse_contradictions(low: Tensor, high: Tensor, alike: Tensor, count: int) -> None:
    names, order = torch.sort(low * count + high, stable=True)
    said = alike[order]
    against = ((names[1:] == names[:-1]) & (said[1:] != said[:-1])).nonzero()
    if len(against):
        pair = int(names[int(against[0])])
        raise TaskError(
            f"rows {pair // count} and {pair % count} are given both as alike and as different; "
            "leave one of the two out"
        )
