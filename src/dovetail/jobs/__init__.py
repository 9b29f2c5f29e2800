"""One function a command: shelf to verb to record to shelf.  Every door calls these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dovetail.core.records import Record
from dovetail.core.views import View

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """What a job hands to a door: a view for people, data for machines, the records behind them.

    >>> Outcome(view=(), data={"ref": "lenet@1"}).data["ref"]
    'lenet@1'
    """

    view: View
    data: dict[str, Any]
    records: tuple[Record, ...] = field(default=())
    ok: bool = True
