"""Joining parts end to end, and saying why not; adapters and stitches go between.

A stitch is an adapter that was made to mean something: it maps one space to another, position by
position, so that what a front gives becomes what a head takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Literal, NamedTuple

from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, argument
from dovetail.core.seeds import seeded
from dovetail.parts.contract import Contract, Port, Shape, shown_shape
from dovetail.parts.facts import Origin
from dovetail.parts.norms import (
    Chosen,
    Norms,
    check_norms,
    has_batch_norm,
    recalibrate,
    settle_norms,
)
from dovetail.parts.part import Part, as_part
from dovetail.parts.recipe import Adapter, Join, Recipe, chain_modules, rebuild
from dovetail.settings.join import Join as Declared


def join(
    *parts: Part | nn.Module,
    norms: Norms | Chosen = Declared.norms,
    force: bool = Declared.force,
    adapters: bool = Declared.adapters,
    data: Iterable[Tensor] | None = None,
    seed: int = 0,
) -> Part:
    """Chain parts into one that shares their storage; no weight is changed.

    Args:
        parts: Front first.  What each gives must be what the next takes, in shape *and* in space.
        norms: Statistics of the batch norms: ``"stored"`` ones; those of each ``"batch"``, which
            one input has not; or ``"recalibrated"`` on ``data`` (then the joined part has weights
            of its own).  ``"auto"``: those that the parts were trained for, by
            :func:`~dovetail.parts.norms.norms_for`; recalibrated instead of each batch's where
            there is data.  The joined part's origin says which, and why, and the reason of what
            :func:`~dovetail.measure.pairs.choose_norms` has chosen.
        force: Join although spaces or activations differ, to measure it.
        adapters: Put an untrained 1×1 :func:`adapter` wherever only the channel counts differ.
        data: Batches of preprocessed inputs, to recalibrate on.
        seed: For the adapters' weights.

    Raises:
        ContractError: with every reason and the way out.

    >>> import torch
    >>> from dovetail.parts.part import build
    >>> from dovetail.parts.cutting import cut
    >>> net = build("mlp", shape=(4,), hidden=(8,))
    >>> front, back = cut(net, at="hidden1")
    >>> x = torch.rand(3, 4)
    >>> bool((join(front, back)(x) == net(x)).all())
    True
    >>> other, _ = cut(build("mlp", shape=(4,), hidden=(8,), seed=1), at="hidden1")
    >>> join(other, back)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    dovetail.core.errors.ContractError: 'back of mlp at hidden1' cannot follow 'front of mlp at ...
    """
    chain = [as_part(part) for part in parts]
    _check_settings(chain, norms.norms if isinstance(norms, Chosen) else norms, data)
    if adapters:
        chain = _with_adapters(chain, seed)
    forced = [_refuse_misfits(before, after, force) for before, after in pairwise(chain)]
    chosen = settle_norms(norms, chain, data=data is not None)
    statistics: Literal["stored", "batch"] = "batch" if chosen.norms == "batch" else "stored"
    module = chain_modules([part.module for part in chain], statistics)
    if chosen.norms == "recalibrated" and data is not None:
        module = recalibrate(module, data)
    changed = chosen.norms != "stored" and has_batch_norm(module)
    first, last = chain[0].contract, chain[-1].contract
    if any(forced) or changed:  # behind a forced seam, or with other norms, it means another thing
        last = last.in_space(None)
    contract = replace(last, takes=first.takes, preprocess=first.preprocess, inputs=first.inputs)
    origin = Origin(
        how="join",
        parents=tuple(part.digest for part in chain),
        settings={**chosen.settings, "force": force},
    )
    return Part(module, contract, _recipe(chain, statistics), origin)


def adapter(front: Part, head: Part, *, seed: int = 0) -> Part:
    """An untrained linear map from the front's channels to the head's, position by position.

    It leaves what it gives without a space: nobody has made it mean what the head expects yet.

    >>> from dovetail.parts.part import Part
    >>> a = Part(nn.Identity(), Contract(gives=(Port((8, 4, 4)),)))
    >>> b = Part(nn.Identity(), Contract(takes=(Port((16, 4, 4)),)))
    >>> adapter(a, b)
    Part(adapter 8->16: 8×4×4 -> 16×4×4, 144 weights)
    """
    comes, goes = front.contract.gives[0].shape, head.contract.takes[0].shape
    if comes is None or goes is None or len(comes) != len(goes) or len(comes) not in (1, 3):
        raise ContractError(
            "an adapter maps channels of one known feature map or vector to another"
        )
    if comes[1:] != goes[1:] or comes[0] is None or goes[0] is None:
        raise ContractError(
            f"an adapter changes channels only, but the maps are {comes[1:]} and {goes[1:]} wide"
        )
    recipe = Adapter(comes[0], goes[0], maps=len(comes) == 3)
    with seeded(seed, "adapter"):
        module = rebuild(recipe)
    contract = Contract((front.contract.gives[0],), (Port(goes, front.contract.gives[0].dtype),))
    return Part(module, contract, recipe, Origin(how="adapter", settings={"seed": seed}))


def _check_settings(chain: list[Part], norms: str, data: Iterable[Tensor] | None) -> None:
    if len(chain) < 2:
        raise SettingsError(f"join needs at least two parts, got {len(chain)}")
    check_norms(norms)
    if norms != "auto" and (norms == "recalibrated") != (data is not None):
        raise SettingsError(f"{argument('norms', 'recalibrated')} and data=batches go together")


def _with_adapters(chain: list[Part], seed: int) -> list[Part]:
    result = chain[:1]
    for before, after in pairwise(chain):
        if before.contract.obstacles(after.contract):
            result.append(adapter(before, after, seed=seed))
        result.append(after)
    return result


def _refuse_misfits(before: Part, after: Part, force: bool) -> bool:
    """Raise unless the two fit, or are forced to; say whether force was needed."""
    obstacles = before.contract.obstacles(after.contract)
    reasons = before.contract.mismatches(after.contract)
    adapting = "adapter" in (
        before.origin.how,
        after.origin.how,
    )  # whoever adapts means to train it
    if not reasons or ((force or adapting) and not obstacles):
        return bool(reasons)
    listed = "".join(f"\n  - {reason}" for reason in reasons)
    if obstacles:
        way_out = (
            "The tensors themselves do not fit. Cut one of the two elsewhere, or pass "
            f"{argument('adapters', True)} to put a 1×1 adapter between different channel counts."
        )
    else:
        way_out = (
            "The tensors fit, but the features were never trained to agree: expect chance "
            "accuracy. Join halves that share a space, or pass "
            f"{argument('force', True)} to measure it anyway."
        )
    raise ContractError(
        f"{after.described!r} cannot follow {before.described!r}:{listed}\n{way_out}"
    )


def _recipe(chain: list[Part], norms: Literal["stored", "batch"]) -> Recipe | None:
    recipes = [part.recipe for part in chain]
    if any(recipe is None for recipe in recipes):
        return None
    return Join(tuple(recipe for recipe in recipes if recipe is not None), norms)


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
        before, after = _known(self.takes.shape), _known(self.gives.shape)
        return Adapter(before[0], after[0], maps=len(before) == 3)

    @property
    def contract(self) -> Contract:
        """What a stitch of this seam promises."""
        return Contract((self.takes,), (self.gives,))


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
    from_shape, to_shape = before.shape, after.shape
    for shape in (from_shape, to_shape):
        if shape is None or len(shape) not in (1, 3) or shape[0] is None:
            raise ContractError(
                f"a stitch maps known channels of vectors or maps, not {shown_shape(shape)}; give "
                "dt.cut an example, so that the shapes are known"
            )
    if from_shape is None or to_shape is None or len(from_shape) != len(to_shape):
        raise ContractError(
            f"a stitch cannot make {shown_shape(to_shape)} of {shown_shape(from_shape)}: one is a "
            "vector, the other a map; cut one of the two networks elsewhere"
        )
    pairs = zip(from_shape[1:], to_shape[1:], strict=True)
    if any(a is not None and b is not None and a != b for a, b in pairs):
        raise ContractError(
            "a stitch maps channels position by position, but maps of "
            f"{shown_shape(from_shape[1:])} meet maps of {shown_shape(to_shape[1:])}; cut where "
            "the sizes agree, or give both networks inputs of one size"
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
    return Part(module.eval(), between.contract, between.recipe, origin)


def with_shape(port: Port, shape: Shape) -> Port:
    """The port with the shape that was seen, where its contract left it open.

    >>> with_shape(Port((8, None, None)), (8, 4, 4)).shape
    (8, 4, 4)
    """
    return replace(port, shape=shape) if port.shape is None or None in port.shape else port


def _known(shape: Shape | None) -> tuple[int, ...]:
    return tuple(axis or 0 for axis in shape or ())
