"""What notebooks show of a task, a part or a record: its view as HTML.

The drawing is the report's, which this row does not know: it is found by its name when a notebook
asks, and not before.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dovetail.core.views import View

DRAWS = "dovetail.report.notebook"


def html_of(title: str, view: View) -> str:
    """A view under a title, without scripts, of a bounded size.

    >>> from dovetail.core.views import Text
    >>> "<h4>A &lt; b</h4>" in html_of("A < b", (Text("one"),))
    True
    """
    drawer: Any = import_module(DRAWS)
    drawn: str = drawer.draw_for_notebook(title, view)
    return drawn
