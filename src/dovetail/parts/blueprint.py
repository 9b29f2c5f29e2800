"""Building without numbers: a recipe's module on the meta device, and its memory afterwards.

A recipe comes from a file, and a few bytes of it can ask for a network of any size.  On the meta
device that costs nothing but the modules themselves, and of those there is a most.  What is kept
of a network (one side of a cut, say) then gets memory for its own tensors and no others.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode

from dovetail.core.errors import DovetailError, FormatError, RecipeError, first_line
from dovetail.parts.recipe import Recipe, rebuild

MOST_PIECES = 10_000
"""Modules, parameters and buffers a recipe may make; a residual network of 1001 layers has 9000."""

SPARE_BYTES = 1 << 30
"""What a recipe may build in vain, over four times what it keeps, where that cannot be avoided."""


@dataclass
class _Counted:
    thread: int = field(default_factory=threading.get_ident)
    pieces: int = 0
    bytes: int = 0

    def __call__(self, module: nn.Module, name: str, piece: Any) -> None:
        if threading.get_ident() != self.thread:  # the hooks see every thread's modules
            return
        self.pieces += 1
        if isinstance(piece, Tensor):
            self.bytes += piece.numel() * piece.element_size()
        if self.pieces > MOST_PIECES:
            raise RecipeError(f"the recipe makes a network of more than {MOST_PIECES} pieces")


@dataclass(frozen=True)
class Blueprint:
    """The module on the meta device, and how many bytes its builders would take."""

    recipe: Recipe
    module: nn.Module
    bytes: int

    def with_memory(self) -> nn.Module:
        """The module with memory for its tensors, whose values must all be loaded afterwards.

        >>> from dovetail.parts.recipe import Build, Cut
        >>> whole = Build("mlp", {"shape": [2], "hidden": [3, 1_000_000_000]})
        >>> draft(Cut(whole, "hidden1", "front")).with_memory().hidden1.linear.weight.shape
        torch.Size([3, 2])
        """
        module = _with_memory(self.module)
        if module is not None:
            return module
        # It holds tensors that no file stores, so only its builders know their values.
        stored = sum(t.numel() * t.element_size() for t in self.module.state_dict().values())
        if self.bytes > 4 * stored + SPARE_BYTES:
            raise RecipeError(f"the recipe builds {self.bytes} bytes to keep {stored}")
        try:
            with torch.random.fork_rng():
                return rebuild(self.recipe)
        except DovetailError:
            raise
        except Exception as error:  # a builder is code of others; its failure is the recipe's
            raise FormatError(f"the recipe cannot be built ({first_line(error)})") from None


def draft(recipe: Recipe) -> Blueprint:
    """Build on the meta device, where nothing is allocated; refuse what is too much even there.

    >>> from dovetail.parts.recipe import Build
    >>> draft(Build("mlp", {"shape": [2], "hidden": [1_000_000_000]})).module.head.weight.device
    device(type='meta')
    """
    counted = _Counted()
    try:
        with _watched(counted), torch.device("meta"), _Unfilled(), torch.random.fork_rng():
            return Blueprint(recipe, rebuild(recipe), counted.bytes)
    except DovetailError:
        raise
    except Exception as error:  # a builder is code of others; its failure is the recipe's
        raise FormatError(f"the recipe cannot be built ({first_line(error)})") from None


_FILLS = frozenset(
    getattr(where, name)
    for where, names in (
        (init, ("kaiming_uniform_", "uniform_", "normal_", "constant_", "ones_", "zeros_")),
        (Tensor, ("uniform_", "normal_", "fill_", "zero_")),
    )
    for name in names
)


class _Unfilled(TorchFunctionMode):
    """First values of tensors that hold none are left out: they are half the work of building."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if func in _FILLS:
            tensor = args[0] if args else keywords["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **keywords)


@contextmanager
def _watched(counted: _Counted) -> Iterator[None]:
    handles = [
        register_module_module_registration_hook(counted),
        register_module_parameter_registration_hook(counted),
        register_module_buffer_registration_hook(counted),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _with_memory(drafted: nn.Module) -> nn.Module | None:
    """A copy whose stored tensors have memory; nothing if there are tensors it does not store."""
    stored = {id(t): t for t in drafted.state_dict(keep_vars=True).values()}
    if len({t.untyped_storage()._cdata for t in stored.values()}) < len(stored):
        return None  # some are views of others, which copies of them would not be
    device = torch.get_default_device()
    memo: dict[int, Any] = {}
    for key, tensor in stored.items():
        if type(tensor) not in (Tensor, nn.Parameter):
            return None
        real = torch.empty_like(tensor, device=device, requires_grad=False)
        if isinstance(tensor, nn.Parameter):
            real = nn.Parameter(real, requires_grad=tensor.requires_grad)
        memo[key] = real
    try:
        twin = copy.deepcopy(drafted, memo)
    except Exception:  # it holds a lock, a file or the like; its builder knows how to make another
        return None
    # The memo holds everything that was copied, however deep inside whatever object.
    meta = torch.device("meta")
    hidden = any(
        (isinstance(each, Tensor) and each.is_meta)
        or (isinstance(each, torch.device) and each == meta)
        for each in memo.values()
    )
    return None if hidden else twin
