"""The ways to make a head work behind a front, each tried or priced, the best first."""

from __future__ import annotations

from dataclasses import replace

from dovetail.flows.repairing.attempts import Attempt, outcome_of
from dovetail.flows.repairing.question import Question
from dovetail.flows.repairing.report import Repair, best_first
from dovetail.flows.repairing.trained_repairs import retraining, trained_stitch
from dovetail.flows.repairing.untrained_repairs import (
    adaptation,
    chain,
    recalibration,
    solved_stitch,
)

__all__ = ["repairs_for"]

FITTING = "nothing needs it: the front gives what the head takes"


def repairs_for(question: Question) -> tuple[Repair, ...]:
    """Every repair, best first; those that do not apply say why."""

    def tried(attempt: Attempt) -> Repair:
        if question.fits:
            return replace(attempt.repair, applies=False, why_not=FITTING)
        return outcome_of(attempt, question)

    trained = tried(trained_stitch(question))
    return best_first(
        [
            outcome_of(recalibration(question), question),  # norms may be wrong in what fits, too
            tried(adaptation(question)),
            tried(solved_stitch(question)),
            trained,
            tried(chain(question)),
            tried(retraining(question, trained)),
        ]
    )
