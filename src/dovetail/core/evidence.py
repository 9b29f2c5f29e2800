"""What a benchmark or a reproduction found, with where it was measured."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

from dovetail.core.declared import text
from dovetail.core.records import Record
from dovetail.core.views import Cell, Table, refuse_mostly_empty


@dataclass(frozen=True, kw_only=True)
class Evidence(Record, kind="evidence"):
    """A claim, whether it holds, and the rows of numbers that say so.

    >>> Evidence(claim="two is more than one", holds=True, rows=({"left": 2, "right": 1},)).title
    'Two is more than one'
    """

    claim: str
    holds: bool
    rows: tuple[dict[str, Any], ...]
    command: str = ""

    @property
    def title(self) -> str:
        """The claim as a heading."""
        return self.claim[:1].upper() + self.claim[1:]

    @property
    def verdict(self) -> str:
        """Whether the claim holds, and what showed it."""
        made = f" Made by `{self.command}`." if self.command else ""
        return ("Holds." if self.holds else "Does not hold.") + made

    def _table(self) -> Table:
        columns = tuple(dict.fromkeys(name for row in self.rows for name in row))
        refuse_mostly_empty(len(self.rows), len(columns), sum(map(len, self.rows)))
        cells: tuple[tuple[Cell, ...], ...] = tuple(
            tuple(row.get(name) for name in columns) for row in self.rows
        )
        numbers = tuple(
            ".4g" if any(isinstance(row.get(name), float) for row in self.rows) else ""
            for name in columns
        )
        return Table(columns, cells, numbers)

    shows = (text("{verdict}"), _table)


def environment(**more: Any) -> dict[str, Any]:
    """The facts a figure depends on, for a record's settings.

    >>> sorted(environment(threads=1))
    ['machine', 'python', 'threads', 'torch']
    """
    import torch

    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        **more,
    }
