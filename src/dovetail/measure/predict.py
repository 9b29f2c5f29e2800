"""What a part says of new inputs, in class names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, TaskError
from dovetail.measure.forward import outputs_of
from dovetail.parts.contract import Contract, Preprocess, shown_shape
from dovetail.parts.modules import dtype_name
from dovetail.parts.part import Part, as_part

__all__ = ["Predictions", "predict"]


@dataclass(frozen=True, eq=False)
class Predictions:
    """The most probable class of each input and all probabilities ``[n, c]``.

    >>> p = Predictions(("cat",), torch.tensor([[0.9, 0.1]]), ("cat", "dog"))
    >>> p, p.confidence
    (Predictions(cat 0.90), (0.8999...,))
    """

    labels: tuple[str, ...]
    probabilities: Tensor
    classes: tuple[str, ...]

    @property
    def confidence(self) -> tuple[float, ...]:
        """The probability of each label."""
        return tuple(self.probabilities.max(1).values.tolist())

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        said = zip(self.labels[:5], self.confidence, strict=False)
        shown = ", ".join(f"{label} {share:.2f}" for label, share in said)
        return f"Predictions({shown}{', ...' if len(self) > 5 else ''})"


def predict(part: Part | nn.Module, inputs: Any, *, batch_size: int = 512) -> Predictions:
    """Class names and probabilities for raw inputs: an array ``[n, ...]``, or a single input.

    A part for several labels names all that are more probable than not.

    >>> from dovetail.parts.part import build
    >>> predict(build("mlp", classes=2), torch.rand(1, 8, 8)).classes
    ('0', '1')
    """
    part = as_part(part)
    if part.contract.kind == "regression":
        raise ContractError(
            f"{part.described!r} gives numbers, not classes; call it, or use dt.evaluate"
        )
    x = _tensor(inputs)
    if part.contract.preprocess is None and x.is_floating_point() and x.ndim > 2 and x.numel():
        _refuse_bright(x)
    outputs = outputs_of(part, _with_all_axes(x, part.contract), batch_size=batch_size)
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        raise ContractError(
            f"{part.described!r} gives {shown_shape(tuple(outputs.shape[1:]))}, not one number a "
            "class; only a whole network or a head for classes predicts"
        )
    classes = part.contract.classes or tuple(str(i) for i in range(outputs.shape[1]))
    if len(classes) != outputs.shape[1]:
        raise ContractError(
            f"{part.described!r} has {len(classes)} classes but gives {outputs.shape[1]} numbers"
        )
    if part.contract.kind == "multilabel":
        return _labels(outputs.double().sigmoid(), classes)
    probabilities = outputs.double().softmax(1)
    return Predictions(
        tuple(classes[i] for i in probabilities.argmax(1).tolist()), probabilities, classes
    )


def _refuse_bright(x: Tensor) -> None:
    """Nobody has said what the part is for; floats from 0 to 1 are what most networks take."""
    seen = (float(value) for value in (x.min(), x.max(), x.mean()))
    if why := Preprocess(mean=(0.5,), std=(0.5,)).misfit(*seen):
        raise TaskError(why)


def _labels(probabilities: Tensor, classes: tuple[str, ...]) -> Predictions:
    """Every label that is more probable than not, such as ``"beach, sunset"``."""
    said = (
        ", ".join(name for name, yes in zip(classes, row, strict=True) if yes) or "none"
        for row in (probabilities > 0.5).tolist()
    )
    return Predictions(tuple(said), probabilities, classes)


def _with_all_axes(x: Tensor, contract: Contract) -> Tensor:
    """Put in the batch axis, or the channel axis of grey images, where they were left out."""
    taken = contract.takes[0].shape
    if taken is None:
        return x
    grey = len(taken) == 3 and taken[0] == 1
    if grey and x.shape == taken[1:]:
        return x[None, None]
    if grey and x.ndim == 3 and x.shape[0] != 1:
        return x[:, None]
    if x.ndim == len(taken):
        x = x[None]
    if contract.preprocess is not None and x.ndim == 4 and x.shape[1] not in (1, 3):
        return x.movedim(3, 1) if x.shape[3] in (1, 3) else x  # channels came last
    return x


def _tensor(inputs: Any) -> Tensor:
    try:
        array = inputs if isinstance(inputs, Tensor) else torch.from_numpy(np.array(inputs))
    except (TypeError, ValueError) as error:
        raise TaskError(f"inputs must be an array of numbers ({error})") from None
    if array.dtype != torch.uint8:
        if array.ndim > 2 and not (array.is_floating_point() or array.dtype == torch.bool):
            raise TaskError(
                f"images of dtype {dtype_name(array.dtype)} have no known scale; give uint8 "
                "(0 to 255) or floats (0 to 1)"
            )
        array = array.float()
        if not array.isfinite().all():
            raise TaskError("the inputs hold NaN or infinite values")
    return array
