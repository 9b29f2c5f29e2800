"""The frame of every job: load, run, measure, shelve, Outcome.

A job is a function under :func:`job`: its first argument is a :class:`Frame`, which holds what all
commands have in common (shelf, data, name, seed, whether to resume) and does what all of them do.
Callers give those as keywords.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, wraps
from itertools import chain, count
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from dovetail.core.plain import dumps
from dovetail.core.records import Record, slug
from dovetail.core.views import Text, View
from dovetail.jobs.locate import FRONTS, HEADS, find_half, find_part, own_head
from dovetail.jobs.outcome import Outcome
from dovetail.parts.part import Part
from dovetail.settings.train import Loop
from dovetail.shelf.entry import Entry
from dovetail.shelf.fits import MeasuredFit
from dovetail.shelf.names import check_name, is_name
from dovetail.shelf.store import Shelf
from dovetail.shelf.writing import sweep
from dovetail.tasks.load import load_task
from dovetail.tasks.task import Task

__all__ = ["RUNS", "Frame", "Run", "job", "names_for", "notes_of"]

RUNS = ".dovetail-runs"
"""Checkpoints of unfinished runs, in a folder beside the shelf."""

_LONGEST = 40
"""A name may have a hundred letters, and more is put before and behind this."""

_P = ParamSpec("_P")


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


@dataclass
class Frame:
    """What all jobs have in common, and what they do with it.

    Attributes:
        shelf: Where parts come from and go to.
        data: Folder of downloaded data sets.
        task_options: How tasks are read.
        name: On the shelf, if said.
        seed: For everything drawn.
        resume: Go on with an unfinished run, if said; by default as :class:`Loop` declares.
        checkpoint_seconds: How often one is saved, likewise.
    """

    shelf: str | Path = "shelf"
    data: str | Path | None = None
    task_options: Mapping[str, Any] | None = None
    name: str | None = None
    seed: int = 0
    resume: bool | None = None
    checkpoint_seconds: float | None = None
    _run: Run | None = field(default=None, init=False)

    def task(self, source: str) -> Task:
        """The task of a name, a folder or a file."""
        return load_task(source, data=self.data, **(self.task_options or {}))

    def part(self, ref: str) -> Part:
        """The part in a folder or of a name on the shelf."""
        return find_part(ref, self.shelf)

    def front(self, ref: str) -> Part:
        """The front of the network of a name, or the part itself."""
        return find_half(ref, FRONTS, self.shelf)

    def head(self, ref: str | None, of: str | None = None) -> Part:
        """The head of a network, or the part itself; without a name the head ``of`` a front."""
        return find_half(ref or own_head(of or "", self.shelf), HEADS, self.shelf)

    @cached_property
    def store(self) -> Shelf:
        """The shelf, made where there is none."""
        return Shelf(self.shelf)

    def named(self, usual: str, *endings: str) -> str:
        """The name to shelve under: what was said, else the usual; each with the endings is one."""
        self.name = check_name(self.name or usual)
        for ending in endings:
            check_name(self.name + ending)
        return self.name

    def begin(self, depends_on: dict[str, Any]) -> Run:
        """The run of these facts; parts stand for their digests and recipes, tasks for theirs."""
        facts = {"name": self.name, "seed": self.seed, **depends_on}
        self._run = Run.of(self.store, _plain(facts), resume=self._settled["resume"])
        return self._run

    def train(self, way: Callable[..., Any], *inputs: Any, **settings: Any) -> Any:
        """Call a trainer with a checkpoint under all that the call depends on: its ``Fit``."""
        called = f"{way.__module__}.{way.__qualname__}"
        callbacks = settings.pop("callbacks", ())
        run = self._run or self.begin({"way": called, "inputs": inputs, **settings})
        return way(
            *inputs,
            seed=self.seed,
            checkpoint=run.checkpoint,
            **self._settled,
            **settings,
            **({"callbacks": callbacks} if callbacks else {}),
        )

    @property
    def _settled(self) -> dict[str, Any]:
        said = {"resume": self.resume, "checkpoint_seconds": self.checkpoint_seconds}
        return {k: getattr(Loop, k) if value is None else value for k, value in said.items()}

    @property
    def resumed(self) -> bool:
        """Whether the run had been begun before."""
        return self._run is not None and self._run.resumed

    def shelve(self, parts: Mapping[str, Part]) -> dict[str, Entry]:
        """Put each part on the shelf under its name, all or none; the run is over."""
        entries = dict(zip(parts, self.store.add_all(parts), strict=True))
        if self._run is not None:
            self._run.clear()
        return entries

    def outcome(
        self,
        tasks: Sequence[Task],
        view: View,
        shelved: Iterable[Entry],
        said: str,
        data: dict[str, Any],
        records: Iterable[Record],
    ) -> Outcome:
        """What was made: notes on the data, what was measured, what else was shelved, a verdict.

        ``shelved`` are the entries beside those that ``said`` names.
        """
        beside = [entry.ref for entry in shelved]
        also = (Text(f"Also on the shelf: {', '.join(beside)}."),) if beside else ()
        return Outcome(
            view=(*notes_of(tasks, self.resumed), *view, *also, Text(said, style="heading")),
            data={"also": beside, "resumed": self.resumed, **data},
            records=tuple(records),
        )

    def keep_pair(
        self, front: Part, head: Part, task: Task, norms: str, accuracy: float, chance: float
    ) -> None:
        """Keep on the shelf what a front and a head reached together on the test split."""
        self.store.keep_fit(
            MeasuredFit(
                front=front.digest,
                head=head.digest,
                through=(),
                task=task.name,
                task_fingerprint=task.fingerprint,
                split="test",
                norms=norms,
                accuracy=accuracy,
                chance=chance,
                n=task.size("test"),
            )
        )


_COMMON = tuple(each.name for each in fields(Frame) if each.init)


def job(does: Callable[Concatenate[Frame, _P], Outcome]) -> Callable[..., Outcome]:
    """A job whose callers give the :class:`Frame`'s fields as keywords, beside its own arguments.

    >>> @job
    ... def greet(frame: Frame, /, whom: str) -> Outcome:
    ...     return Outcome((), {"whom": whom, "seed": frame.seed})
    >>> greet("Ghent", seed=3).data
    {'whom': 'Ghent', 'seed': 3}
    """

    @wraps(does)
    def run(*args: Any, **settings: Any) -> Outcome:
        common = {name: settings.pop(name) for name in _COMMON if name in settings}
        return does(Frame(**common), *args, **settings)

    return run


def names_for(titles: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """A part of a name for each title, each once, and none that is taken.

    >>> names_for(["digits", "digits~rot90", "digits", "rp", "数字"], taken=["rp"])
    ['digits', 'digits-rot90', 'digits-2', 'rp-2', 'task']
    """
    taken = list(taken)
    names: list[str] = []
    for title in titles:
        word = slug(title)[:_LONGEST].strip("-")
        word = word if is_name(word) else "task"
        tries = chain([word], (f"{word}-{number}" for number in count(2)))
        names.append(next(name for name in tries if name not in (*names, *taken)))
    return names


def notes_of(tasks: Sequence[Task], resumed: bool) -> list[Text]:
    """What the data sets had to say, and whether an unfinished run was gone on with."""
    words = [Text(f"{task.name}: {note}.", style="note") for task in tasks for note in task.notes]
    return words + ([Text("Resumed an unfinished run.", style="note")] if resumed else [])


def _plain(value: Any) -> Any:
    """What a call depends on, as JSON."""
    if isinstance(value, Part):
        return {"digest": value.digest, "recipe": value.recipe}
    if isinstance(value, Task):
        return value.fingerprint
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else repr(value)
