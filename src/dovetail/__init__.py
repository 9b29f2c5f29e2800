"""dovetail: build deep networks from parts that fit.

``import dovetail as dt`` is cheap: torch and the sub-packages load when first used.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from typing import Any

    from dovetail import adapt as adapt
    from dovetail import closed_form as closed_form
    from dovetail import dist as dist
    from dovetail import lens as lens
    from dovetail import objectives as objectives
    from dovetail import pack as pack
    from dovetail import ranking as ranking
    from dovetail import reuse as reuse
    from dovetail import tasks as tasks
    from dovetail import testing as testing
    from dovetail import train as train
    from dovetail.core.errors import DovetailError as DovetailError
    from dovetail.core.records import load_record as load_record
    from dovetail.measure.evaluate import evaluate as evaluate
    from dovetail.measure.features import features as features
    from dovetail.measure.predict import predict as predict
    from dovetail.measure.recombine import recombine as recombine
    from dovetail.parts.builders import builder as builder
    from dovetail.parts.cutting import cut as cut
    from dovetail.parts.cutting import cut_points as cut_points
    from dovetail.parts.foreign.adopting import adopt as adopt
    from dovetail.parts.joining import adapter as adapter
    from dovetail.parts.joining import join as join
    from dovetail.parts.part import Part as Part
    from dovetail.parts.part import build as build
    from dovetail.parts.part import from_pretrained as from_pretrained
    from dovetail.ranking.ranker import rank as rank
    from dovetail.reuse.explain import explain_fit as explain_fit
    from dovetail.reuse.exporting import export as export
    from dovetail.reuse.fitting import fit as fit
    from dovetail.reuse.packing import pack_part as pack_part
    from dovetail.shelf.store import Shelf as Shelf
    from dovetail.tasks.load import load_task as load_task
    from dovetail.tasks.task import Task as Task

_PACKAGES = (
    *("adapt", "closed_form", "dist", "lens", "objectives"),
    *("pack", "ranking", "reuse", "tasks", "testing", "train"),
)

_HOMES = {
    # make and load
    "build": "parts.part",
    "builder": "parts.builders",
    "adopt": "parts.foreign.adopting",
    "from_pretrained": "parts.part",
    "Part": "parts.part",
    # data
    "load_task": "tasks.load",
    "Task": "tasks.task",
    # cut and join
    "cut_points": "parts.cutting",
    "cut": "parts.cutting",
    "join": "parts.joining",
    "adapter": "parts.joining",
    "explain_fit": "reuse.explain",
    "recombine": "measure.recombine",
    # run
    "evaluate": "measure.evaluate",
    "predict": "measure.predict",
    "features": "measure.features",
    # choose
    "rank": "ranking.ranker",
    "fit": "reuse.fitting",
    # keep
    "Shelf": "shelf.store",
    "pack_part": "reuse.packing",
    "export": "reuse.exporting",
    "load_record": "core.records",
    # fail
    "DovetailError": "core.errors",
}
"""Each public name and the module it lives in, by what a user wants to do."""

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
