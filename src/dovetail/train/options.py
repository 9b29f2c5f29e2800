"""What every trainer lets the user choose about its loop: options, optimiser, learning rate."""

from __future__ import annotations

import hashlib
import inspect
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from dovetail.core.errors import FormatError, SettingsError, first_line
from dovetail.settings.train import Loop
from dovetail.train.checkpoint import alike

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
    if is_dataclass(choice):
        return repr(choice)
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


# What becomes of the choices ----------------------------------------------------------------------


_NAMED: dict[str, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def make_optimiser(options: Options, parameters: Iterable[Tensor]) -> Optimizer:
    """The optimiser the options ask for, on these parameters.

    >>> make_optimiser(Options(optimiser="adam", lr=0.01), [torch.zeros(1)]).defaults["lr"]
    0.01
    """
    choice = options.optimiser
    if isinstance(choice, str):
        extra: dict[str, Any] = {"lr": options.lr, "weight_decay": options.weight_decay}
        if choice == "sgd":
            extra |= {"momentum": options.momentum, "nesterov": options.momentum > 0}
        return _NAMED[choice](parameters, **extra)
    if isinstance(choice, Optimizer):
        # It holds the caller's parameters, and we train a copy: same class, same defaults, ours.
        return _made(type(choice), parameters, choice.defaults)
    if isinstance(choice, type):
        wanted = {"lr": options.lr, "weight_decay": options.weight_decay}
        return _made(choice, parameters, wanted)
    return choice(parameters)


def _made(kind: type, parameters: Iterable[Tensor], wanted: dict[str, Any]) -> Optimizer:
    """An optimiser with those of the wanted settings that its class takes."""
    accepted = inspect.signature(kind).parameters
    make = cast(Callable[..., Optimizer], kind)
    return make(parameters, **{k: value for k, value in wanted.items() if k in accepted})


def one_cycle(done: float) -> float:
    r"""Up to 1 over the first 30 %, then down to almost 0, both along half a cosine.

    >>> [round(one_cycle(done), 3) for done in (0.0, 0.3, 1.0)]
    [0.04, 1.0, 0.0]
    """
    start, end = 1 / 25, 1 / 250_000
    if done < 0.3:
        return start + (1 - start) * (1 - math.cos(math.pi * done / 0.3)) / 2
    return end + (1 - end) * (1 + math.cos(math.pi * (done - 0.3) / 0.7)) / 2


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "one-cycle": one_cycle,
}


class Schedule:
    """Sets the learning rate before each step, as a function of the share of training done.

    A torch scheduler is stepped once an epoch instead, and is the only kind with a state.

    >>> optimiser = torch.optim.SGD([torch.zeros(1)], lr=2.0)
    >>> Schedule("cosine", optimiser, steps=10).before_step(5); optimiser.param_groups[0]["lr"]
    1.0
    """

    def __init__(self, choice: Any, optimiser: Optimizer, *, steps: int) -> None:
        self._optimiser, self._steps = optimiser, max(steps, 1)
        self._peaks = [group["lr"] for group in optimiser.param_groups]
        self._scheduler: LRScheduler | None = None
        self._factor: Callable[[float], float] | None = None
        if isinstance(choice, str):
            self._factor = SCHEDULES[choice]
        elif _makes_scheduler(choice):
            self._scheduler = choice(optimiser)
        elif _gives_number(choice):
            self._factor = choice
        else:
            raise SettingsError(
                "a schedule is a name, a function from the share of training done to a factor, or "
                f"the class of a torch scheduler (or a functools.partial of it), got {choice!r}"
            )

    def before_step(self, step: int) -> None:
        """Set the rate for step ``step``, counted from 0."""
        if self._factor is not None:
            factor = self._factor(step / self._steps)
            for group, peak in zip(self._optimiser.param_groups, self._peaks, strict=True):
                group["lr"] = peak * factor

    def after_epoch(self, loss: float) -> None:
        """Step a torch scheduler; one that waits for a plateau is told the loss."""
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(loss)
        elif self._scheduler is not None:
            with warnings.catch_warnings():  # the steps may have been taken before a resume
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler", UserWarning)
                self._scheduler.step()

    def state(self) -> dict[str, Any]:
        """What a torch scheduler must remember; empty otherwise."""
        return {} if self._scheduler is None else dict(self._scheduler.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        """Give a torch scheduler its memory back."""
        if self._scheduler is not None:
            fresh = self._scheduler.state_dict()
            try:
                saved = _retyped(fresh, state)
            except (TypeError, ValueError, AttributeError):
                saved = None
            if not alike(fresh, saved):  # whatever is in it would become an attribute
                raise FormatError("a state of another schedule")
            self._scheduler.load_state_dict(saved)


def _retyped(fresh: Any, saved: Any) -> Any:
    """What JSON made of a state, with the types of a fresh one: a Counter's keys, an infinity."""
    if isinstance(fresh, Counter):
        return Counter({int(key): count for key, count in saved.items()})
    if isinstance(fresh, dict):
        return {key: _retyped(fresh.get(key), value) for key, value in saved.items()}
    if isinstance(fresh, list) and len(fresh) == len(saved):
        return [_retyped(a, b) for a, b in zip(fresh, saved, strict=True)]
    return float(saved) if isinstance(fresh, float) else saved


def _gives_number(choice: Any) -> bool:
    try:
        return callable(choice) and math.isfinite(choice(0.0))
    except (TypeError, ValueError):
        return False


def _makes_scheduler(choice: Any) -> bool:
    made = choice.func if isinstance(choice, partial) else choice
    return isinstance(made, type) and issubclass(made, LRScheduler)


# Where to compute ---------------------------------------------------------------------------------


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """The device asked for, or with ``"auto"`` the best there is.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(
            f"cannot compute on device {str(device)!r}: {first_line(error)}"
        ) from None
    return chosen
