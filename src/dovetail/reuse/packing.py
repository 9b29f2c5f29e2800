"""Pack a part: choose the bits, encode, decode again, and measure what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from torch import nn

from dovetail.core.errors import SettingsError, nearest
from dovetail.core.progress import progress
from dovetail.measure.evaluate import evaluate, need_test, with_measures
from dovetail.pack.compressing import compress
from dovetail.pack.packed import describe
from dovetail.pack.quality import smallest_within
from dovetail.pack.rules import refuse_unmatched
from dovetail.parts.packed_file import holds
from dovetail.parts.packing import with_packed
from dovetail.parts.part import Part, as_part
from dovetail.reuse.pack_losses import (
    POINTS,
    SCORES,
    gradient_sizes,
    loss_of,
    losses_with,
    scores_of,
)
from dovetail.reuse.pack_record import PartPacking, PartSearch
from dovetail.tasks.task import Task

__all__ = ["PackedPart", "Rule", "pack_part"]

Rule = Literal["entropy", "gradient"]
RULES: tuple[Rule, ...] = ("entropy", "gradient")
MARGIN = 2.576
"""Standard errors that one in two hundred exceeds."""

MOST_CALLS = 100
"""How often a search for the bits may measure the validation split."""


class PackedPart(NamedTuple):
    """A part that is saved packed, what packing made of it, and how its bits were searched."""

    part: Part
    record: PartPacking
    search: PartSearch | None = None


def pack_part(
    part: Part | nn.Module,
    task: Task | None = None,
    *,
    rule: Rule | None = None,
    extra_bits: int = 6,
    bits: int | Mapping[str, int] | None = None,
    channels: bool = False,
    lossless: Sequence[str] = (),
    loss_budget: float | None = None,
    points: float | None = None,
    margin: float | None = None,
    seed: int = 0,
    name: str | None = None,
) -> PackedPart:
    """A new part whose weights are packed, decoded again; the given one is not changed.

    Args:
        part: What to pack.
        task: Measure on its test split before and after.  The gradient rule takes gradients on its
            training split, a budget is kept on its validation split.
        rule: ``"entropy"`` (the default) or ``"gradient"``.
        extra_bits: On top of what the rule finds.
        bits: So many for every tensor, or for each by name, instead of a rule.
        channels: A range for every output channel instead of one a tensor.
        lossless: Patterns of the names of tensors to keep exactly.
        loss_budget: The smallest container whose mean validation loss rises by no more, with a
            margin for chance (see :func:`dovetail.pack.quality.smallest_within`).  Which loss that
            is follows from the task and the part (:func:`dovetail.reuse.pack_losses.losses_with`),
            and is in the records.
        points: The same for the accuracy, in points of a hundred.
        margin: How many standard errors of the rise must fit into the budget, too (2.576).
        seed: Of the weights and examples that are sampled.
        name: What the record calls the part; by default its recipe.

    >>> from dovetail.parts.part import build
    >>> small, record, _ = pack_part(build("mlp", shape=(64,), hidden=(64,), classes=10))
    >>> small.origin.how, record.ratio > 2.5
    ('pack', True)
    """
    part = as_part(part)
    by = _rule(rule, bits, loss_budget, points, task)
    if margin is not None and by not in ("loss budget", "points"):
        raise SettingsError("margin is of a budget; give loss_budget or points with it")
    state = {key: tensor.detach().cpu() for key, tensor in part.module.state_dict().items()}
    if not state:
        raise SettingsError(f"{name or part.described!r} has no weights; there is nothing to pack")
    refuse_unmatched(lossless, state)
    if task is not None:
        need_test(task)
    before = _measures(part, task)
    given = len(part.packed) if part.packed is not None and holds(part.packed, state) else None
    settings: dict[str, Any] = {"channels": channels, "lossless": list(lossless)}
    search: PartSearch | None = None
    loss: str | None = None
    if by in ("loss budget", "points"):
        assert task is not None
        budget = points if loss_budget is None else loss_budget
        assert budget is not None
        margin = MARGIN if margin is None else margin
        loss = POINTS if loss_budget is None else loss_of(part, task)
        measure = losses_with(part, task, points=loss == POINTS)
        with progress("searching", MOST_CALLS) as step:
            chosen = smallest_within(
                part.module.state_dict(),  # on its device, where it is seen what is tied
                measure,
                budget,
                margin=margin,
                most_calls=MOST_CALLS,
                progress=step,
                **settings,
            )
        container, search = chosen.data, PartSearch.of(chosen.record, loss, given)
        settings |= {"budget": budget, "margin": margin}
    else:
        decided: dict[str, Any] = {"extra_bits": extra_bits, "seed": seed}
        if by == "bits":
            decided = {"bits": bits if isinstance(bits, int) else dict(bits or {}), "seed": seed}
        elif by == "gradient":
            assert task is not None
            loss = loss_of(part, task)
            settings["gradients"] = gradient_sizes(part, task, seed=seed)
        settings |= decided
        container = compress(state, **settings)
        settings.pop("gradients", None)  # hundreds of numbers that the task gives again
    settings = {"rule": by, **settings}
    settings |= {"loss": loss} if loss else {}
    settings |= {"scores": scores} if (scores := scores_of(part)) else {}
    packed = with_packed(part, container, settings=settings)
    made = describe(container, state)
    record = PartPacking(
        part=name or part.described,
        task=None if task is None else task.name,
        tensors=made.tensors,
        size=made.size,
        side=made.side,
        full=made.full,
        before=before,
        after=_measures(packed, task),
        given=given,
        note="" if search is None else search.note,
        settings={**settings, "part_digest": part.digest, "packed_digest": packed.digest},
    )
    return PackedPart(_told(packed, record, task), record, search)


def _measures(part: Part, task: Task | None) -> dict[str, float]:
    """What a part reaches on the test split; by its own loss, too, where that is another."""
    if task is None:
        return {}
    measures = evaluate(part, task).measures
    if loss_of(part, task) == SCORES:
        losses = losses_with(part, task, split="test")(part.module.state_dict())
        measures = {**measures, SCORES: float(losses.mean())}
    return measures


def _rule(
    rule: Rule | None,
    bits: int | Mapping[str, int] | None,
    loss_budget: float | None,
    points: float | None,
    task: Task | None,
) -> str:
    """What decides the bits; an error when more than one is to, or a task is missing."""
    if rule is not None and rule not in RULES:
        raise SettingsError(f"rule is one of {', '.join(RULES)}{nearest(str(rule), RULES)}")
    asked = {
        f"{rule} rule": rule is not None,
        "bits": bits is not None,
        "loss budget": loss_budget is not None,
        "points": points is not None,
    }
    chosen = [what for what, said in asked.items() if said]
    if len(chosen) > 1:
        raise SettingsError(f"{' and '.join(chosen)} both decide the bits; ask for one of them")
    by = (chosen or ["entropy rule"])[0].removesuffix(" rule")
    if task is None and by not in ("entropy", "bits"):
        raise SettingsError(f"packing by {by} needs a task to measure on")
    return by


def _told(packed: Part, record: PartPacking, task: Task | None) -> Part:
    """The packed part with its size in its origin, and what it reaches if that was measured."""
    measured = {"packed bytes": float(record.size), "ratio": record.ratio}
    for name, value in record.after.items():
        measured |= {f"test {name}": value, f"test {name} before": record.before[name]}
    packed = with_measures(packed, measured)
    if task is None:
        return packed
    origin = replace(packed.origin, task=task.name, task_fingerprint=task.fingerprint)
    return packed.changed(origin=origin)
