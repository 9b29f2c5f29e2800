r"""What other weights cost, told by how far answers move from those of the given weights.

**Expected points.**  To count mistakes is to toss coins: that an example between two classes
changes sides costs a point about as often as it gains one, and a tenth of a point drowns in that
(of :math:`n` examples of which a share :math:`f` changes, in :math:`\sqrt{f / n}`).  What a change
costs *on average* the part itself knows.  Let :math:`z` be its outputs with the given weights,
:math:`p` their softmax at the temperature that suits the labels best, :math:`a` its first class for
an example and :math:`b` its second.  To answer :math:`c` instead of :math:`a` is right less often
by :math:`p_a - p_c`.  With other weights the outputs are :math:`z'`, and the lead
:math:`m = z_a - z_b` becomes :math:`m + \delta`.  By how much a lead changes has little to do with
how large it was, so each of the :math:`n` changes might have met each example:

.. math::
    d_i = (p_{ia} - p_{ib})\, \frac1n \#\{j : \delta_j < -m_i\}, \qquad
    d_i = p_{ia} - p_{ic} \text{ where a third class } c \text{ is the answer now.}

That no lead among a few is small does not show that none is.  One more example is therefore taken
to have a lead anywhere from nothing to the least, :math:`m_k`, and to lose in proportion to it:
:math:`d_k` is larger by :math:`(p_{ka} - p_{kb}) \frac{1}{2n} \sum_j \min(1, -\delta_j / m_k)_+^2`.

The mean of :math:`100\, d_i` is the points of accuracy that are expected to be lost.  It is never
negative, every near miss has a share in it, and hundreds of examples tell what takes hundreds of
thousands to count.  It is as good as the probabilities are: over-confident ones make it too large.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.core.seeds import generator
from dovetail.measure.calibration import fit_temperature, tempered
from dovetail.parts.part import Part
from dovetail.reuse.pack_losses import columns_of, examples_of, run
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

PROBED = 64
"""Examples by which tensors are compared: what one of them costs alone needs no more."""


class _Tried:
    """A part's outputs on a split with other weights, examples in an order of their own."""

    def __init__(self, part: Part, task: Task, split: Split, most: int | None = None) -> None:
        inputs, targets = examples_of(part, task, split)
        order = torch.randperm(len(inputs), generator=generator(0, "evaluation"))[:most]
        self._inputs, self.targets = inputs[order], targets[order]
        self._part = part.changed(module=copy.deepcopy(part.module))
        self.before = run(self._part, self._inputs)

    def outputs(self, state: dict[str, Tensor]) -> Tensor:
        """With these weights, ``[n, ...]`` in float64."""
        self._part.module.load_state_dict(state)
        return run(self._part, self._inputs)


class ExpectedPoints:
    """A function from weights to 100 times how probably each answer is wrong ``[n]``, in float64.

    ``given`` is that of the given weights.  ``mistakes`` has what the last weights got wrong in
    fact, ``[n]`` of 0 and 100, and ``given_mistakes`` the same of the given ones.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(60, 1, 8, 8), [0, 1, 2] * 20, name="noise")
    >>> part = build("mlp", classes=3)
    >>> points = ExpectedPoints(part, task)
    >>> state = part.module.state_dict()
    >>> turned = {name: -tensor for name, tensor in state.items()}
    >>> bool(points(turned).mean() > points(state).mean())
    True
    """

    def __init__(self, part: Part, task: Task, *, split: Split = "validation") -> None:
        if task.kind != "classes":
            raise TaskError(
                f"{task.name!r} has no classes to count mistakes in; give a loss budget"
            )
        self._tried = _Tried(part, task, split)
        self._labels = columns_of(part, task)[self._tried.targets]
        before = self._tried.before
        if not before.isfinite().all():
            raise TaskError(
                f"{part.described!r} gives outputs on {task.name!r} that are not finite: there is "
                "nothing to compare with"
            )
        self._chances = tempered(before, fit_temperature(before, self._labels))  # [n, c]
        self._two = before.topk(min(2, before.shape[1])).indices  # [n, 2]: the first and the second
        self._lead = self._lead_in(before)
        self.given = 100 * (1 - self._chances.max(1).values)
        self.mistakes = self.given_mistakes = self._counted(before)

    def __call__(self, state: dict[str, Tensor]) -> Tensor:
        """The expected mistakes of these weights, in points."""
        outputs = self._tried.outputs(state)
        self.mistakes = self._counted(outputs)
        if not outputs.isfinite().all():
            return torch.full((len(outputs),), torch.inf, dtype=torch.float64)
        two = self._chances.gather(1, self._two)
        first, second = two[:, 0], two[:, -1]
        changes = (self._lead_in(outputs) - self._lead).sort().values
        overtaken = torch.searchsorted(changes, -self._lead).double() / len(changes)
        nearest = self._lead.argmin()
        back = (-changes).clamp(min=0) / self._lead[nearest].clamp(min=1e-300)
        overtaken[nearest] += back.clamp(max=1).square().mean() / 2
        answer = outputs.argmax(1, keepdim=True)
        third = (answer != self._two).all(1)
        lost = torch.where(
            third,
            first - self._chances.gather(1, answer)[:, 0],
            (first - second) * overtaken,
        )
        return self.given + 100 * lost

    def _lead_in(self, outputs: Tensor) -> Tensor:
        two = outputs.gather(1, self._two)
        return two[:, 0] - two[:, -1]

    def _counted(self, outputs: Tensor) -> Tensor:
        return 100.0 * (outputs.argmax(1) != self._labels).double()


class Disagreement:
    r"""A function from weights to how far the outputs of some examples are from the given ones.

    For classes :math:`\mathrm{KL}(p \,\|\, p')` in nats, ``[n]``; for others the squared distance.
    Near the given weights it grows with the square of what changed, without noise: a few examples
    show which tensors matter, and no labels are needed.

    >>> from dovetail.parts.part import build
    >>> part = build("mlp", classes=3)
    >>> task = Task(torch.rand(60, 1, 8, 8), [0, 1, 2] * 20, name="noise")
    >>> float(Disagreement(part, task)(part.module.state_dict()).abs().max())
    0.0
    """

    def __init__(self, part: Part, task: Task, *, split: Split = "validation") -> None:
        self._tried = _Tried(part, task, split, PROBED)
        self._classes = task.kind == "classes"

    def __call__(self, state: dict[str, Tensor]) -> Tensor:
        """One number an example."""
        outputs, before = self._tried.outputs(state), self._tried.before
        if not self._classes:
            return (outputs - before).square().flatten(1).mean(1)
        far = F.kl_div(
            outputs.log_softmax(1), before.log_softmax(1), reduction="none", log_target=True
        )
        return far.sum(1)
