"""How a new extractor behind a head went, and what the switch from the old one would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.core.records import Record
from dovetail.core.views import Cell, Table, Text, View
from dovetail.measure.joined import answers
from dovetail.measure.paired import PairedDifference, paired_difference
from dovetail.parts.norms import Norms, check_norms, has_batch_norm
from dovetail.parts.part import Part
from dovetail.reuse.refusing import refuse_unknown_classes
from dovetail.tasks.task import Split, Task
from dovetail.train.fit import Training

__all__ = [
    "JudgedReplacement",
    "Replacement",
    "Switch",
    "judge_replacement",
    "policies_for",
    "switch_between",
]

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
        return dict(sorted(self.classes.items(), key=lambda each: (each[1].difference, each[0])))

    def __repr__(self) -> str:
        said = repr(self.change).removeprefix("PairedDifference(")
        return f"Switch({self.norms} norms, {said}"


@dataclass(frozen=True, kw_only=True)
class JudgedReplacement(Record, kind="judged-replacement"):
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
    def title(self) -> str:
        """On what it was judged."""
        return f"Another front for {self.task}"

    @property
    def change(self) -> PairedDifference:
        """With the norms that were asked for."""
        return self.switches[0].change

    @property
    def classes(self) -> dict[str, PairedDifference]:
        """The change of each class, the largest drop first."""
        return self.switches[0].worst_first

    def view(self) -> View:
        """The change, by policy of norms and by class."""
        return switch_blocks(self.switches, self.split)

    def __repr__(self) -> str:
        said = repr(self.switches[0]).removeprefix("Switch(")
        return f"JudgedReplacement({self.task} {self.split}: {said}"


@dataclass(frozen=True, kw_only=True)
class Replacement(Training, kind="replacement"):
    """How a new front was trained against a frozen head.

    ``accuracy`` is that of the new front with the head on the validation split, by policy of norms;
    ``switches`` compare it with the old front, if there was one to compare with; ``unseen`` are
    classes of the head that the task does not show.

    >>> row = {"epoch": 1, "loss": 0.5}
    >>> Replacement(
    ...     part="resnet8", task="digits", head="back of lenet5 at conv2", rows=(row,),
    ...     accuracy={"stored": 0.92},
    ... )
    Replacement(resnet8 before back of lenet5 at conv2, on digits: 1 epochs, accuracy 0.92)
    """

    head: str
    accuracy: dict[str, float] = field(default_factory=dict)
    switches: tuple[Switch, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What was put before what."""
        return f"{self.part} before {self.head}"

    def view(self) -> View:
        """The switch before it is made, then the curves of the training."""
        rows: tuple[tuple[Cell, ...], ...] = tuple(self.accuracy.items())
        blocks: View = ()
        if self.switches:
            blocks = switch_blocks(self.switches, "validation")
        elif rows:
            caption = f"The new front with the head, on the validation split of {self.task}"
            blocks = (Table(("norms", "accuracy"), rows, ("", ".1%"), caption),)
        if self.unseen:
            said = (
                f"The head also tells {', '.join(self.unseen[:10])} apart, of which "
                f"{self.task} shows nothing: how the new front does there is not known."
            )
            blocks = (*blocks, Text(said, style="warning"))
        return (*blocks, *super().view())

    def __repr__(self) -> str:
        asked = self.settings.get("norms", next(iter(self.accuracy), None))
        said = f", accuracy {self.accuracy[asked]:.4g}" if asked in self.accuracy else ""
        where = f"{self.part} before {self.head}, on {self.task}"
        return f"Replacement({where}: {len(self.rows)} epochs{said})"


def switch_blocks(switches: Sequence[Switch], split: str) -> View:
    """What changes, by policy of norms, and the classes that lose most with the first policy."""
    first = switches[0]
    rows = tuple(
        (each.norms, each.change.before, each.change.after, each.change.shown) for each in switches
    )
    worst = tuple(
        (name, change.n, change.before, change.after, change.shown)
        for name, change in list(first.worst_first.items())[:_SHOWN]
    )
    return (
        Text(_verdict(first)),
        Table(
            ("norms", "old front", "new front", "change"),
            rows,
            ("", ".1%", ".1%", ""),
            f"Accuracy behind the same head, {first.change.n} examples of the {split} split",
        ),
        Table(
            ("class", "examples", "old front", "new front", "change"),
            worst,
            ("", "", ".1%", ".1%", ""),
            f"The largest drops, with {first.norms} norms",
        ),
    )


def _verdict(switch: Switch) -> str:
    change = switch.change
    said = (
        f"With {switch.norms} norms the switch changes the accuracy by {change.shown} "
        f"({change.gained} examples won, {change.lost} lost of {change.n}). "
    )
    if not change.sure:
        return (
            said
            + f"The interval holds zero; a drop of {max(-change.low, 0):.1%} cannot be ruled out."
        )
    return said + (
        "The new front is better." if change.difference > 0 else "The new front is worse."
    )


def judge_replacement(
    old: Part,
    new: Part,
    head: Part,
    task: Task,
    *,
    split: Split = "test",
    norms: Norms = "stored",
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
        norms: Statistics of batch norms, for both fronts.
        seed: For the order of the examples, and for the images of a recalibration.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> digits = load_task("digits")
    >>> front, head = cut(end_to_end(build("mlp", hidden=(32,)), digits, epochs=3).part, "hidden1")
    >>> other, _ = cut(build("mlp", hidden=(32,), seed=1), at="hidden1")
    >>> judge_replacement(front, other, head, digits).change.difference < -0.5
    True
    """
    check_norms(norms)
    refuse_unknown_classes(head, task)
    policies = policies_for(norms, old, new, head)
    return JudgedReplacement(
        task=task.name,
        split=split,
        switches=tuple(switch_between(old, new, head, task, split, how, seed) for how in policies),
        chance=1 / len(head.contract.classes or task.classes),
        settings={
            "split": split,
            "norms": list(policies),
            "order": "random",
            "seed": seed,
            "task_fingerprint": task.fingerprint,
            "old_digest": old.digest,
            "new_digest": new.digest,
            "head_digest": head.digest,
        },
    )


def policies_for(norms: Norms, *parts: Part) -> tuple[Norms, ...]:
    """The policy asked for, then stored and batch statistics where they make a difference."""
    if not any(has_batch_norm(part.module) for part in parts):
        return (norms,)
    both: tuple[Norms, ...] = ("stored", "batch")
    return (norms, *(each for each in both if each != norms))


def switch_between(
    old: Part,
    new: Part,
    head: Part,
    task: Task,
    split: Split,
    norms: Norms,
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
