"""Train the front of a network without labels, and put it on the shelf."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.core.errors import SettingsError
from dovetail.core.records import slug
from dovetail.core.views import Text
from dovetail.jobs.locate import find_part
from dovetail.jobs.nets import net_for
from dovetail.jobs.outcome import Outcome
from dovetail.jobs.runs import Run
from dovetail.jobs.shelving import also, notes_of, shelve
from dovetail.objectives.pretexts import pretext_named
from dovetail.shelf.names import check_name
from dovetail.shelf.places import name_of
from dovetail.shelf.store import Shelf
from dovetail.tasks.builtin import load_task
from dovetail.train.pretext_record import SOLVED
from dovetail.train.self_supervised import self_supervised

__all__ = ["train_self_supervised"]


def train_self_supervised(
    source: str,
    *,
    net: str = "lenet5",
    args: dict[str, Any] | None = None,
    start: str | None = None,
    name: str | None = None,
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
    pretext: str = "rotation",
    at: Sequence[str] | None = None,
    seed: int = 0,
    resume: bool = True,
    checkpoint_seconds: float = 10.0,
    **options: Any,
) -> Outcome:
    """Train by a pretext; shelve ``name`` (to start from), ``name.front`` and ``name.pretext``.

    The labels of the task are never read, so nothing is measured by them either: the record has the
    share of the pretext's questions that is answered rightly on validation images.
    """
    asked = pretext_named(pretext)
    if at is not None and len(at) != 1:
        raise SettingsError(f"the front ends at one point, but --at names {len(at)}")
    task = load_task(source, data=data, **(task_options or {}))
    part = find_part(start, shelf) if start else net_for(task, net, args, seed=seed)
    base = name_of(start) if start else net
    name = check_name(name or f"{base}-{slug(task.name)}-{asked.name}")
    check_name(f"{name}.pretext")
    store = Shelf(shelf)
    run = Run.of(
        store,
        {
            "how": "self-supervised",
            "task": task.fingerprint,
            "start": part.digest,
            "recipe": part.recipe,
            "pretext": asked.described(),
            "name": name,
            "at": at,
            "seed": seed,
            **options,
        },
        resume=resume,
    )
    fit = self_supervised(
        part,
        task,
        by=asked,
        at=None if at is None else at[0],
        seed=seed,
        checkpoint=run.checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        resume=resume,
        **options,
    )
    front, head = fit.parts
    entry, *beside = shelve(
        store, {name: fit.part, f"{name}.front": front, f"{name}.pretext": head}
    ).values()
    run.clear()
    measured = fit.part.origin.measured
    said = f"{entry.ref} is on the shelf '{store.folder}': its front was trained without labels"
    if SOLVED in measured:
        said += f", {measured[SOLVED]:.1%} of the questions answered rightly"
    return Outcome(
        view=(
            *notes_of([task], run.resumed),
            *fit.record.view(),
            *also(beside),
            Text(said, style="heading"),
        ),
        data={
            "ref": entry.ref,
            "measures": measured,
            "epochs": len(getattr(fit.record, "rows", ())),
            "resumed": run.resumed,
            "also": [each.ref for each in beside],
            "notes": task.notes,
        },
        records=(fit.record,),
    )
