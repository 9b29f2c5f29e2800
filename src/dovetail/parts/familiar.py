r"""How far a part's features of an input are from those of the data that it was made on.

Let :math:`z \in \mathbb{R}^d` be what the part's last layer takes (maps are averaged over their
positions), :math:`u = z / \lVert z \rVert` its direction and
:math:`\ell = \log \lVert z \rVert` its length.  Directions are compared with a Gaussian about each
class that all classes share, of low rank and otherwise round: with an orthonormal basis :math:`U`
of the :math:`r` directions in which they spread most within a class,
:math:`t = U^\top (u - \mu)`,

.. math::
    q(z) = \min_c \sum_{j \le r} \frac{(t_j - m_{cj})^2}{\lambda_j}
         + \frac{\lVert u - \mu - U t \rVert^2}{\sigma^2}, \qquad
    s(z) = \max\Big( \frac{q(z)}{a}, \frac{|\ell - \bar\ell|}{b} \Big).

:math:`a` and :math:`b` come from inputs held out, so that :math:`s > 1` for a chosen share of
inputs like those.  Without the first step, the direction, the distance fails: pictures without much
in them have *short* features, nearer to every mean than those of the training data are.

:mod:`dovetail.measure.familiar` fits one; here is what it is, and its file beside the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, FormatError, shown
from dovetail.core.folders import File, check_hash, longest_header, open_tensors, tensor_bytes
from dovetail.core.plain import dumps, from_plain, parse_json
from dovetail.parts.modules import described_slices

_ABOUT = "familiar"


@dataclass(frozen=True)
class _About:
    """What the file says besides its tensors."""

    at: str | None
    share: float
    task: str


@dataclass(frozen=True, eq=False)
class Familiar:
    """The features that a part knows, and how unlike them others are.

    Args:
        mean: :math:`\\mu`, ``[d]``, of directions.
        basis: :math:`U`, ``[d, r]``.
        spread: :math:`\\sqrt{\\lambda}`, ``[r]``.
        centres: :math:`m`, ``[k, r]``, of the classes, or one of zeros.
        rest: :math:`\\sigma`, ``[]``.
        length: :math:`\\bar\\ell`, ``[]``.
        scale: :math:`a, b`, ``[2]``.
        calibration: The scores of inputs held out, ``[n]``, ascending (some of them, of many).
        at: The layer whose input the features are; None for the part's own outputs.
        share: Of inputs like those held out, how many have a score above one.
        task: The data that it was fitted to.
    """

    mean: Tensor
    basis: Tensor
    spread: Tensor
    centres: Tensor
    rest: Tensor
    length: Tensor
    scale: Tensor
    calibration: Tensor
    at: str | None
    share: float
    task: str

    def distances(self, features: Tensor) -> Tensor:
        """:math:`q` and :math:`|\\ell - \\bar\\ell|` of features ``[n, d]``, as ``[n, 2]``."""
        z = features.detach().float().cpu()
        if z.shape[1:] != self.mean.shape:
            raise ContractError(
                f"features of {list(z.shape[1:])} numbers are not the {len(self.mean)} that the "
                "part's familiar ones have"
            )
        norm = z.norm(dim=1, keepdim=True).clamp(min=1e-12)
        u = z / norm - self.mean
        t = u @ self.basis
        inside = torch.cdist(
            t / self.spread,
            self.centres / self.spread,
            compute_mode="donot_use_mm_for_euclid_dist",  # by products, near ones lose their digits
        )
        outside = ((u - t @ self.basis.T) / self.rest).square().sum(1)
        return torch.stack(
            [inside.square().amin(1) + outside, (norm[:, 0].log() - self.length).abs()], 1
        )

    def scores(self, features: Tensor) -> Tensor:
        """How unlike features ``[n, d]`` are, ``[n]``: above one, as ``share`` of like inputs are.

        Features that are not finite are infinitely unlike.
        """
        scores = (self.distances(features) / self.scale).amax(1)
        return scores.nan_to_num(nan=torch.inf, posinf=torch.inf)

    def likeness(self, scores: Tensor) -> Tensor:
        r"""Of inputs like those held out, the share that is at least as unlike, ``[n]``.

        :math:`(1 + |\{i : s_i \ge s\}|) / (n + 1)`: uniform, or a little above, for like inputs.
        """
        below = torch.searchsorted(self.calibration, scores.float())
        n = len(self.calibration)
        return (1 + n - below).double() / (n + 1)

    @property
    def source(self) -> str:
        """What is compared, in words."""
        return "its outputs" if self.at is None else f"what {self.at or 'its only layer'!r} takes"

    def __repr__(self) -> str:
        return f"Familiar({self.task}: {self.source}, {len(self.mean)} numbers, {self.share:.0%})"

    def to_bytes(self) -> bytes:
        """Its file, the same bytes for the same numbers."""
        about = dumps(_About(self.at, self.share, self.task))
        return tensor_bytes({name: getattr(self, name) for name in _TENSORS}, {_ABOUT: about})


_TENSORS = tuple(field.name for field in fields(Familiar) if field.type == "Tensor")


def read_familiar(path: Path, file: File, module: nn.Module) -> Familiar:
    """What :meth:`Familiar.to_bytes` wrote, for this module; all else is refused."""
    check_hash(path, file)
    with open_tensors(path, longest_header(_TENSORS)) as tensors:
        slices = described_slices(tensors)
        if set(slices) != set(_TENSORS):
            odd = sorted(set(slices) ^ set(_TENSORS))[0]
            word = "not wanted" if odd in slices else "missing"
            raise FormatError(f"{path}: tensor {shown(odd)} is {word}")
        if wrong := [name for name, (dtype, _) in slices.items() if dtype != "float32"]:
            raise FormatError(f"{path}: tensor {wrong[0]!r} is {slices[wrong[0]][0]}, not float32")
        _check_shapes(path, {name: shape for name, (_, shape) in slices.items()})
        values = {name: tensors.get_tensor(name) for name in _TENSORS}
        text = (tensors.metadata() or {}).get(_ABOUT, "")
    about = from_plain(_About, parse_json(text.encode(), str(path)), str(path))
    _check_values(path, values, about)
    if (why := _misfit(module, about.at, len(values["mean"]))) is not None:
        raise FormatError(f"{path}: {why}")
    return Familiar(**values, at=about.at, share=about.share, task=about.task)


def _check_shapes(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    d, r = (*shapes["basis"], 0, 0)[:2]
    k, n = (*shapes["centres"], 0)[0], (*shapes["calibration"], 0)[0]
    wanted = {
        "mean": (d,),
        "basis": (d, r),
        "spread": (r,),
        "centres": (k, r),
        "rest": (),
        "length": (),
        "scale": (2,),
        "calibration": (n,),
    }
    if wrong := [name for name, shape in wanted.items() if shapes[name] != shape]:
        raise FormatError(f"{path}: tensor {wrong[0]!r} is {list(shapes[wrong[0]])}")
    if 0 in (d, k, n):
        raise FormatError(f"{path}: tensors without numbers")


def _check_values(path: Path, values: dict[str, Tensor], about: _About) -> None:
    if wrong := [name for name, tensor in values.items() if not tensor.isfinite().all()]:
        raise FormatError(f"{path}: tensor {wrong[0]!r} holds NaN or infinite values")
    for name in ("spread", "rest", "scale"):
        if not (values[name] > 0).all():
            raise FormatError(f"{path}: tensor {name!r} must be above zero")
    if (values["calibration"].diff() < 0).any():
        raise FormatError(f"{path}: tensor 'calibration' must be ascending")
    if not 0 < about.share < 1:
        raise FormatError(f"{path}: a share of {about.share} is none")


def _misfit(module: nn.Module, at: str | None, width: int) -> str | None:
    """Why a layer of the module cannot be what takes features of so many numbers."""
    if at is None:
        return None
    layer = dict(module.named_modules()).get(at)
    if layer is None:
        return f"the part has no layer {shown(at)}"
    takes = getattr(layer, "in_features", getattr(layer, "in_channels", width))
    return None if takes == width else f"{shown(at)} takes {takes} numbers, not {width}"


@contextmanager
def seen_by(module: nn.Module, at: str | None) -> Iterator[list[Tensor]]:
    """The features of every batch that the module runs inside the block, pooled, in a list.

    They are what the layer ``at`` takes, or for None what the module gives.

    >>> net = nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(4, 2))
    >>> with seen_by(net, "2") as seen:
    ...     _ = net(torch.ones(3, 2, 2))
    >>> seen[0].shape
    torch.Size([3, 4])
    """
    seen: list[Tensor] = []

    def keep(value: Any) -> None:
        if not isinstance(value, Tensor) or value.ndim == 0:
            raise ContractError("features are one tensor")
        rows = value.detach().float()
        rows = rows.flatten(2).mean(2) if rows.ndim > 2 else rows.reshape(len(rows), -1)
        seen.append(rows.cpu())

    if at is None:
        handle = module.register_forward_hook(lambda _module, _inputs, output: keep(output))
    else:
        layer = module.get_submodule(at)
        handle = layer.register_forward_pre_hook(lambda _layer, inputs: keep(inputs[0]))
    try:
        yield seen
    finally:
        handle.remove()
