"""Progress bars: on a terminal, and never in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal, Protocol

from dovetail.core.words import one_line

if TYPE_CHECKING:
    from rich.progress import Progress

_OUTER: ContextVar[Progress | Literal[False] | None] = ContextVar("outer", default=None)
"""The bars on show, to which what runs inside adds its own; False where none are to be shown."""


class Tick(Protocol):
    """What is called after each step, or after several."""

    def __call__(self, words: str, steps: int = 1, /) -> None:
        """Show these words, so many steps on."""
        ...


@contextmanager
def progress(
    label: str, total: int, *, start: int = 0, show: bool | None = None, after: float = 0.0
) -> Iterator[Tick]:
    """A bar of ``total`` steps on standard error; call what you get after each step.

    The call takes a few words to show beside the bar, and how many steps it was if not one.
    ``show=None`` shows it on a terminal only, and where it runs inside of another that is hidden,
    not at all.  ``after`` so many seconds it appears; what is done by then is never seen.

    >>> with progress("training", 2, show=False) as step:
    ...     step("loss 0.5"); step("loss 0.4")
    """
    outer = _OUTER.get()
    shown = (outer is not False and sys.stderr.isatty()) if show is None else show
    bars = (outer or _bars(show)) if shown else None
    token = _OUTER.set(bars or False)
    try:
        if bars is None:
            yield lambda words, steps=1: None
            return
        with nullcontext() if bars is outer else bars:
            began = time.monotonic()
            task = bars.add_task(label, total=total, completed=start, words="", visible=not after)

            def step(words: str, steps: int = 1) -> None:
                late = time.monotonic() - began >= after
                bars.update(task, advance=steps, words=one_line(words), visible=late)

            yield step
            if bars is outer:
                bars.remove_task(task)
    finally:
        _OUTER.reset(token)


def _bars(show: bool | None) -> Progress:
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
    return Progress(*columns, console=console, transient=True)
