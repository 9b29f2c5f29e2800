"""What can be ranked: parts, the cut points of a network, and the epochs of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from dovetail.core.errors import CutError, SettingsError
from dovetail.parts.cutting import CutPoint, cut_points
from dovetail.parts.heads import before_the_head
from dovetail.parts.part import Part, as_part, parts_by_name

__all__ = ["Candidate", "Parts", "candidate", "named", "points_of"]

Parts = Part | nn.Module | Sequence[Part | nn.Module] | Mapping[str, Part | nn.Module]

_ENOUGH = 4
"""A network with fewer places to cut at the top level is looked into one level deeper."""


@dataclass(frozen=True)
class Candidate:
    """A network and the points at which its features are taken; ``None`` is its very output."""

    name: str
    part: Part
    at: tuple[str, ...] | None

    @property
    def epoch(self) -> int | None:
        """The epoch of the training that it was kept from."""
        epoch = self.part.origin.settings.get("kept_epoch")
        return epoch if isinstance(epoch, int) else None


def named(parts: Parts) -> Mapping[str, Part | nn.Module]:
    """The parts by name; a mapping stays as it is, so that one may load its parts when asked.

    >>> from dovetail.parts.part import build
    >>> list(named([build("mlp"), build("mlp", seed=1)]))
    ['mlp', 'mlp #2']
    """
    if isinstance(parts, Mapping):
        found: Mapping[str, Part | nn.Module] = parts
    else:
        found = parts_by_name([parts] if isinstance(parts, Part | nn.Module) else parts)
    if not found:
        raise SettingsError("there are no parts to rank")
    return found


def candidate(
    name: str, part: Part | nn.Module, at: str | CutPoint | Sequence[str | CutPoint] | None = None
) -> Candidate:
    """A part with the points to rank it at.

    A network that ends in a head is of use for another task without that head: unless ``at`` says
    otherwise, its features are taken before the last layer.  It ends in one if it knows classes,
    or if its last layer is linear with no activation behind it and nobody has cut it there.

    Args:
        name: What the ranking calls it.
        part: The part.
        at: ``None``, names of cut points, ``"every"`` (see :func:`points_of`) or ``"output"``.

    >>> from dovetail.parts.part import build
    >>> candidate("net", build("lenet5"), at="every").at
    ('conv1', 'conv2', 'flatten', 'fc1', 'fc2')
    """
    part = as_part(part)
    return Candidate(name, part, _points(part, at))


def points_of(part: Part) -> tuple[str, ...]:
    """The cut points worth looking at: whole layers or blocks, not the steps inside of them.

    The top level of the network's names; one level deeper, if that leaves fewer than four.

    >>> from dovetail.parts.part import build
    >>> points_of(build("resnet8"))
    ('stem', 'layer1', 'layer2', 'layer3', 'pool', 'flatten')
    """
    names = [point.name for point in cut_points(part)]
    depths = sorted({name.count(".") for name in names})
    chosen: tuple[str, ...] = ()
    for depth in depths:
        chosen = tuple(name for name in names if name.count(".") <= depth)
        if len(chosen) >= _ENOUGH:
            break
    return chosen


def _points(
    part: Part, at: str | CutPoint | Sequence[str | CutPoint] | None
) -> tuple[str, ...] | None:
    if at is None:
        before = before_the_head(part)
        return None if before is None else (before,)
    if at == "output":
        return None
    if at == "every":
        found = points_of(part)
        if not found:
            raise CutError("this network has no place to cut; rank it as it is, without 'every'")
        return found
    asked = [str(at)] if isinstance(at, str | CutPoint) else [str(name) for name in at]
    order = [point.name for point in cut_points(part)]
    for name in asked:
        if name not in order:
            order.append(name)  # the cut itself will say what is wrong with it
    return tuple(sorted(dict.fromkeys(asked), key=order.index))
