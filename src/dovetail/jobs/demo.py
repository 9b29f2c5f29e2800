"""The tour: real networks on the bundled digits, from training to the report.

Four networks of one architecture learn different tasks.  Each is cut in two and shelved; then every
front meets every head.  All shapes match, yet only the pairs that share a space work, and the
contract knows which before anything runs.  Two are trained again, made to fit, and now their heads
can be exchanged.  Then a new task comes, and the networks are ranked for it without any training;
fifteen small tasks are mapped by how well their parts transfer; one network is looked into, and
adapted to classes that it has never seen, with a handful of labels; one is packed to a fraction of
its size; one is solved for instead of trained, and one is trained a layer at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dovetail.adapt.ways import compare_ways
from dovetail.adapt.ways_record import Adaptation
from dovetail.closed_form.estimators import PlatonicClassifier
from dovetail.closed_form.fit_record import PlatonicFit
from dovetail.core.records import Record, slug
from dovetail.core.views import Block, Figure, Series, Table, Text, View
from dovetail.jobs import Outcome
from dovetail.jobs.demo_chapters import made_to_fit, map_of_digits, parts_for
from dovetail.jobs.frame import net_for
from dovetail.jobs.recombine import keep_fits
from dovetail.lens.inspection import inspect
from dovetail.measure.evaluate import evaluate
from dovetail.measure.recombine import recombine
from dovetail.parts.cutting import cut, cut_points
from dovetail.parts.joining import join
from dovetail.parts.part import Part
from dovetail.ranking.task_map import TaskMap
from dovetail.report.page import write_report
from dovetail.reuse.fitting import fit as fit_task
from dovetail.reuse.fitting_record import Fitting
from dovetail.reuse.packing import pack_part
from dovetail.settings.common import Common
from dovetail.settings.show import Demo
from dovetail.shelf.store import Shelf
from dovetail.tasks.derive import few, inverted, only_classes, rotated
from dovetail.tasks.load import load_task
from dovetail.tasks.task import Task
from dovetail.train.end_to_end import end_to_end
from dovetail.train.fit import Training
from dovetail.train.layerwise import layerwise

AT = "conv2"
INSPECTED = 300
"""Examples to look into a network with."""


def demo(
    folder: str | Path = Demo.folder,
    *,
    epochs: int = Demo.epochs,
    seed: int = Common.seed,
    tell: Callable[[View], None] = lambda view: None,
) -> Outcome:
    """Run the tour; ``tell`` is called with each chapter as it is finished."""
    began = time.perf_counter()
    folder = Path(folder)
    shelf = Shelf(folder / "shelf")
    digits = load_task("digits")
    low = only_classes(digits, [str(i) for i in range(7)])
    high = only_classes(digits, [str(i) for i in range(3, 10)])
    tasks = {"low": low, "low-twin": low, "high": high, "inverted": inverted(low)}

    tell(_heading("1. Train four networks of one architecture"))
    trainings, parts = [], {}
    for i, (name, task) in enumerate(tasks.items()):
        fit = end_to_end(
            net_for(task, "lenet5", {"norm": "batch"}, seed=seed + i),
            task,
            epochs=epochs,
            seed=seed + i,
        )
        parts[name] = fit.part
        trainings.append(fit.record)
    accuracy = {name: evaluate(part, tasks[name]).accuracy for name, part in parts.items()}
    tell(_trained(tasks, accuracy))

    tell(_heading(f"2. Cut each after {AT} and shelve both halves"))
    halves = {name: cut(part, at=AT) for name, part in parts.items()}
    for name, (front, back) in halves.items():
        shelf.add(front, f"{name}.front")
        shelf.add(back, f"{name}.back")
    tell(_shelved(halves))

    tell(_heading("3. Join every front to every head, untouched"))
    fronts = {name: front for name, (front, _) in halves.items()}
    backs = {name: back for name, (_, back) in halves.items()}
    joins = recombine(fronts, backs, tasks, norms=("stored", "batch"), seed=seed)
    keep_fits(joins, shelf)
    tell(joins.view())

    tell(_heading("4. Does an earlier cut help?"))
    depth = joins_by_depth(parts["low"], parts["low-twin"], low)
    tell(depth.view())

    tell(_heading("5. The same join, with parts that were made to fit"))
    pair = {name: tasks[name] for name in ("low", "inverted")}
    fitted, fitting = made_to_fit(pair, joins, shelf, at=AT, epochs=epochs, seed=seed)
    tell(fitted.view())

    tell(_heading("6. Which network to reuse for a new task, before training anything?"))
    forecast = parts_for(parts, rotated(digits, 90), seed=seed)
    tell(forecast.view())

    tell(_heading("7. Which tasks are near each other?"))
    near = map_of_digits(digits, seed=seed)
    tell(_mapped(near))

    tell(_heading("8. What did each layer learn of it?"))
    seen = inspect(parts["low"], low, samples=INSPECTED, seed=seed, show=False)
    tell(seen.view()[:1])

    tell(_heading("9. A few labels of classes that the network has never seen"))
    adapted = adapted_to_the_rest(parts["low"], digits, name="low", seed=seed)
    tell(adapted.view()[:2])

    tell(_heading("10. Ship it small"))
    packed, packing, _ = pack_part(parts["low"], low, name="low", seed=seed)
    shelf.add(packed, "low-packed")
    tell(packing.view()[:2])

    tell(_heading("11. A network without a single step"))
    solved = solved_for(low, seed=seed)
    shelf.add(solved.part, "low-solved")
    tell(solved.view(accuracy["low"], _seconds(trainings[0])))

    tell(_heading("12. A network that never is in memory as a whole"))
    stepwise = layerwise(
        net_for(low, "lenet5", {"norm": "batch"}, seed=seed), low, epochs=2, seed=seed
    ).record
    tell(stepwise.view()[:3])

    tell(_heading("13. All of it, in one call: from data to a model in use"))
    unseen = only_classes(digits, [each for each in digits.classes if each not in low.classes])
    rest = few(unseen, 10, seed=seed)
    model = fit_task(rest, parts=parts, released=False, minutes=1, seed=seed, show=False)
    model.part.save_pretrained(folder / "model", overwrite=True)
    tell((Text(model.record.summary), Text(model.record.how_chosen), _tried(model.record)))

    listing = shelf.ls()
    for name, training in zip(tasks, trainings, strict=True):
        training.save(folder / "records" / f"training-{name}.json")
    measured: tuple[Record, ...] = (
        *(joins, depth, fitted),
        *(*forecast.records, near, seen, adapted, packing, solved.record, stepwise, model.record),
    )
    for record in (*measured, fitting):
        record.save(folder / "records" / f"{slug(record.title)}.json")
    page = write_report(
        [*measured, listing, *trainings, fitting],
        folder / "report.html",
        title="Parts that fit, and parts that only look so",
        subtitle=f"Four networks of one architecture, cut after {AT}. {joins.summary}",
    )
    seconds = time.perf_counter() - began
    return Outcome(
        view=_ending(f"{joins.summary} {fitted.summary}", page, shelf, seconds),
        data={
            "accuracy": accuracy,
            "joined": joins.to_plain()["data"],
            "fitted": fitted.to_plain()["data"],
            "ranking": forecast.ranking.to_plain()["data"],
            "reached": forecast.reached,
            "adapted": adapted.to_plain()["data"],
            "packed": packing.to_plain()["data"],
            "solved": {"accuracy": solved.accuracy, "seconds": solved.seconds},
            "model": model.record.to_plain()["data"],
            "report": str(page),
            "shelf": str(shelf.folder),
            "seconds": seconds,
        },
        records=(*measured, listing, *trainings, fitting),
    )


def _seconds(training: Record) -> float:
    assert isinstance(training, Training)
    return training.seconds


def _heading(words: str) -> View:
    return (Text(words, style="heading"),)


def _trained(tasks: dict[str, Task], accuracy: dict[str, float]) -> View:
    rows = tuple(
        (name, task.name, len(task.classes), task.size("train"), accuracy[name])
        for name, task in tasks.items()
    )
    return (
        Table(
            ("network", "task", "classes", "training images", "test accuracy"),
            rows,
            ("", "", "", "", ".1%"),
        ),
        Text("low and low-twin saw the same data; only their random start differs.", style="note"),
    )


def _shelved(halves: dict[str, tuple[Part, Part]]) -> View:
    rows = tuple(
        (f"{name}.{side}", str(part.contract))
        for name, pair in halves.items()
        for side, part in zip(("front", "back"), pair, strict=True)
    )
    return (
        Table(("part", "contract"), rows),
        Text(
            "Every front gives 16×2×2 and every back takes 16×2×2. The word after 'in' is the "
            "space: the name of a representation, minted by the cut.",
            style="note",
        ),
    )


def _mapped(near: TaskMap) -> View:
    """The finding alone: fifteen tasks as a table are for the report."""
    words = [block for block in near.view() if isinstance(block, Text)]
    return (*words[:2], Text("The maps themselves are in the report.", style="note"))


def _tried(record: Fitting) -> Table:
    return next(block for block in reversed(record.view()) if isinstance(block, Table))


def _ending(summary: str, page: Path, shelf: Shelf, seconds: float) -> View:
    blocks: list[Block] = [
        Text("What to take home", style="heading"),
        Text(summary),
        Text(f"Report: {page}    Shelf: {shelf.folder} ({len(shelf)} parts)    {seconds:.0f} s"),
        Text(
            f"Try: dovetail shelf ls --shelf {shelf.folder}"
            f"    dovetail join low.front high.back --shelf {shelf.folder}"
            f"    dovetail recombine low high --task digits --shelf {shelf.folder}"
            f"    dovetail rank digits --shelf {shelf.folder}"
            f"    dovetail adapt low.front 'digits[7,8,9]' --shelf {shelf.folder}"
            f"    dovetail inspect low-packed 'digits[0,1,2,3]' --shelf {shelf.folder}"
            f"    dovetail pack --all --shelf {shelf.folder}"
            f"    dovetail fit 'digits[7,8,9]' -o model",
            style="note",
        ),
    ]
    return tuple(blocks)


LABELS = (3, 10)


def adapted_to_the_rest(part: Part, task: Task, *, name: str, seed: int) -> Adaptation:
    """Adapt a part to the classes of a task that it does not know, ten labels each or fewer."""
    known = part.contract.classes or ()
    rest = only_classes(task, [each for each in task.classes if each not in known])
    return compare_ways(part, rest, labels=LABELS, seed=seed, name=name, show=False).record


HIDDEN = (256, 64)


class SolvedNetwork(NamedTuple):
    """A network, how it was fitted, what it reached and how long that took."""

    part: Part
    record: PlatonicFit
    accuracy: float
    seconds: float

    def view(self, trained: float, trained_seconds: float) -> View:
        """Beside a network that was trained by steps."""
        return (
            Table(
                ("network", "made by", "seconds", "test accuracy"),
                (
                    ("perceptron", "least squares, layer by layer", self.seconds, self.accuracy),
                    ("lenet5", "gradient steps", trained_seconds, trained),
                ),
                ("", "", ".2f", ".1%"),
            ),
            Text("No rate, no epochs: each layer is one least-squares problem.", style="note"),
        )


def solved_for(task: Task, *, seed: int) -> SolvedNetwork:
    """Solve for a perceptron on a task's classes, and measure it."""
    inputs, targets = task.subset("train")
    names = np.asarray(task.classes, dtype=object)[targets.numpy()]
    began = time.perf_counter()
    estimator = PlatonicClassifier(HIDDEN, random_state=seed).fit(inputs, names)
    seconds = time.perf_counter() - began
    part = estimator.to_part(dtype=torch.float32)
    return SolvedNetwork(part, estimator.record_, evaluate(part, task).accuracy, seconds)


@dataclass(frozen=True, kw_only=True)
class DepthOfJoin(
    Record, kind="depth-of-join", title="One network's front with its twin's head, by cut point"
):
    """One network's front with its twin's head, cut at every point."""

    at: tuple[str, ...]
    own: tuple[float, ...]
    other: tuple[float, ...]
    chance: float

    def view(self) -> View:
        """Own halves, foreign halves and chance along the network."""
        lines = (
            Series("own head", self.at, self.own),
            Series("twin's head", self.at, self.other),
            Series("chance", self.at, (self.chance,) * len(self.at)),
        )
        best = max(range(len(self.at)), key=self.other.__getitem__)
        return (
            Figure("line", "Accuracy after joining", lines, "cut after", "accuracy", ".0%"),
            Text(
                f"Same data, same architecture, another random start: the twin's head reaches at "
                f"most {self.other[best]:.1%} (cut after {self.at[best]}), its own head "
                f"{self.own[best]:.1%} everywhere."
            ),
        )


def joins_by_depth(one: Part, twin: Part, task: Task) -> DepthOfJoin:
    """Cut both at every point outside of a layer's inner steps and exchange the heads."""
    names = [point.name for point in cut_points(one) if "." not in point.name]
    own, other = [], []
    for at in names:
        front, back = cut(one, at=at)
        _, foreign = cut(twin, at=at)
        own.append(evaluate(join(front, back), task).accuracy)
        other.append(evaluate(join(front, foreign, norms="stored", force=True), task).accuracy)
    return DepthOfJoin(
        at=tuple(names),
        own=tuple(own),
        other=tuple(other),
        chance=1 / len(task.classes),
        settings={"split": "test", "norms": "stored"},
    )
