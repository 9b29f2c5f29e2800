"""Amounts of memory and time, in words and back: ``"400MB"``, ``1.5 GiB``, about 2 min."""

from __future__ import annotations

from dovetail.core.errors import SettingsError, argument, shown

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from typing import Any


_UNITS = {
    **{"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
}


def amount(count: float) -> str:
    """Bytes in the unit that reads best.

    >>> amount(300), amount(5000), amount(3 * 2**29)
    ('300 B', '4.9 KiB', '1.5 GiB')
    """
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 2**power:
            return f"{count / 2**power:.1f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """In the unit that reads best.

    >>> duration(0.02), duration(75), duration(7200)
    ('under a second', 'about 1 min', 'about 2 h')
    """
    if seconds < 1:
        return "under a second"
    if seconds < 60:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.0f} h"


def read_budget(value: Any, name: str = "memory_budget") -> float | int:
    """A budget of memory: a share, as a float in (0, 1]; or bytes, as an int of at least 1.

    A float is a share and a whole number is bytes, whatever their size: ``1.0`` is all, ``1`` is
    one byte.  Words have a unit (``MB`` is 10⁶ bytes, ``MiB`` 2²⁰) or ``%``, or are such a number.

    >>> [read_budget(said) for said in (0.3, "30%", "0.3", 400_000_000, "400MB", "1.5 GiB")]
    [0.3, 0.3, 0.3, 400000000, 400000000, 1610612736]
    >>> read_budget(400.5)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: memory_budget is a share above 0 and up to 1.0, ...
    """
    budget = _read(value) if isinstance(value, str) else value
    if isinstance(budget, int) and not isinstance(budget, bool) and budget >= 1:
        return budget
    if isinstance(budget, float) and 0 < budget <= 1:
        return budget
    raise SettingsError(
        f"{argument(name)} is a share above 0 and up to 1.0, or bytes as a whole number or in "
        f'words like "400MB"; got {shown(value)}'
    )


def _read(words: str) -> float | int | None:
    """What words say, if they say anything."""
    text = words.strip().lower().replace("_", "")
    number = text.rstrip("%abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip()
    if not number.replace(".", "", 1).isdecimal() or not number.isascii():
        return None
    if not unit:
        return float(number) if "." in number else int(number)
    if unit == "%":
        return float(number) / 100
    return round(float(number) * _UNITS[unit]) if unit in _UNITS else None


_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def read_speed(value: Any, name: str = "link") -> float:
    """The speed of a link in bytes a second; words are of bits, or of bytes.

    >>> [read_speed(said) for said in ("100Mbit", "1 Gbit/s", "12.5MB", 5000)]
    [12500000.0, 125000000.0, 12500000.0, 5000.0]
    >>> read_speed("fast")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: link is a speed such as "100Mbit", "1Gbit" or "10MB" ...
    """
    speed: float | None = None
    if isinstance(value, str):
        text = value.strip().lower().removesuffix("/s").removesuffix("ps").strip()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = text[len(number) :].strip()
        if number.isascii() and number.replace(".", "", 1).isdecimal():
            if unit in _BITS:
                speed = float(number) * _BITS[unit] / 8
            elif unit in _UNITS:
                speed = float(number) * _UNITS[unit]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        speed = float(value)
    if speed is None or not 0 < speed < float("inf"):
        raise SettingsError(
            f'{argument(name)} is a speed such as "100Mbit", "1Gbit" or "10MB" (bytes) a second; '
            f"got {shown(value)}"
        )
    return speed
