"""Memory that a thread uses again for every block: new memory costs more than the sums in it.

A thread keeps no more than a block of each kind; whoever asks for more gets memory of its own.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["scratch"]

LARGEST = 1 << 20

_own = threading.local()


def scratch(purpose: str, count: int, kind: DTypeLike) -> NDArray[Any]:
    """``count`` numbers of this kind, whatever they hold, until the thread asks for them again.

    >>> scratch("sums", 3, np.float32).base is scratch("sums", 2, np.float32).base
    True
    """
    if count > LARGEST:
        return np.empty(count, kind)
    name = f"{purpose} {np.dtype(kind).name}"
    kept: NDArray[Any] | None = getattr(_own, name, None)
    if kept is None or len(kept) < count:
        kept = np.empty(count, kind)
        setattr(_own, name, kept)
    return kept[:count]
