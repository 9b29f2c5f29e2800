"""Normalisation after surgery: stored statistics, the batch's own, or re-estimated ones; and which.

Batch norm remembers the mean and variance of the features it was trained on.  Behind another
network's extractor those are wrong, and recombination fails for that reason alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, argument

if TYPE_CHECKING:
    from dovetail.parts.part import Part

Statistics = Literal["stored", "batch", "recalibrated"]
"""What batch norms can use."""

Norms = Literal["auto", "stored", "batch", "recalibrated"]
"""What may be asked for; :func:`settle_norms` makes :data:`Statistics` of it."""

M = TypeVar("M", bound=nn.Module)
_BatchNorm = nn.modules.batchnorm._BatchNorm


class _UsesBatch(_BatchNorm):
    """Batch norm that always uses the batch at hand and never updates what it stores."""

    def forward(self, input: Tensor) -> Tensor:
        if len(input) == 1 and not self.training:  # maps have some, but not those of the data
            raise ContractError(
                "this network normalises by the batch, and one input has no statistics of a batch; "
                f"give several, or join its parts with {argument('norms', 'recalibrated')} and "
                f"data=batches, or with {argument('norms', 'stored')}"
            )
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
    dovetail.core.errors.SettingsError: norms must be one of auto, stored, batch, recalibrated; ...
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


def with_norms(
    module: M, norms: Statistics, batches: Iterable[Tensor | tuple[Tensor, ...]] = ()
) -> M:
    """The module under a policy: itself, a twin that shares its tensors, or a recalibrated copy.

    Args:
        module: Any network.
        norms: One of :data:`Statistics`.
        batches: Prepared inputs, for ``"recalibrated"``.

    >>> net = nn.Sequential(nn.BatchNorm1d(1))
    >>> with_norms(net, "stored") is net, uses_batch_statistics(with_norms(net, "batch"))
    (True, True)
    """
    if norms == "recalibrated":
        return recalibrate(module, batches)
    return with_batch_statistics(module) if norms == "batch" else module


# Which of them ------------------------------------------------------------------------------------


class Chosen(NamedTuple):
    """Statistics for batch norms, and why "auto" has chosen them; no reason where it did not.

    >>> Chosen("batch", "the spaces differ").settings
    {'norms': 'batch', 'norms_why': 'the spaces differ'}
    """

    norms: Statistics
    why: str | None = None

    @property
    def settings(self) -> dict[str, str]:
        """For a record or an origin."""
        return {"norms": self.norms} | ({} if self.why is None else {"norms_why": self.why})


NOTHING_STORED = "no batch norm behind the seam has stored anything"
ONE_NETWORK = "what is stored behind the seam are statistics of this very front"
STRANGERS = "what is stored behind the seam are statistics of another front"
STITCHED = "a stitch gives what the front gave whose statistics are stored"
EXCHANGED = "the parts were trained for the statistics of each batch, to be exchanged"
TRAINED_SO = "the parts were trained for the stored statistics"

GUESSES = (STRANGERS, STITCHED)
"""Reasons that are right for most parts only; images with labels can do better."""

_FIRST = (EXCHANGED, STRANGERS, STITCHED)
"""Whose reason counts where several chains get one policy; the first chain's after them."""


def settle_norms(
    norms: Norms | Chosen,
    *chains: Sequence[Part],
    data: bool = False,
    trains_for: Literal["stored", "batch"] | None = None,
) -> Chosen:
    """What a policy comes to for parts that are joined: itself, unless it is "auto".

    Args:
        norms: What was asked for, or what has been chosen already.
        chains: Parts in a row, front first.  Several that are compared get one policy: each batch's
            statistics as soon as one of them needs those.
        data: Whether inputs are at hand.  Then statistics are estimated on them rather than taken
            from every batch, so that the network takes one input as well.
        trains_for: What a training that is about to begin prepares the parts for, whatever they
            were trained for before.

    >>> settle_norms("batch"), settle_norms("recalibrated").settings
    (Chosen(norms='batch', why=None), {'norms': 'recalibrated'})
    """
    if isinstance(norms, Chosen):
        return norms
    check_norms(norms)
    if norms != "auto":
        return Chosen(norms)
    each = [norms_for(*chain) for chain in chains]
    due = min(each, key=lambda one: _FIRST.index(one.why) if one.why in _FIRST else len(_FIRST))
    if trains_for is not None and any(one.why != NOTHING_STORED for one in each):
        due = Chosen(trains_for, EXCHANGED if trains_for == "batch" else TRAINED_SO)
    return Chosen("recalibrated", due.why) if data and due.norms == "batch" else due


def norms_for(*parts: Part) -> Chosen:
    """The statistics that parts in a row, front first, were trained for: "stored" or "batch".

    Stored ones, unless batch norms behind a seam have stored those of another front because the
    contract refuses the seam; or because the parts' origins say that they were trained for each
    batch's own statistics, as compatible training does.  Where one part was trained behind the
    other, its word counts.  A network's own halves, which have one origin, keep the stored ones
    whatever it says.  A stitch keeps them too: it imitates the front that they are of.

    What no training has prepared (:data:`GUESSES`) labels can decide better than any rule: see
    :func:`dovetail.measure.pairs.choose_norms`.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> nets = [build("mlp", hidden=(8, 8), norm="batch", seed=seed) for seed in (0, 1)]
    >>> (front, head), (other, _) = (cut(net, at="hidden1") for net in nets)
    >>> norms_for(front, head).norms, norms_for(other, head).norms
    ('stored', 'batch')
    """
    last = max((n for n, part in enumerate(parts) if _stores(part.module)), default=0)
    if last == 0:  # a first part's statistics are of the inputs, whatever follows
        return Chosen("stored", NOTHING_STORED)
    said = []
    for before, after in pairwise(parts[: last + 1]):
        if before.contract.mismatches(after.contract):
            return Chosen("batch", STRANGERS)
        said.append(_trained_for(before, after))
    if "batch" in said:
        return Chosen("batch", EXCHANGED)
    if "stitched" in said:
        return Chosen("stored", STITCHED)
    return Chosen("stored", TRAINED_SO if "stored" in said else ONE_NETWORK)


def _trained_for(before: Part, after: Part) -> str | None:
    """What two parts that fit say of the statistics behind their seam, if they say anything."""
    if before.origin == after.origin:
        return None
    mine, theirs = (part.origin.trained_norms.get("norms") for part in (before, after))
    if mine != theirs and after.digest in before.origin.parents:
        theirs = None
    elif mine != theirs and before.digest in after.origin.parents:
        mine = None
    # Recalibrated statistics belong to the network that was made with them, not to its parts.
    if {mine, theirs} & {"batch", "recalibrated"}:
        return "batch"
    if "stored" in (mine, theirs):
        return "stored"
    return "stitched" if before.origin.how == "stitch" else None


def _stores(module: nn.Module) -> bool:
    return any(
        isinstance(child, _BatchNorm) and not isinstance(child, _UsesBatch)
        for child in module.modules()
    )
