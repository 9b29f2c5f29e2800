r"""Adaptive Bayesian linear regression: features trained so that a Bayesian linear head explains.

A network gives features :math:`\phi_\theta(x) \in \mathbb{R}^d`; on them stands the model of
:mod:`dovetail.adapt.linear_heads`.  The weights of the head are integrated out, and what is left
is maximised over the network's weights by gradient steps, summed over the tasks :math:`t`,

.. math::
    \max_\theta \sum_t \max_{s_t, \sigma_t} \log p\big(y_t \mid \phi_\theta(X_t), s_t^2,
    \sigma_t^2\big) .

The features are shared, the two variances are each task's own (and each column's).  They are
solved for before every step; at their maximum the evidence does not move with them, so that its
gradient is the one with the variances held still.  (Perrone, Jenatton, Seeger and Archambeau,
Scalable hyperparameter transfer learning, 2018, which takes gradient steps in them too.)

Features that are free to move explain few rows by heart, and then the evidence grows while the
error bars shrink to nothing.  Some rows of each task are therefore kept out of the steps, and the
features taken are those under which these rows are the most probable, perhaps those before any
step.  The head is fitted to all rows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from dovetail.adapt.linear_heads import evidence_of, fit_bayes
from dovetail.adapt.networks import Front, default_network, front_of, with_head
from dovetail.adapt.probe import BayesHead
from dovetail.core.errors import (
    ContractError,
    SettingsError,
    TaskError,
    TrainingError,
)
from dovetail.core.seeds import generator
from dovetail.measure.estimator_inputs import (
    as_inputs,
    as_numbers,
    refuse_other_count,
    seed_of,
)
from dovetail.measure.features import pooled
from dovetail.measure.forward import prepare
from dovetail.parts.facts import Origin
from dovetail.parts.part import Part

Tasks = list[tuple[Tensor, Tensor]]

PATIENCE = 20
"""So many steps in a row that make nothing better end the training."""


class AdaptiveBayesianRegressor(BayesHead):
    """Predict numbers by Bayesian linear regression on features that are trained for it.

    Args:
        model: A part or module, which is copied; ``None`` for a tanh network with two hidden
            layers and random weights.
        at: The cut point to take features at, as for :class:`Probe`.
        steps: At most so many gradient steps (Adam, all rows at once); 0 leaves the features as
            they are, which is last-layer Bayes.
        learning_rate: Of a step.
        held_out: The share of each task's rows that choose among the steps; with 0, the step of
            the best evidence is taken.
        hidden: Widths of the network that ``model=None`` makes.
        pooling: How feature maps become rows: ``"average"`` or ``"flatten"``.
        random_state: For the weights of that network, and for the rows held out.

    After :meth:`fit`: ``posterior_``; ``log_evidence_`` of the task that predictions are for;
    ``history_``, the evidence of all tasks before each step and after the last; ``step_``, the one
    that was taken; ``noise_`` and ``scale_``, the two variances ``[k]``.

    >>> x = torch.linspace(-2, 2, 12)[:, None]
    >>> fitted = AdaptiveBayesianRegressor(steps=20).fit(x, torch.sin(2 * x[:, 0]))
    >>> fitted.history_[-1] > fitted.history_[0]
    True
    >>> fitted.predict(x[:3], return_std=True)[1].shape
    (3,)
    """

    def __init__(
        self,
        model: Any = None,
        *,
        at: Any = None,
        steps: Any = 100,
        learning_rate: Any = 1e-3,
        held_out: Any = 0.2,
        hidden: Any = (50, 50),
        pooling: Any = "average",
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.at = at
        self.steps = steps
        self.learning_rate = learning_rate
        self.held_out = held_out
        self.hidden = hidden
        self.pooling = pooling
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, others: Sequence[tuple[Any, Any]] = ()
    ) -> AdaptiveBayesianRegressor:
        """Train the features on a task and on others, and fit the head to the first.

        Args:
            X: Inputs ``[n, ...]``.
            y: Numbers ``[n]`` or ``[n, k]``.
            others: Pairs of inputs and numbers, each a task with a head of its own.
        """
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 0:
            raise SettingsError(f"steps must be a whole number from 0 on, got {self.steps!r}")
        if not float(self.learning_rate) > 0:
            raise SettingsError(f"learning_rate must be positive, got {self.learning_rate!r}")
        if not 0 <= float(self.held_out) <= 0.5:
            raise SettingsError(f"held_out must be from 0 to 0.5, got {self.held_out!r}")
        raw = as_inputs(X, self)
        targets, self.flat_ = as_numbers(y)
        model: Part | nn.Module = self.model
        if model is None:
            model = default_network(raw, 1, self.hidden, seed=seed_of(self.random_state))
        self.front_ = front_of(model, self.at, self.pooling)
        assert self.front_.part is not None
        self.network_ = self.front_.part.module.double()
        self.shape_ = self.front_.shape(raw)
        tasks = [(raw, targets), *((as_inputs(a), as_numbers(b)[0]) for a, b in others)]
        for inputs, numbers in tasks:
            refuse_other_count(inputs, numbers)
            if len(inputs) < 2:
                raise TaskError("a task of 1 sample says nothing of the noise; give at least two")
        self.history_ = self._train(tasks)
        return self._condition(self.front_.rows(raw), targets)

    def refit(self, X: Any, y: Any) -> AdaptiveBayesianRegressor:
        """Fit the head to another task and keep the features as they are."""
        check_is_fitted(self)
        raw = as_inputs(X, self, reset=False)
        targets, self.flat_ = as_numbers(y)
        refuse_other_count(raw, targets)
        return self._condition(self.front_.rows(raw), targets)

    def to_part(self) -> Part:
        """The trained front and the mean head as one part that gives numbers, float32."""
        check_is_fitted(self)
        assert self.front_.part is not None
        front = self.front_.part.changed(module=copy.deepcopy(self.network_).float())
        origin = Origin(
            how="ablr",
            settings={"steps": self.step_, "held_out": self.held_out, "pooling": self.pooling},
            measured={"log evidence": self.log_evidence_},
        )
        head = self.posterior_
        return with_head(
            Front(front, self.pooling), self.shape_, head.weights, head.intercept, origin
        )

    def _rows(self, X: Any) -> Tensor:
        return self.front_.rows(as_inputs(X, self, reset=False))

    def _train(self, tasks: Tasks) -> tuple[float, ...]:
        """Move the network's weights to the best that the steps come by."""
        weights = [each for each in self.network_.parameters() if each.requires_grad]
        if not weights and self.steps:
            raise ContractError("these features have no weights to train; pass steps=0")
        if self.steps == 0:
            self.step_ = 0
            return ()
        optimiser = torch.optim.Adam(weights, lr=self.learning_rate)
        parted = [self._parted(inputs, targets) for inputs, targets in tasks]
        best, kept = -float("inf"), self.network_.state_dict()
        history: list[float] = []
        for step in range(self.steps + 1):
            evidence, height = self._judged(parted, step)
            history.append(evidence.item())
            if height > best:
                best, kept = height, copy.deepcopy(self.network_.state_dict())
                self.step_ = step
            if step - self.step_ >= PATIENCE:
                break
            if step < self.steps:
                optimiser.zero_grad()
                torch.autograd.backward(-evidence)
                optimiser.step()
        self.network_.load_state_dict(kept)
        return tuple(history)

    def _parted(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, int]:
        """The rows in a random order, and how many at the end are held out."""
        seed = seed_of(self.random_state)
        order = torch.randperm(len(inputs), generator=generator(seed, "held out"))
        held = round(float(self.held_out) * len(inputs))
        return inputs[order], targets[order], held if len(inputs) - held >= 2 else 0

    def _judged(self, parted: list[tuple[Tensor, Tensor, int]], step: int) -> tuple[Tensor, float]:
        """The evidence of the rows to train on, and what the step is chosen by."""
        evidence, predictive, any_held = torch.zeros((), dtype=torch.float64), 0.0, False
        for inputs, targets, held in parted:
            with torch.enable_grad():
                rows = self._differentiable_rows(inputs)
                if not bool(rows.isfinite().all()):
                    raise TrainingError(
                        f"the features are no longer numbers after {step} steps; lower "
                        "learning_rate, or look at the scale of the inputs"
                    )
                seen = len(rows) - held
                at = fit_bayes(rows[:seen].detach(), targets[:seen])
                found = evidence_of(rows[:seen], targets[:seen], at.scale, at.noise)
                evidence = evidence + found
            if held:
                last, variance = rows[seen:].detach(), at.variance(rows[seen:].detach())
                surprise = (targets[seen:] - at.mean(last)).square() / variance + variance.log()
                predictive, any_held = predictive - float(surprise.sum()) / 2, True
        return evidence, predictive if any_held else evidence.item()

    def _differentiable_rows(self, raw: Tensor) -> Tensor:
        assert self.front_.part is not None
        x = prepare(raw, self.front_.part.contract).double()
        return pooled(self.network_(x), self.pooling)
