"""What recombining found: accuracies of every front with every head, and what to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeVar

from dovetail.core.declared import Column, table, text, when
from dovetail.core.records import Record
from dovetail.core.views import Cell, Heatmap, Table, Text, refuse_mostly_empty
from dovetail.core.words import counted
from dovetail.parts.norms import NOTHING_STORED

T = TypeVar("T")


@dataclass(frozen=True)
class Pair:
    """One front with one head, on the front's images of the classes that both know.

    ``accuracy`` (choosing among the common classes), ``unmasked`` (among all of the head's) and
    ``own`` (the front's own head on the same images, among the common classes) each hold a number
    for every policy of norms.  ``why_not`` is what the contract has against the join; ``obstacle``
    says why there is nothing to measure, where that is so.
    """

    front: str
    head: str
    why_not: tuple[str, ...]
    classes: tuple[str, ...] = ()
    head_classes: int = 0
    n: int = 0
    accuracy: dict[str, float] = field(default_factory=dict)
    unmasked: dict[str, float] = field(default_factory=dict)
    own: dict[str, float] = field(default_factory=dict)
    obstacle: str | None = None

    @property
    def fits(self) -> bool:
        """What the contract says."""
        return not self.why_not

    @property
    def chance(self) -> float | None:
        """The accuracy of a blind choice among the common classes."""
        return 1 / len(self.classes) if self.classes else None

    @property
    def unmasked_chance(self) -> float | None:
        """The accuracy of a blind choice among all classes of the head."""
        return 1 / self.head_classes if self.head_classes else None


@dataclass(frozen=True)
class Alike:
    """How strongly the channels of two fronts correlate on the same images, in the mean.

    ``plain`` pairs channel i with channel i; ``permuted`` pairs channels so that the sum of their
    correlations is largest.
    """

    one: str
    other: str
    plain: float
    permuted: float


@dataclass(frozen=True, kw_only=True)
class Recombination(Record, kind="recombination", title="Every front with every head"):
    """Every front with every head.

    The tables ``accuracy``, ``unmasked``, ``own``, ``chance``, ``common`` and ``fits`` are read as
    ``accuracy[front][head]``; a pair that could not be measured has ``None``.  ``own_heads`` names
    each front's own head.

    >>> ab = Pair("a", "b", (), ("cat", "dog"), 3, 40, {"batch": 0.75}, {"batch": 0.5})
    >>> ba = Pair("b", "a", (), ("cat", "dog"), 2, 40, {"batch": 0.65}, {"batch": 0.65})
    >>> found = Recombination(norms=("batch",), pairs=(ab, ba), own_heads={"a": "a", "b": "b"})
    >>> found.accuracy["a"]["b"], found.chance["a"]["b"], found.mean_off_diagonal
    (0.75, 0.5, 0.7)
    """

    norms: tuple[str, ...]
    pairs: tuple[Pair, ...]
    own_heads: dict[str, str]
    alike: tuple[Alike, ...] = ()

    @property
    def norms_why(self) -> str | None:
        """Why these statistics, where nobody had asked for any and it makes a difference."""
        why = self.settings.get("norms_why")
        return None if why == NOTHING_STORED else why

    @property
    def accuracy(self) -> dict[str, dict[str, float | None]]:
        """Choosing among the common classes, with the first policy of norms."""
        return self.accuracy_with(self.norms[0])

    def accuracy_with(self, norms: str) -> dict[str, dict[str, float | None]]:
        """Choosing among the common classes, with one policy of norms."""
        return self._table(lambda pair: pair.accuracy.get(norms))

    @property
    def unmasked(self) -> dict[str, dict[str, float | None]]:
        """Choosing among all classes of the head, with the first policy of norms."""
        return self._table(lambda pair: pair.unmasked.get(self.norms[0]))

    @property
    def own(self) -> dict[str, dict[str, float | None]]:
        """The front's own head on the same images and classes: what the pair is up against."""
        return self._table(lambda pair: pair.own.get(self.norms[0]))

    @property
    def chance(self) -> dict[str, dict[str, float | None]]:
        """A blind choice among the common classes."""
        return self._table(lambda pair: pair.chance)

    @property
    def common(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """The classes that the front's task and the head both know."""
        return self._table(lambda pair: pair.classes)

    @property
    def fits(self) -> dict[str, dict[str, bool]]:
        """Whether the contract allows the join."""
        return self._table(lambda pair: pair.fits)

    @property
    def recombined(self) -> tuple[Pair, ...]:
        """The pairs of a front and a head that is not its own."""
        return tuple(p for p in self.pairs if self.own_heads.get(p.front) != p.head)

    @property
    def mean_off_diagonal(self) -> float | None:
        """The recombination accuracy: the mean over the :attr:`recombined` pairs, all directions.

        Pairs that could not be measured do not count.
        """
        return _mean(pair.accuracy.get(self.norms[0]) for pair in self.recombined)

    @property
    def upper_bound(self) -> float | None:
        """The mean accuracy of the fronts' own heads on the same images, if each has one."""
        own = [pair.own.get(self.norms[0]) for pair in self.recombined if pair.accuracy]
        return None if None in own else _mean(own)

    def _table(self, value: Callable[[Pair], T]) -> dict[str, dict[str, T]]:
        by_front: dict[str, dict[str, T]] = {}
        for pair in self.pairs:
            by_front.setdefault(pair.front, {})[pair.head] = value(pair)
        return by_front

    @property
    def summary(self) -> str:
        """The finding in a few sentences, from the numbers."""
        return " ".join(sentence for sentence in (self._recombined(), self._contract()) if sentence)

    def __repr__(self) -> str:
        fronts = counted(len({pair.front for pair in self.pairs}), "front")
        heads = counted(len({pair.head for pair in self.pairs}), "head")
        mean = self.mean_off_diagonal
        said = "" if mean is None else f": {mean:.1%} off the diagonal"
        return f"Recombination({fronts} × {heads}{said})"

    def _heatmap(self) -> Heatmap:
        table = self.accuracy
        heads = tuple(dict.fromkeys(pair.head for pair in self.pairs))
        refuse_mostly_empty(len(table), len(heads), len(self.pairs))
        cells = tuple(tuple(map(row.get, heads)) for row in table.values())
        named = ("Accuracy after joining", tuple(table), heads, cells, "front", "head")
        return Heatmap(*named, ".0%", 0.0, 1.0)

    def _pairs(self) -> Table:
        first, *rest = self.norms
        known = sum(len(pair.accuracy) for pair in self.pairs)
        refuse_mostly_empty(len(self.pairs), len(self.norms), known)
        shares = ("accuracy", *(f"{norms} norms" for norms in rest))
        shares = (*shares, "chance", "own head", "all classes")
        rows: list[tuple[Cell, ...]] = []
        for pair in self.pairs:
            accuracies = [pair.accuracy.get(norms) for norms in self.norms]
            beside = (pair.chance, pair.own.get(first), pair.unmasked.get(first))
            rows.append((f"{pair.front} + {pair.head}", *accuracies, *beside, pair.n, _said(pair)))
        return Table(
            ("join", *shares, "images", "contract"),
            tuple(rows),
            ("", *(".1%",) * len(shares), "", ""),
            "Measured by force on the front's images of the classes both know, choosing among "
            f"those; norms: {first}",
        )

    def _recombined(self) -> str:
        mean, own = self.mean_off_diagonal, self.upper_bound
        if mean is None:
            return ""
        measured = [pair for pair in self.recombined if self.norms[0] in pair.accuracy]
        beside = "" if own is None else f", {own:.1%} with the fronts' own heads"
        return (
            f"Recombination accuracy with {self.norms[0]} norms: {mean:.1%} "
            f"({counted(len(measured), 'pair')}; chance {_chance(measured):.1%}{beside})."
        )

    def _contract(self) -> str:
        measured = [pair for pair in self.pairs if self.norms[0] in pair.accuracy]
        fit = [pair for pair in measured if pair.fits]
        misfit = [pair for pair in measured if not pair.fits]
        words = []
        if fit:
            least = min(pair.accuracy[self.norms[0]] for pair in fit)
            allowed = f"The {counted(len(fit), 'pair')} whose contract allows the join"
            words.append(f"{allowed} score{'s' * (len(fit) == 1)} {least:.1%} or more.")
        if misfit and misfit == [p for p in self.recombined if self.norms[0] in p.accuracy]:
            words.append(f"The {counted(len(misfit), 'other')} the contract refused beforehand.")
        elif misfit:
            mean = fmean(pair.accuracy[self.norms[0]] for pair in misfit)
            refused = f"The {counted(len(misfit), 'pair')} it refused beforehand"
            average = f"average{'s' * (len(misfit) == 1)} {mean:.1%}"
            words.append(f"{refused} {average} (chance {_chance(misfit):.1%}).")
        if unmeasured := len(self.pairs) - len(measured):
            words.append(f"{counted(unmeasured, 'pair')} could not be measured.")
        return " ".join(words)

    shows = (
        _heatmap,
        _pairs,
        table(
            "alike",
            Column("front", "one"),
            Column("front", "other"),
            Column("channel by channel", "plain", ".2f"),
            Column("best permutation", "permuted", ".2f"),
            caption="Mean correlation of the fronts' channels on the same images",
        ),
        lambda found: Text(found.summary),
        when(
            "norms_why",
            text("Batch norms: {norms[0]} statistics, chosen because {norms_why}.", "note"),
        ),
    )


def _said(pair: Pair) -> str:
    """What is against the join, in a word each: names of spaces are for the data, not the eye."""
    if pair.obstacle is not None:
        return pair.obstacle
    differ = dict.fromkeys(reason.partition(": ")[2] or reason for reason in pair.why_not)
    return "fits" if pair.fits else ", ".join(f"other {each.split()[0]}" for each in differ)


def _chance(pairs: Iterable[Pair]) -> float:
    return fmean(1 / len(pair.classes) for pair in pairs)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
