"""Giving networks from elsewhere a contract."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.errors import RecipeError, SettingsError, nearest
from dovetail.core.plain import to_plain
from dovetail.parts.builders import find_builder, recipe_hint
from dovetail.parts.contract import Preprocess
from dovetail.parts.foreign import timm_models
from dovetail.parts.foreign.packaged_weights import LITE_PREPROCESS, lite_weights
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part, build, contract_of
from dovetail.parts.recipe import Build

__all__ = ["PRETRAINED", "adopt"]

PRETRAINED = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")
"""Networks whose released weights come in an installed package."""


def adopt(
    source: nn.Module | str,
    *,
    example: Tensor | None = None,
    builder: str | None = None,
    args: dict[str, Any] | None = None,
    classes: tuple[str, ...] | None = None,
    preprocess: Preprocess | None = None,
) -> Part:
    """Give a network from elsewhere a contract.

    Args:
        source: A module; or the name of one in :data:`PRETRAINED`, with its released weights.
        example: A batch of inputs that goes through it, from which the shapes are learnt.
        builder: How to rebuild it, such as ``"timm/resnet18"``, so that it can be saved; found by
            itself for what timm or a registered builder made.
        args: The builder's arguments.
        classes: The names of the outputs.
        preprocess: What happens to raw pixels; found by itself for what timm made.

    >>> adopt(nn.Linear(4, 2), example=torch.zeros(1, 4), classes=("cat", "dog"))
    Part(Linear: 4 -> 2, 2 classes, 10 weights)
    """
    if isinstance(source, str):
        if example is not None or builder is not None or preprocess is not None:
            raise SettingsError("a network adopted by name brings its own builder and contract")
        part = _released(source, args or {})
        return part.changed(contract=replace(part.contract, classes=classes))
    recipe: Build | None = None
    if (known := timm_models.described(source)) is not None:
        found, found_args, found_preprocess = known
        builder, args = builder or found, found_args if args is None else args
        preprocess = preprocess or found_preprocess
    if builder is not None:
        recipe = Build(builder, to_plain(find_builder(builder).arguments(args or {})))
    elif (hint := recipe_hint(source)) is not None:
        recipe = Build(*hint)
    if example is None and recipe is not None:
        example = _example(recipe)
    contract = replace(contract_of(source, example), classes=classes, preprocess=preprocess)
    return Part(source, contract, recipe, Origin(how="adopt"))


def _example(recipe: Build) -> Tensor | None:
    shape = find_builder(recipe.build).input_shape(recipe.args)
    return None if shape is None else torch.zeros(2, *shape)


def _released(name: str, args: dict[str, Any]) -> Part:
    """Build the network, and give it the weights it was released with."""
    if name not in PRETRAINED:
        raise RecipeError(f"no released weights of {name!r}{nearest(name, PRETRAINED)}")
    if "classes" in args:
        raise SettingsError(
            f"{name!r} has the 1000 classes of ImageNet; cut off its head for other classes"
        )
    part = build(name, **args)
    blocks = [
        f"{stage}.{i}"
        for stage, child in part.module.named_children()
        if stage.startswith("stage")
        for i in range(len(list(child.children())))
    ]
    part.module.load_state_dict(lite_weights(int(name[-1]), dict(enumerate(blocks))), strict=True)
    part.module.eval()
    _, height, width = (axis or 0 for axis in part.contract.takes[0].shape or (0, 0, 0))
    how = replace(LITE_PREPROCESS, size=(height, width))
    return part.changed(
        contract=replace(part.contract, preprocess=how),
        origin=Origin(how="adopt", task="ImageNet", settings={"released as": name}),
    )
