"""Ctrl-C between two steps instead of within one, so that there is something whole to save."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["between_steps"]


@contextmanager
def between_steps() -> Iterator[Callable[[], bool]]:
    """Hold back Ctrl-C and SIGTERM; the function you get says whether one has come.

    A second one is not held back.  Outside the main thread Python allows no handlers, and nothing
    is changed.

    >>> with between_steps() as interrupted:
    ...     signal.raise_signal(signal.SIGINT)
    ...     interrupted()
    True
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
