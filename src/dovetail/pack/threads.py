"""Work on blocks by several threads, handed back in order, and the memory that each uses again.

Results do not depend on the number of threads, and no more blocks are under way at once than twice
as many as there are threads, so that a file larger than memory passes through.  New memory costs
more than the sums in it, so a thread keeps what it used, but no more than a block of each kind.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

T = TypeVar("T")
R = TypeVar("R")


class Pool:
    """As many threads as torch uses, unless told; they end with the ``with`` block.

    They start when there is more than one block to work on.

    >>> with Pool(2) as threads:
    ...     list(threads.each(abs, [-1, -2, -3]))
    [1, 2, 3]
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or torch.get_num_threads()
        self._threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def each(self, work: Callable[[T], R], items: Iterable[T], count: int = 2) -> Iterator[R]:
        """``work`` of each item, in order; ``count`` says how many there are, if that is known."""
        if self.workers < 2 or count < 2:
            yield from map(work, items)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.workers, "dovetail-pack")
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(self._threads.submit(work, item))
                if len(waiting) >= 2 * self.workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


LARGEST = 1 << 20
"""Whoever asks for more numbers than this gets memory of its own."""

_own = threading.local()


def scratch(purpose: str, count: int, kind: DTypeLike) -> NDArray[Any]:
    """``count`` numbers of this kind, whatever they hold, until the thread asks for them again.

    >>> scratch("sums", 3, np.float32).base is scratch("sums", 2, np.float32).base
    True
    """
    if count > LARGEST:
        return np.empty(count, kind)
    name = f"{purpose} {np.dtype(kind).name}"
    memory: NDArray[Any] | None = getattr(_own, name, None)
    if memory is None or len(memory) < count:
        memory = np.empty(count, kind)
        setattr(_own, name, memory)
    return memory[:count]
