"""Which examples train, validate and test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import TaskError, nearest
from dovetail.core.seeds import generator

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

_CARVED = 0.1
_FIRST_SERVED: tuple[Split, ...] = ("train", "test", "validation")
"""Who gets an example when a class has fewer examples than there are splits."""


def stratified_split(strata: Tensor, fractions: Sequence[float], seed: int) -> dict[Split, Tensor]:
    r"""Deal out every stratum (class) in the given fractions, at random.

    Of the :math:`n_c` examples of a class, split :math:`s` gets :math:`f_s n_c` rounded up or down
    such that the totals come out right, but at least one where there are enough (train is served
    first, then test, then validation).

    >>> split = stratified_split(torch.tensor([0] * 10 + [1] * 20), (0.7, 0.1, 0.2), seed=0)
    >>> [len(split[name]) for name in SPLITS]
    [21, 3, 6]
    """
    share = _fractions(fractions)
    mixed = torch.randperm(len(strata), generator=generator(seed, "split"))
    _, code, counts = torch.unique(strata, return_inverse=True, return_counts=True)
    by_class = torch.split(mixed[torch.argsort(code[mixed], stable=True)], counts.tolist())
    parts: dict[Split, list[Tensor]] = {name: [] for name in SPLITS}
    owed: dict[Split, float] = dict.fromkeys(SPLITS, 0.0)
    for members in by_class:
        sizes = _deal(len(members), share, owed)
        pieces = torch.split(members, [sizes[name] for name in SPLITS])
        for name, piece in zip(SPLITS, pieces, strict=True):
            parts[name].append(piece)
    return {name: torch.cat(pieces).sort().values for name, pieces in parts.items()}


def given_split(
    split: Mapping[str, Any], count: int, strata: Tensor, seed: int
) -> dict[Split, Tensor]:
    """Check a split that the user made; carve the validation examples off train if there are none.

    >>> given = {"train": range(20), "test": [20, 21]}
    >>> split = given_split(given, 22, torch.zeros(22), seed=0)
    >>> [len(split[name]) for name in SPLITS]
    [18, 2, 2]
    """
    unknown = [name for name in split if name not in SPLITS]
    if unknown:
        raise TaskError(f"unknown split {unknown[0]!r}{nearest(str(unknown[0]), SPLITS)}")
    for name in ("train", "test"):
        if name not in split:
            raise TaskError(f"the split names no {name!r} examples")
    rows = {name: _rows(split[name], name, count) for name in SPLITS if name in split}
    owner = torch.full((count,), -1)
    for number, (name, index) in enumerate(rows.items()):
        twice = index[owner[index] >= 0]
        if len(twice):
            other = list(rows)[int(owner[twice[0]])]
            raise TaskError(f"sample {int(twice[0])} is in both {other!r} and {name!r}")
        owner[index] = number
    if len(rows["train"]) == 0:
        raise TaskError("the train split is empty")
    if "validation" not in rows:
        rows["train"], rows["validation"] = carve_validation(rows["train"], strata, seed)
    return {name: rows[name] for name in SPLITS}


def carve_validation(train: Tensor, strata: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Set a tenth of the training examples aside, of each class alike.

    >>> train, validation = carve_validation(torch.arange(20), torch.zeros(20), seed=0)
    >>> len(train), len(validation)
    (18, 2)
    """
    carved = stratified_split(strata[train], (1 - _CARVED, _CARVED, 0.0), seed)
    return train[carved["train"]], train[carved["validation"]]


def _deal(count: int, share: dict[Split, float], owed: dict[Split, float]) -> dict[Split, int]:
    """Sizes for one class; ``owed`` carries what rounding withheld on to the next class."""
    wanted = [name for name in _FIRST_SERVED if share[name] > 0][:count]
    sizes = dict.fromkeys(SPLITS, 0)
    sizes.update({name: max(1, int(share[name] * count)) for name in wanted})

    def lacks(name: Split) -> float:
        return share[name] * count + owed[name] - sizes[name]

    rest = count - sum(sizes.values())
    for name in sorted(wanted, key=lacks, reverse=True)[: max(rest, 0)]:
        sizes[name] += 1
    while sum(sizes.values()) > count:  # where "at least one" took more than its share
        sizes[min((name for name in wanted if sizes[name] > 1), key=lacks)] -= 1
    for name in SPLITS:
        owed[name] = lacks(name)
    return sizes


def _fractions(fractions: Sequence[float]) -> dict[Split, float]:
    try:
        values = tuple(float(value) for value in fractions)
    except (TypeError, ValueError):
        values = ()
    if len(values) != 3 or not all(value >= 0 for value in values):
        raise TaskError(
            f"split must be three fractions (train, validation, test) or a dict of indices, "
            f"got {fractions!r}"
        )
    if abs(sum(values) - 1) > 1e-6:
        raise TaskError(f"the fractions of the split sum to {sum(values):g}, not to 1")
    if values[0] == 0:
        raise TaskError("the train split is empty")
    return dict(zip(SPLITS, values, strict=True))


def _rows(index: Any, name: str, count: int) -> Tensor:
    array = index.cpu().numpy() if isinstance(index, Tensor) else np.asarray(index)
    if array.dtype == bool and array.shape == (count,):
        array = array.nonzero()[0]
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TaskError(f"the {name!r} split must be a list of indices")
    rows = torch.from_numpy(array.astype(np.int64)).sort().values
    if len(rows) and (int(rows[0]) < 0 or int(rows[-1]) >= count):
        outside = rows[0] if int(rows[0]) < 0 else rows[-1]
        raise TaskError(f"index {int(outside)} of the {name!r} split is not below {count}")
    again = rows[1:][rows[1:] == rows[:-1]]
    if len(again):
        raise TaskError(f"sample {int(again[0])} is twice in the {name!r} split")
    return rows
