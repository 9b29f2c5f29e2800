"""What every trainer lets the user choose about its loop."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dovetail.settings.train import Loop

__all__ = ["LoopOptions", "Moment", "Options", "named"]

OptimiserChoice = str | Optimizer | type[Optimizer] | Callable[[Iterable[Tensor]], Optimizer]
ScheduleChoice = str | Callable[[float], float] | Callable[[Optimizer], LRScheduler]


@dataclass(frozen=True)
class Moment:
    """What a callback sees at the end of an epoch; it stops the training by returning ``True``.

    A training in modules counts its epochs on from module to module, says in ``stage`` which one
    is being trained (the last is ``"head"``), and shows the whole network; ``True`` then ends the
    training of that module.

    >>> Moment(1, nn.Identity(), {"loss": 0.5}).measures["loss"]
    0.5
    """

    epoch: int
    module: nn.Module
    measures: dict[str, float]
    stage: str = ""


@dataclass(frozen=True)
class Options:
    """The loop's options, the same for every trainer.

    Attributes:
        epochs: Passes over the training split.
        batch_size: Examples a step.
        optimiser: ``"sgd"``, ``"adam"``, ``"adamw"``; a torch optimiser class, a function of the
            parameters, or an optimiser whose class and defaults are used.
        lr: Peak learning rate (with a name or a class).
        momentum: For ``"sgd"`` (Nesterov's).
        weight_decay: With a name or a class.
        schedule: ``"one-cycle"``, ``"cosine"``, ``"constant"``; a function from the share of
            training done to a factor on ``lr``; or the class of a torch scheduler (or a
            ``functools.partial`` of it), which is stepped once an epoch.
        clip: A longer gradient is scaled down to this length.
        patience: Stop after so many epochs without a better validation loss, and keep the best.
        device: ``"auto"`` or a torch device.
        callbacks: Called with a :class:`Moment` after each epoch.
        checkpoint: A file to write now and then, and to resume from.
        checkpoint_seconds: How often at most.
        resume: Go on from ``checkpoint`` if it is there.
        show: Progress bar: ``None`` on a terminal only.

    >>> Options(epochs=0)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: epochs must be at least 1, got 0
    """

    epochs: int = Loop.epochs
    batch_size: int = Loop.batch_size
    optimiser: OptimiserChoice = Loop.optimiser
    lr: float = Loop.lr
    momentum: float = Loop.momentum
    weight_decay: float = Loop.weight_decay
    schedule: ScheduleChoice = Loop.schedule
    clip: float | None = Loop.clip
    patience: int | None = Loop.patience
    device: str | torch.device = Loop.device
    callbacks: tuple[Callable[[Moment], Any], ...] = ()
    checkpoint: str | Path | None = None
    checkpoint_seconds: float = Loop.checkpoint_seconds
    resume: bool = Loop.resume
    show: bool | None = None

    def __post_init__(self) -> None:
        Loop.check(vars(self))

    def described(self) -> dict[str, Any]:
        """The options that decide the outcome, as JSON values."""
        plain = ("epochs", "batch_size", "lr", "momentum", "weight_decay", "clip", "patience")
        words = {"optimiser": named(self.optimiser), "schedule": named(self.schedule)}
        return {name: getattr(self, name) for name in plain} | words


class LoopOptions(TypedDict, total=False):
    """:class:`Options` as keyword arguments of a trainer."""

    epochs: int
    batch_size: int
    optimiser: OptimiserChoice
    lr: float
    momentum: float
    weight_decay: float
    schedule: ScheduleChoice
    clip: float | None
    patience: int | None
    device: str | torch.device
    callbacks: tuple[Callable[[Moment], Any], ...]
    checkpoint: str | Path | None
    checkpoint_seconds: float
    resume: bool
    show: bool | None


def named(choice: Any) -> str:
    """What a choice is, in words; of a function also what it does, so that no two are confused.

    >>> named("sgd"), named(lambda done: 1.0) == named(lambda done: 0.5)
    ('sgd', False)
    """
    if isinstance(choice, str):
        return choice
    if isinstance(choice, Optimizer):
        return f"{type(choice).__name__}({_plainly(choice.defaults)})"
    inner = getattr(choice, "func", choice)  # functools.partial
    words = _plainly(getattr(choice, "keywords", {}))
    name = getattr(inner, "__qualname__", type(inner).__name__)
    code = getattr(inner, "__code__", None)
    if code is not None:
        does = hashlib.sha256(code.co_code + repr(code.co_consts).encode()).hexdigest()[:8]
        name = f"{name}#{does}"
    return f"{name}({words})" if words or code is None else name


def _plainly(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(values.items()))
