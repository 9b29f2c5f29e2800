"""Which samples are known to be of one class, which of two, and of which nobody has said."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError

__all__ = [
    "Relations",
    "relations_of",
    "relations_of_labels",
    "relations_of_masks",
    "relations_of_pairs",
]


@dataclass(frozen=True, eq=False)
class Relations:
    """Two symmetric masks ``[n, n]`` with an empty diagonal: alike, and different.

    A pair in neither is unknown.  Being alike need not be transitive: of pair labels nobody knows
    the classes behind them.

    >>> relations_of_labels(torch.tensor([4, 4, 9]))
    Relations(3 samples, 1 pair alike, 2 pairs different)
    """

    same: Tensor
    different: Tensor

    @property
    def known(self) -> Tensor:
        """The pairs of which either was said, ``[n, n]``.

        >>> relations_of_labels(torch.tensor([0, 1])).known
        tensor([[False,  True],
                [ True, False]])
        """
        return self.same | self.different

    def __len__(self) -> int:
        return len(self.same)

    def __repr__(self) -> str:
        alike, different = (int(mask.sum()) // 2 for mask in (self.same, self.different))
        return (
            f"Relations({len(self)} samples, {_pairs(alike)} alike, {_pairs(different)} different)"
        )


def relations_of(
    count: int,
    labels: Tensor | None = None,
    *,
    same: Tensor | None = None,
    different: Tensor | None = None,
) -> Relations:
    """The relations of ``count`` samples, from their labels or else from masks.

    >>> relations_of(2, same=torch.tensor([[False, True], [False, False]]))
    Relations(2 samples, 1 pair alike, 0 pairs different)
    """
    if labels is not None:
        if same is not None or different is not None:
            raise SettingsError("give labels, or the masks same and different, but not both")
        relations = relations_of_labels(labels)
    else:
        relations = relations_of_masks(same, different)
    if len(relations) != count:
        raise TaskError(f"{count} rows of features, but labels or masks for {len(relations)}")
    return relations


def relations_of_labels(labels: Tensor) -> Relations:
    """What labels ``[n]`` say: everything.  Any integers will do; only equality counts.

    >>> relations_of_labels(torch.tensor([-1, 7, 7])).same
    tensor([[False, False, False],
            [False, False,  True],
            [False,  True, False]])
    """
    if not isinstance(labels, Tensor) or labels.ndim != 1:
        shape = list(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise TaskError(f"labels must be a tensor of shape [n], one a sample, got {shape}")
    if labels.is_floating_point() or labels.is_complex():
        raise TaskError(
            f"labels must be integers, got {labels.dtype}; whether two numbers are alike "
            "is for you to say, with the masks same and different"
        )
    equal = labels[:, None] == labels[None, :]
    different = ~equal
    return Relations(equal.fill_diagonal_(False), different)


def relations_of_masks(same: Tensor | None, different: Tensor | None) -> Relations:
    """What two boolean masks ``[n, n]`` say; one may be missing.

    A relation holds both ways, so one triangle is enough.  Every sample is like itself, whether or
    not the diagonal of ``same`` says so.

    >>> both = torch.tensor([[False, True], [False, False]])
    >>> relations_of_masks(both, both)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: samples 0 and 1 are given both as alike and as different; ...
    """
    given = same if same is not None else different
    if given is None:
        raise SettingsError("say which samples are alike: give labels, or same= and different=")
    for name, mask in (("same", same), ("different", different)):
        if mask is not None:
            _refuse_no_mask(name, mask)
    nothing = torch.zeros_like(given)
    alike, unlike = (nothing if mask is None else mask | mask.T for mask in (same, different))
    if alike.shape != unlike.shape:
        raise TaskError(f"same is for {len(alike)} samples, different for {len(unlike)}")
    unlike = unlike.to(alike.device)
    itself = unlike.diagonal().nonzero()
    if len(itself):
        raise TaskError(f"sample {int(itself[0])} is given as different from itself")
    alike = alike.clone().fill_diagonal_(False)
    _refuse_both(alike, unlike)
    return Relations(alike, unlike)


def relations_of_pairs(count: int, first: Tensor, second: Tensor, same: Tensor) -> Relations:
    """What a list of pairs says: rows ``first [m]`` and ``second [m]``, alike where ``same [m]``.

    >>> first, second = torch.tensor([0, 0]), torch.tensor([1, 2])
    >>> relations_of_pairs(4, first, second, torch.tensor([True, False]))
    Relations(4 samples, 1 pair alike, 1 pair different)
    """
    ends = (first, second)
    if any(end.ndim != 1 or end.shape != same.shape for end in ends):
        shapes = ", ".join(str(list(end.shape)) for end in (*ends, same))
        raise TaskError(f"pairs take three tensors of one length, got shapes {shapes}")
    if any(end.dtype != torch.int64 for end in ends) or same.dtype != torch.bool:
        raise TaskError("pairs take int64 rows (first, second) and booleans (same)")
    both = torch.cat(ends)
    outside = both[(both < 0) | (both >= count)]
    if len(outside):
        raise TaskError(f"a pair names sample {int(outside[0])}, but there are {count}")
    itself = (first == second).nonzero()
    if len(itself):
        raise TaskError(f"pair {int(itself[0])} joins sample {int(first[itself[0]])} with itself")
    masks = torch.zeros(2, count, count, dtype=torch.bool, device=same.device)
    masks[0, first[same], second[same]] = True
    masks[1, first[~same], second[~same]] = True
    return relations_of_masks(masks[0], masks[1])


def _refuse_no_mask(name: str, mask: Tensor) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TaskError(f"{name} must be a boolean tensor [n, n], got {kind}")
    if mask.ndim != 2 or mask.shape[0] != mask.shape[1]:
        raise TaskError(f"{name} must be a boolean tensor [n, n], got shape {list(mask.shape)}")


def _refuse_both(same: Tensor, different: Tensor) -> None:
    clash = (same & different).nonzero()
    if len(clash):
        i, j = clash[0].tolist()
        raise TaskError(
            f"samples {i} and {j} are given both as alike and as different; "
            "leave out what you do not trust: a pair that is in neither mask counts as unknown"
        )


def _pairs(count: int) -> str:
    return f"{count} pair" if count == 1 else f"{count} pairs"
