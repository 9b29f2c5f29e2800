"""What do the error bars of linearised networks look like?  (Figure 3 of the source.)

The source shows pictures; here is what it reads from them, as numbers, fixed before running.

**Widths.**  One hidden layer of 50, 500 or 5000 rectified units with torch's initial weights, as it
is and trained (Adam, rate 3e-3 falling to zero, 2000 steps on all points) on 20 points
x ~ U(-1, 1), y = sin(4 x) + N(0, 0.05^2).  The linearised network: weights around those of the
network with the source's prior, variance 1 each, and the noise known.  "Inside" is a grid over the
range of the points, "outside" is 2 <= |x| <= 3; variances are of the function and averaged over
the grid.

**Shapes.**  Three tanh networks of three hidden layers and 20 501 weights each, (100, 100, 100),
(170, 100, 30) and (30, 100, 170), trained likewise on 30 points x ~ U(-4, 4), y = sin(x) + N(0,
0.05^2); outside is 6 <= |x| <= 8.  Each shape is trained from two initial weights: how far the
same shape lands from itself is what a difference of shapes has to be held against.

**Claims**, over five seeds that draw points and weights:

1. the variance outside grows with the width, 50 < 500 < 5000, untrained and trained, in every seed;
2. training lowers the variance inside, at each width in at least four of five seeds;
3. deviations outside are at least 3 times those inside, in every network;
4. with 5000 units the mean is within 0.15 of the curve inside (root mean square, mean of seeds),
   untrained and trained; so are the three shapes;
5. the means of two shapes differ outside at least 5 times as much as inside, in every seed.

The record holds if all five do.  Beside it: the other prior means (zero, and the linearised network
with weights around zero), the prior and noise by evidence, the coverage of 90 % intervals for new
observations inside and outside, and differences outside of a shape from itself.

``--scale small`` is this; ``tiny`` a smoke test; ``paper`` has 20 seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import Any

import torch
from linearized.keeping import Found, found_once
from linearized.regression import (
    arguments,
    honest,
    network,
    outputs,
    rmse,
    save_pictures,
    spread_of,
    trained,
)
from torch import Tensor, nn

from dovetail.adapt.regressor import LinearizedRegressor
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import derived_seed, generator
from dovetail.core.views import Block, Figure, Series

NOISE = 0.05
SEEDS = {"tiny": 2, "small": 5, "paper": 20}
STEPS = {"tiny": 50, "small": 2000, "paper": 2000}
WIDTHS = (50, 500, 5000)
SHAPES = ((100, 100, 100), (170, 100, 30), (30, 100, 170))
STATES = ("untrained", "trained")
APART, FITS, DIFFER, MOST_SEEDS = 3.0, 0.15, 5.0, 0.8


class Curve:
    """Points of a noisy curve, and grids inside and outside of them."""

    def __init__(self, of: Callable[[Tensor], Tensor], half: float, n: int, seed: int) -> None:
        draw = generator(seed, "points", n)
        self.of, self.half, self.draw = of, half, draw
        self.x = (2 * torch.rand(n, 1, generator=draw) - 1) * half
        self.y = self.observed(self.x)
        self.inside = torch.linspace(float(self.x.min()), float(self.x.max()), 200)[:, None]
        far = torch.linspace(2 * half, 3 * half, 50) if half < 2 else torch.linspace(6, 8, 50)
        self.outside = torch.cat([-far.flip(0), far])[:, None]

    def truth(self, x: Tensor) -> Tensor:
        """The curve without noise."""
        return self.of(x[:, 0])

    def observed(self, x: Tensor) -> Tensor:
        """New observations of it."""
        return self.truth(x) + NOISE * torch.randn(len(x), generator=self.draw)


def bumps(seed: int) -> Curve:
    return Curve(lambda x: torch.sin(4 * x), 1.0, 20, seed)


def wave(seed: int) -> Curve:
    return Curve(torch.sin, 4.0, 30, seed)


def linearised(net: nn.Module, curve: Curve, **options: Any) -> LinearizedRegressor:
    asked = {"mean": "network", "prior": 1.0, "noise": NOISE**2, "method": "function"} | options
    return LinearizedRegressor(net, **asked).fit(curve.x, curve.y)


def found_in(net: nn.Module, curve: Curve) -> Found:
    fit = linearised(net, curve)
    tuned = linearised(net, curve, prior="evidence", noise="evidence")
    found: Found = {}
    for where, grid in (("inside", curve.inside), ("outside", curve.outside)):
        means, latent = fit.predict(grid, return_std=True, latent=True)
        found[f"variance {where}"] = float((latent**2).mean())
        found[f"deviation {where}"] = float(latent.mean())
        found[f"rmse {where}"] = rmse(means, curve.truth(grid))
        new = curve.observed(grid)
        deviations = (latent**2 + NOISE**2) ** 0.5
        found[f"coverage {where}"] = honest(means, deviations, new)["coverage"]
        means, deviations = tuned.predict(grid, return_std=True)
        found[f"coverage {where}, by evidence"] = honest(means, deviations, new)["coverage"]
        found[f"rmse {where}, by evidence"] = rmse(means, curve.truth(grid))
    for other in ("zero", "origin"):
        means = linearised(net, curve, mean=other).predict(curve.inside)
        found[f"rmse inside, mean {other}"] = rmse(means, curve.truth(curve.inside))
    found["rmse inside, network"] = rmse(outputs(net, curve.inside), curve.truth(curve.inside))
    return found


def one_layer(curve: Curve, width: int, seed: int, steps: int) -> dict[str, nn.Module]:
    net = network(1, width, 1, activation=nn.ReLU, seed=seed)
    return {"untrained": net, "trained": trained(net, curve.x, curve.y, epochs=steps, rate=3e-3)}


def three_layers(
    curve: Curve, shape: tuple[int, ...], start: int, seed: int, steps: int
) -> nn.Module:
    begin = derived_seed(seed, "start", start)
    net = network(1, *shape, 1, activation=nn.Tanh, seed=begin)
    return trained(net, curve.x, curve.y, epochs=steps, rate=3e-3)


def by_width(seed: int, steps: int) -> Found:
    curve = bumps(seed)
    return {
        f"{state}/{width}/{name}": value
        for width in WIDTHS
        for state, net in one_layer(curve, width, seed, steps).items()
        for name, value in found_in(net, curve).items()
    }


def by_shape(seed: int, steps: int) -> Found:
    curve = wave(seed)
    found: Found = {}
    means = {}
    for shape in SHAPES:
        for start in (0, 1):
            net = three_layers(curve, shape, start, seed, steps)
            if start == 0:
                found |= {f"{named(shape)}/{k}": v for k, v in found_in(net, curve).items()}
            fit = linearised(net, curve)
            means[shape, start] = [fit.predict(at) for at in (curve.inside, curve.outside)]
    for where, side in (("inside", 0), ("outside", 1)):
        others = [
            rmse(means[one, 0][side], means[two, 0][side])
            for i, one in enumerate(SHAPES)
            for two in SHAPES[i + 1 :]
        ]
        selves = [rmse(means[shape, 0][side], means[shape, 1][side]) for shape in SHAPES]
        found[f"between shapes/{where}, least"] = min(others)
        found[f"between shapes/{where}, most"] = max(others)
        found[f"between shapes/{where}"] = mean(others)
        found[f"between starts/{where}"] = mean(selves)
    return found


def named(shape: tuple[int, ...]) -> str:
    return "-".join(map(str, shape))


def band(net: nn.Module, curve: Curve, name: str, grid: Tensor) -> Series:
    means, std = linearised(net, curve).predict(grid, return_std=True, latent=True)
    x = tuple(float(value) for value in grid[:, 0])
    low, high = (means - 2 * std).tolist(), (means + 2 * std).tolist()
    return Series(name, x, tuple(means.tolist()), tuple(low), tuple(high))


def pictures(steps: int) -> tuple[Block, ...]:
    """The three panels of the figure, of the first seed: means and two deviations."""
    curve, blocks = bumps(0), []
    grid = torch.linspace(-2, 2, 81)[:, None]
    nets = {width: one_layer(curve, width, 0, steps) for width in WIDTHS}
    deviations = []
    for state in STATES:
        bands = [band(nets[w][state], curve, f"{w} units", grid) for w in reversed(WIDTHS)]
        title = f"Linearised networks of one layer, {state}: mean and two deviations"
        blocks.append(Figure("line", title, (*bands, points(curve)), "x", "y"))
        for each in bands:
            half = tuple((up - low) / 4 for low, up in zip(each.low, each.high, strict=True))
            deviations.append(Series(f"{each.name}, {state}", each.x, half))
    title = "The same deviations: what 20 points between -1 and 1 leave open"
    blocks.append(Figure("line", title, tuple(deviations), "x", "deviation", log_y=True))
    curve = wave(0)
    grid = torch.linspace(-8, 8, 97)[:, None]
    bands = tuple(
        band(three_layers(curve, shape, 0, 0, steps), curve, named(shape), grid) for shape in SHAPES
    )
    title = "Linearised tanh networks of 20 501 weights, trained: mean and two deviations"
    blocks.append(Figure("line", title, (*bands, points(curve)), "x", "y"))
    return tuple(blocks)


def points(curve: Curve) -> Series:
    order = curve.x[:, 0].argsort()
    return Series("data", tuple(curve.x[order, 0].tolist()), tuple(curve.y[order].tolist()))


def claims(wide: list[Found], shaped: list[Found]) -> dict[str, bool]:
    enough = MOST_SEEDS * len(wide)
    networks = [f"{state}/{width}" for state in STATES for width in WIDTHS]
    lowered = [
        sum(f[f"trained/{w}/variance inside"] < f[f"untrained/{w}/variance inside"] for f in wide)
        for w in WIDTHS
    ]
    apart = [
        found[f"{name}/deviation outside"] / found[f"{name}/deviation inside"]
        for names, runs in ((networks, wide), ([named(s) for s in SHAPES], shaped))
        for name in names
        for found in runs
    ]
    fits = [mean(f[f"{s}/{WIDTHS[-1]}/rmse inside"] for f in wide) for s in STATES]
    fits += [mean(f[f"{named(shape)}/rmse inside"] for f in shaped) for shape in SHAPES]
    return {
        "the variance outside grows with the width": all(
            found[f"{state}/{less}/variance outside"] < found[f"{state}/{more}/variance outside"]
            for found in wide
            for state in STATES
            for less, more in pairwise(WIDTHS)
        ),
        "training lowers the variance inside": all(count >= enough for count in lowered),
        "deviations grow away from the data": min(apart) >= APART,
        "the mean fits": max(fits) <= FITS,
        "shapes differ outside": all(
            found["between shapes/outside, least"] >= DIFFER * found["between shapes/inside, most"]
            for found in shaped
        ),
    }


def rows_of(runs: list[Found]) -> list[dict[str, Any]]:
    """A row for each network, its measures as means over the seeds with deviations."""
    rows: dict[str, dict[str, Any]] = {}
    for key in runs[0]:
        name, measure = key.rsplit("/", 1)
        values = spread_of([found[key] for found in runs], measure)
        values.pop(f"{measure}, median")
        if not measure.startswith("variance"):  # many columns: the spreads of the main ones do
            values.pop(f"{measure}, deviation")
        rows.setdefault(name, {"network": name.replace("/", " ")}).update(values)
    return list(rows.values())


def main() -> None:
    args = arguments(__doc__, "linearized_bands")
    steps, seeds = STEPS[args.scale], range(SEEDS[args.scale])
    folder, protocol = args.kept / args.scale, {"steps": steps, "noise": NOISE}
    wide = [
        found_once(folder, f"widths {seed}", protocol, partial(by_width, seed, steps))
        for seed in seeds
    ]
    shaped = [
        found_once(folder, f"shapes {seed}", protocol, partial(by_shape, seed, steps))
        for seed in seeds
    ]
    verdicts = claims(wide, shaped)
    settings = environment(threads=args.threads, scale=args.scale, seeds=len(seeds))
    evidence = Evidence(
        claim="the error bars of linearised networks grow with the width and away from the data, "
        "shrink by training, and depend on the shape where there are no data",
        holds=all(verdicts.values()),
        rows=(
            *({"claim": claim, "holds": holds} for claim, holds in verdicts.items()),
            *rows_of(wide),
            *rows_of(shaped),
        ),
        command=f"python reproduce/linearized_bands.py --threads {args.threads}",
        settings=settings,
    )
    evidence.save(args.output)
    save_pictures(args.output, "Bands of linearised networks", pictures(steps), settings)
    print(verdicts, "holds" if evidence.holds else "does not hold")


if __name__ == "__main__":
    main()
