"""What a part takes and gives: the facts by which parts are matched.

A contract says *why not* instead of no.  :meth:`Contract.obstacles` lists what keeps the tensors
from flowing at all; :meth:`Contract.mismatches` adds what keeps them from meaning anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from dovetail.core.errors import ContractError, shown

Shape = tuple[int | None, ...]

_BRIGHT = 64.0
"""Pixels of a scale from 0 to 255 reach this, those of one from 0 to 1 never do."""

_DTYPES = frozenset(
    (
        *("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "bool"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
    )
)
"""The dtypes that most ports have; of others torch is asked, which takes long to load."""


@dataclass(frozen=True)
class Port:
    """One tensor that crosses a boundary.

    ``shape`` omits the batch axis; ``None`` marks an axis of any length, and a shape of ``None``
    is not known at all.  ``activation`` is the last nonlinearity the tensor went through, hence
    the range of its kernel.  ``space`` names the representation: two features can share a shape
    and still mean different things, and only an equal ``space`` says they were made to agree.
    ``None`` means nobody has said, and matches nothing, not even another ``None``.

    >>> a, b = Port((16, 4, 4), space="conv2/1f"), Port((16, 4, 4), space="conv2/9c")
    >>> a.mismatches(a), a.mismatches(b)
    ([], ["space 'conv2/1f' -> 'conv2/9c'"])
    """

    shape: Shape | None = None
    dtype: str = "float32"
    activation: str = "identity"
    space: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES and not _is_torch_dtype(self.dtype):
            raise ContractError(f"unknown dtype {shown(self.dtype)}")
        if any(axis is not None and axis < 0 for axis in self.shape or ()):
            raise ContractError(f"no tensor has the shape {shown(self.shape)}")

    def obstacles(self, other: Port) -> list[str]:
        """Say why this tensor cannot enter ``other`` at all.

        >>> Port((16, 4, 4)).obstacles(Port((32, 4, 4)))
        ['shape 16×4×4 -> 32×4×4']
        """
        reasons = []
        if self.shape is not None and other.shape is not None:
            agree = len(self.shape) == len(other.shape) and all(
                a is None or b is None or a == b
                for a, b in zip(self.shape, other.shape, strict=True)
            )
            if not agree:
                reasons.append(f"shape {shown_shape(self.shape)} -> {shown_shape(other.shape)}")
        if self.dtype != other.dtype:
            reasons.append(f"dtype {self.dtype} -> {other.dtype}")
        return reasons

    def mismatches(self, other: Port) -> list[str]:
        """Say why this tensor should not feed ``other``; an empty list means it fits."""
        reasons = self.obstacles(other)
        if self.space is not None and self.space == other.space:
            return reasons  # trained to agree, whatever nonlinearity each came through
        if self.activation != other.activation:
            reasons.append(f"activation {self.activation!r} -> {other.activation!r}")
        reasons.append(f"space {_named(self.space)} -> {_named(other.space)}")
        return reasons


@dataclass(frozen=True)
class Preprocess:
    r"""What happens to a task's raw inputs before a part sees them.

    Pixels come in :math:`[0, 1]`.  They are resized to ``size``, brought to ``channels`` (grey is
    repeated, colour averaged), and then :math:`x \mapsto (x \cdot \mathrm{scale} - \mu) / \sigma`
    with one mean and one standard deviation a channel (or one for all).

    >>> Preprocess(size=(96, 96), channels=3, scale=255.0, mean=(127.0,), std=(128.0,)).scale
    255.0
    """

    size: tuple[int, int] | None = None
    channels: int | None = None
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def misfit(self, low: float, high: float, average: float) -> str | None:
        r"""Why images whose pixels are such are on another scale than this is for.

        Floats from 0 to 255 where :math:`[0, 1]` is meant lie, on the average, beyond
        :math:`\mu + 8\sigma`.  To divide them would be a guess, and to go on would give answers
        that look like any others.  What was made for such numbers takes them, and so does what
        leaves all numbers as they are; a few bright pixels among others are no reason.

        >>> imagenet = Preprocess(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        >>> imagenet.misfit(0.0, 255.0, 110.0)
        'floating-point pixels up to 255; divide them by 255, or give uint8'
        >>> imagenet.misfit(0.0, 1.0, 0.4), imagenet.misfit(0.0, 99.0, 0.4)
        (None, None)
        >>> Preprocess(mean=(120.0,), std=(60.0,)).misfit(0.0, 255.0, 110.0) is None
        True
        """
        if self.scale == 1 and set(self.mean) == {0.0} and set(self.std) == {1.0}:
            return None
        pairs = product(self.mean, self.std)
        reach = max((abs(mean) + 8 * abs(std)) / abs(self.scale or 1.0) for mean, std in pairs)
        if low < 0 or high < _BRIGHT or average <= reach:
            return None
        return f"floating-point pixels up to {high:g}; divide them by 255, or give uint8"


@dataclass(frozen=True)
class Contract:
    """What a part takes and gives; a head also has its classes by name.

    ``kind`` says what the outputs of a whole network or a head mean: one class, several labels, or
    numbers.  ``inputs`` names the numbers of a vector that it takes, where somebody has said.

    >>> front = Contract(takes=(Port((1, 8, 8)),), gives=(Port((64,), space="fc/1f"),))
    >>> head = Contract(takes=(Port((64,), space="fc/9c"),), classes=("cat", "dog"))
    >>> front.mismatches(head)
    ["space 'fc/1f' -> 'fc/9c'"]
    """

    takes: tuple[Port, ...] = (Port(),)
    gives: tuple[Port, ...] = (Port(),)
    preprocess: Preprocess | None = None
    classes: tuple[str, ...] | None = None
    kind: Literal["classes", "multilabel", "regression"] = "classes"
    inputs: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        names = self.classes or ()
        if len(set(names)) < len(names):
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise ContractError(f"the class {shown(twice)} is named twice")

    def in_space(self, space: str | None, *, takes: bool = False) -> Contract:
        """The contract with all that is given, or taken, in one space, or in none.

        >>> Contract().in_space("fc/1f").gives[0].space
        'fc/1f'
        """
        ports = self.takes if takes else self.gives
        moved = tuple(replace(port, space=space) for port in ports)
        return replace(self, takes=moved) if takes else replace(self, gives=moved)

    def obstacles(self, other: Contract) -> list[str]:
        """Say why what this part gives cannot enter ``other`` at all."""
        return self._compare(other, Port.obstacles)

    def mismatches(self, other: Contract) -> list[str]:
        """Say why this part should not be followed by ``other``; an empty list means it fits."""
        return self._compare(other, Port.mismatches)

    def _compare(self, other: Contract, reasons: Callable[[Port, Port], list[str]]) -> list[str]:
        if len(self.gives) != len(other.takes):
            return [f"gives {len(self.gives)} tensors, but {len(other.takes)} are taken"]
        several = len(self.gives) > 1
        return [
            f"tensor {i}: {reason}" if several else reason
            for i, (mine, theirs) in enumerate(zip(self.gives, other.takes, strict=True))
            for reason in reasons(mine, theirs)
        ]

    def __str__(self) -> str:
        takes = " and ".join(shown_shape(port.shape) for port in self.takes)
        gives = " and ".join(_shown_port(port) for port in self.gives)
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"{takes} -> {gives}{classes}"


def shown_shape(shape: Shape | None) -> str:
    """A shape for readers.

    >>> shown_shape((3, None, 32)), shown_shape(()), shown_shape(None)
    ('3×?×32', 'a number', '?')
    """
    if shape is None:
        return "?"
    return "×".join("?" if axis is None else str(axis) for axis in shape) or "a number"


def _shown_port(port: Port) -> str:
    after = "" if port.activation == "identity" else f" after {port.activation}"
    return f"{shown_shape(port.shape)}{after}" + (f" in {port.space}" if port.space else "")


def _is_torch_dtype(name: str) -> bool:
    import torch

    return isinstance(getattr(torch, name, None), torch.dtype)


def _named(space: str | None) -> str:
    return "unknown" if space is None else repr(space)
