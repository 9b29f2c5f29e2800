"""Normalisation after surgery: stored statistics, the batch's own, or re-estimated ones.

Batch norm remembers the mean and variance of the features it was trained on.  Behind another
network's extractor those are wrong, and recombination fails for that reason alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import chain
from typing import Literal, TypeVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.core.errors import SettingsError

__all__ = [
    "Norms",
    "check_norms",
    "recalibrate",
    "shallow_copy",
    "with_batch_statistics",
    "with_norms",
]

Norms = Literal["stored", "batch", "recalibrated"]

M = TypeVar("M", bound=nn.Module)
_BatchNorm = nn.modules.batchnorm._BatchNorm


class _UsesBatch(_BatchNorm):
    """Batch norm that always uses the batch at hand and never updates what it stores."""

    def forward(self, input: Tensor) -> Tensor:
        return F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)


class BatchBatchNorm1d(_UsesBatch, nn.BatchNorm1d):
    """:class:`torch.nn.BatchNorm1d` with batch statistics also in evaluation."""


class BatchBatchNorm2d(_UsesBatch, nn.BatchNorm2d):
    """:class:`torch.nn.BatchNorm2d` with batch statistics also in evaluation."""


class BatchBatchNorm3d(_UsesBatch, nn.BatchNorm3d):
    """:class:`torch.nn.BatchNorm3d` with batch statistics also in evaluation."""


_BATCH: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchBatchNorm1d,
    nn.BatchNorm2d: BatchBatchNorm2d,
    nn.BatchNorm3d: BatchBatchNorm3d,
}


def check_norms(norms: str) -> None:
    """Refuse a policy that nobody knows, before anything is built or trained for it.

    >>> check_norms("instance")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: norms must be one of stored, batch, recalibrated; got ...
    """
    if norms not in get_args(Norms):
        raise SettingsError(f"norms must be one of {', '.join(get_args(Norms))}; got {norms!r}")


def shallow_copy(module: M) -> M:
    """A copy of the structure that shares every parameter and buffer.

    >>> net = nn.Linear(2, 2)
    >>> twin = shallow_copy(net)
    >>> twin is net, twin.weight is net.weight
    (False, True)
    """
    tensors = chain(module.parameters(), module.buffers())
    return copy.deepcopy(module, memo={id(tensor): tensor for tensor in tensors})


def with_batch_statistics(module: M) -> M:
    """The same network, tensors shared, whose batch norms use each batch's own statistics.

    >>> net = nn.Sequential(nn.BatchNorm1d(1)).eval()
    >>> x = torch.tensor([[10.0], [12.0]])
    >>> with_batch_statistics(net)(x).round().flatten().tolist()
    [-1.0, 1.0]
    """
    twin = shallow_copy(module)
    for child in twin.modules():
        known = type(child) in _BATCH or isinstance(child, _UsesBatch)
        if isinstance(child, _BatchNorm) and not known:
            raise SettingsError(f"no form with batch statistics is known of {type(child).__name__}")
        if type(child) in _BATCH:
            # Only forward differs, so the class alone is exchanged: names and tensors stay.
            child.__class__ = _BATCH[type(child)]
    return twin


def has_batch_norm(module: nn.Module) -> bool:
    """Whether any statistics of batches are used or stored inside.

    >>> has_batch_norm(nn.Sequential(nn.BatchNorm1d(2))), has_batch_norm(nn.LayerNorm(2))
    (True, False)
    """
    return any(isinstance(child, _BatchNorm) for child in module.modules())


def uses_batch_statistics(module: nn.Module) -> bool:
    """Whether outputs depend on the other inputs in a batch, also in evaluation.

    >>> uses_batch_statistics(with_batch_statistics(nn.Sequential(nn.BatchNorm1d(2))))
    True
    """
    return any(isinstance(child, _UsesBatch) for child in module.modules())


def recalibrate(module: M, batches: Iterable[Tensor | tuple[Tensor, ...]]) -> M:
    """A copy whose batch norms hold the average of the given batches' means and variances.

    Draw the batches at random: the variance *between* batches does not count.  Every norm sees the
    batches once, in training mode, and averages over them with equal weight; every other layer is
    in evaluation mode meanwhile.

    >>> net = recalibrate(nn.Sequential(nn.BatchNorm1d(1)), [torch.tensor([[10.0], [12.0]])])
    >>> net[0].running_mean
    tensor([11.])
    """
    twin = copy.deepcopy(module)
    norms = [
        child
        for child in twin.modules()
        if isinstance(child, _BatchNorm) and not isinstance(child, _UsesBatch)
    ]
    flags = [(child, child.training) for child in twin.modules()]
    momenta = [norm.momentum for norm in norms]
    twin.eval()
    for norm in norms:
        norm.train()
        norm.reset_running_stats()
        norm.momentum = None  # None asks torch for the plain average
    with torch.no_grad():
        empty = True
        for batch in batches:
            twin(*batch) if isinstance(batch, tuple) else twin(batch)
            empty = False
    if empty:
        raise SettingsError("recalibrating needs at least one batch of inputs, got none")
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    for child, flag in flags:
        child.training = flag
    return twin


def with_norms(module: M, norms: Norms, batches: Iterable[Tensor | tuple[Tensor, ...]] = ()) -> M:
    """The module under a policy: itself, a twin that shares its tensors, or a recalibrated copy.

    Args:
        module: Any network.
        norms: One of :data:`Norms`.
        batches: Prepared inputs, for ``"recalibrated"``.

    >>> net = nn.Sequential(nn.BatchNorm1d(1))
    >>> with_norms(net, "stored") is net, uses_batch_statistics(with_norms(net, "batch"))
    (True, True)
    """
    check_norms(norms)
    if norms == "recalibrated":
        return recalibrate(module, batches)
    return with_batch_statistics(module) if norms == "batch" else module
