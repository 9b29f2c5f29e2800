"""Planes as SVG: contour lines over colour, flat regions of classes, arrows and points."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dovetail.core.views import Figure, Plane, Series
from dovetail.report.axes import HALF
from dovetail.report.colours import STEPS
from dovetail.report.contours import outlines
from dovetail.report.levels import Levels, levels_of
from dovetail.report.marks import draw_legend, style_of, symbol
from dovetail.report.scales import Scale, nice_ticks
from dovetail.report.surfaces import draw_relief
from dovetail.report.svg import label, picture, tag, title
from dovetail.report.text import show_number, show_ticks, text_width

ALONE = 436.0
"""The width of a plane that has no surface beside it."""

_GAP = 16.0
_BAR = 12.0  # the width of the colour scale
_LABELLED = 90.0  # pixels; a shorter line has no room for its number


def draw_plane(plane: Plane) -> str:
    """A plane as an SVG element, with its surface beside the contours if it asks for one.

    >>> bowl = tuple(tuple(float(x * x + y * y) for x in range(-3, 4)) for y in range(-3, 4))
    >>> drawing = draw_plane(Plane("Loss", (-1.0, 1.0), (-1.0, 1.0), bowl, surface=True))
    >>> 'class="iso"' in drawing, 'class="mesh"' in drawing
    (True, True)
    """
    alone = not plane.surface or bool(plane.classes)
    width = ALONE if alone else 2 * HALF + _GAP
    parts, top = title(plane.title, width)
    if alone:
        drawn, foot = _contours(plane, width, top)
        return _picture(plane, [*parts, *drawn], width, foot)
    contours, tall = _contours(plane, HALF, top)
    right, deep = draw_relief(plane, levels_of(plane), HALF, top)
    moved = tag("g", *right, transform=f"translate({HALF + _GAP:.0f} 0)")
    return _picture(plane, [*parts, *contours, moved], width, max(tall, deep))


def draw_contours(plane: Plane, *, width: float = ALONE) -> str:
    """The plane seen from above for a page, whose script tells values and which has the title."""
    drawn, foot = _contours(plane, width, 0.0, live=True)
    return _picture(plane, drawn, width, foot)


def draw_surface(plane: Plane, *, width: float = HALF) -> str:
    """The plane as a surface, without a title."""
    drawn, foot = draw_relief(plane, levels_of(plane), width, 0.0)
    return picture(
        *drawn, width=width, height=foot, name=f"{plane.title}: surface", class_="chart surface"
    )


def _picture(plane: Plane, parts: Sequence[str], width: float, height: float) -> str:
    return picture(*parts, width=width, height=height, name=plane.title, class_="chart plane")


def _contours(
    plane: Plane, width: float, top: float, *, live: bool = False
) -> tuple[list[str], float]:
    names, tall = _legend(plane, top, width)
    levels = levels_of(plane)
    aside = 8.0  # half of the last word below the plot
    if not plane.classes:
        aside = max((text_width(words) for _, words in levels.lines), default=0.0) + _BAR + 24.0
    box = _Box.of(plane, width - aside, top + tall)
    drawn = _regions(plane, box) if plane.classes else _colours(levels, box)
    marks = tag("g", *drawn, *_arrows(plane, box), *_points(plane, box), class_="plot")
    scale = [] if plane.classes else [_scale(plane, levels, box)]
    return [*names, marks, box.draw(plane, live=live), *scale], box.bottom + 44.0


@dataclass(frozen=True)
class _Box:
    """The frame of the plot, and where the nodes lie in it."""

    left: float
    top: float
    right: float
    bottom: float
    x: Scale
    y: Scale
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    rows: int
    columns: int

    @classmethod
    def of(cls, plane: Plane, width: float, top: float) -> _Box:
        top += 24.0 if plane.y_label or plane.value_label else 8.0
        y_ticks, x_ticks = (_ticks(*ends) for ends in (plane.y, plane.x))
        left = max(text_width(words) for _, words in y_ticks) + 10.0
        right = width - 8.0
        bottom = top + (right - left) * 0.9
        x, y = Scale(*plane.x, left, right), Scale(*plane.y, bottom, top)
        nodes = len(plane.values), len(plane.values[0])
        return cls(left, top, right, bottom, x, y, x_ticks, y_ticks, *nodes)

    def node(self, column: float, row: float) -> tuple[float, float]:
        return (
            self.left + (self.right - self.left) * column / (self.columns - 1),
            self.bottom - (self.bottom - self.top) * row / (self.rows - 1),
        )

    def holds(self, x: float, y: float) -> bool:
        return self.x.low <= x <= self.x.high and self.y.low <= y <= self.y.high

    def draw(self, plane: Plane, *, live: bool) -> str:
        """Frame, ticks and names; the values of all nodes ride along for a page's script."""
        wide, tall = self.right - self.left, self.bottom - self.top
        parts = [tag("rect", class_="edge", x=self.left, y=self.top, width=wide, height=tall)]
        for at, words in self.x_ticks:
            x = self.x(at)
            line = tag("path", class_="axis", d=f"M{x:.1f} {self.bottom:.1f}v4")
            text = label(words, x, self.bottom + 17, text_anchor="middle")
            parts.append(tag("g", line, text, class_="tick-x"))
        for at, words in self.y_ticks:
            y = self.y(at)
            line = tag("path", class_="axis", d=f"M{self.left:.1f} {y:.1f}h-4")
            text = label(words, self.left - 7, y + 4, text_anchor="end")
            parts.append(tag("g", line, text, class_="tick-y"))
        if plane.x_label:
            middle, below = (self.left + self.right) / 2, self.bottom + 36
            parts.append(
                label(plane.x_label, middle, below, width=wide, class_="name", text_anchor="middle")
            )
        if plane.y_label:
            half = wide * (0.6 if plane.value_label else 1.0)
            parts.append(label(plane.y_label, 0, self.top - 9, width=half, class_="name"))
        return tag("g", *parts, class_="frame", data_nodes=self._nodes(plane) if live else None)

    def _nodes(self, plane: Plane) -> str:
        """What the page's script tells under the pointer; words in one text, as quotes are long."""
        values = (v for row in plane.values for v in row)
        spec = "" if plane.classes else ".3g"
        nodes = {
            "box": [round(v, 1) for v in (self.left, self.bottom, self.right, self.top)],
            "x": " ".join(f"{v:.3g}" for v in _even(*plane.x, self.columns)),
            "y": " ".join(f"{v:.3g}" for v in _even(*plane.y, self.rows)),
            "z": " ".join(show_number(v, spec) for v in values),
            "classes": plane.classes,
        }
        return json.dumps(nodes, ensure_ascii=False, separators=(",", ":"))


def _colours(levels: Levels, box: _Box) -> list[str]:
    """The region above each step of the ramp over that of the one before, and the round lines."""
    sides = levels.colours.sides
    steps = [-1.0, *((k - 0.5) / (STEPS - 1) for k in range(1, STEPS))]
    drawn = []
    for step, level in enumerate(steps):
        if d := "".join(_path(loop, box) for loop in outlines(levels.shares, level)):
            drawn.append(tag("path", class_=f"{sides}-{step} area", d=d))
    labels: list[tuple[float, float]] = []
    texts = []
    for share, words in levels.lines:
        if not 0 < share < 1:
            continue
        dark = abs(2 * share - 1) if sides == "two" else share
        kind = "iso over" if dark > 0.5 else "iso"
        runs = [run for loop in outlines(levels.shares, share) for run in _inner(loop, box)]
        if d := "".join(_line(run) for run in runs):
            drawn.append(tag("path", class_=kind, d=d))
        if place := _place_for(max(runs, key=_length, default=[]), labels):
            labels.append(place)
            texts.append(label(words, *place, class_="iso-name", text_anchor="middle", dy="4"))
    return drawn + texts


def _inner(loop: Sequence[tuple[float, float]], box: _Box) -> list[list[tuple[float, float]]]:
    """The pieces of an outline that are not the frame itself."""
    last = box.columns - 1, box.rows - 1
    pieces: list[list[tuple[float, float]]] = [[]]
    for here, there in zip(loop, [*loop[1:], loop[0]], strict=True):
        along = any(here[k] == there[k] and here[k] in (0.0, float(last[k])) for k in (0, 1))
        if along:
            pieces.append([])
            continue
        pieces[-1] = pieces[-1] or [box.node(*here)]
        pieces[-1].append(box.node(*there))
    if len(pieces) > 1 and pieces[0] and pieces[-1]:  # the loop began within a piece
        pieces[0] = pieces.pop() + pieces[0][1:]
    return [piece for piece in pieces if len(piece) > 1]


def _path(loop: Sequence[tuple[float, float]], box: _Box) -> str:
    return _line([box.node(*place) for place in loop]) + "z"


def _line(places: Sequence[tuple[float, float]]) -> str:
    words = [f"{x:.1f} {y:.1f}" for x, y in places]
    return "M" + "L".join(w for i, w in enumerate(words) if i == 0 or w != words[i - 1])


def _length(places: Sequence[tuple[float, float]]) -> float:
    return sum(math.dist(a, b) for a, b in pairwise(places))


def _place_for(
    line: Sequence[tuple[float, float]], occupied: Sequence[tuple[float, float]]
) -> tuple[float, float] | None:
    """A place on the line for its number, away from those of other lines."""
    if len(line) < 2 or _length(line) < _LABELLED:
        return None
    inside = line[len(line) // 8 : -max(len(line) // 8, 1)] or line
    best = max(inside, key=lambda at: min((math.dist(at, t) for t in occupied), default=0.0))
    near = min((math.dist(best, t) for t in occupied), default=math.inf)
    return best if near > 28 else None


def _regions(plane: Plane, box: _Box) -> list[str]:
    """Around every node a cell in the colour of its class; a row's equal cells are one."""
    paths: dict[int, list[str]] = {}
    for i, row in enumerate(plane.values):
        (_, low), (_, high) = (
            box.node(0, min(max(i + side, 0), box.rows - 1)) for side in (-0.5, 0.5)
        )
        start = 0
        for j in range(1, len(row) + 1):
            if j < len(row) and row[j] == row[start]:
                continue
            if (value := row[start]) is not None:
                left, _ = box.node(max(start - 0.5, 0.0), 0)
                right, _ = box.node(min(j - 0.5, box.columns - 1.0), 0)
                cell = f"M{left:.1f} {low:.1f}H{right:.1f}V{high:.1f}H{left:.1f}z"
                paths.setdefault(int(value), []).append(cell)
            start = j
    return [
        tag(
            "g",
            tag("path", class_="region", d="".join(paths.get(place, ["M0 0"]))),
            class_=style_of(place),
            data_series=str(place),
            data_points="[]",
        )
        for place in range(len(plane.classes))
    ]


def _arrows(plane: Plane, box: _Box) -> list[str]:
    """All to one scale: the longest reaches about to where the next one begins."""
    shown = []
    for x, y, dx, dy in plane.arrows:
        if not all(map(math.isfinite, (x, y, dx, dy))) or not box.holds(x, y):
            continue
        # By the ends' distance, each halved: a difference of large numbers need not be finite.
        wide = (box.right - box.left) * dx / 2 / (box.x.high / 2 - box.x.low / 2) / 2
        tall = (box.bottom - box.top) * dy / 2 / (box.y.high / 2 - box.y.low / 2) / 2
        if math.isfinite(wide) and math.isfinite(tall):
            shown.append((box.x(x), box.y(y), wide, -tall))
    longest = max((max(abs(dx), abs(dy)) for *_, dx, dy in shown), default=0.0)
    if not longest:
        return []
    room = math.sqrt((box.right - box.left) * (box.bottom - box.top) / len(shown))
    d = "".join(_arrow(x, y, dx / longest, dy / longest, min(room, 60.0)) for x, y, dx, dy in shown)
    return [tag("path", class_="arrow-edge", d=d), tag("path", class_="arrow", d=d)]


def _arrow(x: float, y: float, dx: float, dy: float, room: float) -> str:
    dx, dy = dx * room * 0.9, dy * room * 0.9
    length = math.hypot(dx, dy)
    if length < 1.0:
        return f"M{x:.1f} {y:.1f}h.1"
    head = min(0.35 * length, 6.0) / length
    ux, uy = dx * head, dy * head
    left, right = (-ux - 0.5 * uy, -uy + 0.5 * ux), (-ux + 0.5 * uy, -uy - 0.5 * ux)
    tip = f"{x + dx:.1f} {y + dy:.1f}"
    return (
        f"M{x:.1f} {y:.1f}L{tip}M{x + dx + left[0]:.1f} {y + dy + left[1]:.1f}L{tip}"
        f"L{x + dx + right[0]:.1f} {y + dy + right[1]:.1f}"
    )


def _points(plane: Plane, box: _Box) -> list[str]:
    first = 0 if plane.classes else 1  # on colours of the ramp, which is blue as the first is
    return [
        tag("g", symbol(box.x(x), box.y(y), shape=place), class_=style_of(place + first))
        for x, y, place in plane.points
        if math.isfinite(x) and math.isfinite(y) and box.holds(x, y)
    ]


def _legend(plane: Plane, top: float, width: float) -> tuple[list[str], float]:
    if not plane.classes:
        return [], 0.0
    series = tuple(Series(name, (), ()) for name in plane.classes)
    names, tall = draw_legend(Figure("bar", "", series), top=top, width=width)
    return [names], tall


def _scale(plane: Plane, levels: Levels, box: _Box) -> str:
    """The ramp from the foot of the plot to its top, with the values that have lines."""
    left, tall = box.right + 14.0, (box.bottom - box.top) / STEPS
    steps = [
        tag(
            "rect",
            class_=f"{levels.colours.sides}-{i}",
            x=left,
            y=box.bottom - (i + 1) * tall,
            width=_BAR,
            height=tall + 0.3,
        )
        for i in range(STEPS)
    ]
    words = [
        label(said, left + _BAR + 6, box.bottom - share * (box.bottom - box.top) + 4)
        for share, said in levels.lines
    ]
    if plane.value_label:
        end = left + _BAR + 6 + max((text_width(said) for _, said in levels.lines), default=0.0)
        name = label(
            plane.value_label, end, box.top - 9, width=160, class_="name", text_anchor="end"
        )
        words.append(name)
    return tag("g", *steps, *words, class_="scale")


def _ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    ticks = [t for t in nice_ticks(low, high, most=6) if low <= t <= high] or [low, high]
    return tuple(zip(ticks, show_ticks(ticks), strict=True))


def _even(low: float, high: float, count: int) -> Iterable[float]:
    return (low * (1 - i / (count - 1)) + high * (i / (count - 1)) for i in range(count))
