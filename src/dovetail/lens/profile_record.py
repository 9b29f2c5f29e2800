"""What a profile of a network says: measures at every point, and how they changed over epochs."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from dovetail.core.declared import Column, figure, of_each, table, text
from dovetail.core.errors import SettingsError, nearest
from dovetail.core.records import Record
from dovetail.core.views import Block, Figure, Series, View

MEASURES = {
    "least_squares_distance": "Least-squares distance",
    "k_redundancy": "k-redundancy",
    "pure_entropy": "Pure entropy, bits",
    "selection_entropy": "Selection entropy, bits",
    "class_scatter": "Class scatter",
    "dead": "Dead features",
    "stable_rank": "Stable rank",
    "weight_entropy": "Weight entropy, bits",
}
"""Fields of a :class:`PointProfile` that are drawn along depth and epochs, and what they are."""

_SMALL = 0.02
"""A change of the k-redundancy that is not worth a word."""

_FITS_ANY = 0.1
"""Where chance leaves a smaller share of the labels than this, what is left says nothing."""


@dataclass(frozen=True, kw_only=True)
class PointProfile:
    """What the features ``at`` one point say of the classes, and what the weights before it are.

    ``by_chance`` is the least-squares distance that so many features leave on average of labels
    they know nothing of, ``rank`` how many directions they have.  Of a map that does not exist,
    since examples of two classes coincide, ``pure_entropy`` and ``cells`` are nothing, and
    ``coincide`` says how many.  ``selection_entropy`` is the mean over features that select
    anything.  ``stable_rank`` and ``weight_entropy`` are of the matrices since the point before:
    the mean over them, and over their values.
    """

    at: str
    width: int
    rank: int
    least_squares_distance: float
    by_chance: float
    k_redundancy: float
    pure_entropy: float | None = None
    cells: int | None = None
    coincide: int = 0
    selection_entropy: float | None = None
    class_scatter: float
    dead: float
    stable_rank: float | None = None
    weight_entropy: float | None = None


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    r"""A weight matrix by name, the point it lies before, its shape as out × in, and its measures.

    ``stable_rank`` is :math:`\lVert W\rVert_F^2 / \lVert W\rVert_2^2`, ``entropy`` in bits.
    """

    name: str
    at: str
    shape: tuple[int, int]
    stable_rank: float
    entropy: float


@dataclass(frozen=True, kw_only=True)
class Profile(
    Record,
    kind="profile",
    title="What the layers of {part} learned of {task}",
    brief="{part} on {task}: {points!n} points, n={n}",
):
    """Measures of the features at the points of a network, from the input up.

    ``nothing`` is the least-squares distance of features that say nothing, ``label_entropy`` that
    of the classes in bits (the least that a pure map has), ``chance_redundancy`` the k-redundancy
    of features that say nothing, ``planes`` some examples of some points along their first two
    principal components: ``(x, y, class)``.

    >>> point = PointProfile(
    ...     at="conv1", width=6, rank=6, least_squares_distance=0.5, by_chance=0.8,
    ...     k_redundancy=0.25, class_scatter=0.3, dead=0.0,
    ... )
    >>> found = Profile(
    ...     part="lenet5", task="digits", split="train", n=500, k=10, classes=("0", "1"),
    ...     label_entropy=1.0, nothing=0.5, chance_redundancy=0.001, points=(point,),
    ... )
    >>> found["conv1"].k_redundancy
    0.25
    """

    part: str
    task: str
    split: str
    n: int
    k: int
    classes: tuple[str, ...]
    label_entropy: float
    nothing: float
    chance_redundancy: float
    points: tuple[PointProfile, ...]
    weights: tuple[LayerWeights, ...] = ()
    planes: dict[str, tuple[tuple[float, float, int], ...]] | None = None
    epoch: int | None = None
    feature_seconds: float = 0.0
    measure_seconds: float = 0.0

    def __getitem__(self, at: str) -> PointProfile:
        """What was measured at a point."""
        names = [point.at for point in self.points]
        if at not in names:
            raise SettingsError(f"no point {at!r} was measured{nearest(at, names)}")
        return self.points[names.index(at)]

    @property
    def answer(self) -> str:
        """What the layers did to the classes, in a sentence or two."""
        if len(self.classes) < 2:
            return "All examples are of one class: there is nothing to separate."
        if not self.points:
            return "No point was measured."
        first, last = self.points[0], self.points[-1]
        best = max(self.points, key=lambda point: point.k_redundancy)
        if len(self.points) == 1:
            return f"{self._told(first)}."
        change = last.k_redundancy - first.k_redundancy
        how = "The layers hardly change how separate the classes are"
        if abs(change) > _SMALL:
            how = f"The layers {'separate' if change > 0 else 'mix'} the classes"
        said = f"{how}: {self._told(first, last)}."
        steps = [
            (after.k_redundancy - before.k_redundancy, before.at, after.at)
            for before, after in zip(self.points, self.points[1:], strict=False)
        ]
        gain, before, after = max(steps)
        if gain > _SMALL and len(steps) > 1:
            said += f" Most is gained between {before} and {after}."
        if best.k_redundancy - last.k_redundancy > _SMALL and best is not first:
            said += f" It is most at {best.at} ({best.k_redundancy:.0%}), and less behind it."
        return said

    def _told(self, *points: PointProfile) -> str:
        """In words: the redundancy at some points, and the distance beside its chance."""
        shares = ", ".join(f"{point.k_redundancy:.0%} at {point.at}" for point in points)
        said = f"examples whose {self.k} nearest neighbours are all of their class are {shares}"
        telling = [p for p in points if not self._fits_any(p)]
        silent = [p.at for p in points if self._fits_any(p)]
        if telling:
            left = ", ".join(
                f"{p.least_squares_distance:.3f} at {p.at} ({p.by_chance:.3f} by chance)"
                for p in telling
            )
            said += f"; of the labels' {self.nothing:.3f} a linear map leaves {left}"
        if silent:
            said += (
                f"; at {' and '.join(silent)} it would fit any labels of so few examples, "
                "and tells nothing"
                if telling
                else f"; a linear map would fit any labels of so few examples at "
                f"{' and '.join(silent)}, and tells nothing"
            )
        return said

    def _fits_any(self, point: PointProfile) -> bool:
        """Whether a linear map of so many features leaves next to nothing of any labels."""
        return point.by_chance < _FITS_ANY * self.nothing

    @property
    def cautions(self) -> tuple[str, ...]:
        """What must not be read into the numbers."""
        wide = [p.at for p in self.points if self.nothing > 0 and p.by_chance < self.nothing / 2]
        lost = [p.at for p in self.points if p.coincide]
        said = []
        if wide:
            said.append(
                f"At {', '.join(wide)} there are so many features for {self.n} examples that any "
                "labels would leave less than half: read the least-squares distance beside its "
                "chance, or give more examples."
            )
        if lost:
            said.append(
                f"At {', '.join(lost)} examples of two classes coincide: no map there is pure."
            )
        return tuple(said)

    def _planes(self) -> View:
        return tuple(
            Figure(
                "scatter",
                f"Classes at {at}",
                tuple(
                    Series(
                        name,
                        tuple(x for x, _, c in rows if c == code),
                        tuple(y for _, y, c in rows if c == code),
                    )
                    for code, name in enumerate(self.classes)
                    if any(c == code for *_, c in rows)
                ),
                "first principal component",
                "second",
            )
            for at, rows in (self.planes or {}).items()
        )

    shows = (
        text("{answer}"),
        text(
            "{n} examples of the {split} split, k = {k}. Features that say nothing would leave a "
            "least-squares distance of {nothing:.3g} and a k-redundancy of "
            "{chance_redundancy:.2g}; a pure map has {label_entropy:.3g} bits at least.",
            "note",
        ),
        of_each("cautions", text("{}", "warning")),
        table(
            "points",
            Column("at"),
            Column("features", "width"),
            Column("k-redundancy", "k_redundancy", ".1%"),
            Column("least-squares distance", "least_squares_distance", ".3f"),
            Column("by chance", "by_chance", ".3f"),
            Column("pure entropy, bits", "pure_entropy", ".2f"),
            Column("cells", "cells"),
            Column("selection entropy, bits", "selection_entropy", ".2f"),
            Column("class scatter", "class_scatter", ".3f"),
            Column("dead features", "dead", ".1%"),
            Column("stable rank of weights", "stable_rank", ".2f"),
            Column("entropy of weights, bits", "weight_entropy", ".2f"),
        ),
        figure(
            "line",
            "Separation by depth",
            "points",
            "at",
            {"k-redundancy": "k_redundancy", "class scatter": "class_scatter"},
            "from the input up",
            "share",
            ".0%",
        ),
        figure(
            "line",
            "What a linear map leaves",
            "points",
            "at",
            {"least-squares distance": "least_squares_distance", "by chance": "by_chance"},
            "from the input up",
        ),
        figure(
            "line",
            "Entropies by depth",
            "points",
            "at",
            {"pure entropy": "pure_entropy", "selection entropy": "selection_entropy"},
            "from the input up",
            "bits",
        ),
        figure(
            "line",
            "Weights by depth",
            "weights",
            "name",
            {"stable rank": "stable_rank", "entropy, bits": "entropy"},
            "from the input up",
        ),
        _planes,
    )


@dataclass(frozen=True, kw_only=True)
class ProfileOver(
    Record,
    kind="profile-over",
    title="What the layers learned of {task}, over {profiles!n} networks",
    brief="{names!n} networks on {task}",
):
    """Profiles of several networks on the same examples, such as the epochs of one training.

    ``names`` are theirs, in order; where each has an epoch, figures run along it.
    """

    task: str
    names: tuple[str, ...]
    profiles: tuple[Profile, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.profiles):
            raise ValueError("every profile has a name")

    def __getitem__(self, name: str) -> Profile:
        """The profile of one network."""
        if name not in self.names:
            raise SettingsError(f"no network {name!r} was looked at{nearest(name, self.names)}")
        return self.profiles[self.names.index(name)]

    @property
    def along(self) -> tuple[float | str, ...]:
        """The epochs, or the names where there are none."""
        epochs = [profile.epoch for profile in self.profiles]
        known = tuple(epoch for epoch in epochs if epoch is not None)
        return known if len(known) == len(epochs) else self.names

    def curve(self, at: str, measure: str) -> tuple[float | None, ...]:
        """A measure at a point, network by network; nothing where one has no such point."""
        rows = ({p.at: p for p in profile.points}.get(at) for profile in self.profiles)
        get = attrgetter(measure)
        return tuple(None if row is None else get(row) for row in rows)

    @property
    def points(self) -> tuple[str, ...]:
        """All points, in the order of the networks."""
        return tuple(dict.fromkeys(p.at for profile in self.profiles for p in profile.points))

    @property
    def answer(self) -> str:
        """How the last differs from the first, in a sentence."""
        if not self.profiles or not self.profiles[-1].points:
            return "Nothing was measured."
        first, last = self.profiles[0], self.profiles[-1]
        before = {p.at: p for p in first.points}
        moved = [
            (p.k_redundancy - before[p.at].k_redundancy, p) for p in last.points if p.at in before
        ]
        if not moved:
            return f"{last.answer}"
        most, point = max(moved, key=lambda pair: abs(pair[0]))
        start = before[point.at].k_redundancy
        if abs(most) <= _SMALL:
            return (
                f"From {self.names[0]} to {self.names[-1]} hardly anything changed. {last.answer}"
            )
        return (
            f"From {self.names[0]} to {self.names[-1]} most changed at {point.at}, where the "
            f"k-redundancy went from {start:.0%} to {point.k_redundancy:.0%}. {last.answer}"
        )

    def _figures(self) -> tuple[Block, ...]:
        along = self.along
        label = "epoch" if along != self.names else ""
        figures = []
        for measure, words in MEASURES.items():
            curves = {at: self.curve(at, measure) for at in self.points}
            series = tuple(
                Series(at, along, curve)
                for at, curve in curves.items()
                if any(value is not None for value in curve)
            )
            if series:
                figures.append(Figure("line", words, series, label))
        return tuple(figures)

    shows = (text("{answer}"), _figures)
