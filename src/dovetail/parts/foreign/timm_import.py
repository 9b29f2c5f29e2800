"""timm, imported also where the torchvision that it brings does not match torch.

timm needs torchvision for one layer and some data loaders.  The torchvision of one index beside the
torch of another (a CPU build, say) cannot load its own C++ library, goes on without it, and then
stops at describing two of that library's operators to torch, which nobody has declared.  We declare
them for as long as the import lasts: torchvision finds what it describes, timm finds its layer, and
the declarations go when the import is done.  Nothing else of torchvision changes: calling one of
its operators says, as it would have, that its library is not there.

This happens only after the plain import has failed for this very reason, so that a torchvision
which works is never touched.  A stand-in for torchvision would have to follow timm's imports from
release to release, and an extra cannot ask for timm without what timm asks for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from dovetail.core.errors import MissingExtraError, first_line
from dovetail.core.extras import need

_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_timm() -> ModuleType:
    """The package, or a sentence that says what keeps it from being imported."""
    try:
        return import_module("timm")
    except Exception as error:  # whatever else it is, `need` says it
        if "operator torchvision::" not in str(error):
            return need("timm", feature="Building timm networks", extra="timm")
    for package in ("timm", "torchvision"):
        _forget_failed(package)
    library: Any = torch.library.Library  # untyped
    declared = library("torchvision", "FRAGMENT")  # undone when it is deleted
    try:
        for name in _OPERATORS:
            declared.define(name + _SCHEMA)
        return import_module("timm")
    except Exception as error:
        raise MissingExtraError(
            f"timm cannot start, because its torchvision does not match torch {torch.__version__} "
            f"({first_line(error)}); install both from one index: "
            "pip install --force-reinstall torch torchvision"
        ) from None
    finally:
        del declared


def _forget_failed(package: str) -> None:
    """Leave nothing of an import that failed: its modules would not be bound to the new package."""
    if package not in sys.modules:
        for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
            del sys.modules[name]
