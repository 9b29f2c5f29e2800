"""From images or a table to a model in use, with its report."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

from dovetail.core.errors import FormatError, ShelfError, argument
from dovetail.core.views import Text
from dovetail.jobs import Outcome
from dovetail.jobs.frame import RUNS, Frame, job, key_of
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
    model is written, so that the same call goes on where a killed one stopped.
    """
    folder, page = Path(output), Path(report)
    _refuse_place(folder, page, overwrite)
    if has_images(Path(source)):
        frame.task_options = {"unreadable": "skip", **(frame.task_options or {})}
    task = frame.task(source)
    candidates = _shelved(frame, parts)
    facts = {"task": task, "parts": dict(candidates or {}), "seed": frame.seed, **options}
    state = folder.absolute().parent / RUNS / f"{key_of(facts)}.fit"
    fitted = fit_task(task, parts=candidates, seed=frame.seed, kept=state, **options)
    record = fitted.record
    records = [record] + ([] if fitted.ranking is None else [fitted.ranking])
    write_report(records, page, title=record.title, subtitle=record.summary)
    # Last: where the model is, nothing is left to do.
    fitted.part.save_pretrained(folder, overwrite=overwrite)
    shutil.rmtree(state, ignore_errors=True)
    with suppress(OSError):  # other runs may be unfinished
        state.parent.rmdir()
    inputs = "photo.jpg" if len(task.input_shape) == 3 else "rows.csv"
    return Outcome(
        view=(
            *record.brief(),
            Text(f"{folder} is the model, {page} the report: {record.summary}", style="heading"),
            Text(f"Next: dovetail predict {quote(str(folder))} {inputs}", style="note"),
        ),
        data={**record.to_plain()["data"], "output": str(folder), "report": str(page)},
        records=tuple(records),
    )


def _refuse_place(folder: Path, page: Path, overwrite: bool) -> None:
    """Told before any work: where the model cannot be written, or would replace something."""
    check_suffix(page)
    if not folder.exists():
        return
    if not is_part_folder(folder):
        raise FormatError(f"{folder} is there and no model; choose another {argument('output')}")
    if not overwrite:
        raise FormatError(
            f"{folder} holds a model already; choose another {argument('output')}, or replace it "
            f"with {argument('overwrite', True)}"
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
