"""Recipes: how to rebuild a module, as a closed JSON expression of five operators.

``build`` calls an allow-listed builder, ``cut`` keeps one side of what another recipe builds,
``join`` chains several, ``adapter`` is a learned 1×1 map between channel counts, ``linearise`` adds
a direction of its weights to what another recipe builds::

    {"cut": {"of": {"build": "resnet20", "args": {"classes": 10}}, "at": "layer3", "side": "front"}}
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dovetail.core.errors import FormatError, RecipeError, nearest, shown
from dovetail.core.plain import from_plain, to_plain

if TYPE_CHECKING:  # to read a recipe needs no torch, and a shelf is listed without it
    from torch import nn

DEEPEST = 32
"""Recipes nest as parts are cut and joined; one deeper than this is not of our making."""

MOST_VALUES = 4096
"""Operators, arguments and items of a recipe, together; a longer one is not of our making."""

_LARGEST = 2**63 - 1  # what torch can count to; Python alone would happily multiply on


@dataclass(frozen=True)
class Build:
    """Call a builder.

    >>> to_plain(Build("mlp", {"classes": 3}))
    {'build': 'mlp', 'args': {'classes': 3}}
    """

    build: str
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Operator:
    """What is written as the name of an operator and its fields."""

    operator: ClassVar[str]

    def to_plain(self) -> dict[str, Any]:
        """The expression as JSON."""
        named = {each.name: to_plain(getattr(self, each.name)) for each in fields(self)}
        return {self.operator: named}


@dataclass(frozen=True)
class Cut(_Operator):
    """Keep one side of a cut.

    >>> to_plain(Cut(Build("mlp"), "hidden1", "back"))["cut"]["side"]
    'back'
    """

    operator = "cut"
    of: Recipe
    at: str
    side: Literal["front", "back"]


@dataclass(frozen=True)
class Join(_Operator):
    """Chain several; ``norms`` says which statistics their batch norms use.

    >>> to_plain(Join((Build("mlp"), Build("mlp"))))["join"]["norms"]
    'stored'
    """

    operator = "join"
    parts: tuple[Recipe, ...]
    norms: Literal["stored", "batch"] = "stored"


@dataclass(frozen=True)
class Adapter(_Operator):
    """A linear map of channels: 1×1 convolution on maps, a dense layer on vectors.

    >>> to_plain(Adapter(16, 32, maps=True))
    {'adapter': {'takes': 16, 'gives': 32, 'maps': True}}
    """

    operator = "adapter"
    takes: int
    gives: int
    maps: bool


@dataclass(frozen=True)
class Linearize(_Operator):
    """Move along a direction of the weights, linearly; see :class:`LinearizedNetwork`.

    >>> to_plain(Linearize(Build("mlp"), 3, ("head.bias",)))["linearise"]["moves"]
    ['head.bias']
    """

    operator = "linearise"
    of: Recipe
    outputs: int
    moves: tuple[str, ...] | None = None
    projected: int | None = None
    follows_network: bool = True


Recipe = Build | Cut | Join | Adapter | Linearize

_OPERATORS = ("build", "cut", "join", "adapter", "linearise")


def read_recipe(value: Any, *, check: bool = True) -> Recipe:
    """Parse a recipe and refuse whatever is not one, building nothing.

    Without ``check`` the builders it names need not be known here: enough to list, not to build.

    >>> read_recipe({"run": "rm"})
    Traceback (most recent call last):
    ...
    dovetail.core.errors.RecipeError: recipe: unknown operator 'run'; there is build, cut, ...
    """
    _check_size(value)
    try:
        recipe = _read(value, "recipe", depth=0)
    except FormatError as error:
        raise RecipeError(str(error)) from None
    if check:
        check_recipe(recipe)
    return recipe


def check_recipe(recipe: Recipe) -> None:
    """Refuse unknown builders and arguments that a builder does not take."""
    from dovetail.parts.builders import find_builder

    match recipe:
        case Build():
            find_builder(recipe.build).arguments(recipe.args)
        case Cut():
            check_recipe(recipe.of)
        case Join():
            for part in recipe.parts:
                check_recipe(part)
        case Adapter():
            if min(recipe.takes, recipe.gives) < 1:
                raise RecipeError("an adapter maps at least one channel to at least one")
        case Linearize():
            if min(recipe.outputs, 1 if recipe.projected is None else recipe.projected) < 1:
                raise RecipeError("a linearised network gives at least one number, of at least one")
            check_recipe(recipe.of)


def rebuild(recipe: Recipe) -> nn.Module:
    """The module a recipe describes, with fresh weights on torch's current device.

    >>> rebuild(Cut(Build("mlp", {"hidden": [8], "shape": [4]}), "hidden1", "back"))
    Sequential(
      (head): Linear(in_features=8, out_features=10, bias=True)
    )
    """
    from torch import nn

    from dovetail.parts.builders import find_builder
    from dovetail.parts.linearized import LinearizedNetwork
    from dovetail.parts.splitting import split

    match recipe:
        case Build():
            return find_builder(recipe.build).build(recipe.args)
        case Cut():
            halves = split(rebuild(recipe.of), recipe.at)
            return halves.front if recipe.side == "front" else halves.back
        case Join():
            return chain_modules([rebuild(part) for part in recipe.parts], recipe.norms)
        case Adapter():
            if recipe.maps:
                return nn.Conv2d(recipe.takes, recipe.gives, 1)
            return nn.Linear(recipe.takes, recipe.gives)
        case Linearize():
            return LinearizedNetwork(
                rebuild(recipe.of),
                recipe.outputs,
                moves=recipe.moves,
                projected=recipe.projected,
                follows_network=recipe.follows_network,
            )


def in_words(recipe: Recipe) -> str:
    """The recipe in a few words.

    >>> in_words(Join((Cut(Build("mlp"), "hidden1", "front"), Adapter(64, 32, maps=False))))
    '(front of mlp at hidden1) + (adapter 64->32)'
    """
    match recipe:
        case Build(build=name):
            return name
        case Cut(of=of, at=at, side=side):
            return f"{side} of {in_words(of)} at {at}"
        case Join(parts=parts):
            return " + ".join(f"({in_words(part)})" for part in parts)
        case Adapter(takes=takes, gives=gives):
            return f"adapter {takes}->{gives}"
        case Linearize(of=of):
            return f"linearised {in_words(of)}"


def chain_modules(modules: list[nn.Module], norms: Literal["stored", "batch"]) -> nn.Module:
    """The modules as one, tensors shared; batch norms as ``norms`` says."""
    from dovetail.parts.norms import with_batch_statistics
    from dovetail.parts.splitting import Chain

    joined = Chain(*modules)
    joined.training = modules[0].training  # of this link alone: the children are the caller's
    return with_batch_statistics(joined) if norms == "batch" else joined


def _check_size(value: Any) -> None:
    """Refuse a recipe of many thousand values, or with a number that no tensor can have."""
    waiting, seen = [value], 0
    while waiting:
        each = waiting.pop()
        seen += 1
        if isinstance(each, dict | list):
            if seen + len(waiting) + len(each) > MOST_VALUES:
                raise RecipeError(f"recipe: more than {MOST_VALUES} values")
            waiting += each.values() if isinstance(each, dict) else each
        elif isinstance(each, int) and abs(each) > _LARGEST:
            raise RecipeError(f"recipe: no tensor is as large as {shown(each)}")


def _read(value: Any, where: str, depth: int) -> Recipe:
    if depth > DEEPEST:
        raise RecipeError(f"{where}: nested deeper than {DEEPEST} operators")
    if not isinstance(value, dict):
        raise RecipeError(f"{where}: expected an operator, found {type(value).__name__}")
    operator = next((key for key in _OPERATORS if key in value), None)
    if operator is None:
        word = next(iter(value), "nothing")
        raise RecipeError(
            f"{where}: unknown operator {shown(word)}{nearest(str(word), _OPERATORS)}"
        )
    if operator == "build":
        return from_plain(Build, value, where)
    if len(value) > 1:
        raise RecipeError(f"{where}: {operator!r} stands alone, found {shown(sorted(value))}")
    named, inside = value[operator], f"{where}.{operator}"
    if not isinstance(named, dict):
        raise RecipeError(f"{where}: {operator!r} needs named fields")
    if operator == "adapter":
        return from_plain(Adapter, named, inside)
    inner = "parts" if operator == "join" else "of"
    rest = {key: each for key, each in named.items() if key != inner}
    if operator in ("cut", "linearise"):
        of = _read(named.get("of"), f"{inside}.of", depth + 1)
        if operator == "cut":
            return Cut(of, **vars(from_plain(_CutRest, rest, inside)))
        return Linearize(of, **vars(from_plain(_LinearizeRest, rest, inside)))
    parts = named.get("parts")
    if not isinstance(parts, list) or len(parts) < 2:
        raise RecipeError(f"{inside}: needs a list of at least two parts")
    norms = from_plain(_JoinRest, rest, inside).norms
    read = (_read(part, f"{inside}.parts[{i}]", depth + 1) for i, part in enumerate(parts))
    return Join(tuple(read), norms)


@dataclass(frozen=True)
class _CutRest:
    at: str
    side: Literal["front", "back"]


@dataclass(frozen=True)
class _LinearizeRest:
    outputs: int
    moves: tuple[str, ...] | None = None
    projected: int | None = None
    follows_network: bool = True


@dataclass(frozen=True)
class _JoinRest:
    norms: Literal["stored", "batch"] = "stored"
