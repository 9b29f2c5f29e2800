"""A part's features on a task, kept on disk under what they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError
from dovetail.core.files import write_whole
from dovetail.core.plain import dumps
from dovetail.measure.forward import outputs_of, refuse_other_inputs
from dovetail.measure.remembered import at_hand
from dovetail.parts.cutting import cut
from dovetail.parts.modules import structure_of
from dovetail.parts.part import Part, as_part
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

Pooling = Literal["average", "flatten"]


@dataclass(frozen=True, eq=False)
class Features:
    """Rows of features ``[n, d]``, their targets, and the settings that made them."""

    values: Tensor
    targets: Tensor
    settings: dict[str, Any]

    def __repr__(self) -> str:
        return f"Features({tuple(self.values.shape)}, {self.settings['pooling']} pooling)"


def features(
    part: Part | nn.Module,
    task: Task,
    *,
    split: Split = "train",
    pooling: Pooling = "average",
    batch_size: int = 512,
    cache: str | Path | None = None,
) -> Features:
    """What a part gives for a split of a task, as rows.

    With a ``cache`` folder the rows are kept there under the fingerprints of part and task, and
    read back when nothing they depend on has changed.  A part without a recipe is never cached:
    its weights do not say what it computes.

    >>> import torch
    >>> from dovetail.parts.part import build
    >>> from dovetail.parts.cutting import cut
    >>> front, _ = cut(build("lenet5", size=8), at="conv2")
    >>> features(front, Task(torch.rand(60, 1, 8, 8), [0, 1, 2] * 20))
    Features((42, 16), average pooling)
    """
    part = as_part(part)
    if pooling not in ("average", "flatten"):
        raise SettingsError(f"pooling must be 'average' or 'flatten', got {pooling!r}")
    refuse_other_inputs(task, part.contract)
    inputs, targets = task.subset(split)
    settings = {"split": split, "pooling": pooling, "batch_size": batch_size}
    file = None
    if cache is not None and part.recipe is not None:
        file = Path(cache) / f"{_key(part, task, settings)}.safetensors"
        if (cached := _read(file, len(inputs))) is not None:
            return Features(cached, targets, settings)
    values = feature_rows(part, inputs, pooling, batch_size=batch_size)
    if file is not None:
        write_whole(file, save({"features": values.contiguous()}))
    return Features(values, targets, settings)


def feature_rows(
    part: Part, inputs: Tensor, pooling: Pooling = "average", *, batch_size: int = 512
) -> Tensor:
    """What a part gives for raw inputs ``[n, ...]``, as rows ``[n, d]``.

    Within :func:`~dovetail.measure.remembered.remembering`, rows that are known are not computed.
    """
    pool = partial(pooled, pooling=pooling)
    run = partial(outputs_of, part, batch_size=batch_size, each=pool)
    known = at_hand()
    return run(inputs) if known is None else known.of(part, pooling, inputs, run)


def pooled(output: Tensor, pooling: Pooling) -> Tensor:
    """Feature maps ``[n, c, ...]`` as rows: the mean over positions, or all of it.

    >>> import torch
    >>> maps = torch.ones(2, 3, 4, 4)
    >>> pooled(maps, "average").shape, pooled(maps, "flatten").shape
    (torch.Size([2, 3]), torch.Size([2, 48]))
    """
    if output.ndim > 2 and pooling == "average":
        return output.flatten(2).mean(2)
    return output[:, None] if output.ndim == 1 else output.flatten(1)


def _key(part: Part, task: Task, settings: dict[str, Any]) -> str:
    facts = {
        "part": part.digest,
        "recipe": part.recipe,
        "structure": structure_of(part.module),
        "preprocess": part.contract.preprocess,
        "task": task.fingerprint,
        **settings,
    }
    return hashlib.sha256(dumps(facts).encode()).hexdigest()[:32]


def _read(file: Path, rows: int) -> Tensor | None:
    try:
        stored = load_file(file).get("features")
    except (OSError, SafetensorError):
        return None  # not there, or damaged: computed anew
    return stored if stored is not None and len(stored) == rows else None


def features_along(
    part: Part | nn.Module,
    at: Sequence[str],
    task: Task,
    *,
    split: Split = "train",
    pooling: Pooling = "average",
    batch_size: int = 512,
) -> dict[str, Features]:
    """What a network gives at each of several points, as rows.

    The network is cut at one point after the other and every batch runs once through the pieces:
    all points cost one pass up to the last of them.

    Args:
        part: The network.
        at: Names of cut points in the order of the network, as ``cut_points`` lists them.
        task: Where the inputs come from.
        split: Which of them.
        pooling: How feature maps become rows.
        batch_size: Inputs a batch.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(60, 1, 8, 8), [0, 1, 2] * 20)
    >>> along = features_along(build("lenet5", size=8), ["conv1", "fc1"], task)
    >>> {name: tuple(found.values.shape) for name, found in along.items()}
    {'conv1': (42, 6), 'fc1': (42, 120)}
    """
    pieces, _ = pieces_along(part, at)
    options: dict[str, Any] = {"split": split, "pooling": pooling, "batch_size": batch_size}
    return features_through(part, pieces, task, **options)


def pieces_along(part: Part | nn.Module, at: Sequence[str]) -> tuple[dict[str, nn.Module], Part]:
    """What lies before each of several cut points, since the one before it, and what is left.

    >>> from dovetail.parts.part import build
    >>> pieces, rest = pieces_along(build("lenet5", size=8), ["conv1", "fc1"])
    >>> list(pieces), rest.contract.gives[0].shape
    (['conv1', 'fc1'], (10,))
    """
    rest = as_part(part)
    if len(set(at)) < len(at) or not at:
        raise SettingsError("name at least one cut point, and each of them once")
    pieces = {}
    for name in at:
        front, rest = cut(rest, at=name)
        if len(front.contract.gives) != 1:
            raise ContractError(f"{len(front.contract.gives)} tensors cross at {name!r}, not one")
        pieces[name] = front.module
    return pieces, rest


def features_through(
    part: Part | nn.Module,
    pieces: Mapping[str, nn.Module],
    task: Task,
    *,
    split: Split = "train",
    pooling: Pooling = "average",
    batch_size: int = 512,
) -> dict[str, Features]:
    """What each piece of a network gives, as rows: every batch runs once through all of them."""
    part = as_part(part)
    refuse_other_inputs(task, part.contract)
    inputs, targets = task.subset(split)
    tapped = _Tapped(list(pieces.values()), pooling)
    values = outputs_of(part.changed(module=tapped), inputs, batch_size=batch_size)
    settings = {"split": split, "pooling": pooling, "batch_size": batch_size}
    columns = torch.split(values, tapped.widths, dim=1)
    return {
        name: Features(rows.contiguous(), targets, settings | {"at": name})
        for name, rows in zip(pieces, columns, strict=True)
    }


class _Tapped(nn.Module):
    """Pieces in a row; gives the pooled output of each, side by side ``[n, d1 + d2 + ...]``."""

    def __init__(self, pieces: list[nn.Module], pooling: Pooling) -> None:
        super().__init__()
        self.pieces = nn.ModuleList(pieces)
        self.pooling: Pooling = pooling
        self.widths: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        taps = []
        for piece in self.pieces:
            x = piece(x)
            taps.append(pooled(x, self.pooling))
        self.widths = [tap.shape[1] for tap in taps]
        return torch.cat(taps, dim=1)
