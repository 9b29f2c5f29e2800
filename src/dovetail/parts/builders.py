"""Builders: the allow-list of functions that a recipe may call.

A file names a builder and its arguments; the arguments are checked against the builder's own
annotations before it is called.  Nothing else in a file ever becomes code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, get_type_hints, overload

from torch import nn

from dovetail.core.errors import FormatError, RecipeError, nearest, shown
from dovetail.core.plain import from_plain, to_plain

Make = Callable[..., nn.Module]
ENTRY_POINTS = "dovetail.builders"


@dataclass(frozen=True)
class Builder:
    """A function that makes a module from plain keyword arguments.

    ``takes`` gives the input's shape (without the batch axis) for the same arguments.
    """

    name: str
    make: Make
    takes: Callable[..., tuple[int, ...]] | None = None

    def arguments(self, args: dict[str, Any]) -> dict[str, Any]:
        """Check the arguments by the annotations and fill in the defaults."""
        parameters, hints = _signature(self.make)
        if unknown := sorted(set(args) - set(parameters)):
            raise RecipeError(
                f"builder {self.name!r} has no argument {shown(unknown[0])}"
                f"{nearest(unknown[0], parameters)}"
            )
        full = {}
        for name, parameter in parameters.items():
            if name not in args and parameter.default is inspect.Parameter.empty:
                raise RecipeError(f"builder {self.name!r} needs the argument {name!r}")
            value = to_plain(args[name]) if name in args else to_plain(parameter.default)
            try:
                full[name] = from_plain(hints.get(name, Any), value, name)
            except FormatError as error:
                raise RecipeError(f"builder {self.name!r}: {error}") from None
        return full

    def build(self, args: dict[str, Any]) -> nn.Module:
        """Make the module from checked arguments."""
        return self.make(**self.arguments(args))

    def input_shape(self, args: dict[str, Any]) -> tuple[int, ...] | None:
        """The shape of the input, if the builder says."""
        if self.takes is None:
            return None
        full = self.arguments(args)
        wanted = inspect.signature(self.takes).parameters
        return self.takes(**{name: full[name] for name in wanted})


@cache
def _signature(make: Make) -> tuple[Mapping[str, inspect.Parameter], dict[str, Any]]:
    return inspect.signature(make).parameters, get_type_hints(make)


_OURS = {
    "mlp": "mlp",
    "patch-mlp": "patches",
    "lenet5": "lenet",
    "resnet8": "resnet",
    "resnet20": "resnet",
    "resnet56": "resnet",
    "wideresnet16": "resnet",
    "vgg13": "vgg",
    "mobilenetv2": "mobilenet",
    "efficientnet-lite0": "efficientnet",
    "efficientnet-lite1": "efficientnet",
    "efficientnet-lite2": "efficientnet",
    "boosted-trees": "trees",
    "decision-block": "decision",
}
"""Our own builders, and the file of the zoo that registers each."""

_FAMILIES = {"timm/": "timm_models"}
"""Prefixes of names that another library knows, and the file of ``foreign`` that asks it."""

_KNOWN: dict[str, Builder] = {}


@overload
def builder(name: Make) -> Make: ...
@overload
def builder(
    name: str | None = None, *, takes: Callable[..., tuple[int, ...]] | None = None
) -> Callable[[Make], Make]: ...
def builder(
    name: Make | str | None = None, *, takes: Callable[..., tuple[int, ...]] | None = None
) -> Make | Callable[[Make], Make]:
    """Allow a function of plain keyword arguments to be named in recipes.

    What it makes can then be saved and loaded by anyone who has registered the same function.

    >>> @builder("two-layer")
    ... def two_layer(*, hidden: int = 8) -> nn.Module:
    ...     return nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 2))
    >>> find_builder("two-layer").build({"hidden": 3})[0]
    Linear(in_features=4, out_features=3, bias=True)
    >>> find_builder("two-layer").build({"hiden": 3})
    Traceback (most recent call last):
    ...
    dovetail.core.errors.RecipeError: builder 'two-layer' has no argument 'hiden'; did...
    """
    if callable(name):
        return builder()(name)

    def register(make: Make) -> Make:
        known_as = name or make.__name__
        if _clashes(known_as, make):
            raise RecipeError(f"a builder named {known_as!r} is there already; choose another name")
        entry = _KNOWN[known_as] = Builder(known_as, make, takes)

        @wraps(make)
        def remembered(**given: Any) -> nn.Module:
            module = entry.build(given)
            module.dovetail_build = (known_as, to_plain(given))  # type: ignore[assignment]
            return module

        return remembered

    return register


def recipe_hint(module: nn.Module) -> tuple[str, dict[str, Any]] | None:
    """The builder and arguments that made this very module, if a registered builder did."""
    hint = vars(module).get("dovetail_build")
    return hint if isinstance(hint, tuple) else None


def find_builder(name: str) -> Builder:
    """The builder of that name: ours, one registered here, or one from an installed package.

    >>> find_builder("resnet21")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.RecipeError: unknown builder 'resnet21'; did you mean resnet20...
    """
    if name not in _KNOWN:
        _register(name)
    if name not in _KNOWN:
        raise RecipeError(f"unknown builder {shown(name)}{nearest(name, known_builders())}")
    return _KNOWN[name]


def known_builders() -> tuple[str, ...]:
    """The names of all builders, ours first.

    >>> known_builders()[:4]
    ('mlp', 'patch-mlp', 'lenet5', 'resnet8')
    """
    installed = (entry.name for entry in entry_points(group=ENTRY_POINTS))
    return tuple(dict.fromkeys((*_OURS, *_KNOWN, *installed)))


def _clashes(name: str, make: Make) -> bool:
    old = _KNOWN.get(name)
    if name in _OURS:
        return not make.__module__.startswith("dovetail.parts.zoo.")
    return old is not None and (old.make.__module__, old.make.__qualname__) != (
        make.__module__,
        make.__qualname__,
    )


def _register(name: str) -> None:
    """Import what registers ``name``: our zoo, another library, or a package's entry point."""
    family = next((prefix for prefix in _FAMILIES if name.startswith(prefix)), None)
    if name in _OURS:
        import_module(f"dovetail.parts.zoo.{_OURS[name]}")
    elif family is not None:
        _KNOWN[name] = import_module(f"dovetail.parts.foreign.{_FAMILIES[family]}").builder_for(
            name
        )
    else:
        for entry in entry_points(group=ENTRY_POINTS, name=name):
            entry.load()
