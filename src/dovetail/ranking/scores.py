"""Every score by name, and one function that computes any of them.

Higher is better, always.  Scores that are functions of mergeable sums come from
:class:`~dovetail.ranking.statistics.PairStatistics`, the others from functions of rows and labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, SupportsFloat

from dovetail.core.activations import kernel_range
from dovetail.core.errors import SettingsError, TaskError, argument, nearest
from dovetail.measure.inputs import as_rows, as_targets, class_codes, refuse_other_count
from dovetail.ranking.cts import cts, cts_neo
from dovetail.ranking.distances import knn, parc
from dovetail.ranking.expected import expected_accuracy
from dovetail.ranking.heads import ridge_loo
from dovetail.ranking.leep import leep, nce, nleep
from dovetail.ranking.logme import logme
from dovetail.ranking.ntk import kernel_alignment, kernel_loo
from dovetail.ranking.scores_from_sums import ALIASES
from dovetail.ranking.statistics import PairStatistics
from dovetail.ranking.transrate import transrate, transrate_scaled

DEFAULT = "expected-accuracy"
"""What ranks unless somebody says otherwise; docs/rank.md has the evidence for it."""

DEFAULT_OF_PAIRS = "al"
"""The same where only pairs are known, of which no head can be expected anything."""


@dataclass(frozen=True)
class Score:
    """What is known of a score before it is computed.

    Attributes:
        name: As in ``by=``.
        words: What it measures, in a clause.
        fits: Kinds of targets: ``"classes"``, ``"multilabel"``, ``"regression"``, ``"pairs"``.
        function: What computes it from rows and targets, when it is not from sums.
        per_class: Whether its sums must keep a second moment a class.
        seeded: Whether it draws, and ``function`` takes a ``seed``.
        needs_probs: Whether it is of the source network's probabilities, in place of rows.
        needs_network: Whether it is of the whole network, not of its features: ``function`` then
            takes the rows of its tangent kernel ``[n, n]``.
    """

    name: str
    words: str
    fits: frozenset[str]
    function: Callable[..., SupportsFloat] | None = None
    per_class: bool = False
    seeded: bool = False
    needs_probs: bool = False
    needs_network: bool = False

    @property
    def from_sums(self) -> bool:
        """Whether :class:`PairStatistics` gives it, hence merged, streamed and exact."""
        return self.function is None


By = str | Score | Callable[[Any, Any], float]
"""A score or its name, or a function of (features, labels) that gives a number."""

RANGED = ("al", "utal", "nmse")
"""Scores that hold a kernel against the ends of its range, which differ between activations."""

_CLASSES = frozenset({"classes"})
_NUMBERS = frozenset({"classes", "multilabel", "regression"})
_PAIRS = frozenset({"classes", "pairs"})

_LEEP = "log-likelihood of labels through the source's classes"
_NLEEP = "log-likelihood of labels through clusters of features"
_NCE = "minus the entropy of labels given the source's decision"
_CTS_NEO = "minus the mean exp k of pairs of two classes"
_SCALED = "the same at unit scale, classes weighted"
_ALIGNED = "alignment of the centred tangent kernel"
_TANGENT = "leave-one-out accuracy of the linearised network"
_TABLE = (
    Score("al", "alignment of the kernel with the labels'", _PAIRS),
    Score("utal", "the same over pairs i < j", _PAIRS),
    Score("nmse", "minus the squared error of the kernel", _PAIRS),
    Score("cts", "share of pairs of one class in the sum of exp k", _PAIRS, cts, seeded=True),
    Score("al-neo", "alignment over pairs of two classes", _PAIRS, per_class=True),
    Score("utal-neo", "the same over pairs i < j, hence equal", _PAIRS, per_class=True),
    Score("nmse-neo", "minus the squared excess of the kernel", _PAIRS, per_class=True),
    Score("cts-neo", _CTS_NEO, _PAIRS, cts_neo, seeded=True),
    Score("centred-al", "alignment of centred kernels (linear CKA)", _NUMBERS),
    Score("centred-al-unit", "the same on features of unit length", _NUMBERS),
    Score("logme", "evidence of a Bayesian linear head", _NUMBERS),
    Score("hscore", "between-class over total covariance", _CLASSES),
    Score("hscore-lw", "the same, covariance shrunk", _CLASSES),
    Score("gbc", "minus the overlap of class Gaussians", _CLASSES),
    Score("gbc-spherical", "the same, one variance a class", _CLASSES),
    Score("leep", _LEEP, _CLASSES, leep, needs_probs=True),
    Score("nce", _NCE, _CLASSES, nce, needs_probs=True),
    Score("nleep", _NLEEP, _CLASSES, nleep, seeded=True),
    Score("transrate", "coding rate less that of classes", _CLASSES, transrate),
    Score("transrate-scaled", _SCALED, _CLASSES, transrate_scaled),
    Score("parc", "rank correlation of distances and labels", _CLASSES, parc),
    Score("knn-1", "leave-one-out accuracy of the nearest neighbour", _CLASSES, knn),
    Score("knn-3", "leave-one-out accuracy of three neighbours", _CLASSES, partial(knn, k=3)),
    Score("ridge-loo", "leave-one-out accuracy of a ridge head", _NUMBERS, ridge_loo),
    Score("expected-accuracy", "accuracy to expect of a ridge head", _NUMBERS, expected_accuracy),
    Score("ntk-centred-al", _ALIGNED, _NUMBERS, kernel_alignment, needs_network=True),
    Score("ntk-loo", _TANGENT, _NUMBERS, kernel_loo, needs_network=True),
)

SCORES: dict[str, Score] = {entry.name: entry for entry in _TABLE}


def find_score(name: str) -> Score:
    """The score of a name, in capitals or not, or an error that names near ones.

    >>> find_score("cka").name, find_score("AL").name
    ('centred-al', 'al')
    >>> find_score("logmee")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: unknown score 'logmee'; did you mean logme, leep, nleep?
    """
    plain = name.lower()
    plain = ALIASES.get(plain, plain)
    if plain not in SCORES:
        raise SettingsError(f"unknown score {name!r}{nearest(plain, SCORES, most=3)}")
    return SCORES[plain]


def as_score(by: By) -> Score | Callable[[Any, Any], float]:
    """What is meant by ``by=``: a score by its name, or a function; refuses all else.

    >>> as_score("logme").name
    'logme'
    >>> as_score(["al", "logme"])
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: by is one score's name or a function of (features, labels),
    not a list; rank once for each
    """
    if isinstance(by, str):
        return find_score(by)
    if isinstance(by, Score) or callable(by):
        return by
    raise SettingsError(
        f"{argument('by')} is one score's name or a function of (features, labels), not a "
        f"{type(by).__name__}; rank once for each"
    )


def needs_network(by: By | None) -> bool:
    """Whether a score is of the whole network, and not of its features.

    >>> needs_network("ntk-loo"), needs_network("logme"), needs_network(None)
    (True, False, False)
    """
    entry = None if by is None else as_score(by)
    return isinstance(entry, Score) and entry.needs_network


def score(
    features: Any,
    labels: Any,
    by: By = DEFAULT,
    *,
    activation: str = "relu",
    source_probs: Any = None,
    seed: int = 0,
) -> float:
    """How well features ``[n, d]`` serve a task with these labels; higher is better.

    Everything is computed in float64.

    Args:
        features: Tensor, array or list, taken **after** the activation.
        labels: One integer or name a row for classes; floats ``[n]`` or a matrix ``[n, k]`` for
            numbers (regression, or zeros and ones of several labels).
        by: A name of ``SCORES``, but for those of whole networks, or a function of (features,
            labels), which gets both as they are.
        activation: Names the range of the kernel, for al, utal, nmse and their -neo forms.
        source_probs: ``[n, source classes]``, for leep and nce.
        seed: For what is random: nleep, and cts beyond 10 000 rows.

    >>> rows = [[1.0, 0.1], [0.9, 0.0], [0.0, 1.0], [0.2, 1.1]]
    >>> score(rows, ["cat", "cat", "emu", "emu"], by="knn-1")
    1.0
    """
    if callable(by):
        return _judged(by(features, labels), getattr(by, "__name__", "the function"))
    entry = as_score(by)
    assert isinstance(entry, Score)
    if entry.needs_network:
        raise SettingsError(
            f"{entry.name} is of the whole network, which its features do not show; rank the part "
            "by it (dt.rank), or give its kernel to dt.ranking.ntk_score"
        )
    kernel_range(activation)
    rows, targets = as_rows(features), as_targets(labels)
    refuse_other_count(rows, targets)
    numbers = targets.is_floating_point()
    if numbers and "regression" not in entry.fits:
        fit = ", ".join(
            name
            for name, other in SCORES.items()
            if "regression" in other.fits and not other.needs_network
        )
        raise TaskError(
            f"{entry.name} is for classes, and the labels are numbers; for numbers there is {fit} "
            "(classes are integers or names, one a row)"
        )
    if not numbers:
        class_codes(targets)
    if entry.needs_probs and source_probs is None:
        raise SettingsError(
            f"{entry.name} needs source_probs, the source network's probabilities [n, classes] on "
            "these rows; a part without its head has none: use nleep, or a score of features"
        )
    if entry.name == "logme":
        return logme(rows, targets)  # all rows are at hand: one product of them is enough
    if entry.function is None:
        sums = PairStatistics(activation, per_class=entry.per_class)
        return float(sums.update(rows, targets).score(entry.name))
    drawn = {"seed": seed} if entry.seeded else {}
    return float(entry.function(source_probs if entry.needs_probs else rows, targets, **drawn))


def _judged(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise SettingsError(
            f"{name} gave a {type(value).__name__}, not a number; see dt.testing.check_score"
        ) from None
    if not math.isfinite(number):
        raise SettingsError(f"{name} gave {number}; see dt.testing.check_score")
    return number
