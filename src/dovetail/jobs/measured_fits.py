"""Keeping what was measured of joined parts on the shelf they come from."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.measure.evaluate import Evaluation
from dovetail.parts.part import Part
from dovetail.shelf.fits import MeasuredFit
from dovetail.shelf.store import Shelf
from dovetail.tasks.task import Task

__all__ = ["keep_measured"]


def keep_measured(
    store: Shelf, chain: Sequence[Part], found: Evaluation, task: Task, norms: str
) -> bool:
    """Keep an accuracy of parts that were joined, front first, if all are on the shelf."""
    known = {entry.digest for entry in store.entries()}
    digests = [part.digest for part in chain]
    if task.kind != "classes" or found.chance is None or not known.issuperset(digests):
        return False
    store.keep_fit(
        MeasuredFit(
            front=digests[0],
            head=digests[-1],
            through=tuple(digests[1:-1]),
            task=task.name,
            task_fingerprint=task.fingerprint,
            split=found.split,
            norms=norms,
            accuracy=found.accuracy,
            chance=found.chance,
            n=found.n,
        )
    )
    return True
