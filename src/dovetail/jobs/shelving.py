"""What jobs that train have in common: names on the shelf, and words about what was shelved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count

from dovetail.core.records import slug
from dovetail.core.views import Text
from dovetail.parts.part import Part
from dovetail.shelf.entry import Entry
from dovetail.shelf.fits import MeasuredFit
from dovetail.shelf.names import is_name
from dovetail.shelf.store import Shelf
from dovetail.tasks.task import Task

__all__ = [
    "keep_pair",
    "also",
    "names_for",
    "notes_of",
    "shelve",
]

_LONGEST = 40
"""A name may have a hundred letters, and more is put before and behind this."""


def names_for(titles: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """A part of a name for each title, each once, and none that is taken.

    >>> names_for(["digits", "digits~rot90", "digits", "rp", "数字"], taken=["rp"])
    ['digits', 'digits-rot90', 'digits-2', 'rp-2', 'task']
    """
    taken = list(taken)
    found: list[str] = []
    for title in titles:
        word = slug(title)[:_LONGEST].strip("-")
        word = word if is_name(word) else "task"
        tries = chain([word], (f"{word}-{number}" for number in count(2)))
        found.append(next(name for name in tries if name not in (*found, *taken)))
    return found


def shelve(store: Shelf, parts: Mapping[str, Part]) -> dict[str, Entry]:
    """Put each part on the shelf under its name, all or none."""
    return dict(zip(parts, store.add_all(parts), strict=True))


def also(entries: Iterable[Entry]) -> tuple[Text, ...]:
    """A sentence about what else was shelved."""
    refs = ", ".join(entry.ref for entry in entries)
    return (Text(f"Also on the shelf: {refs}."),) if refs else ()


def notes_of(tasks: Sequence[Task], resumed: bool) -> list[Text]:
    """What the data sets had to say, and whether an unfinished run was gone on with."""
    words = [Text(f"{task.name}: {note}.", style="note") for task in tasks for note in task.notes]
    return words + ([Text("Resumed an unfinished run.", style="note")] if resumed else [])


def keep_pair(
    store: Shelf, front: Part, head: Part, task: Task, norms: str, accuracy: float, chance: float
) -> None:
    """Keep on the shelf what a front and a head reached together on the test split."""
    store.keep_fit(
        MeasuredFit(
            front=front.digest,
            head=head.digest,
            through=(),
            task=task.name,
            task_fingerprint=task.fingerprint,
            split="test",
            norms=norms,
            accuracy=accuracy,
            chance=chance,
            n=task.size("test"),
        )
    )
