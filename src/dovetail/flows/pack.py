"""Pack a part of the shelf or of a folder, a file of tensors, or every part on a shelf."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from dovetail.core.errors import DovetailError, FormatError, SettingsError
from dovetail.core.progress import progress
from dovetail.core.views import Table, Text, View
from dovetail.flows.locate import find_part, name_of
from dovetail.flows.outcome import Outcome
from dovetail.flows.pack_places import beside, free, matching, size_of
from dovetail.flows.packing import pack_part
from dovetail.flows.shelving import notes_of
from dovetail.pack.quality_record import PackSearch
from dovetail.pack.writing import write
from dovetail.parts.disk import is_part_folder, read_facts
from dovetail.shelf.entry import Entry
from dovetail.shelf.listing import shown_bytes
from dovetail.shelf.names import check_name
from dovetail.shelf.store import Shelf
from dovetail.tasks.builtin import load_task

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
    margin: float = 2.576,
    shelf: str | Path = "shelf",
    data: str | Path | None = None,
    task_options: dict[str, Any] | None = None,
    **how: Any,
) -> Outcome:
    """Pack what ``ref`` names: a ``.safetensors`` file, a part's folder, or a part on the shelf.

    Without ``to`` and ``name`` the result goes where the source is, under a name that ends with
    ``-packed`` (a file: with ``.dovepack``).  ``how`` are the options of :func:`pack_part`.
    """
    source = Path(ref)
    if source.is_file() or source.suffix == ".safetensors":
        asked = (task, name, loss_budget, points)
        if any(said is not None for said in asked) or how.get("rule") == "gradient":
            raise SettingsError(
                "a file of tensors is no part: no --task, --rule gradient, budget or --name"
            )
        return _pack_file(source, to or source.with_suffix(".dovepack"), replace, how)
    from_folder = is_part_folder(source)
    if to is None and name is None and from_folder:
        to = beside(source, PACKED)
    if to is not None:
        free(to, replace, source)
    else:
        name = check_name(name or f"{name_of(ref)}{PACKED}")
    part = find_part(ref, shelf)
    loaded = load_task(task, data=data, **(task_options or {})) if task else None
    packed, record, search = pack_part(
        part,
        loaded,
        loss_budget=loss_budget,
        points=points,
        margin=margin,
        name=name_of(ref),
        **how,
    )
    if to is not None:
        packed.save_pretrained(to, overwrite=replace)
        where, size = str(to), size_of(to)
    else:
        entry = Shelf(shelf).add(packed, str(name))
        where, size = entry.ref, entry.bytes
    said = Text(f"{where} is packed: {shown_bytes(size)} with all its files.", style="heading")
    notes = notes_of([] if loaded is None else [loaded], False)
    return Outcome(
        view=(*notes, *record.view(), *_searched(search), said),
        data={**record.to_plain()["data"], "to": where, "ratio": record.ratio, "bytes": size},
        records=(record,) if search is None else (record, search),
    )


def _searched(search: PackSearch | None) -> View:
    """How the bits were found; and why there are so many, where none could be spared."""
    if search is None:
        return ()
    found = search.view()[:1]
    if any(tensor.bits is not None for tensor in search.tensors):
        return found
    if not search.tensors:
        why = (
            "Everything is kept exactly: no tensor is large enough to pack (256 floating-point "
            "elements, not all equal, not named by --lossless)."
        )
        return (*found, Text(why, style="warning"))
    why = (
        f"Everything is kept exactly: {search.examples} validation examples cannot tell a rise as "
        "small as the budget from chance. Allow more, measure --loss-budget instead of --points, "
        "or ask for a smaller --margin."
    )
    return (*found, Text(why, style="warning"))


def pack_all(*, to: Path | None = None, shelf: str | Path = "shelf", **how: Any) -> Outcome:
    """Pack the latest version of every part that is not packed yet.

    They go to the same shelf under names that end with ``-packed``, or to the shelf ``to`` under
    their own.  What is damaged, or cannot be packed, is told and left out.
    """
    source = Shelf(shelf, create=False)
    latest = {entry.name: entry for entry in source.entries()}
    store = source if to is None else Shelf(to)
    store.check_writable()
    rows: list[tuple[str, str | None, int, int | None, str | None]] = []
    with progress("packing", len(latest)) as step:
        for name, entry in latest.items():
            rows.append(_packed_entry(entry, store, name if to else f"{name}{PACKED}", how))
            step(entry.ref)
    done = [row for row in rows if row[1] is not None]
    table = Table(
        ("part", "packed", "size", "packed size", "why not"),
        tuple((a, b, shown_bytes(c), d and shown_bytes(d), e) for a, b, c, d, e in rows),
    )
    facts = [
        {"part": a, "to": b, "bytes_before": c, "bytes": d, "why_not": e} for a, b, c, d, e in rows
    ]
    before, after = sum(row[2] for row in done), sum(row[3] or 0 for row in done)
    said = f"{len(done)} packed: {shown_bytes(before)} became {shown_bytes(after)}."
    return Outcome((table, Text(said, style="heading")), {"parts": facts})


def _packed_entry(
    entry: Entry, store: Shelf, name: str, how: dict[str, Any]
) -> tuple[str, str | None, int, int | None, str | None]:
    try:
        if entry.problem is None and read_facts(entry.folder, check_hashes=False).is_packed:
            return entry.ref, None, entry.bytes, None, "packed already"
        packed = pack_part(entry.load(), name=entry.name, **how).part
        placed = store.add(packed, name)
    except DovetailError as error:
        return entry.ref, None, entry.bytes, None, str(error)
    return entry.ref, placed.ref, entry.bytes, placed.bytes, None


def _pack_file(source: Path, to: Path, replace: bool, how: dict[str, Any]) -> Outcome:
    """A safetensors file as a container, one tensor in memory at a time."""
    free(to, replace, source)
    if not source.exists():
        raise FormatError(f"{source}: no such file")
    options = {name: value for name, value in how.items() if name != "rule" and value is not None}
    try:
        with safe_open(source, framework="pt") as file:
            matching(how.get("lossless", ()), file.keys())
            packed = write(to, _tensors(file), metadata=file.metadata(), **options)
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{source}: not a safetensors file ({error})") from None
    before, after = source.stat().st_size, to.stat().st_size
    said = Text(
        f"{to}: {shown_bytes(after)} instead of {shown_bytes(before)} ({before / after:.2f}×).",
        style="heading",
    )
    data = {**packed.to_plain()["data"], "to": str(to), "bytes_before": before, "bytes": after}
    return Outcome((*packed.view(), said), data, (packed,))


def _tensors(file: Any) -> Iterator[tuple[str, Tensor]]:
    names = list(file.keys())
    with progress("packing", len(names)) as step:
        for name in names:
            yield name, file.get_tensor(name)
            step(name)
