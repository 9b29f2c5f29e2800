"""What an objective or a score must satisfy: one number from features and labels."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dovetail.core.errors import DovetailError
from dovetail.testing.failures import CheckFailed, attempt, require

Array = npt.NDArray[Any]
Objective = Callable[[Tensor, Tensor], Tensor]
Score = Callable[[Any, Any], float]

_DIFFERENTIABLE = "Keep to torch operations, with no detach(), numpy() or item() on the way."


def check_objective(objective: Objective | nn.Module, *, higher_is_better: bool = False) -> None:
    """Check a function or ``nn.Module`` from features ``[n, d]`` and labels ``[n]`` to a scalar.

    It must be a finite scalar, differentiable (compared with finite differences in float64), the
    same in float32 and float64, blind to the order of the rows and to the names of the classes,
    better for well-separated features than for the same ones under shuffled labels, and give a
    number or a clear error for a batch of one class.  It must not change its inputs.

    Args:
        objective: To be minimised, unless ``higher_is_better``.
        higher_is_better: It is to be maximised.

    Raises:
        CheckFailed: says what is wrong and how to mend it.

    >>> def spread(features, labels):
    ...     classes = [features[labels == label] for label in labels.unique()]
    ...     return sum((rows - rows.mean(0)).square().sum() for rows in classes) / len(features)
    >>> check_objective(spread)
    """
    draw = np.random.default_rng(0)
    labels = np.arange(12) % 3
    # Not negative, as after a ReLU, so that objectives for such features need no other data.
    features = draw.random((12, 5)).astype(np.float32) + np.float32(0.1)
    it = _Function("objective", objective, torch.tensor, Tensor, 1e-4, 1e-7)
    precise: Objective = objective
    if isinstance(objective, nn.Module):
        precise = copy.deepcopy(objective).double()
    plain = it.ignores_what_does_not_matter(features, labels, draw.permutation(12))
    require(
        objective(torch.tensor(features).requires_grad_(), torch.tensor(labels)).requires_grad,
        "the objective is not attached to its features",
        _DIFFERENTIABLE,
    )
    two = replace(it, function=precise).value(features.astype(np.float64), labels)
    require(
        math.isclose(plain, two, rel_tol=1e-3, abs_tol=1e-6),
        f"float32 gives {plain:.6g}, float64 {two:.6g}",
        "Give new tensors the dtype of the features; add a small number inside roots and logs.",
    )
    few = torch.tensor(features[:6, :3], dtype=torch.float64, requires_grad=True)
    attempt(
        lambda: torch.autograd.gradcheck(lambda x: precise(x, torch.tensor(labels[:6])), (few,)),
        "the gradient is not that of the value",
        _DIFFERENTIABLE,
    )
    labels = np.arange(30) % 3
    apart = (np.eye(3)[labels] + 0.05 * draw.random((30, 3))).astype(np.float32)
    it.prefers_separation(
        apart,
        labels,
        draw.permutation(30),
        higher_is_better,
        "Mind the sign: pass higher_is_better=True for what is to be maximised.",
    )
    it.may_refuse(features, np.zeros(12, dtype=np.int64), "for a batch of one class")


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
    it = _Function("score", score, torch.tensor if tensors else np.array, float, 1e-6, 1e-9)
    labels = np.arange(60) % 3
    features = np.eye(4)[labels] * 2 + draw.normal(size=(60, 4)) * 0.5
    order = draw.permutation(60)
    it.ignores_what_does_not_matter(features, labels, order)
    mend = "Higher must be better: turn the sign round."
    it.prefers_separation(features, labels, order, True, mend)
    it.value(draw.normal(size=(12, 40)), np.arange(12) % 3, "with fewer rows than features")
    it.value(features[labels < 2], np.array([3, 7])[labels[labels < 2]], "with labels 3 and 7")
    it.value(np.repeat(features[:12], 3, axis=0), np.repeat(labels[:12], 3), "with repeated rows")
    it.may_refuse(np.ones((12, 4)), np.arange(12) % 3, "with constant features")


@dataclass(frozen=True)
class _Function:
    """A function as it is called: with fresh copies, its value judged each time."""

    noun: str
    function: Callable[[Any, Any], Any]
    convert: Callable[[Array], Any]
    """A copy of an array as the function takes it."""
    gives: type
    """A scalar ``Tensor``, or a plain ``float``."""
    relative: float
    absolute: float
    """How far two values of equal data may differ."""

    def value(self, features: Array, labels: Array, when: str = "on ordinary data") -> float:
        """The number for some data."""
        value = attempt(
            lambda: self.function(self.convert(features), self.convert(labels)),
            f"the {self.noun} fails {when}",
            "It is called with float features [n, d] and integer labels [n], any integers.",
        )
        return self.judged(value, when)

    def judged(self, value: Any, when: str) -> float:
        """What the function gave, as a number; a failure if it is none."""
        if self.gives is float:
            kind = type(value).__name__
            wrong, mend = f"the {self.noun} is a {kind} {when}, not a float", "Return float(value)."
            right = type(value) is float
        else:
            wrong, mend = f"the {self.noun} gives no scalar tensor {when}", "Sum or average."
            right = isinstance(value, Tensor) and value.shape == () and value.is_floating_point()
        require(right, wrong, mend)
        number = float(value.detach() if isinstance(value, Tensor) else value)
        require(
            math.isfinite(number),
            f"the {self.noun} is {number} {when}",
            "Look for a division by zero, a singular matrix or the logarithm of zero.",
        )
        return number

    def ignores_what_does_not_matter(self, features: Array, labels: Array, order: Array) -> float:
        """The value, which inputs keep, calls repeat, and neither order nor names change."""
        plain = self.value(features, labels)
        given = self.convert(features), self.convert(labels)
        self.function(*given)
        require(
            np.array_equal(given[0], features) and np.array_equal(given[1], labels),
            f"the {self.noun} changes its inputs in place",
            "Write x = x - mean rather than x -= mean, and no operation that ends in _.",
        )
        require(
            self.value(features, labels) == plain,
            f"the {self.noun} gives two values for the same data",
            "Draw nothing at random, or from a generator seeded anew in each call.",
        )
        changed = [("order of the rows", features[order], labels[order], "in another order")]
        for names in ([2, 0, 1], [7, 3, 11]):
            when = f"with labels {sorted(names)}"
            changed.append(("naming of the classes", features, np.array(names)[labels], when))
        for what, rows, named, when in changed:
            other = self.value(rows, named, when)
            require(
                math.isclose(plain, other, rel_tol=self.relative, abs_tol=self.absolute),
                f"the {what} changes the {self.noun} from {plain:.6g} to {other:.6g}",
                "Use all rows or pairs of rows alike, and compare labels for equality only.",
            )
        return plain

    def prefers_separation(
        self, features: Array, labels: Array, order: Array, higher: bool, mend: str
    ) -> None:
        """Features that tell the classes apart do better than with the labels in another order."""
        good = self.value(features, labels)
        bad = self.value(features, labels[order], "with shuffled labels")
        require(
            good > bad if higher else good < bad,
            f"well-separated classes get {good:.6g}, the same features with shuffled labels "
            f"{bad:.6g}",
            mend,
        )

    def may_refuse(self, features: Array, labels: Array, when: str) -> None:
        """A number, or an error that says why not."""
        try:
            value = self.function(self.convert(features), self.convert(labels))
        except (DovetailError, ValueError) as error:
            mend = "Say what is wrong with the data."
            require(bool(str(error)), f"the {self.noun}'s error {when} says nothing", mend)
            return
        except Exception as error:  # code of others
            raise CheckFailed(
                f"the {self.noun} ends {when} in {type(error).__name__}: {error}. "
                "Give a number, or raise a ValueError that says why."
            ) from error
        self.judged(value, when)
