"""Pack a part, a file of tensors, or every part on a shelf; and unpack them again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as exchanged
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from dovetail.core.errors import DovetailError, FormatError, SettingsError, argument, first_line
from dovetail.core.files import whole_file
from dovetail.core.progress import progress
from dovetail.core.views import Table, Text, View
from dovetail.jobs import Outcome
from dovetail.jobs.frame import Frame, job, notes_of
from dovetail.jobs.pack_places import free, is_container, is_packed, put, shelve, source_and_place
from dovetail.pack.compressing import write
from dovetail.pack.decompressing import opened, tensors
from dovetail.pack.index import Entry as Packed
from dovetail.pack.index import Index
from dovetail.pack.rules import Rules, refuse_unmatched
from dovetail.pack.tensors import dtype_name, raw_bytes
from dovetail.parts.modules import SAFETENSORS_DTYPES
from dovetail.parts.packed import without_packed
from dovetail.parts.part import Part
from dovetail.reuse.pack_records import PartPacking
from dovetail.reuse.packing import pack_part
from dovetail.settings.pack import Budget, Pack, Unpack
from dovetail.shelf.entry import Entry
from dovetail.shelf.listing import shown_bytes
from dovetail.shelf.names import name_of
from dovetail.shelf.store import Shelf

PACKED = "-packed"
"""What a packed part's name ends with, unless another is said."""


@job
def pack(
    frame: Frame,
    /,
    ref: str,
    task: str | None = Pack.task,
    *,
    to: str | Path | None = Pack.to,
    replace: bool = Pack.replace,
    **how: Any,
) -> Outcome:
    """Pack what ``ref`` names: a ``.safetensors`` file, a part's folder, or a part on the shelf.

    Without ``to`` and a name the result goes where the source is, under a name that ends with
    ``-packed`` (a file: with ``.dovepack``).  ``how`` are the options of :func:`pack_part`.
    """
    Pack.check(how)
    source = Path(ref)
    is_file = source.is_file() or source.suffix in (".safetensors", ".dovepack")
    if is_file:
        if is_container(source):
            raise FormatError(
                f"{source} is packed already; pack the file that it was made of, or unpack it "
                f"first ('dovetail unpack {source}'; what was rounded stays so)"
            )
        with _reading(source):  # what can never be packed is told before what would not suit it
            pass
    needs_task = how.get("rule") == "gradient" or not Budget.declared.keys().isdisjoint(how)
    if is_file:
        if task or needs_task or frame.name or frame.shelf:
            raise SettingsError(
                "a file of tensors is no part: no --task, --rule gradient, budget, --name or "
                "--shelf; it goes where --to says"
            )
        how["seed"] = frame.seed
        return _pack_file(source, Path(to or source.with_suffix(".dovepack")), replace, how)
    place = source_and_place(frame, ref, ".safetensors", PACKED, to, replace)
    if task is None and needs_task:
        raise SettingsError(
            f"a budget and {argument('rule', 'gradient')} need a task to measure on: say "
            f"{argument('task')}"
        )
    part = frame.part(ref)
    loaded = frame.task(task) if task else None
    packed, record, search = pack_part(part, loaded, name=name_of(ref), seed=frame.seed, **how)
    where, size = put(packed, place, replace)
    notes = notes_of([] if loaded is None else [loaded])
    if part.packed is not None:
        twice = f"{ref} was packed already, and its weights are rounded a second time."
        notes.append(Text(f"{twice} Better pack the original.", style="warning"))
    verdict = Text(f"{where} is packed: {shown_bytes(size)} with all its files.", style="heading")
    data = {**record.to_plain()["data"], "to": where, "ratio": record.ratio, "bytes": size}
    return Outcome(
        view=(*notes, *record.brief(), *(search.view()[:1] if search else ()), verdict),
        data=data if search is None else {**data, "search": search.to_plain()["data"]},
        records=(record,) if search is None else (record, search),
    )


@job
def pack_all(frame: Frame, /, *, to: str | Path | None = Pack.to, **how: Any) -> Outcome:
    """Pack the latest version of every part that is not packed yet.

    They go to the same shelf under names that end with ``-packed``, or to the shelf ``to`` under
    their own.  What is damaged, or cannot be packed, is told and left out.
    """
    how["seed"] = frame.seed
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

    outcome = every_part(frame, packed, "packed", PACKED, to)
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
    verdict = Text(
        f"{to}: {shown_bytes(after)} instead of {shown_bytes(before)} ({before / after:.2f}×).",
        style="heading",
    )
    data = {**packed.to_plain()["data"], "to": str(to), "bytes_before": before, "bytes": after}
    return Outcome((*packed.brief(), verdict), data, (packed,))


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


@dataclass(frozen=True)
class _Row:
    """What became of one part: ``to`` where it went, or ``why_not``."""

    part: str
    bytes_before: int
    to: str | None = None
    bytes: int | None = None
    why_not: str | None = None
    failed: bool = False


def every_part(
    frame: Frame,
    change: Callable[[Entry], Part | str],
    done: str,
    ending: str,
    to: str | Path | None,
) -> Outcome:
    """Change the latest version of every part, and put it where it belongs.

    That is the same shelf, under a name with the ``ending``, or the shelf ``to``, under its own.
    What fails for one does not stop the rest.

    Args:
        frame: Of the job; its shelf is where the parts are.
        change: From an entry to the new part, or to the reason why it can be left out.
        done: What the parts are then, such as ``"packed"``.
        ending: Of names on the same shelf.
        to: Another shelf to put them on.
    """
    source = Shelf(frame.folder, create=False)
    latest = {entry.name: entry for entry in source.entries()}
    if not latest:
        empty = Text(f"The shelf {source.folder} is empty: there is nothing to be {done}.")
        return Outcome((empty,), {"parts": []})
    store = source if to is None else Shelf(to)
    store.check_writable()
    rows: list[_Row] = []
    try:
        with progress(f"{done.removesuffix('ed')}ing", len(latest)) as step:
            for name, entry in latest.items():
                rows.append(_row(entry, change, store, name if to else f"{name}{ending}"))
                step(entry.ref)
    except KeyboardInterrupt:
        count = sum(row.to is not None for row in rows)
        raise KeyboardInterrupt(
            f"{count} {done} of {len(latest)}, and these stay; the same command does the others"
        ) from None
    failed = any(row.failed for row in rows)
    return Outcome(_view(rows, done), {"parts": [vars(row) for row in rows]}, ok=not failed)


def _row(entry: Entry, change: Callable[[Entry], Part | str], store: Shelf, name: str) -> _Row:
    try:
        part = change(entry)
        if isinstance(part, str):
            return _Row(entry.ref, entry.bytes, why_not=part)
        placed = shelve(store, part, name)
    except (DovetailError, OSError, MemoryError, RuntimeError) as error:
        return _Row(entry.ref, entry.bytes, why_not=first_line(error), failed=True)
    return _Row(entry.ref, entry.bytes, placed.ref, placed.bytes)


def _view(rows: list[_Row], done: str) -> View:
    table = Table(
        ("part", done, "size", f"{done} size", "why not"),
        tuple(
            (
                row.part,
                row.to,
                shown_bytes(row.bytes_before),
                None if row.bytes is None else shown_bytes(row.bytes),
                row.why_not,
            )
            for row in rows
        ),
    )
    changed = [row for row in rows if row.to is not None]
    before = sum(row.bytes_before for row in changed)
    after = sum(row.bytes or 0 for row in changed)
    became = f": {shown_bytes(before)} became {shown_bytes(after)}" if changed else ""
    verdict = Text(f"{len(changed)} {done}{became}.", style="heading")
    failed = [row.part for row in rows if row.failed]
    why = f"{len(failed)} could not be {done}: {', '.join(failed)}."
    return (table, verdict, Text(why, style="warning")) if failed else (table, verdict)


# Packed weights as plain tensors again ------------------------------------------------------------


UNPACKED = "-unpacked"
"""What an unpacked part's name ends with, unless another is said."""

_DTYPES = {torch_name: name for name, torch_name in SAFETENSORS_DTYPES.items()}
_METADATA = "__metadata__"


@job
def unpack(
    frame: Frame,
    /,
    ref: str,
    *,
    to: str | Path | None = Unpack.to,
    replace: bool = Unpack.replace,
    most_gigabytes: float | None = Unpack.most_gigabytes,
) -> Outcome:
    """Unpack a part of a folder or the shelf to a plain one, or a container to safetensors."""
    Unpack.check({"most_gigabytes": most_gigabytes})
    source = Path(ref)
    if source.is_file() or source.suffix == ".dovepack":
        if frame.name is not None or frame.shelf is not None:
            raise SettingsError("a file of tensors is no part, and a shelf holds parts; use --to")
        if not is_container(source):
            raise FormatError(f"{source} is not packed; there is nothing to unpack")
        file = Path(to or source.with_suffix(".safetensors"))
        free(file, replace, source)
        most_bytes = None if most_gigabytes is None else int(most_gigabytes * 1e9)
        write_plain(source, file, most_bytes=most_bytes)
        size = file.stat().st_size
        return Outcome((Text(f"{file}: {shown_bytes(size)}."),), {"to": str(file), "bytes": size})
    if most_gigabytes is not None:
        raise SettingsError("--most-gigabytes is for files; a part's recipe says how much it needs")
    place = source_and_place(frame, ref, ".dovepack", UNPACKED, to, replace)
    part = frame.part(ref)
    if part.packed is None:
        raise SettingsError(f"{ref!r} is not packed; there is nothing to unpack")
    part = without_packed(part)
    where, size = put(part, place, replace)
    verdict = Text(f"{where} holds the same weights as plain tensors, {shown_bytes(size)}.")
    return Outcome((verdict,), {"to": where, "bytes": size, "digest": part.digest})


@job
def unpack_all(frame: Frame, /, *, to: str | Path | None = Unpack.to) -> Outcome:
    """Unpack the latest version of every part that is packed.

    They go to the same shelf under names that end with ``-unpacked``, or to the shelf ``to`` under
    their own.  What is damaged is told and left out.
    """
    return every_part(
        frame,
        lambda entry: without_packed(entry.load()) if is_packed(entry) else "not packed",
        "unpacked",
        UNPACKED,
        to,
    )


def write_plain(source: Path, to: Path, *, most_bytes: int | None = None) -> None:
    """Decode the container at ``source`` into a safetensors file, one tensor in memory at a time.

    Such a file is eight bytes (the length of its header, little-endian), the header (JSON: for each
    name the dtype, the shape, and where its bytes begin and end), and the bytes.

    >>> import tempfile, torch
    >>> from safetensors.torch import load_file
    >>> from dovetail.pack.compressing import write
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = write(folder / "a.dovepack", {"a": torch.tensor([True]), "b": torch.arange(2.0)})
    >>> write_plain(folder / "a.dovepack", folder / "a.safetensors")
    >>> load_file(folder / "a.safetensors")["b"]
    tensor([0., 1.])
    """
    with opened(source, most_bytes) as container:
        header, places = _header(container.index)
        decoded = tensors(container, most_bytes=most_bytes)
        first = next(decoded, None)  # what is too large is refused before a file is begun
        with whole_file(to) as file:
            file.write(len(header).to_bytes(8, "little") + header)
            while first is not None:
                name, tensor = first
                file.seek(8 + len(header) + places[name])
                file.write(raw_bytes(tensor).data)
                first = next(decoded, None)


def _header(index: Index) -> tuple[bytes, dict[str, int]]:
    """The header, padded to eight bytes, and the place of each tensor after it."""
    value: dict[str, Any] = {_METADATA: {"format": "pt", **_metadata(index)}}
    places, at = {}, 0
    # The widest elements first: all begin at multiples of their size, as readers want it.
    for entry in sorted(index.entries, key=lambda entry: -entry.dtype.itemsize):
        value[entry.name] = {
            "dtype": _dtype(entry),
            "shape": list(entry.shape),
            "data_offsets": [at, at + entry.size],
        }
        places[entry.name], at = at, at + entry.size
    header = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return header + b" " * (-len(header) % 8), places


def _dtype(entry: Packed) -> str:
    name = dtype_name(entry.dtype)
    if name not in _DTYPES or entry.name == _METADATA:
        what = "this name" if name in _DTYPES else name
        raise FormatError(
            f"tensor {entry.name!r}: a safetensors file cannot hold {what}; read the container "
            "with dovetail.pack.read"
        )
    return _DTYPES[name]


def _metadata(index: Index) -> dict[str, str]:
    metadata = index.settings.get("metadata", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(text, str) for text in metadata.values()
    ):
        raise FormatError("index: metadata that is not text by name")
    return metadata
