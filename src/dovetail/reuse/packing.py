"""Pack a part: choose the levels, encode, decode again, and measure what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from torch import nn

from dovetail.core.errors import SettingsError, argument, nearest
from dovetail.core.progress import progress
from dovetail.measure.evaluate import evaluate, need_test, with_measures
from dovetail.pack.compressing import compress
from dovetail.pack.levels import quantisable
from dovetail.pack.packed import describe
from dovetail.pack.quality import SMALLEST, smallest_within
from dovetail.pack.rules import refuse_unmatched
from dovetail.pack.searching import Measure, Rise, most_steps
from dovetail.parts.packed import holds, with_packed
from dovetail.parts.part import Part, as_part
from dovetail.reuse.judging import of_task
from dovetail.reuse.pack_agreement import Disagreement, ExpectedPoints
from dovetail.reuse.pack_losses import (
    POINTS,
    SCORES,
    gradient_sizes,
    loss_of,
    losses_with,
    scores_of,
)
from dovetail.reuse.pack_records import PartPacking, PartSearch
from dovetail.settings.pack import MARGIN, Pack
from dovetail.tasks.task import Task

Rule = Literal["entropy", "gradient"]
RULES: tuple[Rule, ...] = ("entropy", "gradient")
MOST_CALLS = 100
"""How often a search for the levels measures the validation split, at most."""


class PackedPart(NamedTuple):
    """A part that is saved packed, what packing made of it, and how its levels were searched."""

    part: Part
    record: PartPacking
    search: PartSearch | None = None


def pack_part(
    part: Part | nn.Module,
    task: Task | None = None,
    *,
    rule: Rule | None = Pack.rule,
    extra_bits: int = Pack.extra_bits,
    bits: int | Mapping[str, int] | None = Pack.bits,
    levels: int | Mapping[str, int] | None = Pack.levels,
    channels: bool = Pack.channels,
    lossless: Sequence[str] = Pack.lossless,
    loss_budget: float | None = Pack.loss_budget,
    points: float | None = Pack.points,
    margin: float | None = Pack.margin,
    most_calls: int = MOST_CALLS,
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
        levels: The same in levels, of which there may be any number; ``N`` bits are ``2 ** N``.
        channels: A range for every output channel instead of one a tensor.
        lossless: Patterns of the names of tensors to keep exactly.
        loss_budget: The smallest container whose mean validation loss rises by no more, with a
            margin for chance (see :func:`dovetail.pack.quality.smallest_within`).  Which loss that
            is follows from the task and the part (:func:`dovetail.reuse.pack_losses.losses_with`),
            and is in the records.
        points: The same for the accuracy, in points of a hundred that are expected to be lost
            (:class:`dovetail.reuse.pack_agreement.ExpectedPoints`): a tenth of one cannot be
            counted on hundreds of examples.
        margin: How many standard errors of the rise must fit into the budget, too (2.576).
        most_calls: How often a search for a budget may measure the validation split.
        seed: Of the weights and examples that are sampled.
        name: What the record calls the part; by default its recipe.

    >>> from dovetail.parts.part import build
    >>> small, record, _ = pack_part(build("mlp", shape=(64,), hidden=(64,), classes=10))
    >>> small.origin.how, record.ratio > 2.5
    ('pack', True)
    """
    part = as_part(part)
    by = _rule(rule, bits, levels, loss_budget, points, task)
    if margin is not None and by not in ("loss budget", "points"):
        raise SettingsError(
            f"{argument('margin')} is of a budget; give {argument('loss_budget')} or "
            f"{argument('points')} with it"
        )
    state = {key: tensor.detach().cpu() for key, tensor in part.module.state_dict().items()}
    if not state:
        raise SettingsError(f"{name or part.described!r} has no weights; there is nothing to pack")
    refuse_unmatched(lossless, state)
    if task is not None:
        need_test(task)
    before = _measures(part, task)
    packed_before = (
        len(part.packed) if part.packed is not None and holds(part.packed, state) else None
    )
    settings: dict[str, Any] = {"channels": channels, "lossless": list(lossless)}
    search: PartSearch | None = None
    loss: str | None = None
    if by in ("loss budget", "points"):
        assert task is not None
        budget = points if loss_budget is None else loss_budget
        assert budget is not None
        margin = MARGIN if margin is None else margin
        loss = POINTS if loss_budget is None else loss_of(part, task)
        measure: Measure = ExpectedPoints(part, task) if loss == POINTS else losses_with(part, task)
        tensors = sum(quantisable(tensor, SMALLEST) for tensor in state.values())
        with progress("searching", most_steps(tensors, most_calls)) as step:
            chosen = smallest_within(
                part.module.state_dict(),  # on its device, where it is seen what is tied
                measure,
                budget,
                margin=margin,
                most_calls=most_calls,
                probe=Disagreement(part, task),
                progress=step,
                **settings,
            )
        counted: Rise | None = None
        if isinstance(measure, ExpectedPoints):  # it measured the container last
            before_and_after = measure.given_mistakes.numpy(), measure.mistakes.numpy()
            counted = Rise.between(*before_and_after, margin)
        container, search = chosen.data, PartSearch.of(chosen.record, loss, packed_before, counted)
        settings |= {"budget": budget, "margin": margin}
    else:
        decided: dict[str, Any] = {"extra_bits": extra_bits, "seed": seed}
        if by in ("bits", "levels"):
            fixed = bits if by == "bits" else levels
            decided = {by: fixed if isinstance(fixed, int) else dict(fixed or {}), "seed": seed}
        elif by == "gradient":
            assert task is not None
            loss = loss_of(part, task)
            settings["gradients"] = gradient_sizes(part, task, seed=seed)
        settings |= decided
        container = compress(state, **settings)
        settings.pop("gradients", None)  # hundreds of numbers that the task gives again
    settings = {"rule": by, **settings}
    settings |= {"loss": loss} if loss else {}
    settings |= scores_of(part)
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
        given=packed_before,
        note="" if search is None else search.note,
        settings={**settings, "part_digest": part.digest, "packed_digest": packed.digest},
    )
    return PackedPart(_with_facts(packed, record, task), record, search)


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
    levels: int | Mapping[str, int] | None,
    loss_budget: float | None,
    points: float | None,
    task: Task | None,
) -> str:
    """What decides the levels; an error when more than one is to, or a task is missing."""
    if rule is not None and rule not in RULES:
        raise SettingsError(
            f"{argument('rule')} is one of {', '.join(RULES)}{nearest(str(rule), RULES)}"
        )
    wanted = {
        f"{rule} rule": rule is not None,
        "bits": bits is not None,
        "levels": levels is not None,
        "loss budget": loss_budget is not None,
        "points": points is not None,
    }
    chosen = [way for way, asked_for in wanted.items() if asked_for]
    if len(chosen) > 1:
        raise SettingsError(f"{' and '.join(chosen)} both decide the bits; ask for one of them")
    by = (chosen or ["entropy rule"])[0].removesuffix(" rule")
    if task is None and by not in ("entropy", "bits", "levels"):
        raise SettingsError(f"packing by {by} needs a task to measure on")
    return by


def _with_facts(packed: Part, record: PartPacking, task: Task | None) -> Part:
    """The packed part with its size in its origin, and what it reaches if that was measured."""
    measured = {"packed bytes": float(record.size), "ratio": record.ratio}
    for name, value in record.after.items():
        measured |= {f"test {name}": value, f"test {name} before": record.before[name]}
    packed = with_measures(packed, measured)
    return packed if task is None else of_task(packed, task)
