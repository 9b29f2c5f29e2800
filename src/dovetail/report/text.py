"""Words, numbers and cells for drawings and tables: escaped, measured, shortened, formatted.

There is no font at hand when an SVG is written, so widths are estimates, on the safe side: those
of the widest of the common sans-serifs.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from html import escape as _escape
from itertools import pairwise

from dovetail.core.views import Cell, Figure, Table

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SPEC = re.compile(r"(.?[<>=^])?[-+ ]?#?0?\d{0,2}[,_]?(\.\d{1,2})?[a-zA-Z%]?")
_LONGEST = 24  # characters of a number; 1e300 with a fixed point has three hundred
_LINE = 400  # characters; no line of a drawing has more
_NARROW = frozenset("ijltfrI.,:;|!'`()[]{} /-")
_WIDE = frozenset("mwMW%@&−…")


def escape(text: object) -> str:
    """Text that is safe between tags and in quoted attributes, of HTML and of XML.

    Characters that XML forbids even when escaped become the replacement character.

    >>> escape('<b> & "c"' + chr(0))
    '&lt;b&gt; &amp; &quot;c&quot;�'
    """
    return _escape(_NOT_XML.sub("�", str(text)), quote=True)


def text_width(text: str, size: float = 12.0) -> float:
    """About how wide a text is at a font size, in pixels.

    >>> text_width("mm") > text_width("nn") > text_width("ll")
    True
    """
    return size * sum(_advance(character) for character in text)


def clip(text: str, width: float, size: float = 12.0, *, middle: bool = False) -> str:
    """The text, or as much of it as fits around an ellipsis at its end or in its middle.

    Names are best cut in the middle: those of one family often differ at the end.

    >>> clip("accuracy", 200), clip("a very long name indeed", 80)
    ('accuracy', 'a very lon…')
    >>> clip("resnet20-cifar10-run-1", 90, middle=True)
    'resnet…-run-1'
    """
    if text_width(text, size) <= width:
        return text
    room = width - text_width("…", size)
    if not middle:
        return _fitting(text, room, size).rstrip() + "…"
    tail = _fitting(text[::-1], room / 2, size)[::-1]
    return _fitting(text, room - text_width(tail, size), size).rstrip() + "…" + tail.lstrip()


def clip_apart(names: Sequence[str], width: float, size: float = 12.0) -> list[str]:
    """Names cut to a width so that they can still be told apart.

    Each is cut in its middle; where that makes some look alike, they show the part in which they
    differ, and as much around it as fits.

    >>> clip_apart(["block1.layer1.norm.weight", "block1.layer2.norm.weight"], 90)
    ['…ayer1.nor…', '…ayer2.nor…']
    >>> clip_apart(["a", "resnet20-cifar10-run-1"], 90)
    ['a', 'resnet…-run-1']
    """
    short = [clip(name, width, size, middle=True) for name in names]
    alike: dict[str, list[str]] = {}
    for name, cut in zip(names, short, strict=True):
        alike.setdefault(cut, []).append(name)
    differing: dict[str, str] = {}
    for group in alike.values():
        if len(set(group)) > 1:
            differing |= _around_the_difference(group, width, size)
    return [differing.get(name, cut) for name, cut in zip(names, short, strict=True)]


def wrap(text: str, width: float, size: float = 12.0) -> list[str]:
    """The text in lines that fit a width, broken between words and, if it must be, within one.

    >>> wrap("Accuracy of every front", 110), wrap("", 90)
    (['Accuracy of', 'every front'], [])
    >>> wrap("unbreakable", 50)
    ['unbreak', 'able']
    """
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
            continue
        start = 0
        while start < len(word):
            head = _fitting(word[start : start + _LINE], width, size) or word[start]
            lines.append(head)
            start += len(head)
    return lines


def show_number(value: float | None, spec: str = "") -> str:
    """A number by a format specification, or briefly; what is no number as a dash.

    A specification that Python would refuse, or that could pad a cell to megabytes, is ignored:
    records are also read from files of others.

    >>> show_number(0.9127, ".1%"), show_number(1 / 3), show_number(2.0), show_number(None)
    ('91.3%', '0.3333', '2', '–')
    >>> show_number(1.0, ">999999999")
    '1'
    """
    if value is None:
        return "–"
    if isinstance(value, int) and value.bit_length() > 1000:
        return str(value)  # beyond every float, and so beyond every format
    if not math.isfinite(value):
        return str(float(value))
    if spec and _SPEC.fullmatch(spec):
        try:
            shown = format(value, spec).strip()
            if len(shown) <= _LONGEST:
                return shown
        except (ValueError, OverflowError):
            pass
    if float(value).is_integer() and abs(value) < 1e6:
        return str(int(value))
    return re.sub(r"e([+-])0*(?=\d)", lambda m: "e" + m[1].strip("+"), f"{value:.4g}")


def show_ticks(ticks: Sequence[float], spec: str = "", *, log: bool = False) -> list[str]:
    """Labels for ticks: by the specification if it tells them apart, else as precise as needed.

    >>> show_ticks([0.0, 0.5, 1.0]), show_ticks([0.0, 0.5, 1.0], ".0%")
    (['0.0', '0.5', '1.0'], ['0%', '50%', '100%'])
    >>> show_ticks([0.990, 0.995, 1.0], ".0%")
    ['99.0%', '99.5%', '100.0%']
    """
    labels = [show_number(tick, spec) for tick in ticks] if spec or log else []
    if log and (not spec or any(_read(word, 0.0) <= 0 for word in labels)):
        return [_brief(show_number(tick)) for tick in ticks]  # each as precise as itself
    ending = spec[-1:] if spec[-1:] in ("%", "e") else ""
    if not _distinct(labels, ticks) and not ending:
        largest = max((abs(tick) for tick in ticks), default=0.0)
        smallest = min((abs(tick) for tick in ticks if tick), default=1.0)
        ending = "f" if largest < 1e6 and (smallest >= 1e-4 or largest >= 1e-2) else "e"
    if any(abs(tick) >= 1e9 for tick in ticks):
        labels, ending = [], "e"
    for digits in range(18):
        if _distinct(labels, ticks):
            break
        labels = [format(tick, f".{digits}{ending}") for tick in ticks]
    return [_brief(label) for label in labels]


def _around_the_difference(names: Sequence[str], width: float, size: float) -> dict[str, str]:
    """What follows the names' common beginning and precedes their common end, in its context."""
    first = _alike(names)
    last = _alike([name[first:][::-1] for name in names])
    room = width - 2 * text_width("…", size)
    shown = {}
    for name in names:
        start, end = first, len(name) - last
        core = clip(name[start:end], room, size, middle=True)
        spare = room - text_width(core, size)
        before = _fitting(name[:start][::-1], spare / 2, size)[::-1]
        after = _fitting(name[end:], spare - text_width(before, size), size)
        cut = [len(before) < start, len(after) < last]
        shown[name] = "…" * cut[0] + before + core + after + "…" * cut[1]
    return shown


def _alike(names: Sequence[str]) -> int:
    """How many characters all names begin with alike."""
    return next(
        (i for i, row in enumerate(zip(*names, strict=False)) if len(set(row)) > 1),
        min(map(len, names)),
    )


def _fitting(text: str, room: float, size: float) -> str:
    for count, character in enumerate(text):
        room -= size * _advance(character)
        if room < 0:
            return text[:count]
    return text


def _brief(label: str) -> str:
    """With a real minus, and no zeros or plus in the exponent."""
    return re.sub(r"e([+-])0*(?=\d)", lambda m: "e" + m[1].strip("+"), label).replace("-", "−")


def _distinct(labels: Sequence[str], ticks: Sequence[float]) -> bool:
    """Whether labels tell the ticks apart, and say of each what it is when read back."""
    if len(set(labels)) != len(ticks) or not labels:
        return not ticks
    gap = min((b - a for a, b in pairwise(ticks)), default=0.0)
    return all(
        abs(_read(label, tick) - tick) <= gap * 1e-3
        for label, tick in zip(labels, ticks, strict=True)
    )


def _read(label: str, otherwise: float) -> float:
    bare = label.replace(",", "").replace("_", "").strip()
    try:
        return float(bare[:-1]) / 100 if bare.endswith("%") else float(bare)
    except ValueError:
        return otherwise  # a format of another notation: trust it


def _advance(character: str) -> float:
    if unicodedata.combining(character):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    if character in _NARROW:
        return 0.36
    if character in _WIDE:
        return 0.95
    return 0.72 if character.isupper() else 0.63


def show_cell(cell: Cell, spec: str = "") -> str:
    """A cell as a reader sees it; without a specification, as it is.

    >>> show_cell(0.25, ".0%"), show_cell(0.1), show_cell("x"), show_cell(None)
    ('25%', '0.1', 'x', '–')
    """
    if isinstance(cell, str | bool) or (cell is not None and not spec):
        return str(cell)
    return show_number(cell, spec)


def is_number(cell: Cell) -> bool:
    """Whether a cell holds a number; stored records spell those that are not finite as words.

    >>> is_number(1.5), is_number("nan"), is_number("1.5"), is_number(True), is_number(None)
    (True, True, False, False, False)
    """
    if isinstance(cell, str):
        return cell in ("nan", "inf", "-inf")
    return cell is not None and not isinstance(cell, bool)


def numeric_columns(table: Table) -> list[bool]:
    """Whether each column holds numbers, and gaps at most.

    >>> numeric_columns(Table(("a", "b", "c"), ((1.5, "x", None), (None, 1, None))))
    [True, False, False]
    """
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.columns)
    known = ([cell for cell in column if cell is not None] for column in columns)
    return [bool(cells) and all(map(is_number, cells)) for cells in known]


def shown_rows(table: Table) -> list[list[str]]:
    """The cells of a table as a reader sees them.

    >>> shown_rows(Table(("a", "b"), ((0.5, None),), (".0%", "")))
    [['50%', '–']]
    """
    formats = table.formats or ("",) * len(table.columns)
    return [[show_cell(*one) for one in zip(row, formats, strict=True)] for row in table.rows]


def place_name(x: float | str) -> str:
    """An x value in words, as the name of a place and for the reader.

    >>> place_name("layer1"), place_name(3.0)
    ('layer1', '3')
    """
    return x if isinstance(x, str) else show_number(float(x))


def names_of(figure: Figure) -> tuple[str, ...]:
    """Every x of a figure as a name, once, in the order they come.

    >>> from dovetail.core.views import Series
    >>> names_of(Figure("polar", "", (Series("a", ("x", 2.0), (1.0, 1.0)),)))
    ('x', '2')
    """
    return tuple(dict.fromkeys(place_name(x) for series in figure.series for x in series.x))
