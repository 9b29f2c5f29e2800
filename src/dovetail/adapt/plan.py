r"""What conditioning a linear model would take, each way, before anything large is allocated.

For :math:`n` inputs, :math:`o` outputs, :math:`p` parameters and features of :math:`f` numbers an
input, in bytes and float64 operations:

==============  =====================================  ===========================================
``function``    :math:`24 (no)^2`, and the features    :math:`n^2 o f + (no)^3 / 3`
``parameter``   :math:`24 p^2`                         :math:`2 n o p^2 + p^3 / 3`
``cg``          :math:`32\, n o r`, and the features   :math:`2 n r o f + 12 n o r^2 + 2 k n o p`
``laplace``     :math:`40 (no)^2`, and the features    :math:`n^2 o f + 10 (no)^3 / 3`
``svi``         :math:`80 p`                           passes over batches
==============  =====================================  ===========================================

with a preconditioner of rank :math:`r` and :math:`k` products, of which some 30 are supposed.  Time
is that, divided by a speed measured here, and the passes that make the features.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from numbers import Real
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from dovetail.adapt.iterative import rank_for
from dovetail.adapt.linear_model import LinearModel
from dovetail.core.amounts import amount, duration
from dovetail.core.errors import SettingsError, nearest, shown
from dovetail.linalg.gradient_factors import Outer

EXACT = ("function", "parameter")
PRODUCTS = 30  # of conjugate gradients, as a guess
NEWTON = 10
STEPS, BATCH = 1000, 128  # of stochastic variational inference
BLOCK = 2**27  # bytes of one block of a product or of rows, some of which are held at a time
ONCE = 2.0  # seconds of a trial from which on it is not repeated
FEATURES = 2**31  # the most of features that are kept for a Gram matrix


@dataclass(frozen=True)
class Sizes:
    """What the needs follow from: counts, and what the features of one input take."""

    inputs: int
    outputs: int
    parameters: int
    sample_bytes: int
    sample_seconds: float = 0.0

    @property
    def rows(self) -> int:
        """Of the Jacobian."""
        return self.inputs * self.outputs


@dataclass(frozen=True)
class Needs:
    """What one way would take, about."""

    method: str
    memory: int
    seconds: float


@dataclass(frozen=True)
class Group:
    """What fitting some layers would take, about; ``passes`` are those that give the features."""

    layers: str
    weights: int
    passes: float
    seconds: float
    memory: int


@dataclass(frozen=True)
class Plan:
    """Each way's needs, and which of them is taken.

    Attributes:
        sizes: Of the problem.
        memory: Bytes that may be used.
        ways: In the order of preference.
        asked: The method that was asked for, or ``"auto"``.
        groups: Of layers, where a head is fitted and others may move; ``ways`` then are for the
            spread of what the head says.

    >>> plan = Plan(Sizes(50_000, 1, 800_000, 20_000), 10**10, (
    ...     Needs("function", 6 * 10**10, 400.0), Needs("cg", 2 * 10**9, 60.0)))
    >>> plan.method
    'cg'
    >>> print(plan)
    50000 inputs, 1 output, 800000 parameters; 9.3 GiB of memory
      function   about   55.9 GiB   about 7 min      does not fit
      cg         about    1.9 GiB   about 1 min      taken: the first that fits
    """

    sizes: Sizes
    memory: int
    ways: tuple[Needs, ...]
    asked: str = "auto"
    groups: tuple[Group, ...] = ()

    @property
    def method(self) -> str:
        """The way to take.

        Raises:
            SettingsError: Where it does not fit, or none does, with what would.
        """
        chosen = self._chosen()
        if chosen is None:
            raise SettingsError(self._refusal())
        return chosen.method

    @property
    def features_memory(self) -> int:
        """Bytes of features to keep, for the way that is taken."""
        every = self.sizes.inputs * self.sizes.sample_bytes
        if self.method == "parameter":
            return 0  # rows are gone through once
        # Features are not quite the same size for every number of inputs.
        return 2 * every if self.method == "cg" else min(2 * every, FEATURES)

    def fits(self, way: Needs) -> bool:
        """Whether there is memory for it."""
        return way.memory <= self.memory

    def __str__(self) -> str:
        s = self.sizes
        lines = []
        if self.groups:
            wide = max(len(group.layers) for group in self.groups)
            lines += [f"{s.inputs} inputs, in passes of all of them through the network"]
            lines += [
                f"  {group.layers:<{wide}}   about {group.passes:4.1f} passes   "
                f"{duration(group.seconds):<14}   {amount(group.memory):>10}   "
                f"{group.weights} weights"
                for group in self.groups
            ]
            lines.append("and, for how sure the head is (asked for, not needed to predict):")
        lines.append(f"{_problem(s)}; {amount(self.memory)} of memory")
        chosen = self._chosen()
        for way in self.ways:
            word = "" if self.fits(way) else "does not fit"
            if way is chosen:
                word = f"taken: {self._why()}"
            lines.append(
                f"  {way.method:<10} about {amount(way.memory):>10}   "
                f"{duration(way.seconds):<14}   {word}".rstrip()
            )
        return "\n".join(lines)

    def _chosen(self) -> Needs | None:
        candidates = [way for way in self.ways if self.fits(way)]
        if self.asked != "auto":
            return next((way for way in candidates if way.method == self.asked), None)
        exact = [way for way in candidates if way.method in EXACT]
        if exact:
            return min(exact, key=lambda way: way.seconds)
        return candidates[0] if candidates else None

    def _why(self) -> str:
        if self.asked != "auto":
            return "asked for"
        exact = [way for way in self.ways if self.fits(way) and way.method in EXACT]
        if exact:
            return "exact, and the quicker" if len(exact) > 1 else "exact, and fits"
        return "the first that fits"

    def _refusal(self) -> str:
        """Why not, and what would."""
        s = self.sizes
        which = "no way of fitting" if self.asked == "auto" else f"method={self.asked!r}"
        mine = [way for way in self.ways if self.asked in ("auto", way.method)]
        least = min(way.memory for way in mine)
        remedies = []
        if fewer := max(_most(way.method, s, "inputs", self.memory) for way in mine):
            remedies.append(f"fit to at most {fewer} inputs")
        streamed = any(way.method == "parameter" for way in self.ways)
        if streamed and (few := _most("parameter", s, "parameters", self.memory)):
            remedies.append(
                f'let at most {few} parameters move, such as those of the head by params="head.*"'
            )
        if self.asked != "auto":
            others = [way.method for way in self.ways if self.fits(way)]
            remedies += [f"method={name!r}" for name in others]
        remedies.append("give more memory=")
        return (
            f"{which} for {_problem(s)} fits in {amount(self.memory)}: it takes about "
            f"{amount(least)}. "
            f"Either {', or '.join(remedies)}."
        )


def plan_for(
    linear: LinearModel,
    example: Tensor,
    n: int,
    *,
    memory: int | None = None,
    method: str = "auto",
    labels: bool = False,
) -> Plan:
    """Look at the features of one input, and say what ``n`` of them would take.

    Args:
        linear: The network and which of its parameters move.
        example: An input or more, ``[1, ...]``, prepared.
        n: How many inputs there will be.
        memory: Bytes that may be used; what is free unless said.
        method: The way that is asked for, or ``"auto"``.
        labels: Whether classes rather than numbers are to be predicted.

    >>> plan = plan_for(LinearModel(torch.nn.Linear(3, 1)), torch.zeros(1, 3), 100_000)
    >>> plan.method
    'parameter'
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise SettingsError(f"a plan is for a number of inputs from 1, got {shown(n)}")
    if memory is not None and not _is_amount(memory):
        raise SettingsError(f"memory is a number of bytes above 0, got {shown(memory)}")
    copies = example[:1].expand(min(n, 16), *example.shape[1:]).contiguous()
    features = linear.features(copies, memory=0)  # so that it computes them again
    for _ in range(2):  # the first call has costs of its own
        began = time.perf_counter()
        factors = features.factors(0)
        taken = time.perf_counter() - began
        if taken > ONCE:
            break
    held: dict[int, int] = {}  # a bias shares what it holds with the matrix beside it
    for one in factors.values():
        for tensor in (one.inputs, one.grads) if isinstance(one, Outer) else (one.rows,):
            held[tensor.data_ptr()] = tensor.nbytes
    count = features.slices[0].stop
    seconds = taken / count
    each = sum(held.values()) // count
    sizes = Sizes(n, features.width, features.size, each, seconds)
    known = LABELS if labels else NUMBERS
    if method != "auto" and method not in known:
        raise SettingsError(f"no way is called {shown(method)}{nearest(method, known)}")
    ways = tuple(needs(sizes) for needs in known.values())
    return Plan(sizes, int(memory or free_memory()), ways, method)


def free_memory() -> int:
    """Bytes that this process can still have, as far as the system says.

    >>> free_memory() > 0
    True
    """
    limits = []
    try:
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        limits.append(1024 * int(facts["MemAvailable"].split()[0]))
    except (OSError, KeyError, ValueError):  # not Linux, or an old one
        try:
            limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
        except (AttributeError, OSError, ValueError):
            limits.append(4 * 2**30)
    try:  # a container's own limit
        group = Path("/sys/fs/cgroup")
        most, used = ((group / f"memory.{word}").read_text() for word in ("max", "current"))
        limits.append(max(0, int(most) - int(used)))
    except (OSError, ValueError):
        pass
    return max(1, min(limits))


@cache
def _speed() -> float:
    """float64 operations a second, of one small product."""
    side = 384
    matrix = torch.ones(side, side, dtype=torch.float64)
    best = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - began)
    return 2 * side**3 / max(best, 1e-9)


def _needs(s: Sizes, method: str, memory: float, operations: float, passes: float = 1.0) -> Needs:
    seconds = operations / _speed() + passes * s.inputs * s.sample_seconds
    return Needs(method, int(memory), seconds)


def _kept(s: Sizes) -> int:
    return min(s.inputs * s.sample_bytes, FEATURES)


def _peak(side: int, matrices: int, blocked: int) -> int:
    """Bytes at the worst moment: one matrix is summed from blocks, and several make its root."""
    return max(8 * side**2 + 2 * min(BLOCK, blocked), 8 * matrices * side**2)


def _gram(s: Sizes, columns: int) -> float:
    """Operations of inner products with so many other inputs."""
    return 2.0 * s.inputs * columns * s.outputs * s.sample_bytes / 4


def _function(s: Sizes) -> Needs:
    memory = _kept(s) + _peak(s.rows, 3, 8 * s.rows**2)
    return _needs(s, "function", memory, _gram(s, s.inputs) / 2 + s.rows**3 / 3)


def _parameter(s: Sizes) -> Needs:
    memory = _peak(s.parameters, 3, 8 * s.rows * s.parameters)
    work = 2.0 * s.rows * s.parameters**2 + s.parameters**3 / 3
    return _needs(s, "parameter", memory, work)


def _cg(s: Sizes) -> Needs:
    rank = rank_for(s.rows, s.parameters)
    features = s.inputs * s.sample_bytes
    memory = features + 48 * s.parameters + 80 * s.rows
    memory += max(32 * s.rows * rank, 2 * min(BLOCK, features))
    work = _gram(s, -(-rank // s.outputs)) + 12.0 * s.rows * rank**2
    return _needs(s, "cg", memory, work + PRODUCTS * 2.0 * s.rows * s.parameters)


def _laplace(s: Sizes) -> Needs:
    memory = _kept(s) + _peak(s.rows, 5, 8 * s.rows**2)
    return _needs(s, "laplace", memory, _gram(s, s.inputs) / 2 + NEWTON * s.rows**3 / 3)


def _stochastic(method: str) -> Way:
    def needs(s: Sizes) -> Needs:
        some = min(s.inputs, BATCH)
        memory = (80 + 8 * s.outputs) * s.parameters + 4 * some * s.sample_bytes + 40 * s.rows
        return _needs(s, method, memory, 0.0, passes=3 * STEPS * some / s.inputs)

    return needs


Way: TypeAlias = Callable[[Sizes], Needs]

NUMBERS: dict[str, Way] = {"function": _function, "parameter": _parameter, "cg": _cg}
LABELS: dict[str, Way] = {
    "laplace": _laplace,
    "svi": _stochastic("svi"),
    "map": _stochastic("map"),
}


def _most(method: str, sizes: Sizes, of: str, memory: int) -> int:
    """The largest number of inputs or parameters for which a way fits, by halving."""
    needs = {**NUMBERS, **LABELS}[method]
    low, high = 0, int(getattr(sizes, of)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = needs(replace(sizes, **{of: middle})).memory <= memory
        low, high = (middle, high) if fits else (low, middle)
    return low


def _problem(s: Sizes) -> str:
    counts = {"input": s.inputs, "output": s.outputs, "parameter": s.parameters}
    return ", ".join(f"{n} {word}" + "s" * (n != 1) for word, n in counts.items())


def _is_amount(memory: object) -> bool:
    if isinstance(memory, bool) or not isinstance(memory, Real):
        return False
    return 0 < float(memory) < float("inf")
