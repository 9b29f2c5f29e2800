"""Frozen dataclasses to JSON and back, strictly.

``to_plain`` turns dataclasses, tuples and mappings into what :mod:`json` can write.  ``from_plain``
reads them back *by the type annotations*: an unknown field, a missing one or a value of the wrong
type is a :class:`FormatError` that names the place.  What is read from a file is therefore checked
before anything is built from it.

A class with its own notation defines ``to_plain(self)`` and ``from_plain(cls, value, where)``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import types
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import (
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from dovetail.core.errors import DovetailError, FormatError, shown
from dovetail.core.files import read_plain
from dovetail.core.words import one_line, shortened

T = TypeVar("T")

MOST_BYTES = 4 << 20
"""A JSON file of ours is small; a larger one is refused before it is parsed."""

DEEPEST = 128
"""The deepest nesting of a JSON file of ours; a deeper one would exhaust whoever walks it."""

_INDENTED = 20
"""What is nested deeper is written without indentation, which would outgrow what it indents."""

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_plain(value: Any) -> Any:
    """Turn dataclasses, tuples and mappings into lists, dicts and scalars.

    JSON has no NaN; a float that is not finite becomes ``"nan"``, ``"inf"`` or ``"-inf"``.

    >>> to_plain({"shape": (1, None), "loss": float("nan")})
    {'shape': [1, None], 'loss': 'nan'}
    """
    own = getattr(value, "to_plain", None)
    if own is not None and not isinstance(value, type):
        return own()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON: {value!r}")


def from_plain(kind: type[T], value: Any, where: str = "value") -> T:
    """Read what :func:`to_plain` wrote, checking every type on the way.

    >>> from_plain(tuple[int, ...], [1, 2])
    (1, 2)
    >>> from_plain(tuple[int, ...], [1, "2"], "shape")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FormatError: shape[1]: expected int, found str '2'
    """
    return cast(T, _read(kind, value, where))


def dumps(value: Any) -> str:
    """Plain, indented, sorted JSON: the same value gives the same bytes.

    >>> dumps({"b": 1, "a": (2,)})
    '{\\n  "a": [\\n    2\\n  ],\\n  "b": 1\\n}\\n'
    """
    plain = to_plain(value)
    indent = None if _deeper_than(_INDENTED, plain) else 2
    return json.dumps(plain, indent=indent, sort_keys=True, allow_nan=False) + "\n"


def read_json(path: Path, *, most_bytes: int = MOST_BYTES, links: bool = True) -> Any:
    """Parse a JSON file, refusing what is missing, no plain file, too large, too deep or not JSON.

    With ``links=False`` a symbolic link is refused too.
    """
    if path.is_dir():
        raise FormatError(f"{path}: not readable as JSON (it is a folder)")
    return parse_json(read_plain(path, most_bytes=most_bytes, links=links), str(path))


def parse_json(data: bytes, where: str) -> Any:
    """Parse JSON that someone else wrote, more strictly than Python does.

    UTF-8 without a byte-order mark; no NaN, and no number that is beyond all others (``1e999``);
    no key twice in one object, which two readers could understand differently; no text that cannot
    be written again; limited in depth.

    >>> parse_json(b'{"a": 1, "a": 2}', "x.json")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FormatError: x.json: not readable as JSON ('a' is there twice)
    """
    try:
        value = json.loads(
            data.decode(),
            parse_float=_finite,
            parse_constant=_no_constant,
            object_pairs_hook=_no_key_twice,
        )
        if rb"\ud" in data.lower():  # half a surrogate pair is a text that no file can hold
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: not readable as JSON ({error})") from None
    if _deeper_than(DEEPEST, value):
        raise FormatError(f"{where}: not readable as JSON (nested deeper than {DEEPEST})")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):  # Python reads 1e999 as infinity, and could not write it again
        raise ValueError(f"{shown(digits)} is too large a number")
    return number


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_key = dict(pairs)
    if len(by_key) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"{shown(twice)} is there twice")
    return by_key


def _deeper_than(most: int, value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return bool(level)


def _read(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    if kind in _SCALARS:  # most of what a file holds: numbers and names
        return _read_scalar(kind, value, where)
    own = getattr(kind, "from_plain", None)
    if own is not None:
        return own(value, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _read_union(kind, value, where)
    if origin is Literal:
        if value not in get_args(kind):
            choices = ", ".join(str(choice) for choice in get_args(kind))
            raise FormatError(f"{where}: expected one of {choices}; found {shown(value)}")
        return value
    if origin is tuple:
        return _read_tuple(get_args(kind), value, where)
    if origin is list:
        return list(_read_tuple((get_args(kind)[0], ...), value, where))
    if origin is dict:
        return _read_dict(get_args(kind)[1], value, where)
    if dataclasses.is_dataclass(kind):
        return read_fields(kind, value, where)
    return _read_scalar(kind, value, where)


def _read_union(kind: Any, value: Any, where: str) -> Any:
    choices = get_args(kind)
    if value is None and type(None) in choices:
        return None
    choices = tuple(choice for choice in choices if choice is not type(None))
    if len(choices) == 1:
        return _read(choices[0], value, where)  # its own error says where inside
    for choice in choices:
        if choice in _SCALARS and not _is_scalar(choice, value):
            continue  # without the words of a refusal, which cost more than a table's cell
        try:
            return _read(choice, value, where)
        except FormatError:
            continue
    raise _wrong(kind, value, where)


def _read_tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong(tuple, value, where)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise FormatError(f"{where}: expected {len(kinds)} items, found {len(value)}")
    pairs = zip(kinds, value, strict=True)
    return tuple(_read(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(pairs))


def _read_dict(kind: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(dict, value, where)
    # A key is a file's own word, and is repeated in the place of everything below it.
    return {
        key: _read(kind, item, f"{where}.{shortened(one_line(key), 80)}")
        for key, item in value.items()
    }


def read_fields(kind: Any, value: Any, where: str) -> Any:
    """Read a dataclass field by field, whatever notation of its own it may have.

    >>> read_fields(Path, [], "place")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FormatError: place: expected Path, found list []
    """
    if not isinstance(value, dict):
        raise _wrong(kind, value, where)
    hints = _hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init}
    if unknown := sorted(set(value) - set(fields)):
        raise FormatError(f"{where}: unknown field {shown(unknown[0])}")
    fields_there = {
        name: _read(hints[name], value[name], f"{where}.{name}") for name in fields if name in value
    }
    for name, field in fields.items():
        optional = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
        if name not in value and not optional:
            raise FormatError(f"{where}: field {name!r} is missing")
    try:
        return kind(**fields_there)
    except DovetailError:
        raise
    except (TypeError, ValueError) as error:  # what the class itself refuses
        raise FormatError(f"{where}: {error}") from None


def _read_scalar(kind: Any, value: Any, where: str) -> Any:
    if not _is_scalar(kind, value):
        raise _wrong(kind, value, where)
    if kind is float:
        return _NOT_FINITE[value] if isinstance(value, str) else float(value)
    return value


def _is_scalar(kind: Any, value: Any) -> bool:
    if kind is float:
        if isinstance(value, int) and not isinstance(value, bool):
            return abs(value) <= sys.float_info.max
        return isinstance(value, float) or (isinstance(value, str) and value in _NOT_FINITE)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(kind, type) and isinstance(value, kind)


_SCALARS = frozenset({str, bool, int, float, type(None)})


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _wrong(kind: Any, value: Any, where: str) -> FormatError:
    name = getattr(kind, "__name__", None) if get_origin(kind) is None else None
    got = f"{type(value).__name__} {shown(value, 60)}"
    return FormatError(f"{where}: expected {name or kind}, found {got}")
