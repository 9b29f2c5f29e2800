"""Train a network on a task and put it on the shelf."""

from __future__ import annotations

import hashlib
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
from dovetail.running.evaluate import evaluate
from dovetail.shelf.names import check_name
from dovetail.shelf.store import Shelf
from dovetail.shelf.writing import sweep
from dovetail.tasks.builtin import load_task
from dovetail.train.end_to_end import end_to_end

__all__ = ["train"]

HOW = {"end-to-end": end_to_end}
"""Ways to train, by name."""

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
    **options: Any,
) -> Outcome:
    """Train, measure on the test split, shelve.

    An unfinished run keeps a checkpoint beside the shelf under what it depends on: the same call
    goes on where it stopped, another call never finds it.
    """
    if start is not None and (net is not None or args):
        raise SettingsError("a run from a part keeps its network; leave out --net and --set")
    net = net or "lenet5"
    if how not in HOW:
        raise SettingsError(f"unknown way to train {how!r}{nearest(how, HOW)}")
    task = load_task(source, data=data, **(task_options or {}))
    if task.size("test") == 0:
        raise TaskError(f"{task.name!r} has no test examples to measure on")
    part = find_part(start, shelf) if start else net_for(task, net, args, seed=seed)
    name = check_name(name or f"{name_of(start) if start else net}-{slug(task.name)}")
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
        **options,
    }
    key = hashlib.sha256(dumps(depends_on).encode()).hexdigest()[:16]
    checkpoint = store.folder.parent / RUNS / f"{key}.safetensors"
    resumed = resume and checkpoint.exists()
    fit = HOW[how](
        part,
        task,
        seed=seed,
        augment=augment,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        resume=resume,
        **options,
    )
    test = evaluate(fit.part, task)
    measured = {
        **fit.part.origin.measured,
        **{f"test {measure}": value for measure, value in test.measures.items()},
    }
    trained = fit.part.changed(origin=replace(fit.part.origin, measured=measured))
    entry = store.add(trained, name)
    checkpoint.unlink(missing_ok=True)
    sweep(checkpoint.parent)
    headline = next(iter(test.measures.items()))
    said = (
        f"{entry.ref} is on the shelf '{store.folder}': "
        f"test {headline[0]} {headline[1]:.4f} on {test.n} examples"
    )
    words = [Text(f"{task.name}: {note}.", style="note") for note in task.notes]
    words += [Text("Resumed an unfinished run.", style="note")] if resumed else []
    return Outcome(
        view=(*words, *fit.record.view(), Text(said, style="heading")),
        data={
            "ref": entry.ref,
            "measures": measured,
            "epochs": len(getattr(fit.record, "rows", ())),
            "resumed": resumed,
            "notes": task.notes,
        },
        records=(fit.record, test),
    )
