"""What explaining a fit found: the reasons, what the parts reach as they are, and the repairs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from dovetail.core.declared import Column, Shown, blocks, of_each, table, text, when
from dovetail.core.records import Record
from dovetail.core.views import Cell, Table, Text, View
from dovetail.core.words import counted

POLICIES = ("stored", "recalibrated", "batch")
"""Norms in the order of preference: of equals the one that asks least of whoever predicts."""


Weight = Literal["stops", "spoils", "mind"]


@dataclass(frozen=True)
class Reason:
    """One thing that is wrong between a front, a head and a task.

    What ``"stops"`` leaves nothing to measure; what ``"spoils"`` lets the tensors flow, but the
    contract refuses it; what to ``"mind"`` no contract refuses, yet it decides the accuracy.

    >>> Reason("space", "The features were never made to agree.", "spoils").weight
    'spoils'
    """

    about: str
    says: str
    weight: Weight


@dataclass(frozen=True)
class Repair:
    """One way to make a head work behind a front, and its price.

    ``accuracy`` and ``seconds`` are of one ``kind``: ``"measured"`` here, or ``"expected"``, which
    is a guess, and ``known_by`` says how it was made (``low`` and ``high`` are its bounds).  A
    repair that does not apply says ``why_not``; one without a task has no figures at all.
    ``python`` and ``command`` are how to do it.

    >>> Repair("stitch", "Maps one space to the other.", "images", accuracy=0.9, kind="measured")
    Repair(stitch: 90.0% measured)
    """

    name: str
    does: str
    needs: str
    applies: bool = True
    why_not: str | None = None
    kind: Literal["measured", "expected"] = "expected"
    accuracy: float | None = None
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    norms: str | None = None
    known_by: str = ""
    python: str = ""
    command: str | None = None

    @property
    def reaches(self) -> Cell:
        """The accuracy for a table: a number, or the bounds of a guess."""
        if self.kind == "expected" and self.low is not None and self.high is not None:
            return f"{self.low:.1%} to {self.high:.1%}"
        if self.kind == "expected" and self.low is not None:
            return f"{self.low:.1%} or more"
        return self.accuracy

    @property
    def explained(self) -> str:
        """What it does, and how its figures are known."""
        return f"{self.name}: {self.does} {self.known_by}".strip()

    def __repr__(self) -> str:
        if not self.applies:
            return f"Repair({self.name}: does not apply)"
        reaches = "unknown" if self.accuracy is None else f"{self.accuracy:.1%} {self.kind}"
        return f"Repair({self.name}: {reaches})"


def best_first(repairs: Iterable[Repair]) -> tuple[Repair, ...]:
    """Measured ones first, the most accurate first, of equals the cheaper; then what is guessed.

    >>> slow = Repair("a", "", "", kind="measured", accuracy=0.9, seconds=2.0)
    >>> fast = Repair("b", "", "", kind="measured", accuracy=0.9, seconds=1.0)
    >>> guess = Repair("c", "", "", accuracy=0.99)
    >>> [repair.name for repair in best_first([guess, slow, fast])]
    ['b', 'a', 'c']
    """

    def order(repair: Repair) -> tuple[bool, bool, float, float]:
        known = -1.0 if repair.accuracy is None else repair.accuracy
        price = math.inf if repair.seconds is None else repair.seconds
        return not repair.applies, repair.kind != "measured", -known, price

    return tuple(sorted(repairs, key=order))


def best_norms(accuracies: dict[str, float]) -> str:
    """The policy with the greatest accuracy; of equals ``"stored"``, then ``"recalibrated"``.

    >>> best_norms({"batch": 0.9, "stored": 0.9, "recalibrated": 0.8})
    'stored'
    """
    return max((p for p in POLICIES if p in accuracies), key=accuracies.__getitem__)


@dataclass(frozen=True, kw_only=True)
class FitReport(Record, kind="fit-report", title="{head} behind {front}"):
    """Whether a head works behind a front, why not, and what each repair would cost.

    ``as_it_is`` and ``bound`` hold an accuracy for every policy of norms: the front with the head,
    and the ``reference`` (a front of the head's space) with the head, on the same ``n`` images and
    choosing among the same ``classes``.  ``obstacle`` says why nothing was measured.

    >>> report = FitReport(front="a", head="b", fits=False, reasons=(), repairs=())
    >>> report
    FitReport(b behind a: does not fit)
    """

    front: str
    head: str
    fits: bool
    reasons: tuple[Reason, ...]
    repairs: tuple[Repair, ...]
    task: str | None = None
    split: str | None = None
    n: int = 0
    classes: tuple[str, ...] = ()
    as_it_is: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)
    reference: str | None = None
    obstacle: str | None = None

    @property
    def why_not(self) -> tuple[str, ...]:
        """Every reason as a sentence."""
        return tuple(reason.says for reason in self.reasons)

    @property
    def chance(self) -> float | None:
        """The accuracy of a blind choice among the classes."""
        return 1 / len(self.classes) if self.classes else None

    @property
    def applicable(self) -> tuple[Repair, ...]:
        """The repairs that apply, best first."""
        return tuple(repair for repair in self.repairs if repair.applies)

    @property
    def best(self) -> Repair | None:
        """The best repair that was measured."""
        return next((repair for repair in self.applicable if repair.kind == "measured"), None)

    def repair(self, name: str) -> Repair:
        """The repair of that name, such as ``"stitch"``."""
        return next(repair for repair in self.repairs if repair.name == name)

    @property
    def summary(self) -> str:
        """The finding in a few sentences, from the numbers."""
        against = sum(reason.weight != "mind" for reason in self.reasons)
        refused = f"The contract refuses the join, for {counted(against, 'reason')}."
        sentences = ["The contract allows the join." if self.fits else refused]
        if self.as_it_is:
            norms = best_norms(self.as_it_is)
            beside = f"chance {self.chance or 0:.1%}"
            if self.bound:
                beside += f", {max(self.bound.values()):.1%} with a front of the head's own space"
            sentences.append(
                f"As it is: {self.as_it_is[norms]:.1%} on {self.n} {self.split} images ({beside})."
            )
        before, best = max(self.as_it_is.values(), default=0.0), self.best
        reached = 0.0 if best is None or best.accuracy is None else best.accuracy
        if best is not None and reached > before:
            price = f"{reached:.1%} for {best.seconds or 0:.2g} s"
            sentences.append(f"Best repair that was measured: {best.name}, {price}.")
        return " ".join(sentences)

    def _accuracies(self) -> Table | None:
        rows = tuple(
            (norms, self.as_it_is.get(norms), self.bound.get(norms), self.chance)
            for norms in POLICIES
        )
        columns = ("norms", "as it is", f"{self.reference or 'reference'} + head", "chance")
        return Table(columns, rows, ("", ".1%", ".1%", ".1%")) if self.as_it_is else None

    def _how_to(self) -> Text | None:
        lines = [repair.command or repair.python for repair in self.applicable]
        return Text("\n".join(lines), style="code") if lines else None

    def _refused(self) -> list[Repair]:
        return [] if self.fits else [repair for repair in self.repairs if not repair.applies]

    def repairs_view(self) -> View:
        """The repairs that apply with their prices and how to do them; then why the others not."""
        return blocks(self, self._of_repairs)

    _of_repairs: ClassVar[tuple[Shown, ...]] = (
        when(
            lambda report: report.task is not None,
            table(
                "applicable",
                Column("repair", "name"),
                Column("accuracy", "reaches", ".1%"),
                Column("known", "kind"),
                Column("seconds", spec=".2g"),
                Column("norms"),
                Column("needs"),
                caption="Repairs",
            ),
            of_each("applicable", text("{explained}", "note")),
        ),
        when(
            lambda report: report.task is None,
            table(
                "applicable",
                Column("repair", "name"),
                Column("what it does", "does"),
                Column("needs"),
                caption="Repairs that would apply; give a task to learn their price",
            ),
        ),
        _how_to,
        table(_refused, Column("no repair", "name"), Column("because", "why_not")),
    )

    shows = (
        text("{summary}"),
        table("reasons", Column("about"), Column("weight"), Column("why not", "says")),
        when("obstacle", text("Nothing was measured: {obstacle}", "note")),
        _accuracies,
        repairs_view,
    )

    def __repr__(self) -> str:
        finding = "fits" if self.fits else "does not fit"
        if self.as_it_is:
            finding += f", {self.as_it_is[best_norms(self.as_it_is)]:.1%} as it is"
        if self.best is not None and self.best.accuracy is not None:
            finding += f", {self.best.accuracy:.1%} with {self.best.name}"
        return f"FitReport({self.head} behind {self.front}: {finding})"
