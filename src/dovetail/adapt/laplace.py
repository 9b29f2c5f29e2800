r"""Classes: Laplace's approximation with the whole Hessian of the likelihood, and its links.

Labels have probabilities :math:`\pi = \operatorname{softmax}(g(x))` and :math:`g` the linear
model's prior.  Newton's method finds the mode :math:`\hat g = m + K a` of the posterior, and the
Gaussian there has the sites

.. math::
    W_i = \operatorname{diag}(\pi_i) - \pi_i \pi_i^\top = R_i R_i^\top, \qquad
    R_i = \operatorname{diag}(\sqrt{\pi_i}) - \pi_i \sqrt{\pi_i}^\top .

All of :math:`W_i` is kept: its off-diagonal part says that classes exclude each other.  At the mode
:math:`a = y - \pi`, and the log evidence is
:math:`\log p(y \mid \hat g) - \frac12 a^\top K a - \frac12 \log |I + R^\top K R|`.

The log likelihood of a label that counts :math:`\omega_i` times is taken so many times, and with it
the slope and the site :math:`W_i`.

From a Gaussian over logits to probabilities of classes,

.. math:: p(c) = \int \operatorname{softmax}(g)_c \; \mathcal N(g \mid \mu, \Sigma) \, dg

has no closed form.  The link ``"mc"`` draws :math:`g`; ``"probit"`` shrinks each mean by its
uncertainty, :math:`\mu_c / \sqrt{1 + \pi v_c / 8}`; ``"mean"`` forgets the uncertainty.  What all
classes have in common does not change a softmax, so :math:`v` is the variance of :math:`g_c` less
the mean of the others; with two classes that is MacKay's formula for the difference of their
logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.quasirandom import SobolEngine

from dovetail.adapt.posterior import FunctionPosterior, centred, factor, whitened
from dovetail.core.errors import SettingsError, nearest
from dovetail.linalg.conjugate_gradients import ConvergenceError
from dovetail.linalg.tangent import TangentFeatures

Link = Literal["mc", "probit", "mean"]

DRAWS = 512  # evenly spread, which is worth many times as many at random
MOST_STEPS = 100
ENOUGH_BY_ROUNDING = 1e-6
ENOUGH = 1e-10
"""The gain of a step, a label, below which the mode is reached."""


def site_roots(probabilities: Tensor) -> Tensor:
    r"""Square roots ``[n, c, c]`` of the likelihood's Hessians at probabilities ``[n, c]``.

    >>> root = site_roots(torch.tensor([[0.5, 0.5]]))
    >>> root @ root.mT
    tensor([[[ 0.2500, -0.2500],
             [-0.2500,  0.2500]]])
    """
    sides = probabilities.sqrt()
    return torch.diag_embed(sides) - probabilities[:, :, None] * sides[:, None, :]


def mode_of(
    kernel: Tensor,
    mean: Tensor,
    labels: Tensor,
    start: Tensor | None = None,
    *,
    counts: Tensor | None = None,
    enough: float = ENOUGH,
) -> tuple[Tensor, Tensor, Tensor, float]:
    r"""Newton's method in function space, float64.

    Args:
        kernel: The prior's covariance ``[n c, n c]``.
        mean: The prior's mean ``[n, c]``.
        labels: Codes ``[n]``.
        start: A dual ``[n, c]`` to begin with, such as that of a slightly different prior.
        counts: How many times each label counts ``[n]``, above 0; once unless said.
        enough: The gain of a step, per label, below which the mode is reached.

    Returns:
        The dual :math:`a` ``[n, c]``, the sites' roots :math:`R` ``[n, c, c]``, the factor
        :math:`L` of :math:`I + R^\top K R` and the log evidence.
    """
    n, classes = mean.shape
    target = F.one_hot(labels, classes).to(mean)
    dual = torch.zeros_like(mean) if start is None else start.clone()
    times = torch.ones(n, 1).to(mean) if counts is None else counts.to(mean)[:, None]
    every = float(times.sum())

    def value_at(dual: Tensor) -> tuple[float, Tensor]:
        moved = (kernel @ dual.flatten()).reshape(n, classes)
        logits = mean + moved
        fit = float((times * logits.log_softmax(1).gather(1, labels[:, None])).sum())
        return fit - 0.5 * float((dual * moved).sum()), logits

    value, logits = value_at(dual)
    for _ in range(MOST_STEPS):
        probabilities = logits.softmax(1)
        root = site_roots(probabilities) * times.sqrt()[:, :, None]
        lower = factor(kernel, root)
        moved = (logits - mean).reshape(-1, 1)
        slope = (times * (target - probabilities)).reshape(-1, 1)
        wanted = _sites(root, moved) + slope  # W (g - m) + gradient
        inside = whitened(root, kernel @ wanted)
        step = wanted - _unwhitened(root, torch.cholesky_solve(inside, lower))
        step = step.reshape(n, classes) - dual
        size, gain = 1.0, -1.0
        for _ in range(30):
            further, there = value_at(dual + size * step)
            gain = further - value
            if gain >= 0:
                break
            size /= 2
        if gain < 0:
            # No step gains: rounding at the mode, or a direction that is none.
            promised = float((slope.flatten() - dual.flatten()) @ (kernel @ step.flatten()))
            if promised > max(enough, ENOUGH_BY_ROUNDING) * every:
                raise ConvergenceError(
                    "Newton's method found no better step although the slope promises one; scale "
                    "the network's outputs or the prior down"
                )
            break
        dual, value, logits = dual + size * step, further, there
        if gain <= enough * every:
            break
    else:
        raise ConvergenceError(
            f"Newton's method did not find the mode of {n} labels in {MOST_STEPS} steps; scale the "
            "network's outputs or the prior down"
        )
    probabilities = logits.softmax(1)
    root = site_roots(probabilities) * times.sqrt()[:, :, None]
    lower = factor(kernel, root)
    # At the mode the dual is the slope, to the last digit rather than to the last step.
    # (Under a wide prior those digits, times the kernel, can cost more than the last step gained.)
    dual = times * (target - probabilities)
    value = max(value, value_at(dual)[0])
    return dual, root, lower, value - float(lower.diagonal().log().sum())


def condition_on_labels(
    features: TangentFeatures,
    labels: Tensor,
    mean: Tensor,
    scales: Mapping[str, float],
    *,
    kernel: Tensor | None = None,
    start: Tensor | None = None,
    counts: Tensor | None = None,
) -> FunctionPosterior:
    """The posterior of labels ``[n]`` under a prior of mean ``[n, c]``.

    Args:
        features: Of the inputs, with an output for each class.
        labels: Codes ``[n]``.
        mean: The prior's mean at the inputs.
        scales: The prior's variance by parameter name.
        kernel: The scaled Gram matrix ``[n c, n c]``, if it is known already.
        start: A dual to begin with.
        counts: How many times each label counts ``[n]``, above 0; once unless said.
    """
    rows = mean.numel()
    if kernel is None:
        kernel = features.gram(scales=scales).reshape(rows, rows)
    return _at_mode((features,), labels, mean, scales, kernel, start, counts)


def with_more_labels(
    posterior: FunctionPosterior,
    new: TangentFeatures,
    labels: Tensor,
    mean: Tensor,
    counts: Tensor | None = None,
) -> FunctionPosterior:
    """The posterior of old and new labels together, Newton's method beginning at the old mode.

    Args:
        posterior: Of the old ones.
        new: Features of the new inputs.
        labels: Codes of all, old first ``[n + m]``.
        mean: The prior's mean at all inputs, old first.
        counts: How many times each of the new labels counts ``[m]``; once unless said.
    """
    assert posterior.kernel is not None, "a posterior of labels keeps its kernel"
    across = posterior.raw_cross(new)
    own = new.gram(scales=posterior.scales).reshape(len(across), len(across))
    kernel = torch.cat([torch.cat([posterior.kernel, across.T], 1), torch.cat([across, own], 1)], 0)
    start = torch.cat([posterior.dual, torch.zeros(len(new), new.width, dtype=torch.float64)])
    features = (*posterior.features, new)
    if counts is not None or posterior.counts is not None:
        before, ones = posterior.counts, torch.ones(len(labels), dtype=torch.float64)
        counts = torch.cat(
            [
                ones[: len(posterior.dual)] if before is None else before,
                ones[len(posterior.dual) :] if counts is None else counts,
            ]
        )
    return _at_mode(features, labels, mean, posterior.scales, kernel, start, counts)


def _at_mode(
    features: tuple[TangentFeatures, ...],
    labels: Tensor,
    mean: Tensor,
    scales: Mapping[str, float],
    kernel: Tensor,
    start: Tensor | None,
    counts: Tensor | None,
) -> FunctionPosterior:
    used = centred(kernel, mean.shape[1], counts)
    dual, root, lower, log_evidence = mode_of(used, mean, labels, start, counts=counts)
    return FunctionPosterior(
        features,
        dict(scales),
        root,
        lower,
        dual,
        log_evidence,
        kernel=kernel,
        centred=True,
        counts=counts,
        diagnostics={"method": "laplace", "rows": len(lower), "bytes": 2 * lower.nbytes},
    )


def _unwhitened(root: Tensor, columns: Tensor) -> Tensor:
    r"""Multiply columns ``[n c, m]`` by :math:`R`."""
    n, c, _ = root.shape
    return (root @ columns.reshape(n, c, -1)).reshape(columns.shape)


def _sites(root: Tensor, columns: Tensor) -> Tensor:
    r"""Multiply columns by :math:`W = R R^\top`."""
    return _unwhitened(root, whitened(root, columns))


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
    probs = torch.empty_like(mean)
    step = max(1, 2**24 // (DRAWS * classes))
    for start in range(0, len(mean), step):
        some = slice(start, start + step)
        logits = mean[some, None, :] + draws @ root[some].transpose(1, 2)
        probs[some] = (logits / temperature).softmax(2).mean(1)
    return probs
