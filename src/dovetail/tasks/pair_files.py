"""Pair labels from a file: two ids a line, and whether they are of one class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from dovetail.core.errors import TaskError, nearest
from dovetail.tasks.pairs import Pairs
from dovetail.tasks.table_files import read_rows

__all__ = ["read_pairs"]

_SAME = {"same": True, "1": True, "true": True, "+": True}
_DIFFERENT = {"different": False, "0": False, "false": False, "-": False}
_WORDS = _SAME | _DIFFERENT


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
    told: dict[tuple[int, int], tuple[bool, int]] = {}
    for number, (line, cells) in enumerate(read_rows(path)):
        if len(cells) != 3:
            raise TaskError(
                f"{path}, line {line}: {len(cells)} cells; expected two ids and a label"
            )
        a, b, word = (cell.strip() for cell in cells)
        if number == 0 and _is_header(a, b, word, place):
            continue
        label = _WORDS.get(word.lower())
        if label is None:
            raise TaskError(f"{path}, line {line}: {word!r} is neither same nor different")
        for name in (a, b):
            if name not in place:
                raise TaskError(f"{path}, line {line}: unknown id {name!r}{_near(name, ids)}")
        if place[a] == place[b]:
            raise TaskError(f"{path}, line {line}: a pair of {a!r} with itself")
        key = (min(place[a], place[b]), max(place[a], place[b]))
        before = told.setdefault(key, (label, line))
        if before[0] != label:
            raise TaskError(
                f"{path}, line {line}: {a!r} and {b!r} are labelled the other way in line "
                f"{before[1]}"
            )
    if not told:
        raise TaskError(f"{path}: holds no pairs")
    ends = torch.tensor(list(told), dtype=torch.int64)
    same = torch.tensor([label for label, _ in told.values()])
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
    strange = a not in place and b not in place
    return strange and (word.lower() not in _WORDS or word.lower() == "same")


def _near(name: str, ids: int | Sequence[str]) -> str:
    if isinstance(ids, int):
        return f"; row numbers go from 0 to {ids - 1}"
    return nearest(name, ids)
