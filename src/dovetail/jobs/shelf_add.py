"""Put on the shelf what a folder holds, or a network by its builder's name, with its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dovetail.core.errors import SettingsError, argument
from dovetail.core.views import Text
from dovetail.jobs import Outcome
from dovetail.parts.builders import find_builder, known_builders
from dovetail.parts.foreign.adopting import adopt
from dovetail.parts.foreign.lite_weights import PRETRAINED
from dovetail.parts.foreign.timm_models import PREFIX
from dovetail.parts.part import Part, build, from_pretrained
from dovetail.settings.common import Common
from dovetail.settings.shelf import Add
from dovetail.shelf.names import name_of
from dovetail.shelf.store import Shelf

__all__ = ["add"]


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
        part, told = from_pretrained(source, verify=True), ""
    else:
        part, told = _network(source, args or {}, weights, features, classes, size)
    entry = Shelf(shelf).add(part, name or name_of(source), tags=tags)
    note = (Text(told, style="note"),) if told else ()
    words = (*note, Text(f"{entry.ref} is on the shelf: {part.contract}"))
    data = {"ref": entry.ref, "digest": entry.digest} | ({"note": told} if told else {})
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
        told = f"The weights of {name} are drawn at random; name trained ones with --weights."
        return part.changed(origin=origin), told
    part = adopt(name, args=args, weights=weights, example=example, **about)
    if weights is None:
        return part, ""
    found = part.origin.settings["weights"]
    told = f"{found['by name']} tensors of {found['file']} by name, {found['by order']} by order"
    careful = "; measure it before you trust it: layers of one shape could be swapped"
    return part, told + (careful if found["by order"] else "") + "."
