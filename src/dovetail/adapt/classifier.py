"""Classes from a linearised network."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

import torch
import torch.nn.functional as F
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from dovetail.adapt.around import SMALL, Placed, group_costs, place
from dovetail.adapt.evidence import tune_label_scale
from dovetail.adapt.finetuned import own_head, places_of
from dovetail.adapt.laplace import Link, condition_on_labels, probabilities, with_more_labels
from dovetail.adapt.linear_heads import folds_of
from dovetail.adapt.networks import front_of, network_of
from dovetail.adapt.placed import UNSURE, Placeable
from dovetail.adapt.plan import Plan
from dovetail.adapt.priors import few_of_each, label_prior
from dovetail.adapt.variational import VariationalPosterior, variational
from dovetail.core.errors import SettingsError, TaskError, nearest, shown
from dovetail.linalg.parameters import chosen_parameters
from dovetail.measure.calibration import fit_temperature, log_probabilities
from dovetail.measure.estimator_inputs import (
    as_classes,
    as_counts,
    as_inputs,
    as_labels,
    codes_among,
    names_of,
    refuse_other_count,
    seed_of,
)
from dovetail.measure.estimators import Classifier, has_mistakes, temperature_of
from dovetail.parts.part import Part, as_part

DRAWS = 32

COMPUTED_LATER = (
    *("plan_", "posterior_", "prior_", "scales_", "log_evidence_", "_scales", "_placed_at"),
)
"""Attributes of an earlier fit that a new one must not inherit."""

NOTHING_HELD_OUT = "a class has one label: none to hold out, and a small network's tangents count"
MOST_JUDGED = 5000
"""Labels times classes: around its own weights a network is tried with no more.

Inference goes with the cube of it.  LeNet-5 on digits took 1.4 s of a core without and 16 s with it
for 500 labels, for 1258 labels 2 s and 60 s; the choice was the same."""
START_WON = "on labels held out, the network around its own weights had the least log loss"


class LinearizedClassifier(Classifier, Placeable):
    r"""Predict classes by inference in a linearised network.

    Logits are :math:`g(x) = m(x) + J_\theta(x) w`, :math:`w \sim \mathcal N(0, S)`, labels follow
    their softmax.  The network that is handed over stays as it is.

    Around which weights, ``around``, decides what the tangents :math:`J` are worth
    (:mod:`dovetail.adapt.around`).  At ``"start"``, the network's own, nothing is trained: a part
    that knows the classes by name (labels that are text) is taken with its own outputs for them;
    another one without its head, and a fixed random projection makes logits of its features.  At
    ``"head"`` a head is fitted to the features, as :class:`~dovetail.adapt.Probe` does, or the
    part's own is kept; at ``"again"`` the last layers (of a small network all) have moved under it,
    too, if labels held out say that this helps.

    Args:
        model: A part or module, which is copied; ``None`` for a random tanh network of two layers
            that standardises its inputs.
        params: Which parameters may move: None for all, patterns such as ``"head.*"``, or a test.
        at: The cut point to take features at, or ``"output"``.
        around: ``"head"``, ``"again"``, ``"start"``, or ``"auto"``: the one of these with the least
            log loss on labels held out, ``"start"`` being tried with networks of less than a
            million weights and at most 5000 labels times classes; where a class has one label it is
            ``"start"`` for those, ``"head"`` for larger ones.  What follows, said otherwise than by
            default, is for ``"start"``.
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

    After :meth:`fit`: ``classes_``, ``around_`` and ``chosen_`` (``"probe"``, ``"own head"``,
    ``"moved"`` or ``"start"``; ``diagnostics_`` say why), ``scales_`` (prior variances by layer),
    ``log_evidence_`` (for ``"svi"`` a bound of it), ``temperature_``, ``posterior_``.

    >>> x = [[0.0], [0.2], [0.4], [2.0], [2.2], [2.4]]
    >>> model = LinearizedClassifier().fit(x, ["low"] * 3 + ["high"] * 3)
    >>> model.predict([[-0.1], [2.5]]).tolist()
    ['low', 'high']
    """

    METHODS = ("auto", "laplace", "svi", "map")
    MEANS = ("auto", "zero", "network", "origin")
    AROUND = ("auto", "head", "again", "start")
    labels_: Tensor
    means_: Tensor
    mean_: str

    def __init__(
        self,
        model: Any = None,
        *,
        params: Any = None,
        at: Any = None,
        around: Any = "auto",
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
        self.around = around
        self.mean = mean
        self.prior = prior
        self.projection = projection
        self.method = method
        self.link = link
        self.steps = steps
        self.memory = memory
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, class_names: Any = None
    ) -> LinearizedClassifier:
        """Condition on inputs ``[n, ...]`` and their classes ``[n]``.

        ``sample_weight [n]`` says how many times each label counts: its log likelihood is taken so
        many times, and a whole number is the same as so many rows alike.  It is for networks around
        their start.

        Of labels that are places in a list of names, such as a task's ``classes``, hand that list
        over as ``class_names``: the part that is made of this then knows its classes by name.
        """
        began = time.perf_counter()
        self._refuse_settings()
        for name in COMPUTED_LATER:
            self.__dict__.pop(name, None)
        raw = as_inputs(X, self, reset=True)
        codes, self.classes_ = as_classes(y)
        refuse_other_count(raw, codes)
        self.class_names_ = names_of(self.classes_, class_names)
        self.around_ = self._start_or_not(sample_weight)
        if self.around_ == "start":
            self._fit_start(raw, y, began, sample_weight)
            self.chosen_ = "start"
            self._warn_if_lost(None, self._logits_at_start(raw))
            return self
        placed = self._placed(raw, codes, class_names is not None)
        held_out = min(placed.guarded.losses.values(), default=None)
        if self.around_ == "auto" and self._is_small and self._front_moves:
            folds = placed.guarded.folds
            judged = None
            if held_out is not None and len(codes) * len(self.classes_) <= MOST_JUDGED:
                judged = self._start_held_out(raw, codes, folds)
            if held_out is None or (judged is not None and judged < held_out):
                self._fit_start(raw, y, began)
                self.around_ = self.chosen_ = "start"
                losses = {} if judged is None else {"start": judged, "head": held_out}
                why = START_WON if losses else NOTHING_HELD_OUT
                self.diagnostics_ |= {"why": why, "held_out_log_loss": losses}
                self._warn_if_lost(judged, self._logits_at_start(raw))
                return self
        self._settle_placed(placed, raw, codes, began)
        self._warn_if_lost(held_out, placed.guarded.logits / placed.guarded.temperature)
        return self

    def plan(self, n: int, X: Any = None, y: Any = None) -> Plan:
        """What fitting to so many inputs would take; with inputs and labels of all the classes to
        look at, each group of layers that may be fitted, too.
        """
        self._refuse_settings()
        if X is None or self._start_or_not(None) == "start":
            return super().plan(n, X, y)
        head: LinearizedClassifier = clone(self).set_params(around="head").fit(X, y)
        raw = as_inputs(X, head, reset=False)
        movable = set(chosen_parameters(as_part(self.model).module, self.params))
        movable = set() if self.around == "head" else movable
        front = front_of(self.model, self.at)
        groups = group_costs(front, raw, n, len(head.classes_), movable)
        return replace(head.plan(n), groups=groups)

    def _start_or_not(self, sample_weight: Any) -> str:
        """``around``, where the other settings leave it a choice; without a model there is none."""
        if self.around != "auto":
            if sample_weight is not None and self.around != "start":
                raise SettingsError("sample_weight is for around='start'; leave one of them out")
            return str(self.around)
        if sample_weight is not None or self.model is None or self.at == "output":
            return "start"
        return "auto" if self._settings_of_start_are_usual else "start"

    @property
    def _settings_of_start_are_usual(self) -> bool:
        others = (self.mean, self.prior, self.projection, self.method)
        texts = all(isinstance(each, str) for each in others)
        return texts and others == ("auto", "evidence", "auto", "auto")

    def _fit_start(self, raw: Any, y: Any, began: float, sample_weight: Any = None) -> None:
        x = self._begin(raw, y, sample_weight)
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

    def _placed(self, raw: Tensor, codes: Tensor, named: bool) -> Placed:
        """The network with a head for the classes, see :mod:`dovetail.adapt.around`."""
        part = as_part(self.model)
        front = front_of(self.model, self.at)
        names = self.class_names_
        places = places_of(part, self.classes_, names, named) if self.at is None else None
        known = part.contract.classes is not None and set(names) <= set(part.contract.classes)
        if not known and part.contract.gives[0].shape != (len(names),):
            places = None  # numbers may be places among other classes
        own = None if places is None else own_head(part, front, raw, places)
        movable = set(chosen_parameters(part.module, self.params))
        return place(
            front,
            raw,
            codes,
            names,
            own=own,
            movable=set() if self.around == "head" else movable,
            seed=self.seed_,
        )

    @property
    def _is_small(self) -> bool:
        return sum(each.numel() for each in as_part(self.model).module.parameters()) < SMALL

    @property
    def _front_moves(self) -> bool:
        """Whether any layer below the head may move."""
        movable = set(chosen_parameters(as_part(self.model).module, self.params))
        part = front_of(self.model, self.at).part
        return part is not None and any(
            name in movable for name, _ in part.module.named_parameters()
        )

    def _start_held_out(self, raw: Tensor, codes: Tensor, folds: int) -> float:
        """The log loss of the network around its own weights, on the labels that others held out.

        Like theirs it is after a temperature, which is fitted to the same labels.
        """
        held_out, labels = folds_of(codes, self.seed_, 3), self.classes_[codes.numpy()]
        said = torch.zeros(len(codes), len(self.classes_), dtype=torch.float64)
        for fold in range(folds):
            held = (held_out == fold).numpy()
            with warnings.catch_warnings():  # it is not chosen yet
                warnings.filterwarnings("ignore", message=UNSURE)
                one = clone(self).set_params(around="start").fit(raw[~held], labels[~held])
            said[held] = torch.as_tensor(one.predict_proba(raw[held])).log()
        judged = (held_out >= 0) & (held_out < folds)
        heat = temperature_of(said[judged], codes[judged])
        return float(F.cross_entropy(said[judged] / heat, codes[judged]))

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
        shared: LinearizedClassifier = clone(self).set_params(prior=scale, around="start")
        return shared

    def update(self, X: Any, y: Any, sample_weight: Any = None) -> LinearizedClassifier:
        """Condition on more labels as well, the prior as it is; of classes known already."""
        check_is_fitted(self)
        began = time.perf_counter()
        if self.around_ == "start":
            self._needs_posterior()
        if self.around_ != "start" or isinstance(self.posterior_, VariationalPosterior):
            raise TaskError(
                "this posterior is not updated exactly: its network was fitted, too, or it is "
                "variational; fit again with all labels, or with around='start', method='laplace'"
            )
        x, codes = self._labelled(X, y)
        rows, counts = as_counts(sample_weight, len(x))
        x, codes = x[rows], codes[rows]
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
        rows, self.counts_ = as_counts(sample_weight, len(raw))
        if sample_weight is not None:
            y = as_labels(y)
            refuse_other_count(raw, y)
            raw, y = raw[rows], y[rows]
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
        pieces = []
        if link == "mean" or self._is_point():
            plain = probabilities(self._posterior_mean(x), torch.empty(0), "mean")
            pieces.append(plain)
        elif isinstance(self.posterior_, VariationalPosterior):
            for batch in torch.split(x, 1024):
                mean = self._prior_mean(batch, self.mean_)
                draws = self.posterior_.samples(batch, mean, DRAWS, self.seed_)
                pieces.append(draws.softmax(2).mean(0))
        else:
            for some, features in self._chunks(x, self.rows_):
                mean = self._prior_mean(x[some], self.mean_) + self.posterior_.shift(features)
                spread = self.posterior_.variance(features)
                pieces.append(probabilities(mean, spread, link, seed=self.seed_))
        return (log_probabilities(torch.cat(pieces)) / temperature).softmax(1)

    def _is_point(self) -> bool:
        """Whether there is no spread: the most probable weights alone."""
        posterior = self.posterior_
        return isinstance(posterior, VariationalPosterior) and not bool(posterior.deviations.any())

    def _linked(self, link: Any) -> str:
        """The link to use, which must be one that the posterior has."""
        chosen = self.link if link is None else link
        posterior = vars(self).get("posterior_")  # not to be computed only for this
        varies = isinstance(posterior, VariationalPosterior)
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
        if self.around not in self.AROUND:
            ways = ", ".join(self.AROUND)
            raise SettingsError(f"around is one of {ways}, got {shown(self.around)}")
        if self.around in ("head", "again"):
            if self.model is None:
                raise SettingsError("without a model there is only around='start'")
            if not self._settings_of_start_are_usual:
                raise SettingsError(
                    "mean, prior, projection and method are for around='start'; leave them out"
                )
        if self.link != "auto":
            _refuse_link(self.link)
        self.seed_ = seed_of(self.random_state)


def _refuse_link(link: Any) -> None:
    if link not in get_args(Link):
        raise SettingsError(f"no link is called {shown(link)}{nearest(str(link), get_args(Link))}")
