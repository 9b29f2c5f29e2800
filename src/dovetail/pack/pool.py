"""Work on blocks by several threads, handed back in order.

Results do not depend on the number of threads, and no more blocks are under way at once than twice
as many as there are threads, so that a file larger than memory passes through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

__all__ = ["Pool", "pool"]

T = TypeVar("T")
R = TypeVar("R")


class Pool:
    """Threads that start when there is more than one block to work on.

    >>> with pool(2) as threads:
    ...     list(threads.each(abs, [-1, -2, -3]))
    [1, 2, 3]
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._threads: ThreadPoolExecutor | None = None

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

    def close(self) -> None:
        """Let the threads go."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)


@contextmanager
def pool(workers: int | None = None) -> Iterator[Pool]:
    """As many threads as torch uses, unless told; they end with the block."""
    threads = Pool(workers or torch.get_num_threads())
    try:
        yield threads
    finally:
        threads.close()
