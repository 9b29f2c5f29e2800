"""Trainings that go on where they stopped: their checkpoints lie beside the shelf."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.core.plain import dumps
from dovetail.shelf.store import Shelf
from dovetail.shelf.writing import sweep

__all__ = ["RUNS", "Run"]

RUNS = ".dovetail-runs"
"""Checkpoints of unfinished runs, in a folder beside the shelf."""


@dataclass(frozen=True)
class Run:
    """A training under what it depends on: the same call finds it again, another call never does.

    ``resumed`` is whether it had been begun before.

    >>> import tempfile
    >>> store = Shelf(Path(tempfile.mkdtemp()) / "shelf")
    >>> run = Run.of(store, {"task": "digits", "seed": 0})
    >>> run.resumed, run == Run.of(store, {"seed": 0, "task": "digits"})
    (False, True)
    """

    folder: Path
    key: str
    resumed: bool

    @classmethod
    def of(cls, store: Shelf, depends_on: dict[str, Any], *, resume: bool = True) -> Run:
        """The run of these facts, beside a shelf that can be written to."""
        store.check_writable()
        key = hashlib.sha256(dumps(depends_on).encode()).hexdigest()[:16]
        folder = store.folder.parent / RUNS
        return cls(folder, key, resume and any(folder.glob(f"{key}*.safetensors")))

    @property
    def checkpoint(self) -> Path:
        """Where the trainer saves it now and then."""
        return self.folder / f"{self.key}.safetensors"

    @property
    def epochs(self) -> Path:
        """Where the networks of earlier epochs are kept until they are shelved."""
        return self.folder / f"{self.key}.epochs"

    def clear(self) -> None:
        """Delete what an unfinished run would have gone on from."""
        for file in self.folder.glob(f"{self.key}*.safetensors"):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.epochs, ignore_errors=True)
        sweep(self.folder)
