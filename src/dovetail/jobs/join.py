"""Join parts, say why not and what would help, repair what does not fit, measure the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor

from dovetail.closed_form.stitch import stitch
from dovetail.core.errors import ContractError, DovetailError, SettingsError, TaskError, shown
from dovetail.core.records import Record
from dovetail.core.views import Block, Text, View
from dovetail.jobs import Outcome
from dovetail.jobs.frame import Frame, job
from dovetail.measure.evaluate import Evaluation, evaluate
from dovetail.measure.joined import calibrating_batches
from dovetail.measure.pairs import choose_norms
from dovetail.parts.joining import join as join_parts
from dovetail.parts.norms import NOTHING_STORED, Norms, Statistics, settle_norms
from dovetail.parts.part import Part
from dovetail.reuse.explain import explain_fit, reference_on, refuse_other_space
from dovetail.reuse.fit_report import FitReport
from dovetail.reuse.question import common_classes, learnable
from dovetail.settings.join import Join
from dovetail.tasks.task import Task
from dovetail.train.stitch import stitch as train_stitch


class JoinRefused(ContractError):
    """A join that the contracts refuse, with what would help.

    ``repairs`` shows the repairs to people, ``outcome`` has them as data.
    """

    def __init__(self, message: str, repairs: View, outcome: Outcome) -> None:
        super().__init__(message)
        self.repairs, self.outcome = repairs, outcome


@job
def join(
    frame: Frame,
    /,
    refs: Sequence[str],
    task: str | None = Join.task,
    *,
    norms: Norms = Join.norms,
    force: bool = Join.force,
    adapters: bool = Join.adapters,
    reference: str | None = Join.reference,
    epochs: int = Join.epochs,
) -> Outcome:
    """Join the parts; with a task, measure and keep the fit; with a name, shelve.

    Raises:
        JoinRefused: they do not fit; with the repairs that apply, priced if there is a task.
    """
    parts = [frame.part(ref) for ref in refs]
    loaded = frame.task(task) if task else None
    if norms == "recalibrated" and loaded is None:
        raise SettingsError("recalibrated norms need --task, whose training images they use")
    reasons = [why for a, b in pairwise(parts) for why in a.contract.mismatches(b.contract)]
    chosen = settle_norms(norms, parts, data=loaded is not None)
    if loaded is not None and not adapters and (force or not reasons):
        chosen = choose_norms(norms, loaded, parts, data=True)
    batches = None
    if loaded is not None and chosen.norms == "recalibrated":
        batches = _when_asked(lambda: calibrating_batches(parts[0], loaded))
    try:
        joined = join_parts(*parts, norms=chosen, force=force, adapters=adapters, data=batches)
    except ContractError as error:
        question = _question(frame, refs, task, reference) | {"epochs": epochs}
        raise _refused(error, parts, loaded, question) from None
    blocks: list[Block] = [
        Text(f"Joined {' and '.join(refs)}: {joined.contract}"),
        *(Text(f"Although: {why}", style="warning") for why in reasons),
    ]
    facts: dict[str, Any] = {"contract": str(joined.contract), "why_not": reasons}
    facts |= {key: value for key, value in joined.origin.settings.items() if "norms" in key}
    if "norms_why" in facts and facts["norms_why"] != NOTHING_STORED:
        words = f"Batch norms: {facts['norms']} statistics, because {facts['norms_why']}."
        blocks.append(Text(words, style="note"))
    records: tuple[Record, ...] = ()
    if loaded is not None:
        measured = evaluate(joined, loaded)
        # an adapter between them is on no shelf
        is_kept = not adapters and _keep_if_shelved(frame, parts, measured, loaded, facts["norms"])
        blocks += measured.view()
        facts |= {"measures": measured.measures, "chance": measured.chance, "kept": is_kept}
        records = (measured,)
    if frame.name is not None:
        facts["ref"] = frame.shelve({frame.name: joined})[frame.name].ref
        blocks.append(Text(f"{facts['ref']} is on the shelf.", style="heading"))
    return Outcome(tuple(blocks), facts, records)


@job
def explain(
    frame: Frame,
    /,
    refs: Sequence[str],
    task: str | None = Join.task,
    *,
    reference: str | None = Join.reference,
    epochs: int = Join.epochs,
) -> Outcome:
    """Whether a head fits a front, why not, and what each repair would cost; nothing is shelved."""
    if len(refs) != 2:
        raise SettingsError(f"name a front and a head to explain, got {len(refs)} parts")
    front, head = (frame.part(ref) for ref in refs)
    loaded = frame.task(task) if task else None
    question = _question(frame, refs, task, reference)
    report = explain_fit(front, head, loaded, epochs=epochs, **question)
    return Outcome(report.view(), _facts(report), (report,))


class Wanted(NamedTuple):
    """The two parts, the task, and how to repair."""

    front: Part
    head: Part
    task: Task
    norms: Norms
    reference: Part | None
    epochs: int


class Mended(NamedTuple):
    """The network, what was put between its parts, its norms, and what there is to tell."""

    joined: Part
    between: Part | None
    norms: Statistics
    records: tuple[Record, ...] = ()


@job
def mend(
    frame: Frame,
    /,
    refs: Sequence[str],
    task: str | None = Join.task,
    *,
    repair: str,
    norms: Norms = Join.norms,
    reference: str | None = Join.reference,
    epochs: int = Join.epochs,
) -> Outcome:
    """Repair on the training split, measure on the test split; with a name, shelve.

    A stitch is shelved as ``name.stitch`` beside the network, and its measurement is kept.
    """
    if len(refs) != 2:
        raise SettingsError(f"a repair is between a front and a head, got {len(refs)} parts")
    if task is None:
        raise SettingsError("a repair needs --task, whose training images it uses")
    front, head = (frame.part(ref) for ref in refs)
    if frame.name is not None:
        frame.named(frame.name, ".stitch")
        frame.store.check_writable()
    loaded = frame.task(task)
    if loaded.kind == "classes" and len(common_classes(head, loaded)) < 2:
        raise TaskError(
            f"a repair is measured on classes that head and task share by name, two or more; "
            f"{refs[1]!r} knows {shown(', '.join(head.contract.classes or ()))}, "
            f"{loaded.name!r} has {shown(', '.join(loaded.classes))}"
        )
    known = learnable(head, loaded)
    if known.size("test") == 0:
        raise TaskError(f"{known.name!r} has no test examples to measure on")
    if repair == "trained-stitch" and norms == "recalibrated":
        raise SettingsError("a stitch is trained with --norms stored or batch")
    onto = None if reference is None else frame.part(reference)
    if repair != "recalibrate" and onto is None:
        onto = _shelved_reference(frame, front, head, loaded)
    if repair == "stitch" and onto is None:
        raise SettingsError(
            "a stitch by least squares needs a front of the space that the head takes, and the "
            "shelf has none; name one with --reference, or use --repair trained-stitch"
        )
    done = REPAIRS[repair](Wanted(front, head, loaded, norms, onto, epochs))
    measured = evaluate(done.joined, known)
    between = {} if done.between is None else {"stitch_ref": done.between}
    facts: dict[str, Any] = {
        "repair": repair,
        "norms": done.norms,
        "measures": measured.measures,
        "chance": measured.chance,
        "stitch": {} if done.between is None else done.between.origin.measured,
    }
    blocks: list[Block] = [Text(f"Repaired {' and '.join(refs)} by {repair}, norms {done.norms}.")]
    blocks += measured.view()
    if frame.name is not None:
        made = {f"{frame.name}.stitch": part for part in between.values()}
        entries = frame.shelve({**made, frame.name: done.joined}).values()
        facts |= {key: entry.ref for key, entry in zip((*between, "ref"), entries, strict=True)}
        shelved = " and ".join(entry.ref for entry in entries)
        words = f"{shelved} {'are' if between else 'is'} on the shelf."
        blocks.append(Text(words, style="heading"))
    chain = [front, *between.values(), head]
    facts["kept"] = _keep_if_shelved(frame, chain, measured, known, done.norms)
    return Outcome(tuple(blocks), facts, (*done.records, measured))


def _when_asked(batches: Callable[[], Iterable[Tensor]]) -> Iterator[Tensor]:
    """Batches that are not made before the parts are known to fit."""
    yield from batches()


def _recalibrate(wanted: Wanted) -> Mended:
    if wanted.norms not in ("auto", "recalibrated"):
        raise SettingsError("--repair recalibrate has recalibrated norms; leave --norms out")
    batches = calibrating_batches(wanted.front, wanted.task)
    joined = join_parts(wanted.front, wanted.head, norms="recalibrated", data=batches, force=True)
    return Mended(joined, None, "recalibrated")


def _solved(wanted: Wanted) -> Part | None:
    """The stitch by least squares, where there is a reference to imitate."""
    if wanted.reference is None:
        return None
    refuse_other_space(wanted.reference, wanted.head)
    return stitch(wanted.front, wanted.reference, wanted.task)


def _stitch(wanted: Wanted) -> Mended:
    made = _solved(wanted)
    assert made is not None  # whoever has no reference was refused
    row = wanted.front, made, wanted.head
    chosen = choose_norms(wanted.norms, wanted.task, row)
    anew = chosen.norms == "recalibrated"
    batches = calibrating_batches(wanted.front, wanted.task) if anew else None
    return Mended(join_parts(*row, norms=chosen, data=batches), made, chosen.norms)


def _trained_stitch(wanted: Wanted) -> Mended:
    assert wanted.norms != "recalibrated"  # refused at the beginning
    front, head, known = wanted.front, wanted.head, learnable(wanted.head, wanted.task)
    settings: dict[str, Any] = {"start": _solved(wanted), "epochs": wanted.epochs}
    fit = train_stitch(front, head, known, norms=wanted.norms, **settings)
    return Mended(fit.part, fit.parts[0], fit.record.settings["norms"], (fit.record,))


REPAIRS: dict[str, Callable[[Wanted], Mended]] = {
    "recalibrate": _recalibrate,
    "stitch": _stitch,
    "trained-stitch": _trained_stitch,
}
"""What the command line can do about a misfit, by the names that a report gives."""


def _shelved_reference(frame: Frame, front: Part, head: Part, task: Task) -> Part | None:
    store = frame.existing_store
    reference = None if store is None else reference_on(store, front, head, task)
    return None if reference is None else reference[1]


def _keep_if_shelved(
    frame: Frame, chain: Sequence[Part], measured: Evaluation, task: Task, norms: str
) -> bool:
    """Keep an accuracy of parts that were joined, front first, if all are on the shelf."""
    store = frame.existing_store
    if store is None or task.kind != "classes" or measured.chance is None:
        return False
    if not {entry.digest for entry in store.entries()}.issuperset(part.digest for part in chain):
        return False
    frame.keep_fit(chain, task, norms, measured.accuracy, measured.chance)
    return True


def _question(
    frame: Frame, refs: Sequence[str], task: str | None, reference: str | None
) -> dict[str, Any]:
    """What repairs may use, and what commands call the parts: what the user has typed."""
    called = {"front": refs[0], "head": refs[-1], "task": task, "reference": reference}
    return {
        "reference": None if reference is None else frame.part(reference),
        "shelf": frame.existing_store,
        "names": {role: name for role, name in called.items() if name is not None},
    }


def _refused(
    error: ContractError, parts: Sequence[Part], task: Task | None, question: dict[str, Any]
) -> ContractError:
    """The refusal with repairs of the first seam that does not fit."""
    misfits = [pair for pair in pairwise(parts) if pair[0].contract.mismatches(pair[1].contract)]
    if not misfits:
        return error
    if len(parts) > 2:  # what enters the seam is no input of a task
        task, question = None, {**question, "names": {}}
    try:
        report = explain_fit(*misfits[0], task, **question)
    except DovetailError as problem:  # the refusal is the news, not what kept us from pricing it
        return ContractError(f"{error.marked}\nNo repair could be priced: {problem.marked}")
    facts = {"refused": True, **_facts(report)}
    return JoinRefused(error.marked, report.repairs_view(), Outcome((), facts, (report,), ok=False))


def _facts(report: FitReport) -> dict[str, Any]:
    best = None if report.best is None else report.best.name
    facts: dict[str, Any] = report.to_plain()["data"]
    return facts | {"why_not": list(report.why_not), "chance": report.chance, "best": best}
