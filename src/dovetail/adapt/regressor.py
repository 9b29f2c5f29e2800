"""Numbers from a linearised network."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from dovetail.adapt.iterative import IterativePosterior, condition_iteratively
from dovetail.adapt.linear_model import OFFSET
from dovetail.adapt.linearized import LinearizedEstimator
from dovetail.adapt.networks import front_of
from dovetail.adapt.parameter_space import condition_in_parameters
from dovetail.adapt.posterior import condition_on_functions, mean_over
from dovetail.adapt.priors import (
    LEAST,
    WIDE,
    checked_noise,
    few,
    number_prior,
    offset_variance,
)
from dovetail.core.errors import SettingsError, TaskError, shown
from dovetail.measure.estimator_inputs import (
    as_counts,
    as_inputs,
    as_numbers,
    refuse_other_count,
    seed_of,
)
from dovetail.measure.estimators import Regressor

ROUNDING = 1e-26
"""The variance of float64's rounding of targets, in units of their mean square, with some room."""


class LinearizedRegressor(Regressor, LinearizedEstimator):
    r"""Predict numbers by inference in a linearised network: a Gaussian process, exact.

    :math:`g(x) = m(x) + J_\theta(x) w`, :math:`w \sim \mathcal N(0, S)`, and observations
    :math:`y = g(x) + \varepsilon`.  Nothing is trained; the network and its weights stay as they
    are.

    Args:
        model: A part or module, which is copied; ``None`` for a random tanh network of two layers
            that standardises its inputs.
        params: Which parameters may move: None for all, patterns such as ``"head.*"``, or a test.
        at: The cut point to take outputs at instead of the network's own.
        mean: Where the prior is centred: ``"network"``, ``"constant"``, ``"zero"`` or
            ``"origin"``, see :data:`dovetail.adapt.linearized.Mean`; ``"auto"`` for the one of the
            first three with the highest evidence (of a network handed over that gives as many
            numbers; any other has nothing to say about them, and gets ``"constant"``).
        prior: The variance of the weights: ``"evidence"`` for the one that explains the data best,
            ``"layers"`` for one a layer, a number, or a mapping of layers to numbers.
        noise: The variance of the noise: ``"evidence"`` or a number.
        centre: For ``mean="constant"``, where the offset's wide prior is centred: a number for
            each output; the mean of the targets unless said.
        projection: ``"auto"`` for a fixed random one where the network gives another number of
            outputs, ``"fixed"`` for one in any case, or a matrix ``[d, o]``.
        method: ``"function"`` (a factor of ``n o`` rows), ``"parameter"`` (one of ``p``), ``"cg"``
            (neither fits) or ``"auto"``, which takes what :meth:`plan` recommends.
        tolerance: Of conjugate gradients, the relative residual to reach.
        memory: Bytes that may be used; what is free unless said.
        random_state: Of the default network, the projection, and which rows the prior is tuned on.

    After :meth:`fit`: ``scales_`` (prior variances by layer), ``noise_``, ``centre_``,
    ``log_evidence_`` (for ``"cg"`` an estimate, made when it is asked for), ``posterior_``,
    ``plan_``, ``diagnostics_``, ``mean_``.

    >>> x = np.linspace(-2, 2, 20)[:, None]
    >>> model = LinearizedRegressor().fit(x, np.sin(2 * x[:, 0]))
    >>> mean, std = model.predict([[0.5], [9.0]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.0)) < 0.05 and std[1] > 5 * std[0])
    True
    """

    METHODS = ("auto", "function", "parameter", "cg")
    MEANS = ("auto", "constant", "zero", "network", "origin")
    deviation_scale_: Tensor

    def __init__(
        self,
        model: Any = None,
        *,
        params: Any = None,
        at: Any = None,
        mean: Any = "auto",
        prior: Any = "evidence",
        noise: Any = "evidence",
        centre: Any = None,
        projection: Any = "auto",
        method: Any = "auto",
        tolerance: Any = 1e-2,
        memory: Any = None,
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.params = params
        self.at = at
        self.mean = mean
        self.prior = prior
        self.noise = noise
        self.centre = centre
        self.projection = projection
        self.method = method
        self.tolerance = tolerance
        self.memory = memory
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, noise: Any = None, sample_weight: Any = None
    ) -> LinearizedRegressor:
        """Condition on inputs ``[n, ...]`` and targets ``[n]`` or ``[n, k]``.

        Args:
            X: Inputs.
            y: Targets.
            noise: Known variances of the single observations, ``[n]`` or ``[n, k]``; they are then
                taken as they are.
            sample_weight: How many times each observation counts ``[n]``: its noise is divided by
                so many, and a whole number is the same as so many rows alike.  Rows alike say that
                there is little noise; where weights are not meant so, give ``noise`` a number.
        """
        began = time.perf_counter()
        self._refuse_settings()
        self.mean_ = self._chosen_mean(X, y, noise, sample_weight)
        raw, targets = self._read(X, y, sample_weight)
        refuse_other_count(raw, targets)
        raw, targets, relative = self._that_count(raw, targets, noise, sample_weight)
        counts = self.counts_
        self.deviation_scale_ = torch.ones(targets.shape[1], dtype=torch.float64)
        x = self._prepare(raw)
        self.plan_ = self._planned(x, len(x))
        method = self.plan_.method
        self.centre_ = self._centred_at(targets)
        residual = targets - self.centre_ - self._prior_mean(x, self.mean_)
        some = few(len(x), targets.shape[1], seed_of(self.random_state))
        known_noise = checked_noise(self.noise) if relative is None else 1.0
        tuned_on = self.linear_.features(x[some])
        self.prior_ = number_prior(
            self.linear_,
            [(tuned_on, residual[some], None if relative is None else relative[some])],
            self.prior,
            known_noise,
            constant=self.mean_ == "constant",
            least=_least_noise(targets, residual, counts),
            counts=None if counts is None else counts[some],
        )
        self.noise_ = self.prior_.noise if relative is None else _median(relative, counts)
        self._set_scales(residual)
        spread, self.repeats_ = _shared_out(self._variance(targets, relative), counts)
        features = (
            tuned_on
            if len(some) == len(x)
            else self.linear_.features(x, memory=self.plan_.features_memory)
        )
        if method == "function":
            self.posterior_ = condition_on_functions(features, residual, spread, self._scales)
        elif method == "parameter":
            self.posterior_ = condition_in_parameters(features, residual, spread, self._scales)
        else:
            self.posterior_ = condition_iteratively(
                features,
                residual,
                spread,
                self._scales,
                tolerance=self.tolerance,
                seed=seed_of(self.random_state),
            )
        self._settle(began)
        return self

    def sharing(self, tasks: Iterable[tuple[Any, Any]]) -> LinearizedRegressor:
        """A new estimator whose prior and noise explain several tasks ``(X, y)`` best together.

        It is not fitted.  With ten points of a new task there is little to tune a prior by; tasks
        like it have more.
        """
        self._refuse_settings()
        found = []
        # Evidence of each by itself would choose a mean for each; a prior is shared around one.
        self.mean_ = "constant" if self.mean == "auto" else self.mean
        for X, y in tasks:
            one = clone(self)
            one.mean_ = self.mean_
            raw, targets = one._read(X, y)
            refuse_other_count(raw, targets)
            some = few(len(raw), targets.shape[1], seed_of(self.random_state))
            x = one._prepare(raw[some])
            centred = targets[some] - self._centred_at(targets)
            found.append((one, x, centred - one._prior_mean(x, self.mean_)))
        if not found:
            raise TaskError("there is no task to share a prior with; give pairs (X, y)")
        first = found[0][0]
        tuned = number_prior(
            first.linear_,
            [(one.linear_.features(x), residual, None) for one, x, residual in found],
            self.prior,
            checked_noise(self.noise),
            constant=self.mean_ == "constant",
        )
        layers = tuned.named(first.linear_)
        shared: LinearizedRegressor = clone(self).set_params(
            prior=layers, noise=tuned.noise, mean=self.mean_
        )
        return shared

    def update(
        self, X: Any, y: Any, noise: Any = None, sample_weight: Any = None
    ) -> LinearizedRegressor:
        """Condition on more data as well, the prior and the noise as they are.

        The same as fitting to all of it with these, but only what is new is computed.
        """
        check_is_fitted(self)
        began = time.perf_counter()
        raw = as_inputs(X, self, reset=False)
        targets, _ = as_numbers(y)
        refuse_other_count(raw, targets)
        if targets.shape[1] != self.network_.offset.numel():
            raise TaskError(
                f"targets have {targets.shape[1]} columns, those before had "
                f"{self.network_.offset.numel()}"
            )
        self._needs_posterior()
        raw, targets, relative = self._that_count(raw, targets, noise, sample_weight)
        x = self._prepare(raw)
        residual = targets - self.centre_ - self._prior_mean(x, self.mean_)
        spread, repeats = _shared_out(self._variance(targets, relative), self.counts_)
        self.posterior_ = self.posterior_.updated(self.linear_.features(x), residual, spread)
        self.repeats_ += repeats
        self._settle(began)
        return self

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        latent: bool = False,
        noise: Any = None,
    ) -> Any:
        """Means of new inputs, ``[m]`` or ``[m, k]``, and how sure they are.

        Args:
            X: Inputs ``[m, ...]``.
            return_std: Also the standard deviations, of the means' shape.
            return_cov: Also the joint covariance, ``[m, m]`` or ``[m, k, m, k]``.
            latent: Of the function rather than of a new observation of it, which adds noise.
            noise: Known variances of the new observations.
        """
        check_is_fitted(self)
        spread = self._spread_asked(return_std, return_cov)
        if latent and noise is not None:
            raise SettingsError("latent=True is without noise; leave one of the two out")
        x = self._prepare(as_inputs(X, self, reset=False))
        means = self._posterior_mean(x)
        if spread == "none":
            return self._shaped(means)
        self._needs_posterior()
        scale = self.deviation_scale_
        added = torch.full_like(means, 0.0 if latent else self.noise_) * scale.square()
        if noise is not None:
            added = _variances(noise, means)
        if return_cov:
            joint = self.posterior_.covariance(self.linear_.features(x)) * (
                scale[:, None, None] * scale
            )
            size = means.numel()
            joint.reshape(size, size).diagonal().add_(added.flatten())
            return self._shaped(means), (joint[:, 0, :, 0] if self.flat_ else joint).numpy()
        variance = torch.cat(
            [
                self.posterior_.variance(features).diagonal(dim1=1, dim2=2)
                for _, features in self._chunks(x, self.rows_)
            ]
        )
        return self._shaped(means), self._shaped((variance * scale.square() + added).sqrt())

    def _chosen_mean(self, X: Any, y: Any, noise: Any, sample_weight: Any) -> str:
        """The mean, by evidence if that is asked for, of the observations that priors are tuned on.

        A network that gives another number of outputs, or that is made here, is not asked.
        """
        self.__dict__.pop("evidence_of_means_", None)
        if self.mean != "auto":
            return str(self.mean)
        self.mean_ = "constant"
        if self.model is None:
            return self.mean_
        raw, targets = self._read(X, y, sample_weight)
        refuse_other_count(raw, targets)
        if self.network_.projection is not None:
            return self.mean_
        some = few(len(raw), targets.shape[1], seed_of(self.random_state))

        def of_some(values: Any) -> Any:
            return values if np.shape(values)[:1] != (len(raw),) else np.asarray(values)[some]

        evidence = {}
        for mean in ("network", "constant", "zero"):
            one = clone(self).set_params(mean=mean, method="auto")
            about = (of_some(noise), of_some(sample_weight))
            evidence[mean] = one.fit(raw[some], targets[some].numpy(), *about).log_evidence_
        self.evidence_of_means_ = evidence
        return max(evidence, key=lambda mean: evidence[mean] or -np.inf)

    def _read(self, X: Any, y: Any, sample_weight: Any = None) -> tuple[Tensor, Tensor]:
        raw = as_inputs(X, self, reset=True)
        targets, self.flat_ = as_numbers(y)
        rows, self.counts_ = as_counts(sample_weight, len(raw))
        model = self.model if self.at is None else front_of(self.model, self.at).part
        self._linearise(model, raw[rows], targets.shape[1], None, offset=self.mean_ == "constant")
        return raw, targets

    @cached_property
    def log_evidence_(self) -> float | None:
        """Of conjugate gradients, which take several times a fit for it: only when it is asked for.

        Its standard error then is in ``diagnostics_``.
        """
        check_is_fitted(self)
        posterior = getattr(self, "posterior_", None)
        if not isinstance(posterior, IterativePosterior):
            return None
        self.diagnostics_ |= {"log evidence error": posterior.log_evidence_error}
        return posterior.log_evidence + self.repeats_

    def _settle(self, began: float) -> None:
        self.__dict__.pop("log_evidence_", None)
        if not isinstance(self.posterior_, IterativePosterior):
            self.log_evidence_ = self.posterior_.log_evidence + self.repeats_
        self._remember(self.centre_, self.mean_, began)

    def _centred_at(self, targets: Tensor) -> Tensor:
        """Where the offset's prior is centred ``[o]``; zero without one."""
        outputs = targets.shape[1]
        if self.mean_ != "constant":
            return torch.zeros(outputs, dtype=torch.float64)
        if self.centre is None:
            return mean_over(targets, 0, self.counts_)
        try:
            centre = torch.as_tensor(np.asarray(self.centre, dtype=np.float64)).reshape(-1)
        except (TypeError, ValueError):
            centre = torch.empty(0)
        if centre.numel() not in (1, outputs) or not bool(centre.isfinite().all()):
            raise SettingsError(f"centre is {outputs} finite numbers, got {shown(self.centre)}")
        return centre.expand(outputs).clone()

    def _set_scales(self, residual: Tensor) -> None:
        known = offset_variance(self.prior)
        around = residual - mean_over(residual, 0, self.counts_)
        varies = mean_over(around.square(), 0, self.counts_).mean()
        wide = WIDE * max(float(varies), self.noise_)
        offset = {OFFSET: wide if known is None else known} if self.mean_ == "constant" else {}
        self._scales = self.prior_.scales | offset
        self.scales_ = self.prior_.named(self.linear_) | offset

    def _variance(self, targets: Tensor, relative: Tensor | None) -> Tensor:
        return torch.full_like(targets, self.noise_) if relative is None else relative

    def _that_count(
        self, raw: Tensor, targets: Tensor, noise: Any, sample_weight: Any
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, targets and known variances of the rows that have a weight."""
        relative = None if noise is None else _variances(noise, targets)
        rows, self.counts_ = as_counts(sample_weight, len(raw))
        return raw[rows], targets[rows], None if relative is None else relative[rows]

    def _refuse_settings(self) -> None:
        super()._refuse_settings()
        checked_noise(self.noise)
        if not (isinstance(self.tolerance, float) and 0 < self.tolerance < 1):
            raise SettingsError(f"tolerance lies between 0 and 1, got {shown(self.tolerance)}")


def _least_noise(targets: Tensor, residual: Tensor, counts: Tensor | None) -> float:
    """What noise is at least found to be: far below what there is to explain, above rounding.

    It is for the row that counts most, whose noise is divided by how often.
    """
    most = 1.0 if counts is None else max(1.0, float(counts.max()))
    size, left = (float(mean_over(v.square(), 0, counts).mean()) for v in (targets, residual))
    return most * max(LEAST * left, ROUNDING * size)


def _shared_out(variance: Tensor, counts: Tensor | None) -> tuple[Tensor, float]:
    r"""Variances ``[n, o]`` over how many times each row counts, and what that leaves unsaid.

    Of :math:`\omega` rows alike the mean has the noise :math:`v / \omega`; the log density of all
    is that of the mean less :math:`\frac12 \big( (\omega - 1) \log 2\pi v + \log \omega \big)`.
    """
    if counts is None:
        return variance, 0.0
    times = counts[:, None]
    unsaid = (times - 1) * (2 * math.pi * variance).log() + times.log()
    return variance / times, -0.5 * float(unsaid.sum())


def _median(variances: Tensor, counts: Tensor | None) -> float:
    """Of variances ``[n, o]``, each as often as its row counts."""
    if counts is None:
        return float(variances.median())
    ordered, places = variances.flatten().sort()
    times = counts.repeat_interleave(variances.shape[1])[places].cumsum(0)
    return float(ordered[int((times >= times[-1] / 2).nonzero()[0])])


def _variances(noise: Any, targets: Tensor) -> Tensor:
    try:
        variances = torch.as_tensor(np.asarray(noise, dtype=np.float64))
    except (TypeError, ValueError):
        raise TaskError(f"noise holds variances, numbers above 0; got {shown(noise)}") from None
    variances = variances.reshape(-1, 1) if variances.ndim == 1 else variances
    if (
        variances.ndim == 0
        or len(variances) != len(targets)
        or variances.shape[1] not in (1, targets.shape[1])
    ):
        raise TaskError(
            f"noise has shape {list(variances.shape)}; give a variance for each of the "
            f"{len(targets)} observations"
        )
    if not bool((variances.isfinite() & (variances > 0)).all()):
        raise TaskError("noise holds variances, all above 0 and finite")
    return variances.expand(targets.shape).clone()
