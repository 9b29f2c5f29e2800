"""Progress bars: on a terminal, and never in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dovetail.core.words import one_line

__all__ = ["progress"]


@contextmanager
def progress(
    label: str, total: int, *, start: int = 0, show: bool | None = None
) -> Iterator[Callable[[str], None]]:
    """A bar of ``total`` steps on standard error; call what you get after each step.

    The call takes a few words to show beside the bar.  ``show=None`` shows it on a terminal only.

    >>> with progress("training", 2, show=False) as step:
    ...     step("loss 0.5"); step("loss 0.4")
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda words: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}", markup=False),
    )
    console = Console(stderr=True, force_terminal=show)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total, completed=start, words="")
        yield lambda words: bar.update(task, advance=1, words=one_line(words))
