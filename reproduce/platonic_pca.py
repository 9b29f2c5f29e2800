"""What is the source's platonic PCA?  Readings of it beside the printed figures.  (7.8-7.9, EFF.)

Platonic PCA takes the principal components of A = [Z | beta Y] for the projection P, and T = A P
for the target.  As it is written it does not give what is printed: at width 392 of Table 7.2 it
has 62 to 87 %, depending on the units of the pixels, where 90.63 % is printed.  Neither the
units, nor the centring of the components, nor the bias are stated.  So first the units are asked of
the two rows that hardly depend on anything else, then a list of readings is held against the row.

**Protocol.**  60 000 images for fitting, 10 000 for testing, ReLU, one-hot targets, a penalty of 50
000 on all weights, beta = 10 000 for platonic PCA and 10 for random P, as printed; float64; widths
98, 196, 392 and 784.  A reading *explains* a row of Table 7.2 if its training and its test
accuracies are within half a point of the printed ones at all four widths; rows of random methods
are means over three draws.

1. **Units** (``platonic.images.UNITS``): random W and sorted PCA in each.
2. **Random P** in the units found in 1 (standardised), with beta = 10 and with 10 squared.
3. **Platonic PCA**, one hidden layer: the readings of ``platonic.components.READINGS``.
4. **Two hidden layers**, 784-392 (Table 7.3, penalty 0.03): ``platonic.components.DEEP_READINGS``
   with beta = 1e7 (1e6 to 8e7 are printed) and the importance of rows with both printed decays,
   0.02 and 0.2.  A reading explains this row if with one of the two both accuracies are within half
   a point.
5. **A large beta** (7.9.3): 2500-1500-500 has 90.19 % on the training images with beta = 10 and
   99.14 % with 1e7, in the source; here with beta in the target only, importance included (the
   penalty is not printed: 0.03).  At scale ``small`` on the first 15 000 images.

The readings were collected while an explanation was looked for, with the printed figures in sight:
that is no choice of a model, and says nothing about how good platonic PCA can be.

**Claim.**  Some reading explains the row of platonic PCA in Table 7.2.

``--scale small`` is this; ``tiny`` a smoke test on digits; ``paper`` has all images in 5.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from statistics import mean
from typing import Any

import torch
from linearized.keeping import Found, found_once
from linearized.regression import arguments
from platonic.components import (
    DEEP_READINGS,
    READINGS,
    TARGET_ONLY,
    Reading,
    components,
    deterministic,
    drawn,
    one_layer,
    projected,
    sorted_rows,
    sums_of,
    weighed,
)
from platonic.images import UNITS, Images, images

from dovetail.core.evidence import Evidence, environment

WIDTHS = {"tiny": (8, 16), "small": (98, 196, 392, 784), "paper": (98, 196, 392, 784)}
PRINTED = {
    "random W": ((76.32, 77.28), (83.17, 83.86), (87.98, 88.26), (91.66, 91.52)),
    "random P": ((88.84, 89.19), (90.41, 90.55), (91.98, 91.89), (93.63, 93.34)),
    "platonic PCA": ((88.85, 89.21), (89.52, 89.76), (90.58, 90.63), (91.53, 91.36)),
    "sorted PCA": ((85.64, 86.19), (90.31, 90.71), (92.89, 93.14), (94.87, 94.64)),
}
"""Training and test accuracy for each width: Table 7.2."""
TWO_LAYERS = (97.04, 96.55)
DEEP = {"tiny": (16, 8), "small": (784, 392), "paper": (784, 392)}
DEEPER = {"tiny": (24, 16, 8), "small": (2500, 1500, 500), "paper": (2500, 1500, 500)}
FEWER = {"tiny": 500, "small": 15_000, "paper": 60_000}
RIDGE, DEEP_RIDGE, DRAWS = 5e4, 0.03, 3
BETA, DEEP_BETA, DECAYS = 1e4, 1e7, (0.02, 0.2)
NEAR = 0.5


@cache
def loaded(scale: str, units: str) -> Images:
    return images("digits" if scale == "tiny" else "mnist", units)


def flat(found: dict[int, dict[str, float]]) -> Found:
    return {
        f"{width}/{split}": accuracy
        for width, pair in found.items()
        for split, accuracy in pair.items()
    }


def drawn_units(scale: str, units: str, beta: float | None) -> Found:
    """Random W, or random P with a beta: means over draws."""
    data, widths = loaded(scale, units), WIDTHS[scale]
    sums = sums_of(data.x[: data.fitted], data.y[: data.fitted])
    runs = []
    for seed in range(DRAWS):
        p = drawn(sums, max(widths), seed)
        random = p[: len(sums.features)]
        weights = random if beta is None else projected(sums, p, beta, RIDGE)
        runs.append(flat(one_layer(data, weights, widths, RIDGE)))
    return {name: mean(run[name] for run in runs) for name in runs[0]}


def picked(scale: str, units: str) -> Found:
    data = loaded(scale, units)
    x = data.x[: data.fitted]
    sums, found = sums_of(x, data.y[: data.fitted]), {}
    for width in WIDTHS[scale]:
        found |= one_layer(data, sorted_rows(x, sums, width), (width,), RIDGE)
    return flat(found)


def single(scale: str, reading: Reading) -> Found:
    data, widths = loaded(scale, reading.units), WIDTHS[scale]
    ridge = RIDGE if reading.ridge is None else reading.ridge
    sums = sums_of(data.x[: data.fitted], data.y[: data.fitted])
    projection = components(sums, reading, BETA, max(widths))
    weights = projected(sums, projection, BETA**reading.in_target, ridge)
    return flat(one_layer(data, weights, widths, ridge))


def double(scale: str, reading: Reading, decay: float) -> Found:
    data = loaded(scale, reading.units)
    settings = {"beta": DEEP_BETA, "ridge": DEEP_RIDGE, "ema": decay}
    return deterministic(data, DEEP[scale], reading, **settings)


def deeper(scale: str, beta: float) -> Found:
    data = loaded(scale, TARGET_ONLY.units)
    n = min(FEWER[scale], data.fitted)
    rows = torch.cat([torch.arange(n), torch.arange(data.fitted, len(data.x))])
    few = Images(data.x[rows], data.y[rows], data.labels[rows], n)
    settings = {"beta": beta, "ridge": DEEP_RIDGE, "ema": DECAYS[-1]}
    return deterministic(few, DEEPER[scale], weighed(TARGET_ONLY), **settings)


def row_of(what: str, reading: str, found: Found, printed: str, scale: str) -> dict[str, Any]:
    """A row with the largest distance from the printed ones, over widths and splits."""
    widths, beside = WIDTHS[scale], PRINTED[printed]
    far = max(
        abs(found[f"{width}/{split}"] - pair[i])
        for width, pair in zip(widths, beside, strict=False)
        for i, split in enumerate(("train", "test"))
    )
    accuracies = {f"test, {width}": found[f"{width}/test"] for width in widths}
    return {"part": what, "reading": reading, **accuracies, "at most off by": far}


def printed_row(name: str, scale: str) -> dict[str, Any]:
    pairs = zip(WIDTHS[scale], PRINTED[name], strict=False)
    tests = {f"test, {width}": pair[1] for width, pair in pairs}
    return {"part": name, "reading": "printed", **tests, "at most off by": 0.0}


def main() -> None:
    args = arguments(__doc__, "platonic_pca")
    scale, folder = args.scale, args.kept / args.scale
    protocol = {"ridge": RIDGE, "beta": BETA, "widths": WIDTHS[scale]}

    def kept(key: str, make: Callable[[], Found]) -> Found:
        return found_once(folder, key, protocol, make)

    rows: list[dict[str, Any]] = []
    for name in ("random W", "sorted PCA"):
        rows.append(printed_row(name, scale))
        for units in UNITS:
            make = partial(picked, scale, units)
            if name == "random W":
                make = partial(drawn_units, scale, units, None)
            rows.append(row_of(name, units, kept(f"{name} {units}", make), name, scale))
    rows.append(printed_row("random P", scale))
    for beta in (10.0, 100.0):
        found = kept(f"random P {beta:g}", partial(drawn_units, scale, "standardised", beta))
        rows.append(row_of("random P", f"beta = {beta:g}", found, "random P", scale))
    rows.append(printed_row("platonic PCA", scale))
    single_rows = [
        row_of(
            "platonic PCA",
            reading.name,
            kept(f"single {reading.name}", partial(single, scale, reading)),
            "platonic PCA",
            scale,
        )
        for reading in READINGS
    ]
    rows += single_rows
    shown = "-".join(str(width) for width in DEEP[scale])
    printed = dict(zip(("train", "test"), TWO_LAYERS, strict=True))
    rows.append({"part": shown, "reading": "printed", **printed, "at most off by": 0.0})
    double_rows = []
    for reading in DEEP_READINGS:
        for decay in DECAYS:
            found = kept(f"double {reading.name} {decay}", partial(double, scale, reading, decay))
            far = max(abs(found[split] - printed[split]) for split in printed)
            row = {"part": shown, "reading": reading.name, "decay": decay, **found}
            double_rows.append({**row, "at most off by": far})
    rows += double_rows
    for beta, train in ((10.0, 90.19), (1e7, 99.14)):
        found = kept(f"deeper {beta:g}", partial(deeper, scale, beta))
        part = "-".join(str(width) for width in DEEPER[scale])
        row = {"part": part, "reading": weighed(TARGET_ONLY).name, "beta": beta, **found}
        rows.append({**row, "printed train": train})
    near = {row["reading"]: row["at most off by"] <= NEAR for row in single_rows}
    near_two = {row["reading"] for row in double_rows if row["at most off by"] <= NEAR}
    for row in rows:
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    print("Table 7.2 is explained by:", [name for name, holds in near.items() if holds])
    print("784-392 of Table 7.3 is explained by:", sorted(near_two))
    Evidence(
        claim="some reading of platonic PCA gives its row of Table 7.2 within half a point",
        holds=any(near.values()),
        rows=tuple(rows),
        command=f"python reproduce/platonic_pca.py --threads {args.threads}",
        settings=environment(
            threads=args.threads,
            scale=scale,
            explains=[name for name, holds in near.items() if holds],
            explains_two_layers=sorted(near_two),
        ),
    ).save(args.output)


if __name__ == "__main__":
    main()
