"""Write a part as a file that runs without dovetail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.jobs import Outcome
from dovetail.jobs.frame import Frame, job
from dovetail.reuse.exporting import export as export_part


@job
def export(frame: Frame, /, ref: str, to: str | Path, **settings: Any) -> Outcome:
    """Export the part in a folder or of a name on the shelf."""
    record = export_part(frame.part(ref), to, **settings)
    return Outcome(record.view(), record.to_plain()["data"], (record,))
