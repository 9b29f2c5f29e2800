"""The three stages of a search for the fewest bits, counted in measurements of the loss.

*Alone*: each tensor by itself in a few numbers of bits, to see how much the loss minds, and which
of two ways to round (:mod:`dovetail.pack.carrying`) it minds less.
*Together*: the path of :mod:`dovetail.pack.levels` is bisected for its last point within the
budget, which corrects what adding up single rises got wrong.  *One by one*: each tensor gives up
further bits as long as the loss of all together allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from dovetail.pack.carrying import carries
from dovetail.pack.decompressing import decompress
from dovetail.pack.levels import Levels, Step, in_bits, levels_of
from dovetail.pack.quality_record import Tried, finite
from dovetail.pack.ties import Ties
from dovetail.pack.trials import Rise, Trials

__all__ = ["Bits", "Search"]

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
        found: dict[int, Rise] = {}
        bits, carry = min(_FIRST_PROBE, self._start_bits), False
        if times > 0:
            found[bits] = self._rise(name, bits, carry=False)
        # Ranges of single rows are not those that errors are carried in.
        if times > 1 and self._carry and not self._channels and carries(self._state[name]):
            other, times = self._rise(name, bits, carry=True), times - 1
            if other.most < found[bits].most:
                found[bits], carry = other, True
        too_few, enough = 0, self._start_bits + 1
        while 0 < len(found) < times:
            if found[bits].mean > self._budget:
                too_few, bits = bits, min(bits + 2, (bits + enough) // 2)
            else:
                enough, bits = bits, (too_few + bits) // 2
            if not too_few < bits < enough:
                break
            found[bits] = self._rise(name, bits, carry=carry)
        return carry, found

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
        key = frozenset(bits.items())
        if key not in self._known:
            self._known[key] = self._tried(bits)
        return self._known[key]

    def _tried(self, bits: Bits) -> bool:
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
        return within
