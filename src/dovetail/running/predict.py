"""What a part says of new inputs, in class names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, TaskError
from dovetail.parts.part import Part, as_part
from dovetail.running.forward import outputs_of

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

    >>> from dovetail.parts.part import build
    >>> predict(build("mlp", classes=2), torch.rand(1, 8, 8)).classes
    ('0', '1')
    """
    part = as_part(part)
    x = _tensor(inputs)
    taken = part.contract.takes[0].shape
    if taken is not None and x.ndim == len(taken):
        grey_images = x.ndim == 3 and taken[0] == 1 and x.shape[0] != 1
        x = (
            x[:, None] if grey_images else x[None]
        )  # the channel axis, or the batch axis, is left out
    outputs = outputs_of(part, x, batch_size=batch_size)
    if outputs.ndim != 2:
        raise ContractError(
            f"{part.described!r} gives {tuple(outputs.shape[1:])}, not one number a class; "
            "only a whole network or a head predicts"
        )
    classes = part.contract.classes or tuple(str(i) for i in range(outputs.shape[1]))
    probabilities = outputs.double().softmax(1)
    return Predictions(
        tuple(classes[i] for i in probabilities.argmax(1).tolist()), probabilities, classes
    )


def _tensor(inputs: Any) -> Tensor:
    try:
        array = inputs if isinstance(inputs, Tensor) else torch.from_numpy(np.array(inputs))
    except (TypeError, ValueError) as error:
        raise TaskError(f"inputs must be an array of numbers ({error})") from None
    if array.dtype != torch.uint8:
        array = array.float()
        if not array.isfinite().all():
            raise TaskError("the inputs hold NaN or infinite values")
    return array
