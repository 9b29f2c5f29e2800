"""Weights packed small: quantised as finely as they need, coded close to their entropy."""

from dovetail.pack.compressing import compress, write
from dovetail.pack.decompressing import decompress, read, read_header
from dovetail.pack.packed import Packed, PackedTensor, describe
from dovetail.pack.quality import Chosen, smallest_within

__all__ = [
    "Chosen",
    "Packed",
    "PackedTensor",
    "compress",
    "decompress",
    "describe",
    "read",
    "read_header",
    "smallest_within",
    "write",
]
