r"""The mean of several processes' weights, exchanged as packed bytes.

Process :math:`i` of :math:`P` trains on its own rows.  Now and then it packs how far its weights
:math:`w_i` have moved from the last common ones, :math:`w`, and all go on from the mean of that:

.. math::
    m_i = \mathrm{pack}(w_i - w + e_i), \qquad
    \hat d_i = \mathrm{unpack}(m_i), \qquad
    e_i \leftarrow w_i - w + e_i - \hat d_i, \qquad
    w \leftarrow w + \tfrac1P \sum_i \hat d_i .

A difference is far smaller than a weight, and so are the steps between its levels: few bits do.
Most of it is next to nothing and becomes the level zero, which costs next to nothing too.  What is
sent exactly (small tensors, buffers, everything without packing) is sent as it is, not as a
difference.

Everyone decodes every message, its own too, in the order of the processes, and adds them up in
float64: all end with the same bits.  :math:`e_i` is *error feedback*: what rounding lost is sent
the next time, so that steps smaller than a level add up instead of being lost for ever.  Without it
:math:`e_i = 0`.

Floating-point tensors are averaged; of integers and booleans the first process's are taken.
:func:`averaged` is all of it as a function of a list of states, which is also how several processes
are simulated in one; :class:`dovetail.dist.averaging.Averaging` is the same with a network
and a process group around it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.core.errors import ContractError
from dovetail.dist.wire import Packing, State, decoded, encoded, size_of

@dataclass(frozen=True, eq=False)
class Message:
    """What a process sends, what everybody reads in it, and what was lost on the way.

    ``values`` are what is read: of the tensors in ``moved`` :math:`\\hat d`, of the others they
    themselves.  ``lost`` is the next :math:`e`, where it is not zero; ``error`` is the size of what
    was lost over the size of what was to be sent, over all floating-point tensors.
    """

    data: bytes
    values: State
    lost: State
    error: float
    moved: frozenset[str] = frozenset()

    @property
    def bits(self) -> int:
        """The length of what is sent."""
        return 8 * len(self.data)


@dataclass(frozen=True, eq=False)
class Average:
    """The mean state, what each process must add the next time, and the bits each one sent."""

    state: State
    residuals: tuple[State, ...]
    bits: tuple[int, ...]


def averaged(
    states: Sequence[Mapping[str, Tensor]],
    residuals: Sequence[Mapping[str, Tensor]] | None = None,
    packing: Packing = None,
    since: Mapping[str, Tensor] | None = None,
) -> Average:
    """The mean of the states after packing, as every process would find it.

    Args:
        states: One for each process: tensors by name, the same names and shapes in all.
        residuals: What the last call gave, for error feedback; ``None`` (the first time, or always)
            adds nothing.
        packing: Arguments of ``pack.compress``, or ``None`` for the plain mean.
        since: The last common state: what is packed are the differences from it.  ``None`` packs
            the weights themselves.

    >>> states = [{"w": torch.tensor([0.0, 1.0])}, {"w": torch.tensor([1.0, 4.0])}]
    >>> averaged(states).state["w"]
    tensor([0.5000, 2.5000])
    >>> coarse = averaged(states, None, {"levels": {"w": 2}}, since={"w": torch.tensor([0.0, 2.0])})
    >>> coarse.state["w"], coarse.residuals  # of two differences each is a level
    (tensor([0.5000, 2.5000]), ({}, {}))
    """
    before = [{} for _ in states] if residuals is None else list(residuals)
    messages = [packed(w, e, packing, since) for w, e in zip(states, before, strict=True)]
    return Average(
        state=onward(mean_of(message.values for message in messages), messages[0].moved, since),
        residuals=tuple(message.lost for message in messages),
        bits=tuple(message.bits for message in messages),
    )


def packed(
    state: Mapping[str, Tensor],
    residual: Mapping[str, Tensor],
    packing: Packing,
    since: Mapping[str, Tensor] | None = None,
) -> Message:
    """The message of one process: its state, or how far it has moved, with what was lost before.

    >>> message = packed({"w": torch.ones(3)}, {}, None)
    >>> message.values["w"], message.error
    (tensor([1., 1., 1.]), 0.0)
    """
    wanted = {name: _plus(tensor, residual.get(name)) for name, tensor in state.items()}
    moved = frozenset[str]() if since is None else _rounded(state, packing)
    for name in moved:
        assert since is not None
        wanted[name] = wanted[name] - _plus(since[name], None)
    # A copy: safetensors refuses tensors that share storage, and training goes on in place.
    sent = {
        name: want.to(want.dtype if name in moved else state[name].dtype, copy=True)
        for name, want in wanted.items()
    }
    data = encoded(sent, packing)
    values = decoded(data, packing, size_of(sent), into=sent)  # which nobody needs any more
    lost, total, missed = {}, 0.0, 0.0
    for name, want in wanted.items():
        if want.is_floating_point():
            left = want - values[name].to(want.dtype)
            total += float(want.double().square().sum())
            missed += float(left.double().square().sum())
            if bool(left.any()):
                lost[name] = left
    return Message(data, values, lost, (missed / total) ** 0.5 if total > 0 else 0.0, moved)


def _rounded(state: Mapping[str, Tensor], packing: Packing) -> frozenset[str]:
    """The tensors that packing rounds, which is known from their names, shapes and dtypes alone."""
    if packing is None:
        return frozenset()
    from dovetail.pack.rules import Rules  # most trainings need no coder

    rules = Rules(**packing)
    return frozenset(name for name, tensor in state.items() if not rules.exact(name, tensor))


def onward(
    mean: Mapping[str, Tensor], moved: Collection[str], since: Mapping[str, Tensor] | None
) -> State:
    """The next common state: the last one, moved by the mean differences, and other means as found.

    >>> onward({"w": torch.tensor([0.5])}, {"w"}, {"w": torch.tensor([2.0])})
    {'w': tensor([2.5000])}
    """
    new = dict(mean)
    for name in moved:
        assert since is not None
        before = since[name].detach().cpu()
        new[name] = (before.double() + mean[name].double()).to(before.dtype)
    return new


def mean_of(states: Iterable[Mapping[str, Tensor]]) -> State:
    """The mean of floating-point (and complex) tensors; of all others, the first state's.

    Adds up in float64, one state at a time, so an iterator need not hold them all.

    >>> mean_of([{"w": torch.tensor([1.0]), "n": torch.tensor(3)}, {"w": torch.tensor([2.0]),
    ...     "n": torch.tensor(4)}])
    {'w': tensor([1.5000]), 'n': tensor(3)}
    """
    first: dict[str, Tensor] = {}
    sums: State = {}
    count = 0
    for state in states:
        count += 1
        first = first or dict(state)
        if state.keys() != first.keys():
            differ = ", ".join(sorted(state.keys() ^ first.keys())[:5])
            raise ContractError(
                f"process {count - 1} holds other weights than process 0 ({differ}); build the "
                "same network in all of them"
            )
        for name, tensor in state.items():
            if tensor.shape != first[name].shape:
                raise ContractError(
                    f"{name} is {tuple(tensor.shape)} in process {count - 1} and "
                    f"{tuple(first[name].shape)} in process 0; build the same network in all"
                )
            if tensor.is_floating_point() or tensor.is_complex():
                wide = tensor.to(torch.promote_types(tensor.dtype, torch.float64))
                sums[name] = sums[name].add_(wide) if name in sums else wide.clone()
    return {
        name: (sums[name] / count).to(tensor.dtype) if name in sums else tensor.clone()
        for name, tensor in first.items()
    }


def _plus(tensor: Tensor, residual: Tensor | None) -> Tensor:
    """The tensor with what was lost before, in float32 at least: halves would lose it again."""
    plain = tensor.detach().cpu().contiguous()
    if not plain.is_floating_point():
        return plain
    wide = plain.to(torch.promote_types(plain.dtype, torch.float32))
    return wide if residual is None else wide + residual.to(wide.dtype)
