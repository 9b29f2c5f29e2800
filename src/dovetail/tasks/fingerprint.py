"""A digest of what a task is, for records and caches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dovetail.tasks.arrays import blocks, take_rows
from dovetail.tasks.pairs import Pairs
from dovetail.tasks.splits import SPLITS, Split

__all__ = ["digest_of"]


def digest_of(
    kind: str,
    classes: tuple[str, ...],
    inputs: Tensor,
    targets: Tensor,
    indices: Mapping[Split, Tensor],
    pairs: Pairs | None,
) -> str:
    """The sha256 of a header, then of each split's inputs, targets and pairs, block by block.

    Rows are taken split by split, so a derived task that shares a large storage has the digest of
    the same task made from its own rows only.

    >>> import torch
    >>> rows = {"train": torch.arange(2), "validation": torch.arange(0), "test": torch.arange(0)}
    >>> len(digest_of("regression", (), torch.zeros(2, 3), torch.zeros(2), rows, None))
    64
    """
    header = {
        "kind": kind,
        "classes": classes,
        "inputs": [str(inputs.dtype), *inputs.shape[1:]],
        "targets": [str(targets.dtype), *targets.shape[1:]],
        "sizes": [len(indices[split]) for split in SPLITS],
    }
    digest = hashlib.sha256(json.dumps(header).encode())
    for split in SPLITS:
        index = indices[split]
        for values in (inputs, targets):
            for part in blocks(values, len(index)):
                _update(digest, take_rows(values, index[part]))
        if pairs is not None:
            found = pairs.within(index)
            for values in (found.first, found.second, found.same):
                _update(digest, values)
    return digest.hexdigest()


def _update(digest: Any, values: Tensor) -> None:
    digest.update(values.contiguous().numpy())
