"""What the two linearised estimators share: the network, its features, means and chunks."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from dovetail.adapt.keeping import NOT_HERE, read_estimator, write_estimator
from dovetail.adapt.linear_model import (
    OFFSET,
    LinearModel,
    Readout,
    chosen_columns,
    drawn_projection,
)
from dovetail.adapt.networks import default_network, network_of
from dovetail.adapt.plan import Plan, plan_for
from dovetail.core.errors import ContractError, SettingsError, TaskError, first_line, shown
from dovetail.linalg.parameters import chosen_parameters
from dovetail.linalg.tangent import TangentFeatures
from dovetail.measure.estimator_inputs import seed_of
from dovetail.parts.contract import Contract, Port
from dovetail.parts.facts import Origin
from dovetail.parts.linearized import LinearizedNetwork
from dovetail.parts.part import Part, as_part
from dovetail.parts.recipe import Linearize

Mean = Literal["zero", "constant", "network", "origin"]
"""Where the prior is centred.

``"zero"``
    :math:`g = J w`: the finite tangent kernel.
``"constant"``
    The same and an offset for each output, of a wide prior.
``"network"``
    :math:`f + J w`: weights drawn around those the network has.
``"origin"``
    :math:`f - J\\theta + J w`: the linearised network with weights drawn around zero.
"""

CHUNK = 2**28  # bytes of covariances between new inputs and the data


class LinearizedEstimator(BaseEstimator):  # type: ignore[misc]
    """The network of an estimator, linearised; see the two estimators for the arguments."""

    METHODS: ClassVar[tuple[str, ...]]
    MEANS: ClassVar[tuple[str, ...]]
    model: Any
    params: Any
    at: Any
    projection: Any
    method: Any
    mean: Any
    memory: Any
    random_state: Any
    mean_: str
    posterior_: Any
    prior_: Any
    scales_: Any
    log_evidence_: Any
    plan_: Any
    _scales: Any
    counts_: Tensor | None = None

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "direction_")

    def to_part(self) -> Part:
        """The mean as a part that needs no data: to evaluate, join, save and shelve.

        It has a recipe where the network has one.  How sure the predictions are is not in it; see
        :meth:`save`.
        """
        check_is_fitted(self)
        return part_of(self)

    def save(self, folder: str | Path, *, data: bool = True, overwrite: bool = False) -> Path:
        """Write the fitted estimator to a folder, whole or not at all.

        Args:
            folder: A new one.
            data: Whether to keep the inputs fitted to and the posterior, which variances and
                :meth:`update` need; without them, only the mean.
            overwrite: Whether an estimator that is there already is replaced.
        """
        check_is_fitted(self)
        return write_estimator(self, folder, data=data, overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | Path, model: Any = None) -> Self:
        """Read an estimator that was saved.

        Args:
            folder: Where it is.
            model: The network it was fitted with, for one that has no recipe and so is not there.
                It must have the same weights and layers.
        """
        return read_estimator(cls, folder, model)

    def plan(self, n: int, X: Any = None, y: Any = None) -> Plan:
        """What fitting to so many inputs would take, each way; nothing large is computed.

        Before a first :meth:`fit`, give one or two inputs and their targets to look at, or labels
        of all the classes.
        """
        if X is None and y is None:
            check_is_fitted(self, "linear_")
            return self._planned(self._example, n)
        self._refuse_settings()
        one: Self = clone(self)
        one.mean_ = "constant" if self.mean == "auto" else self.mean  # the one that costs most
        raw, _ = one._read(X, y)
        return one._planned(one._prepare(raw[:1]), n)

    def _read(self, X: Any, y: Any, sample_weight: Any = None) -> tuple[Tensor, Tensor]:
        """Raw inputs and targets, codes ``[n]`` or numbers ``[n, k]``; the network linearised.

        The network is made for rows that have a weight, and counts each ``counts_`` times.
        """
        raise NotImplementedError

    def _planned(self, x: Tensor, n: int) -> Plan:
        self._example = x[:1]
        labels = isinstance(self, ClassifierMixin)
        return plan_for(
            self.linear_, x[:1], n, memory=self.memory, method=self.method, labels=labels
        )

    def _refuse_settings(self) -> None:
        if isinstance(self.model, str) and self.model == NOT_HERE:
            raise SettingsError(
                "this was loaded without the network it was fitted from, and the fitted one has "
                "seen the labels; say which to fit: set_params(model=...)"
            )
        for word, known in (("method", self.METHODS), ("mean", self.MEANS)):
            if getattr(self, word) not in known:
                value = shown(getattr(self, word))
                raise SettingsError(f"{word} is one of {', '.join(known)}, got {value}")

    def _needs_posterior(self) -> None:
        if getattr(self, "posterior_", None) is None:
            raise TaskError(
                "only the mean was kept of this estimator, without the data that more needs; "
                "predict without (link='mean', no deviations), fit it again, or save it with "
                "data=True"
            )

    def _linearise(
        self,
        model: Any,
        raw: Tensor,
        width: int,
        columns: list[int] | None,
        *,
        offset: bool,
    ) -> None:
        """Take a network for raw inputs: ``width`` outputs, some columns of its own or all."""
        if model is None:
            seed = seed_of(self.random_state)
            model = default_network(raw, width, seed=seed, counts=self.counts_)
        module, self._prepare, _ = network_of(model)
        body = as_part(model).changed(module=module)
        projection = self._projection(self._given(module, raw), width, columns)
        moving = [f"body.{name}" for name in chosen_parameters(module, self.params)]
        self._take(body, width, projection, [*moving, *([OFFSET] if offset else [])])

    def _take(self, body: Part, width: int, projection: Tensor | None, moving: list[str]) -> None:
        """Linearise a network of one's own with respect to some of its weights."""
        self.body_ = body
        kind = next(body.module.parameters()).dtype
        self.network_ = Readout(body.module, width, projection).to(kind).eval()
        self.linear_ = LinearModel(self.network_, moving)

    def _given(self, module: nn.Module, raw: Tensor) -> int:
        """How many numbers a network gives for an input, maps averaged over their positions."""
        readout = Readout(module, 1)
        with torch.no_grad():
            several, one = (readout.projected(self._first(module, raw[:n])) for n in (2, 1))
        if several.shape[1] != one.shape[1] or len(one) != 1:
            raise ContractError(
                f"the network gives {list(one.shape)} for one input and {list(several.shape)} for "
                f"{len(raw[:2])}: look for a squeeze() that takes the batch axis, too"
            )
        return int(several.shape[1])

    def _first(self, module: nn.Module, raw: Tensor) -> Tensor:
        x = self._prepare(raw)
        try:
            outputs: Tensor = module(x)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ContractError(
                f"the network does not take inputs of shape {list(x.shape[1:])}: "
                f"{first_line(error)}"
            ) from error
        return outputs

    def _projection(self, given: int, width: int, columns: list[int] | None) -> Tensor | None:
        choice = self.projection
        if isinstance(choice, str) and choice == "auto":
            if columns is not None:
                return None if columns == list(range(given)) else chosen_columns(given, columns)
            if given == width:
                return None
            return drawn_projection(given, width, seed=seed_of(self.random_state))
        if isinstance(choice, str) and choice == "fixed":
            return drawn_projection(given, width, seed=seed_of(self.random_state))
        if isinstance(choice, str) or choice is None:
            raise SettingsError(
                f"projection is 'auto', 'fixed' or a matrix [{given}, {width}], got {shown(choice)}"
            )
        matrix = torch.as_tensor(np.asarray(choice), dtype=torch.float32)
        if matrix.shape != (given, width):
            raise SettingsError(
                f"the network gives {given} numbers and {width} are wanted: projection is a matrix "
                f"[{given}, {width}], not {list(matrix.shape)}"
            )
        return matrix

    def _prior_mean(self, x: Tensor, mean: str) -> Tensor:
        """``[n, o]`` at prepared inputs; the offset counts among what moves."""
        if mean in ("zero", "constant"):
            return torch.zeros(len(x), self.network_.offset.numel(), dtype=torch.float64)
        outputs = self.linear_.outputs(x)
        return outputs if mean == "network" else outputs - self.linear_.push(x, self.linear_.theta)

    def _posterior_mean(self, x: Tensor) -> Tensor:
        """``[n, o]`` at prepared inputs: the prior's mean and what the data add."""
        linear = self.linear_
        if self.model is None:  # small enough to spare no digits: rows must not depend on others
            linear = LinearModel(copy.deepcopy(self.network_).double(), list(linear.names))
            x = x.double()
        moved = self.constant_.expand(len(x), -1)
        if bool(self.direction_.any()):  # a network with a head for the classes says it all
            moved = moved + linear.push(x, self.direction_)
        return moved + linear.outputs(x) if self.follows_network_ else moved

    def _remember(self, constant: Tensor, mean: str, began: float) -> None:
        """All that the mean at new inputs needs, a direction of the weights and a constant; and
        what is to be known of the posterior."""
        weights, facts = self.posterior_.weights, self.posterior_.diagnostics
        self.follows_network_ = mean in ("network", "origin")
        self.direction_ = weights - self.linear_.theta if mean == "origin" else weights
        self.constant_ = constant
        self.rows_ = int(facts.get("rows", 0))
        self.diagnostics_ = {**facts, "seconds": time.perf_counter() - began}

    def _chunks(self, x: Tensor, rows: int) -> Iterator[tuple[slice, TangentFeatures]]:
        """Features of new inputs, as many at a time as covariances with ``rows`` leave room for."""
        outputs = self.network_.offset.numel()
        step = min(max(1, CHUNK // (8 * max(rows, 1) * outputs)), 1024)
        for start in range(0, len(x), step):
            some = slice(start, min(start + step, len(x)))
            yield some, self.linear_.features(x[some])


# The mean of a linearised estimator as a part -----------------------------------------------------


def part_of(estimator: LinearizedEstimator) -> Part:
    """A part that gives what the estimator's mean is; logits are divided by its temperature."""
    body, outputs = estimator.body_, len(estimator.constant_)
    projection = estimator.network_.projection
    moves = tuple(name.removeprefix("body.") for name in estimator.linear_.names if name != OFFSET)
    everything = len(moves) == sum(1 for _ in body.module.parameters())
    settings: dict[str, Any] = {
        "moves": None if everything else moves,
        "projected": None if projection is None else len(projection),
        "follows_network": estimator.follows_network_,
    }
    module = LinearizedNetwork(copy.deepcopy(body.module), outputs, **settings)
    _fill(module, estimator)
    recipe = None if body.recipe is None else Linearize(body.recipe, outputs, **settings)
    return Part(module.eval(), _contract(estimator, outputs), recipe, _origin(estimator))


def _fill(module: LinearizedNetwork, estimator: LinearizedEstimator) -> None:
    """Put in what was found.  The offset moves by as much for any input: it is a constant."""
    pieces = torch.split(estimator.direction_, list(estimator.linear_.sizes.values()))
    tensors = dict(zip(estimator.linear_.names, pieces, strict=True))
    constant = estimator.constant_
    if OFFSET in tensors:
        constant = constant + tensors.pop(OFFSET)
    for name, tensor in module.direction.named_buffers():
        tensor.copy_(tensors[f"body.{name}"].reshape(tensor.shape))
    module.constant.copy_(constant)
    module.temperature.fill_(getattr(estimator, "mean_temperature_", 1.0))
    projection = estimator.network_.projection
    if module.projection is not None and projection is not None:
        module.projection.copy_(projection)


def _contract(estimator: LinearizedEstimator, outputs: int) -> Contract:
    contract = estimator.body_.contract
    takes = contract.takes[0]
    if takes.shape is None:
        takes = replace(takes, shape=tuple(estimator._example.shape[1:]))
    names = getattr(estimator, "class_names_", None)
    return Contract(
        (takes,),
        (Port((outputs,)),),
        contract.preprocess,
        names,
        "regression" if names is None else "classes",
        contract.inputs,
    )


def _origin(estimator: LinearizedEstimator) -> Origin:
    body = estimator.body_
    settings = {
        "method": estimator.diagnostics_.get("method"),
        "mean": getattr(estimator, "mean_", estimator.mean),
        "parameters": estimator.linear_.size,
        "prior": {name: float(scale) for name, scale in estimator.scales_.items()},
    }
    if hasattr(estimator, "classes_"):
        settings |= {"temperature": estimator.mean_temperature_, "link": "mean"}
    else:
        settings["noise"] = estimator.noise_
    if estimator.rows_:
        settings["labels"] = estimator.rows_ // len(estimator.constant_)
    # What a front was cut from is on the shelf more often than the front is.
    before = body.origin.parents if body.origin.how == "cut" else ()
    return Origin(
        how="linearized",
        parents=tuple(dict.fromkeys((body.digest, *before))),
        settings=settings,
        measured=_evidence(estimator),
    )


def _evidence(estimator: LinearizedEstimator) -> dict[str, float]:
    """What is known of the evidence: itself, a bound of it, or nothing."""
    method = estimator.diagnostics_.get("method")
    known = vars(estimator).get("log_evidence_")  # not to be computed only for this
    if known is None or method == "map":
        return {}
    name = "evidence bound" if method == "svi" else "log evidence"
    return {name: float(known)}
