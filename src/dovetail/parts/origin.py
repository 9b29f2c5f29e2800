"""Where a part comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Origin"]


@dataclass(frozen=True)
class Origin:
    """How a part was made, of which parts, on which task, and what was measured of it.

    ``parents`` are digests of parts (see :attr:`Part.digest`), so that lineage survives renaming.

    >>> Origin(how="train", task="digits", measured={"validation accuracy": 0.98}).how
    'train'
    """

    how: str = "unknown"
    parents: tuple[str, ...] = ()
    task: str | None = None
    task_fingerprint: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
