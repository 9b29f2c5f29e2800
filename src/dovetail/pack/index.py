"""A container's index as JSON: columns rather than rows, which shrink better.

``names``, ``shapes``, ``rows`` and ``lengths`` have an item a tensor, and so have ``dtype`` and
``plan``, which count into ``dtypes`` and ``plans`` (-1: no plan).  A plan is its bits, a letter for
the width of each token, and its peels, each whether by gaps and the tokens.
"""

from __future__ import annotations

import json
import math
from typing import Any

from dovetail.core.errors import FormatError, shown
from dovetail.core.plain import parse_json
from dovetail.pack.coding import BLOCK, MOST_PEELS, Peel, Plan
from dovetail.pack.cuts import MOST_TOKENS
from dovetail.pack.dtypes import DTYPES, FLOATING, name_of
from dovetail.pack.entries import FEWEST_COLUMNS, Entry, Group

__all__ = ["LONGEST_NAME", "from_json", "to_json"]

LONGEST_NAME, _MOST_AXES = 1024, 64

_WIDTHS = "0123456789abcdefg"
_COLUMNS = ("names", "dtype", "shapes", "plan", "rows", "lengths")
_FIELDS = {*_COLUMNS, "dtypes", "plans", "groups", "settings"}

Said = tuple[tuple[Entry, ...], tuple[Group, ...], dict[str, Any]]


def to_json(entries: list[Entry], groups: list[Group], settings: dict[str, Any]) -> bytes:
    """The index of these tensors."""
    dtypes = {name: at for at, name in enumerate(dict.fromkeys(name_of(e.dtype) for e in entries))}
    plans = {plan: at for at, plan in enumerate(dict.fromkeys(e.plan for e in entries if e.plan))}
    value = {
        "names": [entry.name for entry in entries],
        "dtypes": list(dtypes),
        "dtype": [dtypes[name_of(entry.dtype)] for entry in entries],
        "shapes": [list(entry.shape) for entry in entries],
        "plans": [_plan_to_plain(plan) for plan in plans],
        "plan": [-1 if entry.plan is None else plans[entry.plan] for entry in entries],
        "rows": [entry.rows for entry in entries],
        "lengths": [list(entry.lengths) for entry in entries],
        "groups": [[group.size, group.crc] for group in groups],
        "settings": settings,
    }
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def from_json(data: bytes, block: int = BLOCK) -> Said:
    """The tensors, groups and settings of an index, each checked by itself and against the others.

    Tensors were cut into blocks of ``block`` elements.

    >>> entries, groups, settings = from_json(to_json([], [], {"rule": "fixed"}))
    >>> entries, groups, settings
    ((), (), {'rule': 'fixed'})
    """
    value = parse_json(data, "index")
    if not isinstance(value, dict) or set(value) != _FIELDS:
        raise FormatError("index: not the fields of an index")
    lists = all(isinstance(value[name], list) for name in _FIELDS - {"settings"})
    if not lists or not isinstance(value["settings"], dict):
        raise FormatError("index: not the fields of an index")
    names = value["names"]
    if any(len(value[name]) != len(names) for name in _COLUMNS):
        raise FormatError("index: its columns differ in length")
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise FormatError("index: a name that is none, or is there twice")
    for name in ("dtype", "plan", "rows"):
        _whole_numbers(value[name], name)
    if max(len(value["plans"]), len(value["dtypes"])) > len(names):
        raise FormatError("index: more plans than tensors")
    plans = [_plan_from_plain(plan, block) for plan in value["plans"]]
    entries = tuple(_entry(value, plans, place, block) for place in range(len(names)))
    groups = []
    for group in value["groups"]:
        size, crc = _whole_numbers(group, "group", 2)
        if size < 1:
            raise FormatError("index: an empty group")
        groups.append(Group(size, crc))
    return entries, tuple(groups), value["settings"]


def _entry(value: dict[str, Any], plans: list[Plan], place: int, block: int) -> Entry:
    name = value["names"][place]
    where = f"index: tensor {shown(name)}"
    if len(name) > LONGEST_NAME:
        raise FormatError(f"{where}: a name of {len(name)} letters")
    kind, plan, rows = value["dtype"][place], value["plan"][place], value["rows"][place]
    if not 0 <= kind < len(value["dtypes"]) or not _known(value["dtypes"][kind]):
        raise FormatError(f"{where}: no such dtype")
    dtype = DTYPES[value["dtypes"][kind]]
    shape = _whole_numbers(value["shapes"][place], f"{where}: shape")
    lengths = _whole_numbers(value["lengths"][place], f"{where}: lengths")
    if len(shape) > _MOST_AXES or any(axis < 0 for axis in shape):
        raise FormatError(f"{where}: not a shape")
    if math.prod(max(1, axis) for axis in shape) * dtype.itemsize >= 1 << 62:
        raise FormatError(f"{where}: a shape beyond all memory")
    if not -1 <= plan < len(plans) or (plan >= 0 and not rows):
        raise FormatError(f"{where}: no such plan")
    elements = math.prod(shape)
    ranged = rows == 1 or (rows > 1 and elements >= rows * FEWEST_COLUMNS and not elements % rows)
    if rows and not (dtype in FLOATING and elements and ranged):
        raise FormatError(f"{where}: {shown(rows)} ranges do not fit it")
    entry = Entry(name, dtype, shape, rows, plans[plan] if plan >= 0 else None, lengths, block)
    if any(length < 1 for length in lengths):
        raise FormatError(f"{where}: an empty block")
    if len(lengths) != entry.block_count + (rows > 0):
        raise FormatError(f"{where}: {len(lengths)} blocks do not fit it")
    return entry


def _known(dtype: Any) -> bool:
    return isinstance(dtype, str) and dtype in DTYPES


def _plan_to_plain(plan: Plan) -> list[Any]:
    widths = "".join(_WIDTHS[width] for width in plan.widths)
    return [plan.bits, widths, [[peel.gaps, list(peel.tokens)] for peel in plan.peels]]


def _plan_from_plain(value: Any, block: int) -> Plan:
    wrong = FormatError("index: a plan that is none")
    if not isinstance(value, list) or len(value) != 3:
        raise wrong
    bits, widths, peels = value
    if not isinstance(widths, str) or len(widths) > MOST_TOKENS or not set(widths) <= set(_WIDTHS):
        raise wrong
    if not isinstance(peels, list) or len(peels) > MOST_PEELS:
        raise wrong
    found = []
    for peel in peels:
        if not isinstance(peel, list) or len(peel) != 2 or not isinstance(peel[0], bool):
            raise wrong
        found.append(Peel(_whole_numbers(peel[1], "peel"), peel[0]))
    (bits,) = _whole_numbers([bits], "plan")
    return Plan(bits, tuple(map(_WIDTHS.index, widths)), tuple(found), block)


def _whole_numbers(value: Any, where: str, count: int | None = None) -> tuple[int, ...]:
    """A list of integers; by its exact type, because True is an integer too."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise FormatError(f"{where}: not whole numbers")
    if count is not None and len(value) != count:
        raise FormatError(f"{where}: not {count} numbers")
    return tuple(value)
