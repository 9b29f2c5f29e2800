"""What a container says about its tensors: where each begins, how it is cut into blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from dovetail.pack.coding import BLOCK, Plan

__all__ = ["FEWEST_COLUMNS", "Entry", "Group", "Index"]

FEWEST_COLUMNS = 16
"""Rows shorter than this share one range: two numbers for so few would outweigh what they save."""


@dataclass(frozen=True)
class Entry:
    """One tensor in a container: exact when it has neither plan nor rows.

    ``rows`` is the number of ranges (0: kept exactly); without a plan all elements of a row are
    equal.  ``lengths`` are the bytes of its blocks; where there are ranges, they come first, as a
    block of their own.  ``block`` is the most elements in one.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    rows: int = 0
    plan: Plan | None = None
    lengths: tuple[int, ...] = ()
    block: int = BLOCK

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.elements * self.dtype.itemsize

    @property
    def columns(self) -> int:
        """Elements that share a range."""
        return self.elements // max(1, self.rows)

    @property
    def block_count(self) -> int:
        """How many blocks hold its elements (its ranges apart)."""
        if self.elements == 0 or (self.rows and self.plan is None):
            return 0
        rows, columns = max(1, self.rows), self.columns
        if columns >= self.block:
            return rows * -(-columns // self.block)
        return -(-rows // (self.block // columns))

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """The rows and columns of each block: whole rows, or a piece of one."""
        rows, columns = max(1, self.rows), self.columns
        if not self.block_count:
            return
        if columns >= self.block:
            for row in range(rows):
                for at in range(0, columns, self.block):
                    yield slice(row, row + 1), slice(at, min(at + self.block, columns))
            return
        many = self.block // columns
        for row in range(0, rows, many):
            yield slice(row, min(row + many, rows)), slice(0, columns)


@dataclass(frozen=True)
class Group:
    """Consecutive blocks, checked together."""

    size: int
    crc: int


@dataclass(frozen=True)
class Index:
    """All that a container says before its first block."""

    entries: tuple[Entry, ...]
    groups: tuple[Group, ...]
    size: int
    settings: dict[str, Any] = field(default_factory=dict)
