"""The seam of a stitch: which tensor it takes, which it gives, and the part it becomes.

A stitch is an adapter that was made to mean something: it maps one space to another, position by
position, so that what a front gives becomes what a head takes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from dovetail.core.errors import ContractError
from dovetail.core.seeds import seeded
from dovetail.parts.contract import Contract, Port, Shape, shown_shape
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part
from dovetail.parts.recipe import Adapter, rebuild

__all__ = ["Seam", "seam", "stitch_part"]


class Seam(NamedTuple):
    """The two sides of a stitch: the port it takes and the port it gives.

    >>> Seam(Port((8, 4, 4), space="a"), Port((16, 4, 4), space="b")).recipe
    Adapter(takes=8, gives=16, maps=True)
    """

    takes: Port
    gives: Port

    @property
    def recipe(self) -> Adapter:
        """A 1×1 convolution for maps, a dense layer for vectors."""
        given, taken = _known(self.takes.shape), _known(self.gives.shape)
        return Adapter(given[0], taken[0], maps=len(given) == 3)


def seam(takes: tuple[Port, ...], gives: tuple[Port, ...]) -> Seam:
    """The seam between what a front gives and what a head takes, if a stitch can close it.

    Raises:
        ContractError: with the reason: several tensors, no space, vectors that meet maps, or maps
            of other sizes.

    >>> seam((Port((8, 4, 4), space="a"),), (Port((8, 2, 2), space="b"),))
    Traceback (most recent call last):
    ...
    dovetail.core.errors.ContractError: a stitch maps channels position by position, but ...
    """
    if len(takes) != 1 or len(gives) != 1:
        raise ContractError(
            f"a stitch maps one tensor to one, but {len(takes)} meet {len(gives)}; cut where "
            "exactly one tensor crosses"
        )
    before, after = takes[0], gives[0]
    for port, side in ((before, "the front gives"), (after, "is wanted")):
        if port.space is None:
            raise ContractError(
                f"a stitch maps one space to another, but what {side} has none; take the halves "
                "from dt.cut, which names it"
            )
        if port.dtype != "float32":
            raise ContractError(f"a stitch maps float32, but what {side} is {port.dtype}")
    given, taken = before.shape, after.shape
    for shape in (given, taken):
        if shape is None or len(shape) not in (1, 3) or shape[0] is None:
            raise ContractError(
                f"a stitch maps known channels of vectors or maps, not {shown_shape(shape)}; give "
                "dt.cut an example, so that the shapes are known"
            )
    if given is None or taken is None or len(given) != len(taken):
        raise ContractError(
            f"a stitch cannot make {shown_shape(taken)} of {shown_shape(given)}: one is a vector, "
            "the other a map; cut one of the two networks elsewhere"
        )
    pairs = zip(given[1:], taken[1:], strict=True)
    if any(a is not None and b is not None and a != b for a, b in pairs):
        raise ContractError(
            f"a stitch maps channels position by position, but maps of {shown_shape(given[1:])} "
            f"meet maps of {shown_shape(taken[1:])}; cut where the sizes agree, or give both "
            "networks inputs of one size"
        )
    return Seam(before, after)


def stitch_part(between: Seam, weight: Tensor, bias: Tensor, origin: Origin) -> Part:
    """The stitch with weights ``[out, in]`` and bias ``[out]``, cast to float32.

    >>> import torch
    >>> between = Seam(Port((2,), space="a"), Port((1,), space="b"))
    >>> swap = stitch_part(between, torch.tensor([[1.0, -1.0]]), torch.zeros(1), Origin("stitch"))
    >>> swap(torch.tensor([[5.0, 3.0]]))
    tensor([[2.]], grad_fn=...)
    """
    with seeded(0, "stitch"):  # weights that are replaced at once must not cost the caller's draws
        module = rebuild(between.recipe)
    shape = module.state_dict()["weight"].shape
    module.load_state_dict({"weight": weight.reshape(shape), "bias": bias})
    contract = Contract((between.takes,), (between.gives,))
    return Part(module.eval(), contract, between.recipe, origin)


def with_shape(port: Port, shape: Shape) -> Port:
    """The port with the shape that was seen, where its contract left it open.

    >>> with_shape(Port((8, None, None)), (8, 4, 4)).shape
    (8, 4, 4)
    """
    return replace(port, shape=shape) if port.shape is None or None in port.shape else port


def _known(shape: Shape | None) -> tuple[int, ...]:
    return tuple(axis or 0 for axis in shape or ())
