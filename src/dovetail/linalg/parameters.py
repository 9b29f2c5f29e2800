"""Which parameters of a network are meant: by patterns of their names, by a test, by layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from dovetail.core.errors import SettingsError, nearest, shown

Choice: TypeAlias = str | Sequence[str] | Callable[[str, Tensor], bool] | None
"""Patterns of names, a test of name and tensor, or None for all of them."""


def chosen_parameters(module: nn.Module, params: Choice = None) -> tuple[str, ...]:
    """The names of the parameters asked for, each tensor once, in the module's own order.

    Args:
        module: Any module whose lazy layers have seen an input.
        params: None for all of them, frozen or not; a pattern or several, in which ``*`` stands for
            anything and the name of a child for all that is inside it; or a test of name and
            tensor.  Where two names share one tensor either of them finds it; the first is given.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> chosen_parameters(net, ["2", "*.bias"])
    ('0.bias', '2.weight', '2.bias')
    >>> chosen_parameters(net, lambda name, tensor: tensor.ndim > 1)
    ('0.weight', '2.weight')
    >>> chosen_parameters(net, "3.bias")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: no parameter is called '3.bias'; did you mean ...
    """
    refuse_lazy(module)
    every = dict(module.named_parameters(remove_duplicate=False))
    first = {id(tensor): name for name, tensor in reversed(every.items())}
    wanted = {first[id(every[name])] for name in _matching(every, params)}
    if not wanted:
        raise SettingsError("no parameter was chosen: there is nothing to differentiate by")
    for name in wanted:
        if not every[name].is_floating_point():
            raise SettingsError(
                f"{name!r} is of {every[name].dtype}, but derivatives need real floating point "
                "numbers; leave it out"
            )
    return tuple(name for name in every if name in wanted)


def refuse_lazy(module: nn.Module) -> None:
    """Refuse a module with layers that wait for an input to learn their shapes.

    >>> refuse_lazy(nn.Linear(2, 3))
    """
    if not isinstance(module, nn.Module):
        return  # something else is wrong with it
    for name, tensor in module.named_parameters():
        if isinstance(tensor, UninitializedParameter):
            raise SettingsError(f"{name!r} has no shape yet: call the module once on an input")


def by_layer(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parameters grouped by the layer that holds them, in order.

    >>> by_layer(["0.weight", "0.bias", "head.fc.weight", "scale"])
    {'0': ('0.weight', '0.bias'), 'head.fc': ('head.fc.weight',), '': ('scale',)}
    """
    groups: dict[str, tuple[str, ...]] = {}
    for name in names:
        layer = name.rpartition(".")[0]
        groups[layer] = (*groups.get(layer, ()), name)
    return groups


def _matching(every: Mapping[str, Tensor], params: Choice) -> Iterator[str]:
    if params is None or callable(params):
        if params is not None:
            _refuse_other_arguments(params)
        yield from (name for name in every if params is None or params(name, every[name]))
        return
    if not isinstance(params, Iterable):
        raise SettingsError(
            "params is a pattern of names or several, a test of (name, tensor), or None for all "
            f"parameters, not {shown(params)}"
        )
    patterns = [params] if isinstance(params, str) else list(params)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise SettingsError(f"a pattern of parameter names is text, not {shown(pattern)}")
        names = [n for n in every if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.*")]
        if not names:
            raise SettingsError(f"no parameter is called {shown(pattern)}{nearest(pattern, every)}")
        yield from names


def _refuse_other_arguments(test: Callable[[str, Tensor], bool]) -> None:
    try:
        signature = inspect.signature(test)
    except (TypeError, ValueError):  # a builtin that does not say
        return
    try:
        signature.bind("name", None)
    except TypeError:
        raise SettingsError(
            f"params as a test takes two arguments, (name, tensor); this one takes {signature}"
        ) from None
