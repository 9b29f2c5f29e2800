"""Write a part as a file that runs without dovetail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.jobs.locate import find_part
from dovetail.jobs.outcome import Outcome
from dovetail.reuse.exporting import export as export_part

__all__ = ["export"]


def export(ref: str, to: str | Path, *, shelf: str | Path = "shelf", **settings: Any) -> Outcome:
    """Export the part in a folder or of a name on the shelf."""
    record = export_part(find_part(ref, shelf), to, **settings)
    return Outcome(record.view(), record.to_plain()["data"], (record,))
