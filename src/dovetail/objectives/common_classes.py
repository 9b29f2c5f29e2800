r"""The loss of a shared head that tells common classes apart.

.. math:: \frac{1}{n} \sum_i \ell\big(c(f(x_i)), y_i\big) \cdot 1[y_i \in \mathcal{C}]

The mean is over the whole batch: examples of other classes count as zero, as in the sum over a data
set, so a batch with few common examples weighs little.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["OTHER", "common_class_loss", "common_codes"]

OTHER = -100
"""The code of a class that is not common."""


def common_codes(classes: Sequence[str], common: Sequence[str]) -> Tensor:
    """For each of a task's classes its place among the common ones, or :data:`OTHER` ``[classes]``.

    >>> common_codes(("cat", "dog", "owl"), ("owl", "cat")).tolist()
    [1, -100, 0]
    """
    places = {name: place for place, name in enumerate(common)}
    return torch.tensor([places.get(name, OTHER) for name in classes])


def common_class_loss(outputs: Tensor, codes: Tensor) -> Tensor:
    """Cross-entropy of ``outputs [n, common]`` with ``codes [n]``, over all ``n``.

    >>> sure = torch.tensor([[9.0, -9.0], [9.0, -9.0]])
    >>> common_class_loss(sure, torch.tensor([1, OTHER]))
    tensor(9.)
    """
    return F.cross_entropy(outputs, codes, ignore_index=OTHER, reduction="sum") / len(codes)
