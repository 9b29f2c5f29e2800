"""Adapt a shelved part to few labels, compare the ways, and shelve the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.adapt.ways import WAYS, Choices, compare_ways, drawn, estimator_for
from dovetail.core.errors import SettingsError, nearest
from dovetail.core.views import Text
from dovetail.jobs.frame import names_for, notes_of
from dovetail.jobs.locate import find_part
from dovetail.jobs.outcome import Outcome
from dovetail.measure.evaluate import need_test
from dovetail.parts.part import Part
from dovetail.shelf.names import check_name, name_of
from dovetail.shelf.store import Shelf
from dovetail.tasks.load import load_task
from dovetail.tasks.task import Task

__all__ = ["adapt"]

FEW = {"classes": 10, "regression": 50}
"""Labels unless said: a class, or in all."""

CONCERNED: dict[str, tuple[str, ...]] = {
    "params": ("linearized", "finetune"),
    "prior": ("linearized",),
    "method": ("linearized",),
    "link": ("linearized",),
}
"""Options that only some ways have."""


def adapt(
    ref: str,
    source: str,
    *,
    how: Sequence[str] = ("all",),
    labels: Sequence[int] = (),
    draws: int = 1,
    keep: str | None = None,
    name: str | None = None,
    plan: bool = False,
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
    seed: int = 0,
    **choices: Any,
) -> Outcome:
    """Fit each way to the same few labels, measure on test, shelve one; in the command's words.

    ``keep`` is the way to shelve, by default the one that does best on the validation split, and
    ``"none"`` for none; it is shelved as ``name`` with the most labels of the first draw.  With
    ``plan`` nothing is measured: the outcome is what inference would take.
    """
    part = find_part(ref, shelf)
    task = load_task(source, data=data, **(task_options or {}))
    ways = list(WAYS) if list(how) == ["all"] else list(how)
    chosen = _choices(ways, choices)
    counts = list(labels) or [FEW.get(task.kind, 1)]
    if plan:
        return _planned(part, task, max(counts), chosen, seed)
    need_test(task)
    if keep not in (None, "none", *ways):
        known = [*ways, "none"]
        raise SettingsError(f"--keep is one of {', '.join(known)}{nearest(str(keep), known)}")
    stem = name_of(ref)
    name = check_name(name or f"{stem}-{names_for([task.name])[0]}")
    if keep != "none":
        Shelf(shelf).check_writable()
    found = compare_ways(
        part, task, ways=ways, labels=counts, draws=draws, choices=chosen, seed=seed, name=stem
    )
    record = found.record
    best = None if keep == "none" else keep or found.best
    facts: dict[str, Any] = {"kept": best, "validation": found.validation, "ref": None}
    said = record.summary
    if best is not None:
        adapted = found.estimators[best].to_part()
        entry = Shelf(shelf).add(_told(adapted, task, record.settings, best, found), name)
        facts["ref"] = entry.ref
        why = "" if keep else " (best on validation)" if found.validation else " (the first)"
        said = f"{entry.ref} is on the shelf: {best}{why}. {said}"
    return Outcome(
        view=(*notes_of([task], False), *record.brief(), Text(said, style="heading")),
        data={**record.to_plain()["data"], **facts},
        records=(record,),
    )


def _choices(ways: Sequence[str], given: dict[str, Any]) -> Choices:
    """What was said; an option of no way that was asked for is a mistake."""
    said = {name: value for name, value in given.items() if value is not None}
    for name, owners in CONCERNED.items():
        if name in said and not set(owners) & set(ways):
            raise SettingsError(f"--{name} is for --how {' or '.join(owners)}")
    return Choices(**said)


def _told(part: Part, task: Task, settings: dict[str, Any], how: str, found: Any) -> Part:
    """The part with the task it was adapted to, and what it reached there."""
    most = found.record.labels[-1]
    first = next(
        trial
        for trial in found.record.trials
        if (trial.how, trial.labels, trial.seed) == (how, most, settings["seed"])
    )
    origin = replace(
        part.origin,
        task=task.name,
        task_fingerprint=task.fingerprint,
        settings={**part.origin.settings, "labels": most, "seed": settings["seed"]},
        measured={
            **part.origin.measured,
            **{f"test {name}": value for name, value in first.measures.items()},
        },
    )
    return part.changed(origin=origin)


def _planned(part: Part, task: Task, labels: int, choices: Choices, seed: int) -> Outcome:
    """What inference in the linearised network would take for so many labels."""
    n = labels * (len(task.classes) if task.kind == "classes" else 1)
    small = drawn(task, min(labels, 2), seed=seed)
    inputs, targets = small.subset("train")
    # A network is known to the estimator once it has seen an input: two a class are enough.
    known = choices if choices.method in ("auto", "laplace") else replace(choices, method="auto")
    estimator = estimator_for("linearized", part, task.kind, known, seed=seed)
    wanted = [task.classes[i] for i in targets] if task.kind == "classes" else targets.numpy()
    found = estimator.fit(inputs, wanted).plan(n)
    return Outcome(
        view=(Text(f"Inference with {n} labels, on this machine:"), Text(str(found), style="code")),
        data={
            "labels": n,
            "method": found.method,
            "memory": found.memory,
            "ways": {
                way.method: {"bytes": way.memory, "seconds": way.seconds} for way in found.ways
            },
        },
    )
