"""What a score must satisfy: a number that says how well features separate labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dovetail.core.errors import DovetailError
from dovetail.testing.failures import CheckFailed, attempt, require

__all__ = ["check_score"]

Array = npt.NDArray[Any]
Score = Callable[[Any, Any], float]


def check_score(score: Score, *, tensors: bool = False) -> None:
    """Check a function from features ``[n, d]`` and labels ``[n]`` to a float, higher is better.

    It must be a plain, finite float; the same in every call, in every order of the rows and under
    every naming of the classes; higher for separable classes than for shuffled labels; and work
    with fewer rows than features, with any integers as labels, and with repeated rows.  Constant
    features may end in a clear error instead.  It must not change its inputs.

    Args:
        score: The function.
        tensors: Call it with tensors instead of NumPy arrays.

    Raises:
        CheckFailed: says what is wrong and how to mend it.

    >>> def nearest_centre(features, labels):
    ...     names = np.unique(labels)
    ...     centres = np.stack([features[labels == name].mean(0) for name in names])
    ...     distances = ((features[:, None] - centres) ** 2).sum(2)
    ...     return float((names[distances.argmin(1)] == labels).mean())
    >>> check_score(nearest_centre)
    """
    draw = np.random.default_rng(0)
    call = _Call(score, tensors)
    labels = np.arange(60) % 3
    features = np.eye(4)[labels] * 2 + draw.normal(size=(60, 4)) * 0.5
    plain = call(features, labels, "on ordinary data")
    call.leaves_inputs(features, labels)
    require(
        call(features, labels, "again") == plain,
        "the score gives two values for the same data",
        "Draw nothing at random, or from a generator seeded anew in each call.",
    )
    order = draw.permutation(60)
    _equal(plain, call(features[order], labels[order], "in another order"), "order of the rows")
    for names in ([2, 0, 1], [7, 3, 11]):
        renamed = call(features, np.array(names)[labels], f"with labels {sorted(names)}")
        _equal(plain, renamed, "naming of the classes")
    shuffled = call(features, labels[order], "with shuffled labels")
    require(
        plain > shuffled,
        f"separable classes get {plain:.6g}, shuffled labels {shuffled:.6g}",
        "Higher must be better: turn the sign round.",
    )
    call(draw.normal(size=(12, 40)), np.arange(12) % 3, "with fewer rows than features")
    call(features[labels < 2], np.array([3, 7])[labels[labels < 2]], "with labels 3 and 7")
    call(np.repeat(features[:12], 3, axis=0), np.repeat(labels[:12], 3), "with repeated rows")
    call.may_refuse(np.ones((12, 4)), np.arange(12) % 3, "with constant features")


class _Call:
    """The score as it is called, its value judged each time."""

    def __init__(self, score: Score, tensors: bool) -> None:
        self.score, self.tensors = score, tensors

    def __call__(self, features: Array, labels: Array, when: str) -> float:
        value = attempt(
            lambda: self.score(*self._given(features, labels)),
            f"the score fails {when}",
            "It is called with float features [n, d] and integer labels [n].",
        )
        return self._judged(value, when)

    def may_refuse(self, features: Array, labels: Array, when: str) -> None:
        """A number, or an error that says why not."""
        try:
            value = self.score(*self._given(features, labels))
        except (DovetailError, ValueError) as error:
            mend = "Say what is wrong with the features."
            require(bool(str(error)), f"the score's error {when} says nothing", mend)
            return
        except Exception as error:  # code of others
            raise CheckFailed(
                f"the score ends {when} in {type(error).__name__}: {error}. "
                "Give a number, or raise a ValueError that says why."
            ) from error
        self._judged(value, when)

    def leaves_inputs(self, features: Array, labels: Array) -> None:
        """The arrays are the same after the call."""
        given = self._given(features, labels)
        self.score(*given)
        require(
            np.array_equal(given[0], features) and np.array_equal(given[1], labels),
            "the score changes its inputs in place",
            "Write x = x - mean rather than x -= mean.",
        )

    def _given(self, features: Array, labels: Array) -> tuple[Any, Any]:
        if self.tensors:
            return torch.tensor(features), torch.tensor(labels)
        return features.copy(), labels.copy()

    def _judged(self, value: Any, when: str) -> float:
        require(
            type(value) is float,
            f"the score is a {type(value).__name__} {when}, not a float",
            "Return float(value).",
        )
        require(
            math.isfinite(value),
            f"the score is {value} {when}",
            "Look for a division by zero, a singular matrix or the logarithm of zero.",
        )
        return float(value)


def _equal(one: float, two: float, what: str) -> None:
    require(
        math.isclose(one, two, rel_tol=1e-6, abs_tol=1e-9),
        f"the {what} changes the score from {one:.6g} to {two:.6g}",
        "Use all rows alike, and compare labels for equality only.",
    )
