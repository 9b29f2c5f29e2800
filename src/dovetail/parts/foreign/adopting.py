"""Giving networks from elsewhere a contract: modules, files of weights, released networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.errors import (
    ContractError,
    CutError,
    FormatError,
    RecipeError,
    SettingsError,
    argument,
    nearest,
)
from dovetail.core.plain import to_plain
from dovetail.parts.blueprint import Blueprint, draft
from dovetail.parts.builders import find_builder, recipe_hint
from dovetail.parts.contract import Preprocess, shown_shape
from dovetail.parts.cutting import cut
from dovetail.parts.facts import Origin
from dovetail.parts.foreign import timm_models
from dovetail.parts.foreign.lite_weights import LITE_PREPROCESS, PRETRAINED, lite_weights
from dovetail.parts.foreign.weight_files import ForeignState, Match, matched, read_state
from dovetail.parts.heads import COUNTS, before_the_head, output_layer
from dovetail.parts.modules import described
from dovetail.parts.part import Part, build, contract_of
from dovetail.parts.recipe import Build


def adopt(
    source: nn.Module | str,
    *,
    example: Tensor | None = None,
    builder: str | None = None,
    args: dict[str, Any] | None = None,
    classes: tuple[str, ...] | None = None,
    preprocess: Preprocess | None = None,
    weights: str | Path | None = None,
    features: bool = False,
) -> Part:
    """Give a network from elsewhere a contract.

    Args:
        source: A module; or the name of a builder, whose weights are in the file ``weights``; or
            a name in :data:`PRETRAINED`, with its released weights.
        example: A batch of inputs that goes through it, from which the shapes are learnt; the
            size of its images is the size that the part takes.
        builder: How to rebuild it, such as ``"timm/resnet18"``, so that it can be saved; found by
            itself for what timm or a registered builder made.
        args: The builder's arguments.
        classes: The names of the outputs.
        preprocess: What happens to raw pixels; for what timm made its own mean and standard
            deviation, at the size that the network takes.
        weights: A ``.safetensors`` file, or one that ``torch.save`` wrote of a state dict.  Every
            tensor must find its place, by name or by order; the part's ``origin.settings`` says
            how many did which.
        features: Leave the classifier away, whatever its classes: the part gives features.

    >>> adopt(nn.Linear(4, 2), example=torch.zeros(1, 4), classes=("cat", "dog"))
    Part(Linear: 4 -> 2, 2 classes, 10 weights)
    """
    if example is not None and example.dtype == torch.uint8:
        example = example.float() / 255  # bytes are shares of 255 everywhere
    if isinstance(source, str):
        part = _by_name(source, args or {}, example, builder, preprocess, weights, features)
    elif weights is not None:
        raise SettingsError(
            f"{argument('weights')} are for a network adopted by its builder's name; load them "
            "into a module before you adopt it"
        )
    else:
        part = _module(source, example, builder, args, preprocess)
    if features:
        part = _without_head(part)
        if classes:
            raise SettingsError(f"features have no classes; leave out {argument('classes')}")
    gives = part.contract.gives[0].shape
    if classes and gives is not None and gives[-1:] not in ((len(classes),), (None,)):
        raise SettingsError(
            f"{part.described!r} gives {gives[-1]} numbers and {len(classes)} classes are named; "
            "name all of them, or build it for as many"
        )
    return part.changed(contract=replace(part.contract, classes=classes))


def _module(
    module: nn.Module,
    example: Tensor | None,
    builder: str | None,
    args: dict[str, Any] | None,
    preprocess: Preprocess | None,
) -> Part:
    recipe: Build | None = None
    usual = None
    if (known := timm_models.described(module)) is not None:
        made_by, made_with, usual = known
        builder, args = builder or made_by, made_with if args is None else args
    if builder is not None:
        recipe = Build(builder, to_plain(find_builder(builder).arguments(args or {})))
    elif (hint := recipe_hint(module)) is not None:
        recipe = Build(*hint)
    if example is None and recipe is not None:
        example = _example(recipe)
    part = Part(module, contract_of(module, example), recipe, Origin(how="adopt"))
    return _preprocessed(part, preprocess, usual, example)


def _example(recipe: Build) -> Tensor | None:
    shape = find_builder(recipe.build).input_shape(recipe.args)
    return None if shape is None else torch.zeros(2, *shape)


def _preprocessed(
    part: Part, chosen: Preprocess | None, usual: Preprocess | None, example: Tensor | None = None
) -> Part:
    """The part with what was given, or found out, brought to the size of the images it takes."""
    shape = part.contract.takes[0].shape
    how = chosen or usual
    if how is not None and shape is not None and len(shape) == 3:
        channels, height, width = (axis or 0 for axis in shape)
        makes = (how.channels or channels, *(how.size or (height, width)))
        if makes != shape:
            raise ContractError(
                f"the preprocessing makes {shown_shape(makes)}, the network takes "
                f"{shown_shape(shape)}; give one for that size, or without any"
            )
        how = replace(how, size=(height, width), channels=channels)
        if example is not None and example.is_floating_point() and example.numel():
            seen = (float(value) for value in (example.min(), example.max(), example.mean()))
            if why := how.misfit(*seen):
                raise ContractError(f"the example: {why}")
    return part.changed(contract=replace(part.contract, preprocess=how))


# By name ------------------------------------------------------------------------------------------


def _by_name(
    name: str,
    args: dict[str, Any],
    example: Tensor | None,
    builder: str | None,
    preprocess: Preprocess | None,
    weights: str | Path | None,
    features: bool,
) -> Part:
    if builder is not None or (weights is None and (example is not None or preprocess is not None)):
        raise SettingsError("a network adopted by name brings its own builder and contract")
    if weights is None:
        return _released(name, args)
    full, match = _fitting(name, find_builder(name).arguments(args), weights, features)
    part = build(name, **full)
    part.module.load_state_dict(match.state, strict=True)
    part.module.eval()
    if example is not None:
        part = part.changed(contract=contract_of(part.module, example))
    source = {"file": Path(weights).name, "by name": match.by_name, "by order": match.by_order}
    part = part.changed(origin=Origin(how="adopt", settings={"weights": source}))
    usual = LITE_PREPROCESS if name in PRETRAINED else None
    if (known := timm_models.described(part.module)) is not None:
        usual = known[2]
    return _preprocessed(part, preprocess, usual, example)


def _fitting(
    name: str, args: dict[str, Any], weights: str | Path, features: bool
) -> tuple[dict[str, Any], Match]:
    """The builder's arguments for which the file's weights fit, and the weights.

    They are those asked for, except that features come from a network of any number of classes.
    """
    drafted = draft(Build(name, to_plain(args)))
    state = read_state(weights, described(drafted.module.state_dict()))
    try:
        return args, matched(state, described(drafted.module.state_dict()), weights)
    except FormatError as error:
        refused = error
    for word, count in _counts(args, state, drafted):
        fitting = args | {word: count}
        wanted = described(draft(Build(name, to_plain(fitting))).module.state_dict())
        try:
            match = matched(state, wanted, weights)
        except FormatError:
            continue
        if features:
            return fitting, match
        has = f"a classifier of {count} classes" if count else "no classifier"
        raise SettingsError(
            f"{weights} has {has}, and {name!r} was asked for {args[word]}; build it with "
            f"{argument(f'set.{word}', count)}, or take its features alone with "
            f"{argument('features', True)}"
        )
    raise refused


def _counts(
    args: dict[str, Any], state: ForeignState, drafted: Blueprint
) -> Iterator[tuple[str, int]]:
    """Other numbers of classes that the file may be for; timm builds networks without any, too."""
    word = next((word for word in COUNTS if word in args), None)
    if word is None:
        return
    layer = output_layer(Part(drafted.module))
    tensors = state.without_wrappers(described(drafted.module.state_dict())).tensors
    last = [tensor for tensor in tensors.values() if tensor.ndim > 1][-1:] if state.ordered else []
    weights = [tensors[name] for name in (f"{layer}.weight",) if name in tensors] or last
    yield from ((word, tensor.shape[0]) for tensor in weights if tensor.ndim)
    if word == "num_classes":
        yield word, 0


def _without_head(part: Part) -> Part:
    """The front of a network, up to its output layer; what has none is left as it is."""
    of_the_whole = part.origin.settings
    recipe = part.recipe
    if isinstance(recipe, Build) and recipe.args.get("num_classes") == 0:
        return part
    if (at := before_the_head(part)) is None:
        raise CutError(f"{part.described!r} has no output layer to leave away; cut it yourself")
    front, _ = cut(part, at)
    settings = {**front.origin.settings, **of_the_whole}
    return front.changed(origin=replace(front.origin, settings=settings))


def _released(name: str, args: dict[str, Any]) -> Part:
    """Build the network, and give it the weights it was released with."""
    if name not in PRETRAINED:
        raise RecipeError(
            f"no released weights of {name!r}{nearest(name, PRETRAINED)}; name a file of them "
            f"with {argument('weights', ...)}"
        )
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
    part = _preprocessed(part, None, LITE_PREPROCESS)
    origin = Origin(how="adopt", task="ImageNet", settings={"released as": name})
    return part.changed(origin=origin)
