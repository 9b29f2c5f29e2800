r"""The three stages of a search for the fewest levels, counted in measurements of the loss.

*Alone*: each tensor by itself in a few numbers of levels, to see how much the loss minds, and which
of two ways to round (:mod:`dovetail.pack.rounding`) it minds less; where there are more tensors
than measurements, by a cheaper loss, the *probe*, if there is one.
*Together*: the path of :mod:`dovetail.pack.levels` is bisected for its last point within the
budget, which corrects what adding up single rises got wrong.  *One by one*: each tensor gives up
further levels as long as the loss of all together allows.

What other weights cost is the rise of a loss, example by example.  The loss of example :math:`i`
with the given weights is :math:`\ell_i`, with other weights :math:`\ell_i'`.  Both are of the
same example, so that the mean rise

.. math::
    r = \frac1n \sum_i d_i, \qquad d_i = \ell_i' - \ell_i, \qquad
    s = \sqrt{\frac{1}{n (n - 1)} \sum_i (d_i - r)^2}

has a standard error :math:`s` far below that of either mean.  On other examples of the same kind
the rise will hardly exceed :math:`r + z s`, and it is this that must stay within a budget.

Where losses are mistakes, 0 or 1, few examples change sides or none at all, and :math:`s` is too
small: that none of 100 did does not show that one in a thousand will not.  Half an example is then
added to each of the four ways an example can go (right or wrong, before and after), as Agresti and
Min do for matched pairs: with :math:`b` new mistakes and :math:`c` old ones mended,

.. math::
    s = \frac{1}{n + 2} \sqrt{b + c + 1 - \frac{(b - c)^2}{n + 2}} .
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.pack.decompressing import decompress
from dovetail.pack.levels import Ladder, Step, in_levels, ladder_of, rungs
from dovetail.pack.rounding import carries
from dovetail.pack.tensors import Ties

Measure = Callable[[dict[str, Tensor]], Any]
"""The loss of a state dict: a number, or one an example ``[n]``; lower is better."""

Losses = NDArray[np.float64]


@dataclass(frozen=True)
class Rise:
    """A mean rise; its standard error, zero where only means are known; and what it may reach."""

    mean: float
    error: float
    most: float

    @staticmethod
    def between(before: Losses, after: Losses, margin: float) -> Rise:
        """The rise from losses ``[n]`` to others of the same examples.

        >>> Rise.between(np.zeros(4), np.array([0.0, 0, 2, 6]), margin=1.0)
        Rise(mean=2.0, error=1.4142135623730951, most=3.414213562373095)
        """
        if not np.isfinite(after).all():
            return Rise(math.inf, 0.0, math.inf)
        rises = after - before
        mean, n = float(rises.mean()), len(rises)
        error = 0.0
        if n > 1:
            error = _error_of_mistakes(before, after) or float(rises.std(ddof=1)) / math.sqrt(n)
        return Rise(mean, error, mean + margin * error)


class Trials:
    """Measures weights against the given ones, and counts how often.

    >>> import torch
    >>> trials = Trials(lambda state: state["w"].square(), {"w": torch.tensor([1.0, 1.0])})
    >>> trials.rise({"w": torch.tensor([1.0, 2.0])}, "larger").mean, trials.calls
    (1.5, 2)
    """

    def __init__(
        self,
        measure: Measure,
        state: Mapping[str, Tensor],
        *,
        margin: float = 0.0,
        most_calls: int = 100,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._measure, self._margin = measure, margin
        self._tell = progress or (lambda _: None)
        self.calls, self.most_calls = 0, most_calls
        self._before = self._losses(state)
        if not np.isfinite(self._before).all():
            raise TaskError(
                f"the loss of the given weights is {self._before.mean()}: no rise can be measured "
                "from there; look for weights or examples that are not finite"
            )
        self._tell(f"loss {self.baseline:.4g}")

    @property
    def baseline(self) -> float:
        """The mean loss of the given weights."""
        return float(self._before.mean())

    @property
    def examples(self) -> int:
        """How many losses a measurement gives."""
        return len(self._before)

    @property
    def remaining(self) -> int:
        """How many measurements are allowed still."""
        return self.most_calls - self.calls

    def rise(self, state: Mapping[str, Tensor], words: str) -> Rise:
        """How much more these weights lose than the given ones; infinite if that is no number."""
        after = self._losses(state)
        if after.shape != self._before.shape:
            raise TaskError(
                f"measure gave {len(self._before)} losses at first and {len(after)} now; it must "
                "measure the same examples in the same order every time"
            )
        rise = Rise.between(self._before, after, self._margin)
        self._tell(f"{words}: loss {rise.mean:+.2g}")
        return rise

    def _losses(self, state: Mapping[str, Tensor]) -> Losses:
        self.calls += 1
        gave = self._measure(dict(state))
        if isinstance(gave, Tensor):
            gave = gave.detach().cpu().double().numpy()
        try:
            losses = np.asarray(gave, np.float64)
        except (TypeError, ValueError):
            raise SettingsError(
                f"measure gave a {type(gave).__name__}; it must give a number, or one an example"
            ) from None
        if losses.ndim > 1 or losses.size == 0:
            raise SettingsError(
                f"measure gave losses of shape {list(losses.shape)}; it must give a number, or "
                "one an example, [n]"
            )
        return losses.reshape(-1).copy()


def _error_of_mistakes(before: Losses, after: Losses) -> float | None:
    """The standard error of mean losses that are 0 or one other number; None for others.

    >>> _error_of_mistakes(np.zeros(98), np.zeros(98))
    0.01
    >>> _error_of_mistakes(np.zeros(2), np.array([1.0, 2.0]))
    """
    both = np.stack([before, after])
    one = float(both.max()) or 1.0
    if not np.isin(both, (0.0, one)).all():
        return None
    rises = (after - before) / one
    changed, more, n = float(np.abs(rises).sum()), float(rises.sum()), len(rises) + 2
    return one * math.sqrt(changed + 1 - more**2 / n) / n


_PROBES, _FIRST_PROBE, _FURTHER = 4, 16, 8
"""Measurements of a tensor alone; levels of the first; rungs to go up when they were too few."""

_CHEAP_PROBES = 2
"""Measurements of a tensor alone by a cheaper loss than the one that has a budget."""

_KEPT_BACK = 12
"""Measurements for all tensors together, before any are spent on single ones."""

_WORTH = 0.002
"""A tensor is asked again only for what saves this share of the bytes."""

_LOOKAHEAD = (0.3, 0.2, 0.12, 0.06)
"""How much of what is left of a path is looked over, the farthest first."""

_MISSES = 2
"""A tensor keeps its levels when so many numbers in turn were too few: one may be so by chance."""

_ATTEMPTS = 3
_LAST = 2
"""Measurements that the search leaves: of the container it chose, and of an exact one."""


def most_steps(tensors: int, most_calls: int) -> int:
    """How often a search measures at most, its probe included, for so many tensors.

    >>> most_steps(3, 100), most_steps(138, 100)
    (100, 377)
    """
    alone = most_calls - 1 - _KEPT_BACK >= tensors
    return most_calls if alone else most_calls + 1 + _CHEAP_PROBES * tensors


Levels = dict[str, int]
"""The levels of each tensor that is not kept exactly; in a search under its first name."""


@dataclass(frozen=True)
class Tried:
    """Levels for all tensors together: bytes, the mean rise, and the rise with its margin."""

    size: int
    rise: float | None
    most: float | None
    within: bool


class Search:
    """Measures a state with tensors in so many levels, and remembers what was within the budget.

    ``units`` are the tensors that may have levels, by their first names, with all of their names.
    ``probe`` gives trials by a cheaper loss, for tensors alone, where ``trials`` allows too few.
    """

    def __init__(
        self,
        state: Mapping[str, Tensor],
        units: Ties,
        trials: Trials,
        budget: float,
        *,
        start_bits: int,
        channels: bool,
        carry: bool,
        probe: Callable[[], Trials] | None = None,
    ) -> None:
        self._state, self._units, self._trials, self._budget = state, units, trials, budget
        self._probe, self.probed = probe, False
        self._start_bits, self._channels, self._carry = start_bits, channels, carry
        self._decoded: dict[str, tuple[int, Tensor, int]] = {}  # no more than one of each tensor
        self._known: dict[frozenset[Step], bool] = {}
        self._within: list[tuple[int, Levels]] = []
        self.ladders: list[Ladder] = []
        self.carried: set[str] = set()
        self.tried: list[Tried] = []

    def alone(self) -> dict[str, dict[int, Rise]]:
        """Rises with one tensor at a time in levels, around those at which it meets the budget."""
        each = min(_PROBES, (self._trials.remaining - _KEPT_BACK) // max(1, len(self._units)))
        trials, enough = self._trials, self._budget
        if each < 1 and self._probe is not None and self._units:
            trials, each, enough = self._probe(), _CHEAP_PROBES, 0.0  # its budget is not known
            self.probed = True
        rises = {}
        for name, names in self._units.items():
            rises[name] = self._probed(name, each, trials, enough)
            ladder = ladder_of(name, self._state[name], self._start_bits, channels=self._channels)
            times = len(names)  # each name is written
            sizes = {levels: times * size for levels, size in ladder.sizes.items()}
            self.ladders.append(replace(ladder, exact=times * ladder.exact, sizes=sizes))
        return rises

    def along(self, steps: Sequence[Step]) -> Levels:
        """The last point of a path that is within the budget, if rises only grow along it.

        By chance they do not quite: a few points further on are looked at, too.
        """
        within, beyond = 0, len(steps) + 1
        while beyond - within > 1 and self._trials.remaining > _LAST:
            middle = (within + beyond) // 2
            if self._is_within(dict(steps[:middle])):
                within = middle
            else:
                beyond = middle
        for share in _LOOKAHEAD:
            further = within + round(share * (len(steps) - within))
            spare = self._trials.remaining > _LAST + len(self.ladders)
            if further > within + 1 and spare and self._is_within(dict(steps[:further])):
                within = further
                break
        return dict(steps[:within])

    def one_by_one(self, levels: Levels) -> Levels:
        """From levels within the budget, fewer for one tensor after another while it holds."""

        def saved(ladder: Ladder) -> int:
            fewer = ladder.below(levels)
            return 0 if fewer is None else ladder.size(levels) - ladder.sizes[fewer]

        for ladder in sorted(self.ladders, key=saved, reverse=True):
            tried, misses = levels, 0
            while misses < _MISSES and self._trials.remaining > _LAST:
                fewer = ladder.below(tried)
                if fewer is None or saved(ladder) <= _WORTH * self._size(levels):
                    break
                tried = {**tried, ladder.name: fewer}
                if self._is_within(tried):
                    levels, misses = tried, 0
                else:
                    misses += 1
        return levels

    def checked(self, packed: Callable[[Levels], bytes]) -> tuple[bytes, Levels, Rise]:
        """The smallest container that is within the budget when it is unpacked and measured.

        Were the loss to differ from one measurement to the next, larger ones are tried, and in the
        end everything is kept exactly, whatever that measures.
        """
        memory = sum(tensor.nbytes for tensor in self._state.values())
        smallest = sorted(self._within, key=lambda found: found[0])[:_ATTEMPTS]
        for levels in (*(levels for _, levels in smallest[: self._trials.remaining - 1]), {}):
            data = packed(levels)
            rise = self._trials.rise(decompress(data, most_bytes=memory), "packed and unpacked")
            if rise.most <= self._budget:
                break
        if not levels and rise.mean == 0:  # the same weights lose the same on all other examples
            rise = Rise(0.0, 0.0, 0.0)
        return data, levels, rise

    def _probed(self, name: str, times: int, trials: Trials, budget: float) -> dict[int, Rise]:
        """Rises that were measured with a tensor alone, rounded in the way that costs less."""
        rises: dict[int, Rise] = {}
        ladder = rungs(self._start_bits)
        at = max(place for place, levels in enumerate(ladder) if levels <= _FIRST_PROBE)
        if times > 0:
            rises[ladder[at]] = self._rise(name, ladder[at], trials)
        if times > 1 and self._carry and carries(self._state[name]):
            self.carried.add(name)
            other, times = self._rise(name, ladder[at], trials), times - 1
            if other.most < rises[ladder[at]].most:
                rises[ladder[at]] = other
            else:
                self.carried.remove(name)
        too_few, enough = -1, len(ladder)
        while 0 < len(rises) < times:
            if rises[ladder[at]].mean > budget:
                too_few, at = at, min(at + _FURTHER, (at + enough) // 2)
            else:
                enough, at = at, (too_few + at) // 2
            if not too_few < at < enough:
                break
            rises[ladder[at]] = self._rise(name, ladder[at], trials)
        return rises

    def _rise(self, name: str, levels: int, trials: Trials) -> Rise:
        back, _ = self._back(name, levels)
        words = f"{name} in {levels} levels{', carried' if name in self.carried else ''}"
        return trials.rise(self._with({name: back}), words)

    def _back(self, name: str, levels: int) -> tuple[Tensor, int]:
        carry = name in self.carried
        return in_levels(name, self._state[name], levels, channels=self._channels, carry=carry)

    def _with(self, new: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state with other tensors, under all of their names."""
        named = {name: new[first] for first in new for name in self._units[first]}
        return {**self._state, **named}

    def _size(self, levels: Levels) -> int:
        return sum(ladder.size(levels) for ladder in self.ladders)

    def _is_within(self, levels: Levels) -> bool:
        """Whether all tensors in these levels keep the budget; measured once."""
        key = frozenset(levels.items())
        if key in self._known:
            return self._known[key]
        for name, number in levels.items():
            if self._decoded.get(name, (0,))[0] != number:
                self._decoded[name] = (number, *self._back(name, number))
        size = sum(
            len(self._units[ladder.name]) * self._decoded[ladder.name][2]
            if ladder.name in levels
            else ladder.exact
            for ladder in self.ladders
        )
        new = {name: self._decoded[name][1] for name in levels}
        rise = self._trials.rise(self._with(new), f"{size:,} bytes")
        within = rise.most <= self._budget
        self.tried.append(Tried(size, finite(rise.mean), finite(rise.most), within))
        if within:
            self._within.append((size, levels))
        self._known[key] = within
        return within


def finite(value: float) -> float | None:
    """A number that a file of JSON can hold.

    >>> finite(1.5), finite(math.inf)
    (1.5, None)
    """
    return value if math.isfinite(value) else None
