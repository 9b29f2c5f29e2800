"""Join parts, say why not and what would help, measure the result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from dovetail.core.errors import ContractError, DovetailError, SettingsError
from dovetail.core.records import Record
from dovetail.core.views import Block, Text, View
from dovetail.jobs.locate import find_part
from dovetail.jobs.measured_fits import keep_measured
from dovetail.jobs.outcome import Outcome
from dovetail.measure.evaluate import evaluate
from dovetail.measure.joined import calibrating_batches
from dovetail.parts.joining import join as join_parts
from dovetail.parts.norms import Norms
from dovetail.parts.part import Part
from dovetail.reuse.explain import EPOCHS, explain_fit
from dovetail.reuse.fit_report import FitReport
from dovetail.shelf.store import Shelf
from dovetail.tasks.load import load_task
from dovetail.tasks.task import Task

__all__ = ["JoinRefused", "explain", "join"]


class JoinRefused(ContractError):
    """A join that the contracts refuse, with what would help.

    ``repairs`` shows the repairs to people, ``outcome`` has them as data.
    """

    def __init__(self, message: str, repairs: View, outcome: Outcome) -> None:
        super().__init__(message)
        self.repairs, self.outcome = repairs, outcome


def join(
    refs: list[str],
    *,
    task: str | None = None,
    norms: Norms = "stored",
    force: bool = False,
    adapters: bool = False,
    name: str | None = None,
    reference: str | None = None,
    epochs: int = EPOCHS,
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
) -> Outcome:
    """Join the parts; with a task, measure and keep the fit; with a name, shelve.

    Raises:
        JoinRefused: they do not fit; with the repairs that apply, priced if there is a task.
    """
    parts = [find_part(ref, shelf) for ref in refs]
    loaded = load_task(task, data=data, **(task_options or {})) if task else None
    batches = None
    if norms == "recalibrated":
        if loaded is None:
            raise SettingsError("recalibrated norms need --task, whose training images they use")
        batches = calibrating_batches(parts[0], loaded)
    try:
        joined = join_parts(*parts, norms=norms, force=force, adapters=adapters, data=batches)
    except ContractError as error:
        helps = None if reference is None else find_part(reference, shelf)
        asked = {"reference": helps, "shelf": _existing(shelf), "epochs": epochs}
        raise _refused(error, parts, loaded, _names(refs, task, reference), asked) from None
    reasons = [why for a, b in pairwise(parts) for why in a.contract.mismatches(b.contract)]
    blocks: list[Block] = [
        Text(f"Joined {' and '.join(refs)}: {joined.contract}"),
        *(Text(f"Although: {why}", style="warning") for why in reasons),
    ]
    facts: dict[str, Any] = {"contract": str(joined.contract), "why_not": reasons, "norms": norms}
    records: tuple[Record, ...] = ()
    if loaded is not None:
        measured = evaluate(joined, loaded)
        store = None if adapters else _existing(shelf)  # an adapter between them is on no shelf
        kept = store is not None and keep_measured(store, parts, measured, loaded, norms)
        blocks += measured.view()
        facts |= {"measures": measured.measures, "chance": measured.chance, "kept": kept}
        records = (measured,)
    if name is not None:
        entry = Shelf(shelf).add(joined, name)
        facts["ref"] = entry.ref
        blocks.append(Text(f"{entry.ref} is on the shelf.", style="heading"))
    return Outcome(tuple(blocks), facts, records)


def explain(
    refs: Sequence[str],
    *,
    task: str | None = None,
    reference: str | None = None,
    epochs: int = EPOCHS,
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
) -> Outcome:
    """Whether a head fits a front, why not, and what each repair would cost; nothing is shelved."""
    if len(refs) != 2:
        raise SettingsError(f"name a front and a head to explain, got {len(refs)} parts")
    front, head = (find_part(ref, shelf) for ref in refs)
    report = explain_fit(
        front,
        head,
        load_task(task, data=data, **(task_options or {})) if task else None,
        reference=None if reference is None else find_part(reference, shelf),
        shelf=_existing(shelf),
        epochs=epochs,
        names=_names(refs, task, reference),
    )
    return Outcome(report.view(), _facts(report), (report,))


def _refused(
    error: ContractError,
    parts: list[Part],
    task: Task | None,
    names: dict[str, str],
    asked: dict[str, Any],
) -> ContractError:
    """The refusal with repairs of the first seam that does not fit."""
    misfits = [pair for pair in pairwise(parts) if pair[0].contract.mismatches(pair[1].contract)]
    if not misfits:
        return error
    if len(parts) > 2:  # what enters the seam is no input of a task
        task, names = None, {}
    try:
        report = explain_fit(*misfits[0], task, names=names, **asked)
    except DovetailError as problem:  # the refusal is the news, not what kept us from pricing it
        return ContractError(f"{error.marked}\nNo repair could be priced: {problem.marked}")
    facts = {"refused": True, **_facts(report), "why_not": list(report.why_not)}
    return JoinRefused(error.marked, report.repairs_view(), Outcome((), facts, (report,), ok=False))


def _facts(report: FitReport) -> dict[str, Any]:
    best = None if report.best is None else report.best.name
    facts: dict[str, Any] = report.to_plain()["data"]
    return facts | {"why_not": list(report.why_not), "chance": report.chance, "best": best}


def _names(refs: Sequence[str], task: str | None, reference: str | None) -> dict[str, str]:
    """What commands call the parts: what the user has typed."""
    called = {"front": refs[0], "head": refs[-1], "task": task, "reference": reference}
    return {role: name for role, name in called.items() if name is not None}


def _existing(shelf: str | Path) -> Shelf | None:
    """The shelf, unless there is none: parts may come from folders."""
    return Shelf(shelf, create=False) if Path(shelf).is_dir() else None
