"""Limits of numbers that people choose: told at once, before torch is loaded or data are read."""

from __future__ import annotations

from dovetail.core.errors import SettingsError

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["check_loop", "need_least"]

_COUNTS = ("epochs", "batch_size", "patience")
_NUMBERS = ("lr", "momentum", "weight_decay", "checkpoint_seconds")


def need_least(name: str, value: Any, least: int) -> None:
    """Refuse what is no whole number, or one that is too small.

    >>> need_least("epochs", 0, 1)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: epochs must be at least 1, got 0
    """
    if not isinstance(value, int):
        raise SettingsError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise SettingsError(f"{name} must be at least {least}, got {value}")


def check_loop(options: Mapping[str, Any], *, least_epochs: int = 1) -> None:
    """Refuse the numbers of a training loop that no training has; those not named are not asked.

    What is measured before it is trained may be trained for no epoch at all: ``least_epochs=0``.

    >>> check_loop({"epochs": 5, "lr": float("nan")})
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: lr must be a number of at least 0, got nan
    """
    for name in _COUNTS:
        if name in options and not (name == "patience" and options[name] is None):
            need_least(name, options[name], least_epochs if name == "epochs" else 1)
    for name in _NUMBERS:
        value = options.get(name, 0)
        if not (isinstance(value, float | int) and 0 <= value < float("inf")):
            raise SettingsError(f"{name} must be a number of at least 0, got {value}")
    clip = options.get("clip")
    if clip is not None and not (isinstance(clip, float | int) and clip > 0):
        raise SettingsError(f"clip must be a length above 0, got {clip}")
