"""Adapt a shelved part to few labels, compare the ways, and shelve the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dovetail.adapt.ways import (
    WAYS,
    Choices,
    Compared,
    Labels,
    compare_ways,
    count_of,
    drawn,
    estimator_for,
    refuse,
)
from dovetail.core.errors import SettingsError, argument, nearest
from dovetail.core.views import Text
from dovetail.jobs import Outcome
from dovetail.jobs.frame import Frame, job, names_for, notes_of
from dovetail.measure.evaluate import need_test
from dovetail.parts.part import Part
from dovetail.settings.adapt import Adapt
from dovetail.shelf.names import name_of
from dovetail.tasks.task import Task

FEW = {"classes": 10, "regression": 50}
"""Labels unless said: a class, or in all."""

CONCERNED: dict[str, tuple[str, ...]] = {
    "params": ("linearized", "finetune"),
    "around": ("linearized",),
    "mean": ("linearized",),
    "prior": ("linearized",),
    "method": ("linearized",),
    "link": ("linearized",),
}
"""Options that only some ways have."""


@job
def adapt(
    frame: Frame,
    /,
    ref: str,
    source: str,
    *,
    how: Sequence[str] = Adapt.how,
    labels: Sequence[Labels] = Adapt.labels,
    draws: int = Adapt.draws,
    keep: str | None = Adapt.keep,
    plan: bool = Adapt.plan,
    **choices: Any,
) -> Outcome:
    """Fit each way to the same few labels, measure on test, shelve one; in the command's words.

    ``keep`` is the way to shelve, by default the one that does best on the validation split, and
    ``"none"`` for none; it is shelved with the most labels of the first draw.  Where a fit is
    stopped (Ctrl-C) this is said of those done by then.  With ``plan`` nothing is measured: the
    outcome is what inference would take.
    """
    part, task = frame.part(ref), frame.task(source)
    ways = list(WAYS) if list(how) == ["all"] else list(how)
    for name, owners in CONCERNED.items():
        if name in choices and not set(owners) & set(ways):
            raise SettingsError(f"{argument(name)} is for {argument('how', ' or '.join(owners))}")
    chosen = Choices(**choices)
    counts: Sequence[Labels] = labels or [FEW.get(task.kind, 1)]
    if keep not in (None, "none", *ways):
        known = [*ways, "none"]
        raise SettingsError(
            f"{argument('keep')} is one of {', '.join(known)}{nearest(str(keep), known)}"
        )
    need_test(task)
    refuse(part, task, ways, counts, draws, chosen)
    if plan:
        return _planned(part, task, counts, chosen, frame.seed)
    stem = name_of(ref)
    name = frame.named(f"{stem}-{names_for([task.name])[0]}")
    if keep != "none":
        frame.store.check_writable()
    compared = compare_ways(
        part,
        task,
        ways=ways,
        labels=counts,
        draws=draws,
        choices=chosen,
        seed=frame.seed,
        name=stem,
    )
    record, validation = compared.record, compared.validation
    best = None if keep == "none" else keep or compared.best
    if best not in compared.estimators:  # none, or one that was stopped
        best = None
    facts: dict[str, Any] = {"kept": best, "validation": validation, "ref": None}
    facts["stopped"] = compared.stopped
    verdict = record.summary
    if best is not None:
        adapted = _with_origin(compared.estimators[best].to_part(), task, best, compared)
        facts["ref"] = frame.shelve({name: adapted})[name].ref
        why = "" if keep else " (best on validation)" if validation else " (the first)"
        verdict = f"{facts['ref']} is on the shelf: {best}{why}. {verdict}"
    return Outcome(
        view=(*notes_of([task]), *record.brief(), Text(verdict, style="heading")),
        data={**record.to_plain()["data"], **facts},
        records=(record,),
    )


def _with_origin(part: Part, task: Task, how: str, compared: Compared) -> Part:
    """The part with the task it was adapted to, and what it reached there."""
    record = compared.record
    seed, most = record.settings["seed"], record.labels[-1]
    trial = next(
        trial
        for trial in record.trials
        if (trial.how, trial.labels, trial.seed) == (how, most, seed)
    )
    measures = {f"test {name}": value for name, value in trial.measures.items()}
    origin = replace(
        part.origin,
        task=task.name,
        task_fingerprint=task.fingerprint,
        settings={**part.origin.settings, "labels": most, "seed": seed},
        measured={**part.origin.measured, **measures},
    )
    return part.changed(origin=origin)


def _planned(
    part: Part, task: Task, labels: Sequence[Labels], choices: Choices, seed: int
) -> Outcome:
    """What inference in the linearised network would take for the most of these labels."""
    most = max(count_of(task, each) for each in labels)
    n = most * len(task.classes) if task.kind == "classes" else most
    if "all" in labels:
        n = task.size("train")
    # A network is known to the estimator once it has seen an input: two a class are enough.
    inputs, targets = drawn(task, min(most, 2), seed=seed).subset("train")
    wanted = [task.classes[i] for i in targets] if task.kind == "classes" else targets.numpy()
    plan = estimator_for("linearized", part, task.kind, choices, seed=seed).plan(n, inputs, wanted)
    return Outcome(
        view=(Text(f"Inference with {n} labels, on this machine:"), Text(str(plan), style="code")),
        data={
            "labels": n,
            "method": plan.method,
            "memory": plan.memory,
            "ways": {w.method: {"bytes": w.memory, "seconds": w.seconds} for w in plan.ways},
            "groups": {
                g.layers: {"passes": g.passes, "seconds": g.seconds, "bytes": g.memory}
                for g in plan.groups
            },
        },
    )
