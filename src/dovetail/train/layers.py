"""The layers of a network for a training layer by layer: where each ends, and which go together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from dovetail.core.errors import CutError, SettingsError, argument
from dovetail.core.seeds import generator
from dovetail.parts.part import Part
from dovetail.parts.splitting import is_chain, points, split
from dovetail.parts.tracing import Untraceable, trace


def layer_points(whole: Part) -> tuple[str, ...]:
    """Where each layer or block with weights ends; what follows the last point is the head.

    A convolution or a dense layer is one, with what follows it and has no weights to multiply with:
    norm, activation, pooling.  A module with a forward of its own (a residual block) is one as a
    whole.

    >>> from dovetail.parts.part import build
    >>> layer_points(build("lenet5")), layer_points(build("resnet8"))
    (('conv1', 'flatten', 'fc1', 'fc2'), ('stem', 'layer1', 'layer2', 'flatten'))
    """
    named = [name for name in points(whole.module) if _outside_blocks(whole.module, name)]
    before = {name: _weights_before(whole.module, name) for name in named}
    counted = [(name, count) for name, count in before.items() if count is not None]
    total = _matrices(whole.module)
    ends, last = [], 0
    for (name, count), (_, after) in pairwise([*counted, ("", total)]):
        if last < count < after:
            ends.append(name)
            last = count
    if not ends:
        raise CutError(
            f"{_why_not(whole.module)}, so it cannot be trained layer by layer; use end_to_end, "
            f"which takes a {argument('memory_budget', 0.5)} as well"
        )
    return tuple(ends)


def _why_not(module: nn.Module) -> str:
    """Why there is no place to cut a network."""
    if not is_chain(module):
        try:
            trace(module)
        except Untraceable as error:
            return f"this network cannot be cut: {error}"
    return "this network has no point with weights on both sides where one tensor crosses"


def _outside_blocks(module: nn.Module, name: str) -> bool:
    """Whether a point lies between modules, and not inside one with a forward of its own."""
    above = name.split(".")[:-1]
    try:
        return all(
            is_chain(module.get_submodule(".".join(above[: i + 1]))) for i in range(len(above))
        )
    except AttributeError:  # an operation's name with a dot
        return False


def _matrices(module: nn.Module) -> int:
    return sum(1 for p in module.parameters() if p.ndim > 1)


def _weights_before(module: nn.Module, name: str) -> int | None:
    """How many weight matrices lie before a point; nothing where several tensors cross."""
    try:
        halves = split(module, name)
    except CutError:
        return None
    return _matrices(halves.front) if halves.crossing == 1 else None


def with_weights(whole: Part, at: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The points whose layers have weights, and those whose layers go to the next one's.

    >>> from dovetail.parts.part import build
    >>> with_weights(build("mlp"), ("flatten", "hidden1"))
    (('hidden1',), ('flatten',))
    """
    ends: list[str] = []
    joined: list[str] = []
    last = 0
    for name in at:
        count = _matrices(split(whole.module, name).front)
        if count < last:
            raise CutError(f"{name!r} comes too late; give the points in the order of the network")
        (ends if count > last else joined).append(name)
        last = max(last, count)
    if not ends:
        raise CutError(f"no layer that ends at {', '.join(at)} has weights; cut further up")
    return tuple(ends), tuple(joined)


def windows(layers: int, segment: int, overlap: int) -> tuple[tuple[int, int], ...]:
    """Which layers are trained together: half-open intervals, from the input up.

    >>> windows(5, 2, 0), windows(4, 2, 1), windows(3, 3, 0)
    (((0, 2), (2, 4), (4, 5)), ((0, 2), (1, 3), (2, 4)), ((0, 3),))
    """
    if not 1 <= segment <= layers:
        raise SettingsError(
            f"{argument('segment')} is 1 to {layers}, as many layers as the network has below its "
            f"head; got {segment}"
        )
    if not 0 <= overlap < segment:
        raise SettingsError(
            f"{argument('overlap')} is at least 0 and less than {argument('segment', segment)}; "
            f"got {overlap}"
        )
    made = [(0, segment)]
    while made[-1][1] < layers:
        start = made[-1][1] - overlap
        made.append((start, min(start + segment, layers)))
    return tuple(made)


def turns_of(
    epochs: Sequence[int], order: str, rounds: int | None, seed: int
) -> list[tuple[int, int]]:
    """Which stage is trained when, and until how many of its epochs are done (Algorithm 4).

    >>> turns_of((2, 2), "up", None, 0), turns_of((2, 2), "round-robin", 2, 0)
    ([(0, 2), (1, 2)], [(0, 1), (1, 1), (0, 2), (1, 2)])
    """
    if order == "up":
        return list(enumerate(epochs))
    rounds = min(epochs) if rounds is None else rounds
    if rounds > min(epochs):
        raise SettingsError(
            f"{argument('rounds')} is at most {min(epochs)}, an epoch a turn; got {rounds}"
        )
    turns: list[tuple[int, int]] = []
    for number in range(rounds):
        stages = list(range(len(epochs)))
        if order == "random-robin":
            draw = generator(seed, "robin", number)
            stages = torch.randperm(len(epochs), generator=draw).tolist()
        turns += [(i, -(-epochs[i] * (number + 1) // rounds)) for i in stages]
    return turns
