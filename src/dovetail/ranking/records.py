"""What rankings say: which part, cut where, from which epoch, how good, and how sure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dovetail.core.declared import Column, of_each, table, text
from dovetail.core.records import Record
from dovetail.core.views import Block, Cell, Figure, Heatmap, Series, Table, View
from dovetail.ranking.course import Course

_EXPECTED = "expected-accuracy"
"""The score that is the expected accuracy itself."""

_MOST_ROWS = 60
"""Places shown in a picture; the table has them all."""


@dataclass(frozen=True)
class _Cut:
    """A part, and where it is cut."""

    part: str
    at: str | None

    @property
    def name(self) -> str:
        """The part and the cut in one word."""
        return self.part if self.at is None else f"{self.part} at {self.at}"


@dataclass(frozen=True)
class Ranked(_Cut):
    """One candidate: its score, what a head on it can be expected to reach, and what it cost.

    ``low`` and ``high`` bound the score, ``expected_low`` and ``expected_high`` the expected
    accuracy (or R², or label accuracy).  ``z`` is the distance from the score under shuffled
    labels, in deviations of it; ``beats_next`` the probability to be truly better than the next.
    Where ``chosen_among`` is a number, the expected accuracy is corrected for that choice, and
    ``before_choice`` is what it was.  ``seen`` is the number of examples a candidate was seen with
    that fell out before it had seen all, and ``fell`` says when and why.
    """

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
    seen: int | None = None
    fell: str = ""

    @property
    def plain(self) -> float | None:
        """The expected accuracy as it was seen, the same for all places: for comparisons."""
        return self.expected if self.before_choice is None else self.before_choice

    @property
    def plain_bounds(self) -> tuple[float | None, float | None]:
        """Where that lies; where it is the score, the score's own interval is uncorrected."""
        if self.before_choice is not None and self.before_choice == self.score:
            return self.low, self.high
        return self.expected_low, self.expected_high


@dataclass(frozen=True)
class LeftOut:
    """A candidate that could not be ranked, and why."""

    part: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Ranking(
    Record, kind="ranking", brief="{places!n} candidates for {task!r} by {by}: best {best.name!r}"
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
    course: Course | None = None

    @property
    def survivors(self) -> tuple[Ranked, ...]:
        """The places that saw all examples: all of them, unless the sample grew."""
        return tuple(place for place in self.places if place.seen is None)

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
            f"ranked by {self._by}."
            if several
            else f"One candidate, {self.n} labelled examples of {self.task}, by {self._by}."
        ]
        if best.expected is not None:
            among = best.chosen_among
            chosen = (
                f"; {best.before_choice:.1%} was seen, and being chosen among {among} flatters"
                if among and best.before_choice is not None
                else ""
            )
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
        if self.course is not None:
            words.append(self.course.summary)
        return " ".join(words)

    @property
    def _by(self) -> str:
        return f"expected {self.measure}" if self.by == _EXPECTED else self.by

    def _table(self) -> Table:
        columns: dict[str, Callable[[Ranked], Cell]] = {"part": lambda p: p.part}
        if any(place.at is not None for place in self.places):
            columns["at"] = lambda p: p.at or "output"
        if any(place.epoch is not None for place in self.places):
            columns["epoch"] = lambda p: p.epoch
        if any(place.expected is not None for place in self.places):
            columns[f"expected {self.measure}"] = _expected
        if self.by != _EXPECTED:  # which is there already, with its interval
            columns[self.by] = lambda p: f"{p.score:.4g}"
            columns["interval"] = _interval
        columns |= {
            "z": lambda p: None if p.z is None else round(p.z, 1),
            "beats next": lambda p: None if p.beats_next is None else _probability(p.beats_next),
            **({} if self.course is None else {"examples": lambda p: p.seen or self.n}),
            "width": lambda p: p.width,
            "seconds": lambda p: round(p.seconds + p.scoring_seconds, 2),
        }
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            tuple(show(place) for show in columns.values()) for place in self.places
        )
        return Table(tuple(columns), rows, caption=self._caption())

    def _caption(self) -> str:
        """What the first row's number is, where the summary has another."""
        best, said = self.best, []
        if best.before_choice is not None and best.expected is not None:
            said.append(
                f"Numbers are as they were seen, so that rows compare; that of the first, chosen "
                f"among {best.chosen_among}, is worth {best.expected:.1%}."
            )
        return " ".join(said)

    def _course(self) -> View:
        fallen = {place.name: place.fell for place in self.places if place.fell}
        return () if self.course is None else self.course.view(fallen)

    def _bars(self) -> View:
        if len(self.places) < 2:
            return ()
        shown = self.survivors[:_MOST_ROWS]
        names = tuple(place.name for place in shown)
        blocks: list[Block] = []
        if all(p.expected is not None for p in shown):
            values, bounds = tuple(p.plain for p in shown), _plain_bounds(shown)
            series = Series(f"expected {self.measure}", names, values, *bounds)
            title = f"Expected {self.measure} of a head, best score first"
            blocks.append(Figure("interval", title, (series,), "", self.measure, ".0%"))
        if self.by != _EXPECTED:
            series = Series(self.by, names, tuple(p.score for p in shown), *_bounds(shown))
            blocks.append(Figure("interval", f"Score: {self.by}", (series,), "", self.by))
        return tuple(blocks)

    def _curves(self) -> View:
        """For a network ranked at several points, or over several epochs: a line along them."""
        blocks: list[Block] = []
        by_part: dict[str, list[Ranked]] = {}
        for place in self.places:
            by_part.setdefault(place.part, []).append(place)
        for part, places in by_part.items():
            if len({place.seen for place in places}) > 1:
                continue  # heads of more and of fewer labels do not make a curve
            if sum(place.at is not None for place in places) >= 3:
                places = _in_order(places, self.settings.get("points", {}).get(part))
                at = tuple(str(place.at) for place in places)
                blocks.append(self._line(f"Layer by layer: {part}", at, places, "at"))
        if epochs := _by_epoch(self.places):
            along = tuple(float(place.epoch or 0) for place in epochs)
            blocks.append(self._line("Epoch by epoch", along, epochs, "epoch"))
        return tuple(blocks)

    def _line(
        self, title: str, x: tuple[float | str, ...], places: Sequence[Ranked], label: str
    ) -> Figure:
        if all(p.expected is not None for p in places):
            name, spec = f"expected {self.measure}", ".0%"
            series = Series(name, x, tuple(p.plain for p in places), *_plain_bounds(places))
        else:
            name, spec = self.by, ""
            series = Series(name, x, tuple(p.score for p in places))
        return Figure("line", title, (series,), label, name, spec)

    shows = (
        text("{summary}"),
        _table,
        _course,
        _bars,
        _curves,
        of_each("notes", text("{}", "warning")),
        table("left_out", Column("not ranked", "part"), Column("why")),
    )


@dataclass(frozen=True)
class Served(_Cut):
    """A candidate over all tasks.

    ``values`` are what a head on it is expected to reach on each task (or its score, where nothing
    can be expected, or the score is of the whole network); ``behind`` is how far these lie behind
    the best candidate of each task, on average: the price of taking one for all.
    """

    epoch: int | None
    values: tuple[float, ...]
    mean: float
    behind: float


@dataclass(frozen=True, kw_only=True)
class RankingOver(Record, kind="ranking-over", title="One part for {tasks!l}"):
    """Candidates by what they give on average over several tasks, best first.

    >>> both = Served("lenet", None, 3, (0.9, 0.8), 0.85, 0.0)
    >>> RankingOver(tasks=("a", "b"), by="logme", measure="accuracy", places=(both,)).best.epoch
    3
    """

    tasks: tuple[str, ...]
    by: str
    measure: str
    places: tuple[Served, ...]
    rankings: tuple[Ranking, ...] = ()

    @property
    def best(self) -> Served:
        """The candidate that serves all tasks best."""
        return self.places[0]

    @property
    def summary(self) -> str:
        """The finding in a sentence."""
        best, over = self.best, f"Over {len(self.tasks)} tasks {self.best.name} is best"
        if not self.measure:
            return f"{over} by the mean of {self.by}."
        own = [f"{task}: {r.best.name}" for task, r in zip(self.tasks, self.rankings, strict=True)]
        return (
            f"{over}: {self.measure} {best.mean:.1%} on average, {best.behind:.1%} behind the best "
            f"of each task alone ({'; '.join(own)})."
        )

    def _table(self) -> Table:
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (place.name, place.mean, place.behind, *place.values) for place in self.places
        )
        columns = ("candidate", "mean", "behind the best", *self.tasks)
        spec = ".1%" if self.measure else ".4g"
        return Table(columns, rows, ("", *(spec,) * (len(columns) - 1)))

    def _drawn(self) -> Block | None:
        """Curves along the epochs, or a map of candidates and tasks."""
        if epochs := _by_epoch(self.places):
            along = tuple(float(place.epoch or 0) for place in epochs)
            values = [*zip(*(place.values for place in epochs), strict=True)]
            values.append(tuple(place.mean for place in epochs))
            names = (*self.tasks, "mean")
            lines = tuple(Series(n, along, own) for n, own in zip(names, values, strict=True))
            words = f"expected {self.measure}" if self.measure else self.by
            spec = ".1%" if self.measure else ".4g"
            return Figure("line", "Epoch by epoch", lines, "epoch", words, spec)
        if len(self.places) > 40:
            return None
        return Heatmap(
            f"Expected {self.measure}" if self.measure else f"Score: {self.by}",
            tuple(place.name for place in self.places),
            self.tasks,
            tuple(place.values for place in self.places),
            "candidate",
            "task",
            ".0%" if self.measure else ".3g",
        )

    shows = (text("{summary}"), _table, _drawn)


def _interval(place: Ranked) -> str:
    if place.low is None or place.high is None:
        return ""
    return f"{place.low:.4g} to {place.high:.4g}"


def _expected(place: Ranked) -> str | None:
    value, (low, high) = place.plain, place.plain_bounds
    if value is None:
        return None
    if low is None or high is None:
        return f"{value:.1%}"
    return f"{100 * value:.1f} ± {50 * (high - low):.1f} %"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.1%}"


def _probability(value: float) -> str:
    return "> 99%" if value > 0.99 else f"{value:.0%}"


_Ends = tuple[tuple[float, ...], tuple[float, ...]]


def _bounds(places: Sequence[Ranked]) -> _Ends:
    """The low and the high ends of all scores."""
    return _ends([(place.low, place.high) for place in places])


def _plain_bounds(places: Sequence[Ranked]) -> _Ends:
    """The same of what was expected before the choice."""
    return _ends([place.plain_bounds for place in places])


def _ends(bounds: Sequence[tuple[float | None, float | None]]) -> _Ends:
    """Low and high ends; none where a place has none."""
    low = tuple(low for low, _ in bounds if low is not None)
    high = tuple(high for _, high in bounds if high is not None)
    return (low, high) if len(low) == len(high) == len(bounds) else ((), ())


P = TypeVar("P", Ranked, Served)


def _by_epoch(places: Sequence[P]) -> list[P]:
    """Candidates in the order of their epochs, if three or more differ in nothing else."""
    known = sorted((p for p in places if p.epoch is not None), key=lambda p: p.epoch or 0)
    return known if len(known) >= 3 and len({p.epoch for p in known}) == len(known) else []


def _in_order(places: Sequence[Ranked], points: Sequence[str] | None) -> list[Ranked]:
    """By the place of their cut along the network, where that is known."""
    if points is None:
        return list(places)
    along = {at: i for i, at in reversed(list(enumerate(points)))}
    return sorted(places, key=lambda place: along[str(place.at)])
