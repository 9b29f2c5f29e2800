"""Train a network on a task and put it on the shelf."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.core.errors import SettingsError, TaskError, nearest
from dovetail.core.plain import dumps
from dovetail.core.records import slug
from dovetail.core.views import Text
from dovetail.flows.locate import find_part, name_of
from dovetail.flows.nets import net_for
from dovetail.flows.outcome import Outcome
from dovetail.parts.part import Part
from dovetail.running.evaluate import evaluate
from dovetail.shelf.entry import Entry
from dovetail.shelf.names import check_name
from dovetail.shelf.store import Shelf
from dovetail.shelf.writing import sweep
from dovetail.tasks.builtin import load_task
from dovetail.train.end_to_end import end_to_end
from dovetail.train.fit import Fit
from dovetail.train.modular import modular
from dovetail.train.snapshots import Snapshots

__all__ = ["train"]

HOW: dict[str, Callable[..., Fit]] = {"end-to-end": end_to_end, "modular": modular}
"""Ways to train, by name."""

OF_MODULAR = (
    "objective",
    "at",
    "labels_per_class",
    "supervision",
    "pairs",
    "head_loss",
    "head_epochs",
)
"""Options that only training in modules has."""

RUNS = ".dovetail-runs"
"""Checkpoints of unfinished runs, in a folder beside the shelf."""


def train(
    source: str,
    *,
    net: str | None = None,
    args: dict[str, Any] | None = None,
    start: str | None = None,
    name: str | None = None,
    shelf: str | Path = "shelf",
    how: str = "end-to-end",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
    seed: int = 0,
    resume: bool = True,
    augment: str | None = None,
    checkpoint_seconds: float = 10.0,
    modules: bool = False,
    keep_epochs: int | None = None,
    **options: Any,
) -> Outcome:
    """Train, measure on the test split, shelve.

    An unfinished run keeps a checkpoint beside the shelf under what it depends on: the same call
    goes on where it stopped, another call never finds it.

    ``modules`` also shelves the pieces of a training in modules, as ``name.module1`` and
    ``name.head``; ``keep_epochs=n`` the network of every nth epoch, as ``name.epoch03``.
    """
    if start is not None and (net is not None or args):
        raise SettingsError("a run from a part keeps its network; leave out --net and --set")
    net = net or "lenet5"
    if how not in HOW:
        raise SettingsError(f"unknown way to train {how!r}{nearest(how, HOW)}")
    _refuse_stray_options(how, modules, options)
    task = load_task(source, data=data, **(task_options or {}))
    if task.kind == "pairs":
        raise TaskError(
            f"{task.name!r} has pair labels only, and the classes must come from somewhere; "
            "in Python, dt.train.modular takes them from a second task, as head_task="
        )
    if task.size("test") == 0:
        raise TaskError(f"{task.name!r} has no test examples to measure on")
    part = find_part(start, shelf) if start else net_for(task, net, args, seed=seed)
    name = check_name(name or f"{name_of(start) if start else net}-{slug(task.name)}")
    for suffix in [".module1"] * modules + [".epoch0000"] * (keep_epochs is not None):
        check_name(name + suffix)
    store = Shelf(shelf)
    store.check_writable()
    depends_on = {
        "task": task.fingerprint,
        "start": part.digest,
        "recipe": part.recipe,
        "how": how,
        "name": name,
        "seed": seed,
        "augment": augment,
        "keep_epochs": keep_epochs,
        **options,
    }
    key = hashlib.sha256(dumps(depends_on).encode()).hexdigest()[:16]
    runs = store.folder.parent / RUNS
    snapshots = None if keep_epochs is None else Snapshots(keep_epochs, runs / f"{key}.epochs")
    resumed = resume and any(runs.glob(f"{key}*.safetensors"))
    fit = HOW[how](
        part,
        task,
        seed=seed,
        augment=augment,
        checkpoint=runs / f"{key}.safetensors",
        checkpoint_seconds=checkpoint_seconds,
        resume=resume,
        callbacks=() if snapshots is None else (snapshots,),
        **options,
    )
    test = evaluate(fit.part, task)
    measured = {
        **fit.part.origin.measured,
        **{f"test {measure}": value for measure, value in test.measures.items()},
    }
    trained = fit.part.changed(origin=replace(fit.part.origin, measured=measured))
    entry = store.add(trained, name)
    others = _pieces(fit) if modules else {}
    others |= {} if snapshots is None else _epochs(snapshots, trained)
    beside = [store.add(part, f"{name}.{suffix}") for suffix, part in others.items()]
    _clear(runs, key)
    headline = next(iter(test.measures.items()))
    said = (
        f"{entry.ref} is on the shelf '{store.folder}': "
        f"test {headline[0]} {headline[1]:.4f} on {test.n} examples"
    )
    words = [Text(f"{task.name}: {note}.", style="note") for note in task.notes]
    words += [Text("Resumed an unfinished run.", style="note")] if resumed else []
    return Outcome(
        view=(*words, *fit.record.view(), *_also(beside), Text(said, style="heading")),
        data={
            "ref": entry.ref,
            "measures": measured,
            "epochs": len(getattr(fit.record, "rows", ())),
            "resumed": resumed,
            "also": [entry.ref for entry in beside],
            "notes": task.notes,
        },
        records=(fit.record, test),
    )


def _refuse_stray_options(how: str, modules: bool, options: dict[str, Any]) -> None:
    stray = [name for name in OF_MODULAR if name in options] + ["modules"] * modules
    if how != "modular" and stray:
        raise SettingsError(
            f"--{stray[0].replace('_', '-')} is an option of --how modular, not of --how {how}"
        )


def _pieces(fit: Fit) -> dict[str, Part]:
    """The modules by name: ``module1``, ``module2``, ..., ``head``."""
    *body, head = fit.parts
    return {f"module{i}": part for i, part in enumerate(body, start=1)} | {"head": head}


def _epochs(snapshots: Snapshots, trained: Part) -> dict[str, Part]:
    """The networks of earlier epochs by name, with as many digits as sort them."""
    width = max(2, len(str(max(snapshots.epochs, default=0))))
    parts = snapshots.parts(trained).values()
    return {
        f"epoch{epoch:0{width}}": part for epoch, part in zip(snapshots.epochs, parts, strict=True)
    }


def _also(beside: list[Entry]) -> tuple[Text, ...]:
    if not beside:
        return ()
    return (Text("Also on the shelf: " + ", ".join(entry.ref for entry in beside) + "."),)


def _clear(runs: Path, key: str) -> None:
    """Delete what an unfinished run would have gone on from."""
    for file in runs.glob(f"{key}*.safetensors"):
        file.unlink(missing_ok=True)
    shutil.rmtree(runs / f"{key}.epochs", ignore_errors=True)
    sweep(runs)
