r"""Pretexts: questions about images whose answers need no label.

A pretext makes views :math:`v` of unlabelled images, with targets :math:`t` that follow from how
the views were made, and asks an auxiliary head :math:`h` on a front :math:`f` for them:

.. math::
    L(f, h) = \frac{1}{|S|} \sum_{(v, t) \in S} \ell\bigl(h(f(v)), t\bigr) .

Two fronts that answer through one shared head must tell it in the same language: that makes them
compatible.  It helps as far as the pretext needs the features that the task needs.  What places a
thing exactly, such as reconstruction, pulls against a task that should not care where it is.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Generator, Tensor

from dovetail.core.errors import ContractError, TaskError, argument


@runtime_checkable
class Pretext(Protocol):
    """What a self-supervised task must say and do; write your own by giving it these members."""

    @property
    def name(self) -> str:
        """One word, for records and messages."""
        ...

    @property
    def outputs(self) -> int:
        """How many numbers an auxiliary head gives a view."""
        ...

    @property
    def answers(self) -> tuple[str, ...] | None:
        """The names of the outputs; None when they are an embedding."""
        ...

    @property
    def chance(self) -> float:
        """The share of right answers that guessing reaches."""
        ...

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise a :class:`TaskError` when inputs of this shape, without batch axis, do not do."""
        ...

    def views(self, inputs: Tensor, draw: Generator | None = None) -> tuple[Tensor, Tensor]:
        """Views ``[m, c, h, w]`` of images ``[n, c, h, w]`` and their targets ``[m]``.

        With ``draw=None`` chance comes from torch's global generator of the CPU.
        """
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of ``[m, outputs]`` over images and views, a scalar to be minimised."""
        ...

    def solved(self, outputs: Tensor, targets: Tensor) -> float:
        """The share of right answers, from 0 to 1."""
        ...

    def described(self) -> dict[str, Any]:
        """Its name and settings, as JSON takes them."""
        ...


def check_images(name: str, shape: tuple[int, ...], side: int) -> None:
    """Refuse what is no image ``[c, h, w]``, or one with a side shorter than ``side``.

    >>> check_images("rotation", (64,), 2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: rotation needs images [channels, height, width], but ...
    """
    if len(shape) != 3:
        raise TaskError(
            f"{name} needs images [channels, height, width], but the inputs have shape "
            f"{list(shape)}; leave 'rp' out of {argument('by', ...)} in compatible training, or "
            "write one for vectors (see objectives.Pretext)"
        )
    if min(shape[1:]) < side or shape[0] < 1:
        raise TaskError(f"{name} needs images of at least {side}×{side}, got {list(shape)}")


def check_batch(pretext: Pretext, inputs: Tensor) -> None:
    """Refuse a batch whose images do not do, or that has none."""
    pretext.check(tuple(inputs.shape[1:]))
    if len(inputs) == 0:
        raise TaskError(f"{pretext.name} needs at least one image, got none")


def scores_of(pretext: Pretext, outputs: Tensor, targets: Tensor) -> Tensor:
    """The outputs, if they have the shape ``[m, outputs]`` of a head for this pretext."""
    if outputs.shape != (len(targets), pretext.outputs):
        raise ContractError(
            f"a head for {pretext.name} gives [{len(targets)}, {pretext.outputs}] numbers here, "
            f"but this one gives {list(outputs.shape)}; build it with outputs={pretext.outputs}"
        )
    return outputs


def share_right(scores: Tensor, targets: Tensor) -> float:
    """The share of rows whose largest score is the target's; what is not a number is not right."""
    told = scores.argmax(1) == targets
    return float((told & ~scores.isnan().any(1)).double().mean())
