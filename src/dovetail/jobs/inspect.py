"""Look into a part, with a task and what it was before, if there are any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from dovetail.core.errors import SettingsError, argument
from dovetail.core.records import Record
from dovetail.core.views import Text
from dovetail.jobs import Outcome
from dovetail.jobs.frame import Frame, job, notes_of
from dovetail.lens.inspection import inspect as look_into
from dovetail.lens.inspection_record import Inspection, Offer
from dovetail.lens.profile import profile_over
from dovetail.report.page import check_suffix, write_report
from dovetail.settings.inspect import NEEDS, Inspect
from dovetail.tasks.splits import Split


@job
def inspect(
    frame: Frame,
    /,
    part: str,
    task: str | None = None,
    *,
    before: str | None = Inspect.before,
    source: str | None = Inspect.source,
    report: str | None = Inspect.report,
    **options: Any,
) -> Outcome:
    """Look into a part of the shelf or of a folder; write a page of it if asked."""
    if report is not None:
        check_suffix(Path(report))  # a mistake is told before anything runs
    subject = frame.part(part)
    earlier = None if before is None else frame.part(before)
    examples = None if task is None else frame.task(task)
    learnt = None if source is None else frame.task(source)
    seen = look_into(subject, examples, earlier, source=learnt, seed=frame.seed, **options)
    seen = _as_the_door_has_it(seen)
    notes = list(notes_of([each for each in (examples, learnt) if each is not None]))
    page = {} if report is None else {"report": str(_page(seen, Path(report)))}
    if report is not None:
        notes.append(Text(f"{report} has all of it.", style="note"))
    elif seen.looks:
        words = [part, *([task] if task else []), *(["--before", before] if before else [])]
        command = f"dovetail inspect {' '.join(map(quote, words))} --report inside.html"
        notes.append(Text(f"All figures: {command}", style="note"))
    return Outcome((*seen.in_brief(), *notes), {**seen.to_plain()["data"], **page}, (seen,))


@job
def inspect_over(
    frame: Frame,
    /,
    parts: str,
    task: str | None,
    *,
    samples: int = Inspect.samples,
    split: Split = Inspect.split,
    k: int = Inspect.k,
    report: str | None = Inspect.report,
    **others: Any,
) -> Outcome:
    """Profiles of all parts that begin so (``"net.epoch*"``), in the order of their names."""
    if report is not None:
        check_suffix(Path(report))
    if others:
        raise SettingsError(
            f"{argument(min(others))} means nothing for several parts: their profiles are laid "
            "side by side"
        )
    if task is None:
        raise SettingsError("profiles of several parts need a task: name the examples")
    names, _ = frame.that_take_inputs(parts.removesuffix("*"))
    examples = frame.task(task)
    each = {name: frame.part(name) for name in sorted(names)}
    seen = profile_over(each, examples, limit=samples, split=split, k=k, seed=frame.seed)
    notes = notes_of([examples])
    page = {} if report is None else {"report": str(_page(seen, Path(report)))}
    return Outcome((*seen.view(), *notes), {**seen.to_plain()["data"], **page}, (seen,))


def _page(seen: Record, file: Path) -> Path:
    return write_report([seen], file, title="What is inside?")


def _as_the_door_has_it(seen: Inspection) -> Inspection:
    """Offers in the words of the command line."""

    def said(offer: Offer) -> str:
        missing = [need for need in NEEDS[offer.name] if f"{need}=" in offer.how]
        return " ".join(_FLAGS[need] for need in missing) or f"--what {offer.name}"

    return replace(seen, offers=tuple(replace(each, how=said(each)) for each in seen.offers))


_FLAGS = {"task": "TASK", "before": "--before PART", "source": "--source TASK"}
