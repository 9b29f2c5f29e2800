"""What a container says about its tensors, and the JSON that says it.

Columns rather than rows, which shrink better: ``names``, ``shapes``, ``rows``, ``levels`` and
``lengths`` have an item a tensor, and so have ``dtype`` and ``plan``, which count into ``dtypes``
and ``plans`` (-1: none).  Format 2 has no ``levels``.  A plan is a tensor's
:class:`~dovetail.pack.coding.Code`: its bits, a letter for the width of each token, and its peels,
each whether by gaps and the tokens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from dovetail.core.errors import FormatError, shown
from dovetail.core.plain import parse_json
from dovetail.pack.coding import BLOCK, MOST_PEELS, MOST_TOKENS, Code, Peel
from dovetail.pack.quantise import FEWEST_COLUMNS, Grid, Numbers, bits_of
from dovetail.pack.tensors import DTYPES, FLOATING, dtype_name


@dataclass(frozen=True)
class Entry:
    """One tensor in a container: exact when it has neither code nor rows.

    ``rows`` is the number of ranges (0: kept exactly); without a code all elements of a row are
    equal.  ``levels`` says how many each range has (0: the middles of bins, as in format 2).
    ``lengths`` are the bytes of its blocks; where there are ranges, they come first, as a block of
    their own.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    rows: int = 0
    code: Code | None = None
    lengths: tuple[int, ...] = ()
    levels: int = 0

    def grid(self, low: Numbers, high: Numbers) -> Grid:
        """Its levels, if it has a code, between these ends."""
        assert self.code is not None
        return Grid(self.levels or 1 << self.code.bits, low, high, middles=not self.levels)

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
        if self.elements == 0 or (self.rows and self.code is None):
            return 0
        rows, columns = max(1, self.rows), self.columns
        if columns >= BLOCK:
            return rows * -(-columns // BLOCK)
        return -(-rows // (BLOCK // columns))

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """The rows and columns of each block: whole rows, or a piece of one."""
        rows, columns = max(1, self.rows), self.columns
        if not self.block_count:
            return
        if columns >= BLOCK:
            for row in range(rows):
                for at in range(0, columns, BLOCK):
                    yield slice(row, row + 1), slice(at, min(at + BLOCK, columns))
            return
        many = BLOCK // columns
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


FORMAT, MIDDLES = 3, 2
"""Raise when an older dovetail would misread a new container; keep reading what was released, which
began with levels that are the middles of bins."""

LONGEST_NAME, _MOST_AXES = 1024, 64

_WIDTHS = "0123456789abcdefg"
_COLUMNS = ("names", "dtype", "shapes", "plan", "rows", "levels", "lengths")
_FIELDS = {*_COLUMNS, "dtypes", "plans", "groups", "settings"}

Said = tuple[tuple[Entry, ...], tuple[Group, ...], dict[str, Any]]


def to_json(entries: list[Entry], groups: list[Group], settings: dict[str, Any]) -> bytes:
    """The index of these tensors."""
    dtypes = {
        name: at for at, name in enumerate(dict.fromkeys(dtype_name(e.dtype) for e in entries))
    }
    codes = {code: at for at, code in enumerate(dict.fromkeys(e.code for e in entries if e.code))}
    value = {
        "names": [entry.name for entry in entries],
        "dtypes": list(dtypes),
        "dtype": [dtypes[dtype_name(entry.dtype)] for entry in entries],
        "shapes": [list(entry.shape) for entry in entries],
        "plans": [_code_to_plain(code) for code in codes],
        "plan": [-1 if entry.code is None else codes[entry.code] for entry in entries],
        "rows": [entry.rows for entry in entries],
        "levels": [entry.levels for entry in entries],
        "lengths": [list(entry.lengths) for entry in entries],
        "groups": [[group.size, group.crc] for group in groups],
        "settings": settings,
    }
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def from_json(data: bytes, number: int = FORMAT) -> Said:
    """The tensors, groups and settings of an index, each checked by itself and against the others.

    >>> entries, groups, settings = from_json(to_json([], [], {"rule": "fixed"}))
    >>> entries, groups, settings
    ((), (), {'rule': 'fixed'})
    """
    value = parse_json(data, "index")
    fields = _FIELDS - {"levels"} if number == MIDDLES else _FIELDS
    if not isinstance(value, dict) or set(value) != fields:
        raise FormatError("index: not the fields of an index")
    lists = all(isinstance(value[name], list) for name in fields - {"settings"})
    if not lists or not isinstance(value["settings"], dict):
        raise FormatError("index: not the fields of an index")
    names = value["names"]
    value.setdefault("levels", [0] * len(names))
    if any(len(value[name]) != len(names) for name in _COLUMNS):
        raise FormatError("index: its columns differ in length")
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise FormatError("index: a name that is none, or is there twice")
    for name in ("dtype", "plan", "rows", "levels"):
        _whole_numbers(value[name], name)
    if max(len(value["plans"]), len(value["dtypes"])) > len(names):
        raise FormatError("index: more plans than tensors")
    codes = [_code_from_plain(plain) for plain in value["plans"]]
    entries = tuple(_entry(value, codes, place) for place in range(len(names)))
    if number == FORMAT and any(bool(entry.levels) != bool(entry.code) for entry in entries):
        raise FormatError("index: levels without a plan, or a plan without")
    groups = []
    for group in value["groups"]:
        size, crc = _whole_numbers(group, "group", 2)
        if size < 1:
            raise FormatError("index: an empty group")
        groups.append(Group(size, crc))
    return entries, tuple(groups), value["settings"]


def _entry(value: dict[str, Any], codes: list[Code], place: int) -> Entry:
    name = value["names"][place]
    where = f"index: tensor {shown(name)}"
    if len(name) > LONGEST_NAME:
        raise FormatError(f"{where}: a name of {len(name)} letters")
    kind, plan, rows = value["dtype"][place], value["plan"][place], value["rows"][place]
    said = value["dtypes"][kind] if 0 <= kind < len(value["dtypes"]) else None
    if not isinstance(said, str) or said not in DTYPES:
        raise FormatError(f"{where}: no such dtype")
    dtype = DTYPES[said]
    shape = _whole_numbers(value["shapes"][place], f"{where}: shape")
    lengths = _whole_numbers(value["lengths"][place], f"{where}: lengths")
    if len(shape) > _MOST_AXES or any(axis < 0 for axis in shape):
        raise FormatError(f"{where}: not a shape")
    if math.prod(max(1, axis) for axis in shape) * dtype.itemsize >= 1 << 62:
        raise FormatError(f"{where}: a shape beyond all memory")
    if not -1 <= plan < len(codes) or (plan >= 0 and not rows):
        raise FormatError(f"{where}: no such plan")
    elements = math.prod(shape)
    ranged = rows == 1 or (rows > 1 and elements >= rows * FEWEST_COLUMNS and not elements % rows)
    if rows and not (dtype in FLOATING and elements and ranged):
        raise FormatError(f"{where}: {shown(rows)} ranges do not fit it")
    code, levels = codes[plan] if plan >= 0 else None, value["levels"][place]
    if levels and not (code and levels >= 2 and bits_of(levels) == code.bits):
        raise FormatError(f"{where}: {shown(levels)} levels do not fit it")
    entry = Entry(name, dtype, shape, rows, code, lengths, levels)
    if any(length < 1 for length in lengths):
        raise FormatError(f"{where}: an empty block")
    if len(lengths) != entry.block_count + (rows > 0):
        raise FormatError(f"{where}: {len(lengths)} blocks do not fit it")
    return entry


def _code_to_plain(code: Code) -> list[Any]:
    widths = "".join(_WIDTHS[width] for width in code.widths)
    return [code.bits, widths, [[peel.gaps, list(peel.tokens)] for peel in code.peels]]


def _code_from_plain(value: Any) -> Code:
    wrong = FormatError("index: a plan that is none")
    if not isinstance(value, list) or len(value) != 3:
        raise wrong
    bits, widths, peels = value
    if not isinstance(widths, str) or len(widths) > MOST_TOKENS or not set(widths) <= set(_WIDTHS):
        raise wrong
    if not isinstance(peels, list) or len(peels) > MOST_PEELS:
        raise wrong
    read = []
    for peel in peels:
        if not isinstance(peel, list) or len(peel) != 2 or not isinstance(peel[0], bool):
            raise wrong
        read.append(Peel(_whole_numbers(peel[1], "peel"), peel[0]))
    (bits,) = _whole_numbers([bits], "plan")
    return Code(bits, tuple(map(_WIDTHS.index, widths)), tuple(read))


def _whole_numbers(value: Any, where: str, count: int | None = None) -> tuple[int, ...]:
    """A list of integers; by its exact type, because True is an integer too."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise FormatError(f"{where}: not whole numbers")
    if count is not None and len(value) != count:
        raise FormatError(f"{where}: not {count} numbers")
    return tuple(value)
