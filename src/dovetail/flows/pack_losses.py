"""What packing goes by on a task: the losses of examples, and how steep they are in the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.core.seeds import generator
from dovetail.parts.part import Part
from dovetail.running.forward import outputs_of
from dovetail.running.preprocess import prepare, refuse_other_inputs
from dovetail.tasks.task import Split, Task

__all__ = ["gradient_sizes", "losses_with"]

SAMPLE = 2048
"""Training examples that the gradient is the mean of, at most."""

State = dict[str, Tensor]


def losses_with(part: Part, task: Task, *, points: bool = False) -> Callable[[State], Tensor]:
    """A function from weights to the loss of each validation example ``[n]``, in float64.

    Cross-entropy in nats for classes, its binary form for labels, squared error for numbers; with
    ``points`` 100 for a class that is mistaken and 0 for the others.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(60, 1, 8, 8), [0, 1, 2] * 20, name="noise")
    >>> part = build("mlp", classes=3)
    >>> losses_with(part, task)(part.module.state_dict()).shape[0] == task.size("validation")
    True
    """
    if points and task.kind != "classes":
        raise TaskError(f"{task.name!r} has no classes to count mistakes in; give a loss budget")
    inputs, targets = _examples(part, task, "validation")
    # A part that normalises by the batch would meet one class at a time: data often lie so.
    order = torch.randperm(len(inputs), generator=generator(0, "evaluation"))
    inputs, targets = inputs[order], targets[order]
    tried = part.changed(module=copy.deepcopy(part.module))
    columns = _columns(part, task)

    def losses(state: State) -> Tensor:
        tried.module.load_state_dict(state)
        outputs = outputs_of(tried, inputs).double()
        if points:
            return 100.0 * (outputs.argmax(1) != columns[targets])
        return _losses(outputs, targets, columns, task)

    return losses


def gradient_sizes(
    part: Part, task: Task, *, sample: int = SAMPLE, batch_size: int = 512, seed: int = 0
) -> dict[str, float]:
    r"""For each parameter, the root mean square of the loss's derivatives in its weights.

    .. math:: G_l = \sqrt{\tfrac{1}{|W_l|} \sum_{w \in W_l} (\partial L / \partial w)^2}

    with :math:`L` the mean loss over up to ``sample`` training examples, in evaluation mode.
    Buffers have no gradient and are not named.  The part is not changed.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(40, 1, 8, 8), [0, 1] * 20, name="noise")
    >>> sorted(gradient_sizes(build("mlp", hidden=(), classes=2), task))
    ['head.bias', 'head.weight']
    """
    inputs, targets = _examples(part, task, "train")
    rows = torch.randperm(len(inputs), generator=generator(seed, "gradients"))[:sample]
    module = copy.deepcopy(part.module).eval().requires_grad_(True)
    module.zero_grad()
    columns = _columns(part, task).to(part.device)
    like = next(module.parameters(), torch.zeros((), requires_grad=True))
    for batch in torch.split(rows, batch_size):
        outputs = module(prepare(inputs[batch], part.contract).to(like))
        losses = _losses(outputs, targets[batch].to(part.device), columns, task)
        (losses.sum() / len(rows)).backward()  # type: ignore[no-untyped-call]
    return {
        name: float(weight.grad.double().square().mean().sqrt())
        for name, weight in module.named_parameters(remove_duplicate=False)
        if weight.grad is not None and weight.numel()
    }


def _examples(part: Part, task: Task, split: Split) -> tuple[Tensor, Tensor]:
    refuse_other_inputs(task, part.contract)
    if task.kind == "pairs":
        raise TaskError(f"{task.name!r} has pair labels only; it has no loss to go by")
    inputs, targets = task.subset(split)
    if len(inputs) == 0:
        raise TaskError(f"{task.name!r} has no examples in its {split} split to pack by")
    return inputs, targets


def _columns(part: Part, task: Task) -> Tensor:
    """For each class or label of the task, the output of that name."""
    known = part.contract.classes
    if known is None:
        return torch.arange(len(task.classes))
    return torch.tensor([known.index(name) for name in task.classes])


def _losses(outputs: Tensor, targets: Tensor, columns: Tensor, task: Task) -> Tensor:
    """The loss of each example ``[n]``."""
    if task.kind == "classes":
        return F.cross_entropy(outputs, columns[targets], reduction="none")
    wanted = targets.to(outputs)
    if task.kind == "multilabel":
        each = F.binary_cross_entropy_with_logits(outputs[:, columns], wanted, reduction="none")
        return each.mean(1)
    return F.mse_loss(outputs, wanted.reshape(outputs.shape), reduction="none").mean(1)
