"""A map that has changed since the network was trained: what do new points buy?  (Figure 7a, LIN.)

The source trains a network on a map of malaria of one year and adapts it to points of a later one:
the tangent kernel improves with the points, while the last layer, retrained for as many epochs as
the network was, "stagnates and only has marginally better performance than no-retraining at all";
for six times the epochs it comes close.  The map is not public; a random field of the same kind
stands for it.  Fixed before running:

**Field.**  200 random waves, f(x) = sqrt(2 / 200) sum_k cos(w_k . x + b_k), w ~ N(0, I / 0.4^2), on
[-1, 1]^2: a draw, nearly, of a Gaussian process of length 0.4 and variance 1.  The later field is
0.8 f + 0.6 g with another such g.  Observations have the deviation 0.05 + 0.25 / (1 + exp(-3 x_1)).

**Network.**  2-100-100-2, tanh, gives a mean and the logarithm of a variance; 400 epochs of Adam on
2000 points of the first field, batches of 200, rate 3e-3 falling to zero, by likelihood.

**Adaptation** to m = 10, 30, 100, 300, 1000 points of the later field: none; last layer and the
whole network retrained as the network was (the same epochs, batches and rates; the last layer also
for six times the epochs); and inference with the variances that the network says as known noise
and the prior's scale by evidence: the tangent kernel (constant mean), the linearised network (its
prior mean is the network), and the latter for the last layer alone, which is where retraining it
would end without a budget.  Errors on 1000 new points of the later field, against the field
without noise; likelihood and the coverage of 90 % intervals against observations there.

**Claims**, over five seeds: (1) the mean error of the tangent kernel falls at each m and at 1000
points is below that of the retrained last layer in every seed; (2) the last layer stagnates: at
1000 points its mean error is still at least 0.8 times that without adaptation.  The record holds
if both do.

``--scale small`` is this; ``tiny`` a smoke test; ``paper`` has the source's network, 2-500-500-2,
and ten seeds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import Any

import torch
from linearized.keeping import Found, found_once
from linearized.regression import (
    arguments,
    curves_by_points,
    honest,
    network,
    outputs,
    rmse,
    rows_by_points,
    save_pictures,
    trained,
)
from torch import Tensor, nn

from dovetail.adapt.regressor import LinearizedRegressor
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.core.views import Block, Heatmap

WAVES, LENGTH, KEEPS = 200, 0.4, 0.8
TESTS, BATCH, RATE, LONGER = 1000, 200, 3e-3, 6
STAGNATES = 0.8
NONE, LAST, KERNEL = "no adaptation", "last layer retrained", "tangent kernel"
SOURCE, LAST_BAYES = "network at first", "linearised last layer"


@dataclass(frozen=True)
class Scale:
    """How much is trained, on how much."""

    seeds: int
    width: int
    source: int
    epochs: int
    sizes: tuple[int, ...]


SCALES = {
    "tiny": Scale(1, 20, 200, 5, (10, 30)),
    "small": Scale(5, 100, 2000, 400, (10, 30, 100, 300, 1000)),
    "paper": Scale(10, 500, 2000, 400, (10, 30, 100, 300, 1000)),
}


class Mean(nn.Module):
    """The mean alone, of a network that gives a mean and the logarithm of a variance."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """``[n, 1]``."""
        said: Tensor = self.body(x)
        return said[:, :1]


class Field:
    """The field at two times, and noisy observations of it."""

    def __init__(self, seed: int) -> None:
        draw = generator(seed, "field")
        self.frequencies = torch.randn(2, 2, WAVES, generator=draw) / LENGTH
        self.phases = 2 * torch.pi * torch.rand(2, 1, WAVES, generator=draw)

    def truth(self, x: Tensor, later: bool) -> Tensor:
        """The field at ``[n, 2]``, without noise."""
        waves: Tensor = torch.cos(x @ self.frequencies + self.phases).sum(2) * (2 / WAVES) ** 0.5
        return KEEPS * waves[0] + (1 - KEEPS**2) ** 0.5 * waves[1] if later else waves[0]

    def observed(self, n: int, seed: int, what: str, later: bool) -> tuple[Tensor, Tensor]:
        """Points drawn at random and observations there."""
        draw = generator(seed, what)
        x = 2 * torch.rand(n, 2, generator=draw) - 1
        return x, self.truth(x, later) + deviation(x) * torch.randn(n, generator=draw)


def deviation(x: Tensor) -> Tensor:
    return 0.05 + 0.25 * torch.sigmoid(3 * x[:, 0])


def likelihood(said: Tensor, y: Tensor) -> Tensor:
    """Half the squared error in deviations and the logarithm of the deviation."""
    centre, log_variance = said[:, 0], said[:, 1].clamp(-12, 6)
    return ((y - centre).square() * (-log_variance).exp() + log_variance).mean() / 2


@torch.no_grad()
def variances(net: nn.Module, x: Tensor) -> Tensor:
    said: Tensor = net(x)
    return said[:, 1].double().clamp(-12, 6).exp()


def source_network(field: Field, seed: int, scale: Scale) -> nn.Module:
    x, y = field.observed(scale.source, seed, "source", later=False)
    net = network(2, scale.width, scale.width, 2, activation=nn.Tanh, seed=seed)
    return trained(
        net, x, y, epochs=scale.epochs, rate=RATE, batch_size=BATCH, loss=likelihood, seed=seed
    )


def retrained(
    net: nn.Module, x: Tensor, y: Tensor, epochs: int, params: tuple[str, ...] | None
) -> nn.Module:
    return trained(
        net, x, y, epochs=epochs, rate=RATE, batch_size=BATCH, loss=likelihood, params=params
    )


def inferred(net: nn.Module, x: Tensor, y: Tensor, **options: Any) -> LinearizedRegressor:
    asked = {"mean": "constant", "method": "function"} | options
    return LinearizedRegressor(Mean(net), **asked).fit(x, y, noise=variances(net, x))


def predictions(
    net: nn.Module, x: Tensor, y: Tensor, at: Tensor, scale: Scale
) -> dict[str, tuple[Any, Any]]:
    """Means and deviations of observations at new points, by every way to adapt."""
    head = ("4.weight", "4.bias")
    networks = {
        NONE: net,
        LAST: retrained(net, x, y, scale.epochs, head),
        f"{LAST}, {LONGER} times as long": retrained(net, x, y, LONGER * scale.epochs, head),
        "network retrained": retrained(net, x, y, scale.epochs, None),
    }
    said: dict[str, tuple[Any, Any]] = {
        name: (outputs(each, at), variances(each, at).sqrt()) for name, each in networks.items()
    }
    models = {
        KERNEL: inferred(net, x, y),
        "linearised network": inferred(net, x, y, mean="network"),
        LAST_BAYES: inferred(net, x, y, mean="network", params="body.4.*"),
    }
    noise = variances(net, at)
    for name, model in models.items():
        said[name] = model.predict(at, return_std=True, noise=noise)
    return said


def found_for(seed: int, scale: Scale) -> Found:
    field = Field(seed)
    net = source_network(field, seed, scale)
    at, new = field.observed(TESTS, seed, "tests", later=True)
    before, _ = field.observed(TESTS, seed, "tests before", later=False)
    xs, ys = field.observed(max(scale.sizes), seed, "points", later=True)
    truth = field.truth(at, later=True)
    found = {
        f"{SOURCE}/0/rmse": rmse(outputs(net, before), field.truth(before, later=False)),
        f"{SOURCE}/0/noise ratio": float((variances(net, at).sqrt() / deviation(at)).mean()),
    }
    for size in scale.sizes:
        said = predictions(net, xs[:size], ys[:size], at, scale)
        for name, (means, std) in said.items():
            found[f"{name}/{size}/rmse"] = rmse(means, truth)
            found |= {f"{name}/{size}/{k}": v for k, v in honest(means, std, new).items()}
    return found


def maps(scale: Scale) -> tuple[Block, ...]:
    """The later field and what is made of 100 points of it, of the first seed."""
    field, side = Field(0), 24
    net = source_network(field, 0, scale)
    ticks = torch.linspace(-1, 1, side)
    at = torch.cartesian_prod(ticks, ticks)
    x, y = field.observed(max(scale.sizes), 0, "points", later=True)
    some = min(100, max(scale.sizes))
    said = predictions(net, x[:some], y[:some], at, scale)
    shown = {
        "The field at first": field.truth(at, later=False),
        "The field later": field.truth(at, later=True),
        f"Tangent kernel, {some} points": said[KERNEL][0],
        f"Last layer retrained, {some} points": said[LAST][0],
        f"Deviation of the tangent kernel, {some} points": said[KERNEL][1],
    }
    names = tuple(f"{tick:.2f}" for tick in ticks.tolist())
    blocks = []
    for title, values in shown.items():
        grid = torch.as_tensor(values).double().reshape(side, side).tolist()
        blocks.append(
            Heatmap(
                title, names, names, tuple(tuple(row) for row in grid), "first", "second", ".1f"
            )
        )
    return tuple(blocks)


def main() -> None:
    args = arguments(__doc__, "spatial_field")
    scale = SCALES[args.scale]
    folder, protocol = args.kept / args.scale, asdict(scale) | {"rate": RATE, "keeps": KEEPS}
    del protocol["seeds"]
    runs = [
        found_once(folder, f"seed {seed}", protocol, partial(found_for, seed, scale))
        for seed in range(scale.seeds)
    ]
    most = scale.sizes[-1]
    average = {key: mean(found[key] for found in runs) for key in runs[0] if key.endswith("/rmse")}
    falls = all(
        average[f"{KERNEL}/{more}/rmse"] < average[f"{KERNEL}/{less}/rmse"]
        for less, more in pairwise(scale.sizes)
    )
    ahead = all(found[f"{KERNEL}/{most}/rmse"] < found[f"{LAST}/{most}/rmse"] for found in runs)
    left = average[f"{LAST}/{most}/rmse"] / average[f"{NONE}/{most}/rmse"]
    verdicts = {
        "the tangent kernel improves with the points and ends below the last layer": falls
        and ahead,
        f"the last layer stagnates (at most points {left:.2f} of the error without)": left
        >= STAGNATES,
    }
    rows = ({"claim": k, "holds": v} for k, v in verdicts.items())
    settings = environment(threads=args.threads, scale=args.scale, seeds=scale.seeds)
    evidence = Evidence(
        claim="with points of a changed field the tangent kernel improves, and the retrained last "
        "layer stagnates",
        holds=all(verdicts.values()),
        rows=(*rows, *rows_by_points(runs)),
        command=f"python reproduce/spatial_field.py --threads {args.threads}",
        settings=settings,
    )
    evidence.save(args.output)
    methods = [
        name for name in dict.fromkeys(key.split("/")[0] for key in runs[0]) if name != SOURCE
    ]
    title, label = "Error on the later field", "points of the later field"
    pictured = (
        curves_by_points(runs, methods, "rmse", title, label),
        curves_by_points(runs, methods, "coverage", "What 90 % intervals hold", label),
        *maps(scale),
    )
    save_pictures(args.output, "A field that has changed", pictured, settings)
    for row in evidence.rows:
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    print("holds" if evidence.holds else "does not hold")


if __name__ == "__main__":
    main()
