"""Do wide two-layer networks do what the theory of the Gram matrices says?  (Theorems 1 and 2.)

The source proves, for width without end, where a pretrained two-layer ReLU network begins on a
target and how far fine-tuning moves its weights, and shows no network.  Fixed before running:

**Networks.**  ``f(x) = m^(-1/2) a' relu(W x)``, signs ``a`` fixed, hidden units in pairs of equal
weights drawn from N(0, 1) and opposite signs, so that the output begins at zero; full-batch
gradient descent on half the squared error at the rate 1 / (largest eigenvalue of the matrix), until
no example is wrong by more than 0.005, or 20 000 steps.  Widths 200, 2 000, 20 000.  One network is
trained on the source, then on the target; one on the target from its start.

**Problems**, three seeds each.  *Half-spaces*: 30 random unit inputs of 10 numbers a side, labels
-1 and 1 of a hyperplane and of one turned by some 25 degrees.  *Digits*: 20 images a side, unit
length; the source tells 3 from 5, the target 3 from 5 among images turned by 90 degrees.

**Compared** with ``dt.lens.gram_theory``: both squared deviations and the change of the squared
gradient, as the ratio of trained to expected, and the labels that come from the source, as the
relative error of their vector.

**Claim.**  At width 20 000 both deviations and the change of the gradient are within 10 % of the
theory in every seed of both problems.  The least eigenvalues are in the rows.

``--scale small`` is this; ``tiny`` a smoke test.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dovetail as dt
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import generator
from dovetail.lens.theory import relu_gram
from dovetail.tasks.arrays import as_float
from dovetail.tasks.derive import only_classes, rotated

WITHIN, WRONG, MOST_STEPS = 0.1, 0.005, 20_000

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Scale:
    """How much is trained."""

    seeds: int
    widths: tuple[int, ...]


SCALES = {"tiny": Scale(1, (100, 200)), "small": Scale(3, (200, 2_000, 20_000))}


def half_spaces(seed: int) -> tuple[Pair, Pair]:
    """Random directions on two sides of two hyperplanes that nearly agree."""
    draw = generator(seed, "half-spaces")
    normal, turn = torch.nn.functional.normalize(torch.randn(2, 10, generator=draw), dim=1)
    sides = []
    for direction in (normal, normal + 0.45 * turn):
        x = torch.nn.functional.normalize(torch.randn(30, 10, generator=draw), dim=1)
        sides.append((x, (x @ direction).sign()))
    return sides[0], sides[1]


def digits(seed: int) -> tuple[Pair, Pair]:
    """3 against 5, upright and turned."""
    task = only_classes(dt.load_task("digits"), ["3", "5"])
    sides = []
    for role, one in (("source", task), ("target", rotated(task, 90))):
        x, y = one.subset("train")
        rows = torch.randperm(len(x), generator=generator(seed, role))[:20]
        units = torch.nn.functional.normalize(as_float(x[rows]).flatten(1), dim=1)
        sides.append((units, 2.0 * y[rows] - 1))
    return sides[0], sides[1]


class TwoLayer:
    """The network, of which only the weights learn."""

    def __init__(self, width: int, inputs: int, seed: int) -> None:
        half = torch.randn(width // 2, inputs, generator=generator(seed, "start"))
        self.weights = torch.cat([half, half])
        self.signs = torch.ones(width) / math.sqrt(width)
        self.signs[width // 2 :] *= -1

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs ``[n]``."""
        return (x @ self.weights.T).relu() @ self.signs

    def fit(self, x: Tensor, y: Tensor) -> int:
        """Gradient descent until all is fitted; the steps it took."""
        rate = 1 / float(torch.linalg.eigvalsh(relu_gram(x))[-1])
        for step in range(MOST_STEPS):
            hidden = x @ self.weights.T
            wrong = hidden.relu() @ self.signs - y
            if float(wrong.abs().max()) < WRONG:
                return step
            back = (hidden > 0) * (wrong[:, None] * self.signs)
            self.weights = self.weights.addmm(back.T, x, alpha=-rate)
        return MOST_STEPS


def compared(problem: str, seed: int, width: int) -> dict[str, Any]:
    """Trained networks of one width beside the theory."""
    (xp, yp), (xq, yq) = {"half-spaces": half_spaces, "digits": digits}[problem](seed)
    theory = dt.lens.gram_theory((xp, yp), (xq, yq))
    net, scratch = (TwoLayer(width, xp.shape[1], seed) for _ in range(2))
    start = scratch.weights
    steps = [net.fit(xp, yp)]
    learnt, come = net.weights, net(xq)
    steps += [net.fit(xq, yq), scratch.fit(xq, yq)]
    expected = torch.tensor(theory.transferred)[:, 0]
    change = float((yq - come).square().sum() - yq.square().sum())
    return {
        "problem": problem,
        "seed": seed,
        "width": width,
        "least eigenvalue, source": theory.least_source,
        "least eigenvalue, target": theory.least_target,
        "deviation, trained / theory": float((net.weights - learnt).square().sum())
        / theory.deviation,
        "from scratch, trained / theory": float((scratch.weights - start).square().sum())
        / theory.deviation_scratch,
        "gradient change, trained / theory": change / theory.lipschitz_change,
        "error of transferred labels": float((come - expected).norm() / expected.norm()),
        "theory: distance / from scratch": theory.distance / theory.distance_scratch,
        "steps": ", ".join(map(str, steps)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("reproduce/results/gram_theory.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    scale = SCALES[args.scale]
    rows = []
    for width in scale.widths:
        for problem in ("half-spaces", "digits"):
            for seed in range(scale.seeds):
                row = compared(problem, seed, width)
                rows.append(row)
                print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    ratios = [
        row[name]
        for row in rows
        if row["width"] == scale.widths[-1]
        for name in row
        if name.endswith("trained / theory")
    ]
    evidence = Evidence(
        claim=f"networks of width {scale.widths[-1]:,} are within {WITHIN:.0%} of the theory of "
        "Gram matrices in both deviations and the change of the gradient",
        holds=all(abs(ratio - 1) <= WITHIN for ratio in ratios),
        rows=tuple(rows),
        command=f"python reproduce/gram_theory.py --threads {args.threads}",
        settings=environment(
            threads=args.threads,
            scale=args.scale,
            worst=max(abs(ratio - 1) for ratio in ratios),
            wrong=WRONG,
        ),
    )
    evidence.save(args.output)
    print("holds" if evidence.holds else "does not hold", evidence.settings["worst"])


if __name__ == "__main__":
    main()
