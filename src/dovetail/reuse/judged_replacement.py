"""What another front behind the same head changes: over all examples, and class by class."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.core.declared import Column, table, text
from dovetail.core.records import Record
from dovetail.measure.intervals import PairedDifference, paired_difference
from dovetail.measure.joined import answers
from dovetail.measure.pairs import choose_norms
from dovetail.parts.norms import Norms, Statistics, has_batch_norm
from dovetail.parts.part import Part
from dovetail.reuse.judging import chance_for, facts_of, refuse_unknown_classes, verdict
from dovetail.settings.reuse import Replace
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

_SHOWN = 10
"""So many classes are listed, those that lose most first."""


@dataclass(frozen=True)
class Switch:
    """From the old front to the new one behind the same head, with one policy of norms.

    ``classes`` compares the examples of each class.

    >>> change = PairedDifference(n=200, both=180, gained=4, lost=9, low=-0.064, high=0.012)
    >>> Switch("stored", change, {})
    Switch(stored norms, 94.5% -> 92.0%: -2.5 points [-6.4, +1.2], n 200)
    """

    norms: str
    change: PairedDifference
    classes: dict[str, PairedDifference]

    @property
    def worst_first(self) -> dict[str, PairedDifference]:
        """The classes in an order that no file keeps: that with the largest drop first."""
        return dict(sorted(self.classes.items(), key=lambda item: (item[1].difference, item[0])))

    @property
    def verdict(self) -> str:
        """The finding in words, from the numbers."""
        change = self.change
        judgement = verdict(
            change,
            f"The interval holds zero; a drop of {max(-change.low, 0):.1%} cannot be ruled out.",
            "The new front is better.",
            "The new front is worse.",
        )
        return (
            f"With {self.norms} norms the switch changes the accuracy by {change.shown} "
            f"({change.gained} examples won, {change.lost} lost of {change.n}). {judgement}"
        )

    def __repr__(self) -> str:
        change = repr(self.change).removeprefix("PairedDifference(")
        return f"Switch({self.norms} norms, {change}"


OF_SWITCHES = (
    text("{switches[0].verdict}"),
    table(
        "switches",
        Column("norms"),
        Column("old front", "change.before", ".1%"),
        Column("new front", "change.after", ".1%"),
        Column("change", "change.shown"),
        caption="Accuracy behind the same head, {switches[0].change.n} examples of the {split} "
        "split",
    ),
    table(
        lambda record: tuple(record.switches[0].worst_first.items())[:_SHOWN],
        Column("class", 0),
        Column("examples", lambda row: row[1].n),
        Column("old front", lambda row: row[1].before, ".1%"),
        Column("new front", lambda row: row[1].after, ".1%"),
        Column("change", lambda row: row[1].shown),
        caption="The largest drops, with {switches[0].norms} norms",
    ),
)
"""What changes, by policy of norms, and the classes that lose most with the first policy."""


@dataclass(frozen=True, kw_only=True)
class JudgedReplacement(Record, kind="judged-replacement", title="Another front for {task}"):
    """The accuracies of old and new front behind one head, and the change, example by example.

    The first of ``switches`` is with the norms that were asked for.

    >>> change = PairedDifference(n=200, both=180, gained=4, lost=9, low=-0.064, high=0.012)
    >>> found = JudgedReplacement(
    ...     task="digits", split="test", switches=(Switch("stored", change, {}),), chance=0.1
    ... )
    >>> found, found.change.difference
    (JudgedReplacement(digits test: stored norms, 94.5% -> 92.0%: ..., n 200), -0.025)
    """

    task: str
    split: str
    switches: tuple[Switch, ...]
    chance: float

    @property
    def change(self) -> PairedDifference:
        """With the norms that were asked for."""
        return self.switches[0].change

    @property
    def classes(self) -> dict[str, PairedDifference]:
        """The change of each class, the largest drop first."""
        return self.switches[0].worst_first

    shows = OF_SWITCHES

    def __repr__(self) -> str:
        first = repr(self.switches[0]).removeprefix("Switch(")
        return f"JudgedReplacement({self.task} {self.split}: {first}"


def judge_replacement(
    old: Part,
    new: Part,
    head: Part,
    task: Task,
    *,
    split: Split = "test",
    norms: Norms = Replace.norms,
    seed: int = 0,
) -> JudgedReplacement:
    """Compare two fronts behind one head on the same examples: all of them, and class by class.

    Where there are batch norms, stored and batch statistics are both reported, those asked for
    first: a head in production has the stored ones, because requests come one at a time.

    Args:
        old: The front that runs today.
        new: The front to put in its place.
        head: What stays.
        task: Its classes are matched with the head's by name.
        split: Which examples judge.
        norms: Statistics of batch norms, for both fronts; ``"auto"``: what the new one was trained
            for.
        seed: For the order of the examples, and for the images of a recalibration.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.load import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> digits = load_task("digits")
    >>> front, head = cut(end_to_end(build("mlp", hidden=(32,)), digits, epochs=3).part, "hidden1")
    >>> other, _ = cut(build("mlp", hidden=(32,), seed=1), at="hidden1")
    >>> judge_replacement(front, other, head, digits).change.difference < -0.5
    True
    """
    refuse_unknown_classes(head, task)
    chosen = choose_norms(norms, task, (new, head), seed=seed)
    policies = policies_for(chosen.norms, old, new, head)
    return JudgedReplacement(
        task=task.name,
        split=split,
        switches=tuple(switch_between(old, new, head, task, split, how, seed) for how in policies),
        chance=chance_for(head, task),
        settings=facts_of(task, split, chosen, seed, old=old, new=new, head=head),
    )


def policies_for(norms: Statistics, *parts: Part) -> tuple[Statistics, ...]:
    """The policy asked for, then stored and batch statistics where they make a difference."""
    if not any(has_batch_norm(part.module) for part in parts):
        return (norms,)
    both: tuple[Statistics, ...] = ("stored", "batch")
    return (norms, *(other for other in both if other != norms))


def switch_between(
    old: Part,
    new: Part,
    head: Part,
    task: Task,
    split: Split,
    norms: Statistics,
    seed: int = 0,
) -> Switch:
    """The change from one front to the other with one policy of norms."""
    before, labels = answers(old, head, task, norms, split=split, seed=seed)
    after, _ = answers(new, head, task, norms, split=split, seed=seed)
    by_class = {
        name: paired_difference(before[labels == place], after[labels == place])
        for place, name in enumerate(task.classes)
        if (labels == place).any()
    }
    return Switch(norms, paired_difference(before, after), by_class)
