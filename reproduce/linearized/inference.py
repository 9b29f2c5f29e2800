"""Linearised classifiers as the scripts fit and measure them."""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.adapt.linear_model import LinearModel
from dovetail.adapt.variational import VariationalPosterior, variational
from dovetail.core.seeds import generator
from dovetail.linalg.parameters import Choice
from dovetail.measure.calibration import (
    expected_calibration_error,
    fit_temperature,
    log_probabilities,
    nll,
    tempered,
)
from linearized.images import Split
from linearized.keeping import Found

RATE = 1.0
LOOK = 256


def prior_variance(model: LinearModel, x: Tensor, seed: int = 0) -> float:
    r"""The mean variance of an output under :math:`w \sim N(0, I)`, of some inputs, by signs.

    .. math:: \frac{1}{no} \sum_i \operatorname{tr} J_i J_i^\top
        = \frac{1}{no} \mathbb E \lVert J^\top u \rVert^2 , \qquad u \in \{-1, 1\}^{no}
    """
    some = x[:LOOK]
    tangents = model.tangents().at(some)
    draw = generator(seed, "prior variance")
    width = model.outputs(some[:1]).shape[1]
    pulls = [
        tangents.pull(torch.randint(0, 2, (len(some), width), generator=draw) * 2.0 - 1.0)
        for _ in range(8)
    ]
    return float(torch.stack(pulls).square().sum(1).mean()) / (len(some) * width)


class Linearized:
    """A network's linear model with a prior under which outputs have a given variance."""

    def __init__(self, model: LinearModel, variance: float | None, x: Tensor) -> None:
        self.model = model
        scale = 1.0 if variance is None else variance / prior_variance(model, x)
        self.scales = dict.fromkeys(model.names, scale)
        self.found: VariationalPosterior | None = None

    def fit(
        self, train: Split, mean: Tensor, *, by: str, steps: int, batch_size: int, seed: int
    ) -> Linearized:
        """Fit by ``"VI"`` or ``"MAP"``."""
        self.found = variational(
            self.model,
            *train,
            mean=mean,
            scales=self.scales,
            posterior="mean-field" if by == "VI" else "map",
            steps=steps,
            batch_size=batch_size,
            learning_rate=RATE,
            seed=seed,
        )
        return self

    def probabilities(self, x: Tensor, mean: Tensor, draws: int) -> Tensor:
        """The mean of the softmax over draws; over one where all are the same."""
        assert self.found is not None
        count = draws if bool(self.found.deviations.any()) else 1
        return self.found.samples(x, mean, count).softmax(-1).mean(0)


def linear_model(module: torch.nn.Module, params: Choice = None) -> LinearModel:
    return LinearModel(module, params, batch_size=256)


def measured(validation: Tensor, test: Tensor, labels: dict[str, Tensor]) -> Found:
    """Accuracy, likelihood and calibration on test, as it is and with validation's temperature."""
    temperature = fit_temperature(log_probabilities(validation), labels["validation"])
    cooled = tempered(log_probabilities(test), temperature)
    y = labels["test"]
    return {
        "accuracy": float((test.argmax(1) == y).double().mean()),
        "nll": nll(test, y),
        "ece": expected_calibration_error(test, y),
        "temperature": temperature,
        "tempered nll": nll(cooled, y),
        "tempered ece": expected_calibration_error(cooled, y),
        "validation nll": nll(validation, labels["validation"]),
        "validation accuracy": float(
            (validation.argmax(1) == labels["validation"]).double().mean()
        ),
    }
