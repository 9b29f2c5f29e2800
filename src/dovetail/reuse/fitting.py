"""From a task to a model in use: rank, adapt what pays, choose, calibrate, pack, measure once.

Nothing is trained or measured here that no verb does; this is the order of them.  What is tried,
and in which turn: :mod:`dovetail.reuse.fitting_search`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.progress import progress
from dovetail.measure.evaluate import need_test, with_measures
from dovetail.measure.familiar import FEWEST, knowing
from dovetail.parts.part import Part
from dovetail.ranking.candidates import Parts
from dovetail.ranking.records import Ranking
from dovetail.reuse.fitting_model import calibrated, measured, packed, plain_bytes
from dovetail.reuse.fitting_record import Fitting
from dovetail.reuse.fitting_search import Search
from dovetail.settings.fit import Fitting as Declared
from dovetail.tasks.task import Task


@dataclass(frozen=True)
class Fitted:
    """The model, what came of it, and the ranking of the networks it was chosen from, if any.

    ``interrupted`` is whether the search was; the same call with the same ``kept`` goes on.
    """

    part: Part
    record: Fitting
    ranking: Ranking | None = None
    interrupted: bool = False

    @property
    def summary(self) -> str:
        """The verdict."""
        return self.record.summary


def fit(
    task: Task,
    *,
    parts: Parts | None = None,
    minutes: float = Declared.minutes,
    released: bool = Declared.released,
    sizes: tuple[int, ...] = Declared.sizes,
    points: float = Declared.points,
    confidence: float = Declared.confidence,
    seed: int = 0,
    kept: str | Path | None = None,
    show: bool | None = None,
) -> Fitted:
    """Find the best model for a task that the time allows: a part that is ready to use.

    Candidates are the given parts at their cut points, released networks that are installed (of
    images, at several sizes), a small network from scratch, one in closed form, and for tables
    gradient boosting.  The choice is made on the validation split, or in folds where that is small;
    the test split is looked at once, at the end.

    Args:
        task: Of classes or numbers; images or vectors.
        parts: Networks to try beside the installed ones; one, several, or several by name.
        minutes: About how long it may take.  What does not fit is left out, and told.
        released: Whether to try installed networks that others trained.
        sizes: Sides of images to try those at.
        points: How much packing may cost on the labels held out, in points; 0 not to pack.
        confidence: Of the interval on the test split.
        seed: For everything drawn.
        kept: A folder that keeps each attempt; the same call goes on from what is there.
        show: Progress bar: ``None`` on a terminal only.

    Ctrl-C ends the search, and what was best by then is the model.  Unless time ran out, the same
    seed gives the same model, interrupted or not.

    >>> from dovetail.tasks.load import load_task
    >>> found = fit(load_task("digits[0,1,2]"), released=False, minutes=0.1, points=0)
    >>> found.record.value > 0.9
    True
    """
    about = {"minutes": minutes, "sizes": sizes, "points": points, "confidence": confidence}
    Declared.check(about)
    _refuse(task)
    began = time.perf_counter()
    search = Search(task, parts, Path(kept) if kept else None, seed, minutes, released, sizes)
    with progress(f"fitting {task.name}", 100, show=show) as step:
        search.run(step)
        chosen = search.best()
        part, temperature = calibrated(chosen, task)
        step("packing", 0)
        smaller = packed(part, task, points)
        step("measuring", 0)
        part = knowing(smaller.part, search.open)
        record = measured(part, task, confidence, seed)
    facts = search.facts(chosen)
    if part.familiar is None:
        facts["notes"] += (_why_blind(search.open),)
    return Fitted(
        with_measures(part, {f"test {name}": value for name, value in record.measures.items()}),
        replace(
            record,
            network=chosen.attempt.network,
            how=chosen.attempt.how,
            **facts,
            bytes=smaller.size,
            not_packed=smaller.why_not,
            plain_bytes=plain_bytes(part),
            temperature=temperature,
            seconds=time.perf_counter() - began,
            settings={**about, "sizes": list(sizes), "seed": seed, "released": released}
            | {"task_fingerprint": task.fingerprint, "part_digest": part.digest},
        ),
        search.ranking,
        search.interrupted,
    )


def _why_blind(task: Task) -> str:
    few = task.size("validation") < FEWEST
    why = "too few examples validate" if few else "it has no features to compare"
    return f"The model cannot say which new inputs look unlike its training data: {why}."


def _refuse(task: Task) -> None:
    if not isinstance(task, Task):
        raise SettingsError(f"task must be a Task, got {type(task).__name__}; see dt.load_task")
    if task.kind not in ("classes", "regression"):
        raise TaskError(f"{task.name!r} is of kind {task.kind!r}; this fits classes and numbers")
    if task.kind == "classes" and len(task.classes) < 2:
        raise TaskError(
            f"{task.name!r} has one class, {task.classes[0]!r}; a model tells at least two apart"
        )
    need_test(task)
