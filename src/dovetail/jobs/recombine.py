"""Every front with every head of a shelf, measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.core.errors import SettingsError, ShelfError
from dovetail.core.views import Text, View
from dovetail.core.words import counted
from dovetail.jobs import Outcome
from dovetail.jobs.frame import Frame, alone, job
from dovetail.measure.recombination import Recombination
from dovetail.measure.recombine import recombine as recombine_parts
from dovetail.parts.part import Part
from dovetail.shelf.fits import MeasuredFit
from dovetail.shelf.names import stem_of
from dovetail.shelf.store import Shelf


@job
def recombine(
    frame: Frame,
    /,
    fronts: Sequence[str],
    heads: Sequence[str] = (),
    tasks: Sequence[str] = (),
    **options: Any,
) -> Outcome:
    """Measure fronts with heads, on one task for all fronts or on one for each.

    A front may be named by its network: ``low`` stands for ``low.front``.  Without ``heads``, each
    front brings its own: ``low.head``, or ``low.back`` as ``dovetail cut`` calls it.  What was
    measured is kept on the shelf, which then finds the best partner of a part.
    """
    if not tasks:
        raise SettingsError("name a task to measure on: --task digits")
    front_parts = {ref: frame.front(ref) for ref in dict.fromkeys(fronts)}
    refs = heads or [frame.own_head(ref, option="heads") for ref in front_parts]
    head_parts = {ref: frame.head(ref) for ref in dict.fromkeys(refs)}
    if len(tasks) not in (1, len(front_parts)):
        raise SettingsError(
            f"{len(tasks)} tasks for {len(front_parts)} fronts; give one for all, or one for "
            "each in their order"
        )
    record = recombine_parts(
        _by_network(front_parts),
        _by_network(head_parts),
        alone([frame.task(source) for source in tasks]),
        seed=frame.seed,
        **options,
    )
    facts = record.to_plain()["data"] | {
        "mean_off_diagonal": record.mean_off_diagonal,
        "upper_bound": record.upper_bound,
    }
    return Outcome((*record.view(), *_shelf_note(record, frame)), facts, (record,))


def keep_fits(record: Recombination, shelf: Shelf) -> int:
    """Keep every accuracy of a record on the shelf; how many there were."""
    facts = record.settings
    fits = [
        MeasuredFit(
            front=facts["front_digests"][pair.front],
            head=facts["head_digests"][pair.head],
            through=(),
            task=facts["tasks"][pair.front],
            task_fingerprint=facts["task_fingerprints"][pair.front],
            split=facts["split"],
            norms=norms,
            accuracy=accuracy,
            chance=1 / len(pair.classes),
            n=pair.n,
        )
        for pair in record.pairs
        for norms, accuracy in pair.accuracy.items()
    ]
    for fit in fits:
        shelf.keep_fit(fit)
    return len(fits)


def _shelf_note(record: Recombination, frame: Frame) -> View:
    """Keep what was measured; a shelf that cannot be written to costs no measurement."""
    store = frame.existing_store
    if store is None:
        return ()  # every part came from a folder of its own
    try:
        count = keep_fits(record, store)
    except ShelfError as error:
        return (Text(f"Not kept on the shelf: {error}", style="warning"),)
    are = "is" if count == 1 else "are"
    words = f"{counted(count, 'measurement')} {are} kept on the shelf {frame.folder}."
    return (Text(words, style="note"),)


def _by_network(parts: Mapping[str, Part]) -> dict[str, Part]:
    """Halves under the name of their network, by which a front knows its own head."""
    names = {ref: stem_of(ref) for ref in parts}
    uses = Counter(names.values())
    return {ref if uses[names[ref]] > 1 else names[ref]: part for ref, part in parts.items()}
