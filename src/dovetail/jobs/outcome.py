"""What a job hands to a door."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dovetail.core.records import Record
from dovetail.core.views import View

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """Something to show to people, the same as data for machines, and the records behind it.

    >>> Outcome(view=(), data={"ref": "lenet@1"}).data["ref"]
    'lenet@1'
    """

    view: View
    data: dict[str, Any]
    records: tuple[Record, ...] = field(default=())
    ok: bool = True
