"""From images or a table to a model in use, with its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from dovetail.core.errors import FormatError, ShelfError, argument
from dovetail.core.views import Text
from dovetail.jobs import Outcome
from dovetail.jobs.fit_runs import FitRuns, words_for
from dovetail.jobs.frame import Frame, job
from dovetail.jobs.rank import _candidates as shelved_candidates
from dovetail.parts.facts import is_part_folder
from dovetail.parts.part import Part
from dovetail.report.page import check_suffix, write_report
from dovetail.reuse.fitting import fit as fit_task
from dovetail.settings.fit import Fitting
from dovetail.shelf.store import Shelf
from dovetail.tasks.image_folder import has_images


@job
def fit(
    frame: Frame,
    /,
    source: str,
    *,
    parts: Sequence[str] | None = Fitting.parts,
    output: str = Fitting.output,
    report: str = Fitting.report,
    overwrite: bool = Fitting.overwrite,
    **options: Any,
) -> Outcome:
    """Fit a model to a folder, a table or a task by name; write its folder and a report.

    Unreadable images are left out, and named.  What was tried is kept beside the output until the
    search is over, so that the same call goes on where a killed or an interrupted one stopped.
    """
    folder, page = Path(output), Path(report)
    runs = FitRuns(folder)
    _refuse_place(folder, page, overwrite or runs.may_go_on())
    if has_images(Path(source)):
        frame.task_options = {"unreadable": "skip", **(frame.task_options or {})}
    task = frame.task(source)
    candidates = _shelved(frame, parts)
    facts = {"task": task, "parts": dict(candidates or {}), "seed": frame.seed, **options}
    own = runs.may_go_on(facts)
    changed = words_for(runs.changed(facts))
    if not (overwrite or own):
        _refuse_place(folder, page, overwrite, changed)
    state = runs.begin(facts)
    fitted = fit_task(task, parts=candidates, seed=frame.seed, kept=state, **options)
    record = fitted.record
    records = [record] + ([] if fitted.ranking is None else [fitted.ranking])
    write_report(records, page, title=record.title, subtitle=record.summary)
    # Last: where the model of a whole search is, nothing is left to do.
    fitted.part.save_pretrained(folder, overwrite=overwrite or own)
    if fitted.interrupted:
        runs.wrote(state)
    else:
        runs.finish()
    inputs = "photo.jpg" if len(task.input_shape) == 3 else "rows.csv"
    told = []
    if changed:
        told.append(Text(f"Begun anew: an earlier run had other {changed}.", style="warning"))
    if fitted.interrupted:
        told.append(Text("The same command goes on where it was interrupted.", style="note"))
    return Outcome(
        view=(
            *told,
            *record.brief(),
            Text(f"{folder} is the model, {page} the report: {record.summary}", style="heading"),
            Text(f"Next: dovetail predict {quote(str(folder))} {inputs}", style="note"),
        ),
        data={**record.to_plain()["data"], "output": str(folder), "report": str(page)},
        records=tuple(records),
    )


def _refuse_place(folder: Path, page: Path, overwrite: bool, changed: str = "") -> None:
    """Told before any work: where the model cannot be written, or would replace something.

    ``changed`` since the run that left it there was interrupted.
    """
    check_suffix(page)
    if not folder.exists():
        return
    if not is_part_folder(folder):
        raise FormatError(f"{folder} is there and no model; choose another {argument('output')}")
    if not overwrite:
        also = f" (of an interrupted run with other {changed})" if changed else ""
        raise FormatError(
            f"{folder} holds a model already{also}; choose another {argument('output')}, or "
            f"replace it with {argument('overwrite', True)}"
        )


def _shelved(frame: Frame, parts: Sequence[str] | None) -> Mapping[str, Part] | None:
    """The parts that were named, or all on the shelf that take a task's inputs, if there is one."""
    if parts:
        return shelved_candidates(frame, parts)[0]
    if frame.existing_store is None or not len(Shelf(frame.folder, create=False)):
        return None
    try:
        return shelved_candidates(frame, ())[0]
    except ShelfError:  # there are heads only
        return None
