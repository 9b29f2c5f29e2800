r"""How good outputs are, for each kind of target.

With logits :math:`z \in \mathbb{R}^{n \times c}` and targets :math:`y`, accuracy is
:math:`\frac1n \sum_i [\arg\max_j z_{ij} = y_i]` and the negative log-likelihood
:math:`-\frac1n \sum_i \log \mathrm{softmax}(z_i)_{y_i}`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["class_measures", "confusion", "label_measures", "number_measures"]


def class_measures(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Accuracy and negative log-likelihood (nats) of ``[n, c]`` logits for ``[n]`` classes.

    >>> class_measures(torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1]))["accuracy"]
    0.5
    """
    nll = F.cross_entropy(logits.double(), targets)
    right = (logits.argmax(1) == targets).double().mean()
    return {"accuracy": float(right), "nll": float(nll)}


def label_measures(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Share of right labels, share of rows right as a whole, and binary cross-entropy.

    >>> label_measures(torch.tensor([[9.0, -9.0]]), torch.tensor([[1.0, 1.0]]))["accuracy"]
    0.5
    """
    right = (logits > 0) == (targets > 0.5)
    bce = F.binary_cross_entropy_with_logits(logits.double(), targets.double())
    return {
        "accuracy": float(right.double().mean()),
        "exact": float(right.all(1).double().mean()),
        "nll": float(bce),
    }


def number_measures(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    r"""Mean squared error, its root, and :math:`R^2 = 1 - \mathrm{mse} / \mathrm{var}(y)`.

    >>> number_measures(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 3.0]))["r2"]
    1.0
    """
    y = targets.double().reshape(len(targets), -1)
    mse = float((outputs.double().reshape(y.shape) - y).square().mean())
    spread = float((y - y.mean(0)).square().mean())
    r2 = 1 - mse / spread if spread > 0 else float("nan")
    return {"r2": r2, "rmse": mse**0.5, "mse": mse}


def confusion(predicted: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Counts ``[classes, classes]``: row the true class, column the predicted one.

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2)
    tensor([[1, 1],
            [0, 1]])
    """
    cells = targets * classes + predicted
    return torch.bincount(cells, minlength=classes * classes).reshape(classes, classes)
