"""Draw any record: as one self-contained HTML page, as Markdown, as SVG or PNG, on a terminal.

The report knows the blocks of :mod:`dovetail.core.views` and nothing of what was measured.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.report.export import export_figures
    from dovetail.report.figures import draw_figure
    from dovetail.report.heatmaps import draw_heatmap
    from dovetail.report.markdown import render_markdown
    from dovetail.report.page import render_page, write_report
    from dovetail.report.planes import draw_plane
    from dovetail.report.svg import standalone
    from dovetail.report.terminal import print_view

__all__ = [
    # reports
    "render_markdown",
    "render_page",
    "write_report",
    # drawings
    "draw_figure",
    "draw_heatmap",
    "draw_plane",
    "export_figures",
    "standalone",
    # terminals
    "print_view",
]

_HOMES = {
    **{"export_figures": "export", "draw_figure": "figures", "draw_heatmap": "heatmaps"},
    **{"render_markdown": "markdown", "render_page": "page", "write_report": "page"},
    **{"draw_plane": "planes", "standalone": "svg", "print_view": "terminal"},
}


def __getattr__(name: str) -> Any:
    """A name when it is first used: to print a list takes no drawing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
