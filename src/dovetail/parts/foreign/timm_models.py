"""timm's architectures as builders: ``timm/resnet18`` and some thousand others.

A recipe may choose an architecture that timm lists and a few plain arguments; whatever makes timm
download or open a file is not among them.  Weights come from a module that the user has made, or
from our own folders.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from dovetail.core.errors import RecipeError, nearest, shown
from dovetail.parts.builders import Builder
from dovetail.parts.contract import Preprocess
from dovetail.parts.foreign.timm_import import import_timm

PREFIX = "timm/"


def builder_for(name: str) -> Builder:
    """The builder of ``timm/<architecture>``."""
    timm = import_timm()
    architecture = name.removeprefix(PREFIX)
    # Names with a scheme, such as hf-hub:..., are addresses; only what timm lists is a name.
    if architecture not in timm.list_models():
        raise RecipeError(
            f"timm has no architecture {shown(architecture)}"
            f"{nearest(architecture, timm.list_models())}"
        )
    default = timm.get_pretrained_cfg(architecture)
    side = (default.input_size if default else (3, 224, 224))[-1]

    def make(
        *,
        num_classes: int = 1000,
        in_chans: int = 3,
        img_size: int | None = None,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        drop_path_rate: float | None = None,
    ) -> nn.Module:
        optional = {
            "img_size": img_size,
            "global_pool": global_pool,
            "drop_path_rate": drop_path_rate,
        }
        options = {name: value for name, value in optional.items() if value is not None}
        module: nn.Module = timm.create_model(
            architecture,
            pretrained=False,
            num_classes=num_classes,
            in_chans=in_chans,
            drop_rate=drop_rate,
            **options,
        )
        return module

    return Builder(name, make, lambda in_chans, img_size: (in_chans,) + (img_size or side,) * 2)


def described(module: nn.Module) -> tuple[str, dict[str, Any], Preprocess | None] | None:
    """Builder, arguments and preprocessing of a module that timm made; nothing for others.

    The preprocessing has timm's mean and standard deviation for these weights, and no size.
    """
    if not type(module).__module__.startswith("timm."):
        return None
    facts = getattr(module, "pretrained_cfg", None) or {}
    architecture = facts.get("architecture")
    if not architecture:
        return None
    first = next(child for child in module.modules() if isinstance(child, nn.Conv2d | nn.Linear))
    args: dict[str, Any] = {"num_classes": int(getattr(module, "num_classes", 1000))}
    if isinstance(first, nn.Conv2d):
        args["in_chans"] = first.in_channels
    sides = getattr(getattr(module, "patch_embed", None), "img_size", None)
    if sides and tuple(sides) != tuple(facts.get("input_size") or ())[1:]:
        args["img_size"] = int(sides[0])  # its positions are for this size only
    preprocess = None
    if facts.get("mean") and facts.get("std"):
        mean, std = (tuple(float(value) for value in facts[key]) for key in ("mean", "std"))
        if len(mean) != args.get("in_chans", len(mean)):  # of grey pixels: between the colours'
            mean, std = ((sum(values) / len(values),) for values in (mean, std))
        preprocess = Preprocess(mean=mean, std=std)
    return PREFIX + architecture, args, preprocess
