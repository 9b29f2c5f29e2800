"""What a linear model is conditioned on, refused before anything large is computed."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError, nearest, shown
from dovetail.linalg.tangent import TangentFeatures

__all__ = ["checked_observations"]


def checked_observations(
    features: TangentFeatures, residual: Tensor, noise: Tensor, scales: Mapping[str, float]
) -> tuple[Tensor, Tensor]:
    """The residuals and noise variances, float64 ``[n, o]``, or why they are none.

    >>> import torch
    >>> features = TangentFeatures(torch.nn.Linear(1, 1), torch.ones(3, 1))
    >>> checked_observations(features, torch.zeros(3, 1), torch.zeros(3, 1), {})
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: noise is a variance for each observation, above 0 ...
    """
    shape = (len(features), features.width)
    for name, given in (("residual", residual), ("noise", noise)):
        if given.shape != shape:
            raise TaskError(
                f"{name} has shape {list(given.shape)}, but the features are of {shape[0]} inputs "
                f"with {shape[1]} outputs; give one number for each"
            )
    if not bool(residual.isfinite().all()):
        raise TaskError("targets or the network's outputs hold nan or inf; drop those samples")
    if not bool((noise.isfinite() & (noise > 0)).all()):
        raise SettingsError("noise is a variance for each observation, above 0 and finite")
    for name, scale in scales.items():
        if name not in features.shapes:
            raise SettingsError(
                f"{shown(name)} is not among the chosen parameters{nearest(name, features.names)}"
            )
        if not 0 <= scale < float("inf"):
            raise SettingsError(
                f"the prior variance of {name!r} is {shown(scale)}; it must be finite, at least 0"
            )
    return residual.detach().double(), noise.detach().double()
