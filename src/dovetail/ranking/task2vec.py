r"""Task2Vec: tasks as vectors, by which weights of one probe network they care about.

A probe :math:`F_w` is frozen, a softmax head is fitted to the task on its features, and the
diagonal of the Fisher information of the probe's weights under the model's own predictions,

.. math::
    I_w = \frac1n \sum_i \sum_y p(y \mid x_i)\,\bigl(\nabla_w \log p(y \mid x_i)\bigr)^2,

is averaged over the weights of each filter (or neuron).  The labels enter through the head only, so
tasks with any classes get vectors of one length, and can be compared as long as the probe is one.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError, TaskError, first_line
from dovetail.core.seeds import generator
from dovetail.linalg.jacobian import Parametrised, sample_jacobians
from dovetail.measure.features import pooled
from dovetail.measure.forward import outputs_of, prepare, refuse_other_inputs
from dovetail.parts.part import Part, as_part
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

EXACT_CLASSES = 16
_NUMBERS = 16_000_000  # gradients held at once: 64 MB in float32


def task_embedding(
    probe: Part | nn.Module, task: Task, *, split: Split = "train", seed: int = 0, limit: int = 500
) -> Tensor:
    """The Fisher information of a probe's filters on a task, ``[filters]``, float64.

    Every weight tensor with at least two axes gives one number for each of its rows; biases and
    the scales of norms are left out.  Maps are pooled to rows by their mean, as in ``dt.features``.
    The head is a logistic regression with unit L2 penalty on standardised features.  The sum over
    labels is exact up to 16 classes; beyond, one label is drawn for each example from the model's
    own probabilities.  Cost: a backward pass an example and class (or an example).

    Args:
        probe: A part without its head, such as the front half of a cut.
        task: A task of classes.
        split: Which examples; never the test split when the distance guides a choice.
        seed: For the choice of examples, and for the labels drawn.
        limit: At most so many examples.

    >>> from dovetail.parts.part import build
    >>> from dovetail.parts.cutting import cut
    >>> front, _ = cut(build("lenet5", size=8), at="fc2")
    >>> task = Task(torch.rand(60, 1, 8, 8), [0, 1, 2] * 20)
    >>> task_embedding(front, task).shape  # 6 + 16 + 120 + 84 filters
    torch.Size([226])
    """
    part = as_part(probe)
    if task.kind != "classes":
        raise TaskError(f"{task.name!r} is of kind {task.kind!r}; Task2Vec needs classes")
    if limit < 2:
        raise SettingsError(f"limit must be at least 2, got {limit}")
    if not any(p.ndim >= 2 for p in part.module.parameters()):
        raise ContractError(f"{part.described!r} has no filters; take a part with layers to train")
    refuse_other_inputs(task, part.contract)
    inputs, targets = task.subset(split)
    draw = generator(seed, "task2vec", split)
    some = torch.randperm(len(inputs), generator=draw)[:limit].sort().values
    inputs, targets = inputs[some], targets[some]
    rows = outputs_of(part, inputs, each=lambda output: pooled(output, "average"))
    if len(torch.unique(targets)) < 2:
        raise TaskError(f"{task.name!r} shows one class only among the examples; two are needed")
    head = _logistic_head(rows.double(), targets, len(task.classes))
    try:
        return _fisher(part, head, inputs, draw)
    except RuntimeError as error:  # per-example gradients ask more of a network than running it
        raise ContractError(
            f"torch cannot give the gradients of {part.described!r} example by example: "
            f"{first_line(error)}"
        ) from None


def task_distance(a: Tensor, b: Tensor) -> float:
    r"""The symmetric distance of two embeddings, in [0, 1].

    .. math:: d(a, b) = 1 - \cos\Bigl(\frac{a}{a + b}, \frac{b}{a + b}\Bigr),

    the division element by element, so that filters with large Fisher information do not drown the
    others.  Filters that neither task uses are left out.

    >>> a = torch.tensor([1.0, 4.0, 0.0])
    >>> task_distance(a, a), round(task_distance(a, torch.tensor([4.0, 1.0, 0.0])), 4)
    (0.0, 0.5294)
    """
    a, b = a.double().cpu(), b.double().cpu()
    if a.shape != b.shape or a.ndim != 1:
        raise SettingsError(
            f"embeddings of shapes {list(a.shape)} and {list(b.shape)} are of two probes; "
            "embed both tasks by the same one"
        )
    both = a + b
    if not torch.isfinite(both).all() or (a < 0).any() or (b < 0).any():
        raise SettingsError("an embedding holds Fisher information: finite, and never negative")
    used = both > 0
    if not (a > 0).any() or not (b > 0).any():
        raise SettingsError("an embedding is zero throughout: its task uses no filter of the probe")
    x, y = a[used] / both[used], b[used] / both[used]
    cosine = float(x @ y) / math.sqrt(float(x @ x) * float(y @ y))
    return max(0.0, 1.0 - cosine)


Head = tuple[Tensor, Tensor]


def _logistic_head(rows: Tensor, targets: Tensor, classes: int) -> Head:
    """Weights ``[d, C]`` and biases ``[C]`` for raw features, by L-BFGS from zero."""
    mean, spread = rows.mean(0), rows.std(0, correction=0)
    spread = torch.where(spread > 1e-10 * (1e-300 + rows.abs().amax(0)), spread, torch.inf)
    standard = (rows - mean) / spread
    weight = torch.zeros(rows.shape[1], classes, dtype=rows.dtype, requires_grad=True)
    bias = torch.zeros(classes, dtype=rows.dtype, requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        fit = F.cross_entropy(standard @ weight + bias, targets)
        # an absent class would push its bias without end, hence its small share of the penalty
        value = fit + (weight.square().sum() + 1e-3 * bias.square().sum()) / (2 * len(rows))
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        solver.step(loss)  # type: ignore[no-untyped-call]
    scaled = weight.detach() / spread[:, None]
    return scaled, bias.detach() - mean @ scaled


def _fisher(part: Part, head: Head, inputs: Tensor, draw: torch.Generator) -> Tensor:
    """The diagonal, averaged over each filter, in blocks of examples."""
    probe = Parametrised(part.module, (), lambda _, tensor: tensor.ndim >= 2)
    # softmax of what the probe gives in its own precision; the head is fitted in float64
    weight, bias = (tensor.to(part.device) for tensor in head)

    def log_probs(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        """``[n, C]``, as a function of the weights."""
        rows = pooled(probe(theta, x), "average")
        return F.log_softmax(rows @ weight.to(rows.dtype) + bias.to(rows.dtype), 1)

    exact = len(bias) <= EXACT_CLASSES
    block = max(1, min(256, _NUMBERS // (probe.size * (len(bias) if exact else 1))))
    total = [torch.zeros(len(p), dtype=torch.float64) for p in probe.theta.values()]
    with torch.no_grad():
        for start in range(0, len(inputs), block):
            x = prepare(inputs[start : start + block], part.contract).to(part.device)
            probs = log_probs(probe.theta, x).exp()
            if exact:
                slopes = sample_jacobians(
                    lambda theta, one: log_probs(theta, one[None])[0], probe.theta, x
                )
            else:
                drawn = torch.multinomial(probs.double().cpu(), 1, generator=draw)[:, 0]
                slopes = sample_jacobians(
                    lambda theta, one, label: log_probs(theta, one[None])[0].gather(0, label[None]),
                    probe.theta,
                    x,
                    drawn.to(x.device),
                )
                probs = torch.ones_like(probs[:, :1])
            for sums, slope in zip(total, slopes.values(), strict=True):
                squares = slope.square().flatten(3).mean(3).double()  # [b, labels, filters]
                sums += torch.einsum("bc,bcf->f", probs.double(), squares).cpu()
    return torch.cat(total) / len(inputs)
