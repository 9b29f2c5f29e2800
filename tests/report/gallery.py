"""Records that show every kind of block, the awkward ones among them."""

from __future__ import annotations

import math
import random

from dovetail.core.records import StoredRecord
from dovetail.core.views import Figure, Heatmap, Plane, Series, Table, Text, View


def stored(title: str, *blocks, settings=None, data=None) -> StoredRecord:
    return StoredRecord(
        of_kind="gallery",
        of_title=title,
        data={"settings": settings or {}, **(data or {})},
        blocks=blocks,
    )


def words() -> View:
    return (
        Text("Plain words."),
        Text("A heading", "heading"),
        Text("A note on the method.", "note"),
        Text("The validation split is small.", "warning"),
        Text(f"dovetail train digits --net {'x' * 120}\n  --epochs 3", "code"),
        Text(f"An unbreakable {'word' * 40}."),
    )


def tables() -> View:
    counts = {"ant": 3, "bee": 10, "cat": 2, "dog": 9}
    rows = tuple((name, count, 0.1 * count) for name, count in counts.items())
    many = 24
    return (
        Table(("name", "count", "share"), (*rows, ("elk", None, None)), ("", "", ".0%"), "Beasts"),
        Table(
            ("part", *(f"measure {j}" for j in range(many))),
            tuple(
                (f"resnet20-run-{i}", *(0.123456 * (i + j) for j in range(many))) for i in range(6)
            ),
            ("", *((".4f",) * many)),
            "A table of many columns",
        ),
        Table(("nothing",), ()),
    )


def figures() -> View:
    xs = tuple(range(30))
    falling = tuple(math.exp(-x / 9) for x in xs)
    rising = tuple(1 - y for y in falling)
    low, high = tuple(y - 0.05 for y in rising), tuple(y + 0.05 for y in rising)
    places = ("first layer", "second layer", "a layer with a long name", "head")
    draw = random.Random(0)
    cloud = [(draw.gauss(0, 1), draw.gauss(0, 1)) for _ in range(60)]
    return (
        Figure(
            "line",
            "Loss and accuracy of a training that took long enough to need a title of this length",
            (Series("loss", xs, falling), Series("accuracy", xs, rising, low, high)),
            "epoch",
            "value",
        ),
        Figure("line", "Steep", (Series("loss", xs, falling),), "epoch", "loss", log_y=True),
        Figure(
            "scatter",
            "Two clouds",
            (
                Series("one", tuple(x for x, _ in cloud), tuple(y for _, y in cloud)),
                Series("two", tuple(x + 3 for x, _ in cloud), tuple(y for _, y in cloud)),
            ),
            "x",
            "y",
        ),
        Figure(
            "bar",
            "Bytes a layer",
            (
                Series("whole", places, (4.0, 8.0, 16.0, 1.0)),
                Series("packed", places, (1.0, 2.0, 4.0, 0.5)),
            ),
            "layer",
            "MB",
        ),
    )


def rankings() -> View:
    draw = random.Random(0)
    parts = tuple(f"resnet20-cifar100-run-{i}@layer{i % 4}" for i in range(12))
    parts += ("a part with a name that is much too long for the column of names beside a figure",)
    values = tuple(0.95 - 0.03 * i for i in range(len(parts)))
    low, high = tuple(v - 0.05 for v in values), tuple(min(v + 0.04, 1.0) for v in values)
    measured = tuple(v + draw.gauss(0, 0.02) for v in values)
    layers = tuple(f"features.denseblock{i}.denselayer7.norm2.weight" for i in range(20))
    heights = tuple(0.3 + 0.03 * i for i in range(20))
    return (
        Figure(
            "interval",
            "Expected and measured accuracy",
            (Series("expected", parts, values, low, high), Series("measured", parts, measured)),
            "part",
            "accuracy",
            ".0%",
        ),
        Figure(
            "line",
            "Accuracy by layer",
            (Series("accuracy", layers, heights, tuple(h - 0.1 for h in heights), heights),),
            "cut after",
            "accuracy",
            ".0%",
        ),
        task_map("Names that fit", tuple(f"task {i}" for i in range(24))),
        Text("Side by side:"),
        task_map("Short names", ("caau", "cado", "caho", "catr", "cade", "audo", "auho", "autr")),
        task_map("Names that do not fit", tuple(f"airplane against ship {i}" for i in range(24))),
    )


def task_map(title, names) -> Figure:
    draw = random.Random(len(names))
    true = tuple(0.4 * draw.random() for _ in names)
    estimated = tuple(max(y + draw.gauss(0, 0.03), 0.0) for y in true)
    lines = (Series("estimated", names, estimated), Series("true", names, true))
    return Figure("polar", title, lines, "task", "accuracy lost: the centre is best", ".0%")


def maps() -> View:
    names = ("low", "low-twin", "high")
    values = ((1.0, 0.2, 0.3), (0.1, 0.98, None), (0.25, 0.5, 0.7))
    fine = tuple(tuple(math.sin(i / 3) * math.cos(j / 5) for j in range(60)) for i in range(20))
    return (
        Heatmap(
            "Accuracy of front (row) with head (column), on the classes both know",
            names,
            names,
            values,
            "front of",
            "head of",
            ".0%",
            0.0,
            1.0,
        ),
        Heatmap(
            "Weights", tuple(f"r{i}" for i in range(20)), tuple(f"c{j}" for j in range(60)), fine
        ),
    )


def planes() -> View:
    side = [i / 12 - 1 for i in range(25)]
    bowl = tuple(tuple(0.1 + x * x + 0.4 * y * y for x in side) for y in side)
    waves = tuple(
        tuple(None if x > 0.8 and y > 0.8 else math.sin(4 * x) * math.cos(3 * y) for x in side)
        for y in side
    )
    halves = tuple(tuple(float(x > y) for x in side) for y in side)
    around = tuple((x, y, -y, x) for x in side[2::5] for y in side[2::5])
    ends = ((-1.0, 1.0), (-1.0, 1.0))
    return (
        Plane("A bowl", *ends, bowl, "along", "across", "loss", surface=True, points=((0, 0, 0),)),
        Plane("By logarithm", *ends, bowl, "along", "across", "loss", log=True),
        Plane("Waves", *ends, waves, "x", "y", arrows=around),
        Plane("Regions", *ends, halves, classes=("ant", "bee"), points=((0.5, 0.0, 1),)),
    )


def gallery() -> list[StoredRecord]:
    long = [math.sin(i / 300) + i % 7 / 50 for i in range(3000)]
    line = Figure("line", "Long", (Series("s", tuple(range(3000)), tuple(long)),))
    return [
        stored("Words", *words()),
        stored("Tables", *tables()),
        stored("Figures", *figures(), settings={"seed": 0, "deep": {"rate": 0.1}}),
        stored("Heat maps", *maps()),
        stored("A run", line, settings={"seed": 1}, data={"loss": long}),
        stored("A run", Text("Same title."), settings={"seed": 2, "big": 2**63 + 1}),
        stored("Rankings", *rankings()),
        stored("Planes", *planes()),
    ]
