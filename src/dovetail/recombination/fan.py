"""One front and many heads behind it: each batch goes through the front once."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from dovetail.parts.norms import Norms, recalibrate, with_batch_statistics

__all__ = ["Fan"]


class Fan(nn.Module):
    """A front whose features every head receives; the tensors are the parts' own.

    >>> import torch
    >>> fan = Fan(nn.Flatten(), {"three": nn.Linear(4, 3), "two": nn.Linear(4, 2)})
    >>> {name: tuple(found.shape) for name, found in fan(torch.rand(5, 2, 2)).items()}
    {'three': (5, 3), 'two': (5, 2)}
    """

    def __init__(self, front: nn.Module, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.front = front
        self.names = list(heads)
        self.heads = nn.ModuleList(heads.values())  # no dictionary: names of parts hold dots

    def features(self, x: Tensor) -> tuple[Tensor, ...]:
        """What crosses from the front to a head."""
        given = self.front(x)
        return given if isinstance(given, tuple) else (given,)

    def through(self, name: str, features: tuple[Tensor, ...]) -> Tensor:
        """What one head makes of the features, where its weights are."""
        head = self.heads[self.names.index(name)]
        weight = next(iter(head.state_dict().values()), None)
        if weight is not None:
            features = tuple(tensor.to(weight.device) for tensor in features)
        output: Tensor = head(*features)
        return output

    def forward(self, x: Tensor, wanted: Iterable[str] | None = None) -> dict[str, Tensor]:
        """The outputs of all heads, or of those wanted."""
        features = self.features(x)
        names = self.names if wanted is None else wanted
        return {name: self.through(name, features) for name in names}

    def with_norms(self, norms: Norms, batches: Iterable[Tensor] = ()) -> Fan:
        """The fan with other statistics, as ``join`` of the front to each head would have them.

        ``"recalibrated"`` needs batches of prepared inputs.  The front's new statistics are the
        same behind every head, so one pass over the batches serves all; heads that share a batch
        norm still get statistics of their own.
        """
        if norms == "stored":
            return self
        if norms == "batch":
            return with_batch_statistics(self)
        heads = (copy.deepcopy(head) for head in self.heads)
        apart = Fan(self.front, dict(zip(self.names, heads, strict=True)))
        return recalibrate(apart, batches)
