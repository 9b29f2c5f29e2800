"""Records of input space: decision regions, a field of gradients, discriminative intervals."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.core.declared import Column, table, text
from dovetail.core.records import Record
from dovetail.core.views import Figure, Plane, Series


@dataclass(frozen=True, kw_only=True)
class DecisionRegions(
    Record,
    kind="decision-regions",
    title="Where {part} sees which class of {task}",
    brief="{part} on {task}",
):
    """The class, as its place in ``classes``, at every node of a grid; the first row is the lowest.

    ``areas`` are the shares of the classes, ``points`` examples as ``(x, y, class)``.

    >>> DecisionRegions(
    ...     part="mlp", task="moons", classes=("a", "b"), x=(0.0, 1.0), y=(0.0, 1.0),
    ...     values=((0, 1), (0, 1)), points=(), areas=(0.5, 0.5), accuracy=1.0, n=100,
    ... ).answer
    'It is right for 100.0% of 100 examples; a takes 50% of the plane, b 50%.'
    """

    part: str
    task: str
    classes: tuple[str, ...]
    x: tuple[float, float]
    y: tuple[float, float]
    values: tuple[tuple[int, ...], ...]
    points: tuple[tuple[float, float, int], ...]
    areas: tuple[float, ...]
    accuracy: float
    n: int

    @property
    def answer(self) -> str:
        """How often it is right, and how much of the plane each class has."""
        pairs = [f"{c} {a:.0%}" for c, a in zip(self.classes, self.areas, strict=True)]
        head, *rest = pairs
        name, _, share = head.rpartition(" ")
        areas = ", ".join([f"{name} takes {share} of the plane", *rest])
        return f"It is right for {self.accuracy:.1%} of {self.n} examples; {areas}."

    def _plane(self) -> Plane:
        return Plane(
            self.title,
            self.x,
            self.y,
            self.values,
            "first input",
            "second input",
            classes=self.classes,
            points=self.points,
        )

    shows = (text("{answer}"), _plane)


@dataclass(frozen=True, kw_only=True)
class GradientField(
    Record,
    kind="gradient-field",
    title="Gradients of {part} in the inputs of {task}",
    brief="{part} on {task}: {arrows!n} examples",
):
    """Gradients of the examples' own loss as ``(x, y, dx, dy)``, and the examples' ``labels``.

    ``opposed`` is the share of examples whose gradient stands at more than 120 degrees to that of
    the nearest example.
    """

    part: str
    task: str
    classes: tuple[str, ...]
    x: tuple[float, float]
    y: tuple[float, float]
    arrows: tuple[tuple[float, float, float, float], ...]
    labels: tuple[int, ...]
    opposed: float
    mean_length: float
    loss: float

    def __post_init__(self) -> None:
        if len(self.arrows) != len(self.labels):
            raise ValueError("every arrow starts at an example with a label")

    def _plane(self) -> Plane:
        points = tuple((x, y, c) for (x, y, *_), c in zip(self.arrows, self.labels, strict=True))
        flat = ((None, None), (None, None))
        return Plane(
            self.title,
            self.x,
            self.y,
            flat,
            "first input",
            "second input",
            classes=self.classes,
            arrows=self.arrows,
            points=points,
        )

    shows = (
        text(
            "Of {arrows!n} examples {opposed:.0%} have a gradient that stands against that of "
            "their nearest neighbour. Gradients are {mean_length:.3g} long on average, "
            "at a loss of {loss:.3g}."
        ),
        _plane,
    )


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Values from ``low`` to ``high`` of a feature, and how certain classes are among them.

    ``share`` of the examples lie there, ``entropy`` is that of their classes and ``gain`` their
    share times what it is less than of all, in bits; ``selected`` is the entropy of the classes
    where the feature is positive, of which there may be none.
    """

    unit: int
    low: float
    high: float
    share: float
    entropy: float
    gain: float
    selected: float | None = None


@dataclass(frozen=True, kw_only=True)
class DiscriminativeIntervals(
    Record,
    kind="discriminative-intervals",
    title="Discriminative intervals of {part} at {at}",
    brief="{intervals!n} features at {at}",
):
    """The most discriminative interval of each feature at a point; ``line`` is the best's values.

    ``label_entropy`` is that of all examples' classes, in bits.
    """

    part: str
    task: str
    at: str
    classes: tuple[str, ...]
    intervals: tuple[Interval, ...]
    label_entropy: float
    line: tuple[tuple[float, int], ...]
    n: int

    @property
    def best(self) -> Interval:
        """That of the largest gain."""
        return max(self.intervals, key=lambda interval: interval.gain)

    @property
    def first(self) -> tuple[Interval, ...]:
        """The twenty with the largest gain, largest first."""
        return tuple(sorted(self.intervals, key=lambda interval: -interval.gain)[:20])

    def _line(self) -> Figure:
        series = tuple(
            Series(
                name,
                tuple(z for z, c in self.line if c == code),
                tuple(float(c) for _, c in self.line if c == code),
            )
            for code, name in enumerate(self.classes)
            if any(c == code for _, c in self.line)
        )
        return Figure(
            "scatter", f"Values of feature {self.best.unit} by class", series, "value", "class"
        )

    shows = (
        text(
            "Feature {best.unit} at {at} is the most discriminative: {best.share:.0%} of the {n} "
            "examples lie between {best.low:.3g} and {best.high:.3g}, where classes have "
            "{best.entropy:.2f} bits instead of {label_entropy:.2f}."
        ),
        table(
            "first",
            Column("feature", "unit"),
            Column("from", "low", ".3g"),
            Column("to", "high", ".3g"),
            Column("share", "share", ".1%"),
            Column("bits within", "entropy", ".3f"),
            Column("gain, bits", "gain", ".3f"),
            Column("bits where positive", "selected", ".3f"),
            caption="The features with the largest gain, at most twenty.",
        ),
        _line,
    )
