"""Perform one repair between a front and a head, measure it, shelve it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.closed_form.stitch import stitch
from dovetail.core.errors import SettingsError, TaskError, shown
from dovetail.core.records import Record
from dovetail.core.views import Block, Text
from dovetail.jobs.locate import find_part
from dovetail.jobs.measured_fits import keep_measured
from dovetail.jobs.outcome import Outcome
from dovetail.measure.evaluate import evaluate
from dovetail.measure.joined import calibrating_batches
from dovetail.parts.joining import join
from dovetail.parts.norms import Norms
from dovetail.parts.part import Part
from dovetail.reuse.explain import EPOCHS, reference_on, refuse_other_space
from dovetail.reuse.question import common_classes, learnable
from dovetail.reuse.repairs import head_norms
from dovetail.shelf.names import check_name
from dovetail.shelf.store import Shelf
from dovetail.tasks.load import load_task
from dovetail.tasks.task import Task
from dovetail.train.stitch import stitch as train_stitch

__all__ = ["REPAIRS", "mend"]


class Wanted(NamedTuple):
    """The two parts, the task, and how to repair."""

    front: Part
    head: Part
    task: Task
    norms: Norms | None
    reference: Part | None
    epochs: int


class Mended(NamedTuple):
    """The network, what was put between its parts, its norms, and what there is to tell."""

    joined: Part
    between: Part | None
    norms: Norms
    records: tuple[Record, ...] = ()


def mend(
    refs: Sequence[str],
    repair: str,
    *,
    task: str | None = None,
    norms: Norms | None = None,
    reference: str | None = None,
    epochs: int = EPOCHS,
    name: str | None = None,
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
) -> Outcome:
    """Repair on the training split, measure on the test split; with a name, shelve.

    A stitch is shelved as ``name.stitch`` beside the network, and its measurement is kept.
    """
    if len(refs) != 2:
        raise SettingsError(f"a repair is between a front and a head, got {len(refs)} parts")
    if task is None:
        raise SettingsError("a repair needs --task, whose training images it uses")
    front, head = (find_part(ref, shelf) for ref in refs)
    store = Shelf(shelf, create=name is not None) if name or Path(shelf).is_dir() else None
    if name is not None and store is not None:
        check_name(f"{name}.stitch")
        store.check_writable()
    loaded = load_task(task, data=data, **(task_options or {}))
    if loaded.kind == "classes" and len(common_classes(head, loaded)) < 2:
        raise TaskError(
            f"a repair is measured on classes that head and task share by name, two or more; "
            f"{refs[1]!r} knows {shown(', '.join(head.contract.classes or ()))}, "
            f"{loaded.name!r} has {shown(', '.join(loaded.classes))}"
        )
    known = learnable(head, loaded)
    if known.size("test") == 0:
        raise TaskError(f"{known.name!r} has no test examples to measure on")
    onto = None if reference is None else find_part(reference, shelf)
    if repair == "stitch" and onto is None:
        onto = _found(store, front, head, loaded)
    done = REPAIRS[repair](Wanted(front, head, loaded, norms, onto, epochs))
    measured = evaluate(done.joined, known)
    through = [] if done.between is None else [done.between]
    blocks: list[Block] = [Text(f"Repaired {' and '.join(refs)} by {repair}, norms {done.norms}.")]
    facts: dict[str, Any] = {
        "repair": repair,
        "norms": done.norms,
        "measures": measured.measures,
        "chance": measured.chance,
        "stitch": {} if done.between is None else done.between.origin.measured,
    }
    blocks += measured.view()
    if name is not None and store is not None:
        if done.between is not None:
            facts["stitch_ref"] = store.add(done.between, f"{name}.stitch").ref
        facts["ref"] = store.add(done.joined, name).ref
        refs_now = [facts[key] for key in ("stitch_ref", "ref") if key in facts]
        said = f"{' and '.join(refs_now)} {'are' if len(refs_now) > 1 else 'is'} on the shelf."
        blocks.append(Text(said, style="heading"))
    facts["kept"] = store is not None and keep_measured(
        store, [front, *through, head], measured, known, done.norms
    )
    return Outcome(tuple(blocks), facts, (*done.records, measured))


def _recalibrate(wanted: Wanted) -> Mended:
    if wanted.norms not in (None, "recalibrated"):
        raise SettingsError("--repair recalibrate has recalibrated norms; leave --norms out")
    batches = calibrating_batches(wanted.front, wanted.task)
    joined = join(wanted.front, wanted.head, norms="recalibrated", data=batches, force=True)
    return Mended(joined, None, "recalibrated")


def _stitch(wanted: Wanted) -> Mended:
    if wanted.reference is None:
        raise SettingsError("a stitch by least squares needs a front of the head's space")
    refuse_other_space(wanted.reference, wanted.head)
    made = stitch(wanted.front, wanted.reference, wanted.task)
    norms = wanted.norms or head_norms(wanted.head)
    batches = calibrating_batches(wanted.front, wanted.task) if norms == "recalibrated" else None
    return Mended(join(wanted.front, made, wanted.head, norms=norms, data=batches), made, norms)


def _trained_stitch(wanted: Wanted) -> Mended:
    norms = wanted.norms or head_norms(wanted.head)
    if norms == "recalibrated":
        raise SettingsError("a stitch is trained with --norms stored or batch")
    known = learnable(wanted.head, wanted.task)
    fit = train_stitch(wanted.front, wanted.head, known, norms=norms, epochs=wanted.epochs)
    return Mended(fit.part, fit.parts[0], norms, (fit.record,))


REPAIRS: dict[str, Callable[[Wanted], Mended]] = {
    "recalibrate": _recalibrate,
    "stitch": _stitch,
    "trained-stitch": _trained_stitch,
}
"""What the command line can do about a misfit, by the names that a report gives."""


def _found(store: Shelf | None, front: Part, head: Part, task: Task) -> Part:
    found = None if store is None else reference_on(store, front, head, task)
    if found is None:
        raise SettingsError(
            "a stitch by least squares needs a front of the space that the head takes, and the "
            "shelf has none; name one with --reference, or use --repair trained-stitch"
        )
    return found[1]
