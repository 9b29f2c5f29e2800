"""The frame of every job: load, run, measure, shelve, Outcome.

A job is a function under :func:`job`: its first argument is a :class:`Frame`, which holds what all
commands have in common (shelf, data, name, seed, whether to resume) and does what all of them do.
Callers give those as keywords.
"""

from __future__ import annotations

import hashlib
import inspect
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, wraps
from itertools import chain, count
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from dovetail.core.errors import ShelfError, TaskError, argument
from dovetail.core.plain import dumps
from dovetail.core.records import Record, slug
from dovetail.core.views import Text, View
from dovetail.jobs import Outcome
from dovetail.parts.builders import find_builder
from dovetail.parts.facts import is_part_folder
from dovetail.parts.part import Part, build, from_pretrained
from dovetail.settings.common import Common
from dovetail.settings.train import Loop
from dovetail.shelf.entry import Entry
from dovetail.shelf.fits import MeasuredFit
from dovetail.shelf.names import HALVES, check_name, is_name, stem_of
from dovetail.shelf.store import Shelf
from dovetail.shelf.writing import sweep
from dovetail.tasks.load import load_task
from dovetail.tasks.task import Task

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
        key = key_of(depends_on)
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
        shelf: Where parts come from and go to, if said.
        data: Folder of downloaded data sets.
        task_options: How tasks are read.
        name: On the shelf, if said.
        seed: For everything drawn.
        resume: Go on with an unfinished run, if said; by default as :class:`Loop` declares.
        checkpoint_seconds: How often one is saved, likewise.
    """

    shelf: str | Path | None = None
    data: str | Path | None = Common.data
    task_options: Mapping[str, Any] | None = None
    name: str | None = None
    seed: int = Common.seed
    resume: bool | None = None
    checkpoint_seconds: float | None = None
    _run: Run | None = field(default=None, init=False)

    @property
    def folder(self) -> Path:
        """The shelf's, which need not be there."""
        return Path(self.shelf or Common.shelf)

    def task(self, source: str) -> Task:
        """The task of a name, a folder or a file."""
        return load_task(source, data=self.data, **(self.task_options or {}))

    def part(self, ref: str) -> Part:
        """The part in a folder, or of a name on the shelf (``name`` or ``name@2``)."""
        if is_part_folder(Path(ref)):
            return from_pretrained(ref)
        return Shelf(self.folder, create=False).get(ref)

    def that_take_inputs(
        self, *beginnings: str, beside: Sequence[str] = ()
    ) -> tuple[list[str], int]:
        """Some names, and of all on the shelf that begin so; and how many of these take features.

        What takes the features of others is left out.
        """
        newest: dict[str, Entry] = {}
        for entry in Shelf(self.folder, create=False).entries():
            wanted = not beginnings or entry.name.startswith(beginnings)
            if wanted and (entry.name not in newest or entry.version > newest[entry.name].version):
                newest[entry.name] = entry
        whole = [name for name, entry in newest.items() if not _takes_features(entry)]
        names = list(dict.fromkeys([*beside, *whole]))
        if not names:
            raise ShelfError(
                f"there is no part on the shelf '{self.folder}' that takes a task's inputs"
                + (f" and begins with {beginnings[0]!r}" if beginnings else "")
            )
        return names, len(newest) - len(whole)

    def front(self, ref: str) -> Part:
        """The front of the network of a name (``low`` for ``low.front``), or the part itself."""
        return self.part(self._half(ref, "front") or ref)

    def head(self, ref: str | None, of: str = "") -> Part:
        """The head of a network, or the part itself; without a name the head ``of`` a front."""
        ref = ref or self.own_head(of)
        return self.part(self._half(ref, "head") or ref)

    def own_head(self, front: str, option: str = "head") -> str:
        """The name of the head of the network that a front was cut from."""
        network = stem_of(front)
        head = None if is_part_folder(Path(front)) else self._half(network, "head")
        if head is None:
            raise ShelfError(
                f"no head of {front!r} on the shelf {self.folder} (neither {network}.head nor "
                f"{network}.back); name it with {argument(option)}"
            )
        return head

    def _half(self, network: str, side: str) -> str | None:
        if is_part_folder(Path(network)):
            return None
        store = Shelf(self.folder, create=False)
        names = (network + ending for ending in HALVES[side])
        return next((name for name in names if name in store), None)

    @cached_property
    def store(self) -> Shelf:
        """The shelf, made where there is none."""
        return Shelf(self.folder)

    @property
    def existing_store(self) -> Shelf | None:
        """The shelf, unless there is none: parts may come from folders."""
        return Shelf(self.folder, create=False) if self.folder.is_dir() else None

    def named(self, usual: str, *endings: str) -> str:
        """The name to shelve under: what was said, else the usual; each with the endings is one."""
        self.name = check_name(self.name or usual)
        for ending in endings:
            check_name(self.name + ending)
        return self.name

    def begin(self, depends_on: dict[str, Any]) -> Run:
        """The run of these facts; parts stand for their digests and recipes, tasks for theirs."""
        facts = {"name": self.name, "seed": self.seed, **depends_on}
        self._run = Run.of(self.store, facts, resume=self._settled["resume"])
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
        of_run = {"resume": self.resume, "checkpoint_seconds": self.checkpoint_seconds}
        return {k: getattr(Loop, k) if value is None else value for k, value in of_run.items()}

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
        verdict: str,
        data: dict[str, Any],
        records: Iterable[Record],
    ) -> Outcome:
        """What was made: notes on the data, what was measured, what else was shelved, a verdict.

        ``shelved`` are the entries beside those that ``verdict`` names.
        """
        beside = [entry.ref for entry in shelved]
        also = (Text(f"Also on the shelf: {', '.join(beside)}."),) if beside else ()
        return Outcome(
            view=(*notes_of(tasks, self.resumed), *view, *also, Text(verdict, style="heading")),
            data={"also": beside, "resumed": self.resumed, **data},
            records=tuple(records),
        )

    def keep_fit(
        self,
        chain: Sequence[Part],
        task: Task,
        norms: str,
        accuracy: float,
        chance: float,
    ) -> None:
        """Keep on the shelf what parts, front first, reached together on the test split."""
        front, *between, head = (part.digest for part in chain)
        self.store.keep_fit(
            MeasuredFit(
                front=front,
                head=head,
                through=tuple(between),
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


def alone(values: Any) -> Any:
    """The only one of several, which a command that may be told several has in a list; else all.

    >>> alone(["conv2"]), alone(["conv1", "conv2"]), alone(None)
    ('conv2', ['conv1', 'conv2'], None)
    """
    return values[0] if isinstance(values, list | tuple) and len(values) == 1 else values


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


def net_for(
    task: Task, net: str, args: Mapping[str, Any] | None = None, *, seed: int = Common.seed
) -> Part:
    """Build ``net`` with the task's input shape and number of outputs, and ``args`` over them.

    >>> net_for(load_task("digits"), "lenet5").contract.takes[0].shape
    (1, 8, 8)
    """
    accepted = inspect.signature(find_builder(net).make).parameters
    of_task: dict[str, Any] = {"shape": task.input_shape, "classes": task.outputs}
    if len(task.input_shape) == 3:
        channels, height, width = task.input_shape
        of_task |= {"channels": channels, "size": height}
        if height != width and "size" in accepted and "size" not in (args or {}):
            raise TaskError(
                f"{net!r} takes square images, {task.name!r} has {height}×{width}; resize the task"
            )
    elif "channels" in accepted:
        raise TaskError(f"{net!r} takes images, {task.name!r} has vectors; use 'mlp'")
    of_task = {name: value for name, value in of_task.items() if name in accepted}
    return build(net, seed=seed, **{**of_task, **(args or {})})


def notes_of(tasks: Iterable[Task], resumed: bool = False) -> list[Text]:
    """What the data sets had to say, and whether an unfinished run was gone on with."""
    words = [Text(f"{task.name}: {note}.", style="note") for task in tasks for note in task.notes]
    return words + ([Text("Resumed an unfinished run.", style="note")] if resumed else [])


def _takes_features(entry: Entry) -> bool:
    return len(entry.contract.takes) != 1 or entry.contract.takes[0].space is not None


def key_of(depends_on: Mapping[str, Any]) -> str:
    """A name for a run, by all that it depends on: parts stand for their digests and recipes.

    >>> key_of({"task": "digits", "seed": 0}) == key_of({"seed": 0, "task": "digits"})
    True
    """
    return hashlib.sha256(dumps(_plain(depends_on)).encode()).hexdigest()[:16]


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
