"""A plane as a surface: its grid lifted by the values, seen from above one corner."""

from __future__ import annotations

from dovetail.core.views import Plane
from dovetail.report.colours import STEPS
from dovetail.report.levels import Levels
from dovetail.report.svg import label, tag
from dovetail.report.text import show_ticks

_SIDE = 36  # nodes; finer meshes are all lines
_LOOK = 0.46  # how far the far corner is above the near one, by half the width
_LIFT = 0.62  # the height of the greatest value, by half the width


def draw_relief(plane: Plane, levels: Levels, width: float, top: float) -> tuple[list[str], float]:
    """The mesh from the far corner to the near one, so that what is in front hides what is behind.

    Where x and y begin is the corner that is nearest; x runs to the right, y to the left.
    """
    rows, columns = (_spread(n) for n in (len(levels.shares), len(levels.shares[0])))
    half = width / 2 - 14
    base = top + 12 + half * (_LIFT + 2 * _LOOK)

    def at(u: float, v: float, height: float) -> tuple[float, float]:
        return width / 2 + (u - v) * half, base - (u + v) * half * _LOOK - height * half * _LIFT

    def node(i: int, j: int) -> tuple[float, float] | None:
        share = levels.shares[rows[i]][columns[j]]
        if share is None:
            return None
        return at(j / (len(columns) - 1), i / (len(rows) - 1), share)

    nodes = [[node(i, j) for j in range(len(columns))] for i in range(len(rows))]
    sides = levels.colours.sides
    squares = sorted(
        ((i, j) for i in range(len(rows) - 1) for j in range(len(columns) - 1)),
        key=lambda place: place[0] / (len(rows) - 1) + place[1] / (len(columns) - 1),
        reverse=True,
    )
    mesh = []
    for i, j in squares:
        around = ((i, j), (i, j + 1), (i + 1, j + 1), (i + 1, j))
        corners = [nodes[a][b] for a, b in around]
        shares = [levels.shares[rows[a]][columns[b]] for a, b in around]
        if any(corner is None for corner in corners):
            continue
        step = round(sum(share or 0.0 for share in shares) / 4 * (STEPS - 1))
        d = "L".join(f"{corner[0]:.1f} {corner[1]:.1f}" for corner in corners if corner)
        mesh.append(tag("path", class_=f"{sides}-{step}", d=f"M{d}z"))
    ground = [at(*corner, 0.0) for corner in ((0, 0), (1, 0), (1, 1), (0, 1))]
    floor = "L".join(f"{x:.1f} {y:.1f}" for x, y in ground)
    parts = [
        tag("path", class_="guide", d=f"M{floor}z"),
        tag("g", *mesh, class_="mesh"),
        *_names(plane, ground),
    ]
    return parts, base + 36


def _names(plane: Plane, ground: list[tuple[float, float]]) -> list[str]:
    """The axes' names and ends below the two near edges."""
    near, right, _, left = ground
    drawn = []
    for (x, y), ends, name, anchor in (
        (right, plane.x, plane.x_label, "start"),
        (left, plane.y, plane.y_label, "end"),
    ):
        words = show_ticks(ends)
        side = 1 if anchor == "start" else -1
        middle = (near[0] + x) / 2 + side * 8, (near[1] + y) / 2 + 18
        drawn.append(label(name, *middle, width=150, class_="name", text_anchor=anchor))
        first = near[0] + side * 12, near[1] + 14
        drawn.append(label(words[0], *first, class_="name", text_anchor=anchor))
        last = x - side * 2, y + 18
        back = "end" if anchor == "start" else "start"
        drawn.append(label(words[1], *last, class_="name", text_anchor=back))
    return drawn


def _spread(count: int) -> list[int]:
    few = min(count, _SIDE)
    return [round(i * (count - 1) / (few - 1)) for i in range(few)]
