r"""A Gaussian over the weights of a linearised network, found by minibatches.

For data too many for a matrix of :math:`no` rows and weights too many for one of :math:`p`.  The
model is :math:`g(x) = m(x) + J(x) w` with :math:`w \sim \mathcal N(0, S)`, :math:`S` diagonal, and
a likelihood of each target given :math:`g`: softmax, or Gaussian noise.  Among
:math:`q(w) = \mathcal N(\mu, \operatorname{diag} \sigma^2)` we look for the one with the highest

.. math::
    \mathrm{ELBO} = \sum_i \mathbb E_q \log p(y_i \mid g(x_i))
        - \tau\, \mathrm{KL}(q \,\|\, \mathcal N(0, S)) ,

a lower bound of the log evidence at :math:`\tau = 1`.  With :math:`u = \nabla_g \log p` and
:math:`\Lambda = -\nabla_g^2 \log p` its maximum has

.. math::
    \mu = S\, \mathbb E_q J^\top u / \tau , \qquad
    \sigma_k^{-2} = S_k^{-1} + \mathbb E_q [J^\top \Lambda J]_{kk} / \tau .

A step draws :math:`w`, pushes it forwards, :math:`J w`, and pulls two cotangents back: :math:`u`,
the gradient for :math:`\mu`, and one drawn with covariance :math:`\Lambda`, whose pull squared has
the diagonal of :math:`J^\top \Lambda J` as its mean.  No Jacobian is formed.  That second pull is
worth its price: the usual gradient for :math:`\sigma`, :math:`J^\top u` times the noise that was
drawn, carries the noise of the minibatch, and on n data in batches of b its ratio of signal to
noise is smaller by :math:`\sqrt{n / 2b}`.

Weights that the data constrain only together keep almost their prior variance each, so on a wide
prior :math:`q` is less sure than the posterior, and the mean, found under that noise, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from dovetail.adapt.linear_model import LinearModel, Tangents
from dovetail.core.errors import ContractError, SettingsError, TaskError, TrainingError
from dovetail.core.seeds import generator
from dovetail.linalg.tangent import TangentFeatures

__all__ = ["Likelihood", "VariationalPosterior", "variational"]

Kind: TypeAlias = Literal["mean-field", "map"]

_WARM = 0.1  # share of the steps at the mean, so that the first draws are not from the prior
_COOL = 0.3  # share of the steps in which the rate falls to zero
_WINDOWS = 20  # the bound is noisy: progress is judged by means over a twentieth of the steps


class Likelihood:
    r"""Targets given functions :math:`g`: of classes, or of numbers with Gaussian noise.

    Functions are ``[draws, b, o]``, rows say which of the targets they are about.

    >>> likelihood = Likelihood(torch.tensor([0, 1]), None)
    >>> g = torch.zeros(1, 1, 2, dtype=torch.float64)
    >>> likelihood.slope(g, slice(0, 1))
    tensor([[[ 0.5000, -0.5000]]], dtype=torch.float64)
    """

    def __init__(self, targets: Tensor, noise: float | None) -> None:
        self.targets, self.noise = targets.cpu(), noise

    def log_density(self, g: Tensor, rows: Tensor | slice) -> Tensor:
        """Of each target, ``[draws, b]``."""
        target = self.targets[rows]
        if self.noise is None:
            codes = target.expand(g.shape[:-1])[..., None]
            return g.log_softmax(-1).gather(-1, codes)[..., 0]
        constant = math.log(2 * math.pi * self.noise)
        return -0.5 * ((target.double() - g).square() / self.noise + constant).sum(-1)

    def slope(self, g: Tensor, rows: Tensor | slice) -> Tensor:
        r"""The gradient :math:`u = \nabla_g \log p`, ``[draws, b, o]``."""
        target = self.targets[rows]
        if self.noise is None:
            return nn.functional.one_hot(target, g.shape[-1]) - g.softmax(-1)
        return (target.double() - g) / self.noise

    def drawn_slope(self, g: Tensor, draw: torch.Generator) -> Tensor:
        r"""A random ``[b, o]`` of mean 0 and covariance :math:`-\nabla_g^2 \log p`, each row alone.

        For classes that is :math:`\operatorname{diag} p - p p^\top = R R^\top` with
        :math:`R = \operatorname{diag}\sqrt p - p \sqrt{p}^\top`; of several draws the mean.
        """
        signs = torch.randint(0, 2, g.shape, generator=draw).double() * 2 - 1
        if self.noise is None:
            p = g.softmax(-1)
            part = p.sqrt() * signs
            signs = part - p * part.sum(-1, keepdim=True)
        else:
            signs = signs / math.sqrt(self.noise)
        return signs.sum(0) / math.sqrt(len(g))


@dataclass(frozen=True, eq=False)
class VariationalPosterior:
    r"""The Gaussian :math:`q(w)` and how it was found.

    Attributes:
        model: The linear model it is about.
        weights: :math:`\mu`, float64 ``[p]``.
        deviations: :math:`\sigma`, float64 ``[p]``; zero for the most probable weights alone.
        kl: From the prior, in nats; for the most probable weights half their squared length.
        noise: The variance of Gaussian noise, or ``None`` for classes.
        elbo: Its estimate from each minibatch, in order, for all data; noisy.
        diagnostics: How many steps, whether it stopped early (else more may find a better bound),
            the last estimate and its error.
    """

    model: LinearModel
    weights: Tensor
    deviations: Tensor
    kl: float
    noise: float | None
    elbo: tuple[float, ...]
    diagnostics: Mapping[str, Any]

    def shift(self, x: Tensor) -> Tensor:
        r"""What the data add to the mean, :math:`J(x) \mu`, float64 ``[n, o]``."""
        return self.model.push(x, self.weights)

    def samples(self, x: Tensor, mean: Tensor, count: int, seed: int = 0) -> Tensor:
        r"""Draws of :math:`g(x)`, float64 ``[count, n, o]``, in pairs on both sides of the mean.

        The same seed gives the same weights for any inputs.

        Args:
            x: Prepared inputs ``[n, ...]``.
            mean: :math:`m(x)`, ``[n, o]``.
            count: How many; with an even number their average is exactly the mean.
            seed: Of the draws.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise SettingsError(f"count is a whole number from 1, got {count!r}")
        middle = mean.to("cpu", torch.float64) + self.shift(x)
        draw = generator(seed, "variational", "samples")
        steps = (
            self.deviations * torch.randn(len(self.weights), generator=draw).double()
            for _ in range(-(-count // 2))
        )
        return _both_sides(middle, [self.model.push(x, step) for step in steps])[:count]

    def variance(self, features: TangentFeatures) -> Tensor:
        r"""The covariance :math:`J \operatorname{diag}(\sigma^2) J^\top`, ``[n, o, o]``, exact.

        It writes the rows of the Jacobian, a block at a time: :math:`n o p` numbers in all.  For
        many weights estimate it from :meth:`samples`.
        """
        parts = []
        for rows in features.rows():
            spread = rows * self.deviations
            parts.append(spread @ spread.transpose(1, 2))
        return torch.cat(parts)

    def bound(
        self, x: Tensor, labels: Tensor, mean: Tensor, count: int = 32, seed: int = 0
    ) -> float:
        """The ELBO on data, by so many draws, at temper 1; see :func:`variational`."""
        likelihood = Likelihood(labels, self.noise)
        found = likelihood.log_density(self.samples(x, mean, count, seed), slice(None))
        return float(found.sum(-1).mean()) - self.kl


def variational(
    model: LinearModel,
    x: Tensor,
    labels: Tensor,
    *,
    mean: Tensor,
    scales: Mapping[str, float],
    noise: float | None = None,
    posterior: Kind = "mean-field",
    steps: int = 1000,
    batch_size: int = 128,
    learning_rate: float = 0.5,
    draws: int = 1,
    seed: int = 0,
    temper: float = 1.0,
    progress: Callable[[int, float], object] | None = None,
) -> VariationalPosterior:
    r"""The best Gaussian over the weights, of those without correlations.

    The mean moves by Adam in prior standard deviations; the variances follow the running mean of
    the curvature, which needs no rate.  The rate is constant until the bound stops rising or seven
    tenths of the steps are taken, and then falls to zero.

    Args:
        model: The network and which of its parameters move.
        x: Prepared inputs ``[n, ...]``.
        labels: Class codes ``[n]``; with ``noise``, numbers ``[n, o]``.
        mean: :math:`m(x)`, ``[n, o]``: the network's own outputs, zero, or a constant.
        scales: The prior's variance by parameter name; one where a name is left out.
        noise: The variance of Gaussian noise; ``None`` for classes.
        posterior: ``"map"`` for the most probable weights alone; the history then is the log of
            likelihood times prior, up to a constant.
        steps: The most.
        batch_size: Inputs in a step.
        learning_rate: The most that one step moves the function at any input, in standard
            deviations of the prior there.
        draws: Of the weights in a step; an even number comes in pairs on both sides of the mean,
            and two cost one forward pass more than one.
        seed: Order of the data, draws.
        temper: :math:`\tau`; below one the data count more than the model says.
        progress: Called after each step with its number and its estimate of the bound.

    >>> x = torch.tensor([[-1.0], [1.0]])
    >>> around = LinearModel(nn.Linear(1, 2), "weight")
    >>> found = variational(
    ...     around, x, torch.tensor([0, 1]), mean=torch.zeros(2, 2), scales={}, steps=200
    ... )
    >>> found.shift(x).argmax(1)
    tensor([0, 1])
    """
    if posterior not in ("mean-field", "map"):
        raise SettingsError(f'posterior is "mean-field" or "map", got {posterior!r}')
    for name, value in (("steps", steps), ("batch_size", batch_size), ("draws", draws)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SettingsError(f"{name} is a whole number from 1, got {value!r}")
    for name, number in (("learning_rate", learning_rate), ("temper", temper)):
        if not 0 < number < math.inf:
            raise SettingsError(f"{name} is a number above 0, got {number!r}")
    mean = _mean_of(x, labels, mean, noise)
    said = model.outputs(x[:1])
    if said.shape != mean[:1].shape:
        raise ContractError(
            f"the network gives {list(said.shape)} for one input where the mean has "
            f"{list(mean[:1].shape)}; both are [n, o], a column for each class or number"
        )
    likelihood, tangents = Likelihood(labels, noise), model.tangents()
    root = model.prior_deviations(scales)
    search = _Search(root, steps, learning_rate, temper, sampled=posterior == "mean-field")
    order, draw = generator(seed, "variational", "order"), generator(seed, "variational", "draws")
    batches = _batches(len(x), batch_size, order)
    while search.taken < search.end:
        rows = next(batches)
        weight = len(x) / len(rows)
        tangents.at(x[rows])
        moved = _drawn(tangents, search, mean[rows], draws, draw)
        gradient = tangents.pull(likelihood.slope(moved, rows).mean(0))
        curvature = None
        if search.sampled:
            curvature = tangents.pull(likelihood.drawn_slope(moved, draw)).square() * weight
        fit = weight * float(likelihood.log_density(moved, rows).sum(-1).mean())
        bound = search.step(gradient * weight, curvature, fit)
        if not math.isfinite(bound):
            raise TrainingError(
                f"the bound became {bound} in step {search.taken}; lower learning_rate, or give "
                "the prior smaller scales"
            )
        if progress is not None:
            progress(search.taken, bound)
    return VariationalPosterior(
        model,
        root * search.middle.detach(),
        root * search.spread,
        search.kl,
        noise,
        tuple(search.history),
        search.described(),
    )


class _Search:
    r"""Where :math:`q` is, in units of the prior's standard deviations, and how it moves."""

    def __init__(
        self, root: Tensor, steps: int, rate: float, temper: float, *, sampled: bool
    ) -> None:
        self.root, self.steps, self.temper, self.sampled = root, steps, temper, sampled
        self.middle = torch.zeros_like(root)
        self.curvature = torch.zeros_like(root)
        # |J S^(1/2) v| is at most |v| prior deviations, and Adam moves each entry by its rate.
        self.rate = rate / math.sqrt(len(root))
        self.adam = torch.optim.Adam([self.middle], lr=self.rate, betas=(0.9, 0.99), maximize=True)
        self.warm = math.ceil(_WARM * steps)
        self.cool = math.floor((1 - _COOL) * steps)  # the step from which the rate falls
        self.end = steps
        self.window = max(1, steps // _WINDOWS)
        self.means: list[float] = []
        self.history: list[float] = []

    @property
    def taken(self) -> int:
        return len(self.history)

    @property
    def drawing(self) -> bool:
        return self.sampled and self.taken >= self.warm

    @property
    def spread(self) -> Tensor:
        """Deviations of ``q`` over those of the prior, ``[p]``."""
        if not self.sampled:
            return torch.zeros_like(self.root)
        return (1.0 + self.curvature / self.temper).rsqrt()

    @property
    def kl(self) -> float:
        length = 0.5 * float(self.middle.square().sum())
        if not self.sampled:
            return length
        variance = self.spread.square()
        return length + 0.5 * float((variance - 1.0 - variance.log()).sum())

    def step(self, gradient: Tensor, curvature: Tensor | None, fit: float) -> float:
        """Move; the bound is of where it was before."""
        bound = fit - self.temper * self.kl
        self.history.append(bound)
        if curvature is not None:
            # Weights proportional to the number of the step: early ones, from elsewhere, fade.
            share = 2.0 / (self.taken + 1.0)
            self.curvature.lerp_(self.root.square() * curvature, share)
        self.middle.grad = self.root * gradient - self.temper * self.middle
        left = (self.end - self.taken + 1) / (self.end - self.cool + 1)
        self.adam.param_groups[0]["lr"] = self.rate * min(1.0, left)
        self.adam.step()
        self._judge()
        return bound

    def _judge(self) -> None:
        """Let the rate fall as soon as two windows in a row have not improved on the best."""
        if self.taken % self.window or self.taken > self.cool or self.taken <= 2 * self.warm:
            return
        self.means.append(sum(self.history[-self.window :]) / self.window)
        if len(self.means) > 2 and max(self.means[-2:]) <= max(self.means[:-2]):
            self.cool = self.taken
            self.end = min(self.steps, math.ceil(self.taken / (1 - _COOL)))

    def described(self) -> dict[str, Any]:
        last = torch.tensor(self.history[-self.window :]).double()
        error = float(last.std() / math.sqrt(len(last))) if len(last) > 1 else 0.0
        return {
            "method": "svi" if self.sampled else "map",
            "steps": self.taken,
            "stopped early": self.taken < self.steps,
            "elbo": float(last.mean()),
            "elbo error": error,
        }


def _batches(count: int, size: int, draw: torch.Generator) -> Iterator[Tensor]:
    """Rows in random order, all of them once before any comes again."""
    left, size = torch.empty(0, dtype=torch.int64), min(size, count)
    while True:
        while len(left) < size:
            left = torch.cat([left, torch.randperm(count, generator=draw)])
        yield left[:size]
        left = left[size:]


def _drawn(
    tangents: Tangents, search: _Search, mean: Tensor, draws: int, draw: torch.Generator
) -> Tensor:
    """Outputs for draws of the weights at the inputs at hand, ``[draws, b, o]``."""
    middle = search.root * search.middle
    if not search.drawing:
        return (mean + tangents.push(middle))[None]
    spread = search.root * search.spread
    steps = [spread * torch.randn(len(spread), generator=draw) for _ in range(-(-draws // 2))]
    if draws == 1:
        return (mean + tangents.push(middle + steps[0]))[None]
    at = mean + tangents.push(middle)
    return _both_sides(at, [tangents.push(step) for step in steps])[:draws]


def _both_sides(middle: Tensor, moves: Sequence[Tensor]) -> Tensor:
    """A middle ``[n, o]`` with each move ``[n, o]`` added and taken away, ``[2 moves, n, o]``."""
    return torch.stack([middle + sign * move for move in moves for sign in (1.0, -1.0)])


def _mean_of(x: Tensor, labels: Tensor, mean: Tensor, noise: float | None) -> Tensor:
    """The mean, float64; data that no posterior can be found for are refused."""
    if len(x) == 0:
        raise TaskError("there are no inputs; give at least one")
    if mean.ndim != 2 or not len(mean) == len(labels) == len(x):
        raise TaskError(
            f"{len(x)} inputs, {len(labels)} labels and a mean of {list(mean.shape)}; give one "
            "label and one row of the mean [n, o] for each input"
        )
    for name, values in (("inputs", x), ("mean", mean), ("labels", labels)):
        if not bool(values.isfinite().all()):
            raise TaskError(f"the {name} hold numbers that are not finite; drop or fill them")
    if noise is None:
        if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
            what = f"{labels.dtype} {list(labels.shape)}"
            raise TaskError(f"labels are whole numbers [n], got {what}")
        for code in (int(labels.min()), int(labels.max())):
            if not 0 <= code < mean.shape[1]:
                last = mean.shape[1] - 1
                raise TaskError(f"labels are codes from 0 to {last}, but there is {code}")
    elif not 0 < noise < math.inf:
        raise SettingsError(f"noise is a variance above 0, got {noise!r}")
    elif labels.shape != mean.shape:
        raise TaskError(f"targets are {list(labels.shape)}, the mean {list(mean.shape)}")
    return mean.detach().to("cpu", torch.float64)
