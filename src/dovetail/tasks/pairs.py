"""Pairs of examples that are of one class, or not: the least that supervision can say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dovetail.core.errors import TaskError, nearest
from dovetail.core.seeds import generator
from dovetail.tasks.table_files import read_rows


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of rows, and whether both are of one class.

    >>> pairs = Pairs(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([True, False]))
    >>> pairs
    Pairs(2 pairs, 1 of one class)
    """

    first: Tensor
    second: Tensor
    same: Tensor

    def __post_init__(self) -> None:
        ends = (self.first, self.second)
        if any(not isinstance(end, Tensor) for end in (*ends, self.same)):
            raise TaskError("pairs take three tensors: first, second, same")
        if any(end.ndim != 1 or end.shape != self.same.shape for end in ends):
            shapes = ", ".join(str(list(end.shape)) for end in (*ends, self.same))
            raise TaskError(f"pairs take three tensors of one length, got shapes {shapes}")
        if any(end.dtype != torch.int64 for end in ends) or self.same.dtype != torch.bool:
            raise TaskError("pairs take int64 rows (first, second) and booleans (same)")
        itself = (self.first == self.second).nonzero()
        if len(itself):
            raise TaskError(f"pair {int(itself[0])} joins a sample with itself")

    def __len__(self) -> int:
        return len(self.same)

    def __repr__(self) -> str:
        return f"Pairs({len(self)} pairs, {int(self.same.sum())} of one class)"

    def take(self, which: Tensor) -> Pairs:
        """The pairs that an index or a mask selects.

        >>> p = Pairs(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([True, False]))
        >>> len(p.take(p.same))
        1
        """
        return Pairs(self.first[which], self.second[which], self.same[which])

    def among(self, rows: Tensor) -> Pairs:
        """The pairs with both ends among the rows, in the same numbering.

        >>> p = Pairs(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([True, False]))
        >>> p.among(torch.tensor([1, 3])).first
        tensor([1])
        """
        return self.take(torch.isin(self.first, rows) & torch.isin(self.second, rows))

    def within(self, rows: Tensor) -> Pairs:
        """The pairs among sorted rows, renumbered to the rows' positions.

        >>> p = Pairs(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([True, False]))
        >>> p.within(torch.tensor([1, 3])).second
        tensor([1])
        """
        pairs = self.among(rows)
        first, second = (torch.searchsorted(rows, end) for end in (pairs.first, pairs.second))
        return Pairs(first, second, pairs.same)


def draw_pairs(labels: Tensor, count: int, seed: int) -> Pairs:
    """Random pairs of labelled rows: half of one class, half of two, as far as there are such.

    Each pair begins at a row drawn evenly; the other end is drawn evenly among the rows that make
    it a pair of its sort.  Pairs may repeat.

    >>> draw_pairs(torch.tensor([0, 0, 1, 1]), 6, seed=0)
    Pairs(6 pairs, 3 of one class)
    """
    if count < 1:
        raise TaskError(f"the count of pairs must be at least 1, got {count}")
    order = torch.argsort(labels, stable=True)
    _, code, sizes = torch.unique(labels[order], return_inverse=True, return_counts=True)
    starts = sizes.cumsum(0) - sizes
    has_same = (sizes[code] > 1).nonzero()[:, 0]
    has_other = torch.arange(len(order) if len(sizes) > 1 else 0)
    if len(has_same) == 0 and len(has_other) == 0:
        raise TaskError("one sample makes no pair")
    alike = count // 2 if len(has_other) else count
    alike = alike if len(has_same) else 0
    draw = generator(seed, "pairs")

    i = has_same[_below(torch.full((alike,), len(has_same)), draw)] if alike else order[:0]
    own = i - starts[code[i]]  # the place of i in its class, which the other end must skip
    j = _below(sizes[code[i]] - 1, draw)
    j = j + (j >= own) + starts[code[i]]

    k = has_other[_below(torch.full((count - alike,), len(has_other)), draw)]
    other = _below(len(order) - sizes[code[k]], draw)
    other = other + sizes[code[k]] * (other >= starts[code[k]])  # skip k's whole class

    same = torch.arange(count) < alike
    return Pairs(order[torch.cat([i, k])], order[torch.cat([j, other])], same)


def refuse_pairs(pairs: Pairs, count: int, train: Tensor) -> None:
    """Refuse pairs of samples that are not there, and pairs that leave nothing to train on.

    >>> pairs = Pairs(torch.tensor([0]), torch.tensor([9]), torch.tensor([True]))
    >>> refuse_pairs(pairs, 5, torch.arange(5))
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: a pair names sample 9, but there are 5
    """
    ends = torch.cat([pairs.first, pairs.second])
    outside = ends[(ends < 0) | (ends >= count)]
    if len(outside):
        raise TaskError(f"a pair names sample {int(outside[0])}, but there are {count}")
    if len(pairs.among(train)) == 0:
        raise TaskError("no pair has both ends in the train split")


def _below(limits: Tensor, draw: torch.Generator) -> Tensor:
    """A random integer below each limit."""
    # float64, so that the largest product still rounds below any limit that fits in memory
    return (torch.rand(len(limits), generator=draw, dtype=torch.float64) * limits).long()


_SAME, _DIFFERENT = ("same", "1", "true", "+"), ("different", "0", "false", "-")


def read_pairs(path: str | Path, ids: int | Sequence[str]) -> Pairs:
    """Pairs from a text file of three columns: first id, second id, same or different.

    The third column says ``same`` or ``different``, ``1`` or ``0``, ``true`` or ``false``, ``+`` or
    ``-``.  A header is optional.  Columns are parted by commas, semicolons or tabs.  A pair that is
    repeated, either way round, counts once.

    Args:
        path: The file, UTF-8.
        ids: How many samples there are, if the ids are row numbers counted from 0; or their names.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "pairs.csv"
    >>> _ = file.write_text("first,second,same\\na.png,b.png,same\\na.png,c.png,different\\n")
    >>> read_pairs(file, ["a.png", "b.png", "c.png"])
    Pairs(2 pairs, 1 of one class)
    """
    path = Path(path)
    place = _places(ids)
    labels: dict[tuple[int, int], tuple[bool, int]] = {}
    for number, (line, cells) in enumerate(read_rows(path)):
        if len(cells) != 3:
            raise TaskError(
                f"{path}, line {line}: {len(cells)} cells; expected two ids and a label"
            )
        a, b, word = (cell.strip() for cell in cells)
        if number == 0 and _is_header(a, b, word, place):
            continue
        label = word.lower() in _SAME
        if not label and word.lower() not in _DIFFERENT:
            raise TaskError(f"{path}, line {line}: {word!r} is neither same nor different")
        for name in (a, b):
            if name not in place:
                rows = f"; row numbers go from 0 to {ids - 1}" if isinstance(ids, int) else ""
                near = rows or nearest(name, place)
                raise TaskError(f"{path}, line {line}: unknown id {name!r}{near}")
        if place[a] == place[b]:
            raise TaskError(f"{path}, line {line}: a pair of {a!r} with itself")
        key = (min(place[a], place[b]), max(place[a], place[b]))
        before = labels.setdefault(key, (label, line))
        if before[0] != label:
            raise TaskError(
                f"{path}, line {line}: {a!r} and {b!r} are labelled the other way in line "
                f"{before[1]}"
            )
    if not labels:
        raise TaskError(f"{path}: holds no pairs")
    ends = torch.tensor(list(labels), dtype=torch.int64)
    same = torch.tensor([label for label, _ in labels.values()])
    return Pairs(ends[:, 0].contiguous(), ends[:, 1].contiguous(), same)


def _places(ids: int | Sequence[str]) -> dict[str, int]:
    names = [str(row) for row in range(ids)] if isinstance(ids, int) else list(ids)
    place = {name: row for row, name in enumerate(names)}
    if len(place) < len(names):
        twice = next(name for row, name in enumerate(names) if place[name] != row)
        raise TaskError(f"the id {twice!r} names two samples")
    return place


def _is_header(a: str, b: str, word: str, place: dict[str, int]) -> bool:
    """No id is known, and the third cell is no label, or the one that also is a good heading."""
    return not {a, b} & place.keys() and word.lower() not in (*_SAME[1:], *_DIFFERENT)
