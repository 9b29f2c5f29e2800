"""Do workers need fewer bits when they exchange differences instead of weights?

Not in "Efficient deep learning", chapter 3, which sends weights.  Fixed before running:

**Setting.**  :mod:`packing.workers` (784-392-50-10, tanh, squared error; 2 workers average once an
epoch) on 2000 rows of MNIST for 12 epochs, three seeds.  The initial weights, the rows and the
order of batches of a seed are the same whatever is sent, so differences are paired by seed.  What
counts is the test accuracy after the last epoch, and the bits a weight of all that was sent,
indices and biases included.

**Sent.**  Plain weights; and in 4 levels (2 bits), 8 (3 bits), 5 and 16 the weights, or their
differences to the last common weights; 4 levels also with error feedback.

**The claim holds** if differences in 4 levels, without feedback, are within 0.5 points of plain,
and weights in 8 levels, which take more bits, are not.

``--scale small`` is this; ``tiny`` a smoke test on 8 x 8 digits; ``paper`` has all rows and 100
epochs.
"""

from __future__ import annotations

from functools import partial
from statistics import fmean, stdev
from typing import Any

from linearized.keeping import Found, found_once
from linearized.regression import arguments
from packing.workers import Digits, accuracy, digits, training

from dovetail.core.evidence import Evidence, environment

ROWS = {"tiny": 100, "small": 2000, "paper": None}
EPOCHS = {"tiny": 1, "small": 12, "paper": 100}
SEEDS, NEAR = 3, 0.5
PLAIN = "plain"

Way = tuple[int | None, bool, bool]
"""Levels, whether of differences, and whether with feedback."""

WAYS: dict[str, Way] = {
    PLAIN: (None, False, False),
    **{f"weights, {k} levels": (k, False, False) for k in (4, 5, 8, 16)},
    **{f"differences, {k} levels": (k, True, False) for k in (4, 5, 8, 16)},
    "weights, 4 levels, feedback": (4, False, True),
    "differences, 4 levels, feedback": (4, True, True),
}


def found_with(data: Digits, seed: int, epochs: int, way: Way) -> Found:
    levels, differences, feedback = way
    bits = []
    for epoch in training(
        data,
        workers=2,
        seed=seed,
        epochs=epochs,
        packing=None if levels is None else {"levels": levels},
        differences=differences,
        error_feedback=feedback,
    ):
        weights = sum(p.numel() for p in epoch.net.parameters())
        bits.append(fmean(epoch.bits) / weights)
    return {"test": accuracy(epoch.net, data.test), "bits a weight": fmean(bits)}


def main() -> None:
    args = arguments(__doc__, "packing_differences")
    scale, epochs = args.scale, EPOCHS[args.scale]
    data = digits(ROWS[scale], tiny=scale == "tiny")
    protocol = {"rows": len(data.train[0]), "epochs": epochs}
    rows: list[dict[str, Any]] = []
    plain: list[float] = []
    for name, way in WAYS.items():
        runs = [
            found_once(
                args.kept / scale,
                f"differences {name} {seed}",
                protocol,
                partial(found_with, data, seed, epochs, way),
            )
            for seed in range(SEEDS)
        ]
        tests = [run["test"] for run in runs]
        plain = plain or tests
        rows.append(
            {
                "sent": name,
                "test accuracy": fmean(tests),
                "its deviation": stdev(tests),
                "gain over plain": fmean(t - p for t, p in zip(tests, plain, strict=True)),
                "bits a weight": fmean(run["bits a weight"] for run in runs),
                "seeds": SEEDS,
            }
        )
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()})
    of = {row["sent"]: row for row in rows}
    few, many = of["differences, 4 levels"], of["weights, 8 levels"]
    Evidence(
        claim="differences in four levels train as well as plain weights, weights in eight do not",
        holds=few["gain over plain"] > -NEAR
        and many["gain over plain"] < -NEAR
        and few["bits a weight"] < many["bits a weight"],
        rows=tuple(rows),
        command="python reproduce/packing_differences.py",
        settings=environment(threads=args.threads, scale=scale, **protocol),
    ).save(args.output)


if __name__ == "__main__":
    main()
