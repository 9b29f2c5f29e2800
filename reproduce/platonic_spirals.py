"""Two spirals: how much do precision, solver and scaling matter?  (Table 7.1, EFF.)

The source fits 2-32-32-32-32-1 (tanh) to 5000 points of two spirals in closed form, a thousand
times, and prints the training accuracy by solver and precision: 64 bits are best throughout, 32
bits can be far off, and a tolerance of 1e-5 helps.  Fixed before running:

**Protocol.**  A seed draws the points and the projections.  The source's recipe, one try a layer,
as it is printed: pinv, lstsq and ridge solve; 32 bits with the default tolerance and with 1e-5, 64
bits with the default; (alpha, beta) = (0.1, 10) and (1, 2).  Not told: how the spirals are drawn
(see ``platonic/toys.py``), and the penalty of "solve" beyond that it is low: 1e-6 here.  All on
the CPU, beside the source's CPU columns.  Accuracy is on the training points, as there.  Over 100
seeds; where a solver fails the seed counts as a failure and not in the mean.

Beside it: 1, 5 and 50 tries for (0.1, 10), ten seeds, where the source has one seed it calls
unlucky (89.73, 92.69 and 94.51 % in 32 bits; 99.99 % in 64 with one try); backpropagation by the
source's schedule (SGD 0.01, momentum 0.9, batches of 32, 75 epochs, rate / 10 after 56; it prints
99.17 %), three seeds; and our estimator with default arguments, thirty seeds, on its training
points and on 5000 new ones.

**Claims.**  (1) For each solver and scaling 64 bits have the higher mean than 32 bits, whatever
the tolerance.  (2) With pinv in 32 bits the tolerance raises the mean by more than two standard
errors, at both scalings.  (3) In 64 bits the means of pinv and lstsq are within one point of those
printed. (4) In 32 bits "solve" fails on the CPU.  (5) Ours, with default arguments, has a mean
training accuracy of at least 99.5 %.  The record holds if all do; each is reported.

``--scale small`` is this; ``tiny`` a smoke test; ``paper`` has 1000 seeds.
"""

from __future__ import annotations

import math
from functools import partial
from statistics import mean, stdev
from typing import Any

import torch
from linearized.keeping import Found, found_once
from linearized.regression import arguments, network
from platonic.literal import Recipe, followed
from platonic.toys import POINTS, accuracy, spirals
from torch import nn

from dovetail.closed_form import PlatonicClassifier
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator

SEEDS = {"tiny": 2, "small": 100, "paper": 1000}
OURS = {"tiny": 2, "small": 30, "paper": 30}
TRIES = {"tiny": (1, 2), "small": (1, 5, 50), "paper": (1, 5, 50, 500)}
TRIED = {"tiny": 1, "small": 10, "paper": 10}
SAMPLE = {"tiny": 200, "small": POINTS, "paper": POINTS}
WIDTHS = (32, 32, 32, 32)
SCALINGS = ((0.1, 10.0), (1.0, 2.0))
LOW = 1e-5
NEAR, ENOUGH = 1.0, 99.5

COLUMNS = ((32, None), (32, LOW), (64, None))
PRINTED: dict[tuple[str, float], tuple[float | None, ...]] = {
    ("pinv", 0.1): (80.25, 87.16, 99.17),
    ("lstsq", 0.1): (61.92, 87.75, 98.50),
    ("solve", 0.1): (None, None, 94.87),
    ("pinv", 1.0): (97.46, 99.83, 99.93),
    ("lstsq", 1.0): (95.95, 95.70, 99.93),
    ("solve", 1.0): (None, None, 99.95),
}
"""The table's CPU columns in the order of ``COLUMNS``; None where it says "Failed"."""


def cells() -> list[tuple[Recipe, float | None]]:
    """Every cell of the table and what is printed in it; solve knows no tolerance."""
    found = []
    for alpha, beta in SCALINGS:
        for solver in ("pinv", "lstsq", "solve"):
            printed = PRINTED[solver, alpha]
            for (bits, tolerance), number in zip(COLUMNS, printed, strict=True):
                if solver != "solve" or tolerance is None:
                    found.append((Recipe(alpha, beta, solver, bits, tolerance), number))
    return found


def named(recipe: Recipe) -> str:
    tolerance = "" if recipe.tolerance is None else f" tolerance {recipe.tolerance:g}"
    return f"{recipe.solver} {recipe.bits}{tolerance} alpha {recipe.alpha:g} tries {recipe.tries}"


def found_by(recipe: Recipe, seeds: int, points: int) -> Found:
    """The accuracy of each seed that did not fail."""
    found = {}
    for seed in range(seeds):
        x, y = spirals(seed, points)
        fit = followed(x, y, WIDTHS, torch.tanh, recipe, seed)
        if not fit.failed:
            found[str(seed)] = accuracy(fit.outputs, y)
    return found


def ours(seeds: int, points: int) -> Found:
    found = {}
    for seed in range(seeds):
        x, y = spirals(seed, points)
        new, arms = spirals(10_000 + seed, points)
        model = PlatonicClassifier(WIDTHS, activation="tanh", random_state=seed)
        model.fit(x.numpy(), y[:, 0].numpy())
        found[f"train/{seed}"] = 100 * float(model.score(x.numpy(), y[:, 0].numpy()))
        found[f"new/{seed}"] = 100 * float(model.score(new.numpy(), arms[:, 0].numpy()))
    return found


def descended(seed: int, points: int, epochs: int) -> float:
    """The training accuracy after the source's schedule of gradient descent."""
    x, y = (each.float() for each in spirals(seed, points))
    net = network(2, *WIDTHS, 1, activation=nn.Tanh, seed=seed)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    draw = generator(seed, "batches")
    for epoch in range(epochs):
        if epoch == 56:
            optimiser.param_groups[0]["lr"] /= 10
        for rows in torch.randperm(points, generator=draw).split(32):
            loss = nn.functional.soft_margin_loss(net(x[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    with torch.no_grad():
        return accuracy(net(x), y)


def summed(accuracies: list[float]) -> dict[str, Any]:
    if not accuracies:
        return {}
    deviation = stdev(accuracies) if len(accuracies) > 1 else 0.0
    return {"accuracy": mean(accuracies), "deviation": deviation, "lowest": min(accuracies)}


def tabled(found: dict[Recipe, list[float]], seeds: int) -> list[dict[str, Any]]:
    rows = []
    for recipe, printed in cells():
        row: dict[str, Any] = {
            "method": recipe.solver,
            "bits": recipe.bits,
            "tolerance": "default" if recipe.tolerance is None else f"{recipe.tolerance:g}",
            "alpha": recipe.alpha,
            "beta": recipe.beta,
        }
        row |= summed(found[recipe])
        row |= {"failed": seeds - len(found[recipe]), "printed": printed or "failed"}
        rows.append(row)
    return rows


def judged(found: dict[Recipe, list[float]], mine: list[float], seeds: int) -> dict[str, bool]:
    """The claims of the docstring, one by one."""

    def of(*key: Any) -> list[list[float]]:
        return [v for r, v in found.items() if (r.alpha, r.solver, r.bits) == key]

    def higher(alpha: float, solver: str) -> bool:
        narrow, (wide,) = of(alpha, solver, 32), of(alpha, solver, 64)
        return bool(wide) and all(mean(wide) > mean(each) for each in narrow if each)

    def helped(alpha: float) -> bool:
        plain, low = of(alpha, "pinv", 32)
        error = math.sqrt(sum(stdev(each) ** 2 / len(each) for each in (plain, low)))
        return mean(low) - mean(plain) > 2 * error

    scalings = [alpha for alpha, _ in SCALINGS]
    return {
        "64 bits beat 32 for each solver and scaling": all(
            higher(alpha, solver) for alpha in scalings for solver in ("pinv", "lstsq", "solve")
        ),
        "a tolerance of 1e-5 helps pinv in 32 bits at both scalings": all(map(helped, scalings)),
        "pinv and lstsq in 64 bits are within a point of the printed": all(
            abs(mean(found[recipe]) - printed) <= NEAR
            for recipe, printed in cells()
            if recipe.bits == 64 and recipe.solver != "solve" and printed is not None
        ),
        "solve fails in 32 bits": all(
            2 * len(each) < seeds for alpha in scalings for each in of(alpha, "solve", 32)
        ),
        "ours has 99.5 % or more with default arguments": mean(mine) >= ENOUGH,
    }


def main() -> None:
    args = arguments(__doc__, "platonic_spirals")
    scale, folder = args.scale, args.kept / args.scale
    seeds, points = SEEDS[scale], SAMPLE[scale]

    def kept(name: str, make: Any, **protocol: Any) -> Found:
        return found_once(folder, name, {"points": points, **protocol}, make)

    found = {
        recipe: list(
            kept(named(recipe), partial(found_by, recipe, seeds, points), seeds=seeds).values()
        )
        for recipe, _ in cells()
    }
    mine = kept("ours", partial(ours, OURS[scale], points), seeds=OURS[scale])
    train, new = ([v for k, v in mine.items() if k.startswith(where)] for where in ("train", "new"))
    verdicts = judged(found, train, seeds)
    rows: list[dict[str, Any]] = [
        {"claim": claim, "holds": holds} for claim, holds in verdicts.items()
    ]
    rows += tabled(found, seeds)
    for bits in (32, 64):
        for tries in TRIES[scale]:
            recipe = Recipe(*SCALINGS[0], bits=bits, tries=tries)
            make = partial(found_by, recipe, TRIED[scale], points)
            tried = kept(f"tries {named(recipe)}", make, seeds=TRIED[scale])
            rows.append(
                {"method": "pinv", "tries": tries, "bits": bits, **summed(list(tried.values()))}
            )
    epochs = 2 if scale == "tiny" else 75
    for seed in range(1 if scale == "tiny" else 3):
        said = kept(f"descent {seed}", lambda seed=seed: {"train": descended(seed, points, epochs)})
        rows.append({"method": "SGD, the source's schedule", "accuracy": said["train"]})
        rows[-1] |= {"printed": 99.17}
    rows.append({"method": "ours, defaults", "bits": 64, **summed(train)})
    rows.append({"method": "ours, defaults, on new points", "bits": 64, **summed(new)})
    evidence = Evidence(
        claim="two spirals in closed form are as Table 7.1 says: 64 bits make it, 32 bits with a "
        "tolerance come near; our defaults need neither alpha nor beta",
        holds=all(verdicts.values()),
        rows=tuple(rows),
        command=f"python reproduce/platonic_spirals.py --threads {args.threads}",
        settings=environment(threads=args.threads, scale=scale, seeds=seeds, points=points),
    )
    evidence.save(args.output)
    for row in rows:
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    print("holds" if evidence.holds else "does not hold")


if __name__ == "__main__":
    main()
