"""Classes from a linearised network."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, get_args

import torch
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from dovetail.adapt.evidence import tune_label_scale
from dovetail.adapt.laplace import Link, condition_on_labels, probabilities, with_more_labels
from dovetail.adapt.linearized import LinearizedEstimator
from dovetail.adapt.networks import front_of, network_of
from dovetail.adapt.priors import few_of_each, label_prior
from dovetail.adapt.variational import VariationalPosterior, variational
from dovetail.core.errors import SettingsError, TaskError, nearest, shown
from dovetail.measure.calibration import fit_temperature, log_probabilities
from dovetail.measure.estimator_inputs import (
    as_classes,
    as_counts,
    as_inputs,
    as_labels,
    codes_among,
    refuse_other_count,
    seed_of,
)
from dovetail.measure.estimators import Classifier, has_mistakes
from dovetail.parts.part import Part

__all__ = ["LinearizedClassifier"]

DRAWS = 32


class LinearizedClassifier(Classifier, LinearizedEstimator):
    r"""Predict classes by inference in a linearised network.

    Logits are :math:`g(x) = m(x) + J_\theta(x) w`, :math:`w \sim \mathcal N(0, S)`, labels follow
    their softmax.  Nothing is trained; the network and its weights stay as they are.

    A part that knows the classes by name (labels that are text) is taken with its own outputs for
    them; another one is taken without its head, and a fixed random projection makes logits of its
    features.

    Args:
        model: A part or module, which is copied; ``None`` for a random tanh network of two layers
            that standardises its inputs.
        params: Which parameters may move: None for all, patterns such as ``"head.*"``, or a test.
        at: The cut point to take features at, or ``"output"``.
        mean: Where the prior is centred: ``"auto"`` for ``"network"`` where the part knows the
            classes, else ``"zero"``; or ``"origin"``, see :data:`dovetail.adapt.linearized.Mean`.
        prior: The variance of the weights: ``"evidence"`` for the one that explains the labels
            best, ``"layers"`` for one a layer, a number, or a mapping of layers to numbers.
        projection: ``"auto"``, ``"fixed"`` for a random one in any case, or a matrix ``[d, c]``.
        method: ``"laplace"`` (Newton's method and the whole Hessian, in function space), ``"svi"``
            (stochastic variational inference over the weights, for more labels than that has
            memory for), ``"map"`` (the most probable weights alone) or ``"auto"``.
        link: How the uncertainty of logits enters probabilities: ``"mean"`` (not at all), ``"mc"``,
            ``"probit"`` (for Laplace), see :mod:`dovetail.adapt.laplace`; ``"auto"`` for ``"mean"``
            with Laplace, which was measured to be the best calibrated, and ``"mc"`` with
            variational inference.
        steps: The most, of stochastic variational inference.
        memory: Bytes that may be used; what is free unless said.
        random_state: Of everything drawn.

    After :meth:`fit`: ``classes_``, ``scales_`` (prior variances by layer), ``log_evidence_`` (for
    ``"svi"`` a bound of it), ``temperature_``, ``posterior_``, ``diagnostics_``.

    >>> x = [[0.0], [0.2], [0.4], [2.0], [2.2], [2.4]]
    >>> model = LinearizedClassifier().fit(x, ["low"] * 3 + ["high"] * 3)
    >>> model.predict([[-0.1], [2.5]]).tolist()
    ['low', 'high']
    """

    METHODS = ("auto", "laplace", "svi", "map")
    MEANS = ("auto", "zero", "network", "origin")
    labels_: Tensor
    means_: Tensor
    mean_: str

    def __init__(
        self,
        model: Any = None,
        *,
        params: Any = None,
        at: Any = None,
        mean: Any = "auto",
        prior: Any = "evidence",
        projection: Any = "auto",
        method: Any = "auto",
        link: Any = "auto",
        steps: Any = 1000,
        memory: Any = None,
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.params = params
        self.at = at
        self.mean = mean
        self.prior = prior
        self.projection = projection
        self.method = method
        self.link = link
        self.steps = steps
        self.memory = memory
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LinearizedClassifier:
        """Condition on inputs ``[n, ...]`` and their classes ``[n]``.

        ``sample_weight [n]`` says how many times each label counts: its log likelihood is taken so
        many times, and a whole number is the same as so many rows alike.
        """
        began = time.perf_counter()
        self._refuse_settings()
        x = self._begin(X, y, sample_weight)
        counts = self.counts_
        self.plan_ = self._planned(x, len(x))
        method = self.plan_.method
        some = few_of_each(self.labels_, len(self.classes_), self.seed_)
        tuned_on = self.linear_.features(x[some])
        self.prior_ = label_prior(
            self.linear_,
            tuned_on,
            self.labels_[some],
            self.means_[some],
            self.prior,
            None if counts is None else counts[some],
        )
        self._scales = self.prior_.scales
        self.scales_ = self.prior_.named(self.linear_)
        if method == "laplace":
            features = tuned_on if len(some) == len(x) else self.linear_.features(x)
            self.posterior_ = condition_on_labels(
                features, self.labels_, self.means_, self._scales, counts=counts
            )
        else:
            self.posterior_ = variational(
                self.linear_,
                x,
                self.labels_,
                mean=self.means_,
                scales=self._scales,
                posterior="map" if method == "map" else "mean-field",
                steps=self.steps,
                seed=self.seed_,
                centred=True,
                counts=counts,
            )
        self._settle(began)
        return self

    def sharing(self, tasks: Iterable[tuple[Any, Any]]) -> LinearizedClassifier:
        """A new estimator whose prior explains several tasks ``(X, y)`` best together.

        It is not fitted; one scale is found for all layers.
        """
        self._refuse_settings()
        problems = []
        for X, y in tasks:
            one = clone(self)
            x = one._begin(X, y)
            some = few_of_each(one.labels_, len(one.classes_), seed_of(self.random_state))
            rows = one.means_[some].numel()
            kernel = one.linear_.features(x[some]).gram().reshape(rows, rows)
            problems.append((kernel, one.means_[some], one.labels_[some]))
        if not problems:
            raise TaskError("there is no task to share a prior with; give pairs (X, y)")
        scale, _ = tune_label_scale(problems)
        shared: LinearizedClassifier = clone(self).set_params(prior=scale)
        return shared

    def update(self, X: Any, y: Any, sample_weight: Any = None) -> LinearizedClassifier:
        """Condition on more labels as well, the prior as it is; of classes known already."""
        check_is_fitted(self)
        began = time.perf_counter()
        self._needs_posterior()
        if isinstance(self.posterior_, VariationalPosterior):
            raise TaskError(
                "a variational posterior is not updated exactly; fit again with all labels, or "
                "with method='laplace'"
            )
        x, codes = self._labelled(X, y)
        kept, counts = as_counts(sample_weight, len(x))
        x, codes = x[kept], codes[kept]
        labels = torch.cat([self.labels_, codes])
        means = torch.cat([self.means_, self._prior_mean(x, self.mean_)])
        features = self.linear_.features(x)
        posterior = with_more_labels(self.posterior_, features, labels, means, counts)
        # All or nothing: what fails above leaves the estimator as it was.
        self.labels_, self.means_, self.posterior_ = labels, means, posterior
        self._settle(began)
        return self

    def logits(self, X: Any) -> Tensor:
        """The mean of the logits ``[m, c]``, float64, before any temperature."""
        check_is_fitted(self)
        return self._posterior_mean(self._prepare(as_inputs(X, self, reset=False)))

    def predict_proba(self, X: Any, *, link: Any = None) -> Any:
        """Probabilities ``[m, c]`` in the order of ``classes_``, by its own link unless said."""
        check_is_fitted(self)
        x = self._prepare(as_inputs(X, self, reset=False))
        return self._probabilities(x, self._linked(link), self.temperature_).numpy()

    def calibrate(self, X: Any, y: Any) -> LinearizedClassifier:
        """Set ``temperature_`` by labels that were not fitted to: the one of the least log loss.

        It divides the logarithms of the probabilities that the link gives.  A part has the mean
        alone, and so a temperature of its own.  Where every answer is right both are one.
        """
        check_is_fitted(self)
        x, codes = self._labelled(X, y)
        said = self._probabilities(x, self._linked(None), 1.0)
        self.temperature_ = self.mean_temperature_ = 1.0
        if has_mistakes(said, codes):
            self.temperature_ = fit_temperature(log_probabilities(said), codes)
            self.mean_temperature_ = fit_temperature(self._posterior_mean(x), codes)
        return self

    def _read(self, X: Any, y: Any, sample_weight: Any = None) -> tuple[Tensor, Tensor]:
        raw = as_inputs(X, self, reset=True)
        kept, self.counts_ = as_counts(sample_weight, len(raw))
        if sample_weight is not None:
            y = as_labels(y)
            refuse_other_count(raw, y)
            raw, y = raw[kept], y[kept]
        codes, self.classes_ = as_classes(y)
        columns = self._known_columns()
        body = self._body(raw, columns)
        self._linearise(body, raw, len(self.classes_), columns, offset=False)
        self.mean_ = self.mean
        if self.mean == "auto":
            self.mean_ = "zero" if columns is None else "network"
        return raw, codes

    def _begin(self, X: Any, y: Any, sample_weight: Any = None) -> Tensor:
        """Read the data, linearise the network for it, and give prepared inputs."""
        raw, self.labels_ = self._read(X, y, sample_weight)
        refuse_other_count(raw, self.labels_)
        self.temperature_ = self.mean_temperature_ = 1.0
        x = self._prepare(raw)
        self.means_ = self._prior_mean(x, self.mean_)
        return x

    def _probabilities(self, x: Tensor, link: Any, temperature: float) -> Tensor:
        """Temperature divides the logarithms of what the link gives."""
        found = []
        if link == "mean" or self._is_point():
            plain = probabilities(self._posterior_mean(x), torch.empty(0), "mean")
            found.append(plain)
        elif isinstance(self.posterior_, VariationalPosterior):
            for batch in torch.split(x, 1024):
                mean = self._prior_mean(batch, self.mean_)
                draws = self.posterior_.samples(batch, mean, DRAWS, self.seed_)
                found.append(draws.softmax(2).mean(0))
        else:
            for some, features in self._chunks(x, self.rows_):
                mean = self._prior_mean(x[some], self.mean_) + self.posterior_.shift(features)
                spread = self.posterior_.variance(features)
                found.append(probabilities(mean, spread, link, seed=self.seed_))
        return (log_probabilities(torch.cat(found)) / temperature).softmax(1)

    def _is_point(self) -> bool:
        """Whether there is no spread: the most probable weights alone."""
        posterior = self.posterior_
        return isinstance(posterior, VariationalPosterior) and not bool(posterior.deviations.any())

    def _linked(self, link: Any) -> str:
        """The link to use, which must be one that the posterior has."""
        chosen = self.link if link is None else link
        kept = getattr(self, "posterior_", None)
        varies = isinstance(kept, VariationalPosterior)
        if chosen == "auto":
            chosen = "mc" if varies else "mean"
        _refuse_link(chosen)
        if chosen == "probit" and varies:
            raise SettingsError("variational inference has links 'mc' and 'mean', not 'probit'")
        if chosen != "mean":
            self._needs_posterior()
        return str(chosen)

    def _known_columns(self) -> list[int] | None:
        """The part's own outputs for the classes, if it knows all of them by name."""
        known = self.model.contract.classes if isinstance(self.model, Part) else None
        if self.classes_.dtype.kind not in "UO":
            return None  # integers may be codes of other classes that happen to look like names
        names = [str(one) for one in self.classes_]
        if known is None or self.at not in (None, "output") or not set(names) <= set(known):
            return None
        return [known.index(name) for name in names]

    def _body(self, raw: Tensor, columns: list[int] | None) -> Any:
        """The network to linearise: whole where its outputs are the classes, else a front of it."""
        if self.model is None or columns is not None or self.at == "output":
            return self.model
        if self.at is None and not isinstance(self.model, Part):
            module, self._prepare, _ = network_of(self.model)
            if self._given(module, raw) == len(self.classes_):
                return self.model
        return front_of(self.model, self.at).part

    def _labelled(self, X: Any, y: Any) -> tuple[Tensor, Tensor]:
        """Prepared inputs and codes of labels, which must be among the classes fitted to."""
        raw = as_inputs(X, self, reset=False)
        codes = codes_among(y, self.classes_)
        refuse_other_count(raw, codes)
        return self._prepare(raw), codes

    def _settle(self, began: float) -> None:
        posterior = self.posterior_
        if isinstance(posterior, VariationalPosterior):
            self.log_evidence_ = None if self._is_point() else posterior.diagnostics["elbo"]
        else:
            self.log_evidence_ = posterior.log_evidence
        self._remember(posterior.constant, self.mean_, began)

    def _refuse_settings(self) -> None:
        super()._refuse_settings()
        if self.link != "auto":
            _refuse_link(self.link)
        self.seed_ = seed_of(self.random_state)


def _refuse_link(link: Any) -> None:
    if link not in get_args(Link):
        raise SettingsError(f"no link is called {shown(link)}{nearest(str(link), get_args(Link))}")
