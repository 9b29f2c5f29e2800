"""What packing goes by on a task: the losses of examples, and how steep they are in the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.core.seeds import generator
from dovetail.measure.forward import outputs_of, prepare, refuse_other_inputs
from dovetail.parts.norms import uses_batch_statistics
from dovetail.parts.part import Part
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

_IMAGES = 32
"""Images run at once: what a network makes of so many stays in a processor's cache, which takes
EfficientNet-Lite0 less than half the time of 512."""

SAMPLE = 2048
"""Training examples that the gradient is the mean of, at most."""

POINTS = "points of accuracy"
SCORES = "squared error of the scores"
"""What a loss is called; of a part that was fitted by least squares to targets for its classes."""

State = dict[str, Tensor]


def scores_of(part: Part) -> dict[str, Any]:
    """What is known of outputs that approximate targets for classes, after a temperature.

    Outputs times the temperature are the scores that were fitted by least squares.  A packed part
    keeps what was known before it was packed; of other parts there is nothing.

    >>> from dovetail.parts.facts import Origin
    >>> from dovetail.parts.part import build
    >>> scores_of(build("mlp").changed(origin=Origin(how="closed-form")))
    {'scores': 'least squares', 'temperature': 1.0}
    """
    by_its_origin = (
        part.origin.how == "pack" and part.origin.settings.get("scores") == "least squares"
    )
    if part.origin.how != "closed-form" and not by_its_origin:
        return {}
    temperature = part.origin.settings.get("temperature", 1.0)
    return {"scores": "least squares", "temperature": temperature}


def loss_of(part: Part, task: Task) -> str:
    """What the loss of a part on a task is called.

    >>> from dovetail.parts.part import build
    >>> loss_of(build("mlp"), Task(torch.rand(60, 1, 8, 8), [0, 1, 2] * 20))
    'cross-entropy in nats'
    """
    if task.kind == "classes":
        return SCORES if scores_of(part) else "cross-entropy in nats"
    return "binary cross-entropy in nats" if task.kind == "multilabel" else "squared error"


def losses_with(
    part: Part, task: Task, *, points: bool = False, split: Split = "validation"
) -> Callable[[State], Tensor]:
    r"""A function from weights to the loss of each example ``[n]``, in float64.

    Cross-entropy in nats for classes, its binary form for labels, squared error for numbers.  For
    classes whose scores were fitted by least squares (:func:`scores_of`), the squared distance
    from what they were fitted to: :math:`\sum_c (f_c - [y = c])^2`, or with two classes
    :math:`(f_1 - f_0 \mp 1)^2`.  With ``points`` 100 for a class that is mistaken and 0 for the
    others.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(60, 1, 8, 8), [0, 1, 2] * 20, name="noise")
    >>> part = build("mlp", classes=3)
    >>> losses_with(part, task)(part.module.state_dict()).shape[0] == task.size("validation")
    True
    """
    if points and task.kind != "classes":
        raise TaskError(f"{task.name!r} has no classes to count mistakes in; give a loss budget")
    inputs, targets = examples_of(part, task, split)
    # A part that normalises by the batch would meet one class at a time: data often lie so.
    order = torch.randperm(len(inputs), generator=generator(0, "evaluation"))
    inputs, targets = inputs[order], targets[order]
    tried = part.changed(module=copy.deepcopy(part.module))
    columns, loss = columns_of(part, task), loss_of(part, task)
    temperature = scores_of(part).get("temperature", 1.0)

    def losses(state: State) -> Tensor:
        tried.module.load_state_dict(state)
        outputs = run(tried, inputs)
        if points:
            return 100.0 * (outputs.argmax(1) != columns[targets])
        return _losses(outputs * temperature, targets, columns, task, loss)

    return losses


def run(part: Part, inputs: Tensor) -> Tensor:
    """The part's outputs, in float64; of images in small batches, where batches mean nothing."""
    small = inputs.ndim == 4 and not uses_batch_statistics(part.module)
    return outputs_of(part, inputs, batch_size=_IMAGES if small else 512).double()


def gradient_sizes(
    part: Part, task: Task, *, batch_size: int = 512, seed: int = 0
) -> dict[str, float]:
    r"""For each parameter, the root mean square of the loss's derivatives in its weights.

    .. math:: G_l = \sqrt{\tfrac{1}{|W_l|} \sum_{w \in W_l} (\partial L / \partial w)^2}

    with :math:`L` the mean loss over up to 2048 training examples, in evaluation mode.
    Buffers have no gradient and are not named.  The part is not changed.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(40, 1, 8, 8), [0, 1] * 20, name="noise")
    >>> sorted(gradient_sizes(build("mlp", hidden=(), classes=2), task))
    ['head.bias', 'head.weight']
    """
    inputs, targets = examples_of(part, task, "train")
    rows = torch.randperm(len(inputs), generator=generator(seed, "gradients"))[:SAMPLE]
    module = copy.deepcopy(part.module).eval().requires_grad_(True)
    module.zero_grad()
    columns, loss = columns_of(part, task).to(part.device), loss_of(part, task)
    like = next(module.parameters(), torch.zeros((), requires_grad=True))
    temperature = scores_of(part).get("temperature", 1.0)
    for batch in torch.split(rows, batch_size):
        outputs = temperature * module(prepare(inputs[batch], part.contract).to(like))
        losses = _losses(outputs, targets[batch].to(part.device), columns, task, loss)
        (losses.sum() / len(rows)).backward()  # type: ignore[no-untyped-call]
    return {
        name: float(weight.grad.double().square().mean().sqrt())
        for name, weight in module.named_parameters(remove_duplicate=False)
        if weight.grad is not None and weight.numel()
    }


def examples_of(part: Part, task: Task, split: Split) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a split that the part has a loss on."""
    refuse_other_inputs(task, part.contract)
    if task.kind == "pairs":
        raise TaskError(f"{task.name!r} has pair labels only; it has no loss to go by")
    inputs, targets = task.subset(split)
    if len(inputs) == 0:
        raise TaskError(f"{task.name!r} has no examples in its {split} split to pack by")
    return inputs, targets


def columns_of(part: Part, task: Task) -> Tensor:
    """For each class or label of the task, the output of that name."""
    known = part.contract.classes
    if known is None:
        return torch.arange(len(task.classes))
    return torch.tensor([known.index(name) for name in task.classes])


def _losses(outputs: Tensor, targets: Tensor, columns: Tensor, task: Task, loss: str) -> Tensor:
    """The loss of each example ``[n]``."""
    if loss == SCORES:
        return _from_targets(outputs, columns[targets])
    if task.kind == "classes":
        return F.cross_entropy(outputs, columns[targets], reduction="none")
    wanted = targets.to(outputs)
    if task.kind == "multilabel":
        each = F.binary_cross_entropy_with_logits(outputs[:, columns], wanted, reduction="none")
        return each.mean(1)
    return F.mse_loss(outputs, wanted.reshape(outputs.shape), reduction="none").mean(1)


def _from_targets(scores: Tensor, classes: Tensor) -> Tensor:
    """The squared distance ``[n]`` of scores from the targets that closed form fits them to.

    >>> _from_targets(torch.tensor([[0.5, 0.0, 1.0]]), torch.tensor([2]))
    tensor([0.2500])
    >>> _from_targets(torch.tensor([[-0.5, 0.5]]), torch.tensor([0]))  # the score is 1, not -1
    tensor([4.])
    """
    if scores.shape[1] == 2:
        return (scores[:, 1] - scores[:, 0] - (2 * classes - 1)).square()
    return (scores - F.one_hot(classes, scores.shape[1])).square().sum(1)
