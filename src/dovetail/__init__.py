"""dovetail: build deep networks from parts that fit.

``import dovetail as dt`` is cheap: torch and the sub-packages load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    import dovetail.train as train
    from dovetail.core.errors import DovetailError as DovetailError

_PACKAGES = ("train",)

_HOMES: dict[str, str] = {
    "DovetailError": "core.errors",
}
"""Each public name and the module it lives in."""

__all__ = ["__version__", *_PACKAGES, *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
