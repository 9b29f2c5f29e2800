"""What was seen inside a part: an answer, what each look says, and what more there is to see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dovetail.core.declared import Column, blocks, table, text, when
from dovetail.core.errors import FormatError
from dovetail.core.plain import from_plain, to_plain
from dovetail.core.records import Record, record_within
from dovetail.core.views import Table, Text, View
from dovetail.core.words import counted
from dovetail.lens.profile_record import LayerWeights
from dovetail.ranking.course import lasting

WORDS = {
    "deviation": "how far the weights have moved",
    "profile": "what each layer learnt",
    "curvature": "how sharp the minimum is",
    "gradients": "how gradients pass the layers",
    "landscape": "the loss around the weights",
    "hessian": "curvature of the whole network",
    "study": "scratch, frozen and fine-tuned, side by side",
    "theory": "what theory expects from the task it learnt",
}
"""What each look is about."""


@dataclass(frozen=True)
class Look:
    """One look: its name, the seconds it took, what it says in a sentence, and its record."""

    name: str
    seconds: float
    answer: str
    record: Record

    def to_plain(self) -> dict[str, Any]:
        """As JSON, the whole record in it."""
        facts = {"name": self.name, "seconds": self.seconds, "answer": self.answer}
        return {**to_plain(facts), "record": self.record.to_plain()}

    @classmethod
    def from_plain(cls, value: Any, where: str) -> Look:
        """Read what :meth:`to_plain` wrote."""
        facts = from_plain(dict[str, Any], value, where)
        kind = facts.get("record")
        if isinstance(kind, dict) and kind.get("record") == Inspection.kind:
            raise FormatError(f"{where}: a look is no inspection")
        return cls(
            name=from_plain(str, facts.get("name"), f"{where}.name"),
            seconds=from_plain(float, facts.get("seconds"), f"{where}.seconds"),
            answer=from_plain(str, facts.get("answer"), f"{where}.answer"),
            record=record_within(kind, f"{where}.record"),
        )


@dataclass(frozen=True)
class Offer:
    """What else there is to look at: about how long it takes, and how to ask for it."""

    name: str
    seconds: float | None
    how: str

    @property
    def about(self) -> str:
        """What it shows."""
        return WORDS.get(self.name, self.name)

    @property
    def lasts(self) -> str:
        """How long, in words."""
        return "–" if self.seconds is None else f"about {lasting(max(self.seconds, 0.1))}"


_WEIGHTS = table(
    "weights",
    Column("weight", "name"),
    Column("out", lambda weight: weight.shape[0]),
    Column("in", lambda weight: weight.shape[1]),
    Column("stable rank", "stable_rank", ".2f"),
    Column("entropy, bits", "entropy", ".2f"),
)

_OFFERS = when(
    "offers",
    text("What more there is to see", "heading"),
    table(
        "offers",
        Column("look", "name"),
        Column("about"),
        Column("takes", "lasts"),
        Column("ask for it with", "how"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Inspection(
    Record,
    kind="inspection",
    title="Inside {part}{_on}",
    brief="{part}{_on}: {looks!n} looks, {offers!n} more to ask for",
):
    """What was seen inside a part.

    ``head`` says whose head gave the outputs; ``accuracy`` is what the part's own head gets right
    of the examples, ``left_out`` what a linear head on its features would of examples left out.
    ``weights`` are those of a part that was looked at without a task.

    >>> Inspection(part="lenet5", answer="It separates them.", looks=(), offers=())
    Inspection(lenet5: 0 looks, 0 more to ask for)
    """

    part: str
    task: str = ""
    before: str = ""
    n: int = 0
    answer: str
    looks: tuple[Look, ...]
    offers: tuple[Offer, ...] = ()
    weights: tuple[LayerWeights, ...] = ()
    head: str = ""
    accuracy: float | None = None
    left_out: float | None = None
    planned: bool = False
    stopped: str = ""
    seconds: float = 0.0

    @property
    def _on(self) -> str:
        return f" on {self.task}" if self.task else ""

    def look(self, name: str) -> Record | None:
        """The record of a look, if it was taken."""
        return next((look.record for look in self.looks if look.name == name), None)

    @property
    def _cut_short(self) -> str:
        return (
            f"Interrupted at {self.stopped}; what was seen before is shown." if self.stopped else ""
        )

    @property
    def _setting(self) -> str:
        said = f"{counted(self.n, 'example')} in {lasting(self.seconds)}." if self.n else ""
        return f"{said} The loss is that of {self.head}." if self.head else said

    def _said(self) -> Table | None:
        rows = tuple((look.name, WORDS.get(look.name, ""), look.seconds) for look in self.looks)
        return Table(("look", "about", "seconds"), rows, ("", "", ".1f")) if rows else None

    def _pictures(self) -> View:
        """What each look shows, under its name."""
        return tuple(
            block
            for look in self.looks
            for block in (Text(look.record.title, style="heading"), *look.record.view())
        )

    shows = (
        text("{answer}"),
        text("{_cut_short}", "warning"),
        text("{_setting}", "note"),
        _said,
        _WEIGHTS,
        _pictures,
        _OFFERS,
    )

    def in_brief(self) -> View:
        """For a terminal: the answer, what each look says with one picture, and what more."""
        return (
            *blocks(self, self.shows[:3]),
            *(block for look in self.looks for block in _in_brief(look, self.answer)),
            *blocks(self, (_WEIGHTS, _OFFERS)),
        )


_ROWS = 40
"""Of a table on a terminal."""


def _in_brief(look: Look, known: str) -> View:
    """A heading, what it says unless that is known, a profile's table, else one figure."""
    about = WORDS.get(look.name, look.name)
    said = () if look.answer in known else (Text(look.answer),)
    shown = look.record.view()
    tables = [each for each in shown if isinstance(each, Table) and len(each.rows) <= _ROWS]
    drawn = [each for each in shown if not isinstance(each, Table | Text)]
    chosen = tables if look.name in ("profile", "study", "theory") else drawn
    return (Text(about[:1].upper() + about[1:], style="heading"), *said, *chosen[:1])
