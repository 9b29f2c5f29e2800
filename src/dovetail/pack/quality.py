"""The smallest container whose measured loss stays within a budget, with levels for each tensor.

What a rise of the loss is, what is measured and in which order: :mod:`dovetail.pack.searching`.
Which tensor gives up levels first: :mod:`dovetail.pack.levels`.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

from torch import Tensor

from dovetail.core.errors import SettingsError
from dovetail.core.records import Record
from dovetail.core.views import Figure, Series, Table, Text, View
from dovetail.pack.compressing import compress
from dovetail.pack.levels import path, quantisable, rise_curve
from dovetail.pack.packed import describe
from dovetail.pack.quantise import MOST_BITS, bits_of
from dovetail.pack.rounding import rounded
from dovetail.pack.rules import refuse_unmatched
from dovetail.pack.searching import Levels, Measure, Search, Trials, Tried, finite
from dovetail.pack.tensors import Ties, checked, ties_of
from dovetail.settings.pack import MARGIN

FEWEST_CALLS = 8

SMALLEST = 256
"""Elements of the smallest tensors that are given levels, unless said."""

_NEXT_TO_NOTHING = 1e-3
"""A tensor alone is taken to cost at least this share of the budget, or by a probe of what tensors
cost in the mean: less is not measurable."""


@dataclass(frozen=True)
class SearchedTensor:
    """A tensor that may have levels: how many (None: exact), and coded bits a weight.

    ``bits`` are those of a level's number; ``carried`` says whether errors of rounding were carried
    on.  ``alone`` are the mean rises of the loss that were measured with only this tensor in so
    many levels (None: the loss was no number).
    """

    name: str
    elements: int
    bits: int | None
    coded: float
    carried: bool = False
    alone: tuple[tuple[int, float | None], ...] = ()
    levels: int | None = None


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
        """The finding, every tensor's levels, and bytes against the rise for all that was tried."""
        rows = tuple(
            (
                tensor.name,
                tensor.elements,
                "exact" if tensor.levels is None else f"{tensor.levels:,}",
                "carried on" if tensor.carried else "one by one" if tensor.levels else "",
                tensor.coded,
            )
            for tensor in self.tensors
        )
        columns = ("tensor", "elements", "levels", "rounded", "bits a weight")
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


@dataclass(frozen=True)
class Chosen:
    """A container, the levels of its tensors (others are exact), its loss and that of the given."""

    data: bytes
    levels: Levels
    loss: float
    baseline: float
    record: PackSearch

    @property
    def bits(self) -> dict[str, int]:
        """Of the numbers of levels."""
        return {name: bits_of(levels) for name, levels in self.levels.items()}


def smallest_within(
    state_dict: Mapping[str, Tensor],
    measure: Measure,
    loss_budget: float,
    *,
    margin: float = MARGIN,
    start_bits: int = 10,
    channels: bool = False,
    carry: bool = True,
    lossless: Sequence[str] = (),
    smallest: int = SMALLEST,
    most_calls: int = 100,
    probe: Measure | None = None,
    progress: Callable[[str], None] | None = None,
) -> Chosen:
    r"""Pack tensors as small as a loss allows, with levels chosen for each of them.

    ``measure`` takes a state dict and gives its loss, lower is better.  Best it gives the loss of
    every example, always the same ones in the same order (0 or 1 for right and wrong will do):
    then the rise :math:`r` has a standard error :math:`s`, and :math:`r + z s`, not :math:`r`
    alone, must be within the budget, so that other examples of the same kind keep it, too.  From a
    single number no error is known, and only the measured examples are sure to keep the budget.
    With :math:`n` examples of which none changes sides, :math:`z s` is :math:`z / n`: a budget of
    0.1 % of mistakes takes thousands of examples to be seen at all.

    Args:
        state_dict: Names and tensors; ``measure`` gets the same names and shapes, on the CPU.
            Names of one tensor (tied weights) are rounded alike.
        measure: A number or ``[n]`` numbers for a state dict.  Where quantised weights give no
            finite number, that counts as over the budget.
        loss_budget: How much the mean loss may rise.
        margin: Standard errors :math:`z` between the rise and the budget.  Of one container 2.576
            are exceeded by chance once in two hundred times, of the luckiest of the ten or so that
            a search tries once in twenty.
        start_bits: The most bits that are tried, and any number of levels below; what needs more
            is kept exactly.
        channels: A range for each row of a tensor, as in :func:`dovetail.pack.compress`.
        carry: Try for each tensor whether the loss minds it less when errors of rounding are
            carried along its rows (:mod:`dovetail.pack.rounding`).
        lossless: Patterns of names to keep exactly.
        smallest: Tensors with fewer elements are kept exactly.
        most_calls: How often ``measure`` may be called.
        probe: A cheaper loss, or one with less noise, that is called instead, about twice a tensor,
            to compare tensors where there are too many to ``measure`` each alone.  Without one
            the distance from the given weights stands in for it.
        progress: Called with a few words after each measurement.

    Returns:
        The container keeps to the budget: in the end everything is kept exactly.  Its loss is that
        of its tensors after unpacking, measured once more, whatever they are kept in.

    >>> import torch
    >>> state = {"a": torch.linspace(-1, 1, 1000), "b": torch.linspace(-1, 1, 1000)}
    >>> def loss(new):
    ...     return sum(k * (new[n] - state[n]).square().mean() for n, k in (("a", 1), ("b", 1e3)))
    >>> chosen = smallest_within(state, loss, 0.01)
    >>> chosen.levels["a"] < chosen.levels["b"], chosen.loss - chosen.baseline <= 0.01
    (True, True)
    """
    _check(loss_budget, margin, start_bits, most_calls, lossless)
    on_cpu = {name: checked(name, tensor) for name, tensor in state_dict.items()}
    refuse_unmatched(lossless, on_cpu)
    ties, overlapping = ties_of(state_dict)
    # A copy: to measure weights in the model whose state was given overwrites what was given.
    state = {name: tensor.clone() for name, tensor in on_cpu.items()}
    trials = Trials(measure, state, margin=margin, most_calls=most_calls, progress=progress)
    units = {
        first: names
        for first, names in ties.items()
        if not any(fnmatchcase(name, pattern) for name in names for pattern in lossless)
        and first not in overlapping
        and quantisable(state[first], smallest)
    }
    search = Search(
        state,
        units,
        trials,
        loss_budget,
        start_bits=start_bits,
        channels=channels,
        carry=carry,
        probe=None if probe is None else partial(Trials, probe, state, progress=progress),
    )
    alone = search.alone()
    means = [r.mean for rises in alone.values() for r in rises.values() if math.isfinite(r.mean)]
    typical = sum(means) / len(means) if search.probed and means else loss_budget
    rises = {
        ladder.name: rise_curve(
            ladder,
            {levels: max(r.mean, r.error / 2) for levels, r in alone[ladder.name].items()},
            least=_NEXT_TO_NOTHING * max(typical, 1e-9),
        )
        for ladder in search.ladders
    }
    search.one_by_one(search.along(path(search.ladders, rises)))
    carrying = {name for first in search.carried for name in units[first]}

    def packed(levels: Levels) -> bytes:
        exact = [glob.escape(name) for name in state if name not in levels]
        new = {
            name: rounded(state[name], number, channels=channels, carry=name in carrying)
            for name, number in levels.items()
        }
        return compress({**state, **new}, levels=levels, channels=channels, lossless=exact)

    data, chosen, rise = search.checked(lambda levels: packed(_for_each(levels, units)))
    levels = _for_each(chosen, units)
    full = sum(tensor.nbytes for tensor in state.values())
    coded = {tensor.name: tensor.coded for tensor in describe(data, most_bytes=full).tensors}
    record = PackSearch(
        budget=loss_budget,
        margin=margin,
        baseline=trials.baseline,
        rise=rise.mean,
        error=rise.error,
        most=rise.most,
        examples=trials.examples,
        calls=trials.calls,
        size=len(data),
        full=full,
        tensors=tuple(
            SearchedTensor(
                name=name,
                elements=state[name].numel(),
                bits=bits_of(levels[name]) if name in levels else None,
                coded=coded[name],
                carried=name in carrying and name in levels,
                alone=tuple((k, finite(r.mean)) for k, r in sorted(alone[first].items())),
                levels=levels.get(name),
            )
            for first, names in units.items()
            for name in names
        ),
        tried=tuple(search.tried),
        settings={
            "start_bits": start_bits,
            "channels": channels,
            "carry": carry,
            "lossless": list(lossless),
            "smallest": smallest,
            "most_calls": most_calls,
        },
    )
    return Chosen(data, levels, trials.baseline + rise.mean, trials.baseline, record)


def _for_each(levels: Levels, units: Ties) -> Levels:
    """The levels of all names, from those of the first name of each tensor."""
    return {name: number for first, number in levels.items() for name in units[first]}


def _check(
    budget: float, margin: float, start_bits: int, most_calls: int, lossless: Sequence[str]
) -> None:
    if not 0 <= budget < math.inf:
        raise SettingsError(f"loss_budget must be finite and not negative, got {budget}")
    if not 0 <= margin < math.inf:
        raise SettingsError(f"margin must be finite and not negative, got {margin}")
    if not 1 <= start_bits <= MOST_BITS:
        raise SettingsError(f"start_bits must be 1 to {MOST_BITS}, got {start_bits}")
    if most_calls < FEWEST_CALLS:
        raise SettingsError(f"most_calls must be at least {FEWEST_CALLS}, got {most_calls}")
    if isinstance(lossless, str):
        raise SettingsError(f"lossless takes several patterns: ({lossless!r},)")
