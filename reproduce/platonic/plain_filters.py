"""Filters by the recurrence on patches, as they are: one sign, no contrast taken off."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from dovetail.closed_form.patches import SAMPLE, patches_of
from dovetail.closed_form.platonic import platonic
from dovetail.closed_form.rows import HeldRows


def plain_filters(
    images: Tensor, labels: Tensor, filters: int, *, size: int, pool: int, by: str, seed: int
) -> nn.Sequential:
    """A convolution is a linear layer on patches, each with its image's label; ReLU, pooling."""
    rows, owners = patches_of(images, size, SAMPLE, seed)
    told = one_hot(labels.long()).double()[owners]
    found = platonic(HeldRows(rows, told), (filters,), projections=(by,), seed=seed).layers[0]
    convolution = nn.Conv2d(images.shape[1], filters, size, dtype=torch.float64)
    weights = found.weights.T.reshape(filters, images.shape[1], size, size)
    convolution.load_state_dict({"weight": weights, "bias": found.bias})
    return nn.Sequential(
        OrderedDict(filters=convolution, act=nn.ReLU(), pool=nn.AvgPool2d(pool))
    ).requires_grad_(False)
