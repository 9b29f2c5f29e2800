"""Rank the parts on a shelf for a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from dovetail.core.errors import ShelfError
from dovetail.core.views import Block, Text
from dovetail.jobs.locate import find_part
from dovetail.jobs.outcome import Outcome
from dovetail.parts.part import Part
from dovetail.ranking.ranker import rank as rank_parts
from dovetail.ranking.ranker import rank_over
from dovetail.shelf.entry import Entry
from dovetail.shelf.store import Shelf
from dovetail.tasks.load import load_task

__all__ = ["rank"]


def rank(
    sources: Sequence[str],
    *,
    parts: Sequence[str] = (),
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
    **options: Any,
) -> Outcome:
    """Rank parts for one task, or for several at once.

    Without ``parts``, the newest version of everything on the shelf that takes a task's inputs; a
    name that ends in ``*`` stands for all that begin with it.
    """
    tasks = [load_task(source, data=data, **(task_options or {})) for source in sources]
    candidates, notes = _candidates(parts, shelf)
    if len(tasks) > 1:
        over = rank_over(candidates, tasks, **options)
        data_out = over.to_plain()["data"]
        return Outcome((*over.view(), *notes), data_out, (over, *over.rankings))
    ranking = rank_parts(candidates, tasks[0], **options)
    best = ranking.best
    asked = f" --at {best.at}" if best.at else ""
    follow = [
        Text(f"Next: dovetail cut {best.part}{asked} --shelf {quote(str(shelf))}", style="note")
    ]
    return Outcome(
        (*ranking.view(), *notes, *(follow if best.at else ())),
        ranking.to_plain()["data"],
        (ranking,),
    )


class _Loaded(Mapping[str, Part]):
    """Parts by name, each read from disk when it is its turn."""

    def __init__(self, refs: list[str], shelf: str | Path) -> None:
        self._refs, self._shelf = refs, shelf

    def __getitem__(self, ref: str) -> Part:
        return find_part(ref, self._shelf)

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)


def _candidates(parts: Sequence[str], shelf: str | Path) -> tuple[_Loaded, list[Block]]:
    patterns = [ref for ref in parts if ref.endswith("*")]
    refs = list(dict.fromkeys(ref for ref in parts if not ref.endswith("*")))
    if parts and not patterns:
        return _Loaded(refs, shelf), []
    newest: dict[str, Entry] = {}
    for entry in Shelf(shelf, create=False).entries():
        wanted = not parts or any(entry.name.startswith(each[:-1]) for each in patterns)
        if wanted and (entry.name not in newest or entry.version > newest[entry.name].version):
            newest[entry.name] = entry
    backs = [name for name, entry in newest.items() if _takes_features(entry)]
    refs += [name for name in newest if name not in backs and name not in refs]
    if not refs:
        raise ShelfError(
            f"there is no part on the shelf '{shelf}' that takes a task's inputs"
            + (f" and begins with {patterns[0][:-1]!r}" if patterns else "")
        )
    takes = "1 part takes" if len(backs) == 1 else f"{len(backs)} parts take"
    said = f"{takes} the features of others and cannot be ranked."
    return _Loaded(refs, shelf), [Text(said, style="note")] if backs else []


def _takes_features(entry: Entry) -> bool:
    return len(entry.contract.takes) != 1 or entry.contract.takes[0].space is not None
