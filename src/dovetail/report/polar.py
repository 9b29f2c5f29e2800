"""A map around a centre: one direction a name, the value as the distance.

The centre is zero.  Directions are evenly spaced, clockwise from the top; the web that joins the
points of a series only helps the eye to follow it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dovetail.core.views import Figure
from dovetail.report.axes import Plot
from dovetail.report.marks import series_group, symbol
from dovetail.report.scales import Scale, nice_ticks
from dovetail.report.svg import label, tag
from dovetail.report.text import names_of, place_name, show_number, show_ticks, text_width

_RADIUS = 170.0
_AWAY = 13.0  # a name begins this far outside the outermost ring
_LINE = 15.0  # from one name to the next below it, at least
_RING = 24.0  # from the words of one ring to those of the next, at least
_KEY = 18.0
_MOST = 60  # names around the circle; of more only every so many is written


@dataclass(frozen=True)
class Name:
    """A name beside the circle; ``x`` and ``y`` from the centre, to the middle of its line.

    >>> name = Name("north", 0, 0.0, -90.0, "middle")
    >>> name.left == -name.right
    True
    """

    words: str
    direction: int
    x: float
    y: float
    anchor: str

    @property
    def left(self) -> float:
        """Where the name begins."""
        return (
            self.x - text_width(self.words) * {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]
        )

    @property
    def right(self) -> float:
        """Where the name ends."""
        return self.left + text_width(self.words)


def draw_polar(figure: Figure, *, top: float, width: float) -> Plot:
    """The plot of a polar figure.

    >>> from dovetail.core.views import Series
    >>> near = Series("near", ("a", "b", "c"), (1.0, 2.0, 3.0))
    >>> draw_polar(Figure("polar", "", (near,)), top=0.0, width=800.0).series[0].count('"dot"')
    3
    """
    names = names_of(figure)
    radius = min(_RADIUS, 0.32 * width)
    placed = place_names(names, radius)
    fits = all(-width / 2 <= name.left and name.right <= width / 2 for name in placed)
    if not fits:  # numbers around the circle, and below it what they stand for
        numbers = [str(i + 1) for i in range(len(names))]
        placed = place_names(numbers, radius)
    top += 22.0 if figure.y_label else 4.0
    above = max([radius + 6.0, *(8.0 - name.y for name in placed)])
    below = max([radius + 6.0, *(8.0 + name.y for name in placed)])
    circle = _Circle(
        width / 2, top + above, radius, len(names), _free(figure, names), *_rings(figure, radius)
    )
    parts = [circle.draw(), *(circle.write(name) for name in placed)]
    if words := figure.y_label:
        parts.append(label(words, 0, top - 10, width=width, class_="name"))
    foot = circle.y + below + 6.0
    if not fits:
        key, tall = _key([names[name.direction] for name in placed], placed, foot + 10.0, width)
        parts.append(key)
        foot += tall + 10.0
    values = [y for series in figure.series for y in series.y if y is not None]
    return Plot(
        tag("g", *parts, class_="frame"),
        tuple(_series(figure, circle, names, index) for index in range(len(figure.series))),
        foot,
        sum(1 for y in values if not math.isnan(y) and not _shows(y)),
        "not finite, or negative",
    )


def place_names(names: Sequence[str], radius: float) -> list[Name]:
    """Names around a circle, none over another and none over the circle.

    Each begins where its direction leaves the circle.  Where they crowd, towards the top and the
    bottom, they move up or down, which is always away from the circle.

    >>> [name.anchor for name in place_names(["n", "e", "s", "w"], 100.0)]
    ['middle', 'start', 'middle', 'end']
    """
    each = math.ceil(len(names) / _MOST)
    sides: dict[str, list[Name]] = {"start": [], "end": [], "middle": []}
    for i in range(0, len(names), max(each, 1)):
        x, y = _towards(i, len(names), radius + _AWAY)
        anchor = "middle" if abs(x) < 1e-6 else "start" if x > 0 else "end"
        sides[anchor].append(Name(names[i], i, x, y, anchor))
    beside = _apart(sides["start"]) + _apart(sides["end"])
    highest = min((name.y for name in beside), default=math.inf)
    lowest = max((name.y for name in beside), default=-math.inf)
    ends = [
        replace(name, y=min(name.y, highest - _LINE) if name.y < 0 else max(name.y, lowest + _LINE))
        for name in sides["middle"]
    ]
    return sorted(beside + ends, key=lambda name: name.direction)


def _apart(names: Sequence[Name]) -> list[Name]:
    """The names of one side, moved from the middle outwards until a line lies between any two."""
    moved: list[Name] = []
    for name in sorted((name for name in names if name.y <= 0), key=lambda name: -name.y):
        y = min([name.y, *(other.y - _LINE for other in moved[-1:])])
        moved.append(replace(name, y=y))
    middle = moved[:1]
    for name in sorted((name for name in names if name.y > 0), key=lambda name: name.y):
        y = max([name.y, *(other.y + _LINE for other in middle)])
        middle = [replace(name, y=y)]
        moved += middle
    return moved


@dataclass(frozen=True)
class _Circle:
    """The rings and spokes; ``x`` and ``y`` are the centre."""

    x: float
    y: float
    radius: float
    directions: int
    free: float  # a direction between two others, for the words of the rings
    scale: Scale
    rings: tuple[tuple[float, str], ...]

    def at(self, direction: int, value: float) -> tuple[float, float]:
        x, y = _towards(direction, self.directions, self.scale(value))
        return self.x + x, self.y + y

    def draw(self) -> str:
        parts = [
            tag("circle", cx=self.x, cy=self.y, r=self.scale(at), class_="grid", data_at=repr(at))
            for at, _ in self.rings
        ]
        for i in range(self.directions):
            x, y = _towards(i, self.directions, self.radius)
            path = f"M{self.x:.1f} {self.y:.1f}l{x:.1f} {y:.1f}"
            parts.append(tag("path", class_="guide", d=path))
        said = math.inf
        for at, words in reversed(self.rings):
            # On its ring; within the outermost, since names lie beyond that.
            away = min(self.scale(at), self.radius - 8.0)
            if away > said - _RING:
                continue
            said = away
            x, y = _towards(self.free, self.directions, away)
            parts.append(
                label(words, self.x + x, self.y + y + 4, class_="halo", text_anchor="middle")
            )
        return tag("g", *parts, class_="rings")

    def write(self, name: Name) -> str:
        x, y = self.x + name.x, self.y + name.y
        start = _towards(name.direction, self.directions, self.radius)
        text = label(name.words, x, y + 4, text_anchor=name.anchor)
        home = _towards(name.direction, self.directions, self.radius + _AWAY)[1]
        if abs(name.y - home) < _LINE / 2:
            return text
        back = {"start": -3.0, "middle": 0.0, "end": 3.0}[name.anchor]
        toward = 7.0 if name.anchor == "middle" else 0.0
        path = (
            f"M{self.x + start[0]:.1f} {self.y + start[1]:.1f}"
            f"L{x + back:.1f} {y - math.copysign(toward, name.y):.1f}"
        )
        return tag("path", class_="guide", d=path) + text


def _series(figure: Figure, circle: _Circle, names: Sequence[str], index: int) -> str:
    series = figure.series[index]
    directions = {name: i for i, name in enumerate(names)}
    corners: dict[int, tuple[float, float]] = {}
    marks, points = [], []
    for x, y in zip(series.x, series.y, strict=True):
        if y is None or not _shows(y):
            continue
        name = place_name(x)
        place = circle.at(directions[name], y)
        corners.setdefault(directions[name], place)
        marks.append(symbol(*place, shape=index))
        points.append((*place, name, show_number(y, figure.y_format)))
    return series_group(figure, index, [_web(corners, len(names)), *marks], points)


def _web(corners: dict[int, tuple[float, float]], directions: int) -> str:
    """A line from each direction to the next, back to the first; broken where there is no point."""
    if directions < 3:
        return ""
    path = ""
    for i in range(directions + 1):
        if (place := corners.get(i % directions)) is None:
            continue
        step = "L" if i and (i - 1) % directions in corners else "M"
        path += f"{step}{place[0]:.2f} {place[1]:.2f}"
    return tag("path", class_="line fine", d=path) if "L" in path else ""


def _rings(figure: Figure, radius: float) -> tuple[Scale, tuple[tuple[float, str], ...]]:
    values = [y for series in figure.series for y in series.y if y is not None and _shows(y)]
    ticks = nice_ticks(0.0, max(values, default=0.0) or 1.0, most=6)
    words = show_ticks(ticks, figure.y_format)
    scale = Scale(0.0, max([*values, *ticks]), 0.0, radius)
    return scale, tuple((at, said) for at, said in zip(ticks, words, strict=True) if at > 0)


def _free(figure: Figure, names: Sequence[str]) -> float:
    """Between the two neighbours that are nearest to the centre: there few marks hide the words.

    Not towards either side, where words would stand in each other's way.
    """
    farthest = dict.fromkeys(names, 0.0)
    for series in figure.series:
        for x, y in zip(series.x, series.y, strict=True):
            if y is not None and _shows(y):
                farthest[place_name(x)] = max(farthest[place_name(x)], y)
    reach = list(farthest.values())
    between = [i + 0.5 for i in range(len(names))]
    upright = [i for i in between if abs(_towards(i, len(names), 1.0)[1]) > 0.5] or between
    return min(
        upright, key=lambda i: max(reach[int(i)], reach[int(i + 1) % len(names)]), default=0.0
    )


def _key(
    names: Sequence[str], placed: Sequence[Name], top: float, width: float
) -> tuple[str, float]:
    """What the numbers stand for, in columns read downwards, and the height that takes."""
    number = max(text_width(name.words) for name in placed) + 8.0
    widest = max(text_width(name) for name in names) + number + 20.0
    columns = max(min(int((width + 20.0) / widest), len(names)), 1)
    column = width / columns
    tall = math.ceil(len(names) / columns)
    entries = []
    for i, (name, short) in enumerate(zip(names, placed, strict=True)):
        x, y = i // tall * column, top + i % tall * _KEY + 12.0
        room = min(column, width) - number
        entries.append(
            label(short.words, x + number - 8.0, y, class_="name", text_anchor="end")
            + label(name, x + number, y, width=room, middle=True)
        )
    return tag("g", *entries, class_="key"), tall * _KEY


def _towards(direction: float, directions: int, distance: float) -> tuple[float, float]:
    """The place at a distance from the centre, clockwise from the top."""
    angle = 2 * math.pi * direction / max(directions, 1)
    return distance * math.sin(angle), -distance * math.cos(angle)


def _shows(value: float) -> bool:
    return math.isfinite(value) and value >= 0
