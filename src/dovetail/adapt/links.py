r"""From a Gaussian over logits to probabilities of classes.

.. math:: p(c) = \int \operatorname{softmax}(g)_c \; \mathcal N(g \mid \mu, \Sigma) \, dg

has no closed form.  ``"mc"`` draws :math:`g`; ``"probit"`` shrinks each mean by its uncertainty,
:math:`\mu_c / \sqrt{1 + \pi v_c / 8}`; ``"mean"`` forgets the uncertainty.  What all classes
have in common does not change a softmax, so :math:`v` is the variance of :math:`g_c` less the mean
of the others; with two classes that is MacKay's formula for the difference of their logits.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from dovetail.core.errors import SettingsError, nearest

__all__ = ["Link", "probabilities"]

Link = Literal["mc", "probit", "mean"]

DRAWS = 512  # evenly spread, which is worth many times as many at random


def probabilities(
    mean: Tensor, covariance: Tensor, link: Link = "mc", *, temperature: float = 1.0, seed: int = 0
) -> Tensor:
    """Probabilities ``[m, c]`` of classes.

    Args:
        mean: Of the logits ``[m, c]``, float64.
        covariance: Of the logits ``[m, c, c]``; not looked at for ``"mean"``.
        link: How uncertainty is averaged over.
        temperature: Divides the logits, drawn or not.
        seed: Of the draws, which are the same for every input.

    >>> mean = torch.tensor([[2.0, 0.0]])
    >>> sure, unsure = torch.zeros(1, 2, 2), 9 * torch.eye(2)[None]
    >>> probabilities(mean, sure, "probit").argmax().item()
    0
    >>> bool(probabilities(mean, unsure)[0, 0] < probabilities(mean, sure)[0, 0])
    True
    """
    if link not in get_args(Link):
        raise SettingsError(f"no link is called {link!r}{nearest(str(link), get_args(Link))}")
    if not (isinstance(temperature, int | float) and 0 < temperature < math.inf):
        raise SettingsError(f"temperature is a number above 0, got {temperature!r}")
    mean = mean.double()
    if link == "mean":
        return (mean / temperature).softmax(1)
    mean = mean - mean.mean(1, keepdim=True)
    apart = _apart(covariance.double())
    if link == "probit":
        classes = mean.shape[1]
        # A logit less the mean of all is (c - 1) / c of it less the mean of the others.
        variance = apart.diagonal(dim1=1, dim2=2).clamp(min=0) * (classes / (classes - 1)) ** 2
        return (mean / (1 + math.pi / 8 * variance).sqrt() / temperature).softmax(1)
    return _drawn(mean, apart, temperature, seed)


def _apart(covariance: Tensor) -> Tensor:
    """Of logits less their mean over classes ``[m, c, c]``."""
    rows = covariance - covariance.mean(1, keepdim=True)
    return rows - rows.mean(2, keepdim=True)


def _drawn(mean: Tensor, covariance: Tensor, temperature: float, seed: int) -> Tensor:
    classes = mean.shape[1]
    sobol: Any = SobolEngine  # which torch has not annotated
    even: Tensor = sobol(classes, scramble=True, seed=seed).draw(DRAWS, dtype=mean.dtype)
    draws = torch.special.ndtri(even.clamp(1e-9, 1 - 1e-9)).to(mean.device)
    values, basis = torch.linalg.eigh((covariance + covariance.transpose(1, 2)) / 2)
    # The symmetric root: eigenvectors have any sign, and other signs would be other draws.
    root = basis * values.clamp(min=0).sqrt()[:, None, :] @ basis.transpose(1, 2)
    found = torch.empty_like(mean)
    step = max(1, 2**24 // (DRAWS * classes))
    for start in range(0, len(mean), step):
        some = slice(start, start + step)
        logits = mean[some, None, :] + draws @ root[some].transpose(1, 2)
        found[some] = (logits / temperature).softmax(2).mean(1)
    return found
