"""What the repairs share: an attempt, how it is judged, and how it is spelled as a command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dovetail.core.errors import ContractError, DovetailError
from dovetail.flows.repairing.question import NORMS, Question, one_line
from dovetail.flows.repairing.report import Repair, best_norms
from dovetail.parts.norms import Norms
from dovetail.parts.part import Part
from dovetail.tasks.task import Task

__all__ = ["Attempt", "command_for", "judged", "outcome_of", "why_not"]


@dataclass(frozen=True)
class Attempt:
    """A repair without figures, and how to get them with a task."""

    repair: Repair
    price: Callable[[Task], Repair]


def outcome_of(attempt: Attempt, question: Question) -> Repair:
    """The repair with its figures; whatever of ours refuses says why it does not apply."""
    repair = attempt.repair
    if repair.why_not is not None:
        return replace(repair, applies=False)
    if question.priced is None:
        return repair
    try:
        return attempt.price(question.priced)
    except DovetailError as error:
        return replace(repair, applies=False, why_not=one_line(error))


def judged(
    question: Question,
    repair: Repair,
    tail: Part,
    seconds: float,
    policies: tuple[Norms, ...] = NORMS,
) -> Repair:
    """The repair with the accuracy of the front and ``tail``, under the best policy of norms."""
    found = question.accuracies(question.front, tail, policies)
    norms = best_norms(found)
    return replace(repair, kind="measured", accuracy=found[norms], seconds=seconds, norms=norms)


def why_not(attempt: Callable[[], object]) -> str | None:
    """What refuses an attempt, if anything does.

    >>> why_not(lambda: 1) is None
    True
    """
    try:
        attempt()
    except ContractError as error:
        return one_line(error)
    return None


def command_for(
    question: Question,
    options: str = "",
    *,
    through: Sequence[str] = (),
    reference: str | None = None,
    task: bool = True,
) -> str:
    """The repair on the command line; what has no name there is in capitals."""
    called = question.names.get
    words = ["dovetail", "join", called("front", "FRONT"), *through, called("head", "HEAD")]
    words += ["--task", called("task", "TASK")] if task else []
    words += options.split()
    words += [] if reference is None else ["--reference", reference]
    return shlex.join([*words, "--name", "NAME"])
