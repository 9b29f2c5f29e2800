r"""How many levels a tensor's weights get: :math:`2^N` for :math:`N` bits, or any number.

Three rules, of the thesis "Efficient deep learning", chapter 3:

entropy (Algorithm 1)
    :math:`N = \lceil H \rceil + c`, with :math:`H` the entropy in bits of a histogram of
    :math:`2^M` bins over a random fraction :math:`F` of the weights.
gradient (section 3.3)
    :math:`N = \lceil \log_2(G + 1) \rceil + c`, with :math:`G` the root mean square of the loss's
    derivative by these weights: what moves the loss more is kept more finely.
fixed
    The same number of bits or levels, or one a name.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError, nearest
from dovetail.core.seeds import generator
from dovetail.pack.quantise import MOST_BITS, MOST_LEVELS, Numbers
from dovetail.pack.tensors import FLOATING
from dovetail.settings.pack import Bits

LONGEST_VECTOR = 1 << 16
"""Vectors shorter than this are kept exactly: biases and statistics of norms are few among the
weights, and a variance near zero does not survive bins that are uniform up to the largest."""

LEAST_SAMPLE, MOST_SAMPLE = 512, 1 << 16
"""At least and at most so many weights estimate an entropy: an error of at most a few hundredths
of a bit, whatever the fraction asked for."""


_WILD = frozenset("*?[")
"""What makes a pattern of a name."""


@dataclass(frozen=True)
class Rules:
    """What decides, tensor by tensor, between exact and quantised, and the number of levels."""

    extra_bits: int = Bits.extra_bits
    probe_bits: int = 4
    sample: float = 0.03
    bits: int | Mapping[str, int] | None = Bits.bits
    gradients: Mapping[str, Tensor | float] | None = None
    channels: bool = Bits.channels
    lossless: Sequence[str] = Bits.lossless
    smallest: int = 256
    seed: int = 0
    levels: int | Mapping[str, int] | None = None
    seen: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        settled: dict[str, Any] = {
            "extra_bits": _whole("extra_bits", self.extra_bits, 0, MOST_BITS),
            "probe_bits": _whole("probe_bits", self.probe_bits, 1, MOST_BITS),
            "smallest": _whole("smallest", self.smallest, 0, 1 << 62),
            "seed": _whole("seed", self.seed, -(1 << 63), (1 << 64) - 1),
            "sample": _share("sample", self.sample),
            "channels": bool(self.channels),
        }
        if self.gradients is not None and not isinstance(self.gradients, Mapping):
            raise SettingsError(f"gradients has a gradient a name, got {self.gradients!r}")
        rules = {"bits": self.bits, "levels": self.levels, "gradients": self.gradients}
        named = [name for name, value in rules.items() if value is not None]
        if len(named) > 1:
            raise SettingsError(
                f"give {' or '.join(named)}, not {'both' if len(named) == 2 else 'all'}: each is a "
                "rule of its own"
            )
        if isinstance(self.lossless, str) or not all(isinstance(p, str) for p in self.lossless):
            raise SettingsError(f"lossless is a list of patterns of names, got {self.lossless!r}")
        settled["bits"] = _fixed("bits", self.bits, 1, MOST_BITS)
        settled["levels"] = _fixed("levels", self.levels, 2, MOST_LEVELS)
        for name, value in settled.items():  # numpy's numbers as Python's, which an index can hold
            object.__setattr__(self, name, value)

    @cached_property
    def fixed(self) -> int | Mapping[str, int] | None:
        """The levels that were asked for, of all or by name."""
        if isinstance(self.bits, Mapping):
            return {name: 1 << bits for name, bits in self.bits.items()}
        return self.levels if self.bits is None else 1 << self.bits

    @cached_property
    def _names(self) -> set[str]:
        """What ``lossless`` names outright: thousands are looked up sooner than matched."""
        return {pattern for pattern in self.lossless if _WILD.isdisjoint(pattern)}

    @cached_property
    def _patterns(self) -> list[str]:
        return [pattern for pattern in self.lossless if not _WILD.isdisjoint(pattern)]

    def described(self) -> dict[str, Any]:
        """The settings as a container keeps them: which rule, and its numbers."""
        common = {"channels": self.channels, "lossless": list(self.lossless)}
        for name in ("bits", "levels"):
            if isinstance(value := getattr(self, name), int):
                return {"rule": "fixed", name: value, **common}
        rule = "gradient" if self.gradients is not None else "entropy"
        return {
            "rule": rule if self.fixed is None else "fixed",
            "extra_bits": self.extra_bits,
            "probe_bits": self.probe_bits,
            "sample": self.sample,
            "seed": self.seed,
            **common,
        }

    def missed(self) -> None:
        """Refuse settings for tensors that never came: a misspelt name would change nothing."""
        refuse_unmatched(self.lossless, self.seen)
        for where in ("bits", "levels", "gradients"):
            named = getattr(self, where)
            for name in sorted(set(named if isinstance(named, Mapping) else ()) - self.seen):
                near = nearest(name, self.seen)
                raise SettingsError(f"{where} names {name!r}, no such tensor{near}")

    def exact(self, name: str, tensor: Tensor) -> bool:
        """Whether a tensor is kept bit by bit."""
        self.seen.add(name)
        if name in self._names or any(fnmatchcase(name, each) for each in self._patterns):
            return True
        named = isinstance(self.fixed, Mapping) and name in self.fixed
        if tensor.dtype not in FLOATING:
            if named:
                where = "bits" if self.levels is None else "levels"
                raise SettingsError(f"{where} names {name!r}, whose {tensor.dtype} is kept exactly")
            return True
        if tensor.numel() == 0:
            return True
        if named:
            return False
        small = tensor.numel() < self.smallest
        return small or (tensor.ndim <= 1 and tensor.numel() < LONGEST_VECTOR)

    def levels_for(self, name: str, matrix: Tensor, low: Numbers, high: Numbers) -> int:
        """The levels of a tensor ``[rows, columns]`` with these ranges."""
        if isinstance(self.fixed, Mapping):
            if name in self.fixed:
                return self.fixed[name]
        elif self.fixed is not None:
            return self.fixed
        if self.gradients is not None and name in self.gradients:
            size = math.log2(_size(name, self.gradients[name]) + 1)
        else:
            # The same for every name: a tensor that has two must get the same bits for both.
            draw = generator(self.seed, "pack")
            size = sampled_entropy(matrix, low, high, self.probe_bits, self.sample, draw)
        # A hair below a whole number of bits is that number, and no machine's rounding decides.
        return 1 << max(1, min(MOST_BITS, math.ceil(size - 1e-9) + self.extra_bits))


def refuse_unmatched(patterns: Iterable[str], names: Iterable[str]) -> None:
    """Refuse a pattern that no name matches: what it was to protect would be changed.

    >>> refuse_unmatched(["*.bias"], ["head.weight", "head.bias"])
    """
    names = set(names)
    for pattern in patterns:
        if pattern not in names and not any(fnmatchcase(name, pattern) for name in names):
            known = sorted(names)
            raise SettingsError(f"no tensor matches lossless {pattern!r}{nearest(pattern, known)}")


def entropy(counts: np.ndarray) -> float:
    r"""Shannon's :math:`-\sum_i p_i \log_2 p_i` of a histogram, in bits.

    >>> entropy(np.array([1, 1, 2, 0]))
    1.5
    """
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def sampled_entropy(
    matrix: Tensor,
    low: Numbers,
    high: Numbers,
    bits: int,
    sample: float = 1.0,
    draw: torch.Generator | None = None,
) -> float:
    """The entropy of ``matrix [rows, columns]`` in ``2 ** bits`` bins, from some of its elements.

    >>> matrix = torch.arange(16.0)[None]
    >>> sampled_entropy(matrix, np.float32([0]), np.float32([15]), bits=4)
    4.0
    """
    rows, columns = matrix.shape
    total = rows * columns
    wanted = min(max(math.ceil(sample * total), LEAST_SAMPLE), MOST_SAMPLE)
    if wanted >= total:
        chosen = torch.arange(total)
    else:
        chosen = torch.randint(total, (wanted,), generator=draw)
    row = (chosen // columns).numpy()
    some = matrix.reshape(-1)[chosen]
    begin, end = low[row].astype(np.float64), high[row].astype(np.float64)
    places = (some.double().numpy() - begin) / np.where(end > begin, end - begin, 1.0)
    return entropy(np.bincount(np.minimum(places * 2.0**bits, 2**bits - 1).astype(np.int64)))


def _size(name: str, gradient: Tensor | float) -> float:
    if isinstance(gradient, Tensor):
        value = float(gradient.detach().double().square().mean().sqrt()) if gradient.numel() else 0
    else:
        value = float(gradient)
    if not 0 <= value < math.inf:
        raise TaskError(f"the gradient of {name!r} has size {value}; it must be a finite number")
    return value


def _fixed(name: str, value: Any, least: int, most: int) -> int | dict[str, int] | None:
    """One number for all, or one a name."""
    if isinstance(value, Mapping):
        return {key: _whole(f"{name}[{key!r}]", one, least, most) for key, one in value.items()}
    return None if value is None else _whole(name, value, least, most)


def _whole(name: str, value: Any, least: int, most: int) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        whole = least - 1
    if isinstance(value, bool) or not least <= whole <= most:
        raise SettingsError(f"{name} must be a whole number, {least} to {most}; got {value!r}")
    return whole


def _share(name: str, value: Any) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = math.nan
    if not 0 < share <= 1:
        raise SettingsError(f"{name} must be above 0 and at most 1, got {value!r}")
    return share
