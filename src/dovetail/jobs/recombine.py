"""Every front with every head of a shelf, measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.core.errors import SettingsError, ShelfError
from dovetail.core.views import Text, View
from dovetail.jobs.locate import FRONTS, HEADS, find_half, own_head
from dovetail.jobs.outcome import Outcome
from dovetail.measure.recombination import Recombination
from dovetail.measure.recombine import recombine as recombine_parts
from dovetail.parts.part import Part
from dovetail.shelf.fits import MeasuredFit
from dovetail.shelf.names import stem_of
from dovetail.shelf.store import Shelf
from dovetail.tasks.load import load_task

__all__ = ["keep_fits", "recombine"]


def recombine(
    fronts: Sequence[str],
    *,
    heads: Sequence[str] = (),
    tasks: Sequence[str],
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
    **options: Any,
) -> Outcome:
    """Measure fronts with heads, on one task for all fronts or on one for each.

    A front may be named by its network: ``low`` stands for ``low.front``.  Without ``heads``, each
    front brings its own: ``low.head``, or ``low.back`` as ``dovetail cut`` calls it.  What was
    measured is kept on the shelf, which then finds the best partner of a part.
    """
    if not tasks:
        raise SettingsError("name a task to measure on: --task digits")
    found_fronts = {ref: find_half(ref, FRONTS, shelf) for ref in dict.fromkeys(fronts)}
    wanted = heads or [own_head(ref, shelf, option="--heads") for ref in found_fronts]
    found_heads = {ref: find_half(ref, HEADS, shelf) for ref in dict.fromkeys(wanted)}
    loaded = [load_task(source, data=data, **(task_options or {})) for source in tasks]
    if len(loaded) not in (1, len(found_fronts)):
        raise SettingsError(
            f"{len(loaded)} tasks for {len(found_fronts)} fronts; give one for all, or one for "
            "each in their order"
        )
    record = recombine_parts(
        _short(found_fronts),
        _short(found_heads),
        loaded[0] if len(loaded) == 1 else loaded,
        **options,
    )
    facts = record.to_plain()["data"] | {
        "mean_off_diagonal": record.mean_off_diagonal,
        "upper_bound": record.upper_bound,
    }
    return Outcome((*record.view(), *_kept(record, shelf)), facts, (record,))


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


def _kept(record: Recombination, folder: str | Path) -> View:
    """Keep what was measured; a shelf that cannot be written to costs no measurement."""
    if not Path(folder).is_dir():
        return ()  # every part came from a folder of its own
    try:
        count = keep_fits(record, Shelf(folder, create=False))
    except ShelfError as error:
        return (Text(f"Not kept on the shelf: {error}", style="warning"),)
    said = "1 measurement is" if count == 1 else f"{count} measurements are"
    return (Text(f"{said} kept on the shelf {folder}.", style="note"),)


def _short(parts: dict[str, Part]) -> dict[str, Part]:
    """Halves under the name of their network, by which a front knows its own head."""
    names = {ref: stem_of(ref) for ref in parts}
    taken = Counter(names.values())
    return {ref if taken[names[ref]] > 1 else names[ref]: part for ref, part in parts.items()}
