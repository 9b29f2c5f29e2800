r"""The three stages of a search for the fewest bits, counted in measurements of the loss.

*Alone*: each tensor by itself in a few numbers of bits, to see how much the loss minds, and which
of two ways to round (:mod:`dovetail.pack.quantise`) it minds less.
*Together*: the path of :mod:`dovetail.pack.levels` is bisected for its last point within the
budget, which corrects what adding up single rises got wrong.  *One by one*: each tensor gives up
further bits as long as the loss of all together allows.

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
from dovetail.pack.levels import Levels, Step, in_bits, levels_of
from dovetail.pack.quantise import carries
from dovetail.pack.tensors import Ties

__all__ = ["Bits", "Measure", "Rise", "Search", "Trials"]


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
    def left(self) -> int:
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


_PROBES, _FIRST_PROBE = 4, 4
_KEPT_BACK = 12
"""Measurements for all tensors together, before any are spent on single ones."""

_WORTH = 0.002
"""A tensor is asked again only for what saves this share of the bytes."""

_ATTEMPTS = 3
_LAST = 2
"""Measurements that the search leaves: of the container it chose, and of an exact one."""

Bits = dict[str, int]
"""The bits of each tensor that is not kept exactly; in a search under its first name."""


@dataclass(frozen=True)
class Tried:
    """Bits for all tensors together: their bytes, the mean rise, and the rise with its margin."""

    size: int
    rise: float | None
    most: float | None
    within: bool


class Search:
    """Measures a state with tensors in so many bits, and remembers what was within the budget.

    ``units`` are the tensors that may have bits, by their first names, with all of their names.
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
    ) -> None:
        self._state, self._units, self._trials, self._budget = state, units, trials, budget
        self._start_bits, self._channels, self._carry = start_bits, channels, carry
        self._decoded: dict[str, tuple[int, Tensor]] = {}  # no more than one of each tensor
        self._known: dict[frozenset[Step], bool] = {}
        self._within: list[tuple[int, Bits]] = []
        self.levels: list[Levels] = []
        self.tried: list[Tried] = []

    def alone(self) -> dict[str, dict[int, Rise]]:
        """Rises with one tensor at a time in bins, around the bits at which it meets the budget."""
        each = min(_PROBES, (self._trials.left - _KEPT_BACK) // max(1, len(self._units)))
        found = {}
        for name in self._units:
            carry, found[name] = self._probed(name, each)
            levels = levels_of(
                name, self._state[name], self._start_bits, channels=self._channels, carry=carry
            )
            times = len(self._units[name])  # each name is written
            sizes = {bits: times * size for bits, size in levels.sizes.items()}
            self.levels.append(replace(levels, exact=times * levels.exact, sizes=sizes))
        return found

    def along(self, steps: Sequence[Step]) -> Bits:
        """The last point of a path that is within the budget, if rises only grow along it."""
        within, beyond = 0, len(steps) + 1
        while beyond - within > 1 and self._trials.left > _LAST:
            middle = (within + beyond) // 2
            if self._is_within(dict(steps[:middle])):
                within = middle
            else:
                beyond = middle
        return dict(steps[:within])

    def one_by_one(self, bits: Bits) -> Bits:
        """From bits within the budget, fewer for one tensor after another while it holds."""

        def saved(tensor: Levels) -> int:
            fewer = bits.get(tensor.name, tensor.finest + 1) - 1
            return tensor.size(bits) - tensor.sizes[fewer] if fewer else 0

        for tensor in sorted(self.levels, key=saved, reverse=True):
            while saved(tensor) > _WORTH * self._size(bits) and self._trials.left > _LAST:
                fewer = {**bits, tensor.name: bits.get(tensor.name, tensor.finest + 1) - 1}
                if not self._is_within(fewer):
                    break
                bits = fewer
        return bits

    def checked(self, packed: Callable[[Bits], bytes]) -> tuple[bytes, Bits, Rise]:
        """The smallest container that is within the budget when it is unpacked and measured.

        Were the loss to differ from one measurement to the next, larger ones are tried, and in the
        end everything is kept exactly, whatever that measures.
        """
        memory = sum(tensor.nbytes for tensor in self._state.values())
        smallest = sorted(self._within, key=lambda found: found[0])[:_ATTEMPTS]
        for bits in (*(bits for _, bits in smallest[: self._trials.left - 1]), {}):
            data = packed(bits)
            rise = self._trials.rise(decompress(data, most_bytes=memory), "packed and unpacked")
            if rise.most <= self._budget:
                break
        if not bits and rise.mean == 0:  # the same weights lose the same on all other examples, too
            rise = Rise(0.0, 0.0, 0.0)
        return data, bits, rise

    def _probed(self, name: str, times: int) -> tuple[bool, dict[int, Rise]]:
        """How to round a tensor, and the rises that were measured with it rounded so."""
        rises: dict[int, Rise] = {}
        bits, carry = min(_FIRST_PROBE, self._start_bits), False
        if times > 0:
            rises[bits] = self._rise(name, bits, carry=False)
        # Ranges of single rows are not those that errors are carried in.
        if times > 1 and self._carry and not self._channels and carries(self._state[name]):
            other, times = self._rise(name, bits, carry=True), times - 1
            if other.most < rises[bits].most:
                rises[bits], carry = other, True
        too_few, enough = 0, self._start_bits + 1
        while 0 < len(rises) < times:
            if rises[bits].mean > self._budget:
                too_few, bits = bits, min(bits + 2, (bits + enough) // 2)
            else:
                enough, bits = bits, (too_few + bits) // 2
            if not too_few < bits < enough:
                break
            rises[bits] = self._rise(name, bits, carry=carry)
        return carry, rises

    def _rise(self, name: str, bits: int, *, carry: bool) -> Rise:
        back, _ = in_bits(name, self._state[name], bits, channels=self._channels, carry=carry)
        words = f"{name} in {bits} bits{', carried' if carry else ''}"
        return self._trials.rise(self._with({name: back}), words)

    def _with(self, new: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state with other tensors, under all of their names."""
        named = {name: new[first] for first in new for name in self._units[first]}
        return {**self._state, **named}

    def _size(self, bits: Bits) -> int:
        return sum(tensor.size(bits) for tensor in self.levels)

    def _is_within(self, bits: Bits) -> bool:
        """Whether all tensors in these bits keep the budget; measured once."""
        key = frozenset(bits.items())
        if key in self._known:
            return self._known[key]
        for tensor in self.levels:
            name, number = tensor.name, bits.get(tensor.name, 0)
            if number and self._decoded.get(name, (0,))[0] != number:
                back, _ = in_bits(
                    name, self._state[name], number, channels=self._channels, carry=tensor.carry
                )
                self._decoded[name] = (number, back)
        new = {name: self._decoded[name][1] for name in bits}
        size = self._size(bits)
        rise = self._trials.rise(self._with(new), f"{size:,} bytes")
        within = rise.most <= self._budget
        self.tried.append(Tried(size, finite(rise.mean), finite(rise.most), within))
        if within:
            self._within.append((size, bits))
        self._known[key] = within
        return within


def finite(value: float) -> float | None:
    """A number that a file of JSON can hold.

    >>> finite(1.5), finite(math.inf)
    (1.5, None)
    """
    return value if math.isfinite(value) else None
