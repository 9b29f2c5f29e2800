"""How a ranking on a growing sample went: its looks, and what it spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.core.views import Block, Figure, Series, Table, Text, View
from dovetail.core.words import counted


@dataclass(frozen=True)
class Look:
    """One look at the candidates left: how many examples, candidates, how many fell.

    ``passes`` are all examples run so far, over all networks.
    """

    n: int
    candidates: int
    fell: int
    passes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Course:
    """How a ranking on a growing sample went: its looks, and what it spent.

    A pass is one example through one network, whatever the number of its points.
    ``least_seconds`` and ``most_seconds`` are what was expected when it began.
    """

    looks: tuple[Look, ...]
    survivors: int
    passes: int
    passes_in_full: int
    seconds: float
    least_seconds: float
    most_seconds: float
    stopped: bool = False

    @property
    def saved(self) -> float:
        """The share of the passes that a full ranking would have made, and this did not.

        >>> Course(
        ...     looks=(), survivors=1, passes=200, passes_in_full=1000,
        ...     seconds=1.0, least_seconds=0.5, most_seconds=2.0,
        ... ).saved
        0.8
        """
        return 1 - self.passes / self.passes_in_full if self.passes_in_full else 0.0

    @property
    def estimate(self) -> str:
        """How long it was expected to take when it began."""
        low, high = lasting(self.least_seconds), lasting(self.most_seconds)
        return f"{low} to {high}" if low != high else low

    @property
    def summary(self) -> str:
        """What was spent, in a sentence or two."""
        fewer = self.passes_in_full / max(self.passes, 1)
        words = (
            f"{self.survivors} left after {counted(len(self.looks), 'look')}; {self.passes:,} "
            f"passes instead of {self.passes_in_full:,} ({fewer:.1f} times fewer), in "
            f"{lasting(self.seconds)}."
        )
        return f"Stopped before the end: {words}" if self.stopped else words

    def view(self, fallen: Mapping[str, str]) -> View:
        """How many were left at each look, and who fell out, when and why."""
        blocks: list[Block] = [
            Text(f"Running the networks was to take {self.estimate}.", style="note")
        ]
        if fallen:
            rows = tuple((name, why.removeprefix("fell out ")) for name, why in fallen.items())
            blocks.append(Table(("candidate", "fell out"), rows))
        if len(self.looks) > 1:
            sizes = tuple(look.n for look in self.looks)
            remaining = Series("candidates", sizes, tuple(look.candidates for look in self.looks))
            title = "Candidates that were looked at"
            blocks.append(Figure("line", title, (remaining,), "examples", "candidates", log_x=True))
        return tuple(blocks)


def lasting(seconds: float) -> str:
    """A length of time in words.

    >>> lasting(0.04), lasting(42.4), lasting(300), lasting(10_000)
    ('0.04 s', '42 s', '5 min', '2.8 h')
    """
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
