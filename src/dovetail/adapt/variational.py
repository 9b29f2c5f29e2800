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

With ``centred`` the model is the one of Laplace's approximation: features are taken from their
mean :math:`\bar J` over the data, and a constant :math:`c \sim \mathcal N(0, I)` of each output
takes its place,

.. math:: g(x) = m(x) + (J(x) - \bar J)\, w + c .

:math:`\bar J`, of shape :math:`o \times p`, is computed once; beyond :data:`ROWS` it is the mean
over a sample of the data, which is as good a centre.

Weights that the data constrain only together keep almost their prior variance each, so on a wide
prior :math:`q` is less sure than the posterior, and the mean, found under that noise, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from dovetail.adapt.likelihood import Likelihood
from dovetail.adapt.linear_model import LinearModel, Tangents
from dovetail.core.errors import ContractError, SettingsError, TaskError, TrainingError
from dovetail.core.seeds import generator
from dovetail.linalg.tangent import TangentFeatures

Kind: TypeAlias = Literal["mean-field", "map"]

_WARM = 0.1  # share of the steps at the mean, so that the first draws are not from the prior
_COOL = 0.3  # share of the steps in which the rate falls to zero
ROWS = 2**15
"""Rows (inputs times outputs) over which mean features are taken; more would hardly move them."""

_WINDOWS = 20  # the bound is noisy: progress is judged by means over a twentieth of the steps


@dataclass(frozen=True, eq=False)
class Centre:
    r"""What features are taken from, and the constants in its place.

    Attributes:
        features: :math:`\bar J`, float64 ``[o, p]``.
        mean: Of the constants :math:`c`, float64 ``[o]``.
        deviations: Of the constants, float64 ``[o]``.
    """

    features: Tensor
    mean: Tensor
    deviations: Tensor


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
        centre: Of a centred model.
    """

    model: LinearModel
    weights: Tensor
    deviations: Tensor
    kl: float
    noise: float | None
    elbo: tuple[float, ...]
    diagnostics: Mapping[str, Any]
    centre: Centre | None = None

    @property
    def constant(self) -> Tensor:
        r"""What :math:`J(x) \mu` lacks of the mean's shift: zero, or ``[o]`` if centred."""
        if self.centre is None:
            return torch.zeros((), dtype=torch.float64)
        return self.centre.mean - self.centre.features @ self.weights

    def shift(self, x: Tensor) -> Tensor:
        r"""What the data add to the mean, :math:`J(x) \mu`, float64 ``[n, o]``."""
        return self.model.push(x, self.weights) + self.constant

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
        moves = []
        for _ in range(-(-count // 2)):
            step = self.deviations * torch.randn(len(self.weights), generator=draw).double()
            move = self.model.push(x, step)
            if self.centre is not None:
                drawn = torch.randn(move.shape[1], generator=draw).double()
                move += self.centre.deviations * drawn - self.centre.features @ step
            moves.append(move)
        return _both_sides(middle, moves)[:count]

    def variance(self, features: TangentFeatures) -> Tensor:
        r"""The covariance :math:`J \operatorname{diag}(\sigma^2) J^\top`, ``[n, o, o]``, exact.

        It writes the rows of the Jacobian, a block at a time: :math:`n o p` numbers in all.  For
        many weights estimate it from :meth:`samples`.
        """
        parts = []
        for rows in features.rows():
            if self.centre is not None:
                rows = rows - self.centre.features
            spread = rows * self.deviations
            parts.append(spread @ spread.transpose(1, 2))
        variance = torch.cat(parts)
        if self.centre is not None:
            variance.diagonal(dim1=1, dim2=2).add_(self.centre.deviations.square())
        return variance

    def bound(
        self, x: Tensor, labels: Tensor, mean: Tensor, count: int = 32, seed: int = 0
    ) -> float:
        """The ELBO on data, by so many draws, at temper 1; see :func:`variational`."""
        likelihood = Likelihood(labels, self.noise)
        densities = likelihood.log_density(self.samples(x, mean, count, seed), slice(None))
        return float(densities.sum(-1).mean()) - self.kl


def variational(
    model: LinearModel,
    x: Tensor,
    labels: Tensor,
    *,
    mean: Tensor,
    scales: Mapping[str, float],
    noise: float | None = None,
    centred: bool = False,
    counts: Tensor | None = None,
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
        centred: Whether features are taken from their mean over the data, with a constant of each
            output, of prior variance one, in its place.
        counts: How many times each label counts ``[n]``, above 0; once unless said.
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
    >>> around = LinearModel(torch.nn.Linear(1, 2), "weight")
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
    likelihood = Likelihood(labels, noise, counts)
    middle = _mean_features(model, x, mean.shape[1], counts, seed) if centred else None
    features = _Features(model.tangents(), middle)
    root, constants = model.prior_deviations(scales), 0 if middle is None else len(middle)
    sampled = posterior == "mean-field"
    search = _Search(root, constants, steps, learning_rate, temper, sampled=sampled)
    order, draw = generator(seed, "variational", "order"), generator(seed, "variational", "draws")
    batches = _batches(len(x), batch_size, order)
    while search.taken < search.end:
        rows = next(batches)
        weight = len(x) / len(rows)
        features.tangents.at(x[rows])
        moved = _drawn(features, search, mean[rows], draws, draw)
        gradient = features.pull(likelihood.slope(moved, rows).mean(0))
        curvature = None
        if search.sampled:
            curvature = features.pull(likelihood.drawn_slope(moved, rows, draw)).square() * weight
        fit = weight * float(likelihood.log_density(moved, rows).sum(-1).mean())
        bound = search.step(gradient * weight, curvature, fit)
        if not math.isfinite(bound):
            raise TrainingError(
                f"the bound became {bound} in step {search.taken}; lower learning_rate, or give "
                "the prior smaller scales"
            )
        if progress is not None:
            progress(search.taken, bound)
    sizes = [len(root), constants]
    weights, level = torch.split(search.root * search.middle, sizes)
    deviations, level_deviations = torch.split(search.root * search.spread, sizes)
    return VariationalPosterior(
        model,
        weights,
        deviations,
        search.kl,
        noise,
        tuple(search.history),
        search.described(),
        None if middle is None else Centre(middle, level, level_deviations),
    )


@dataclass(frozen=True, eq=False)
class _Features:
    """Products with the features at hand; vectors are of the weights and, if centred, constants."""

    tangents: Tangents
    middle: Tensor | None

    def push(self, vector: Tensor) -> Tensor:
        """How the outputs move, ``[b, o]``."""
        if self.middle is None:
            return self.tangents.push(vector)
        size = self.middle.shape[1]
        return self.tangents.push(vector[:size]) + (vector[size:] - self.middle @ vector[:size])

    def pull(self, u: Tensor) -> Tensor:
        """What ``u [b, o]`` asks of the weights and constants."""
        pulled = self.tangents.pull(u)
        if self.middle is None:
            return pulled
        total = u.sum(0)
        return torch.cat([pulled - total @ self.middle, total])


def _mean_features(
    model: LinearModel, x: Tensor, outputs: int, counts: Tensor | None, seed: int
) -> Tensor:
    r""":math:`\bar J`, ``[o, p]``, each row as often as it counts: ``o`` pulls over the data."""
    most = max(1, ROWS // outputs)
    if len(x) > most:
        some = torch.randperm(len(x), generator=generator(seed, "variational", "centre"))[:most]
        x, counts = x[some], None if counts is None else counts[some]
    times = torch.ones(len(x), dtype=torch.float64) if counts is None else counts.cpu()
    total = torch.zeros(outputs, model.size, dtype=torch.float64)
    tangents = model.tangents()
    batches = (torch.split(each, model.batch_size) for each in (x, times / times.sum()))
    for inputs, shares in zip(*batches, strict=True):
        tangents.at(inputs)
        for k, each in enumerate(torch.eye(outputs, dtype=torch.float64)):
            total[k] += tangents.pull(shares[:, None] * each)
    return total


class _Search:
    r"""Where :math:`q` is, in units of the prior's standard deviations, and how it moves."""

    def __init__(
        self,
        root: Tensor,
        constants: int,
        steps: int,
        rate: float,
        temper: float,
        *,
        sampled: bool,
    ) -> None:
        self.root = torch.cat([root, torch.ones(constants, dtype=root.dtype)])
        self.steps, self.temper, self.sampled = steps, temper, sampled
        self.parts = [torch.zeros_like(root), torch.zeros(constants, dtype=root.dtype)]
        self.curvature = torch.zeros_like(self.root)
        # |J S^(1/2) v| is at most |v| prior deviations, and Adam moves each entry by its rate;
        # of a constant, each output has one.
        self.rates = [rate / math.sqrt(len(root)), rate]
        groups = [{"params": [part]} for part in self.parts if len(part)]
        self.adam = torch.optim.Adam(groups, betas=(0.9, 0.99), maximize=True)
        self.warm = math.ceil(_WARM * steps)
        self.cool = math.floor((1 - _COOL) * steps)  # the step from which the rate falls
        self.end = steps
        self.window = max(1, steps // _WINDOWS)
        self.means: list[float] = []
        self.history: list[float] = []

    @property
    def middle(self) -> Tensor:
        """Of ``q``, ``[p + o]`` with constants."""
        return torch.cat(self.parts)

    @property
    def taken(self) -> int:
        return len(self.history)

    @property
    def drawing(self) -> bool:
        return self.sampled and self.taken >= self.warm

    @property
    def spread(self) -> Tensor:
        """Deviations of ``q`` over those of the prior."""
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
        slopes = self.root * gradient - self.temper * self.middle
        left = (self.end - self.taken + 1) / (self.end - self.cool + 1)
        size = len(self.parts[0])
        self.parts[0].grad, self.parts[1].grad = slopes[:size], slopes[size:]
        for group, rate in zip(self.adam.param_groups, self.rates, strict=False):
            group["lr"] = rate * min(1.0, left)
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
    features: _Features, search: _Search, mean: Tensor, draws: int, draw: torch.Generator
) -> Tensor:
    """Outputs for draws of the weights at the inputs at hand, ``[draws, b, o]``."""
    middle = search.root * search.middle
    if not search.drawing:
        return (mean + features.push(middle))[None]
    spread = search.root * search.spread
    steps = [spread * torch.randn(len(spread), generator=draw) for _ in range(-(-draws // 2))]
    if draws == 1:
        return (mean + features.push(middle + steps[0]))[None]
    at = mean + features.push(middle)
    return _both_sides(at, [features.push(step) for step in steps])[:draws]


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
