"""Optional packages: imported where they are needed, with a sentence when they are not there."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from dovetail.core.errors import MissingExtraError, first_line


def need(package: str, *, feature: str, extra: str) -> ModuleType:
    """Import an optional package, or say which extra brings it.

    >>> need("json", feature="Reading", extra="dev").__name__
    'json'
    >>> need("no_such", feature="Drawing", extra="plots")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.MissingExtraError: Drawing needs no_such: pip install "dovetail[plots]"
    """
    try:
        return import_module(package)
    except Exception as error:  # also one that is there but cannot start, beside another torch
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({first_line(error)})"
        raise MissingExtraError(
            f'{feature} needs {package}{why}: pip install "dovetail[{extra}]"'
        ) from None
