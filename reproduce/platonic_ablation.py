"""Why do platonic projections work?  What is left when their target is taken apart.  (7.10.2, EFF.)

The source's solution is W = Z+ [Z | beta Y] P = P_Z + beta Z+ Y P_Y for features Z of full rank: a
random matrix plus a random projection of the least squares solution.  It says that T = Y P (the
second term alone) "does not work well", and suspects that the first acts as noise that
regularises. Both ends and the way between them are one line here: W = c (s P_Z + b Z+ Y P_Y),
where b gives labels and features equal variance in each layer, s is the noise, and c = 1 / max(1,
s) keeps what enters the activation from growing with it.  s = 0 is T = Y P; s = 1 weighs both
alike; s infinite is P_Z alone, an extreme learning machine of many layers, no labels.

A penalty chosen by generalised cross-validation makes Z+ a ridge solution.  It belongs to the
labels, which can be overfitted; P_Z solves its own problem exactly.  Where it is put on both, as
the source's ridge form W = (Z'Z + l I)^-1 Z' T does, features that tell nothing linearly about the
labels are no longer carried: "s = 1, penalty on both" says what that costs.

**Protocol**, fixed before running.  One try a layer and alpha = 1, so that nothing is chosen but
s. Two spirals, 2-32-32-32-32-1, tanh, ten seeds; checkerboard, 2-256-256-256-1, ReLU, three seeds;
each with 5000 points for training, 2500 for validation, 5000 for test; MNIST, 784-784-392-10,
ReLU, pixels centred, 20 000 training images (the first of a fixed shuffle), three seeds of P.  s
is swept over 0, 0.01, 0.1, 1, 10 and infinity; "s chosen on validation" takes the best of them for
each seed.  Reported: accuracy on training and test rows, and the rank of the second layer's
weights (singular values above 1e-6 of the largest).

**Claims.**  On every problem, by mean test accuracies: (1) T = Y P is at least five points (MNIST:
one) below s = 1.  (2) P_Z alone is below s = 1 by more than two standard errors: the labels
matter.  The record holds if all do; each is reported.

``--scale small`` is this; ``tiny`` a smoke test; ``paper`` has ten seeds and all training images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import mean, stdev
from typing import Any

import torch
from linearized.keeping import Found, found_once
from linearized.regression import arguments
from platonic.toys import POINTS, checkerboard, spirals
from torch import Tensor, nn
from torch.nn.functional import one_hot

from dovetail.closed_form.layers import Layer
from dovetail.closed_form.platonic import factorised
from dovetail.closed_form.projections import balanced
from dovetail.closed_form.rows import HeldRows, moments_of
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.tasks.arrays import as_float
from dovetail.tasks.load import load_task

SEEDS = {
    "tiny": {"spirals": 1, "checkerboard": 1, "mnist": 1},
    "small": {"spirals": 10, "checkerboard": 3, "mnist": 3},
    "paper": {"spirals": 10, "checkerboard": 10, "mnist": 10},
}
ROWS = {"tiny": 300, "small": 20_000, "paper": None}
SAMPLE = {"tiny": 300, "small": POINTS, "paper": POINTS}
NOISES = (0.0, 0.01, 0.1, 1.0, 10.0, math.inf)
WAYS = (*(f"s = {noise:g}" for noise in NOISES), "s = 1, penalty on both")
LABELS, ALIKE, CARRIED, BOTH = "s = 0", "s = 1", "s = inf", WAYS[-1]
BELOW = {"spirals": 5.0, "checkerboard": 5.0, "mnist": 1.0}
SPLITS = ("train", "validation", "test")

Split = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows and targets of three splits, and the network for them."""

    splits: tuple[Split, Split, Split]
    widths: tuple[int, ...]
    activation: Callable[[Tensor], Tensor]


def toy(draw: Callable[[int, int], Split], seed: int, points: int) -> tuple[Split, Split, Split]:
    """Training, validation and test points of one seed."""
    x, y = draw(seed, 5 * points // 2)
    train, validation = slice(points), slice(points, points + points // 2)
    test = slice(validation.stop, None)
    return (x[train], y[train]), (x[validation], y[validation]), (x[test], y[test])


@cache
def digits(rows: int | None, tiny: bool) -> tuple[Split, Split, Split]:
    """Centred images ``[n, 784]`` and one-hot classes ``[n, 10]``."""
    task = load_task("digits" if tiny else "mnist")
    found = []
    for split in SPLITS:
        inputs, targets = task.subset(split)
        most = rows if split == "train" else None
        order = torch.randperm(len(inputs), generator=generator(0, "ablation", split))[:most]
        found.append((as_float(inputs[order]).flatten(1).double(), one_hot(targets[order], 10)))
    centre = found[0][0].mean(0)
    train, validation, test = ((x - centre, y.double()) for x, y in found)
    return train, validation, test


def problem(name: str, scale: str, seed: int) -> Problem:
    if name == "spirals":
        return Problem(toy(spirals, seed, SAMPLE[scale]), (32, 32, 32, 32), torch.tanh)
    if name == "checkerboard":
        width = 16 if scale == "tiny" else 256
        return Problem(toy(checkerboard, seed, SAMPLE[scale]), (width,) * 3, torch.relu)
    widths = (32, 16) if scale == "tiny" else (784, 392)
    return Problem(digits(ROWS[scale], scale == "tiny"), widths, torch.relu)


def fitted(given: Problem, way: str, seed: int) -> list[Layer]:
    """The layers of a network, the output layer last."""
    (x, y), *_ = given.splits
    rows = HeldRows(x, y)
    moments = moments_of(rows)
    layers = []
    noise = 1.0 if way == BOTH else float(way.removeprefix("s = "))
    carried, told = (1.0, 0.0) if noise == math.inf else (noise / max(1, noise), 1 / max(1, noise))
    for i, width in enumerate(given.widths):
        solved = factorised(rows, moments, "auto", "auto")
        draw = generator(seed, "ablation", i)  # the same P for every way
        p = torch.randn(1 + moments.d + moments.k, width, generator=draw, dtype=torch.float64)
        constant, p_z = carried * p[0], carried * p[1 : moments.d + 1]
        p_y = told * balanced(moments) * p[moments.d + 1 :]
        if way == BOTH:
            weights = factorised(rows, moments, "auto", solved.penalty).carry(p_z)
        else:
            weights = p_z
        weights = weights + solved.labels @ p_y
        target = constant + moments.feature_mean @ p_z + moments.target_mean @ p_y
        layers.append(Layer(weights, target - moments.feature_mean @ weights, given.activation))
        _, moments, rows = rows.best_of(layers[-1:], lambda _: [0.0])
    weights = factorised(rows, moments, "auto", "auto").labels
    bias = moments.target_mean - moments.feature_mean @ weights
    return [*layers, Layer(weights, bias, nn.Identity())]


def right(said: Tensor, y: Tensor) -> float:
    if y.shape[1] == 1:
        return 100 * float((said.sign() == y.sign()).double().mean())
    return 100 * float((said.argmax(1) == y.argmax(1)).double().mean())


def found_by(name: str, way: str, scale: str, seed: int) -> Found:
    given = problem(name, scale, seed)
    layers = fitted(given, way, seed)
    found = {}
    for split, (x, y) in zip(SPLITS, given.splits, strict=True):
        for layer in layers:
            x = layer(x)
        found[split] = right(x, y)
    singular = torch.linalg.svdvals(layers[1].weights)
    found["rank"] = float((singular > 1e-6 * singular[0]).sum())
    return found


def error_of(a: Sequence[float], b: Sequence[float]) -> float:
    """The standard error of the difference of two means."""
    return math.sqrt(sum(stdev(each) ** 2 / len(each) for each in (a, b))) if len(a) > 1 else 0.0


def judged(name: str, tests: dict[str, list[float]]) -> dict[str, bool]:
    """The claims of the docstring for one problem."""
    alike, carried = tests[ALIKE], tests[CARRIED]
    return {
        f"{name}: T = YP does not work": mean(alike) - mean(tests[LABELS]) >= BELOW[name],
        f"{name}: the labels matter": mean(alike) - mean(carried) > 2 * error_of(alike, carried),
    }


def rows_of(name: str, runs: dict[str, list[Found]]) -> list[dict[str, Any]]:
    swept = [found for way, found in runs.items() if way != BOTH]
    chosen = [max(each, key=lambda found: found["validation"]) for each in zip(*swept, strict=True)]
    rows = []
    for way, found in [*runs.items(), ("s chosen on validation", chosen)]:
        tests = [each["test"] for each in found]
        rows.append(
            {
                "problem": name,
                "way": way,
                "seeds": len(found),
                "train": mean(each["train"] for each in found),
                "test": mean(tests),
                "deviation": stdev(tests) if len(tests) > 1 else 0.0,
                "rank of the second layer": mean(each["rank"] for each in found),
            }
        )
    return rows


def main() -> None:
    args = arguments(__doc__, "platonic_ablation")
    scale, folder = args.scale, args.kept / args.scale
    verdicts: dict[str, bool] = {}
    tables: list[dict[str, Any]] = []
    for name, seeds in SEEDS[scale].items():
        protocol = {"points": SAMPLE[scale], "images": ROWS[scale]}
        runs = {
            way: [
                found_once(
                    folder,
                    f"{name} {way} seed {seed}",
                    protocol,
                    partial(found_by, name, way, scale, seed),
                )
                for seed in range(seeds)
            ]
            for way in WAYS
        }
        verdicts |= judged(name, {w: [f["test"] for f in found] for w, found in runs.items()})
        tables += rows_of(name, runs)
    rows = [{"claim": claim, "holds": holds} for claim, holds in verdicts.items()] + tables
    evidence = Evidence(
        claim="neither the labels' projection alone (T = YP) nor the random one alone (P_Z, an "
        "extreme learning machine) does what platonic projections do",
        holds=all(verdicts.values()),
        rows=tuple(rows),
        command=f"python reproduce/platonic_ablation.py --threads {args.threads}",
        settings=environment(threads=args.threads, scale=scale, images=ROWS[scale]),
    )
    evidence.save(args.output)
    for row in rows:
        print({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()})
    print("holds" if evidence.holds else "does not hold")


if __name__ == "__main__":
    main()
