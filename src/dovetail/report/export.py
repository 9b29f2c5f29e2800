"""Figures, heat maps and planes as files: SVG, or PNG where that is what a paper takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from dovetail.core.errors import SettingsError
from dovetail.core.extras import need
from dovetail.core.files import write_whole
from dovetail.core.records import Record, slug
from dovetail.core.views import Figure, Heatmap, Plane
from dovetail.report.colours import PALETTES
from dovetail.report.figures import draw_figure
from dovetail.report.heatmaps import draw_heatmap
from dovetail.report.planes import draw_plane
from dovetail.report.sections import Section, sections
from dovetail.report.svg import standalone

Theme = Literal["light", "dark"]
_FORMATS = ("svg", "png")
_FONTS = ("DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica", "Segoe UI")


@dataclass(frozen=True)
class Drawn:
    """A figure or heat map of a record: the section and place it is at, and a name for its file."""

    section: int
    place: int
    name: str
    drawing: str
    figure: Figure | None


def drawings(records: Sequence[Record]) -> list[Drawn]:
    """Every figure and heat map of some records, drawn, each with a name of its own.

    >>> from dovetail.core.records import StoredRecord
    >>> from dovetail.core.views import Series
    >>> loss = Figure("line", "Loss", (Series("train", (1, 2), (0.5, 0.25)),))
    >>> record = StoredRecord(of_kind="t", of_title="A run", data={}, blocks=(loss, loss))
    >>> [one.name for one in drawings([record])]
    ['1-a-run-1-loss', '1-a-run-2-loss']
    """
    return drawings_of(sections(records))


def drawings_of(parts: Sequence[Section]) -> list[Drawn]:
    """Every figure and heat map of a report's sections, drawn and named, in their order."""
    drawn = []
    for section in parts:
        number = 0
        for place, block in enumerate(section.view):
            if not isinstance(block, Figure | Heatmap | Plane):
                continue
            number += 1
            words = (section.number, section.name[:40].strip("-"), number, _plain(block.title))
            name = "-".join(str(word) for word in words if word)
            figure = block if isinstance(block, Figure) else None
            drawn.append(Drawn(section.number, place, name, draw(block), figure))
    return drawn


def draw(block: Figure | Heatmap | Plane) -> str:
    """Any block that is a drawing, as an SVG element with its title.

    >>> draw(Heatmap("Joins", ("a",), ("b",), ((0.5,),)))[:4]
    '<svg'
    """
    if isinstance(block, Figure):
        return draw_figure(block)
    return draw_heatmap(block) if isinstance(block, Heatmap) else draw_plane(block)


def export_figures(
    records: Sequence[Record],
    folder: str | Path,
    *,
    format: Literal["svg", "png"] = "svg",
    theme: Literal["auto", "light", "dark"] = "auto",
    scale: float = 2.0,
) -> list[Path]:
    """Write each figure and heat map to a file in a folder; other files there stay as they are.

    An SVG in the theme ``"auto"`` follows its reader's setting; a PNG cannot, and is light unless
    told otherwise.  ``scale`` is the number of pixels of a PNG for each of the drawing's.

    >>> import tempfile
    >>> from dovetail.core.records import StoredRecord
    >>> heat = Heatmap("Joins", ("a",), ("b",), ((0.5,),))
    >>> record = StoredRecord(of_kind="t", of_title="All joins", data={}, blocks=(heat,))
    >>> [path.name for path in export_figures([record], tempfile.mkdtemp())]
    ['1-all-joins-1-joins.svg']
    """
    if format not in _FORMATS:
        raise SettingsError(f"figures are written as svg or png, not {format!r}")
    if not 0.1 <= scale <= 10:
        raise SettingsError(f"scale must be between 0.1 and 10, got {scale}")
    paths = []
    for one in drawings(records):
        path = Path(folder) / f"{one.name}.{format}"
        if format == "svg":
            write_whole(path, standalone(one.drawing, theme=theme))
        else:
            shown: Theme = "dark" if theme == "dark" else "light"
            write_whole(path, to_png(one.drawing, theme=shown, scale=scale))
        paths.append(path)
    return paths


def to_png(drawing: str, *, theme: Theme = "light", scale: float = 2.0) -> bytes:
    """A drawing as the bytes of a PNG; needs the extra ``plots`` and a sans-serif font.

    The font is one of the machine's, so the bytes may differ from one machine to the next.
    """
    resvg = need("resvg_py", feature="Drawing PNG", extra="plots")
    family = _font(resvg)
    if family is None:
        raise SettingsError(
            "no sans-serif font on this machine, so a PNG would have no words: install one "
            "(such as DejaVu Sans), or export SVG"
        )
    png: bytes = resvg.svg_to_bytes(
        svg_string=standalone(drawing, theme=theme),
        background=PALETTES[theme]["paper"],
        zoom=scale,
        font_family=family,
        sans_serif_family=family,
    )
    return png


@cache
def _font(resvg: Any) -> str | None:
    """The first common family that leaves ink on paper; the renderer itself would stay silent."""

    def inked(words: str, family: str) -> bytes:
        text = f'<text y="9" font-size="9" font-family="{family}">{words}</text>'
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="40" height="12">{text}</svg>'
        return bytes(resvg.svg_to_bytes(svg_string=svg, font_family=family))

    return next((f for f in _FONTS if inked("ink", f) != inked("", f)), None)


def _plain(title: str) -> str:
    return slug("".join(c if c.isascii() else " " for c in title))[:40].strip("-")
