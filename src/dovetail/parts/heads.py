"""Heads made from heads: the same layers, untrained with other outputs, or with more classes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, CutError, RecipeError
from dovetail.core.seeds import seeded
from dovetail.parts.builders import find_builder
from dovetail.parts.contract import Port
from dovetail.parts.cutting import cut, output_point
from dovetail.parts.facts import Origin
from dovetail.parts.part import Part
from dovetail.parts.recipe import Build, Cut, Join, Recipe, rebuild
from dovetail.parts.tracing import trailing_activation
from dovetail.parts.zoo.trees import Trees

COUNTS = ("classes", "num_classes")
"""What builders call the number of outputs: ours, and timm's."""


def before_the_head(part: Part) -> str | None:
    """The cut point behind which a network has its head; none where it ends in none.

    It ends in one if it knows classes, or if its last layer with weights is linear, no activation
    follows, and nobody has cut it there.

    >>> from dovetail.parts.part import build
    >>> before_the_head(build("lenet5", size=8))
    'fc2'
    """
    if part.contract.classes is None and (part.origin.how == "cut" or not _ends_linear(part)):
        return None
    try:
        return output_point(part.module)
    except CutError:  # weights on one side only: it is a head, or one layer
        return None


def fresh_head(
    model: Part, at: str, outputs: int | tuple[str, ...] | list[str], *, seed: int = 0
) -> Part:
    """What follows ``at`` in the model's architecture, untrained and with other outputs.

    >>> from dovetail.parts.part import build
    >>> fresh_head(build("lenet5", size=8), "conv2", 4)
    Part(back of lenet5 at conv2: 16×2×2 -> 4, 18,304 weights)
    """
    return head_like(cut(model, at)[1], outputs, seed=seed)


def head_like(head: Part, outputs: int | tuple[str, ...] | list[str], *, seed: int = 0) -> Part:
    """The layers of a head with fresh weights and so many outputs, or one for each name.

    It takes the same tensor but belongs to no space yet: nothing has been trained to agree.
    """
    names = None if isinstance(outputs, int) else tuple(outputs)
    count = outputs if isinstance(outputs, int) else len(outputs)
    if count < 1:
        raise ContractError(f"a head gives at least one number, not {count}")
    recipe = None if head.recipe is None else _with_outputs(head.recipe, count)
    with seeded(seed, "head"):
        module = _resized(head, count) if recipe is None else rebuild(recipe)
    contract = replace(
        head.contract.in_space(None, takes=True),
        gives=(Port((count,), head.contract.gives[0].dtype),),
        classes=names,
        kind="classes",
    )
    return Part(module.to(head.device), contract, recipe, Origin("build", settings={"seed": seed}))


def extend_head(head: Part, classes: Sequence[str], *, seed: int = 0) -> Part:
    """The same head with further classes: old weights are kept, those of new classes are drawn.

    For inputs of old classes its old outputs are the same numbers as before, and it keeps the space
    it takes.

    >>> import torch
    >>> from dovetail.parts.part import build
    >>> _, head = cut(build("mlp", shape=(4,), hidden=(8,), classes=2), at="hidden1")
    >>> head = head.changed(contract=replace(head.contract, classes=("cat", "dog")))
    >>> more, x = extend_head(head, ["owl"]), torch.rand(3, 8)
    >>> more.contract.classes, bool((more(x)[:, :2] == head(x)).all())
    (('cat', 'dog', 'owl'), True)
    """
    known = head.contract.classes
    if known is None:
        raise ContractError(
            f"{head.described!r} does not say which classes it knows, so it cannot be given more"
        )
    if isinstance(classes, str) or not classes:
        raise ContractError("classes= lists the names of the new classes")
    if twice := set(classes) & set(known):
        raise ContractError(f"{head.described!r} knows the class {min(twice)!r} already")
    wider = head_like(head, (*known, *classes), seed=seed)
    wider.module.load_state_dict(copy_by_class(head, wider))
    return wider.changed(
        contract=replace(wider.contract, takes=head.contract.takes),
        origin=head.origin.of_child(
            head.digest,
            "extend",
            {"classes": list(classes), "seed": seed, **head.origin.trained_norms},
        ),
    )


def copy_by_class(source: Part, target: Part) -> dict[str, Tensor]:
    """The target's state with the source's weights, where the two have one.

    Rows of the output layer go by the names of the classes; a class that only the target knows
    keeps its own row.  ``[classes, ...]`` tensors that differ otherwise are an error.
    """
    old, state = source.module.state_dict(), target.module.state_dict()
    if old.keys() != state.keys():
        raise ContractError(
            f"{source.described!r} and {target.described!r} are not of one architecture"
        )
    olds, news = source.contract.classes, target.contract.classes
    output = _output_tensors(source)
    result = {}
    for name, own in state.items():
        mine = own.clone()
        if name in output and olds is not None and news is not None:
            before = {known: place for place, known in enumerate(olds)}
            for place, known in enumerate(news):
                if known in before:
                    mine[place] = old[name][before[known]].to(mine)
        elif old[name].shape == own.shape:
            mine.copy_(old[name])
        else:
            raise ContractError(
                f"{name!r} is {tuple(old[name].shape)} in {source.described!r} and "
                f"{tuple(own.shape)} in {target.described!r}"
            )
        result[name] = mine
    return result


def _ends_linear(part: Part) -> bool:
    layers = [child for child in part.module.modules() if list(child.parameters(recurse=False))]
    plain = trailing_activation(part.module) == "identity"
    return plain and bool(layers) and isinstance(layers[-1], nn.Linear)


def _output_tensors(head: Part) -> set[str]:
    """The names of the last layer's tensors, ``[outputs, ...]``."""
    name = output_layer(head)
    return {f"{name}.{each}" if name else each for each in ("weight", "bias")}


def output_layer(head: Part) -> str:
    """The last dense or convolutional layer, of those that give what the head gives."""
    layers = [
        (name, child.weight.shape[0])
        for name, child in head.module.named_modules()
        if isinstance(child, nn.Linear | nn.Conv2d)
    ]
    if not layers:
        raise ContractError("this head has no dense or convolutional layer whose outputs to change")
    width = (head.contract.gives[0].shape or (None,))[0]
    # Layers need not be written down in the order in which they run.
    fitting = [name for name, outputs in layers if outputs == width]
    last: str = fitting[-1] if fitting else layers[-1][0]
    return last


def with_temperature(part: Part, temperature: float) -> Part:
    """The part with its outputs divided by a temperature, which goes into its last weights.

    >>> import torch
    >>> from dovetail.parts.part import build
    >>> part, x = build("lenet5", size=8), torch.rand(2, 1, 8, 8)
    >>> torch.allclose(with_temperature(part, 2.0)(x), part(x) / 2, atol=1e-6)
    True
    """
    module = copy.deepcopy(part.module)
    trees = [child for child in module.modules() if isinstance(child, Trees)]
    if trees:
        tensors = [trees[-1].value, trees[-1].base]
    else:
        if (after := trailing_activation(module)) != "identity":
            raise ContractError(
                f"the network ends in {after}, so that no weights of it could take a temperature; "
                "fit it again and do not calibrate"
            )
        last = module.get_submodule(output_layer(part))
        tensors = list(last.parameters(recurse=False))
    with torch.no_grad():
        for tensor in tensors:
            tensor.div_(temperature)
    settings = {**part.origin.settings, "temperature": temperature}
    return part.changed(module=module, origin=replace(part.origin, settings=settings))


def _with_outputs(recipe: Recipe, count: int) -> Recipe | None:
    """The recipe with another number of outputs; nothing where it cannot be said."""
    match recipe:
        case Build(build=name, args=args):
            known = find_builder(name).arguments(args)
            word = next((word for word in COUNTS if word in known), None)
            return None if word is None else Build(name, {**args, word: count})
        case Cut(of=of, at=at, side="back"):
            inner = _with_outputs(of, count)
            return None if inner is None else Cut(inner, at, "back")
        case Join(parts=parts, norms=norms):
            last = _with_outputs(parts[-1], count)
            return None if last is None else Join((*parts[:-1], last), norms)
        case _:
            return None


def _resized(head: Part, count: int) -> nn.Module:
    """A copy of the head's layers, each drawn anew, the last with other outputs."""
    module = copy.deepcopy(head.module)
    name = output_layer(head)
    old = module.get_submodule(name)
    bias = old.bias is not None
    new: nn.Module
    if isinstance(old, nn.Linear):
        new = nn.Linear(old.in_features, count, bias)
    elif isinstance(old, nn.Conv2d) and old.kernel_size == (1, 1):
        new = nn.Conv2d(old.in_channels, count, 1, bias=bias)
    else:
        raise RecipeError(f"the output layer of {head.described!r} is no dense layer")
    parent, _, child = name.rpartition(".")
    if not name:
        return new
    setattr(module.get_submodule(parent), child, new)
    for layer in module.modules():
        reset = getattr(layer, "reset_parameters", None)
        if callable(reset):
            reset()
    return module
