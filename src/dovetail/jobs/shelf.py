"""Look after a shelf, and put on it what a folder holds, or a network by its builder's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dovetail.core.errors import FormatError, SettingsError, argument, nearest
from dovetail.core.records import Record
from dovetail.core.views import Text
from dovetail.jobs import Outcome
from dovetail.parts.builders import find_builder, known_builders
from dovetail.parts.foreign.adopting import adopt
from dovetail.parts.foreign.lite_weights import PRETRAINED
from dovetail.parts.foreign.timm_models import PREFIX
from dovetail.parts.part import Part, build, from_pretrained
from dovetail.settings.common import Common
from dovetail.settings.shelf import Add, Pull, Push, Remove, Verify
from dovetail.shelf.names import check_name, name_of
from dovetail.shelf.store import Shelf

if TYPE_CHECKING:
    from dovetail.parts.part import Part


def ls(pattern: str | None = None, *, shelf: str | Path = Common.shelf, **wanted: Any) -> Outcome:
    """The parts on the shelf that are everything asked for, as :meth:`Shelf.find` asks."""
    return _shown(Shelf(shelf, create=False).ls(pattern, **wanted))


def show(ref: str, *, shelf: str | Path = Common.shelf) -> Outcome:
    """Everything the shelf knows of one part."""
    return _shown(Shelf(shelf, create=False).show(ref))


def path(front: str, head: str, *, shelf: str | Path = Common.shelf) -> Outcome:
    """The best chain of parts from what one part gives to what another takes."""
    record = Shelf(shelf, create=False).path(front, head)
    return _shown(record, between=list(record.between))


def rm(
    ref: str, *, all_versions: bool = Remove.all_versions, shelf: str | Path = Common.shelf
) -> Outcome:
    """Take a version, or a whole name, off the shelf."""
    gone = Shelf(shelf, create=False).rm(ref, all_versions=all_versions)
    return Outcome((Text(f"Removed {', '.join(gone)}."),), {"removed": gone})


def verify(
    ref: str | None = None, *, sweep: bool = Verify.sweep, shelf: str | Path = Common.shelf
) -> Outcome:
    """Read everything again; not ok when any part is damaged.  With ``sweep`` tidy up first."""
    store = Shelf(shelf, create=False)
    if sweep:
        store.sweep()
    record = store.verify(ref)
    return replace(_shown(record), ok=record.ok)


def push(
    ref: str, repo_id: str, *, public: bool = Push.public, shelf: str | Path = Common.shelf
) -> Outcome:
    """Send a part on the shelf to a repository of the hub."""
    from dovetail.shelf import hub

    address = hub.push(ref, repo_id, shelf=shelf, private=not public)
    return Outcome((Text(f"{ref} is at {address}"),), {"ref": ref, "address": address})


def pull(
    repo_id: str,
    *,
    name: str | None = Add.name,
    revision: str | None = Pull.revision,
    tags: Sequence[str] = Add.tags,
    shelf: str | Path = Common.shelf,
) -> Outcome:
    """Fetch the part in a repository of the hub and put it on the shelf, after checking it."""
    from dovetail.shelf import hub

    name = check_name(name or name_of(repo_id))
    return _added(hub.pull(repo_id, revision=revision), name, tags, shelf)


def _shown(record: Record, **more: Any) -> Outcome:
    return Outcome(record.view(), {**record.to_plain()["data"], **more}, (record,))


def _added(part: Part, name: str, tags: Sequence[str], shelf: str | Path) -> Outcome:
    entry = Shelf(shelf).add(part, name, tags=tags)
    words = Text(f"{entry.ref} is on the shelf: {part.contract}")
    return Outcome((words,), {"ref": entry.ref, "digest": entry.digest})


# Put parts on it ----------------------------------------------------------------------------------


def add(
    source: str,
    *,
    name: str | None = Add.name,
    args: dict[str, Any] | None = None,
    weights: str | Path | None = Add.weights,
    features: bool = Add.features,
    classes: tuple[str, ...] | None = Add.classes,
    size: int | None = Add.size,
    tags: Sequence[str] = Add.tags,
    shelf: str | Path = Common.shelf,
) -> Outcome:
    """Put on the shelf the part in a folder, after checking it, or a network by its name.

    A name is a builder's, such as ``"timm/resnet18"``, and ``args`` are its arguments: with the
    weights in a file, those it was released with, or else drawn ones, which is told.
    """
    about = {"set": args, "weights": weights, "features": features, "classes": classes}
    if Path(source).exists() or not _is_builder(source):
        if said := [argument(word) for word, value in {**about, "size": size}.items() if value]:
            raise SettingsError(
                f"{', '.join(said)} is for networks by the name of their builder, and {source!r} "
                "is none; a folder's part is what it is"
            )
        if not Path(source).exists():
            near = nearest(source, known_builders())
            raise FormatError(f"{source}: no such folder, and no network is called so{near}")
        part, remark = from_pretrained(source, verify=True), ""
    else:
        part, remark = _network(source, args or {}, weights, features, classes, size)
    entry = Shelf(shelf).add(part, name or name_of(source), tags=tags)
    note = (Text(remark, style="note"),) if remark else ()
    words = (*note, Text(f"{entry.ref} is on the shelf: {part.contract}"))
    data = {"ref": entry.ref, "digest": entry.digest} | ({"note": remark} if remark else {})
    return Outcome(words, data | ({"weights": part.origin.settings["weights"]} if weights else {}))


def _is_builder(source: str) -> bool:
    return source in known_builders() or source.startswith(PREFIX)


def _network(
    name: str,
    args: dict[str, Any],
    weights: str | Path | None,
    features: bool,
    classes: tuple[str, ...] | None,
    size: int | None,
) -> tuple[Part, str]:
    """The network of a builder, and where its weights come from, in words."""
    example = None
    if size is not None:
        shape = find_builder(name).input_shape(args)
        if shape is None or len(shape) != 3 or "size" in find_builder(name).arguments(args):
            raise SettingsError(f"{name!r} is built for its size; say {argument('set.size', size)}")
        example = torch.zeros(2, shape[0], size, size)
    about: dict[str, Any] = {"classes": classes, "features": features}
    if weights is None and name not in PRETRAINED:
        drawn = build(name, **args)
        part = adopt(drawn.module, builder=name, args=args, example=example, **about)
        origin = replace(drawn.origin, settings={**drawn.origin.settings, **part.origin.settings})
        remark = f"The weights of {name} are drawn at random; name trained ones with --weights."
        return part.changed(origin=origin), remark
    part = adopt(name, args=args, weights=weights, example=example, **about)
    if weights is None:
        return part, ""
    source = part.origin.settings["weights"]
    remark = (
        f"{source['by name']} tensors of {source['file']} by name, {source['by order']} by order"
    )
    careful = "; measure it before you trust it: layers of one shape could be swapped"
    return part, remark + (careful if source["by order"] else "") + "."
