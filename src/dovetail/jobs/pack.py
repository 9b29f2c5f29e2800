"""Pack a part of the shelf or of a folder, a file of tensors, or every part on a shelf."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace as exchanged
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from dovetail.core.errors import FormatError, SettingsError
from dovetail.core.progress import progress
from dovetail.core.views import Text
from dovetail.jobs.frame import notes_of
from dovetail.jobs.locate import find_part
from dovetail.jobs.outcome import Outcome
from dovetail.jobs.pack_places import (
    DEFAULT_SHELF,
    free,
    is_container,
    is_packed,
    located,
    place_for,
    put,
)
from dovetail.jobs.pack_shelf import every_part
from dovetail.pack.compressing import write
from dovetail.pack.rules import Rules, refuse_unmatched
from dovetail.parts.part import Part
from dovetail.reuse.packing import PartPacking, pack_part
from dovetail.shelf.entry import Entry
from dovetail.shelf.listing import shown_bytes
from dovetail.shelf.names import name_of
from dovetail.tasks.load import load_task

__all__ = ["pack", "pack_all"]

PACKED = "-packed"
"""What a packed part's name ends with, unless another is said."""


def pack(
    ref: str,
    *,
    to: Path | None = None,
    name: str | None = None,
    replace: bool = False,
    task: str | None = None,
    loss_budget: float | None = None,
    points: float | None = None,
    margin: float | None = None,
    shelf: str | Path | None = None,
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
    **how: Any,
) -> Outcome:
    """Pack what ``ref`` names: a ``.safetensors`` file, a part's folder, or a part on the shelf.

    Without ``to`` and ``name`` the result goes where the source is, under a name that ends with
    ``-packed`` (a file: with ``.dovepack``).  ``how`` are the options of :func:`pack_part`.
    """
    source = Path(ref)
    if source.is_file() or source.suffix in (".safetensors", ".dovepack"):
        if is_container(source):
            raise FormatError(
                f"{source} is packed already; pack the file that it was made of, or unpack it "
                f"first ('dovetail unpack {source}'; what was rounded stays so)"
            )
        with _reading(source):  # what can never be packed is told before what would not suit it
            pass
        asked = (task, name, loss_budget, points, shelf)
        if any(said is not None for said in asked) or how.get("rule") == "gradient":
            raise SettingsError(
                "a file of tensors is no part: no --task, --rule gradient, budget, --name or "
                "--shelf; it goes where --to says"
            )
        return _pack_file(source, to or source.with_suffix(".dovepack"), replace, how)
    source = located(ref, shelf, ".safetensors")
    place = place_for(ref, source, PACKED, to=to, name=name, replace=replace, shelf=shelf)
    budget = _budget(task, how.get("rule"), loss_budget, points, margin)
    part = find_part(ref, place.shelf)
    loaded = load_task(task, data=data, **(task_options or {})) if task else None
    packed, record, search = pack_part(part, loaded, name=name_of(ref), **budget, **how)
    where, size = put(packed, place, replace)
    said = Text(f"{where} is packed: {shown_bytes(size)} with all its files.", style="heading")
    notes = notes_of([] if loaded is None else [loaded], False)
    if part.packed is not None:
        twice = f"{ref} was packed already, and its weights are rounded a second time."
        notes.append(Text(f"{twice} Better pack the original.", style="warning"))
    return Outcome(
        view=(*notes, *record.view(), *(search.view()[:1] if search else ()), said),
        data={**record.to_plain()["data"], "to": where, "ratio": record.ratio, "bytes": size},
        records=(record,) if search is None else (record, search),
    )


def pack_all(*, to: Path | None = None, shelf: str | Path | None = None, **how: Any) -> Outcome:
    """Pack the latest version of every part that is not packed yet.

    They go to the same shelf under names that end with ``-packed``, or to the shelf ``to`` under
    their own.  What is damaged, or cannot be packed, is told and left out.
    """
    # Settings that are wrong for one part are wrong for all.
    Rules(**{name: value for name, value in how.items() if name != "rule"})
    records: list[PartPacking] = []

    def packed(entry: Entry) -> Part | str:
        if entry.problem is None and is_packed(entry):
            return "packed already"
        part = entry.load()
        if not part.module.state_dict():
            return "without weights"
        made = pack_part(part, name=entry.name, **how)
        records.append(made.record)
        return made.part

    outcome = every_part(packed, "packed", PACKED, shelf=shelf or DEFAULT_SHELF, to=to)
    crowded = {record.part: record.weights for record in records if record.weights.crowded}
    warnings = [
        Text(f"{name}: {weights.warning}", style="warning") for name, weights in crowded.items()
    ]
    return exchanged(
        outcome,
        view=(*outcome.view, *warnings),
        data={**outcome.data, "crowded": {name: list(crowded[name].crowded) for name in crowded}},
        records=tuple(records),
    )


def _budget(
    task: str | None,
    rule: str | None,
    loss_budget: float | None,
    points: float | None,
    margin: float | None,
) -> dict[str, Any]:
    """What was said of a budget, if it can be one and there is a task to keep it on."""
    said = {"loss_budget": loss_budget, "points": points, "margin": margin}
    given = {name: value for name, value in said.items() if value is not None}
    for name, value in given.items():
        if not 0 <= value < math.inf:
            flag = f"--{name.replace('_', '-')}"
            raise SettingsError(f"{flag} is a finite number and not negative, got {value:g}")
    if task is None and (rule == "gradient" or loss_budget is not None or points is not None):
        raise SettingsError("a budget and --rule gradient need a task to measure on: say --task")
    return given


def _pack_file(source: Path, to: Path, replace: bool, how: dict[str, Any]) -> Outcome:
    """A safetensors file as a container, one tensor in memory at a time."""
    free(to, replace, source)
    options = {name: value for name, value in how.items() if name != "rule"}
    with _reading(source) as file:
        if not file.keys():
            raise FormatError(f"{source}: no tensors in it; there is nothing to pack")
        refuse_unmatched(how.get("lossless", ()), file.keys())
        packed = write(to, _tensors(file), metadata=file.metadata(), **options)
    before, after = source.stat().st_size, to.stat().st_size
    said = Text(
        f"{to}: {shown_bytes(after)} instead of {shown_bytes(before)} ({before / after:.2f}×).",
        style="heading",
    )
    data = {**packed.to_plain()["data"], "to": str(to), "bytes_before": before, "bytes": after}
    return Outcome((*packed.view(), said), data, (packed,))


@contextmanager
def _reading(source: Path) -> Iterator[Any]:
    """A safetensors file, of which only the header is read at first."""
    try:
        with safe_open(source, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise FormatError(
            f"{source}: only parts and .safetensors files can be packed, and this is not a "
            f"safetensors file ({error}); save its weights as one first, by "
            "safetensors.torch.save_file"
        ) from None


def _tensors(file: Any) -> Iterator[tuple[str, Tensor]]:
    names = list(file.keys())
    with progress("packing", len(names)) as step:
        for name in names:
            yield name, file.get_tensor(name)
            step(name)
