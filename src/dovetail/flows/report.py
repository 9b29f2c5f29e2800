"""Make a page of records and of the shelf."""

from __future__ import annotations

from pathlib import Path

from dovetail.core.errors import FormatError
from dovetail.core.records import Record, load_record
from dovetail.core.views import Text
from dovetail.flows.outcome import Outcome
from dovetail.report.page import write_report
from dovetail.shelf.store import Shelf

__all__ = ["report"]


def report(
    sources: list[str],
    *,
    output: str | Path = "report.html",
    title: str = "dovetail report",
    shelf: str | Path | None = None,
) -> Outcome:
    """A self-contained page of record files (or folders of them), and of a shelf if given."""
    records: list[Record] = [load_record(path) for source in sources for path in _files(source)]
    if shelf is not None:
        records.append(Shelf(shelf, create=False).ls())
    if not records:
        raise FormatError("nothing to report: give record files, a folder of them, or --shelf")
    path = write_report(records, Path(output), title=title)
    said = Text(f"{path} holds {len(records)} record{'' if len(records) == 1 else 's'}.")
    return Outcome((said,), {"report": str(path), "records": [r.title for r in records]})


def _files(source: str) -> list[Path]:
    path = Path(source)
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.json"))
    if not found:
        raise FormatError(f"{source} holds no records (*.json)")
    return found
