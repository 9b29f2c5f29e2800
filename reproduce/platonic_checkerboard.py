"""A checkerboard in closed form: width, depth and precision.  (Section 7.7, EFF.)

5000 points on a board of 8 x 8 squares.  The source says that backpropagation is always stuck at
51 to 53 %, and fits them in closed form: three hidden layers (ReLU) reach 95.62 % at 1024 units
and 99.84 % at 2048 (five tries, alpha = 0.08, beta = 200, Figure 7.11); four layers of 2500 units
reach 99.88 to 100 % and 500 layers of 300 reach 100 %, in both precisions and for (alpha, beta) =
(0.06, 25) and (0.08, 200), one try, with a mean squared error down to 2.6e-22 (Figure 7.10).
Fixed before running:

**Protocol.**  A seed draws the points and the projections.  Accuracies and errors are on the
training points, as there: the source asks whether the points can be memorised.

- Widths 2, 4, ..., 2048 by our code with the source's settings (no penalty, solver "pinv"; the
  tries compared by Cholesky); three seeds up to 256 units, one above.  Beside it the same with the
  label weight chosen by our rule (no penalty), and our defaults, whose penalty a layer is chosen by
  generalised cross-validation and is not meant to memorise; with the accuracy on 5000 new points.
- 4 x 2500 and 500 x 300 by the source's recipe as it is printed (torch.linalg.pinv, a column of
  ones), both precisions, both scalings, one seed; and 4 x 2500 with our label weight, no penalty.
- Backpropagation: 2-256-256-256-1, ReLU, batches of 128, 100 epochs, logistic loss, by SGD
  (momentum 0.9, rate 0.1) and by Adam (rate 0.001), the latter also with inputs times eight (a
  square has side one); three seeds.

**Claims.**  (1) 1024 units: within one point of 95.62; 2048: within half a point of 99.84.  (2)
All four 4 x 2500 have at least 99.5 %.  (3) All four 500 x 300 have at least 99.9 %, and one in 64
bits a mean squared error under 1e-15.  (4) Backpropagation stays at 55 % or less, for either
optimiser and scale of the inputs (mean of the seeds).  The record holds if all do; each is
reported.

``--scale small`` is this; ``tiny`` a smoke test; ``paper`` has three seeds everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import mean, stdev
from typing import Any

import torch
from linearized.keeping import Found, found_once
from linearized.regression import arguments, network, save_pictures
from platonic.literal import Recipe, followed
from platonic.toys import POINTS, accuracy, checkerboard
from torch import nn

from dovetail.closed_form.platonic import platonic
from dovetail.closed_form.rows import HeldRows
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.core.views import Figure, Series

WIDTHS = {"tiny": (2, 8), "small": tuple(2**i for i in range(1, 12))}
DEEP = {
    "tiny": {"4 x 20": (20,) * 4},
    "small": {"4 x 2500": (2500,) * 4, "500 x 300": (300,) * 500},
}
SAMPLE = {"tiny": 200, "small": POINTS, "paper": POINTS}
WIDTHS["paper"], DEEP["paper"] = WIDTHS["small"], DEEP["small"]
SEVERAL, WIDE = 3, 256
SCALINGS = ((0.06, 25.0), (0.08, 200.0))
NEVER = {"solver": "pinv", "ridge": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "source's settings": {"target_scale": 0.08, "label_weight": 200.0, **NEVER},
    "our label weight, no penalty": NEVER,
    "ours, defaults": {},
}
DESCENTS = {"SGD": (0.1, 1.0), "Adam": (1e-3, 1.0), "Adam, inputs x 8": (1e-3, 8.0)}
PRINTED = {1024: 95.62, 2048: 99.84}
NEAR = {1024: 1.0, 2048: 0.5}
STUCK = 55.0


def wide(width: int, settings: dict[str, Any], depth: int, points: int, seed: int) -> Found:
    """Some hidden layers of one width, by our code."""
    x, y = checkerboard(seed, points)
    new, colours = checkerboard(10_000 + seed, points)
    net = platonic(HeldRows(x, y), (width,) * depth, activation=torch.relu, seed=seed, **settings)
    said = net(x)
    return {
        "accuracy": accuracy(said, y),
        "mse": float((said - y).square().mean()),
        "new": accuracy(net(new), colours),
        "seconds": sum(fit.seconds for fit in net.fits),
    }


def deep(widths: tuple[int, ...], recipe: Recipe, points: int, seed: int) -> Found:
    """The source's recipe: the error after each of some layers, and the last accuracy."""
    x, y = checkerboard(seed, points)
    fit = followed(x, y, widths, torch.relu, recipe, seed)
    found = {"accuracy": accuracy(fit.outputs, y), "layers": float(len(fit.distances))}
    shown = {1, 2, 3, 4, *range(25, len(widths) + 1, 25)}
    for layer, distance in enumerate(fit.distances, 1):
        if layer in shown:
            found[f"layer {layer}"] = distance
    if fit.distances:
        found |= {"lowest": min(fit.distances), "mse": fit.distances[-1]}
    return found


def descended(by: str, epochs: int, points: int, seed: int) -> Found:
    rate, scale = DESCENTS[by]
    x, y = (each.float() for each in checkerboard(seed, points))
    net = network(2, 256, 256, 256, 1, activation=nn.ReLU, seed=seed)
    optimiser: torch.optim.Optimizer
    if by == "SGD":
        optimiser = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    else:
        optimiser = torch.optim.Adam(net.parameters(), lr=rate)
    draw = generator(seed, "batches")
    for _ in range(epochs):
        for rows in torch.randperm(points, generator=draw).split(128):
            optimiser.zero_grad()
            nn.functional.soft_margin_loss(net(scale * x[rows]), y[rows]).backward()
            optimiser.step()
    with torch.no_grad():
        return {"accuracy": accuracy(net(scale * x), y)}


def row_of(runs: list[Found], **named: Any) -> dict[str, Any]:
    row = {**named, "seeds": len(runs)}
    for measure in ("accuracy", "new", "mse", "lowest", "layers", "seconds"):
        values = [found[measure] for found in runs if measure in found]
        if values:
            row[measure] = mean(values)
        if measure == "accuracy" and len(values) > 1:
            row["deviation"] = stdev(values)
    return row


def pictures(widths: dict[tuple[str, int], list[Found]], layers: dict[str, Found]) -> list[Figure]:
    by_width = []
    for name in SETTINGS:
        found = {w: [f["accuracy"] for f in runs] for (n, w), runs in widths.items() if n == name}
        x = tuple(float(w) for w in found)
        by_width.append(Series(name, x, tuple(mean(each) for each in found.values())))
    by_layer = []
    for name, run in layers.items():
        keys = [key for key in run if key.startswith("layer ")]
        x = tuple(float(key.removeprefix("layer ")) for key in keys)
        by_layer.append(Series(name, x, tuple(run[key] for key in keys)))
    title = "Checkerboard, three hidden layers: training accuracy by width"
    return [
        Figure("line", title, tuple(by_width), "units a layer", "accuracy (%)", log_x=True),
        Figure("line", "Error by layer", tuple(by_layer), "layer", "mse", log_y=True, log_x=True),
    ]


def main() -> None:
    args = arguments(__doc__, "platonic_checkerboard")
    scale, folder = args.scale, args.kept / args.scale
    points = SAMPLE[scale]

    def kept(name: str, make: Callable[..., Found], seeds: int) -> list[Found]:
        return [
            found_once(
                folder, f"{name} seed {seed}", {"points": points}, partial(make, points, seed)
            )
            for seed in range(seeds)
        ]

    several = 1 if scale == "tiny" else SEVERAL
    descents = {
        by: kept(f"descent {by}", partial(descended, by, 1 if scale == "tiny" else 100), several)
        for by in DESCENTS
    }
    widths = {}
    for width in WIDTHS[scale]:
        for name, settings in SETTINGS.items():
            seeds = several if width <= WIDE or scale == "paper" else 1
            make = partial(wide, width, settings, 3)
            widths[name, width] = kept(f"width {width} {name}", make, seeds)
    layers = {}
    for shape, chain in reversed(DEEP[scale].items()):
        for alpha, beta in SCALINGS:
            for bits in (32, 64):
                make = partial(deep, chain, Recipe(alpha, beta, bits=bits))
                name = f"{shape}, alpha {alpha:g}, beta {beta:g}, {bits} bits"
                layers[name] = kept(name, make, several if scale == "paper" else 1)
    shape, chain = next(iter(DEEP[scale].items()))
    make = partial(wide, chain[0], {**NEVER, "tries": 1}, len(chain))
    automatic = kept(f"{shape} our label weight", make, 1)

    source = {w: mean(f["accuracy"] for f in widths["source's settings", w]) for w in WIDTHS[scale]}
    shallow = [runs[0] for name, runs in layers.items() if name.startswith("4 x")]
    chains = {name: runs[0] for name, runs in layers.items() if name.startswith("500 x")}
    verdicts = {
        "widths 1024 and 2048 as printed": all(
            abs(source.get(width, 0.0) - printed) <= NEAR[width]
            for width, printed in PRINTED.items()
        ),
        "4 x 2500 have 99.5 % or more": all(found["accuracy"] >= 99.5 for found in shallow),
        "500 x 300 have 99.9 % or more, and one an error under 1e-15": bool(chains)
        and all(found["accuracy"] >= 99.9 for found in chains.values())
        and any(f.get("lowest", 1.0) < 1e-15 for name, f in chains.items() if "64" in name),
        "backpropagation is stuck at 55 % or less": all(
            mean(found["accuracy"] for found in runs) <= STUCK for runs in descents.values()
        ),
    }
    rows: list[dict[str, Any]] = [
        {"claim": claim, "holds": holds} for claim, holds in verdicts.items()
    ]
    for (name, width), runs in widths.items():
        row = row_of(runs, network=f"3 x {width}", method=name)
        if name == "source's settings" and width in PRINTED:
            row["printed"] = PRINTED[width]
        rows.append(row)
    for name, runs in layers.items():
        shape, *settings = name.split(", ")
        printed = "99.88-100" if shape.startswith("4 x") else "100"
        named = {"network": shape, "method": f"source, {', '.join(settings)}"}
        rows.append(row_of(runs, **named) | {"printed": printed})
    shape = next(iter(DEEP[scale]))
    rows.append(row_of(automatic, network=shape, method="our label weight, no penalty, one try"))
    for by, runs in descents.items():
        rows.append(row_of(runs, network="3 x 256", method=by) | {"printed": "51-53"})
    settings = environment(threads=args.threads, scale=scale, points=points)
    evidence = Evidence(
        claim="a checkerboard is memorised in closed form as section 7.7 says, by width and by "
        "depth, where backpropagation is stuck",
        holds=all(verdicts.values()),
        rows=tuple(rows),
        command=f"python reproduce/platonic_checkerboard.py --threads {args.threads}",
        settings=settings,
    )
    evidence.save(args.output)
    drawn = pictures(widths, {name: runs[0] for name, runs in layers.items()})
    save_pictures(args.output, "A checkerboard in closed form", tuple(drawn), settings)
    for row in rows:
        print({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()})
    print("holds" if evidence.holds else "does not hold")


if __name__ == "__main__":
    main()
