"""Averaging the weights of a network in training, every so many steps, through packed bytes.

For anybody's loop, started by ``torchrun`` in several processes that each train on their own rows::

    torch.distributed.init_process_group("gloo")
    averaging = Averaging(model, every=50, packing={"extra_bits": 6})
    for batch in my_rows:
        optimiser.zero_grad()
        loss(model, batch).backward()
        optimiser.step()
        averaging.step()
    averaging.synchronise()

The mathematics, and a simulation in one process, is :mod:`dovetail.dist.packed_mean`.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.core.declared import figure, measures, text, when
from dovetail.core.errors import ContractError, DovetailError, SettingsError, TrainingError
from dovetail.core.records import Record
from dovetail.dist.group import check_group, from_each, rank_and_size, told_by_each
from dovetail.dist.packed_mean import mean_of, onward, packed
from dovetail.dist.wire import Packing, State, check_packing, decoded, plainly, size_of

AS_USUAL: Mapping[str, Any] = MappingProxyType({})
"""Packing by the entropy rule with its usual arguments."""


class Averaging:
    """Keeps the copies of a network in several processes together.

    Made in every process, as the optimiser is: it checks that all hold the same network, and starts
    them from the weights of process 0.  All must take the same number of steps: each waits for the
    others, and all stop with an error when they find that one took another number.  Alone, without
    a process group, nothing is ever changed.

    Averaged are the parameters that are trained, as packed differences to the last common weights
    (of which a copy is kept), and the buffers, such as batch statistics, which are sent exactly;
    integer buffers are those of process 0.  What is
    frozen is neither sent nor changed.  The optimiser is left alone: each keeps its own momentum.

    Args:
        module: Averaged in place.
        every: Steps between two exchanges.
        packing: Arguments of ``pack.compress``, such as ``{"extra_bits": 5}`` or ``{"bits": 8}``;
            ``{"gradients": True}`` chooses the bits by the gradients that the last step left;
            ``None`` sends the weights themselves, as they are.
        error_feedback: Send what rounding lost the next time.

    >>> averaging = Averaging(nn.Linear(3, 2), every=10)
    >>> averaging.step(), averaging.record().processes
    (False, 1)
    """

    def __init__(
        self,
        module: nn.Module,
        every: int = 50,
        packing: Packing = AS_USUAL,
        error_feedback: bool = True,
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise SettingsError(f"every must be a whole number of at least 1, got {every!r}")
        check_packing(packing)
        check_group()
        self.module, self.every = module, every
        self.packing, self.error_feedback = packing, error_feedback
        self._steps, self._settled = 0, True
        self._residuals: State = {}
        self._common: State = {}
        self._rows: list[dict[str, float]] = []
        self._size = rank_and_size()[1]
        if self._size > 1:
            self._agree()
            self._begin_alike()
            self._common = self._copied()

    def step(self) -> bool:
        """Count a step of the optimiser; average when it is time, and say whether it was."""
        self._steps += 1
        self._settled = False
        if self._steps % self.every:
            return False
        return self.synchronise()

    def synchronise(self) -> bool:
        """Average now, unless nothing has changed since the last time; whether it was done.

        At the end of training and before a common validation, so that all hold the same weights.
        All must call it after the same number of steps, which is the first thing that they tell.
        """
        if self._size == 1:
            return False
        self._in_step()
        if self._settled:
            return False
        rank, bits = rank_and_size()[0], 0
        try:
            shared = dict(_shared(self.module))
            message = packed(shared, self._residuals, self._chosen(), self._common)
        except DovetailError:
            # An empty message tells the others, who would wait for ever; they stop at the first.
            any(not data for data in from_each(b""))
            raise

        size = size_of(message.values)

        def arriving() -> Iterator[State]:
            nonlocal bits
            for source, data in enumerate(from_each(message.data)):
                if not data:
                    raise TrainingError(
                        f"process {source} could not pack its weights; its own message says why"
                    )
                bits += 8 * len(data)
                yield message.values if source == rank else decoded(data, self.packing, size)

        mean = onward(mean_of(arriving()), message.moved, self._common)
        with torch.no_grad():
            for name, tensor in shared.items():
                tensor.copy_(mean[name])
        self._common = self._copied()
        if self.error_feedback:
            self._residuals = message.lost
        self._settled = True
        self._rows.append(
            {
                "step": self._steps,
                "bits a weight": bits / self._size / max(1, self._weights),
                "relative error": message.error,
            }
        )
        return True

    def record(self) -> Exchanges:
        """What was sent so far."""
        shared = [tensor for _, tensor in _shared(self.module)]
        plain = sum(8 * tensor.numel() * tensor.element_size() for tensor in shared)
        return Exchanges(
            processes=self._size,
            weights=self._weights,
            plain_bits=plain / max(1, self._weights),
            rows=tuple(self._rows),
            settings={
                "every": self.every,
                "packing": plainly(self.packing),
                "error_feedback": self.error_feedback,
            },
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs, beside the weights; of this process alone."""
        return {
            "steps": self._steps,
            "settled": self._settled,
            "rows": [dict(row) for row in self._rows],
            "residuals": {name: tensor.clone() for name, tensor in self._residuals.items()},
            "common": {name: tensor.clone() for name, tensor in self._common.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave in the same process.

        Without ``"common"``, the weights that the network has now are the last common ones.

        >>> averaging = Averaging(nn.Linear(3, 2))
        >>> averaging.load_state_dict({"steps": 7, "settled": True, "rows": [], "residuals": {}})
        >>> averaging.state_dict()["steps"]
        7
        """
        shapes = {name: tensor.shape for name, tensor in _shared(self.module)}
        for kind in ("residuals", "common"):
            for name, tensor in state.get(kind, {}).items():
                if shapes.get(name) != tensor.shape:
                    raise ContractError(
                        f"{name!r} of the {kind} is not of this network; load what state_dict() of "
                        "the same network gave, or begin without it"
                    )
        self._steps, self._settled = int(state["steps"]), bool(state["settled"])
        self._rows = [dict(row) for row in state["rows"]]
        self._residuals = dict(state["residuals"])
        if self._size > 1:
            self._common = dict(state["common"]) if "common" in state else self._copied()

    @property
    def _weights(self) -> int:
        return sum(tensor.numel() for _, tensor in _shared(self.module))

    def _chosen(self) -> Packing:
        """The packing of this moment: buffers kept exactly, gradients looked up."""
        if self.packing is None:
            return None
        chosen = dict(self.packing)
        exact = [
            glob.escape(name)
            for name, tensor in _shared(self.module)
            if not isinstance(tensor, nn.Parameter)
        ]
        chosen["lossless"] = (*chosen.get("lossless", ()), *exact)
        if chosen.get("gradients") is True:
            chosen["gradients"] = {
                name: tensor.grad
                for name, tensor in _shared(self.module)
                if tensor.grad is not None
            }
        return chosen

    def _copied(self) -> State:
        """What is averaged, as it is now."""
        return {name: tensor.detach().cpu().clone() for name, tensor in _shared(self.module)}

    def _in_step(self) -> None:
        """Every process sees the same refusal when one of them took more or fewer steps."""
        try:
            said = told_by_each(self._steps)
        except RuntimeError:  # what torch raises when a process is gone
            raise TrainingError(
                f"after {self._steps} steps the other processes cannot be reached; one of them has "
                "failed, or took fewer steps and has ended: give each as many batches"
            ) from None
        if len(set(said)) > 1:
            listed = ", ".join(f"process {source}: {steps}" for source, steps in enumerate(said))
            raise TrainingError(
                f"the processes took different numbers of steps ({listed}); give each as many "
                "batches, or call synchronise() in all of them after the same step"
            )

    def _agree(self) -> None:
        """Every process sees the same refusal when one of them brings something else."""
        shapes = {n: f"{t.dtype} {tuple(t.shape)}" for n, t in _shared(self.module, frozen=True)}
        how = {
            "every": str(self.every),
            "packing": plainly(self.packing),
            "error_feedback": str(self.error_feedback),
        }
        said = told_by_each(shapes | how)
        for source, theirs in enumerate(said):
            differ = sorted(k for k in {*theirs, *said[0]} if theirs.get(k) != said[0].get(k))
            if differ:
                listed = "; ".join(
                    f"{key}: {said[0].get(key, 'absent')} in process 0, "
                    f"{theirs.get(key, 'absent')} in process {source}"
                    for key in differ[:5]
                )
                raise ContractError(
                    f"the processes would not average the same thing ({listed}); build the same "
                    "network with the same settings in all of them"
                )

    def _begin_alike(self) -> None:
        rank, _ = rank_and_size()
        mine = dict(_shared(self.module, frozen=True))
        first, *_ = from_each(packed(mine, {}, None).data if rank == 0 else b"")
        with torch.no_grad():
            for name, value in decoded(first, None, 0).items():
                mine[name].copy_(value)


def _shared(module: nn.Module, *, frozen: bool = False) -> Iterator[tuple[str, Tensor]]:
    """The tensors that are averaged, each once, under its first name."""
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor) or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if frozen or tensor.requires_grad or not isinstance(tensor, nn.Parameter):
            yield name, tensor


# What the exchange of weights cost ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Exchanges(Record, kind="exchanges", title="Weights averaged by {processes} processes"):
    """One row each time that the processes averaged their weights.

    Attributes:
        processes: How many there are.
        weights: How many numbers each of them sends.
        plain_bits: Bits a weight if they were sent as they are.
        rows: ``"step"``, after how many steps; ``"bits a weight"``, the mean over the processes;
            ``"relative error"``, how far what this process sent is from what it wanted to send.

    >>> row = {"step": 50, "bits a weight": 4.0, "relative error": 0.01}
    >>> Exchanges(processes=2, weights=1000, plain_bits=32.0, rows=(row,))
    Exchanges(2 processes, 1 times 1000 weights at 4.00 bits: 8.0 times fewer)
    """

    processes: int
    weights: int
    plain_bits: float
    rows: tuple[dict[str, float], ...]

    @property
    def bits_a_weight(self) -> float:
        """The mean over all exchanges; NaN when there was none."""
        if not self.rows:
            return float("nan")
        return sum(row["bits a weight"] for row in self.rows) / len(self.rows)

    @property
    def ratio(self) -> float:
        """How many times fewer bits than plain weights have."""
        return self.plain_bits / self.bits_a_weight

    @property
    def megabytes(self) -> float:
        """What a process has sent in all."""
        return self.bits_a_weight * self.weights * len(self.rows) / 8e6

    @property
    def nothing(self) -> str:
        """Why there are no rows, if there are none."""
        said = "Nothing was exchanged: one process, or fewer steps than an interval."
        return "" if self.rows else said

    shows = (
        text("{nothing}"),
        when(
            "rows",
            measures(
                {
                    "processes": "processes",
                    "exchanges": lambda found: len(found.rows),
                    "weights": "weights",
                    "bits a weight": "bits_a_weight",
                    "times fewer than plain": "ratio",
                    "megabytes sent by a process": "megabytes",
                }
            ),
            figure("line", "Bits sent", "rows", "step", ("bits a weight",), "step"),
            figure("line", "Lost", "rows", "step", ("relative error",), "step"),
        ),
    )

    def __repr__(self) -> str:
        if not self.rows:
            return f"Exchanges(none yet, {self.processes} process{'es' * (self.processes > 1)})"
        return (
            f"Exchanges({self.processes} processes, {len(self.rows)} times {self.weights} weights "
            f"at {self.bits_a_weight:.2f} bits: {self.ratio:.1f} times fewer)"
        )
