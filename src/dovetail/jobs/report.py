"""Make a report of records and of the shelf, and files of their figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from dovetail.core.errors import FormatError
from dovetail.core.records import Record, load_record
from dovetail.core.views import Text
from dovetail.core.words import counted
from dovetail.jobs import Outcome
from dovetail.report.export import export_figures
from dovetail.report.page import check_suffix, write_report
from dovetail.settings.show import Report
from dovetail.shelf.store import Shelf


def report(
    sources: list[str],
    *,
    output: str | Path | None = Report.output,
    title: str = Report.title,
    shelf: str | Path | None = Report.shelf,
    figures: str | Path | None = Report.figures,
    format: Literal["svg", "png"] = Report.format,
) -> Outcome:
    """A report of record files (or folders of them), and of a shelf if given.

    The suffix of ``output`` chooses its format.  ``figures`` names a folder for a file of each
    figure; without an ``output`` beside it, those are all that is written.
    """
    if output is None and figures is None:
        output = "report.html"
    if output is not None:
        check_suffix(Path(output))  # a mistake is told before anything is read or written
    records: list[Record] = [load_record(path) for source in sources for path in _files(source)]
    if shelf is not None:
        records.append(Shelf(shelf, create=False).ls())
    if not records:
        raise FormatError("nothing to report: give record files, a folder of them, or --shelf")
    notes, data = [], dict[str, Any](records=[record.title for record in records])
    if figures is not None:
        files = export_figures(records, figures, format=format)
        data["figures"] = [str(file) for file in files]
        notes.append(Text(f"{figures} holds {counted(len(files), 'figure')}."))
    if output is not None:
        data["report"] = str(write_report(records, Path(output), title=title))
        notes.append(Text(f"{output} holds {counted(len(records), 'record')}."))
    return Outcome(tuple(notes), data)


def _files(source: str) -> list[Path]:
    path = Path(source)
    if not path.is_dir():
        return [path]
    records = sorted(path.glob("[!.]*.json"))  # a shelf keeps a hidden index of that ending
    if not records:
        raise FormatError(f"{source} holds no records (*.json)")
    return records
