"""Those whom a training goes on together with: what all must agree upon at the end of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from dovetail.dist.averaging import Averaging
from dovetail.dist.group import rank_and_size, told_by_each


class Company(Protocol):
    """What a loop asks when others train beside it.

    What decides how the training goes on (the loss of an epoch, whether to stop, whether to save)
    is agreed upon, since one that goes its own way would leave the others waiting.
    """

    rank: int

    @property
    def alone(self) -> bool:
        """Whether there is nobody else."""
        ...

    def stepped(self) -> None:
        """After a step of the optimiser."""
        ...

    def closed(self, loss: float) -> dict[str, float]:
        """After the last step of an epoch: the loss that all report, and more measures."""
        ...

    def agreed(self, measures: dict[str, float]) -> dict[str, float]:
        """The measures on validation that all go by."""
        ...

    def either(self, *flags: bool) -> list[bool]:
        """Each flag, raised if anybody raised it."""
        ...

    def newest(self, epochs: Sequence[int]) -> int | None:
        """The latest of these that everybody has."""
        ...

    def file(self, path: Path) -> Path:
        """Where this one keeps its state."""
        ...

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What must survive an interruption, as JSON facts and named tensors."""
        ...

    def restore(self, facts: dict[str, Any], residuals: dict[str, Tensor]) -> None:
        """Go back to what :meth:`state` gave."""
        ...


def newest_of(told: Sequence[Sequence[int]]) -> int | None:
    """The largest number that is in all lists.

    >>> newest_of([[5, 4], [4, 3]]), newest_of([[5], []])
    (4, None)
    """
    return max(set[int].intersection(*map(set, told)), default=None)


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
        agreed: dict[str, float] = told_by_each(measures)[0]
        return agreed

    def either(self, *flags: bool) -> list[bool]:
        """Each flag, raised if any process raised it."""
        return [any(said) for said in zip(*told_by_each(flags), strict=True)]

    def newest(self, epochs: Sequence[int]) -> int | None:
        """The latest of these that every process has."""
        return newest_of(told_by_each(list(epochs)))

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
        residuals: dict[str, Tensor] = state.pop("residuals")
        del state["common"]  # the weights of this moment
        return state, residuals

    def restore(self, facts: dict[str, Any], residuals: dict[str, Tensor]) -> None:
        """Go back to what :meth:`state` gave."""
        self.averaging.load_state_dict({**facts, "residuals": residuals})
        self._seen = len(facts["rows"])
