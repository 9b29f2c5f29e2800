"""Progress bars: on a terminal, and never in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from dovetail.core.words import one_line

__all__ = ["Tick", "progress"]


class Tick(Protocol):
    """What is called after each step, or after several."""

    def __call__(self, words: str, steps: int = 1, /) -> None:
        """Show these words, so many steps on."""
        ...


@contextmanager
def progress(label: str, total: int, *, start: int = 0, show: bool | None = None) -> Iterator[Tick]:
    """A bar of ``total`` steps on standard error; call what you get after each step.

    The call takes a few words to show beside the bar, and how many steps it was if not one.
    ``show=None`` shows it on a terminal only.

    >>> with progress("training", 2, show=False) as step:
    ...     step("loss 0.5"); step("loss 0.4")
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda words, steps=1: None
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
        yield lambda words, steps=1: bar.update(task, advance=steps, words=one_line(words))
