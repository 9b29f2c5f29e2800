"""Predict classes or numbers for images, tables, array files, or the test split of a task."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

from torch import Tensor

from dovetail.core.errors import TaskError, argument
from dovetail.core.files import whole_file
from dovetail.core.progress import progress
from dovetail.core.views import Cell, Table, Text, View
from dovetail.core.words import counted
from dovetail.jobs import Outcome
from dovetail.jobs.frame import Frame, job
from dovetail.measure.forward import refuse_other_inputs
from dovetail.measure.new_inputs import Batch, NewInputs, Source, open_inputs
from dovetail.measure.predict import predictions_of, run_and_compare
from dovetail.parts.familiar import Familiar
from dovetail.parts.part import Part
from dovetail.settings.show import Predict
from dovetail.tasks.image_folder import has_images

Row = dict[str, Any]


@job
def predict(
    frame: Frame,
    /,
    ref: str,
    source: str | Sequence[str],
    *,
    output: str | None = Predict.output,
    top: int | None = Predict.top,
    skip_bad: bool = Predict.skip_bad,
    rows: int = Predict.rows,
    most: int | None = Predict.most,
) -> Outcome:
    """Predictions for files and folders, or the test split of a task.

    Images are read when their batch is due.  With ``output`` every prediction goes into that CSV
    file, which appears when all are made, and none is kept in memory.
    """
    Predict.check({"most": most, "top": top, "rows": rows, "output": output})
    part = frame.part(ref)
    sources = [source] if isinstance(source, str) else list(source)
    opened = _opened(frame, part, sources, skip_bad)
    answers = _Answers(part, rows, keeps_all=output is None)
    truths = any(each.has_truths for each in opened.sources)
    plan = opened.plan(most)
    with _table(output) as write, progress("predicting", len(plan)) as step:
        for batch in opened.batches(most):
            if len(batch.inputs):
                for row in _rows(part, batch, top):
                    answers.add(row)
                    write(_flat(row, truths))
            step(counted(answers.count, "input"))
    if not answers.count:
        raise opened.refusal() if opened.bad else TaskError("there are no inputs to predict")
    written = (Text(f"All of it is in {output}.", style="heading"),) if output else ()
    return Outcome(
        view=(*_left_out(opened), *answers.view(truths), *written),
        data=answers.data() | {"skipped": opened.bad, "output": output},
    )


def _opened(frame: Frame, part: Part, sources: list[str], skip_bad: bool) -> NewInputs:
    def test_split(name: str) -> Source:
        if skip_bad and has_images(Path(name)):
            frame.task_options = {"unreadable": "skip", **(frame.task_options or {})}
        return _task_source(frame, part, name)

    if frame.task_options:  # then they are tasks, whatever they look like
        return NewInputs([test_split(each) for each in sources])
    return open_inputs(part, sources, skip_bad=skip_bad, otherwise=test_split)


def _task_source(frame: Frame, part: Part, name: str) -> Source:
    task = frame.task(name)
    refuse_other_inputs(task, part.contract)
    inputs, targets = task.subset("test")
    truths: Any = None
    if task.kind == "classes":
        truths = [task.classes[i] for i in targets.tolist()]
    elif task.kind == "regression":
        truths = targets.double().reshape(len(targets), -1).tolist()
    return Source.of(inputs, truths=truths)


# What is said of each input -----------------------------------------------------------------------


def _rows(part: Part, batch: Batch, top: int | None) -> Iterator[Row]:
    """A dict for each input of a batch, as ``--json`` has it."""
    outputs, unlike = run_and_compare(part, batch.inputs)
    if part.contract.kind == "regression":
        said = _numbers(outputs, batch.truths)
    else:
        said = _classes(part, outputs, batch.truths, top)
    scores = [None] * len(outputs) if unlike is None else unlike.tolist()
    for name, row, score in zip(batch.names, said, scores, strict=True):
        known = {} if score is None else {"unlike": score > 1, "unlike score": score}
        yield {"input": name, **row, **known}


def _classes(part: Part, outputs: Tensor, truths: Any, top: int | None) -> Iterator[Row]:
    predictions = predictions_of(part, outputs)
    best = predictions.top(top) if top else None
    shares = predictions.probabilities.tolist()
    for i, (label, confidence) in enumerate(
        zip(predictions.labels, predictions.confidence, strict=True)
    ):
        row: Row = {"class": label, "confidence": confidence}
        if part.contract.kind == "multilabel":
            pairs = zip(predictions.classes, shares[i], strict=True)
            row["labels"] = [name for name, share in pairs if share > 0.5]
        if truths is not None:
            row["true class"] = truths[i]
        if best is not None:
            row["top"] = [{"class": name, "probability": share} for name, share in best[i]]
        else:
            row["probabilities"] = dict(zip(predictions.classes, shares[i], strict=True))
        yield row


def _numbers(outputs: Tensor, truths: Any) -> Iterator[Row]:
    """Of a part for numbers: one for each of its outputs."""
    numbers = outputs.double().flatten(1)
    columns = _number_names(numbers.shape[1])
    for i, row in enumerate(numbers.tolist()):
        known = {} if truths is None else dict(zip(_true(columns), truths[i], strict=True))
        yield dict(zip(columns, row, strict=True)) | known


def _number_names(count: int) -> list[str]:
    return ["number"] if count == 1 else [f"number {i + 1}" for i in range(count)]


def _true(names: Sequence[str]) -> list[str]:
    return [f"true {name}" for name in names]


_NESTED = ("top", "probabilities", "labels")


def _flat(row: Row, truths: bool) -> dict[str, Cell]:
    """A row of the CSV file: one cell a probability, and one for the truth if any input has it."""
    flat = {name: value for name, value in row.items() if name not in _NESTED}
    said = [name for name in flat if name == "class" or name.split()[0] == "number"]
    for name in _true(said) if truths else ():
        flat.setdefault(name, None)
    for place, each in enumerate(row.get("top", ()), start=1):
        flat |= {f"class {place}": each["class"], f"p {place}": each["probability"]}
    shares = row.get("probabilities", {})
    return flat | {f"p({name})": share for name, share in shares.items()}


@contextmanager
def _table(output: str | None) -> Iterator[Any]:
    """Writes rows to a CSV file that appears when all are written; or nowhere."""
    if output is None:
        yield lambda row: None
        return
    with whole_file(Path(output)) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer: csv.DictWriter[str] | None = None

        def write(row: dict[str, Cell]) -> None:
            nonlocal writer
            if writer is None:
                writer = csv.DictWriter(text, list(row))
                writer.writeheader()
            writer.writerow(row)

        try:
            yield write
        finally:
            text.detach()  # what is written so far goes to the file, which outlives this


# What is said of all of them ----------------------------------------------------------------------


@dataclass
class _Answers:
    """The first rows, all of them if they are to be kept, and how many there were of each class."""

    part: Part
    shown: int
    keeps_all: bool
    rows: list[Row] = field(default_factory=list)
    count: int = 0
    unlike: int = 0
    classes: Counter[str] = field(default_factory=Counter)

    def add(self, row: Row) -> None:
        if self.keeps_all or self.count < self.shown:
            self.rows.append(row)
        self.count += 1
        self.unlike += bool(row.get("unlike"))
        if "class" in row:
            self.classes.update(row.get("labels", [row["class"]]))

    @property
    def known(self) -> Familiar | None:
        return self.part.familiar

    def data(self) -> dict[str, Any]:
        """For machines; the rows unless they went into a file."""
        return {
            "predictions": self.rows if self.keeps_all else None,
            "classes": self.part.contract.classes,
            "inputs": self.count,
            "of each class": dict(self.classes.most_common()),
            "unlike": None if self.known is None else self.unlike,
        }

    def view(self, truths: bool) -> View:
        """The first rows, how many there are of each class, and how many look unlike."""
        blocks: list[Table | Text] = [self._first(truths)]
        if self.count > self.shown:
            more = f"{counted(self.count - self.shown, 'more input')} not shown"
            blocks.append(Text(f"… and {more}; {argument('rows')} shows more.", style="note"))
        if self.count > 1 and self.classes:
            rows = tuple((name, n, n / self.count) for name, n in self.classes.most_common(20))
            blocks.append(Table(("class", "inputs", "share"), rows, ("", "", ".1%")))
        if self.known is not None:
            blocks.append(self._familiarity(self.known))
        return tuple(blocks)

    def _first(self, truths: bool) -> Table:
        rows = [_flat(row, truths) for row in self.rows[: self.shown]]
        gone = {"unlike"} | {name for name in rows[0] if name.startswith("p(")}
        columns = tuple(name for name in rows[0] if name not in gone)
        numbers = {"confidence": ".3f", "unlike score": ".2f"}
        formats = tuple(
            numbers.get(name, ".6g" if "number" in name else ".3f" if name[:2] == "p " else "")
            for name in columns
        )
        return Table(columns, tuple(tuple(row.get(c) for c in columns) for row in rows), formats)

    def _familiarity(self, known: Familiar) -> Text:
        """How many look unlike, and whether that is more than of like inputs would by chance."""
        usual = self.count * known.share
        many = self.unlike > usual + 3 * sqrt(usual * (1 - known.share))
        verb = "looks" if self.unlike == 1 else "look"
        said = f"{self.unlike} of {counted(self.count, 'input')} {verb} unlike the training data"
        why = f"of inputs like {known.task!r}, {known.share:.0%} would (a score above 1)"
        advice = ": do not trust these predictions unchecked" if many else ""
        return Text(f"{said}{advice}; {why}.", style="warning" if many else "plain")


def _left_out(opened: NewInputs) -> View:
    if not opened.bad:
        return ()
    first = [f"{name} ({why})" for name, why in list(opened.bad.items())[:5]]
    more = ", ..." if len(opened.bad) > 5 else ""
    count = counted(len(opened.bad), "file")
    return (Text(f"{count} left out: {', '.join(first)}{more}.", style="warning"),)
