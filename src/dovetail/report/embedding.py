"""A record inside the page, for the reader to save.

A record's file holds its numbers twice, as data and as what is drawn of them.  In the page a long
list is written once, and the script puts it back wherever it belongs; it does so in the text, since
parsing and writing again would change numbers that JavaScript cannot hold.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["MARK", "embed"]

MARK = "dovetail:list"
_LONG = 64  # items; a shorter list is not worth a reference


def embed(plain: Mapping[str, Any]) -> str:
    """The record as script elements that do nothing: its lists that occur again, and the rest.

    >>> "<b>" in embed({"a": "<b>"})
    False
    >>> long = list(range(100))
    >>> embed({"a": long, "b": long}).splitlines()[-1]
    '{"a":{"dovetail:list":0},"b":{"dovetail:list":0}}</script>'
    """
    record = _as_in_data(plain)
    seen = Counter(_dump(value) for value in _long_lists(record))
    places = {text: i for i, text in enumerate(text for text, n in seen.items() if n > 1)}
    if not places or any(MARK in text for text in seen):
        return _element(_dump(record))

    def shortened(value: list[Any]) -> Any:
        place = places.get(_dump(value))
        return value if place is None else {MARK: place}

    short = _dump(_mapped(record, shortened))
    if short.count(MARK) > sum(seen[text] for text in places):
        return _element(_dump(record))  # the record itself speaks of such marks: leave it whole
    lists = "\n".join(places)
    return f"{_element(lists, 'lists')}\n{_element(short)}"


def _as_in_data(plain: Mapping[str, Any]) -> dict[str, Any]:
    """With the view's lists spelt as the data's equal ones: a view has 1.0 where they have 1."""
    known = {tuple(value): value for value in _long_lists(plain.get("data"))}
    if not known or "view" not in plain:
        return dict(plain)
    view = _mapped(plain["view"], lambda value: known.get(tuple(value), value))
    return {**plain, "view": view}


def _long_lists(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _long_lists(item)
    elif isinstance(value, list):
        if _is_long(value):
            yield value
        else:
            for item in value:
                yield from _long_lists(item)


def _mapped(value: Any, change: Callable[[list[Any]], Any]) -> Any:
    """The value with each of its long lists changed."""
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    return change(value) if _is_long(value) else [_mapped(item, change) for item in value]


def _is_long(value: list[Any]) -> bool:
    return len(value) >= _LONG and not any(isinstance(v, dict | list | bool) for v in value)


def _element(text: str, kind: str = "") -> str:
    """JSON that cannot end the element it lies in: the same value, spelt without markup."""
    for character in "<>&":  # in JSON these occur within strings only
        text = text.replace(character, f"\\u{ord(character):04x}")
    named = f' class="{kind}"' if kind else ""
    return f'<script type="application/json"{named}>\n{text}</script>'


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)
