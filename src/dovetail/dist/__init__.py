"""Several processes as one, on ``torch.distributed``."""

from __future__ import annotations

from dovetail.dist.averaging import Averaging, Exchanges
from dovetail.dist.group import is_distributed, merge_across, rank_and_size
from dovetail.dist.packed_mean import Average, averaged

__all__ = [
    "Average",
    "Averaging",
    "Exchanges",
    "averaged",
    "is_distributed",
    "merge_across",
    "rank_and_size",
]
