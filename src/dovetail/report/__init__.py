"""Draw any record: as one self-contained HTML page, as Markdown, as SVG or PNG, on a terminal.

The report knows the blocks of :mod:`dovetail.core.views` and nothing of what was measured.
"""

from dovetail.report.export import export_figures
from dovetail.report.figures import draw_figure
from dovetail.report.heatmaps import draw_heatmap
from dovetail.report.markdown import render_markdown
from dovetail.report.page import render_page, write_report
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
    "export_figures",
    "standalone",
    # terminals
    "print_view",
]
