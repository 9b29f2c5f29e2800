"""Honest records, and the ways in which a file may lie about one."""

from __future__ import annotations

import copy
import json
import random
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import dovetail
from dovetail.core import records

HONEST = Path(__file__).parent / "records"
"""One file for every kind of record, as it was written."""

STEERING = "\x1b[2J\x9b31m\r\n\u202e"
JUNK = (
    None, True, 0, -1, 3, 10**30, 10**400, -1e308, 5e-324, 0.5, "", "nan", "-inf", "x", STEERING,
    "long " * 4000, "w" * 20_000, [], {}, [None], [[]], [0.5], ["a", "b"], [[1, 2], [3]],
    {"a": {"b": [1]}}, [0.1] * 3000, ["name"] * 3000,
)  # fmt: skip


def import_all_kinds() -> set[str]:
    """The kinds of record of the whole package."""
    for module in walk_packages(dovetail.__path__, "dovetail."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    return {kind for kind, cls in records._KINDS.items() if cls.__module__.startswith("dovetail.")}


def honest() -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(HONEST.glob("*.json"))]


def lie(record: dict, draw: random.Random) -> dict:
    """The record with up to three lies in it; every third one is of a kind that nobody knows."""
    told = copy.deepcopy(record)
    if draw.random() < 1 / 3:
        told["record"] = "unknown"
        begin = told["view"]
    else:
        begin = told["data"]
    for _ in range(draw.randint(1, 3)):
        places = list(_places(begin))
        if draw.random() < 0.03 or not places:
            places = [(told, key) for key in told if key != "record"]
        draw.choice(_LIES)(*draw.choice(places), draw)
    return told


def _places(value):
    """Every container in a value, with each of its keys."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def _drop(holder, key, draw):
    del holder[key]


def _replace(holder, key, draw):
    holder[key] = copy.deepcopy(draw.choice(JUNK))


def _repeat(holder, key, draw):
    """More of the same: in a list each with a name of its own."""
    value, times = holder[key], draw.choice((2, 20, 200))
    if isinstance(value, list):
        holder[key] = [_renamed(item, i) for i in range(times) for item in value]
    elif isinstance(value, dict):
        holder[key] = {f"{k}{i}": v for i in range(times) for k, v in value.items()}
    elif isinstance(value, str | int | float):
        holder[key] = value * times


def _shorten(holder, key, draw):
    value = holder[key]
    if isinstance(value, list | str):
        holder[key] = value[: len(value) // 2]


def _wrap(holder, key, draw):
    for _ in range(draw.choice((1, 40))):
        holder[key] = [holder[key]] if draw.random() < 0.5 else {"a": holder[key]}


def _rename(holder, key, draw):
    if isinstance(holder, dict):
        holder[draw.choice(("other", "w" * 20_000, STEERING))] = holder.pop(key)


def _renamed(value, i):
    if isinstance(value, str):
        return f"{value} {i}"
    if isinstance(value, list):
        return [_renamed(item, i) for item in value]
    if isinstance(value, dict):
        return {key: _renamed(item, i) for key, item in value.items()}
    return value


_LIES = (_drop, _replace, _replace, _replace, _repeat, _repeat, _shorten, _wrap, _rename)
