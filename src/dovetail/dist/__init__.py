"""Several processes as one, on ``torch.distributed``."""

from __future__ import annotations

from dovetail.dist.group import is_distributed, merge_across, rank_and_size

__all__ = ["is_distributed", "merge_across", "rank_and_size"]
