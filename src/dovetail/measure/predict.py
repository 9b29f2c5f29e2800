"""What a part says of new inputs: in class names, or in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.measure.forward import outputs_of
from dovetail.measure.new_inputs import as_batch, as_paths, open_inputs
from dovetail.parts.contract import Preprocess, shown_shape
from dovetail.parts.familiar import seen_by
from dovetail.parts.part import Part, as_part


@dataclass(frozen=True, eq=False)
class Predictions:
    """The most probable class of each input and all probabilities ``[n, c]``.

    ``unlike`` are scores ``[n]`` that say how unlike the part's training data each input looks:
    above one, as a small share of inputs like them do (:class:`~dovetail.parts.familiar.Familiar`).
    None if the part cannot tell.  ``names`` are those of the files that were read.

    >>> p = Predictions(("cat",), torch.tensor([[0.9, 0.1]]), ("cat", "dog"))
    >>> p, p.confidence
    (Predictions(cat 0.90), (0.8999...,))
    """

    labels: tuple[str, ...]
    probabilities: Tensor
    classes: tuple[str, ...]
    unlike: Tensor | None = None
    names: tuple[str | int, ...] | None = None

    @property
    def confidence(self) -> tuple[float, ...]:
        """The probability of each label."""
        return tuple(self.probabilities.max(1).values.tolist())

    def top(self, k: int) -> tuple[tuple[tuple[str, float], ...], ...]:
        """The ``k`` most probable classes of each input and their probabilities, likeliest first.

        >>> Predictions(("cat",), torch.tensor([[0.75, 0.25]]), ("cat", "dog")).top(5)
        ((('cat', 0.75), ('dog', 0.25)),)
        """
        if k < 1:
            raise SettingsError(f"the number of classes must be at least 1, got {k}")
        values, places = self.probabilities.topk(min(k, len(self.classes)), 1)
        return tuple(
            tuple((self.classes[place], value) for place, value in zip(row, shares, strict=True))
            for row, shares in zip(places.tolist(), values.tolist(), strict=True)
        )

    @classmethod
    def joined(cls, batches: Sequence[Predictions]) -> Predictions:
        """Those of several batches of one part, in a row."""
        return cls(
            tuple(label for each in batches for label in each.labels),
            torch.cat([each.probabilities for each in batches]),
            batches[0].classes,
            _all_unlike(batches),
            _all_names(batches),
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        said = zip(self.labels[:5], self.confidence, strict=False)
        shown = ", ".join(f"{label} {share:.2f}" for label, share in said)
        return f"Predictions({shown}{', ...' if len(self) > 5 else ''})"


@dataclass(frozen=True, eq=False)
class Numbers:
    """What a part for numbers gives, ``[n, o]``; ``unlike`` and ``names`` as of `Predictions`.

    >>> Numbers(torch.tensor([[0.5], [2.0]]))
    Numbers(0.5, 2)
    """

    values: Tensor
    unlike: Tensor | None = None
    names: tuple[str | int, ...] | None = None

    @classmethod
    def joined(cls, batches: Sequence[Numbers]) -> Numbers:
        """Those of several batches of one part, in a row."""
        values = torch.cat([each.values for each in batches])
        return cls(values, _all_unlike(batches), _all_names(batches))

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        shown = ", ".join(" ".join(f"{v:.4g}" for v in row) for row in self.values[:5].tolist())
        return f"Numbers({shown}{', ...' if len(self) > 5 else ''})"


def predict(
    part: Part | nn.Module, inputs: Any, *, batch_size: int = 512, skip_bad: bool = False
) -> Predictions | Numbers:
    """Class names and probabilities for raw inputs: an array ``[n, ...]``, or a single input.

    Or files, one or several in a list: images, folders of images, tables without their target,
    ``.npy`` and ``.npz``; with ``skip_bad`` those that cannot be read are left out, and ``names``
    has the others.  A part for several labels names all that are more probable than not; of a part
    for numbers the answer is :class:`Numbers`.

    >>> from dovetail.parts.part import build
    >>> predict(build("mlp", classes=2), torch.rand(1, 8, 8)).classes
    ('0', '1')
    """
    part = as_part(part)
    paths = as_paths(inputs)
    if paths is None:
        return _said_of(part, *run_and_compare(part, inputs, batch_size=batch_size))
    batches = [
        replace(
            _said_of(part, *run_and_compare(part, batch.inputs, batch_size=batch_size)),
            names=tuple(batch.names),
        )
        for batch in open_inputs(part, paths, skip_bad=skip_bad).batches()
        if len(batch.inputs)
    ]
    if not batches:
        raise TaskError(f"{paths[0]}: there are no inputs to run")
    return type(batches[0]).joined(batches)  # type: ignore[arg-type]


def _said_of(part: Part, outputs: Tensor, unlike: Tensor | None) -> Predictions | Numbers:
    if part.contract.kind == "regression":
        return Numbers(outputs.double().flatten(1), unlike)
    return predictions_of(part, outputs, unlike)


def _all_unlike(batches: Sequence[Predictions | Numbers]) -> Tensor | None:
    scores = [each.unlike for each in batches if each.unlike is not None]
    return torch.cat(scores) if scores else None


def _all_names(batches: Sequence[Predictions | Numbers]) -> tuple[str | int, ...]:
    return tuple(name for each in batches for name in each.names or ())


def run_and_compare(
    part: Part, inputs: Any, *, batch_size: int = 512
) -> tuple[Tensor, Tensor | None]:
    """What a part gives for raw inputs, and how unlike its training data they are, if it can tell.

    Both in one pass: ``[n, ...]`` and ``[n]``.
    """
    x = as_batch(inputs, part.contract)
    if part.contract.preprocess is None and x.is_floating_point() and x.ndim > 2 and x.numel():
        _refuse_bright(x)
    known = part.familiar
    if known is None:
        return outputs_of(part, x, batch_size=batch_size), None
    with seen_by(part.module, known.at) as seen:
        outputs = outputs_of(part, x, batch_size=batch_size)
    if sum(map(len, seen)) != len(outputs):
        raise ContractError(
            f"{part.described!r} does not run {known.at!r} once an input, as when its features "
            "became familiar; fit them again (familiar_with)"
        )
    return outputs, torch.cat([known.scores(rows) for rows in seen])


def predictions_of(part: Part, outputs: Tensor, unlike: Tensor | None = None) -> Predictions:
    """Outputs ``[n, c]`` of a part for classes or labels, in their names."""
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
        probabilities = outputs.double().sigmoid()
        return Predictions(_labels(probabilities, classes), probabilities, classes, unlike)
    probabilities = outputs.double().softmax(1)
    labels = tuple(classes[i] for i in probabilities.argmax(1).tolist())
    return Predictions(labels, probabilities, classes, unlike)


def _refuse_bright(x: Tensor) -> None:
    """Nobody has said what the part is for; floats from 0 to 1 are what most networks take."""
    seen = (float(value) for value in (x.min(), x.max(), x.mean()))
    if why := Preprocess(mean=(0.5,), std=(0.5,)).misfit(*seen):
        raise TaskError(why)


def _labels(probabilities: Tensor, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Every label that is more probable than not, such as ``"beach, sunset"``."""
    return tuple(
        ", ".join(name for name, yes in zip(classes, row, strict=True) if yes) or "none"
        for row in (probabilities > 0.5).tolist()
    )
