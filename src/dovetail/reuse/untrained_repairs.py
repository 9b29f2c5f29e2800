"""Repairs without training: recalibrated norms, an adapter, least squares, a chain of the shelf.

They look at images alone; labels serve to judge the outcome.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.closed_form.stitch import stitch
from dovetail.core.errors import ContractError, ShelfError
from dovetail.measure.joined import calibrating_batches
from dovetail.parts.joining import adapter, join
from dovetail.parts.norms import has_batch_norm
from dovetail.parts.part import Part
from dovetail.parts.stitching import seam
from dovetail.reuse.attempts import Attempt, command_for, judged, seconds_of, why_not
from dovetail.reuse.fit_report import Repair
from dovetail.reuse.question import Question, one_line
from dovetail.tasks.task import Task

__all__ = ["adaptation", "chain", "recalibration", "solved_stitch"]

NO_SHELF = "no shelf was given to look for parts between the two"


def recalibration(question: Question) -> Attempt:
    """The batch norms' statistics, estimated behind this front."""
    front, head = question.front, question.head
    repair = Repair(
        "recalibrate",
        "Estimates what the batch norms store anew, behind this front.",
        "images without labels",
        why_not=_stored_statistics(question),
        norms="recalibrated",
        python='dt.join(front, head, norms="recalibrated", data=batches, force=True)',
        command=command_for(question, "--repair recalibrate"),
    )

    def measured(task: Task) -> Repair:
        batches = calibrating_batches(front, task, question.limit, seed=question.seed)
        _, seconds = seconds_of(
            lambda: join(front, head, norms="recalibrated", data=batches, force=True)
        )
        if "recalibrated" not in question.as_it_is:
            raise ContractError(question.problem or "the outcome could not be measured")
        accuracy = question.as_it_is["recalibrated"]
        return replace(repair, kind="measured", accuracy=accuracy, seconds=seconds)

    return Attempt(repair, measured)


def adaptation(question: Question) -> Attempt:
    """An untrained map between other channel counts."""
    front, head = question.front, question.head
    repair = Repair(
        "adapter",
        "Joins other channel counts by an untrained 1×1 map: chance accuracy, and the start of a "
        "trained stitch.",
        "nothing; then training",
        why_not=why_not(lambda: _refuse_needless(front, head)),
        python="dt.join(front, head, adapters=True)",
        command=command_for(question, "--adapters", task=False),
    )

    def measured(task: Task) -> Repair:
        made, seconds = seconds_of(lambda: adapter(front, head, seed=question.seed))
        return judged(question, repair, join(made, head), seconds)

    return Attempt(repair, measured)


def solved_stitch(question: Question) -> Attempt:
    """The map from the front's space to the head's, by least squares."""
    front, head, reference = question.front, question.head, question.reference
    repair = Repair(
        "stitch",
        "Maps the front's space to the head's by least squares, onto a front that gives it.",
        "images without labels, and a reference: a front of the head's space",
        why_not=why_not(lambda: seam(front.contract.gives, head.contract.takes))
        or (_no_reference(question) if reference is None else None),
        python="dt.join(front, dt.closed_form.stitch(front, reference, task), head)",
        command=command_for(
            question, "--repair stitch", reference=question.names.get("reference", "REFERENCE")
        ),
    )

    def measured(task: Task) -> Repair:
        if reference is None:
            raise ContractError(_no_reference(question))
        made, seconds = seconds_of(
            lambda: stitch(front, reference, task, limit=question.limit, seed=question.seed)
        )
        found = judged(question, repair, join(made, head), seconds)
        explained, images = made.origin.measured["held-out r2"], made.origin.settings["images"]
        return replace(
            found,
            known_by=f"It explains {explained:.1%} of the variance on the images that it was not "
            f"fitted to, one in five of {images}; no label was read.",
            command=f"{repair.command} --norms {found.norms}",
        )

    return Attempt(repair, measured)


def chain(question: Question) -> Attempt:
    """The best way over parts that are on the shelf."""
    head, store = question.head, question.store
    between, obstacle = _way_between(question)
    repair = Repair(
        "chain",
        f"Joins the two through {' and '.join(between) or 'parts of the shelf'}.",
        "nothing: the parts are on the shelf" if between else "parts on the shelf",
        why_not=obstacle,
        python="dt.join(front, *map(shelf.get, shelf.path(front, head).between), head)",
        command=command_for(question, through=between) if between else None,
    )

    def measured(task: Task) -> Repair:
        if store is None:
            raise ContractError(NO_SHELF)
        tail, seconds = seconds_of(lambda: join(*map(store.get, between), head))
        return judged(question, repair, tail, seconds)

    return Attempt(repair, measured)


def _way_between(question: Question) -> tuple[tuple[str, ...], str | None]:
    """References of the parts to put between, or why there are none."""
    if question.store is None:
        return (), NO_SHELF
    try:
        return question.store.path(question.front, question.head).between, None
    except ShelfError as error:
        return (), one_line(error).partition(" Make a stitch")[0]


def _stored_statistics(question: Question) -> str | None:
    if not any(has_batch_norm(part.module) for part in (question.front, question.head)):
        return "neither front nor head has a batch norm"
    return None if question.flows else "what the front gives cannot enter the head"


def _refuse_needless(front: Part, head: Part) -> None:
    if not front.contract.obstacles(head.contract):
        raise ContractError("the tensors fit as they are")
    adapter(front, head)


def _no_reference(question: Question) -> str:
    where = "no shelf was given" if question.store is None else "the shelf has none"
    return (
        f"it needs a front of the space that the head takes, such as the head's own other half: "
        f"pass reference= ({where})"
    )
