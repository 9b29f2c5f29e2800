"""How fast this machine trains and runs networks: tried on a few examples, to plan by."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dovetail.core.errors import DovetailError, FormatError
from dovetail.core.files import write_whole
from dovetail.core.plain import dumps, from_plain, read_json
from dovetail.measure.forward import outputs_of
from dovetail.parts.part import Part
from dovetail.reuse.fitting_attempts import BATCH, trained
from dovetail.tasks.task import Task
from dovetail.train.fit import Training

BATCHES, ROWS = 2, 16
"""What is trained on for each epoch, and what is run."""


class Paces:
    """Seconds by name, each measured once; a run that goes on plans by those of the first.

    >>> paces = Paces(None)
    >>> paces.of("a net", lambda: 2.0), paces.of("a net", lambda: 3.0)
    (2.0, 2.0)
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / "paces.json"
        self._known: dict[str, float] = {}
        if self._file is not None:
            with suppress(FormatError):  # not there yet, or damaged
                self._known = from_plain(dict[str, float], read_json(self._file), "paces")

    def of(self, name: str, measured: Callable[[], float]) -> float:
        """What is known, or else measured now; nothing of what fails: to make it says why."""
        if name not in self._known:
            try:
                self._known[name] = measured()
            except DovetailError:
                self._known[name] = 0.0
            if self._file is not None:
                write_whole(self._file, dumps(self._known))
        return self._known[name]


def seconds_from_scratch(task: Task, seed: int) -> float:
    """What an epoch of a small network takes for each example.

    The first epoch is not counted: it makes what later ones find.
    """
    few = task.indices("train")[: BATCHES * BATCH]
    none = few[:0]
    short = task.derived(task.name, indices={"train": few, "validation": none, "test": none})
    record = trained(short, seed, epochs=3).record
    assert isinstance(record, Training)
    _, *others = record.rows
    return sum(float(row["seconds"]) for row in others) / len(others) / len(few)


def seconds_forward(network: Part, task: Task) -> float:
    """What one example takes; the first time is not counted."""
    few = task.inputs[task.indices("train")[:ROWS]]
    outputs_of(network, few)
    began = time.perf_counter()
    outputs_of(network, few)
    return (time.perf_counter() - began) / len(few)
