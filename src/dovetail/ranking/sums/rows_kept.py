"""Rows kept as they are, while they are fewer than features."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from dovetail.core.errors import TaskError

__all__ = ["KeptRows"]


class KeptRows:
    """Rows ``float64 [n, d]`` with labels ``int64 [n]`` or numbers ``float64 [n, k]``.

    >>> kept = KeptRows()
    >>> kept.add(torch.eye(2).double(), torch.tensor([0, 1]))
    >>> len(kept), kept.labels()
    (2, tensor([0, 1]))
    """

    def __init__(self) -> None:
        self._pieces: list[tuple[Tensor, Tensor]] = []

    def __len__(self) -> int:
        return sum(len(rows) for rows, _ in self._pieces)

    def add(self, rows: Tensor, targets: Tensor) -> None:
        """Keep copies of more rows."""
        self._pieces.append((rows.clone(), targets.clone()))

    def extend(self, other: KeptRows) -> None:
        """Keep the rows of another too."""
        self._pieces += other._pieces

    def all(self) -> tuple[Tensor, Tensor]:
        """Every row and target, in the order they came; at least one."""
        if len(self._pieces) > 1:
            rows, targets = zip(*self._pieces, strict=True)
            self._pieces = [(torch.cat(rows), torch.cat(targets))]
        return self._pieces[0]

    def labels(self) -> Tensor:
        """The labels of all rows ``[n]``; none where targets are numbers."""
        found = [targets for _, targets in self._pieces if not targets.is_floating_point()]
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)

    def clear(self) -> None:
        """Forget every row."""
        self._pieces = []

    def remove(self, other: KeptRows) -> None:
        """Forget the rows of another; each must be here, to the last bit."""
        gone = Counter(other._names())
        stays = []
        for name in self._names():
            stays.append(not gone[name])
            if gone[name]:
                gone[name] -= 1
        missing = sum(gone.values())
        if missing:
            raise TaskError(
                f"{missing} of the {len(other)} rows to take away are not among the {len(self)} "
                "kept: only what was added before can be taken away"
            )
        rows, targets = self.all()
        mask = torch.tensor(stays)
        self._pieces = [(rows[mask], targets[mask])] if mask.any() else []

    def _names(self) -> list[bytes]:
        return [
            row.tobytes() + target.tobytes()
            for rows, targets in self._pieces
            for row, target in zip(rows.numpy(), targets.numpy(), strict=True)
        ]
