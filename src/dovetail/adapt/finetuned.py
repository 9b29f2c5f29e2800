"""Fine-tuning as an estimator: a probe's head first, then all weights, as far as they help.

Classes: :mod:`dovetail.adapt.guarded`.  Numbers: the loop of :mod:`dovetail.train`, to the end.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from dovetail.adapt.guarded import tuned_if_better
from dovetail.adapt.networks import (
    Front,
    copied,
    default_network,
    front_of,
    with_head,
)
from dovetail.adapt.tuning import Moves
from dovetail.core.errors import CutError, SettingsError, shown
from dovetail.core.seeds import generator
from dovetail.linalg.parameters import chosen_parameters
from dovetail.linalg.ridge_sums import Linear
from dovetail.measure.estimator_inputs import (
    as_classes,
    as_inputs,
    as_numbers,
    names_of,
    refuse_other_count,
    seed_of,
)
from dovetail.measure.estimators import Classifier, Regressor
from dovetail.measure.forward import outputs_of
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import cut, output_point
from dovetail.parts.facts import Origin
from dovetail.parts.heads import before_the_head, with_temperature
from dovetail.parts.joining import join
from dovetail.parts.part import Part, as_part
from dovetail.tasks.task import Task
from dovetail.train.end_to_end import end_to_end

KINDS = ("classes", "regression")

PASSES, FEWEST_STEPS = 8, 16
"""Over the labels, and steps at least: what a network of many millions of weights has time for."""

MOST_FROZEN_BYTES = 4 << 30
"""Of what the layers that do not move give for all inputs."""

SMALL, STEPS = 1_000_000, 200
"""Networks with fewer weights take at least so many steps, in a second or two."""


class FineTuned(Classifier, Regressor):
    """Fine-tune a copy of a part on a few labels, never to below what a probe does with them.

    Classes: a linear head on frozen features is fitted first, as :class:`~dovetail.adapt.Probe`
    does, or the part's own is taken where it knows the classes (by name, or labels are places among
    its outputs) and has the lower log loss.  Then all weights move while the head stays, few
    steps at a small rate, norms as in evaluation, and the head is fitted anew.  Labels held out
    in folds say after how many steps to stop, and whether to move at all; the temperature is theirs
    too.  With one label a class all steps are taken, as nothing can be held out.

    Numbers: a part that gives as many as are wanted keeps its own head, of any other the last
    layer is replaced; all steps are taken.

    Args:
        model: A part or module, which is copied; ``None`` for a tanh network of two layers.
        kind: Whether the targets are ``"classes"`` or numbers, ``"regression"``.
        params: Which parameters of the model move: None for all, or patterns such as ``"fc2.*"``.
        at: The cut point to put the head behind, as for :class:`dovetail.adapt.probe.Probe`.
        frozen: Of classes: a cut point.  What lies before it does not move, and runs once an input:
            of an EfficientNet frozen up to its last third, ten passes instead of twenty-four.
        steps: Gradient steps at most; ``"auto"`` for eight passes over the labels, and at least 16,
            or 200 of a network with less than a million weights, where they cost nothing.
        batch_size: Labels a step.
        learning_rate: At its peak; it rises and falls once.  ``"auto"``: 0.001 for classes, 0.003
            for numbers.
        weight_decay: Of AdamW.
        folds: Of classes: how many to hold out, one after the other; 0 takes all steps on trust.
        random_state: Of the head, the order of the labels, and which are held out.

    After :meth:`fit`: ``classes_`` and ``class_names_`` (of classes), ``part_``, ``chosen_``
    (``"fine-tuned"``, ``"probe"`` or ``"own head"``, whose weights then are as they were),
    ``diagnostics_`` (why, after how many steps, and the log losses of labels held out),
    ``temperature_``, ``seconds_``.  Error bars of numbers there are after :meth:`calibrate`.

    >>> x = [[0.0], [0.2], [0.4], [2.0], [2.2], [2.4]]
    >>> model = FineTuned(steps=60).fit(x, ["low"] * 3 + ["high"] * 3)
    >>> model.predict([[-0.1], [2.5]]).tolist()
    ['low', 'high']
    """

    part_: Part

    def __init__(
        self,
        model: Any = None,
        *,
        kind: Any = "classes",
        params: Any = None,
        at: Any = None,
        frozen: Any = None,
        steps: Any = "auto",
        batch_size: Any = 32,
        learning_rate: Any = "auto",
        weight_decay: Any = 1e-2,
        folds: Any = 3,
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.kind = kind
        self.params = params
        self.at = at
        self.frozen = frozen
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.folds = folds
        self.random_state = random_state

    def fit(self, X: Any, y: Any, class_names: Any = None) -> FineTuned:
        """Train on inputs ``[n, ...]`` and classes ``[n]`` or numbers ``[n]``, ``[n, k]``.

        Of labels that are places in a list of names, such as a task's ``classes``, hand that list
        over as ``class_names``: the part then knows its classes by name.
        """
        began = time.perf_counter()
        self._refuse_settings()
        seed = seed_of(self.random_state)
        raw = as_inputs(X, self, reset=True)
        if self.kind == "classes":
            codes, self.classes_ = as_classes(y)
            refuse_other_count(raw, codes)
            names = names_of(self.classes_, class_names)
            part = self._model(raw, len(self.classes_), seed)
            lower, part, raw = _run_once(part, self.frozen, raw)
            self._fit_classes(part, raw, codes, names, class_names is not None, seed)
            if lower is not None:
                self.part_ = _on_top_of(lower, self.part_)
        else:
            targets, self.flat_ = as_numbers(y)
            refuse_other_count(raw, targets)
            part = self._model(raw, targets.shape[1], seed)
            self._fit_numbers(part, raw, targets, seed)
        self.deviation_scale_ = None
        self.seconds_ = time.perf_counter() - began
        return self

    def _model(self, raw: Tensor, width: int, seed: int) -> Part:
        if self.model is None:
            return default_network(raw, width, seed=seed)
        return as_part(self.model)

    def _fit_classes(
        self,
        part: Part,
        raw: Tensor,
        codes: Tensor,
        names: tuple[str, ...],
        named: bool,
        seed: int,
    ) -> None:
        movable = set(chosen_parameters(part.module, self.params))
        front = front_of(part, self.at)
        places = places_of(part, self.classes_, names, named) if self.at is None else None
        own = None if places is None else own_head(part, front, raw, places)

        def free(one: Front) -> bool:
            for name, tensor in _parameters(one):
                tensor.requires_grad_(name in movable)
            return any(tensor.requires_grad for _, tensor in _parameters(one))

        moves = Moves(self._steps(part, len(raw)), self.batch_size, self._rate(), self.weight_decay)
        tuned = tuned_if_better(
            front,
            raw,
            codes,
            len(self.classes_),
            moves,
            own=own,
            free=free,
            folds=self.folds,
            seed=seed,
        )
        known = part.contract.classes
        if tuned.own and places is not None and known is not None:
            names = tuple(known[place] for place in places)
        self.class_names_ = names
        self.chosen_, self.diagnostics_ = tuned.chosen, tuned.diagnostics
        self.temperature_ = self._fitted_temperature = tuned.temperature
        origin = Origin("finetune", settings={"chosen": self.chosen_, **self.diagnostics_})
        head, shape = tuned.head, tuned.front.shape(raw)
        fitted = with_head(tuned.front, shape, head.weights, head.intercept, origin, names)
        fitted.module.requires_grad_(True)
        self.part_ = fitted.changed(origin=replace(origin, parents=(part.digest,)))

    def _fit_numbers(self, part: Part, raw: Tensor, targets: Tensor, seed: int) -> None:
        start = self._with_head(part, raw, targets.shape[1])
        batches = math.ceil(len(raw) / self.batch_size)
        fit = end_to_end(
            start,
            _task(raw, targets),
            preprocess=start.contract.preprocess or Preprocess(),
            seed=seed,
            epochs=math.ceil((200 if self.steps == "auto" else self.steps) / batches),
            batch_size=self.batch_size,
            optimiser="adamw",
            lr=self._rate(),
            weight_decay=self.weight_decay,
        )
        tuned = fit.part.module.requires_grad_(True)
        origin = replace(fit.part.origin, parents=(part.digest,), task=None, task_fingerprint=None)
        self.part_ = fit.part.changed(module=tuned, origin=origin)
        self.chosen_, self.diagnostics_ = "fine-tuned", {"why": "numbers have no folds"}
        self.temperature_ = 1.0

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
        return with_temperature(self.part_, self.temperature_)

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

    def _with_head(self, part: Part, raw: Tensor, width: int) -> Part:
        """The network to train for numbers, on a copy: its own head where it gives as many."""
        chosen = set(chosen_parameters(part.module, self.params))
        joined = _giving(part, width) if self.at in (None, "output") else None
        if joined is None:
            front = front_of(part, self.at)
            rows = front.rows(raw[:2]).shape[1]
            draw = generator(seed_of(self.random_state), "head")
            weights = torch.randn(rows, width, generator=draw) / rows**0.5
            shape = front.shape(raw)
            joined = with_head(front, shape, weights, torch.zeros(width), Origin("build"))
        for name, tensor in joined.module.named_parameters():
            half, _, inner = name.partition(".")
            tensor.requires_grad_(half == "1" or inner in chosen)
        return joined

    def _steps(self, part: Part, count: int) -> int:
        if self.steps != "auto":
            return int(self.steps)
        weights = sum(tensor.numel() for tensor in part.module.parameters())
        least = STEPS if weights < SMALL else FEWEST_STEPS
        batches: int = math.ceil(PASSES * count / self.batch_size)
        return max(least, batches)

    def _rate(self) -> float:
        if self.learning_rate == "auto":
            return 1e-3 if self.kind == "classes" else 3e-3
        return float(self.learning_rate)

    def _refuse_settings(self) -> None:
        if self.kind not in KINDS:
            raise SettingsError(f"kind is one of {', '.join(KINDS)}, got {shown(self.kind)}")
        if self.frozen is not None and self.kind != "classes":
            raise SettingsError("frozen is for classes; numbers are trained with all weights")
        for word, least in (("steps", 1), ("batch_size", 1), ("folds", 0)):
            value = getattr(self, word)
            if word == "steps" and value == "auto":
                continue
            if not (isinstance(value, int) and value >= least):
                raise SettingsError(f"{word} is a whole number from {least}, got {shown(value)}")
        rate = self.learning_rate
        if rate != "auto" and not (isinstance(rate, int | float) and rate >= 0):
            raise SettingsError(f"learning_rate is 'auto' or a number from 0, got {shown(rate)}")


def _run_once(part: Part, frozen: Any, raw: Tensor) -> tuple[Part | None, Part, Tensor]:
    """What stays as it is, if anything; what is left of the network, and the inputs of that."""
    if frozen is None:
        return None, part, raw
    lower, upper = cut(part, str(frozen))
    if len(lower.contract.gives) != 1:
        raise CutError(f"{len(lower.contract.gives)} tensors cross at {str(frozen)!r}, not one")
    few = outputs_of(lower, raw[:1])
    if few.nbytes * len(raw) > MOST_FROZEN_BYTES:
        raise SettingsError(
            f"what {len(raw):,} inputs give at {str(frozen)!r} takes "
            f"{few.nbytes * len(raw) / 2**30:.1f} GiB of memory; name a later point, or none"
        )
    return lower, upper, outputs_of(lower, raw)


def _on_top_of(lower: Part, upper: Part) -> Part:
    """The whole network again, with the origin of what was trained."""
    whole = join(lower, upper, norms="stored")
    return whole.changed(origin=upper.origin)


def _parameters(front: Front) -> list[tuple[str, nn.Parameter]]:
    return [] if front.part is None else list(front.part.module.named_parameters())


def places_of(
    part: Part, classes: np.ndarray[Any, Any], names: tuple[str, ...], named: bool
) -> list[int] | None:
    """Which outputs of the part are for these classes: by name; or as numbers, if they fit."""
    known = part.contract.classes
    if known is not None and set(names) <= set(known):
        return [known.index(name) for name in names]
    shape = part.contract.gives[0].shape
    if named or classes.dtype.kind not in "iu" or shape is None or len(shape) != 1:
        return None
    count = shape[0] or 0
    numbers = [int(each) for each in classes]
    return numbers if min(numbers) >= 0 and max(numbers) < count else None


def own_head(part: Part, front: Front, raw: Tensor, places: list[int]) -> Linear | None:
    """The part's last layer as a head on the front's rows, if it is one: tried on all inputs."""
    if front.part is None or front.part.contract.gives == part.contract.gives:
        return None
    try:
        _, back = cut(part.changed(module=copied(part.module)), str(before_the_head(part)))
    except CutError:
        return None
    rows, shape = front.rows(raw), front.shape(raw)
    units = torch.eye(rows.shape[1]).reshape(-1, shape[0], *(1 for _ in shape[1:]))
    if shape[1:] and rows.shape[1] != shape[0]:
        return None
    blank = torch.zeros(1, *shape)
    intercept = outputs_of(back, blank).double()[0]
    weights = outputs_of(back, units.expand(-1, *shape)).double() - intercept
    said = outputs_of(part, raw).double()
    if said.ndim != 2 or not torch.allclose(rows @ weights + intercept, said, rtol=1e-2, atol=1e-2):
        return None
    return Linear(weights[:, places], intercept[places], 0.0)


def _giving(part: Part, width: int) -> Part | None:
    """A copy in two halves of a part that gives so many numbers; none of any other."""
    contract = part.contract
    if contract.kind != "regression" or contract.gives[0].shape != (width,):
        return None
    mine = part.changed(module=copy.deepcopy(part.module))
    try:
        return join(*cut(mine, output_point(mine.module)))
    except CutError:  # one layer, or a network that cannot be cut: it begins anew
        return None


def _task(raw: Tensor, targets: Tensor) -> Task:
    """The numbers as a task that trains on all of them."""
    count = len(raw)
    # A task wants something to test on; what is never asked for may be a copy.
    rows = torch.cat([torch.arange(count), torch.tensor([0])])
    split = {
        "train": torch.arange(count),
        "validation": torch.arange(0),
        "test": torch.tensor([count]),
    }
    blank = torch.zeros(len(rows), 1)
    task = Task(blank, targets[rows], name="labels", kind="regression", split=split)
    return task.derived("labels", inputs=raw[rows])
