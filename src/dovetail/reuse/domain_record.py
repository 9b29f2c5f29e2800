"""How an adaptation to another domain went, and what it brought where labels can judge it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from dovetail.core.records import Record
from dovetail.core.views import Figure, Series, Table, Text, View
from dovetail.measure.joined import answers
from dovetail.measure.paired import PairedDifference, paired_difference
from dovetail.parts.norms import Norms, check_norms
from dovetail.parts.part import Part
from dovetail.reuse.refusing import refuse_unknown_classes
from dovetail.tasks.task import Split, Task
from dovetail.train.pretext_record import SOLVED, PretextTraining

__all__ = ["DomainAdaptation", "JudgedAdaptation", "Reading", "judge_adaptation"]


@dataclass(frozen=True, kw_only=True)
class DomainAdaptation(PretextTraining, kind="domain-adaptation"):
    """How a front was adapted by a pretext, with what it answered ``before``.

    >>> row = {"epoch": 1, "loss": 0.5, SOLVED: 0.875}
    >>> facts = {"part": "lenet5", "task": "photos", "pretext": "rotation", "chance": 0.25}
    >>> DomainAdaptation(rows=(row,), before={SOLVED: 0.5}, **facts)
    DomainAdaptation(lenet5 to photos by rotation: 1 epochs, solved 0.5 -> 0.875, chance 0.25)
    """

    before: dict[str, float] = field(default_factory=dict)
    space: str | None = None

    @property
    def title(self) -> str:
        """What was adapted to what."""
        return f"Adapting {self.part} to {self.task}"

    def view(self) -> View:
        """As of any training by a pretext, after what changed."""
        blocks = super().view()
        if SOLVED in self.before and SOLVED in self.final:
            blocks = (Text(self._change()), *blocks)
        if self.space is None:
            said = "Front and heads say no space, so that they belong together was taken on trust."
            blocks = (*blocks, Text(said, style="warning"))
        return blocks

    def _change(self) -> str:
        before, after = self.before[SOLVED], self.final[SOLVED]
        said = (
            f"Through the frozen head {before:.1%} of the questions about the new domain were "
            f"answered rightly before, and {after:.1%} after. "
        )
        if before <= self.chance:
            return said + (
                "Before, that was no better than guessing: the domain is so far from the source "
                "that the front may learn to answer in another language than the heads'."
            )
        if after <= before:
            return said + "The pretext gained nothing, so do not expect the classes to."
        return said + "Whether the classes gained, only labels can tell: reuse.judge_adaptation."

    def __repr__(self) -> str:
        told = ""
        if SOLVED in self.before and SOLVED in self.final:
            told = f", solved {self.before[SOLVED]:.4g} -> {self.final[SOLVED]:.4g}"
        return (
            f"DomainAdaptation({self.part} to {self.task} by {self.pretext}: {len(self.rows)} "
            f"epochs{told}, chance {self.chance:.4g})"
        )


@dataclass(frozen=True)
class Reading:
    """The accuracy of one front with the head, over all examples and as a mean of the classes'."""

    name: str
    norms: str
    accuracy: float
    class_mean: float


@dataclass(frozen=True, kw_only=True)
class JudgedAdaptation(Record, kind="judged-adaptation"):
    """What adapting brought: readings of source and adapted front, and the gain.

    The gain is over the source network *with the same norms*: new statistics alone often bring
    most of it, and need no training.

    >>> gain = PairedDifference(n=200, both=150, gained=20, lost=5, low=0.027, high=0.125)
    >>> readings = tuple(Reading(name, "batch", 0.8, 0.8) for name in ("source", "adapted"))
    >>> JudgedAdaptation(task="photos", split="test", readings=readings, gain=gain, chance=0.1)
    JudgedAdaptation(photos test: 77.5% -> 85.0%: +7.5 points [+2.7, +12.5], n 200)
    """

    task: str
    split: str
    readings: tuple[Reading, ...]
    gain: PairedDifference
    chance: float

    @property
    def title(self) -> str:
        """On what it was judged."""
        return f"Adapted to {self.task}"

    @property
    def accuracy(self) -> dict[str, float]:
        """The readings by name and norms, such as ``"source, batch norms"``."""
        return {f"{r.name}, {r.norms} norms": r.accuracy for r in self.readings}

    @property
    def summary(self) -> str:
        """The finding in a sentence, from the numbers."""
        if not self.gain.sure:
            verdict = "the interval holds zero, so it may be chance"
        else:
            verdict = "a gain" if self.gain.difference > 0 else "a loss"
        return (
            f"Training by the pretext changed the accuracy by {self.gain.shown} beyond what new "
            f"statistics alone give ({self.gain.n} examples, the same ones for both): {verdict}."
        )

    def view(self) -> View:
        """Readings, chance and the gain."""
        rows = tuple((r.name, r.norms, r.accuracy, r.class_mean) for r in self.readings)
        names = tuple(self.accuracy)
        return (
            Text(self.summary),
            Table(
                ("front", "norms", "accuracy", "mean of the classes"),
                (*rows, ("guessing", "", self.chance, self.chance)),
                ("", "", ".1%", ".1%"),
                f"{self.gain.n} examples of the {self.split} split of {self.task}",
            ),
            Figure(
                "bar",
                "Accuracy on the target domain",
                (Series("accuracy", names, tuple(self.accuracy.values())),),
                y_format=".0%",
            ),
        )

    def __repr__(self) -> str:
        gain = repr(self.gain).removeprefix("PairedDifference(")
        return f"JudgedAdaptation({self.task} {self.split}: {gain}"


def judge_adaptation(
    front: Part,
    adapted: Part,
    head: Part,
    task: Task,
    *,
    split: Split = "test",
    norms: Norms = "batch",
    seed: int = 0,
) -> JudgedAdaptation:
    """Compare the source front and the adapted one, each with the source head, on the target.

    Three readings: the source network as it was stored, the source network with ``norms``, and the
    adapted front with ``norms``.  The gain is the last over the second, on the same examples.

    Args:
        front: Of the source network.
        adapted: What :func:`~dovetail.train.domain.adapt_domain` made of it.
        head: Of the source network, for the classes.
        task: Of the target domain; its classes are matched with the head's by name.
        split: Which examples judge.
        norms: ``"batch"``; ``"recalibrated"`` on the target's training images; or ``"stored"``.
        seed: For the order of the examples, and for the images of the recalibration.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.part import build
    >>> from dovetail.tasks.builtin import load_task
    >>> from dovetail.train.end_to_end import end_to_end
    >>> digits = load_task("digits")
    >>> net = end_to_end(build("mlp", hidden=(32,)), digits, epochs=2).part
    >>> front, head = cut(net, at="hidden1")
    >>> judge_adaptation(front, front, head, digits).gain.difference
    0.0
    """
    check_norms(norms)
    refuse_unknown_classes(head, task)
    asked: list[tuple[str, Part, Norms]] = [("source", front, "stored")]
    if norms != "stored":
        asked.append(("source", front, norms))
    asked.append(("adapted", adapted, norms))
    found = [answers(which, head, task, how, split=split, seed=seed) for _, which, how in asked]
    return JudgedAdaptation(
        task=task.name,
        split=split,
        readings=tuple(
            Reading(name, how, float(right.double().mean()), _class_mean(right, labels))
            for (name, _, how), (right, labels) in zip(asked, found, strict=True)
        ),
        gain=paired_difference(found[-2][0], found[-1][0]),
        chance=1 / len(head.contract.classes or task.classes),
        settings={
            "split": split,
            "norms": norms,
            "order": "random",
            "seed": seed,
            "task_fingerprint": task.fingerprint,
            "front_digest": front.digest,
            "adapted_digest": adapted.digest,
            "head_digest": head.digest,
        },
    )


def _class_mean(right: Tensor, labels: Tensor) -> float:
    shown = sorted(set(labels.tolist()))
    return sum(float(right[labels == label].double().mean()) for label in shown) / len(shown)
