"""What a ranking says: which part, cut where, from which epoch, how good, and how sure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dovetail.core.declared import Column, of_each, table, text
from dovetail.core.records import Record
from dovetail.core.views import Block, Cell, Figure, Series, Table, View

__all__ = ["LeftOut", "Ranked", "Ranking"]

_MOST_ROWS = 60
"""Places shown in a picture; the table has them all."""


@dataclass(frozen=True)
class Ranked:
    """One candidate: its score, what a head on it can be expected to reach, and what it cost.

    ``low`` and ``high`` bound the score, ``expected_low`` and ``expected_high`` the expected
    accuracy (or R², or label accuracy).  ``z`` is the distance from the score under shuffled
    labels, in deviations of it; ``beats_next`` the probability to be truly better than the next.
    Where ``chosen_among`` is a number, the expected accuracy is corrected for that choice, and
    ``before_choice`` is what it was.
    """

    part: str
    at: str | None
    score: float
    low: float | None
    high: float | None
    z: float | None = None
    beats_next: float | None = None
    expected: float | None = None
    expected_low: float | None = None
    expected_high: float | None = None
    width: int = 0
    weights: int = 0
    seconds: float = 0.0
    scoring_seconds: float = 0.0
    epoch: int | None = None
    chosen_among: int | None = None
    before_choice: float | None = None

    @property
    def plain(self) -> float | None:
        """The expected accuracy as it was seen, the same for all places: for comparisons."""
        return self.expected if self.before_choice is None else self.before_choice

    @property
    def name(self) -> str:
        """The part and the cut in one word."""
        return self.part if self.at is None else f"{self.part} at {self.at}"


@dataclass(frozen=True)
class LeftOut:
    """A candidate that could not be ranked, and why."""

    part: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Ranking(
    Record,
    kind="ranking",
    brief="{places!n} candidates for {task!r} by {by}: best {best.name!r}",
):
    """Candidates for a task, best first.

    >>> place = Ranked("lenet", "fc2", 0.8, 0.7, 0.9, expected=0.91)
    >>> Ranking(task="digits", by="logme", n=500, measure="accuracy", places=(place,))
    Ranking(1 candidates for 'digits' by logme: best 'lenet at fc2')
    """

    task: str
    by: str
    n: int
    measure: str
    places: tuple[Ranked, ...]
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    confidence: float = 0.9

    @property
    def best(self) -> Ranked:
        """The first place."""
        return self.places[0]

    @property
    def title(self) -> str:
        """What was ranked for what."""
        parts = {place.part for place in self.places}
        if len(parts) == 1 and len(self.places) > 1:
            return f"Layers of {parts.pop()} for {self.task}"
        epochs = len(self.places) > 1 and all(place.epoch is not None for place in self.places)
        return f"{'Epochs' if epochs else 'Parts'} for {self.task}"

    def __iter__(self) -> Iterator[Ranked]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: int) -> Ranked:
        return self.places[place]

    @property
    def summary(self) -> str:
        """The finding in a few sentences."""
        best, several = self.best, len(self.places) > 1
        words = [
            f"{len(self.places)} candidates, {self.n} labelled examples of {self.task}, "
            f"ranked by {self.by}."
            if several
            else f"One candidate, {self.n} labelled examples of {self.task}, by {self.by}."
        ]
        if best.expected is not None:
            among = best.chosen_among
            chosen = f", corrected for the choice among {among}" if among else ""
            words.append(
                f"Best: {best.name}. A linear head on it can be expected to reach "
                f"{self.measure} {best.expected:.1%} ({self.confidence:.0%} interval "
                f"{_percent(best.expected_low)} to {_percent(best.expected_high)}{chosen})."
            )
        else:
            words.append(f"Best: {best.name}.")
        if best.beats_next is not None:
            words.append(
                f"It is better than the next, {self.places[1].name}, with probability "
                f"{_probability(best.beats_next)}."
            )
        return " ".join(words)

    def _table(self) -> Table:
        with_expected = any(place.expected is not None for place in self.places)
        with_cut = any(place.at is not None for place in self.places)
        with_epoch = any(place.epoch is not None for place in self.places)
        columns: dict[str, Callable[[Ranked], Cell]] = {"part": lambda p: p.part}
        if with_cut:
            columns["cut"] = lambda p: p.at or "output"
        if with_epoch:
            columns["epoch"] = lambda p: p.epoch
        if with_expected:
            columns[f"expected {self.measure}"] = _expected
        columns[self.by] = lambda p: f"{p.score:.4g}"
        if self.by != "expected-accuracy":  # whose interval stands beside the expected accuracy
            columns["interval"] = _interval
        columns |= {
            "z": lambda p: None if p.z is None else round(p.z, 1),
            "beats next": lambda p: None if p.beats_next is None else _probability(p.beats_next),
            "width": lambda p: p.width,
            "seconds": lambda p: round(p.seconds + p.scoring_seconds, 2),
        }
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            tuple(show(place) for show in columns.values()) for place in self.places
        )
        return Table(tuple(columns), rows)

    def _bars(self) -> View:
        if len(self.places) < 2:
            return ()
        shown = self.places[:_MOST_ROWS]
        names = tuple(place.name for place in shown)
        blocks: list[Block] = []
        if all(p.expected is not None for p in shown):
            series = Series(
                f"expected {self.measure}",
                names,
                tuple(p.expected for p in shown),
                tuple(_number(p.expected_low) for p in shown),
                tuple(_number(p.expected_high) for p in shown),
            )
            title = f"Expected {self.measure} of a head, best score first"
            blocks.append(Figure("interval", title, (series,), "", self.measure, ".0%"))
        bounded = all(p.low is not None and p.high is not None for p in shown)
        series = Series(
            self.by,
            names,
            tuple(p.score for p in shown),
            tuple(_number(p.low) for p in shown) if bounded else (),
            tuple(_number(p.high) for p in shown) if bounded else (),
        )
        if self.by != "expected-accuracy":
            blocks.append(Figure("interval", f"Score: {self.by}", (series,), "", self.by))
        return tuple(blocks)

    def _curves(self) -> View:
        """For a network ranked at several points, or over several epochs: a line along them."""
        blocks: list[Block] = []
        by_part: dict[str, list[Ranked]] = {}
        for place in self.places:
            by_part.setdefault(place.part, []).append(place)
        order = self.settings.get("points", {})
        layered = {
            part: _in_order(places, order.get(part))
            for part, places in by_part.items()
            if sum(p.at is not None for p in places) >= 3
        }
        for part, places in layered.items():
            at = tuple(str(place.at) for place in places)
            blocks.append(self._line(f"Layer by layer: {part}", at, places, "cut after"))
        epochs = sorted((p for p in self.places if p.epoch is not None), key=lambda p: p.epoch or 0)
        if len({p.epoch for p in epochs}) >= 3 and len({p.epoch for p in epochs}) == len(epochs):
            along = tuple(float(p.epoch or 0) for p in epochs)
            blocks.append(self._line("Epoch by epoch", along, epochs, "epoch"))
        return tuple(blocks)

    def _line(
        self, title: str, x: tuple[float | str, ...], places: Sequence[Ranked], label: str
    ) -> Figure:
        if all(p.expected is not None for p in places):
            values = tuple(p.plain for p in places)
            low = tuple(_number(p.expected_low) for p in places)
            high = tuple(_number(p.expected_high) for p in places)
            name, spec = f"expected {self.measure}", ".0%"
        else:
            values, name, spec = tuple(p.score for p in places), self.by, ""
            low, high = (), ()
        return Figure("line", title, (Series(name, x, values, low, high),), label, name, spec)

    shows = (
        text("{summary}"),
        _table,
        _bars,
        _curves,
        of_each("notes", text("{}", "warning")),
        table("left_out", Column("not ranked", "part"), Column("why")),
    )


def _interval(place: Ranked) -> str:
    if place.low is None or place.high is None:
        return ""
    return f"{place.low:.4g} to {place.high:.4g}"


def _expected(place: Ranked) -> str | None:
    if place.expected is None:
        return None
    if place.expected_low is None or place.expected_high is None:
        return f"{place.expected:.1%}"
    half = (place.expected_high - place.expected_low) / 2
    return f"{100 * place.expected:.1f} ± {100 * half:.1f} %"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.1%}"


def _probability(value: float) -> str:
    return "> 99%" if value > 0.99 else f"{value:.0%}"


def _number(value: float | None) -> float:
    return 0.0 if value is None else value


def _in_order(places: Sequence[Ranked], points: Sequence[str] | None) -> list[Ranked]:
    """By the place of their cut along the network, where that is known."""
    if points is None:
        return list(places)
    along = {at: i for i, at in reversed(list(enumerate(points)))}
    return sorted(places, key=lambda place: along[str(place.at)])
