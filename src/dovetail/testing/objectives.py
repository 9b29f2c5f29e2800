"""What an objective must satisfy: a loss or a proxy of features and labels."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dovetail.core.errors import DovetailError
from dovetail.core.seeds import generator
from dovetail.testing.failures import CheckFailed, attempt, require

__all__ = ["check_objective"]

Objective = Callable[[Tensor, Tensor], Tensor]

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
    draw = generator(0, "objective")
    labels = torch.arange(12) % 3
    # Not negative, as after a ReLU, so that objectives for such features need no other data.
    features = torch.rand(12, 5, generator=draw) + 0.1
    _is_a_scalar(objective, features, labels)
    _leaves_its_inputs(objective, features, labels)
    _repeats(objective, features, labels)
    _ignores_order(objective, features, labels, torch.randperm(12, generator=draw))
    _ignores_names(objective, features, labels)
    _agrees_in_both_precisions(objective, features, labels)
    _has_a_gradient(objective, features[:6, :3], labels[:6])
    _prefers_separation(objective, draw, higher_is_better)
    _survives_one_class(objective, features)


def _value(objective: Objective, features: Tensor, labels: Tensor) -> float:
    value = attempt(
        lambda: objective(features.clone(), labels.clone()),
        "the objective fails on an ordinary batch",
        "It is called with float features [n, d] and integer labels [n], any integers.",
    )
    return float(value.detach())


def _is_a_scalar(objective: Objective, features: Tensor, labels: Tensor) -> None:
    value = attempt(
        lambda: objective(features.clone().requires_grad_(), labels.clone()),
        "the objective fails on an ordinary batch",
        "It is called with float features [n, d] and integer labels [n].",
    )
    scalar = isinstance(value, Tensor) and value.shape == () and value.is_floating_point()
    require(scalar, "the objective gives no scalar tensor", "Sum or average over the batch.")
    require(
        bool(value.isfinite()),
        "the objective is not finite on an ordinary batch",
        "Look for a division by zero, or the logarithm of zero.",
    )
    require(
        value.requires_grad,
        "the objective is not attached to its features",
        _DIFFERENTIABLE,
    )


def _leaves_its_inputs(objective: Objective, features: Tensor, labels: Tensor) -> None:
    given = features.clone(), labels.clone()
    objective(*given)
    require(
        torch.equal(given[0], features) and torch.equal(given[1], labels),
        "the objective changes its inputs in place",
        "Replace operations that end in _ by those that do not.",
    )


def _repeats(objective: Objective, features: Tensor, labels: Tensor) -> None:
    require(
        _value(objective, features, labels) == _value(objective, features, labels),
        "the objective gives two values for one batch",
        "Draw nothing at random, or from a generator seeded anew in each call.",
    )


def _ignores_order(objective: Objective, features: Tensor, labels: Tensor, order: Tensor) -> None:
    one, two = (
        _value(objective, features, labels),
        _value(objective, features[order], labels[order]),
    )
    require(
        _close(one, two),
        f"the order of the rows matters: {one:.6g} becomes {two:.6g}",
        "A batch is a set; reduce over all rows or all pairs.",
    )


def _ignores_names(objective: Objective, features: Tensor, labels: Tensor) -> None:
    one = _value(objective, features, labels)
    for names in ([2, 0, 1], [7, 3, 11]):
        two = _value(objective, features, torch.tensor(names)[labels])
        require(
            _close(one, two),
            f"the names of the classes matter: {one:.6g} becomes {two:.6g}",
            "Compare labels for equality only; labels.unique() tells which there are.",
        )


def _agrees_in_both_precisions(objective: Objective, features: Tensor, labels: Tensor) -> None:
    one, two = (
        _value(objective, features, labels),
        _value(_in_double(objective), features.double(), labels),
    )
    require(
        _close(one, two, 1e-3),
        f"float32 gives {one:.6g}, float64 {two:.6g}",
        "Give new tensors the dtype of the features; add a small number inside roots and logs.",
    )


def _has_a_gradient(objective: Objective, features: Tensor, labels: Tensor) -> None:
    precise = _in_double(objective)
    attempt(
        lambda: torch.autograd.gradcheck(
            lambda x: precise(x, labels), (features.double().requires_grad_(),)
        ),
        "the gradient is not that of the value",
        _DIFFERENTIABLE,
    )


def _prefers_separation(objective: Objective, draw: torch.Generator, higher: bool) -> None:
    labels = torch.arange(30) % 3
    features = torch.eye(3)[labels] + 0.05 * torch.rand(30, 3, generator=draw)
    shuffled = labels[torch.randperm(30, generator=draw)]
    good, bad = _value(objective, features, labels), _value(objective, features, shuffled)
    require(
        good > bad if higher else good < bad,
        f"well-separated classes get {good:.6g}, the same features with shuffled labels {bad:.6g}",
        "Mind the sign: pass higher_is_better=True for what is to be maximised.",
    )


def _survives_one_class(objective: Objective, features: Tensor) -> None:
    mend = "Give a number that is attached to the graph, or raise a ValueError that says why."
    try:
        value = objective(features.clone(), torch.zeros(len(features), dtype=torch.long))
    except (DovetailError, ValueError) as error:
        require(bool(str(error)), "the error for a batch of one class says nothing", mend)
        return
    except Exception as error:  # code of others
        raise CheckFailed(
            f"a batch of one class ends in {type(error).__name__}: {error}. {mend}"
        ) from error
    require(bool(value.isfinite().all()), "a batch of one class gives no finite number", mend)


def _in_double(objective: Objective) -> Objective:
    if isinstance(objective, nn.Module):
        return copy.deepcopy(objective).double()
    return objective


def _close(a: float, b: float, tolerance: float = 1e-4) -> bool:
    return abs(a - b) <= tolerance * max(abs(a), abs(b), 1e-3)
