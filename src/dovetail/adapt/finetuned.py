"""Fine-tuning as an estimator: what inference in the linearised network is measured against.

The front and the head are those of the other estimators here, the loop is :mod:`dovetail.train`'s.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import replace
from typing import Any, Self

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from dovetail.adapt.networks import default_network, front_of, with_head
from dovetail.core.errors import ContractError, CutError, SettingsError, shown
from dovetail.core.seeds import generator
from dovetail.linalg.parameters import chosen_parameters
from dovetail.measure.estimator_inputs import (
    as_classes,
    as_inputs,
    as_numbers,
    class_names,
    refuse_other_count,
    seed_of,
)
from dovetail.measure.estimators import Classifier, Regressor
from dovetail.measure.forward import outputs_of
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import cut, output_point
from dovetail.parts.facts import Origin
from dovetail.parts.heads import copy_by_class, head_like
from dovetail.parts.joining import join
from dovetail.parts.part import Part, as_part
from dovetail.tasks.splits import stratified_split
from dovetail.tasks.task import Task
from dovetail.train.end_to_end import end_to_end

__all__ = ["FineTuned"]

KINDS = ("classes", "regression")
PATIENCE = 10


class FineTuned(Classifier, Regressor):
    """Train a copy of a part on a few labels, behind a new head.

    A part that knows the classes by name, or gives as many numbers as are wanted, keeps its own
    head; of any other the last layer is replaced.

    Args:
        model: A part or module, which is copied; ``None`` for a tanh network of two layers.
        kind: Whether the targets are ``"classes"`` or numbers, ``"regression"``.
        params: Which parameters of the model are trained beside the head: None for all, or patterns
            such as ``"fc2.*"``.
        at: The cut point to put the head behind, as for :class:`dovetail.adapt.probe.Probe`.
        steps: Gradient steps, rounded up to whole passes over the labels.
        batch_size: Labels a step.
        learning_rate: At its peak; it rises and falls once.
        weight_decay: Of AdamW.
        held_out: The share of the labels that is not trained on but says which pass was the best;
            0 trains on all of them to the end, which is right when they are few.
        random_state: Of the head, the order of the labels, and which are held out.

    After :meth:`fit`: ``classes_`` (of classes), ``part_``, ``record_`` of the training,
    ``temperature_``, ``seconds_``.  Error bars of numbers there are after :meth:`calibrate`.

    >>> x = [[0.0], [0.2], [0.4], [2.0], [2.2], [2.4]]
    >>> model = FineTuned(steps=60).fit(x, ["low"] * 3 + ["high"] * 3)
    >>> model.predict([[-0.1], [2.5]]).tolist()
    ['low', 'high']
    """

    def __init__(
        self,
        model: Any = None,
        *,
        kind: Any = "classes",
        params: Any = None,
        at: Any = None,
        steps: Any = 200,
        batch_size: Any = 32,
        learning_rate: Any = 3e-3,
        weight_decay: Any = 1e-2,
        held_out: Any = 0.0,
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.kind = kind
        self.params = params
        self.at = at
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.held_out = held_out
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> FineTuned:
        """Train on inputs ``[n, ...]`` and classes ``[n]`` or numbers ``[n]``, ``[n, k]``."""
        began = time.perf_counter()
        self._refuse_settings()
        seed = seed_of(self.random_state)
        raw = as_inputs(X, self, reset=True)
        if self.kind == "classes":
            targets, self.classes_ = as_classes(y)
            names: tuple[str, ...] | None = class_names(self.classes_)
            width = len(self.classes_)
        else:
            targets, self.flat_ = as_numbers(y)
            names, width = None, targets.shape[1]
        refuse_other_count(raw, targets)
        model = default_network(raw, width, seed=seed) if self.model is None else self.model
        part = as_part(model)
        start = self._with_head(part, raw, names, width)
        task = _task(raw, targets, names, float(self.held_out), seed)
        batches = math.ceil(task.size("train") / self.batch_size)
        fit = end_to_end(
            start,
            task,
            preprocess=start.contract.preprocess or Preprocess(),
            seed=seed,
            epochs=math.ceil(self.steps / batches),
            batch_size=self.batch_size,
            optimiser="adamw",
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            patience=PATIENCE if self.held_out else None,
            show=False,
        )
        self.record_ = fit.record
        tuned = fit.part.module.requires_grad_(True)
        origin = replace(fit.part.origin, parents=(part.digest,), task=None, task_fingerprint=None)
        self.part_ = fit.part.changed(module=tuned, origin=origin)
        self.temperature_, self.deviation_scale_ = 1.0, None
        self.seconds_ = time.perf_counter() - began
        return self

    def logits(self, X: Any) -> Tensor:
        """What the network gives, ``[m, c]`` or ``[m, k]``, float64, before any temperature."""
        check_is_fitted(self)
        return outputs_of(self.part_, as_inputs(X, self, reset=False)).double()

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """The most probable class of each input; or its numbers, as every regressor tells them."""
        if self.kind == "classes":
            return Classifier.predict(self, X)
        return Regressor.predict(self, X, return_std, return_cov)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities ``[m, c]`` in the order of ``classes_``."""
        if self.kind != "classes":
            raise SettingsError("numbers have no probabilities; this was fitted as a regression")
        return super().predict_proba(X)

    def calibrate(self, X: Any, y: Any) -> Self:
        """Set the temperature of classes, or the deviations of numbers, by data not trained on."""
        self._kind.calibrate(self, X, y)
        return self

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy, or of numbers :math:`R^2`."""
        return float(self._kind.score(self, X, y, sample_weight))

    def to_part(self) -> Part:
        """The trained network with its head as a part, the temperature in the head's weights."""
        check_is_fitted(self)
        if self.temperature_ == 1.0:
            return self.part_
        module = copy.deepcopy(self.part_.module)
        last: nn.Module = module
        while isinstance(last, nn.Sequential) and len(last):
            last = last[-1]
        if not isinstance(last, nn.Linear):
            raise ContractError(
                "the network does not end in a dense layer that could take the temperature; fit it "
                "again and do not calibrate"
            )
        with torch.no_grad():
            for tensor in last.parameters():
                tensor.div_(self.temperature_)
        origin = self.part_.origin
        settings = {**origin.settings, "temperature": self.temperature_}
        return self.part_.changed(module=module, origin=replace(origin, settings=settings))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "part_")

    @property
    def _kind(self) -> Any:
        return Classifier if self.kind == "classes" else Regressor

    def _means(self, X: Any) -> Tensor:
        return self.logits(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.kind != "classes":
            tags.estimator_type, tags.classifier_tags = "regressor", None
        return tags

    def _with_head(
        self, part: Part, raw: Tensor, names: tuple[str, ...] | None, width: int
    ) -> Part:
        """The network to train, on a copy: its own head where that is for these targets."""
        chosen = set(chosen_parameters(part.module, self.params))
        joined = _own_head(part, names, width) if self.at in (None, "output") else None
        if joined is None:
            joined = self._new_head(part, raw, names, width)
        for name, tensor in joined.module.named_parameters():
            half, _, inner = name.partition(".")
            tensor.requires_grad_(half == "1" or inner in chosen)
        return joined

    def _new_head(self, part: Part, raw: Tensor, names: tuple[str, ...] | None, width: int) -> Part:
        front = front_of(part, self.at)
        shape = front.shape(raw)
        rows = front.rows(raw[:2]).shape[1]
        draw = generator(seed_of(self.random_state), "head")
        weights = torch.randn(rows, width, generator=draw) / rows**0.5
        return with_head(front, shape, weights, torch.zeros(width), Origin("build"), names)

    def _refuse_settings(self) -> None:
        if self.kind not in KINDS:
            raise SettingsError(f"kind is one of {', '.join(KINDS)}, got {shown(self.kind)}")
        for word in ("steps", "batch_size"):
            value = getattr(self, word)
            if not (isinstance(value, int) and value >= 1):
                raise SettingsError(f"{word} is a whole number from 1, got {shown(value)}")
        if not (isinstance(self.held_out, int | float) and 0 <= self.held_out < 1):
            raise SettingsError(f"held_out is a share below 1, got {shown(self.held_out)}")


def _own_head(part: Part, names: tuple[str, ...] | None, width: int) -> Part | None:
    """The network with its own outputs for the targets, if it has them; a copy in two halves."""
    contract = part.contract
    if names is None:
        if contract.kind != "regression" or contract.gives[0].shape != (width,):
            return None
    elif contract.classes is None or not set(names) <= set(contract.classes):
        return None
    mine = part.changed(module=copy.deepcopy(part.module))
    try:
        front, back = cut(mine, output_point(mine.module))
    except CutError:  # one layer, or a network that cannot be cut: it begins anew
        return None
    if names is None or names == contract.classes:
        return join(front, back)
    head = head_like(back, names)
    head.module.load_state_dict(copy_by_class(back, head))
    return join(front, head.changed(contract=replace(head.contract, takes=back.contract.takes)))


def _task(
    raw: Tensor, targets: Tensor, names: tuple[str, ...] | None, held_out: float, seed: int
) -> Task:
    """The labels as a task that trains on all of them, or on all but a share of each class."""
    count = len(raw)
    strata = targets if names else torch.zeros(count)
    split = stratified_split(strata, (1 - held_out, held_out, 0.0), seed)
    kind: Any = "classes" if names else "regression"
    # A task wants something of every class to test on; what is never asked for may be a copy.
    first = [int((targets == code).nonzero()[0]) for code in range(len(names or ()))] or [0]
    rows = torch.cat([torch.arange(count), torch.tensor(first)])
    task = Task(
        torch.zeros(len(rows), 1),
        targets[rows],
        name="labels",
        kind=kind,
        classes=names,
        split={
            "train": split["train"],
            "validation": split["validation"],
            "test": torch.arange(count, len(rows)),
        },
    )
    return task.derived("labels", inputs=raw[rows])
