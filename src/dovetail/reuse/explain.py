"""Does this head work behind that front?  If not: why not, and what would it cost to make it?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import nn

from dovetail.core.errors import ContractError, DovetailError, SettingsError, argument
from dovetail.core.settings import need_least
from dovetail.measure.forward import prepare
from dovetail.parts.part import Part, as_part
from dovetail.reuse.fit_report import FitReport, Repair, best_first
from dovetail.reuse.question import Question, common_classes
from dovetail.reuse.repairs import (
    Attempt,
    adaptation,
    chain,
    outcome_of,
    recalibration,
    retraining,
    solved_stitch,
    trained_stitch,
)
from dovetail.settings.join import Repairs
from dovetail.shelf.entry import Entry
from dovetail.shelf.store import Shelf
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task


def explain_fit(
    front: Part | nn.Module,
    head: Part | nn.Module,
    task: Task | None = None,
    *,
    reference: Part | nn.Module | None = None,
    shelf: Shelf | str | Path | None = None,
    split: Split = "validation",
    measure: bool = True,
    epochs: int = Repairs.epochs,
    limit: int = 2000,
    seed: int = 0,
    names: Mapping[str, str] | None = None,
) -> FitReport:
    """Every mismatch, what the two reach as they are, and repairs with their price.

    Repairs are fitted on the training split and judged on ``split``: as :func:`dovetail.recombine`
    judges, on the images whose class the head knows by name and choosing among those classes.
    Recalibration and the stitch of least squares read no label.  Without a task there are reasons
    and repairs, but no figures.

    Args:
        front: What comes first.
        head: What should follow.
        task: To measure on.
        reference: A front of the space that the head takes, such as the head's own other half. It
            bounds what a repair can reach, and the stitch of least squares is made onto it.
        shelf: Where to look for a reference, unless one is given, and for a chain of parts.
        split: To judge on; the test split is for the end.
        measure: Train the stitch to learn what it reaches; else only a few of its steps are timed.
        epochs: Of that training.
        limit: At most so many training images for each repair that is tried.
        seed: For everything drawn.
        names: What commands call the ``"front"``, ``"head"``, ``"task"`` and ``"reference"``; by
            default their references on the shelf.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> (front, _), (_, head) = (
    ...     cut(build("mlp", hidden=(8,), seed=seed), at="hidden1") for seed in (0, 1)
    ... )
    >>> report = explain_fit(front, head)
    >>> [reason.about for reason in report.reasons]
    ['space']
    >>> [repair.name for repair in report.applicable]
    ['trained-stitch']
    """
    front, head = as_part(front), as_part(head)
    if task is not None and not isinstance(task, Task):
        raise SettingsError(
            f"{argument('task')} must be a Task, got {type(task).__name__}; see dt.load_task"
        )
    need_least("limit", limit, 2)
    need_least("epochs", epochs, 1)
    if task is not None:
        task.indices(split)
    store = shelf if shelf is None or isinstance(shelf, Shelf) else Shelf(shelf, create=False)
    called = _called(store, {"front": front, "head": head})
    if task is not None:
        called["task"] = task.name
    if reference is not None:
        reference = as_part(reference)
        refuse_other_space(reference, head)
        called |= _called(store, {"reference": reference})
    elif store is not None and (shelved := reference_on(store, front, head, task)) is not None:
        called["reference"], reference = shelved[0].ref, shelved[1]
    called |= names or {}
    question = Question(
        front, head, task, reference, store, split, measure, epochs, limit, seed, called
    )
    priced = question.priced
    shared = () if priced is None else common_classes(head, priced)
    return FitReport(
        front=called.get("front", _described(front)),
        head=called.get("head", _described(head)),
        fits=question.fits,
        reasons=question.reasons,
        repairs=repairs_for(question),
        task=None if task is None else task.name,
        split=None if task is None else split,
        n=0 if priced is None else _count(priced, split, shared),
        classes=shared,
        as_it_is=question.as_it_is,
        bound=question.bound,
        reference=None if reference is None else called.get("reference", _described(reference)),
        obstacle=question.problem,
        settings={
            "split": split,
            "measure": measure,
            "epochs": epochs,
            "limit": limit,
            "seed": seed,
            "task_fingerprint": None if task is None else task.fingerprint,
            "front_digest": front.digest,
            "head_digest": head.digest,
            "reference_digest": None if reference is None else reference.digest,
        },
    )


def reference_on(
    store: Shelf, front: Part, head: Part, task: Task | None = None
) -> tuple[Entry, Part] | None:
    """A front on the shelf that gives what the head takes, measured ones first; if there is any.

    It must take the task's inputs as they come.  What is itself a front joined to a stitch is the
    last choice: it only imitates the space.
    """
    fronts = [
        entry
        for entry in store.find(fits=head)
        if not entry.contract.mismatches(head.contract)
        and all(port.space is None for port in entry.contract.takes)
        and entry.digest != front.digest
    ]
    for entry in sorted(fronts, key=lambda each: each.origin.how == "join"):
        try:
            part = entry.load()
            if task is not None:
                prepare(task.inputs[:1], part.contract)
        except DovetailError:
            continue
        return entry, part
    return None


def refuse_other_space(reference: Part, head: Part) -> None:
    """Refuse a reference that does not give what the head takes."""
    reasons = reference.contract.mismatches(head.contract)
    if reasons:
        raise ContractError(
            f"the reference {reference.described!r} is no front of the head's space: "
            f"{'; '.join(reasons)}. Take the front that the head was cut from, or leave it out."
        )


def _called(store: Shelf | None, parts: Mapping[str, Part]) -> dict[str, str]:
    """The references of those parts that are on the shelf."""
    if store is None:
        return {}
    known = {(entry.digest, entry.contract): entry.ref for entry in store.entries()}
    entries = {role: known.get((part.digest, part.contract)) for role, part in parts.items()}
    return {role: ref for role, ref in entries.items() if ref is not None}


def _described(part: Part) -> str:
    """What a part is and what it learnt: halves of two networks are told apart by that alone."""
    task = part.origin.task
    return part.described if task is None else f"{part.described} for {task}"


def _count(task: Task, split: Split, classes: tuple[str, ...]) -> int:
    targets = task.targets[task.indices(split)]
    return sum(int((targets == task.classes.index(name)).sum()) for name in classes)


FITTING = "nothing needs it: the front gives what the head takes"


def repairs_for(question: Question) -> tuple[Repair, ...]:
    """Every repair, best first; those that do not apply say why."""

    def tried(attempt: Attempt) -> Repair:
        if question.fits:
            return replace(attempt.repair, applies=False, why_not=FITTING)
        return outcome_of(attempt, question)

    trained = tried(trained_stitch(question))
    return best_first(
        [
            outcome_of(recalibration(question), question),  # norms may be wrong in what fits, too
            tried(adaptation(question)),
            tried(solved_stitch(question)),
            trained,
            tried(chain(question)),
            tried(retraining(question, trained)),
        ]
    )
