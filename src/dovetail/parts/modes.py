"""Training and evaluation mode, switched without leaving a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["evaluating"]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients inside the block; every flag as before after it.

    >>> net = nn.Sequential(nn.Dropout())
    >>> with evaluating(net):
    ...     net.training
    False
    >>> net.training
    True
    """
    flags = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for child, flag in flags:
            child.training = flag
