"""The ways to train, and which options are whose: what can be refused before torch is loaded."""

from __future__ import annotations

from dovetail.core.errors import SettingsError, nearest
from dovetail.core.limits import check_loop

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from typing import Any

__all__ = ["OPTIONS", "WAYS", "check_asked"]

WAYS = ("end-to-end", "modular", "self-supervised", "compatible", "closed-form")
"""All ways to train; the first two train one network for the labels of one task."""

WHOLE, MODULAR, SELF, COMPATIBLE, CLOSED = WAYS

OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *("epochs", "batch_size", "optimiser", "lr", "weight_decay", "schedule", "clip"),
            *("augment", "device", "resume", "checkpoint_seconds"),
        ),
        (WHOLE, MODULAR, SELF, COMPATIBLE),  # all that go step by step
    ),
    **dict.fromkeys(
        (
            *("objective", "labels_per_class", "supervision", "pairs"),
            *("head_loss", "head_epochs", "modules"),
        ),
        (MODULAR,),
    ),
    **dict.fromkeys(
        ("by", "scheme", "channels", "auxiliary", "common", "project_conflicts"), (COMPATIBLE,)
    ),
    **dict.fromkeys(
        (
            *("projection", "tries", "ridge", "solver", "target_scale", "label_weight", "ema"),
            *("rank", "precision"),
        ),
        (CLOSED,),
    ),
    "at": (MODULAR, SELF, COMPATIBLE),
    "pretext": (SELF, COMPATIBLE),
    "keep_epochs": (WHOLE, MODULAR),
    "average_every": (WHOLE,),
    "extra_bits": (WHOLE,),
}
"""Options that only some ways to train have."""

SWITCHES = ("modules", "project_conflicts")
"""Those of them that are off unless said, and say nothing while they are."""


def check_asked(
    how: str, options: dict[str, Any], *, tasks: int, starts: int, new_net: bool
) -> dict[str, Any]:
    """The options that were chosen, unless what is asked for contradicts itself.

    >>> check_asked("modular", {"epochs": 3, "clip": None}, tasks=1, starts=0, new_net=True)
    {'epochs': 3}
    >>> check_asked("end-to-end", {"pairs": 5}, tasks=1, starts=0, new_net=True)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: --pairs is an option of --how modular, not of --how end...
    """
    if starts and new_net:
        raise SettingsError("a run from a part keeps its network; leave out --net and --set")
    if how not in WAYS:
        raise SettingsError(f"unknown way to train {how!r}{nearest(how, WAYS)}")
    said = {name: value for name, value in options.items() if _said(name, value)}
    _refuse_stray_options(how, said)
    if how == CLOSED and (tasks != 1 or starts):
        raise SettingsError("--how closed-form fits one new network to one task")
    if how != COMPATIBLE and (tasks != 1 or starts > 1):
        what = "tasks" if tasks != 1 else "parts to start from"
        raise SettingsError(
            f"--how {how} trains one network on one task; several {what} are for --how compatible"
        )
    check_loop(said)
    return said


def _said(name: str, value: Any) -> bool:
    """Whether an option was chosen; a switch that is off was not."""
    return value is not None and not (value is False and name in SWITCHES)


def _refuse_stray_options(how: str, options: dict[str, Any]) -> None:
    for name, ways in OPTIONS.items():
        if name in options and how not in ways:
            *most, last = ways
            owners = f"{', '.join(most)} or {last}" if most else last
            flag = f"--{'no-' * (options[name] is False)}{name.replace('_', '-')}"
            raise SettingsError(f"{flag} is an option of --how {owners}, not of --how {how}")
