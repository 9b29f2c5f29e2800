"""The loop's side of training in several processes that average their weights.

Each process trains on its share of the rows.  What decides how the training goes on (the loss of an
epoch, whether to stop, whether to save) is agreed upon, since a process that goes its own way would
leave the others waiting.  Alone, everything here is as if it were not there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.core.seeds import derived_seed
from dovetail.dist.averaging import Averaging
from dovetail.dist.group import my_share, rank_and_size, told_by_each

__all__ = ["Together", "own_rows", "own_seed"]

_RESIDUAL = "residual"


def own_rows(rows: Tensor) -> Tensor:
    """This process's share, as long as everybody's: all must take the same number of steps.

    Up to one row less than there are processes is left out.

    >>> import torch
    >>> own_rows(torch.arange(5))
    tensor([0, 1, 2, 3, 4])
    """
    _, size = rank_and_size()
    if len(rows) < size:
        raise TaskError(f"{len(rows)} examples cannot be dealt to {size} processes; start fewer")
    return my_share(rows[: len(rows) // size * size])


def own_seed(seed: int) -> int:
    """For what this process draws: dropout and augmentation differ between processes.

    >>> own_seed(3)
    3
    """
    rank, _ = rank_and_size()
    return seed if rank == 0 else derived_seed(seed, "process", rank)


class Together:
    """What a loop asks when its network is averaged with that of other processes.

    >>> from torch import nn
    >>> together = Together(Averaging(nn.Linear(2, 1)))
    >>> together.alone, together.closed(0.5), together.either(False, True)
    (True, {'loss': 0.5}, [False, True])
    """

    def __init__(self, averaging: Averaging) -> None:
        self.averaging = averaging
        self.rank, self.size = rank_and_size()
        self._seen = 0

    @property
    def alone(self) -> bool:
        """Whether there is nobody else."""
        return self.size == 1

    def stepped(self) -> None:
        """After a step of the optimiser."""
        self.averaging.step()

    def closed(self, loss: float) -> dict[str, float]:
        """End an epoch with the same weights everywhere: the mean loss, and the bits it took."""
        self.averaging.synchronise()
        losses = told_by_each(loss)
        row = {"loss": sum(losses) / self.size}
        sent = [one["bits a weight"] for one in self.averaging.record().rows[self._seen :]]
        self._seen += len(sent)
        return row | ({"bits a weight": sum(sent) / len(sent)} if sent else {})

    def agreed(self, measures: dict[str, float]) -> dict[str, float]:
        """Process 0's, for all: where a last bit differs, they might choose different epochs."""
        found: dict[str, float] = told_by_each(measures)[0]
        return found

    def either(self, *flags: bool) -> list[bool]:
        """Each flag, raised if any process raised it."""
        return [any(said) for said in zip(*told_by_each(flags), strict=True)]

    def all_say(self, value: Any) -> bool:
        """Whether every process says the same."""
        said = told_by_each(value)
        return all(other == said[0] for other in said)

    def file(self, path: Path) -> Path:
        """Where this process keeps its state: momentum and residuals are its own.

        >>> from torch import nn
        >>> Together(Averaging(nn.Linear(2, 1))).file(Path("run.safetensors")).name
        'run.safetensors'
        """
        return path if self.rank == 0 else path.with_suffix(f".process{self.rank}{path.suffix}")

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What must survive an interruption, as JSON facts and named tensors."""
        state = self.averaging.state_dict()
        residuals, _ = state.pop("residuals"), state.pop("common")  # the weights of this moment
        return state, {f"{_RESIDUAL}/{name}": tensor for name, tensor in residuals.items()}

    def restore(self, facts: dict[str, Any], residuals: dict[str, Tensor]) -> None:
        """Go back to what :meth:`state` gave."""
        self.averaging.load_state_dict({**facts, "residuals": residuals})
        self._seen = len(facts["rows"])
