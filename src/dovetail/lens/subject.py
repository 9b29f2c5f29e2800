"""What the lens looks at: a network, some examples as it wants them, and the loss on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, TaskError, first_line, nearest, shown
from dovetail.core.seeds import generator
from dovetail.linalg.parameters import refuse_lazy
from dovetail.measure.forward import prepare, refuse_other_inputs
from dovetail.parts.part import Part
from dovetail.tasks.arrays import as_float
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task
from dovetail.train.supervision import LOSSES

Array = np.ndarray[Any, Any]
Data: TypeAlias = Task | tuple[Tensor | Array, Tensor | Array]
"""A task, or inputs ``[n, ...]`` with their targets ``[n]`` or ``[n, k]``."""

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""The mean loss of outputs and targets."""

BATCH_BYTES = 1 << 20
"""Of inputs that go forwards and backwards at once, where nobody says how many."""


@dataclass(frozen=True)
class Subject:
    """A module, examples that it takes as they are, and the loss of its outputs on their targets.

    ``where`` says, for a record's settings, which network and examples these are.
    """

    name: str
    module: nn.Module
    x: Tensor
    y: Tensor
    loss: Loss
    where: dict[str, object]

    def loss_of(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean loss; outputs that do not suit the targets are told.

        >>> subject = subject_of(nn.Linear(4, 3), (torch.rand(8, 4), torch.arange(8)))
        >>> subject.loss_of(subject.module(subject.x), subject.y)
        Traceback (most recent call last):
        ...
        dovetail.core.errors.TaskError: outputs of shape [8, 3] ... suit the loss: Target 3 is ...
        """
        try:
            return self.loss(outputs, y)
        except (RuntimeError, IndexError, ValueError) as error:
            if "vmap" in str(error):  # whoever vectorises has another way
                raise
            raise TaskError(
                f"outputs of shape {list(outputs.shape)} and targets of shape {list(y.shape)} do "
                f"not suit the loss: {first_line(error)}"
            ) from None


def module_of(part: Part | nn.Module) -> tuple[str, nn.Module]:
    """What to call a part or module, and the module.

    >>> module_of(nn.Linear(1, 1))
    ('Linear', Linear(in_features=1, out_features=1, bias=True))
    """
    if isinstance(part, Part):
        return part.described, part.module
    if not isinstance(part, nn.Module):
        raise ContractError(f"expected a Part or an nn.Module, got {type(part).__name__}")
    return type(part).__name__, part


def named(parts: Any, names: Any = None) -> dict[str, Part | nn.Module]:
    """Several parts by name: a mapping as it is, a sequence with numbers.

    >>> list(named([nn.Identity(), nn.Identity()]))
    ['part 1', 'part 2']
    """
    if isinstance(parts, dict):
        return {str(name): part for name, part in parts.items()}
    several = list(parts)
    words = list(names) if names is not None else [f"part {i + 1}" for i in range(len(several))]
    if len(set(words)) != len(several):
        raise SettingsError(f"names must be {len(several)} different ones, got {shown(words)}")
    return dict(zip(words, several, strict=True))


def inside(module: nn.Module, name: str | None) -> tuple[str, ...]:
    """The names of the parameters in a named module, or of all for ``None``, each tensor once.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> inside(net, "0")
    ('0.weight', '0.bias')
    >>> inside(net, "2")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: no module is called '2'; there is 0, 1
    """
    refuse_lazy(module)
    known = dict(module.named_modules())
    if name is not None and name not in known:
        others = [other for other in known if other]
        raise SettingsError(f"no module is called {shown(name)}{nearest(str(name), others)}")
    within = f"{name}." if name else ""
    names = [n for n, p in module.named_parameters() if n.startswith(within) and p.numel()]
    if not names:
        where = f"the module {name!r}" if name else "the network"
        raise SettingsError(f"{where} has no weights; name one that has")
    return tuple(names)


def subject_of(
    part: Part | nn.Module,
    data: Data,
    *,
    split: Split = "train",
    limit: int | None = None,
    loss: Loss | None = None,
    seed: int = 0,
) -> Subject:
    """A part and examples, ready for each other.

    A part gets the inputs through its own preprocessing, a plain module as they are.  The loss is
    that of the task's kind; of plain targets, the cross-entropy for whole numbers and the squared
    error for others.

    Args:
        part: A part, or any module.
        data: A task, or inputs and targets.
        split: Of a task.
        limit: The most examples, drawn by the seed; ``None`` for all.
        loss: Another loss, of outputs and targets: the mean over the examples.
        seed: Of the draw.

    >>> subject = subject_of(nn.Linear(4, 3), (torch.rand(8, 4), torch.arange(8) % 3))
    >>> subject.x.shape, subject.loss is F.cross_entropy
    (torch.Size([8, 4]), True)
    """
    name, module = module_of(part)
    refuse_lazy(module)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise SettingsError(f"limit must be a whole number from 1, or None, got {shown(limit)}")
    where: dict[str, object] = {"network": name}
    if isinstance(data, Task):
        if data.kind not in LOSSES:
            raise TaskError(
                f"a task of {data.kind} has no loss of its own; give inputs and targets"
            )
        x, y = data.subset(split)
        where |= {"task": data.name, "split": split}
        chosen = LOSSES[data.kind]
        if isinstance(part, Part):
            refuse_other_inputs(data, part.contract)
            y = _in_the_order_of(part, data, y)
    else:
        x, y = _pair(data)
        chosen = F.cross_entropy if not y.is_floating_point() else LOSSES["regression"]
    if len(x) == 0:
        raise TaskError("there are no examples to look at")
    if limit is not None and limit < len(x):
        order = torch.randperm(len(x), generator=generator(seed, "lens"))
        rows = order[:limit].sort().values
        x, y = x[rows], y[rows]
    if isinstance(part, Part):
        x = prepare(x, part.contract)
    elif isinstance(data, Task):
        x = as_float(x)
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise TaskError("the inputs hold NaN or infinite values; a loss of those says nothing")
    if y.is_floating_point() and not bool(y.isfinite().all()):
        raise TaskError("the targets hold NaN or infinite values; a loss of those says nothing")
    like = next((p for p in module.parameters() if p.is_floating_point()), x)
    x = x.to(device=like.device, dtype=like.dtype if x.is_floating_point() else x.dtype)
    y = y.to(device=like.device, dtype=like.dtype if y.is_floating_point() else y.dtype)
    where |= {"examples": len(x), "loss": getattr(loss or chosen, "__name__", "its own").strip("_")}
    return Subject(name, module, x, y, loss or chosen, where)


def _in_the_order_of(part: Part, task: Task, y: Tensor) -> Tensor:
    """The targets as places among the part's own classes, matched by name."""
    known = part.contract.classes
    if task.kind != "classes" or known is None or tuple(known) == task.classes:
        return y
    if missing := [name for name in task.classes if name not in known]:
        raise TaskError(
            f"{part.described!r} does not know the class {missing[0]!r}; restrict the task to the "
            "classes both have"
        )
    return torch.tensor([known.index(name) for name in task.classes])[y]


def _pair(data: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise TaskError(f"give a Task, or a pair (inputs, targets), not {type(data).__name__}")
    x, y = (torch.as_tensor(np.array(v) if isinstance(v, np.ndarray) else v) for v in data)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise TaskError(
            f"inputs and targets have as many rows, not {list(x.shape)} and {list(y.shape)}"
        )
    return x, y.long() if not y.is_floating_point() else y
